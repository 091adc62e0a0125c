"""The suites of recurrent layers.

``cell``: one step of the LLTM, the C++ extension tutorial's own table. ``sequence``: LLTM, LSTM and GRU over whole
sequences, beside torch.nn's layers of the same sizes. ``stream``: a few steps per call, as in a program that gets its
input piece by piece. ``rl``: a reinforcement-learning rollout whose sequences restart when an episode ends: one call
with a mask of restarts, against a loop of single steps that masks the state before each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

import fourfold
from benchmarks import aten, layers, onnx_runtime
from benchmarks.problem import (
    FLOAT32,
    ON_GPU,
    Contender,
    Precision,
    Problem,
    Rate,
    forward_only,
    functional,
    largest_norm,
    normal,
)
from benchmarks.request import Request
from benchmarks.targets import BOTH, INDUCTOR, NO_GRAD, OURS, PLAIN
from fourfold import reference

LSTM = "nn.LSTM (4 gates to LLTM's 3)"  # a row's name
EVERY_ROW = "LSTM and GRU, every row"  # the name of a work
NAMES = ("batch_size", "input_size", "hidden_size", "time")
CELL = {"batch_size": 16, "input_size": 32, "hidden_size": 128}  # the tutorial's
CENTRE = (16, 32, 128, 100)
SIZES = {
    "cuda": ((16, 768, 768, 1024), (64, 512, 512, 1024), (256, 1024, 1024, 256), (1, 512, 512, 1024), CENTRE),
    "mps": (CENTRE, (1, 512, 512, 100), (64, 512, 512, 100)),
    "cpu": (CENTRE, (1, 32, 128, 100), (1, 512, 512, 100), (16, 512, 512, 100)),
}
# The sizes of the plots: each differs from the centre in one size.
AROUND = (
    *((batch_size, 32, 128, 100) for batch_size in (4, 64)),
    *((16, 32, hidden_size, 100) for hidden_size in (32, 64, 256, 512)),
    *((16, 32, 128, time) for time in (10, 1000)),
)
STREAM = tuple((batch, hidden, hidden, time) for time, batch, hidden in product((1, 16), (1, 4), (64, 128, 256, 512)))
QUICK_STREAM = (1, 128, 128, 1)
ROLLOUT, EPISODE = (8, 64, 128, 128), 32  # mean number of steps of an episode
LONGEST_COMPILED = 128  # Dynamo unrolls the loop, and Inductor then takes minutes
LONGEST_PLAIN = 100  # on a CPU; longer plain loops take as long per step and only cost time
LAUNCHED = "its kernels are launched on the default stream"
UNROLLED = f"left out above {LONGEST_COMPILED} steps: the loop is unrolled, and compiling it takes minutes"


def named(sizes: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(NAMES, sizes, strict=True))


def cell(request: Request) -> Iterator[Problem]:
    for sizes in request.chosen([CELL]):
        yield one_cell(sizes, request.device)


def sequence(request: Request) -> Iterator[Problem]:
    on_gpu = request.device.type != "cpu"
    kinds = request.kinds or (["LLTM"] if on_gpu else layers.GATES)
    precisions = request.precisions_or(ON_GPU, on_cpu=("float32",) if request.quick else ("float32", "autocast"))
    sizes = request.chosen([named(sizes) for sizes in SIZES[request.device.type]])
    for kind, size, precision in product(kinds, sizes, precisions):
        yield whole(kind, size, precision, request.device)
    if on_gpu or request.sizes:
        return
    for kind in kinds:
        if kind != "LLTM":
            yield packed(kind, named(CENTRE), precisions[0])
    for kind, size in product([] if request.quick else kinds, AROUND):
        found = whole(kind, named(size), precisions[0])
        rows = found.rows if kind == "LLTM" else without(PLAIN, found.rows)
        yield dataclasses.replace(found, rows=rows, threads=(1,))


def stream(request: Request) -> Iterator[Problem]:
    for kind, sizes in product(("LSTM", "GRU"), [QUICK_STREAM] if request.quick else STREAM):
        yield few_steps(kind, named(sizes))


def rl(request: Request) -> Iterator[Problem]:
    for kind in ("LSTM",) if request.quick else ("LSTM", "GRU"):
        yield rollout(kind, named(ROLLOUT))


def one_cell(sizes: Mapping[str, int], device: torch.device | str = "cpu") -> Problem:
    batch_size, input_size, hidden_size = (sizes[name] for name in CELL)
    draw, on = normal(torch.Generator().manual_seed(0), device), torch.device(device).type
    gates, scale = 3 * hidden_size, hidden_size**-0.5
    kernels = partial(layers.cell, aten.LLTMCell, source="lltm_cuda_baseline.cu")
    on_cuda = [Contender("the tutorial's CUDA kernels", kernels, tool="aten", uncaptured=LAUNCHED)]
    return Problem(
        title=f"LLTM cell, {shape_words(sizes)}, float32",
        parameters=(draw(gates, hidden_size + input_size) * scale, draw(gates) * scale),
        inputs=(draw(batch_size, input_size), draw(batch_size, hidden_size), draw(batch_size, hidden_size)),
        definition=reference.lltm_cell,
        longest_sum=max(input_size + hidden_size, batch_size),
        rows=[
            Contender(PLAIN, partial(layers.cell, reference.LLTMCell)),
            Contender("C++ composition of ATen calls", partial(layers.cell, aten.LLTMCell), tool="aten"),
            *(on_cuda if on == "cuda" else []),
            Contender(INDUCTOR, partial(layers.cell, reference.LLTMCell, backend="inductor"), tool="inductor"),
            Contender(OURS, partial(layers.cell, fourfold.nn.LLTMCell)),
        ],
        sizes=sizes,
        works=(f"LLTM cell B{batch_size} I{input_size} H{hidden_size}",) * (on == "cpu"),
    )


def whole(
    kind: str, sizes: Mapping[str, int], precision: Precision = FLOAT32, device: torch.device | str = "cpu"
) -> Problem:
    """A layer over whole sequences."""
    batch_size, input_size, hidden_size, time = (sizes[name] for name in NAMES)
    generator, on = torch.Generator().manual_seed(0), torch.device(device).type
    draw = normal(generator, device, precision.dtype)
    states = ((batch_size, hidden_size),) * layers.STATES[kind]
    parameters = draw_parameters(kind, sizes, generator)
    rival = "" if kind == "LLTM" else f"nn.{kind}"
    return Problem(
        title=f"{kind}, {shape_words(sizes)}, {time} steps, {precision.words}",
        parameters=tuple(p.to(device, precision.dtype) for p in parameters),
        inputs=(draw(time, batch_size, input_size), *(draw(*state) for state in states)),
        definition=layers.definition(kind),
        longest_sum=max(input_size + hidden_size, time * batch_size),
        rows=rows_of(kind, sizes, precision, on),
        sizes=sizes,
        precision=precision,
        rounding=rounding(precision, time),
        distance=largest_norm,
        phases=(NO_GRAD, BOTH),
        gradients=tuple(draw(*shape) / 8 for shape in ((time, batch_size, hidden_size), *states)),
        rate=Rate("µs/step", lambda seconds: 1e6 * seconds / time),
        baseline=f"{PLAIN}, CUDA graph" if on == "cuda" else rival,
        works=works(kind, sizes, precision, on),
        kind=kind,
    )


def shape_words(sizes: Mapping[str, int]) -> str:
    return f"batch {sizes['batch_size']}, input {sizes['input_size']}, hidden {sizes['hidden_size']}"


def works(kind: str, sizes: Mapping[str, int], precision: Precision, device: str) -> tuple[str, ...]:
    """The targets of LSTM and GRU apply to every row, and in float32 also to some sizes."""
    work = "{} T{time} B{batch_size} I{input_size} H{hidden_size}".format(kind, **sizes)
    if device != "cpu":
        return (f"{work} {precision.words} on a GPU",) * (device == "cuda")
    every = () if kind == "LLTM" else (EVERY_ROW,)
    if precision.autocast and kind == "LLTM":
        work += " bfloat16"
    elif precision is not FLOAT32:
        return every
    return *every, work, f"{work}, 2 threads"


def rounding(precision: Precision, time: int) -> float:
    """A 16-bit state is rounded at each of T steps, and the errors add up like a random walk; twice that because a step
    amplifies errors, and twice for the gradients, which are sums over such steps."""
    return precision.unit * (4 * math.sqrt(time) if precision.products.itemsize == 2 else 8)


def draw_parameters(kind: str, sizes: Mapping[str, int], generator: torch.Generator) -> tuple[Tensor, ...]:
    """The module's own initial values; the LLTM's weights are reduced. Without that, c grows by about 0.4 per step and
    small differences grow with it, so that after a thousand steps the gradients of float32 and float64 have nothing in
    common."""
    parameters = layers.draw(kind, sizes, generator)
    if kind == "LLTM":
        weights, bias = parameters
        weights[:, : sizes["hidden_size"]] /= 2
        bias[: sizes["hidden_size"]] -= 0.5 * math.log(sizes["time"])  # longer sequences have fewer open input gates
    return parameters


def packed(kind: str, sizes: Mapping[str, int], precision: Precision = FLOAT32) -> Problem:
    """Sequences of every length from ``time`` down to one step; their mean length is half."""
    batch_size, time = sizes["batch_size"], sizes["time"]
    found = whole(kind, sizes, precision)
    lengths = torch.linspace(time, 1, batch_size).round()
    batch_sizes = (lengths > torch.arange(time).unsqueeze(1)).sum(1)
    present = torch.cat([torch.arange(int(n)) + t * batch_size for t, n in enumerate(batch_sizes)])
    return dataclasses.replace(
        found,
        title=found.title.replace(f"{time} steps", f"packed, {time} to 1 steps"),
        inputs=(found.inputs[0].flatten(0, 1)[present], *found.inputs[1:]),
        definition=layers.definition(kind, batch_sizes=batch_sizes),
        rows=without("ONNX Runtime", found.rows),
        gradients=(found.gradients[0].flatten(0, 1)[present], *found.gradients[1:]),
        works=(EVERY_ROW, *(["LSTM, packed, lengths half the maximum in the mean"] if kind == "LSTM" else [])),
        batch_sizes=batch_sizes,
    )


def few_steps(kind: str, sizes: Mapping[str, int]) -> Problem:
    work = f"{kind}, 1 and 16 steps, batch 1 and 4, hidden 64 to 512"
    one = sizes["time"] == 1
    steps = "one step" if one else f"{sizes['time']} steps"
    return dataclasses.replace(
        whole(kind, sizes),
        title=f"{kind}, {steps} a call, {shape_words(sizes)}, float32",
        rows=[
            Contender(f"nn.{kind}", layers.layer),
            *([Contender(f"nn.{kind}Cell", layers.torch_cell, as_cells)] if one else []),
            Contender(OURS, layers.ours),
            Contender(f"{OURS}, frozen", layers.frozen, forward_only),
        ],
        rate=None,
        works=(work, f"{work}, frozen"),
    )


def as_cells(problem: Problem) -> Problem:
    """The same forward step with the shapes of a cell's input, without a time dimension."""
    return dataclasses.replace(
        forward_only(problem),
        inputs=tuple(x.flatten(0, -2) for x in problem.inputs),
        definition=lambda x, *rest: problem.definition(x.unsqueeze(0), *rest),
    )


