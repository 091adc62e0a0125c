"""``rl``: what a reinforcement-learning update does with a rollout, whose sequences start anew where an episode
is over: one call with a mask of restarts, against a loop of single steps with the state masked before each."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks import layers, sequence
from benchmarks.layers import GRU, KINDS, LSTM, Kind
from benchmarks.precision import FLOAT32
from benchmarks.problem import OURS, Candidate, Contender, Problem, Target
from benchmarks.request import Request

SIZES = {"batch_size": 8, "input_size": 64, "hidden_size": 128, "time": 128}
EPISODE = 32  # steps in the mean
STEPS = "{} called step by step"
WORK = "RL rollout B8 T128, resets by done"


def problems(request: Request) -> Iterator[Problem]:
    for kind in (LSTM,) if request.quick else (LSTM, GRU):
        yield problem(kind, {**SIZES, **request.sizes})


def problem(kind: Kind, sizes: dict[str, int]) -> Problem:
    whole = sequence.problem(sizes, FLOAT32, kind=kind)
    time, batch_size = sizes["time"], sizes["batch_size"]
    done = torch.rand(time, batch_size, generator=torch.Generator().manual_seed(2)) < 1 / EPISODE
    rival = STEPS.format(f"nn.{kind.name}")
    return dataclasses.replace(
        whole,
        title=f"{whole.title}, {int(done.sum())} restarts",
        definition=kind.definition(reset=done),
        baseline=rival,
        targets=tuple(Target(phase, 10.0, rival, 1, WORK) for phase in whole.phases) if kind is LSTM else (),
        reset=done,
    )


def contenders(problem: Problem, skip: Collection[str]) -> list[Contender]:
    kind = KINDS[problem.kind]
    shape = (problem.sizes["input_size"], problem.sizes["hidden_size"])
    return [
        Contender(STEPS.format(f"nn.{kind.name}"), partial(step_by_step, kind, shape, problem.reset)),
        Contender(OURS, partial(layers.ours, kind, *shape, reset=problem.reset)),
    ]


def step_by_step(kind: Kind, shape: tuple[int, int], done: Tensor) -> Candidate:
    """As the usual PPO programs write it."""
    module = getattr(nn, kind.name)(*shape)
    kept = 1.0 - done.float()

    def call(input: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        state = tuple(s.unsqueeze(0) for s in states)
        outputs = []
        for x, keep in zip(input, kept, strict=True):
            masked = tuple(keep.view(1, -1, 1) * s for s in state)
            output, new = module(x.unsqueeze(0), masked if len(masked) > 1 else masked[0])
            state = new if isinstance(new, tuple) else (new,)
            outputs.append(output)
        return layers.flat((torch.cat(outputs), state))

    return Candidate(call, tuple(module.parameters()))
