"""``stream``: a few steps a call, as a program calls that gets its input one piece at a time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from functools import partial
from itertools import product

from torch import Tensor, nn

import fourfold
from benchmarks import layers, sequence
from benchmarks.layers import GRU, KINDS, LSTM, Kind
from benchmarks.problem import Candidate, Contender, Problem
from benchmarks.request import Request
from benchmarks.suites import FEW_STEPS, FROZEN
from benchmarks.targets import BOTH, NO_GRAD, OURS

SIZES = tuple((batch, hidden, hidden, time) for time, batch, hidden in product((1, 16), (1, 4), (64, 128, 256, 512)))
QUICK = (1, 128, 128, 1)


def problems(request: Request) -> Iterator[Problem]:
    for kind in (LSTM, GRU):
        for sizes in [QUICK] if request.quick else SIZES:
            yield problem(kind, sequence.named(sizes))


def problem(kind: Kind, sizes: dict[str, int]) -> Problem:
    work = FEW_STEPS.format(kind.name)
    steps = "one step" if sizes["time"] == 1 else f"{sizes['time']} steps"
    shape = f"batch {sizes['batch_size']}, input {sizes['input_size']}, hidden {sizes['hidden_size']}"
    return dataclasses.replace(
        sequence.problem(sizes, kind=kind),
        title=f"{kind.name}, {steps} a call, {shape}, float32",
        phases=(NO_GRAD, BOTH),
        rate=None,
        works=(work, f"{work}, frozen"),
    )


def contenders(problem: Problem) -> list[Contender]:
    kind = KINDS[problem.kind]
    shape = (problem.sizes["input_size"], problem.sizes["hidden_size"])
    forward = dataclasses.replace(problem, phases=(NO_GRAD,))
    rows = [Contender(f"nn.{kind.name}", partial(layers.layer, kind.rival, shape))]
    if problem.sizes["time"] == 1:
        rows.append(Contender(f"nn.{kind.name}Cell", partial(cell, kind, shape), as_cells(forward)))
    rows.append(Contender(OURS, partial(layers.layer, layers.ours(kind), shape)))
    rows.append(Contender(FROZEN, partial(frozen, kind, shape), forward))
    return rows


def as_cells(problem: Problem) -> Problem:
    """The same step with the shapes of a cell's input, without a dimension of time."""
    return dataclasses.replace(
        problem,
        inputs=tuple(x.flatten(0, -2) for x in problem.inputs),
        definition=lambda x, *rest: problem.definition(x.unsqueeze(0), *rest),
    )


def frozen(kind: Kind, shape: tuple[int, int]) -> Candidate:
    """fourfold's module with its weights declared constant, once they are the problem's."""
    module = layers.ours(kind)(*shape)
    call = layers.call_module(module)
    freeze = functools.cache(lambda: fourfold.freeze(module))

    def step(*inputs: Tensor) -> tuple[Tensor, ...]:
        freeze()
        return call(*inputs)

    return Candidate(step, tuple(module.parameters()))


def cell(kind: Kind, shape: tuple[int, int]) -> Candidate:
    layer = getattr(nn, f"{kind.name}Cell")(*shape).eval()

    def step(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        new = layers.as_tuple(layer(x, states if kind.states > 1 else states[0]))
        return new[0], *new

    return Candidate(step, tuple(layer.parameters()))
