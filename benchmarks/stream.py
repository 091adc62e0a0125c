"""``stream``: a few steps a call, as a program calls that gets its input one piece at a time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator
from functools import partial
from itertools import product

from torch import Tensor, nn

import fourfold
from benchmarks import layers, sequence
from benchmarks.layers import KINDS, Kind
from benchmarks.precision import FLOAT32
from benchmarks.problem import BOTH, NO_GRAD, OURS, Candidate, Contender, Problem, Target
from benchmarks.request import Request

NAMES = ("batch_size", "input_size", "hidden_size", "time")
SIZES = tuple((batch, hidden, hidden, time) for time, batch, hidden in product((1, 16), (1, 4), (64, 128, 256, 512)))
QUICK = (1, 128, 128, 1)
FROZEN = f"{OURS}, frozen"
# Times as fast as torch.nn's layer without gradient: as a call reads its weights, and with these declared constant.
LIMITS = {"LSTM": (1.5, 3.0), "GRU": (1.2, 1.5)}


def problems(request: Request) -> Iterator[Problem]:
    for kind in [KINDS[name] for name in request.kinds or LIMITS]:
        for sizes in [QUICK] if request.quick or request.sizes else SIZES:
            yield problem(kind, {**dict(zip(NAMES, sizes, strict=True)), **request.sizes})


def problem(kind: Kind, sizes: dict[str, int]) -> Problem:
    rival = f"nn.{kind.name}"
    few = f"{kind.name}, 1 and 16 steps, batch 1 and 4, hidden 64 to 512"
    limit, frozen_limit = LIMITS[kind.name]
    steps = "one step" if sizes["time"] == 1 else f"{sizes['time']} steps"
    shape = f"batch {sizes['batch_size']}, input {sizes['input_size']}, hidden {sizes['hidden_size']}"
    return dataclasses.replace(
        sequence.problem(sizes, FLOAT32, kind=kind),
        title=f"{kind.name}, {steps} a call, {shape}, float32",
        phases=(NO_GRAD, BOTH),
        rate=None,
        targets=(
            Target(NO_GRAD, limit, rival, work=few),
            Target(BOTH, 1.0, rival, work=few),
            Target(NO_GRAD, frozen_limit, rival, work=f"{few}, frozen", row=FROZEN),
            Target(NO_GRAD, 1.0, OURS, work=f"{few}, frozen", row=FROZEN),
        ),
    )


def contenders(problem: Problem, skip: Collection[str]) -> list[Contender]:
    kind = KINDS[problem.kind]
    shape = (problem.sizes["input_size"], problem.sizes["hidden_size"])
    forward = dataclasses.replace(problem, phases=(NO_GRAD,))
    rows = [Contender(f"nn.{kind.name}", partial(layers.torchs, kind, *shape))]
    if problem.sizes["time"] == 1:
        rows.append(Contender(f"nn.{kind.name}Cell", partial(cell, kind, shape), as_cells(forward)))
    rows.append(Contender(OURS, partial(layers.ours, kind, *shape)))
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
    module = getattr(fourfold.nn, kind.name)(*shape)
    call = layers.call_module(module)
    freeze = functools.cache(lambda: fourfold.freeze(module))

    def step(*inputs: Tensor) -> tuple[Tensor, ...]:
        freeze()
        return call(*inputs)

    return Candidate(step, tuple(module.parameters()))


def cell(kind: Kind, shape: tuple[int, int]) -> Candidate:
    layer = getattr(nn, f"{kind.name}Cell")(*shape).eval()

    def step(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        new = layer(x, states if kind.states > 1 else states[0])
        new = new if isinstance(new, tuple) else (new,)
        return new[0], *new

    return Candidate(step, tuple(layer.parameters()))
