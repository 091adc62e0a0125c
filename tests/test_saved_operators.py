"""torch's own operator samples exported, saved and loaded: results as in eager, or a one-sentence error.

One of sixteen entries; with FOURFOLD_OPERATORS=full all of them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from compiler_operators import ENTRIES
from compiler_samples import Problem

FULL = os.environ.get("FOURFOLD_OPERATORS", "") == "full"
MOST = 2  # samples per entry

# Results that are random, or whose signs or order torch doesn't define.
OPEN = ("bernoulli", "multinomial", "normal", "rand", "dropout", "eig", "svd", "qr", "lu", "pca_lowrank", "svd_lowrank")
# What fourfold doesn't save, by the beginning of the error.
REFUSED = (
    "save: expected a graph that runs without Python, but it has ",
    "save: expected arguments and results of tuples, lists, dicts and tensors, but got ",
    "save: expected tensors of the dtypes ",
)
GRADIENTS = "save: expected a graph that can be loaded, but the file calls 'aten::"


class Call(nn.Module):
    def __init__(self, call: Callable[..., list[Tensor]]):
        super().__init__()
        self.call = call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.call(*tensors))


def exported(problem: Problem, tensors: list[Tensor]) -> Any:
    """None if torch can't export it."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(Call(problem.call), tuple(tensors))
    except Exception:  # torch.export raises many types
        return None


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", list(ENTRIES) if FULL else list(ENTRIES)[::16])
def test_samples_are_as_eager(name: str, tmp_path: Path) -> None:
    entry = ENTRIES[name]
    is_open = any(word in name for word in OPEN)
    for sample in islice(entry.sample_inputs("cpu", torch.float32, requires_grad=False), MOST):
        problem = Problem.of(entry, sample, has_gradient=False)
        tensors = problem.leaves()
        if (expected := problem.expected()) is None or (program := exported(problem, tensors)) is None:
            continue
        try:
            fourfold.save(program, tmp_path / "model.ff")
        except ValueError as reason:
            assert str(reason).startswith((*REFUSED, GRADIENTS) if "backward" in name else REFUSED), reason
            continue
        found = fourfold.load(tmp_path / "model.ff")(*tensors)
        assert [(each.shape, each.dtype) for each in found] == [(each.shape, each.dtype) for each in expected]
        if not is_open:
            torch.testing.assert_close(list(found), expected, rtol=2e-5, atol=1e-5, equal_nan=True)
