"""torch's own operator samples through the backend: forward and backward as eager's, and fused where that is expected.

Some samples of an entry in a few dtypes; with FOURFOLD_OPERATORS=full in the environment more of them, among these
torch's reference inputs (large, special, strided), in all dtypes that the entry lists: half an hour on two cores."""

from __future__ import annotations

import os

import pytest
import torch

from compiler_operators import ENTRIES, LEFT, WORSE, OpInfo, SampleInput, chosen, left_to_torch
from compiler_samples import Problem, expect_as_eager
from fourfold.compiler.program import KINDS

FULL = os.environ.get("FOURFOLD_OPERATORS", "") == "full"
# How many samples of an entry, by dtype.
FEW = {torch.float32: 3, torch.bfloat16: 1, torch.int64: 1, torch.bool: 1}
MANY = 6


def cases() -> list[tuple[str, torch.dtype]]:
    dtypes = {name: sorted(entry.supported_dtypes("cpu"), key=str) for name, entry in ENTRIES.items()}
    return [(name, dtype) for name in ENTRIES for dtype in dtypes[name] if FULL or dtype in FEW]


def samples_of(entry: OpInfo, dtype: torch.dtype, has_gradient: bool) -> tuple[list[SampleInput], list[SampleInput]]:
    """Those to look at, and the others."""
    samples = list(entry.sample_inputs("cpu", dtype, requires_grad=has_gradient))
    if FULL:
        samples += reference_inputs(entry, dtype, has_gradient)
    looked_at = chosen(samples, MANY if FULL else FEW[dtype])
    return looked_at, [sample for sample in samples if all(sample is not other for other in looked_at)]


def reference_inputs(entry: OpInfo, dtype: torch.dtype, has_gradient: bool) -> list[SampleInput]:
    try:
        return list(entry.reference_inputs("cpu", dtype, requires_grad=has_gradient))
    except ValueError:  # of some entries a part is integers, which take no gradient
        return list(entry.reference_inputs("cpu", dtype, requires_grad=False))


def is_fused(problem: Problem) -> bool:
    return bool(problem.compiled()[1].forward.compiled.programs)


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "1")


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental", "ignore:Casting complex values to real")
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize(("name", "dtype"), cases(), ids=lambda value: str(value).removeprefix("torch."))
def test_samples_are_as_eager(name: str, dtype: torch.dtype) -> None:
    entry = ENTRIES[name]
    has_gradient = entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
    samples, others = samples_of(entry, dtype, has_gradient)
    fused = False
    for sample in samples:
        problem = Problem.of(entry, sample, has_gradient)
        expected = problem.expected()
        if expected is None:
            continue
        function, captured = problem.compiled()
        expect_as_eager(problem, function, expected, WORSE.get(name, 1))
        fused |= bool(captured.forward.compiled.programs)
    if name in LEFT and dtype in KINDS:
        assert not fused, f"{name} is fused: {LEFT[name]} is no longer so"
    elif not left_to_torch(name, dtype):
        fused = fused or any(is_fused(Problem.of(entry, sample, has_gradient)) for sample in others)
        assert fused, f"no program was made of {name} in {dtype}"
