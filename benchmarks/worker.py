"""A process of its own that times recurrent sequences on request: ``python -m benchmarks.worker THREADS``.

A line on its input names a subject and for how many seconds to repeat it; a line on its output answers with the mean
seconds of a call.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import sequence
from benchmarks.precision import FLOAT32
from benchmarks.problem import OURS, Candidate, Problem

FORWARD_WORK, TRAINING_WORK, LARGE_WORK = "B16 I32 H128, forward", "B16 I32 H128, training", "B1 I512 H512, forward"
SIZES = {FORWARD_WORK: (16, 32, 128, 100), TRAINING_WORK: (16, 32, 128, 100), LARGE_WORK: (1, 512, 512, 100)}
RIVAL = "nn.LSTM"


def subjects() -> dict[tuple[str, str], Callable[[], Any]]:
    """What can be timed, by work and row."""
    calls = {}
    for work, sizes in SIZES.items():
        problem = sequence.problem(sequence.named(sizes), FLOAT32)
        built = {row.name: row.build for row in sequence.contenders(problem, ())}
        for name, row in ((OURS, OURS), (RIVAL, sequence.LSTM)):
            calls[work, name] = partial(train if work == TRAINING_WORK else infer, problem, built[row]())
    return calls


def infer(problem: Problem, candidate: Candidate) -> None:
    with torch.no_grad():
        candidate.call(*problem.inputs)


def train(problem: Problem, candidate: Candidate) -> None:
    problem.results(candidate)


def mean_seconds(call: Callable[[], Any], seconds: float) -> float:
    """Of calls repeated for so long."""
    start = end = time.perf_counter()
    calls = 0
    while end - start < seconds:
        call()
        calls, end = calls + 1, time.perf_counter()
    return (end - start) / calls


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    calls = subjects()
    for line in sys.stdin:
        work, row, seconds = line.rstrip("\n").split("\t")
        print(mean_seconds(calls[work, row], float(seconds)), flush=True)


if __name__ == "__main__":
    main()
