"""``cell``: one step of the LLTM, the C++ extension tutorial's own table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

import fourfold
from benchmarks import aten
from benchmarks.problem import Candidate, Contender, Problem, compiled, normal
from benchmarks.request import Request
from benchmarks.targets import INDUCTOR, OURS, PLAIN
from fourfold import reference

SIZES = {"batch_size": 16, "input_size": 32, "hidden_size": 128}  # the tutorial's


def problems(request: Request) -> Iterator[Problem]:
    yield problem({**SIZES, **request.sizes}, request.device)


def problem(sizes: Mapping[str, int], device: torch.device | str = "cpu") -> Problem:
    batch_size, input_size, hidden_size = sizes["batch_size"], sizes["input_size"], sizes["hidden_size"]
    draw = normal(torch.Generator().manual_seed(0), device)
    gates, scale = 3 * hidden_size, hidden_size**-0.5
    return Problem(
        title=f"LLTM cell, batch {batch_size}, input {input_size}, hidden {hidden_size}, float32",
        parameters=(draw(gates, hidden_size + input_size) * scale, draw(gates) * scale),
        inputs=(draw(batch_size, input_size), draw(batch_size, hidden_size), draw(batch_size, hidden_size)),
        definition=reference.lltm_cell,
        longest_sum=max(input_size + hidden_size, batch_size),
        sizes=sizes,
        works=(f"LLTM cell B{batch_size} I{input_size} H{hidden_size}",) * (torch.device(device).type == "cpu"),
    )


def contenders(problem: Problem) -> list[Contender]:
    shape = (problem.sizes["input_size"], problem.sizes["hidden_size"])

    def row(name: str, make: type[nn.Module], *more: str, backend: str = "", **settings: str) -> Contender:
        def build() -> Candidate:
            cell = make(*shape, *more).to(problem.device)
            call = compiled(cell, backend)
            return Candidate(lambda x, h, c: call(x, (h, c)), (cell.weights, cell.bias))

        return Contender(name, build, tool=backend, **settings) if backend else Contender(name, build, **settings)

    rows = [
        row(PLAIN, reference.LLTMCell),
        row("C++ composition of ATen calls", aten.LLTMCell, tool="aten"),
        row(INDUCTOR, reference.LLTMCell, backend="inductor"),
        row(OURS, fourfold.nn.LLTMCell),
    ]
    if problem.device.type == "cuda":
        launched = "its kernels are launched on the default stream"
        name, source = "the tutorial's CUDA kernels", "lltm_cuda_baseline.cu"
        rows.insert(2, row(name, aten.LLTMCell, source, tool="aten", uncaptured=launched))
    return rows