def rollout(kind: str, sizes: Mapping[str, int]) -> Problem:
    found = whole(kind, sizes)
    done = torch.rand(sizes["time"], sizes["batch_size"], generator=torch.Generator().manual_seed(2)) < 1 / EPISODE
    rival = f"nn.{kind} called step by step"
    return dataclasses.replace(
        found,
        title=f"{found.title}, {int(done.sum())} restarts",
        definition=layers.definition(kind, reset=done),
        rows=[Contender(rival, layers.step_by_step), Contender(OURS, layers.ours)],
        baseline=rival,
        works=("RL rollout B8 T128, resets by done",) * (kind == "LSTM"),
        reset=done,
    )


def rows_of(kind: str, sizes: Mapping[str, int], precision: Precision, device: str) -> list[Contender]:
    ours = Contender(OURS, layers.ours, with_exact_states)
    on_cpu, in_float32 = device == "cpu", device == "cpu" and precision is FLOAT32
    if kind != "LLTM":
        onnx = [Contender("ONNX Runtime", onnx_runtime.layer, forward_only)]
        rival = Contender(f"nn.{kind}", layers.layer)
        return [Contender(PLAIN, functional), rival, *(onnx if in_float32 else []), ours]
    rows = []
    if not on_cpu or sizes["time"] <= LONGEST_PLAIN:
        rows.append(Contender(PLAIN, layers.plain))
    if not on_cpu:
        why = UNROLLED * (sizes["time"] > LONGEST_COMPILED)
        rows.append(Contender(INDUCTOR, partial(layers.plain, backend="inductor"), tool="inductor", left_out=why))
    elif in_float32 and tuple(sizes.values()) == CENTRE:
        rows.append(Contender(f"{INDUCTOR} of the step", layers.compiled_step, tool="inductor"))
    return [*rows, Contender(LSTM, layers.layer, as_lstm), ours]


def without(name: str, rows: Sequence[Contender]) -> list[Contender]:
    return [row for row in rows if row.name != name]


def with_exact_states(problem: Problem) -> Problem:
    """fourfold keeps the state in float32, so that errors don't accumulate over the steps."""
    return dataclasses.replace(problem, rounding=min(problem.rounding, 6 * problem.precision.unit))


def as_lstm(problem: Problem) -> Problem:
    """The LLTM's input, state and gradients for an LSTM, with nn.LSTM's initialisation."""
    like = problem.parameters[0]
    drawn = layers.draw("LSTM", problem.sizes, torch.Generator().manual_seed(1))
    parameters = tuple(p.to(like.device, like.dtype) for p in drawn)
    return dataclasses.replace(problem, parameters=parameters, definition=layers.definition("LSTM"), kind="LSTM")
