"""``sequence``: LLTM, LSTM and GRU over whole sequences, beside torch.nn's layers of the same sizes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from benchmarks import layers, onnx_runtime
from benchmarks.comparison import inductor, left_out
from benchmarks.layers import KINDS, LLTM, Kind
from benchmarks.precision import FLOAT32, ON_GPU, Precision
from benchmarks.problem import BOTH, NO_GRAD, OURS, Candidate, Contender, Problem, Rate, Target, largest_norm
from benchmarks.request import Request
from fourfold import reference

NAMES = ("batch_size", "input_size", "hidden_size", "time")
SIZES = {
    "cuda": (
        (16, 768, 768, 1024),
        (64, 512, 512, 1024),
        (256, 1024, 1024, 256),
        (1, 512, 512, 1024),
        (16, 32, 128, 100),
    ),
    "mps": ((16, 32, 128, 100), (1, 512, 512, 100), (64, 512, 512, 100)),
    "cpu": ((16, 32, 128, 100), (1, 32, 128, 100), (1, 512, 512, 100), (16, 512, 512, 100)),
}
# Beside the list's first, what the plots are drawn of: one size at a time away from it.
SWEEP = (
    *((batch_size, 32, 128, 100) for batch_size in (4, 64)),
    *((16, 32, hidden_size, 100) for hidden_size in (32, 64, 256, 512)),
    *((16, 32, 128, time) for time in (10, 1000)),
)
PACKED = (16, 32, 128, 100)
COMPILED = (16, 32, 128, 100)  # compiling a step takes a while, so at one size
LONGEST_COMPILED = 128  # Dynamo unrolls the loop, and Inductor then takes minutes
LONGEST_PLAIN = 100  # on a CPU; at more steps the plain loop is as slow a step, and only takes time
PLAIN = "plain PyTorch"
STEPS_COMPILED = "torch.compile (Inductor) of the step"
LSTM = "nn.LSTM (4 gates to LLTM's 3)"

# µs a step on an H200, by size and precision.
GPU_TARGETS = {
    ((16, 768, 768, 1024), "bfloat16"): (Target(NO_GRAD, 2.5), Target(BOTH, 8.0)),
    ((16, 768, 768, 1024), "tf32"): (Target(NO_GRAD, 2.5), Target(BOTH, 8.0)),
}

# On a CPU, by size and precision: how many threads, then the LLTM's ratios to each rival by phase, then the ratio to
# torch.nn's layer of LSTM and GRU in both phases.
LLTM_TARGETS = {
    ((16, 32, 128, 100), "float32"): (1, {PLAIN: (3.2, 3.3), LSTM: (1.7, 1.4)}),
    ((1, 32, 128, 100), "float32"): (1, {PLAIN: (11.0, None), LSTM: (2.2, None)}),
    ((1, 512, 512, 100), "float32"): (2, {PLAIN: (5.0, None), LSTM: (2.2, None)}),
    ((1, 512, 512, 100), "autocast"): (2, {LSTM: (1.5, None)}),
    ((16, 512, 512, 100), "autocast"): (2, {LSTM: (2.5, None)}),
}
SAME_TARGETS = {(1, 32, 128, 100): (1, 1.8), (1, 512, 512, 100): (2, 1.6), (16, 32, 128, 100): (1, 1.3)}
NO_LOSS = "LSTM and GRU, every row"


def problems(request: Request) -> Iterator[Problem]:
    on_gpu = request.device.type != "cpu"
    kinds = [KINDS[name] for name in request.kinds or (["LLTM"] if on_gpu else KINDS)]
    precisions = request.precisions_or(ON_GPU, on_cpu=("float32",) if request.quick else ("float32", "autocast"))
    for kind in kinds:
        for sizes in chosen_sizes(request):
            for precision in precisions:
                yield problem(sizes, precision, request.device, kind)
    if not on_gpu and not request.sizes:
        for kind in kinds:
            if kind is not LLTM:
                yield packed_problem(named(PACKED), precisions[0], kind)
    if not on_gpu and not request.sizes and not request.quick:
        for kind in kinds:
            for sizes in SWEEP:
                yield dataclasses.replace(problem(named(sizes), precisions[0], kind=kind), threads=(1,))


def named(sizes: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(NAMES, sizes, strict=True))


def chosen_sizes(request: Request) -> list[dict[str, int]]:
    """The sizes asked for, the others from the first of the list; without any the list, of which quick takes one."""
    sizes = [named(values) for values in SIZES[request.device.type]]
    if request.sizes:
        return [{**sizes[0], **request.sizes}]
    return sizes[:1] if request.quick else sizes


def problem(
    sizes: Mapping[str, int], precision: Precision, device: torch.device | str = "cpu", kind: Kind = LLTM
) -> Problem:
    batch_size, input_size, hidden_size, time = (sizes[name] for name in NAMES)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, precision.dtype)

    state = (batch_size, hidden_size)
    drawn = draw_parameters(kind, sizes, generator)
    kind_of_device = torch.device(device).type
    shape = ", ".join([f"batch {batch_size}", f"input {input_size}", f"hidden {hidden_size}", f"{time} steps"])
    return Problem(
        title=f"{kind.name}, {shape}, {precision.words}",
        parameters=tuple(p.to(device, precision.dtype) for p in drawn),
        inputs=(normal(time, batch_size, input_size), *(normal(*state) for _ in range(kind.states))),
        definition=kind.definition(),
        longest_sum=max(input_size + hidden_size, time * batch_size),
        sizes=sizes,
        precision=precision,
        rounding=rounding(precision, time),
        distance=largest_norm,
        phases=(NO_GRAD, BOTH),
        gradients=tuple(
            normal(*shape) / 8 for shape in ((time, batch_size, hidden_size), *(state for _ in range(kind.states)))
        ),
        rate=Rate("µs/step", lambda seconds: 1e6 * seconds / time),
        baseline=f"{PLAIN}, CUDA graph" if kind_of_device == "cuda" else "" if kind is LLTM else f"nn.{kind.name}",
        targets=targets(kind, sizes, precision, kind_of_device),
        kind=kind.name,
    )


def rounding(precision: Precision, time: int) -> float:
    """A state of 16 bits is rounded at each of T steps, which adds up as a random walk does; twice that for what a
    step makes of its errors, and twice for the gradients, which are sums of such steps."""
    return precision.unit * (4 * math.sqrt(time) if precision.products.itemsize == 2 else 8)


def targets(kind: Kind, sizes: Mapping[str, int], precision: Precision, device: str) -> tuple[Target, ...]:
    if device == "cpu":
        return cpu_targets(kind, sizes, precision)
    return gpu_targets(sizes, precision) if device == "cuda" else ()


def gpu_targets(sizes: Mapping[str, int], precision: Precision) -> tuple[Target, ...]:
    faster = (Target(NO_GRAD, 1.0, LSTM), Target(BOTH, 1.0, LSTM))
    targets = GPU_TARGETS.get((tuple(sizes[name] for name in NAMES), precision.name), ())
    return targets + (faster if targets and precision.name == "bfloat16" else ())


def cpu_targets(kind: Kind, sizes: Mapping[str, int], precision: Precision) -> tuple[Target, ...]:
    size = tuple(sizes[name] for name in NAMES)
    work = f"T{sizes['time']} B{sizes['batch_size']} I{sizes['input_size']} H{sizes['hidden_size']}"
    if kind is LLTM:
        threads, rivals = LLTM_TARGETS.get((size, precision.name), (1, {}))
        words = f"LLTM {work}" + (" bfloat16" if precision.autocast else "") + ", 2 threads" * (threads == 2)
        return tuple(
            Target(phase, limit, rival, threads, words)
            for rival, limits in rivals.items()
            for phase, limit in zip((NO_GRAD, BOTH), limits, strict=True)
            if limit is not None
        )
    rival = f"nn.{kind.name}"
    targets = [Target(phase, 1.0, rival, work=NO_LOSS) for phase in (NO_GRAD, BOTH)]
    if size in SAME_TARGETS and precision is FLOAT32:
        threads, limit = SAME_TARGETS[size]
        words = f"{kind.name} {work}" + ", 2 threads" * (threads == 2)
        targets += [Target(phase, limit, rival, threads, words) for phase in (NO_GRAD, BOTH)]
    return tuple(targets)


def draw_parameters(kind: Kind, sizes: Mapping[str, int], generator: torch.Generator) -> tuple[Tensor, ...]:
    """The module's own initial values; the LLTM's made calmer: as they are, c grows by about 0.4 a step and small
    differences grow with it, so that after a thousand steps even float32 and float64 have no gradient in common."""
    hidden_size = sizes["hidden_size"]
    parameters = kind.draw(sizes["input_size"], hidden_size, generator)
    if kind is LLTM:
        weights, bias = parameters
        weights[:, :hidden_size] /= 2
        bias[:hidden_size] -= 0.5 * math.log(sizes["time"])  # input gates open less, the longer the sequence
    return parameters


def lstm_problem(problem: Problem) -> Problem:
    """The LLTM's input, state and gradients for an LSTM, with nn.LSTM's initial values."""
    sizes, like = problem.sizes, problem.parameters[0]
    drawn = layers.LSTM.draw(sizes["input_size"], sizes["hidden_size"], torch.Generator().manual_seed(1))
    parameters = tuple(p.to(like.device, like.dtype) for p in drawn)
    return dataclasses.replace(problem, parameters=parameters, definition=layers.LSTM.definition(), kind="LSTM")


def packed_problem(sizes: Mapping[str, int], precision: Precision, kind: Kind) -> Problem:
    """Sequences of every length from ``time`` down to one step, which are half as long in the mean."""
    batch_size, time = sizes["batch_size"], sizes["time"]
    whole = problem(sizes, precision, kind=kind)
    lengths = torch.linspace(time, 1, batch_size).round()
    batch_sizes = (lengths > torch.arange(time).unsqueeze(1)).sum(1)
    present = torch.cat([torch.arange(int(n)) + t * batch_size for t, n in enumerate(batch_sizes)])

    def packed(padded: Tensor) -> Tensor:
        return padded.flatten(0, 1)[present]

    targets = [Target(phase, 1.0, f"nn.{kind.name}", work=NO_LOSS) for phase in whole.phases]
    if kind.name == "LSTM":
        work = "LSTM, packed, lengths half the maximum in the mean"
        targets += [Target(phase, 2.0, "nn.LSTM", 1, work) for phase in whole.phases]
    return dataclasses.replace(
        whole,
        title=whole.title.replace(f"{time} steps", f"packed, {time} to 1 steps"),
        inputs=(packed(whole.inputs[0]), *whole.inputs[1:]),
        definition=kind.definition(batch_sizes=batch_sizes),
        gradients=(packed(whole.gradients[0]), *whole.gradients[1:]),
        targets=tuple(targets),
        batch_sizes=batch_sizes,
    )


def contenders(problem: Problem, skip: Collection[str]) -> list[Contender]:
    kind = KINDS[problem.kind]
    shape = (problem.sizes["input_size"], problem.sizes["hidden_size"])
    made = {"device": problem.device, "dtype": problem.precision.dtype}
    on_gpu = problem.device.type != "cpu"
    packed = {} if problem.batch_sizes is None else {"batch_sizes": problem.batch_sizes}
    rows = []
    if kind is LLTM:
        if on_gpu or problem.sizes["time"] <= LONGEST_PLAIN:
            rows.append(Contender(PLAIN, partial(plain_module, problem)))
        if on_gpu:
            rows.append(Contender("torch.compile (Inductor)", partial(compiled, problem, skip)))
        elif problem.precision is FLOAT32 and tuple(problem.sizes.values()) == COMPILED:
            rows.append(Contender(STEPS_COMPILED, partial(compiled_step, problem, skip)))
        rows.append(Contender(LSTM, partial(layers.torchs, kind, *shape, made), lstm_problem(problem)))
    else:
        if problem.threads is None:
            rows.append(Contender(PLAIN, partial(plain_function, problem)))
        rows.append(Contender(f"nn.{kind.name}", partial(layers.torchs, kind, *shape, made, **packed)))
        if not on_gpu and not packed and problem.precision is FLOAT32:
            forward = dataclasses.replace(problem, phases=(NO_GRAD,))
            rows.append(Contender("ONNX Runtime", partial(onnx_runtime.layer, problem), forward))
    # Its state is in float32, so that errors don't add up over the steps.
    ours = dataclasses.replace(problem, rounding=min(problem.rounding, 6 * problem.precision.unit))
    rows.append(Contender(OURS, partial(layers.ours, kind, *shape, made, **packed), ours))
    return rows


def plain_module(problem: Problem) -> Candidate:
    """The tutorial's module, called as such."""
    layer = reference.LLTM(problem.sizes["input_size"], problem.sizes["hidden_size"])
    layer = layer.to(problem.device, problem.precision.dtype)
    return Candidate(layers.call_module(layer), tuple(layer.parameters()))


