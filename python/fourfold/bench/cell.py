"""``bench cell``: one step of the LLTM, the C++ extension tutorial's own table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

import fourfold
from fourfold import reference
from fourfold.bench import aten
from fourfold.bench.comparison import Candidate, Contender, Problem, inductor, left_out


def problem(sizes: Mapping[str, int]) -> Problem:
    batch_size, input_size, hidden_size = sizes["batch_size"], sizes["input_size"], sizes["hidden_size"]
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    scale = hidden_size**-0.5
    return Problem(
        title=f"LLTM cell, batch {batch_size}, input {input_size}, hidden {hidden_size}, float32",
        parameters=(normal(3 * hidden_size, hidden_size + input_size) * scale, normal(3 * hidden_size) * scale),
        inputs=(normal(batch_size, input_size), normal(batch_size, hidden_size), normal(batch_size, hidden_size)),
        definition=reference.lltm_cell,
        longest_sum=max(input_size + hidden_size, batch_size),
    )


def contenders(sizes: Mapping[str, int], inputs: tuple[Tensor, ...], skip: Collection[str]) -> list[Contender]:
    shape = (sizes["input_size"], sizes["hidden_size"])

    def candidate(cell: nn.Module, wrap: Callable[[nn.Module], nn.Module] = lambda cell: cell) -> Candidate:
        call = wrap(cell)
        return Candidate(lambda x, h, c: call(x, (h, c)), (cell.weights, cell.bias))

    def compiled() -> Candidate:
        return inductor(lambda compile: candidate(reference.LLTMCell(*shape), compile), inputs)

    def extension() -> Candidate:
        aten.extension()
        return candidate(aten.LLTMCell(*shape))

    return [
        Contender("plain PyTorch", lambda: candidate(reference.LLTMCell(*shape))),
        Contender("C++ composition of ATen calls", left_out if "aten" in skip else extension),
        Contender("torch.compile (Inductor)", left_out if "inductor" in skip else compiled),
        Contender("fourfold", lambda: candidate(fourfold.nn.LLTMCell(*shape))),
    ]
