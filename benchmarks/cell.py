"""``cell``: one step of the LLTM, the C++ extension tutorial's own table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import Tensor, nn

import fourfold
from benchmarks import aten
from benchmarks.comparison import inductor, left_out
from benchmarks.problem import BOTH, NO_GRAD, OURS, Candidate, Contender, Problem, Target
from benchmarks.request import Request
from fourfold import reference

PLAIN = "plain PyTorch"
INDUCTOR = "torch.compile (Inductor)"
MEANT = {"batch_size": 16, "input_size": 32, "hidden_size": 128}  # the tutorial's sizes, which the targets are for
TARGETS = tuple(
    Target(phase, limit, rival, threads=1, work="LLTM cell B16 I32 H128")
    for phase, limit, rival in ((NO_GRAD, 2.2, PLAIN), (BOTH, 2.2, PLAIN), (BOTH, 2.8, INDUCTOR))
)


def problems(request: Request) -> Iterator[Problem]:
    yield problem({**MEANT, **request.sizes}, request.device)


def problem(sizes: Mapping[str, int], device: torch.device | str = "cpu") -> Problem:
    batch_size, input_size, hidden_size = sizes["batch_size"], sizes["input_size"], sizes["hidden_size"]
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    scale = hidden_size**-0.5
    return Problem(
        title=f"LLTM cell, batch {batch_size}, input {input_size}, hidden {hidden_size}, float32",
        parameters=(normal(3 * hidden_size, hidden_size + input_size) * scale, normal(3 * hidden_size) * scale),
        inputs=(normal(batch_size, input_size), normal(batch_size, hidden_size), normal(batch_size, hidden_size)),
        definition=reference.lltm_cell,
        longest_sum=max(input_size + hidden_size, batch_size),
        sizes=sizes,
        targets=TARGETS if dict(sizes) == MEANT and torch.device(device).type == "cpu" else (),
    )


def contenders(problem: Problem, skip: Collection[str]) -> list[Contender]:
    shape = (problem.sizes["input_size"], problem.sizes["hidden_size"])
    on_gpu = problem.device.type == "cuda"

    def candidate(cell: nn.Module, wrap: Callable[[nn.Module], nn.Module] = lambda cell: cell) -> Candidate:
        call = wrap(cell.to(problem.device))
        return Candidate(lambda x, h, c: call(x, (h, c)), (cell.weights, cell.bias))

    def compiled() -> Candidate:
        return inductor(lambda compile: candidate(reference.LLTMCell(*shape), compile), problem)

    rows = [
        Contender(PLAIN, lambda: candidate(reference.LLTMCell(*shape))),
        Contender(
            "C++ composition of ATen calls",
            left_out if "aten" in skip else lambda: candidate(aten.LLTMCell(*shape, aten.extension())),
        ),
        Contender(
            "the tutorial's CUDA kernels",
            left_out if "aten" in skip else lambda: candidate(aten.LLTMCell(*shape, aten.cuda_extension())),
            uncaptured="its kernels are launched on the default stream",
        ),
        Contender(INDUCTOR, left_out if "inductor" in skip else compiled),
        Contender(OURS, lambda: candidate(fourfold.nn.LLTMCell(*shape))),
    ]
    return rows if on_gpu else [row for row in rows if "CUDA" not in row.name]
