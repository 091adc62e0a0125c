"""The table of suites: what each times, against what, its options and its targets. The command line, the list in
docs/benchmarks.md and the summary of targets are made from it. Imports nothing beyond Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.targets import AOT_EAGER, BOTH, COLD, INDUCTOR, NO_GRAD, OURS, PLAIN, SAVED, Target

SEQUENTIAL, FUNCTION, OUR_FUNCTION = "nn.Sequential", f"{PLAIN}, functional", f"{OURS}, functional"
FROZEN = f"{OURS}, frozen"
LSTM = "nn.LSTM (4 gates to LLTM's 3)"
STEPS = "{} called step by step"
COPY, TWO_PASSES = "copy_ of as many bytes", "a*x + b*y"
ONE_PASS = {"softshrink": "F.softshrink", "axpby": "torch.add(alpha=)"}
ORDINARY = f"{OURS}, ordinary numbers"
FEW_STEPS = "{}, 1 and 16 steps, batch 1 and 4, hidden 64 to 512"
EVERY_ROW = "LSTM and GRU, every row"
PACKED = "LSTM, packed, lengths half the maximum in the mean"
VIEWS = "{} of views and broadcasts"
EVERY_FUNCTION, FROM_MANY = "every function of 1,000 elements", "{} from 100,000 elements on"
STRIDED, LARGE_NUMBERS = "strided arguments", "large activations and masks"
NEIGHBOUR, QUOTA = "a busy neighbour on one core", "a quota of one CPU, eight threads asked for"

FUNCTIONS = (
    *("sin2_cos2", "gelu_tanh", "gelu_erf", "silu_gating", "swiglu", "black_scholes", "layer_norm", "rms_norm"),
    *("cross_entropy", "adam", "mandelbrot"),
)
MODELS = ("ViT", "GPT-2", "Llama")


@dataclass(frozen=True)
class Suite:
    """title: in one line. times, against: docs/benchmarks.md's columns. options: flags, each with its choices where it
    has any."""

    name: str
    title: str
    times: str
    against: str
    options: str
    example: str = ""
    targets: tuple[Target, ...] = ()
    in_all: bool = True

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        pairs = (option.partition("=") for option in self.options.split())
        return {flag: tuple(filter(None, choices.split(","))) for flag, _, choices in pairs}


def both(work: str, limit: float, against: str, threads: int | None = None, row: str = OURS) -> tuple[Target, ...]:
    return tuple(Target(work, phase, limit, against, threads, row) for phase in (NO_GRAD, BOTH))


def named(sizes: tuple[int, int, int, int]) -> str:
    batch_size, input_size, hidden_size, time = sizes
    return f"T{time} B{batch_size} I{input_size} H{hidden_size}"


def few_steps(kind: str, limit: float, frozen: float) -> tuple[Target, ...]:
    work, rival = FEW_STEPS.format(kind), f"nn.{kind}"
    return (
        Target(work, NO_GRAD, limit, rival),
        Target(work, BOTH, 1.0, rival),
        Target(f"{work}, frozen", NO_GRAD, frozen, rival, row=FROZEN),
        Target(f"{work}, frozen", NO_GRAD, 1.0, OURS, row=FROZEN),
    )


def small_network(work: str) -> tuple[Target, ...]:
    first = (Target(work, NO_GRAD, 2.2, SEQUENTIAL, 1), Target(work, BOTH, 1.8, SEQUENTIAL, 1))
    return (*first, *both(f"{work}, functional", 1.3, FUNCTION, 1, OUR_FUNCTION))


def one_pass(op: str, rival: str) -> tuple[Target, ...]:
    first = (*both(f"{op} of 64 elements", 1.0, rival, 1), Target(VIEWS.format(op), NO_GRAD, 0.9, rival, 1))
    return (*first, Target(op, NO_GRAD, 1.0, rival, 1), Target(f"{op}, 10 million elements or more", COLD, 0.95, COPY))


def lltm_cpu() -> tuple[Target, ...]:
    found = []
    for sizes, words, threads, against, forward, training in (
        ((16, 32, 128, 100), "", 1, PLAIN, 3.2, 3.3),
        ((16, 32, 128, 100), "", 1, LSTM, 1.7, 1.4),
        ((1, 32, 128, 100), "", 1, PLAIN, 11.0, None),
        ((1, 32, 128, 100), "", 1, LSTM, 2.2, None),
        ((1, 512, 512, 100), ", 2 threads", 2, PLAIN, 5.0, None),
        ((1, 512, 512, 100), ", 2 threads", 2, LSTM, 2.2, None),
        ((1, 512, 512, 100), " bfloat16, 2 threads", 2, LSTM, 1.5, None),
        ((16, 512, 512, 100), " bfloat16, 2 threads", 2, LSTM, 2.5, None),
    ):
        limits = {NO_GRAD: forward, BOTH: training}
        work = f"LLTM {named(sizes)}{words}"
        found += [Target(work, phase, limit, against, threads) for phase, limit in limits.items() if limit]
    return tuple(found)


def lltm_gpu(words: str) -> tuple[Target, ...]:
    work, unit = f"LLTM {named((16, 768, 768, 1024))} {words} on a GPU", " µs/step"
    times = tuple(Target(work, p, limit, at_most=True, unit=unit) for p, limit in ((NO_GRAD, 2.5), (BOTH, 8.0)))
    return times + (both(work, 1.0, LSTM) if words == "bfloat16" else ())


def layer(kind: str) -> tuple[Target, ...]:
    rival = f"nn.{kind}"
    return (
        *both(EVERY_ROW, 1.0, rival),
        *both(f"{kind} {named((16, 32, 128, 100))}", 1.3, rival, 1),
        *both(f"{kind} {named((1, 32, 128, 100))}", 1.8, rival, 1),
        *both(f"{kind} {named((1, 512, 512, 100))}, 2 threads", 1.6, rival, 2),
    )


ON_CPU = "--threads --repeats --quick --json"
ON_GPU = f"--device --memory-fraction {ON_CPU}"
SIZES = "--batch-size --input-size --hidden-size"
SUITES = (
    Suite(
        "cell",
        "one step of the LLTM",
        "one LLTM step, batch 16, 32 inputs, 128 hidden units, as the C++ extension tutorial times it",
        "plain PyTorch, the tutorial's C++ extension, torch.compile",
        f"{SIZES} {ON_GPU} --skip=aten,inductor",
        "--batch-size 1 --hidden-size 512 --threads 1 2 4",
        (
            *both("LLTM cell B16 I32 H128", 2.2, PLAIN, 1),
            Target("LLTM cell B16 I32 H128", BOTH, 2.8, INDUCTOR, 1),
        ),
    ),
    Suite(
        "mlp",
        "small perceptrons",
        "perceptrons of four sizes, as modules and as functions, and what they keep for the backward",
        "nn.Sequential, plain PyTorch, the tutorial's C++ extension, torch.compile",
        f"{SIZES} --output-size {ON_GPU} --skip=aten,inductor",
        "--batch-size 256 --threads 2",
        (
            *small_network("MLP 32x5-15-1"),
            *small_network("MLP 16x64-128-10"),
            *both("MLP 256x784-512-10", 0.97, SEQUENTIAL, 1),
            Target("MLP 256x784-512-10", SAVED, 2.0, SEQUENTIAL, 1),
            Target("MLP 1x64-64-2 tanh", NO_GRAD, 3.0, SEQUENTIAL, 1),
        ),
    ),
    Suite(
        "elementwise",
        "softshrink and axpby",
        "softshrink and axpby of 100,000 elements and more; of 64, with gradients; of views and broadcasts",
        "torch's one-pass operators, `a*x + b*y`, copying as many bytes",
        f"--elements --dtype=float32,bfloat16,float16 {ON_GPU}",
        "--device cuda --dtype bfloat16",
        (
            *(target for op, rival in ONE_PASS.items() for target in one_pass(op, rival)),
            Target("axpby at 1M", NO_GRAD, 2.5, TWO_PASSES, 1),
        ),
    ),
    Suite(
        "stream",
        "a few steps a call",
        "1 and 16 steps a call, batch 1 and 4, hidden 64 to 512; as each call reads its weights, and with these "
        "declared constant",
        "torch.nn's layers and cells",
        ON_CPU,
        targets=(*few_steps("LSTM", 1.5, 3.0), *few_steps("GRU", 1.2, 1.5)),
    ),
    Suite(
        "rl",
        "a rollout with restarts",
        "a rollout with restarts, batch 8, 128 steps, in one call",
        "torch.nn's layer called step by step, its state masked",
        ON_CPU,
        targets=both("RL rollout B8 T128, resets by done", 10.0, STEPS.format("nn.LSTM"), 1),
    ),
    Suite(
        "sequence",
        "LLTM, LSTM and GRU over whole sequences",
        "LLTM, LSTM and GRU, 100 steps, batch 1 and 16, hidden 128 and 512, float32 and bfloat16 autocast; packed "
        "sequences of many lengths; what the plots are drawn of",
        "torch.nn's layer with the same weights, plain PyTorch, ONNX Runtime where it is installed; for the LLTM "
        "nn.LSTM, and torch.compile of its step",
        f"{SIZES} --time --layer=LLTM,LSTM,GRU --dtype=float32,tf32,bfloat16,float16,autocast {ON_GPU} "
        "--skip=inductor --plots",
        "--device cuda --dtype bfloat16 tf32 --json sequence.json",
        (
            *lltm_cpu(),
            *layer("LSTM"),
            *layer("GRU"),
            *both(PACKED, 2.0, "nn.LSTM", 1),
            *lltm_gpu("bfloat16"),
            *lltm_gpu("float32 with TF32 products"),
        ),
    ),
    Suite(
        "pointwise",
        "functions under torch.compile",
        'eleven functions under `torch.compile(backend="fourfold")`, 1,000 to 10,000,000 elements, with and without '
        "gradients, 1 and 2 threads; transposed and strided arguments; activations of spread 5 to 100 and rows under "
        "masks; with memory that malloc keeps",
        "torch.compile with Inductor and aot_eager, plain PyTorch",
        f"--elements --function={','.join(FUNCTIONS)} {ON_CPU} --skip=inductor,aot_eager",
        "--function sin2_cos2 adam --elements 1000 100000 --threads 1",
        (
            *both(EVERY_FUNCTION, 1.3, PLAIN)[1:],
            Target(EVERY_FUNCTION, NO_GRAD, 1.3, INDUCTOR),
            Target(EVERY_FUNCTION, BOTH, 2.5, INDUCTOR),
            *(t for f in FUNCTIONS for t in both(FROM_MANY.format(f), 1.5 if f == "sin2_cos2" else 1.0, INDUCTOR)),
            *both(STRIDED, 1.0, INDUCTOR),
            *both(LARGE_NUMBERS, 0.95, PLAIN),
            *both(LARGE_NUMBERS, 1 / 1.2, ORDINARY),
        ),
    ),
    Suite(
        "cold",
        "first calls in fresh processes",
        "a first call in a fresh process, with empty caches and without PATH and HOME, and a second function's",
        "aot_eager, Inductor",
        "--quick --skip=inductor --json",
        targets=(
            Target("first call", "", 0.2, AOT_EAGER, at_most=True, unit=" s more"),
            Target("second function", "", 0.3, at_most=True, unit=" s"),
            Target("first call", "", 10.0, INDUCTOR),
            Target("import fourfold", "", 0, at_most=True, unit=" modules of Dynamo"),
        ),
    ),
    Suite(
        "models",
        "training of models",
        "a ViT, a GPT-2 and a Llama of `transformers` from their configurations: three steps' losses, the time to the "
        "first step, a warm step; needs `pip install transformers`",
        "plain PyTorch, aot_eager, Inductor",
        f"--model={','.join(MODELS)} {ON_CPU} --skip=inductor,aot_eager",
        "--model GPT-2 --threads 1",
        (Target("losses of 3 steps of training", "", 1.0, PLAIN, at_most=True, unit=" of the tolerance"),),
    ),
    Suite(
        "compiling",
        "torch.compile's time",
        "torch.compile of a model with nn.LLTM, 16 to 4096 steps",
        "the same model at 16 steps; a plain loop",
        "--quick --skip=inductor --json",
        targets=(Target("compile time, T=4096 over T=16", "", 1.25, at_most=True),),
    ),
    Suite(
        "disturbed",
        "a busy neighbour, a quota",
        "sequences beside a busy process, and under a quota of one CPU with eight threads asked for; Linux",
        "itself undisturbed",
        "--repeats --quick --json",
        targets=tuple(
            Target(f"slow-down by {words}", "", 3.0, "itself undisturbed", at_most=True) for words in (NEIGHBOUR, QUOTA)
        ),
    ),
    Suite(
        "sweep",
        "LSTM and GRU at random sizes",
        "LSTM and GRU at 200 random points of steps, batch, sizes, dtype, direction, threads and training, drawn from "
        "a seed; lists each that is slower. `--first` and `--points` take a part. Not in `all`",
        "torch.nn's layers with the same weights",
        f"--first --points --seed {ON_CPU}",
        "--first 51 --points 50",
        tuple(
            Target(f"random points of LSTM and GRU, {words}", "", limit, "torch.nn")
            for words, limit in (("median", 2.5), ("worst", 0.95))
        ),
        in_all=False,
    ),
    Suite(
        "all",
        "all of them but sweep, on the CPU",
        "all of these on the CPU, 35 to 45 minutes on two cores; `--quick` takes less than five",
        "",
        f"{ON_CPU} --skip=aten,inductor --plots",
        "--json docs/benchmarks/zen3.json --plots docs/benchmarks",
        in_all=False,
    ),
)
BY_NAME: Mapping[str, Suite] = {suite.name: suite for suite in SUITES}


def target(suite: str, work: str, against: str = "") -> Target:
    """A report's target; a report judges its figures itself."""
    found = [t for t in BY_NAME[suite].targets if t.work == work and against in ("", t.against)]
    (only,) = found
    return only