def plain_function(problem: Problem) -> Candidate:
    """The definition itself."""
    parameters = tuple(p.clone().requires_grad_() for p in problem.parameters)
    return Candidate(lambda *inputs: problem.definition(*inputs, *parameters), parameters)


def compiled(problem: Problem, skip: Collection[str]) -> Candidate:
    if "inductor" in skip:
        left_out()
    if problem.sizes["time"] > LONGEST_COMPILED:
        left_out(f"left out above {LONGEST_COMPILED} steps: the loop is unrolled, and compiling it takes minutes")

    def make(compile) -> Candidate:
        layer = reference.LLTM(problem.sizes["input_size"], problem.sizes["hidden_size"])
        layer = layer.to(problem.device, problem.precision.dtype)
        return Candidate(layers.call_module(compile(layer)), tuple(layer.parameters()))

    return inductor(make, problem)


def compiled_step(problem: Problem, skip: Collection[str]) -> Candidate:
    """The cell compiled and called once a step: a compiled loop is unrolled, which takes minutes at a hundred steps."""
    if "inductor" in skip:
        left_out()

    def make(compile) -> Candidate:
        cell = reference.LLTMCell(problem.sizes["input_size"], problem.sizes["hidden_size"])
        step = compile(cell)

        def call(input: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
            outputs = []
            for x in input:
                h, c = step(x, (h, c))
                outputs.append(h)
            return torch.stack(outputs), h, c

        return Candidate(call, tuple(cell.parameters()))

    return inductor(make, problem)
