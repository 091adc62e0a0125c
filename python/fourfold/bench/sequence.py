"""``bench sequence``: the LLTM over whole sequences, beside nn.LSTM of the same sizes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from fourfold import reference
from fourfold.bench.comparison import inductor, left_out
from fourfold.bench.precision import PRECISIONS, Precision
from fourfold.bench.problem import BOTH, NO_GRAD, OURS, Candidate, Contender, Problem, Rate, Target, largest_norm
from fourfold.bench.request import Request

NAMES = ("batch_size", "input_size", "hidden_size", "time")
SIZES = {
    "cuda": ((16, 768, 768, 1024), (16, 32, 128, 100), (1, 512, 512, 1024), (64, 1024, 1024, 256)),
    "cpu": ((16, 32, 128, 100), (1, 32, 128, 100), (1, 512, 512, 100)),
}
LONGEST_COMPILED = 128  # Dynamo unrolls the loop, and Inductor then takes minutes
PLAIN = "plain PyTorch"
LSTM = "nn.LSTM (4 gates to LLTM's 3)"

# µs a step on an H200, by size and precision.
TARGETS = {
    ((16, 768, 768, 1024), "bfloat16"): (Target(NO_GRAD, 2.5), Target(BOTH, 8.0)),
    ((16, 768, 768, 1024), "tf32"): (Target(NO_GRAD, 2.5), Target(BOTH, 8.0)),
}


def problems(request: Request) -> Iterator[Problem]:
    for sizes in chosen_sizes(request):
        for precision in request.precisions_or(list(PRECISIONS)):
            yield problem(sizes, precision, request.device)


def chosen_sizes(request: Request) -> list[dict[str, int]]:
    """The sizes asked for, the others from the first of the list; without any the list, of which quick takes one."""
    sizes = [dict(zip(NAMES, values, strict=True)) for values in SIZES[request.device.type]]
    if request.sizes:
        return [{**sizes[0], **request.sizes}]
    return sizes[:1] if request.quick else sizes


def problem(sizes: Mapping[str, int], precision: Precision, device: torch.device | str = "cpu") -> Problem:
    batch_size, input_size, hidden_size, time = (sizes[name] for name in NAMES)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, precision.dtype)

    state = (batch_size, hidden_size)
    shape = (time, batch_size, hidden_size)
    rows = time * batch_size
    faster = (Target(NO_GRAD, 1.0, LSTM), Target(BOTH, 1.0, LSTM))
    on_gpu = torch.device(device).type == "cuda"
    targets = TARGETS.get((tuple(sizes[name] for name in NAMES), precision.name), ()) if on_gpu else ()
    return Problem(
        title=f"LLTM, batch {batch_size}, input {input_size}, hidden {hidden_size}, {time} steps, {precision.words}",
        parameters=tuple(p.to(device, precision.dtype) for p in draw_parameters(sizes, generator)),
        inputs=(normal(time, batch_size, input_size), normal(*state), normal(*state)),
        definition=lltm,
        longest_sum=max(input_size + hidden_size, rows),
        sizes=sizes,
        precision=precision,
        # A state of 16 bits is rounded at each of T steps, which adds up as a random walk does; twice that for what a
        # step makes of its errors, and twice for the gradients, which are sums of such steps.
        rounding=precision.unit * (4 * math.sqrt(time) if precision.dtype.itemsize == 2 else 8),
        distance=largest_norm,
        phases=(NO_GRAD, BOTH),
        gradients=(normal(*shape) / 8, normal(*state) / 8, normal(*state) / 8),
        rate=Rate("µs/step", lambda seconds: 1e6 * seconds / time),
        baseline=f"{PLAIN}, CUDA graph" if on_gpu else "",
        targets=targets + (faster if targets and precision.name == "bfloat16" else ()),
    )


def draw_parameters(sizes: Mapping[str, int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The module's own initial values, made calmer: as they are, c grows by about 0.4 a step and small differences grow
    with it, so that after a thousand steps even float32 and float64 have no gradient in common."""
    input_size, hidden_size = sizes["input_size"], sizes["hidden_size"]
    bound = hidden_size**-0.5

    def uniform(*shape: int) -> Tensor:
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)

    weights, bias = uniform(3 * hidden_size, hidden_size + input_size), uniform(3 * hidden_size)
    weights[:, :hidden_size] /= 2
    bias[:hidden_size] -= 0.5 * math.log(sizes["time"])  # input gates open less, the longer the sequence
    return weights, bias


def lltm(input: Tensor, h_0: Tensor, c_0: Tensor, weights: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    output, state = reference.lltm(input, h_0, c_0, weights, bias)
    return (output, *state)


def lstm(input: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Any:
    """nn.LSTM's definition in plain torch: what its row is checked against."""
    outputs = []
    for x in input:
        gates = nn.functional.linear(x, w_ih, b_ih) + nn.functional.linear(h, w_hh, b_hh)
        i, f, g, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs), h, c


def lstm_problem(problem: Problem) -> Problem:
    """The same input, state and gradients for an LSTM, with nn.LSTM's initial values."""
    sizes, like = problem.sizes, problem.parameters[0]
    generator = torch.Generator().manual_seed(1)
    bound, rows = sizes["hidden_size"] ** -0.5, 4 * sizes["hidden_size"]
    shapes = [(rows, sizes["input_size"]), (rows, sizes["hidden_size"]), (rows,), (rows,)]
    drawn = (torch.empty(shape).uniform_(-bound, bound, generator=generator) for shape in shapes)
    parameters = tuple(p.to(like.device, like.dtype) for p in drawn)
    return dataclasses.replace(problem, parameters=parameters, definition=lstm)


def contenders(problem: Problem, skip: Collection[str]) -> list[Contender]:
    shape = (problem.sizes["input_size"], problem.sizes["hidden_size"])
    made = {"device": problem.device, "dtype": problem.precision.dtype}
    time = problem.sizes["time"]

    def candidate(layer: nn.Module, wrap: Callable[[nn.Module], nn.Module] = lambda layer: layer) -> Candidate:
        module = wrap(layer)

        def call(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
            output, (h_n, c_n) = module(x, (h.unsqueeze(0), c.unsqueeze(0)))
            return output, h_n.squeeze(0), c_n.squeeze(0)

        return Candidate(call, tuple(layer.parameters()))

    def plain() -> Candidate:
        return candidate(reference.LLTM(*shape).to(**made))

    def compiled() -> Candidate:
        if time > LONGEST_COMPILED:
            left_out(f"left out above {LONGEST_COMPILED} steps: the loop is unrolled, and compiling it takes minutes")
        return inductor(lambda compile: candidate(reference.LLTM(*shape).to(**made), compile), problem)

    rows = [Contender(PLAIN, plain)]
    if problem.device.type == "cuda":
        rows.append(Contender("torch.compile (Inductor)", left_out if "inductor" in skip else compiled))
    rows.append(Contender(LSTM, partial(make, candidate, nn.LSTM, shape, made), lstm_problem(problem)))
    # Its state is in float32, so that errors don't add up over the steps.
    ours = dataclasses.replace(problem, rounding=min(problem.rounding, 6 * problem.precision.unit))
    rows.append(Contender(OURS, partial(make, candidate, fourfold.nn.LLTM, shape, made), ours))
    return rows


def make(candidate: Callable[..., Candidate], module: type, shape: tuple[int, int], made: Mapping[str, Any]) -> Any:
    return candidate(module(*shape, **made))
