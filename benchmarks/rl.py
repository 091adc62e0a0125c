"""``rl``: a reinforcement-learning rollout whose sequences start anew where an episode is over: one call with a mask of
restarts, against a loop of single steps with the state masked before each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks import layers, sequence
from benchmarks.layers import GRU, KINDS, LSTM, Kind
from benchmarks.problem import Candidate, Contender, Problem
from benchmarks.request import Request
from benchmarks.suites import STEPS
from benchmarks.targets import OURS

SIZES = (8, 64, 128, 128)
EPISODE = 32  # steps in the mean


def problems(request: Request) -> Iterator[Problem]:
    for kind in (LSTM,) if request.quick else (LSTM, GRU):
        yield problem(kind, sequence.named(SIZES))


def problem(kind: Kind, sizes: dict[str, int]) -> Problem:
    whole = sequence.problem(sizes, kind=kind)
    time, batch_size = sizes["time"], sizes["batch_size"]
    done = torch.rand(time, batch_size, generator=torch.Generator().manual_seed(2)) < 1 / EPISODE
    return dataclasses.replace(
        whole,
        title=f"{whole.title}, {int(done.sum())} restarts",
        definition=kind.definition(reset=done),
        baseline=STEPS.format(f"nn.{kind.name}"),
        works=("RL rollout B8 T128, resets by done",) * (kind is LSTM),
        reset=done,
    )


def contenders(problem: Problem) -> list[Contender]:
    kind = KINDS[problem.kind]
    shape = (problem.sizes["input_size"], problem.sizes["hidden_size"])
    return [
        Contender(problem.baseline, partial(step_by_step, kind, shape, problem.reset)),
        Contender(OURS, partial(layers.layer, layers.ours(kind), shape, reset=problem.reset)),
    ]


def step_by_step(kind: Kind, shape: tuple[int, int], done: Tensor) -> Candidate:
    """As the usual PPO programs write it."""
    module = kind.rival(*shape)
    kept = 1.0 - done.float()

    def call(input: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        state = tuple(s.unsqueeze(0) for s in states)
        outputs = []
        for x, keep in zip(input, kept, strict=True):
            masked = tuple(keep.view(1, -1, 1) * s for s in state)
            output, new = module(x.unsqueeze(0), masked if len(masked) > 1 else masked[0])
            state = layers.as_tuple(new)
            outputs.append(output)
        return layers.flat((torch.cat(outputs), state))

    return Candidate(call, tuple(module.parameters()))
