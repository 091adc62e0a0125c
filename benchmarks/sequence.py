"""``sequence``: LLTM, LSTM and GRU over whole sequences, beside torch.nn's layers of the same sizes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from benchmarks import layers, onnx_runtime, suites
from benchmarks.layers import KINDS, LLTM, Kind
from benchmarks.problem import (
    FLOAT32,
    ON_GPU,
    Candidate,
    Contender,
    Precision,
    Problem,
    Rate,
    compiled,
    functional,
    largest_norm,
    normal,
)
from benchmarks.request import Request
from benchmarks.targets import BOTH, INDUCTOR, NO_GRAD, OURS, PLAIN
from fourfold import reference

NAMES = ("batch_size", "input_size", "hidden_size", "time")
CENTRE = (16, 32, 128, 100)
SIZES = {
    "cuda": ((16, 768, 768, 1024), (64, 512, 512, 1024), (256, 1024, 1024, 256), (1, 512, 512, 1024), CENTRE),
    "mps": (CENTRE, (1, 512, 512, 100), (64, 512, 512, 100)),
    "cpu": (CENTRE, (1, 32, 128, 100), (1, 512, 512, 100), (16, 512, 512, 100)),
}
# Beside the centre, what the plots are drawn of: one size at a time away from it.
AROUND = (
    *((batch_size, 32, 128, 100) for batch_size in (4, 64)),
    *((16, 32, hidden_size, 100) for hidden_size in (32, 64, 256, 512)),
    *((16, 32, 128, time) for time in (10, 1000)),
)
LONGEST_COMPILED = 128  # Dynamo unrolls the loop, and Inductor then takes minutes
LONGEST_PLAIN = 100  # on a CPU; at more steps the plain loop is as slow a step, and only takes time
STEPS_COMPILED = f"{INDUCTOR} of the step"


def problems(request: Request) -> Iterator[Problem]:
    on_gpu = request.device.type != "cpu"
    kinds = [KINDS[name] for name in request.kinds or (["LLTM"] if on_gpu else KINDS)]
    precisions = request.precisions_or(ON_GPU, on_cpu=("float32",) if request.quick else ("float32", "autocast"))
    for kind in kinds:
        for sizes in chosen_sizes(request):
            for precision in precisions:
                yield problem(sizes, precision, request.device, kind)
    if on_gpu or request.sizes:
        return
    for kind in kinds:
        if kind is not LLTM:
            yield packed_problem(named(CENTRE), precisions[0], kind)
    for kind in [] if request.quick else kinds:
        for sizes in AROUND:
            yield dataclasses.replace(problem(named(sizes), precisions[0], kind=kind), threads=(1,))


def named(sizes: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(NAMES, sizes, strict=True))


def chosen_sizes(request: Request) -> list[dict[str, int]]:
    """The sizes asked for, the others from the first of the list; without any the list, of which quick takes one."""
    sizes = [named(values) for values in SIZES[request.device.type]]
    return [{**size, **request.sizes} for size in (sizes[:1] if request.sizes or request.quick else sizes)]


def problem(
    sizes: Mapping[str, int],
    precision: Precision = FLOAT32,
    device: torch.device | str = "cpu",
    kind: Kind = LLTM,
) -> Problem:
    batch_size, input_size, hidden_size, time = (sizes[name] for name in NAMES)
    generator = torch.Generator().manual_seed(0)
    draw, where = normal(generator, device, precision.dtype), torch.device(device).type
    states = ((batch_size, hidden_size),) * kind.states
    parameters = draw_parameters(kind, sizes, generator)
    shape = f"batch {batch_size}, input {input_size}, hidden {hidden_size}"
    baselines = {"cuda": f"{PLAIN}, CUDA graph", "cpu": "" if kind is LLTM else f"nn.{kind.name}"}
    return Problem(
        title=f"{kind.name}, {shape}, {time} steps, {precision.words}",
        parameters=tuple(p.to(device, precision.dtype) for p in parameters),
        inputs=(draw(time, batch_size, input_size), *(draw(*state) for state in states)),
        definition=kind.definition(),
        longest_sum=max(input_size + hidden_size, time * batch_size),
        sizes=sizes,
        precision=precision,
        rounding=rounding(precision, time),
        distance=largest_norm,
        phases=(NO_GRAD, BOTH),
        gradients=tuple(draw(*shape) / 8 for shape in ((time, batch_size, hidden_size), *states)),
        rate=Rate("µs/step", lambda seconds: 1e6 * seconds / time),
        baseline=baselines.get(where, "" if kind is LLTM else f"nn.{kind.name}"),
        works=works(kind, sizes, precision, where),
        kind=kind.name,
    )


def works(kind: Kind, sizes: Mapping[str, int], precision: Precision, device: str) -> tuple[str, ...]:
    """The targets of LSTM and GRU are for every row, and in float32 for some sizes."""
    work = f"{kind.name} {suites.named(tuple(sizes[name] for name in NAMES))}"
    if device != "cpu":
        return (f"{work} {precision.words} on a GPU",) * (device == "cuda")
    every = () if kind is LLTM else (suites.EVERY_ROW,)
    if precision.autocast and kind is LLTM:
        work += " bfloat16"
    elif precision is not FLOAT32:
        return every
    return *every, work, f"{work}, 2 threads"


def rounding(precision: Precision, time: int) -> float:
    """A state of 16 bits is rounded at each of T steps, which adds up as a random walk does; twice that for what a
    step makes of its errors, and twice for the gradients, which are sums of such steps."""
    return precision.unit * (4 * math.sqrt(time) if precision.products.itemsize == 2 else 8)


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
    return dataclasses.replace(
        whole,
        title=whole.title.replace(f"{time} steps", f"packed, {time} to 1 steps"),
        inputs=(whole.inputs[0].flatten(0, 1)[present], *whole.inputs[1:]),
        definition=kind.definition(batch_sizes=batch_sizes),
        gradients=(whole.gradients[0].flatten(0, 1)[present], *whole.gradients[1:]),
        works=(suites.EVERY_ROW, *([suites.PACKED] if kind is layers.LSTM else [])),
        batch_sizes=batch_sizes,
    )


def contenders(problem: Problem) -> list[Contender]:
    kind = KINDS[problem.kind]
    shape = (problem.sizes["input_size"], problem.sizes["hidden_size"])
    on_gpu = problem.device.type != "cpu"
    made = {"device": problem.device, "dtype": problem.precision.dtype}
    if packed := problem.batch_sizes is not None:
        made["batch_sizes"] = problem.batch_sizes
    rival = partial(layers.layer, kind.rival, shape, **made)
    # Its state is in float32, so that errors don't add up over the steps.
    exacter = dataclasses.replace(problem, rounding=min(problem.rounding, 6 * problem.precision.unit))
    ours = Contender(OURS, partial(layers.layer, layers.ours(kind), shape, **made), exacter)
    if kind is LLTM:
        return [*lltm_rows(problem), Contender(suites.LSTM, rival, lstm_problem(problem)), ours]
    rows = [Contender(f"nn.{kind.name}", rival), ours]
    if problem.threads is None:
        rows.insert(0, Contender(PLAIN, partial(functional, problem, problem.definition)))
    if not on_gpu and not packed and problem.precision is FLOAT32:
        forward = dataclasses.replace(problem, phases=(NO_GRAD,))
        rows.insert(-1, Contender("ONNX Runtime", partial(onnx_runtime.layer, problem), forward))
    return rows


def lltm_rows(problem: Problem) -> list[Contender]:
    rows, time = [], problem.sizes["time"]
    on_gpu = problem.device.type != "cpu"
    if on_gpu or time <= LONGEST_PLAIN:
        rows.append(Contender(PLAIN, partial(module, problem)))
    if on_gpu:
        why = f"left out above {LONGEST_COMPILED} steps: the loop is unrolled, and compiling it takes minutes"
        build = partial(module, problem, "inductor")
        rows.append(Contender(INDUCTOR, build, tool="inductor", left_out=why * (time > LONGEST_COMPILED)))
    elif problem.precision is FLOAT32 and tuple(problem.sizes.values()) == CENTRE:
        rows.append(Contender(STEPS_COMPILED, partial(compiled_step, problem), tool="inductor"))
    return rows


def module(problem: Problem, backend: str = "") -> Candidate:
    """The tutorial's module."""
    layer = reference.LLTM(problem.sizes["input_size"], problem.sizes["hidden_size"])
    layer = layer.to(problem.device, problem.precision.dtype)
    return Candidate(layers.call_module(compiled(layer, backend)), tuple(layer.parameters()))


def compiled_step(problem: Problem) -> Candidate:
    """The cell compiled and called once a step: a compiled loop is unrolled, which takes minutes at a hundred steps."""
    cell = reference.LLTMCell(problem.sizes["input_size"], problem.sizes["hidden_size"])
    step = compiled(cell, "inductor")

    def call(input: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        outputs = []
        for x in input:
            h, c = step(x, (h, c))
            outputs.append(h)
        return torch.stack(outputs), h, c

    return Candidate(call, tuple(cell.parameters()))
