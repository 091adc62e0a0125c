"""The pass that computes one element of each row instead of the whole row."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fourfold.compiler.passes.cleanup import clean_up
from fourfold.compiler.passes.sink_gather import sink_gather
from graphs import assert_alike, operators, traced

x, index = torch.randn(4, 6), torch.tensor([1, 0, 5, 2])


@pytest.mark.parametrize(
    ("function", "is_sunk"),
    [
        (lambda x, k: (x - x.logsumexp(-1, True)).gather(1, k[:, None]), True),
        (lambda x, k: F.nll_loss((x * 2) - x.exp().sum(-1, True).log(), k), True),
        (lambda x, k: (x * 2).gather(1, k.view(2, 2)), False),
        (lambda x, k: x.gather(1, k[:, None]), False),
        (lambda x, k: (x * x.flip(1)).gather(1, k[:, None]), False),
        (lambda x, k: F.nll_loss(x.exp(), k, torch.ones(6)), False),
    ],
)
def test_what_is_sunk(function, is_sunk: bool) -> None:
    before = operators(clean_up(traced(function, x, index)))
    module = clean_up(sink_gather(traced(function, x, index)))
    assert (operators(module) != before) == is_sunk
    if is_sunk:  # only operands of reductions are as large as x
        source = next(n for n in module.graph.nodes if "gather" in n.name or "nll_loss" in n.name).args[0]
        assert source.op == "placeholder"
    assert_alike(module, function, x, index)
