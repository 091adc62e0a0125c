"""A contender's calls as CUDA graphs: what they take on the GPU when launching them costs nothing."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.aten import Unavailable, first_sentence
from benchmarks.clocks import Clock, seconds_per_call
from benchmarks.problem import BOTH, COLD, NO_GRAD, Candidate, Problem, total
from benchmarks.timing import Sample
from fourfold.cli.timing import synchronize

WARM_CALLS = 3  # before a capture, on a stream of their own: libraries set themselves up in first calls


@dataclass(frozen=True)
class Captured:
    """A graph, and the tensors that each replay writes."""

    graph: torch.cuda.CUDAGraph
    results: list[Tensor]

    def replay_into_poison(self) -> list[Tensor]:
        """Replay with NaN where the results will stand: a kernel that the graph missed leaves it there."""
        for result in self.results:
            result.fill_(math.nan)
        self.graph.replay()
        synchronize(self.results[0].device)
        return self.results


def capture_phases(problem: Problem, candidate: Candidate) -> Mapping[str, Captured]:
    """A graph for each phase that one can hold: the forward without gradient, and forward and backward in one.

    Raises Unavailable with the reason where the calls can't be captured.
    """

    def forward() -> list[Tensor]:
        with torch.no_grad():
            return list(candidate.call(*problem.inputs))

    def both() -> list[Tensor]:
        outputs = candidate.call(*problem.inputs)
        # Not backward(): accumulating into .grad belongs to the stream that the parameter was made on.
        roots = outputs if problem.gradients else (total(outputs),)
        gradients = problem.gradients or None
        grads = torch.autograd.grad(roots, list(candidate.parameters), gradients)
        return [*(output.detach() for output in outputs), *grads]

    try:
        graphs = {}
        if problem.trains:
            graphs[BOTH] = capture(both)
        if NO_GRAD in problem.phases or COLD in problem.phases:
            graphs[NO_GRAD] = capture(forward)
        return graphs
    except RuntimeError as error:  # torch's and CUDA's own errors too
        raise Unavailable(f"can't be captured: {first_sentence(error)}") from error


def capture(call: Callable[[], list[Tensor]]) -> Captured:
    warm_stream = torch.cuda.Stream()
    warm_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_stream):
        for _ in range(WARM_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(warm_stream)
    gc.collect()  # a tensor that dies in the middle of a capture would be part of it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return Captured(graph, results)


def replayed(graphs: Mapping[str, Captured]) -> list[list[Tensor]]:
    """What is checked: each graph's own results."""
    return [captured.replay_into_poison() for captured in graphs.values()]


def graph_sampler(problem: Problem, graphs: Mapping[str, Captured], clock: Clock) -> Sample:
    def sample(iterations: int) -> dict[str, float]:
        seconds = {}
        for phase in problem.phases:
            graph = graphs.get(NO_GRAD if phase == COLD else phase)
            if graph is not None:
                seconds[phase] = seconds_per_call(clock, graph.graph.replay, iterations, cold=phase == COLD)
        return seconds

    return sample
