"""A row's calls as CUDA graphs: their time on the GPU without launch overhead."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import Clock, Row, Sample, first_sentence, is_right, seconds_per_call
from benchmarks.problem import Candidate, Contender, Problem, total
from benchmarks.targets import BOTH, COLD, NO_GRAD
from fourfold.cli.timing import synchronize

WARM_CALLS = 3  # before a capture, on a separate stream: libraries initialise themselves in their first calls


@dataclass(frozen=True)
class Captured:
    """A graph, and the tensors that each replay writes."""

    graph: torch.cuda.CUDAGraph
    results: list[Tensor]

    def replay_into_poison(self) -> list[Tensor]:
        """Fill the results with NaN, then replay: NaN remains where the capture missed a kernel."""
        for result in self.results:
            result.fill_(math.nan)
        self.graph.replay()
        synchronize(self.results[0].device)
        return self.results


def prepare(
    problem: Problem, contender: Contender, candidate: Candidate, exact: Sequence[Tensor]
) -> tuple[Row, Mapping[str, Captured]]:
    """Capture a contender's calls and check the results of replays."""
    row = Row(contender.name, graphed=True)
    if contender.uncaptured:
        row.reason = f"can't be captured: {contender.uncaptured}"
        return row, {}
    start = time.perf_counter()
    try:
        captured = capture_phases(problem, candidate)
        results = [each.replay_into_poison() for each in captured.values()]
    except RuntimeError as error:  # torch's and CUDA's own errors too
        row.reason = f"can't be captured: {first_sentence(error)}"
        return row, {}
    row.first_call = time.perf_counter() - start
    return row, captured if is_right(row, problem, results, exact) else {}


def capture_phases(problem: Problem, candidate: Candidate) -> Mapping[str, Captured]:
    """A graph for each phase that can be captured: the forward without gradient, and forward and backward in one
    graph."""

    def forward() -> list[Tensor]:
        with torch.no_grad():
            return list(candidate.call(*problem.inputs))

    def both() -> list[Tensor]:
        outputs = candidate.call(*problem.inputs)
        # Not backward(): it accumulates into .grad on the stream on which the parameter was created.
        roots = outputs if problem.gradients else (total(outputs),)
        grads = torch.autograd.grad(roots, list(candidate.parameters), problem.gradients or None)
        return [*(output.detach() for output in outputs), *grads]

    graphs = {BOTH: capture(both)} if problem.trains else {}
    if NO_GRAD in problem.phases or COLD in problem.phases:
        graphs[NO_GRAD] = capture(forward)
    return graphs


def capture(call: Callable[[], list[Tensor]]) -> Captured:
    warm_stream = torch.cuda.Stream()
    warm_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_stream):
        for _ in range(WARM_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(warm_stream)
    gc.collect()  # freeing a tensor during a capture would become part of the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return Captured(graph, results)


def sampler(problem: Problem, graphs: Mapping[str, Captured], clock: Clock) -> Sample:
    held = {phase: graphs.get(NO_GRAD if phase == COLD else phase) for phase in problem.phases}
    replays = {phase: captured.graph.replay for phase, captured in held.items() if captured is not None}

    def sample(iterations: int) -> dict[str, float]:
        return {p: seconds_per_call(clock, call, iterations, cold=p == COLD) for p, call in replays.items()}

    return sample
