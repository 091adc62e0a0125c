"""torch's own operator samples through the backend: forward and backward as in eager, and fused where expected.

By default some samples of each entry in a few dtypes. FOURFOLD_OPERATORS=full runs more of them, including torch's
reference inputs (large, special, strided), in all dtypes that the entry lists: seven minutes on two cores.
FOURFOLD_REQUIRE=cuda runs them on the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain, islice

import pytest
import torch

from compiled_functions import is_simulated
from compiler_operators import ENTRIES, LEFT, WORSE, ZEROS_ON_GPU, OpInfo, SampleInput, chosen, left_to_torch
from compiler_samples import Problem, expect_as_eager
from fourfold.compiler.ir.dtypes import KINDS
from fourfold.devices.programs import WITHOUT_FLOAT64

pytestmark = [
    pytest.mark.usefixtures("strict", "in_programs"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental", "ignore:Casting complex values to real"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss"),
]
FULL = os.environ.get("FOURFOLD_OPERATORS", "") == "full"
DEVICE = os.environ.get("FOURFOLD_REQUIRE", "cpu")
# Samples per entry: in float32, in each other dtype, and in a full run.
MOST, FEW, MANY = 2, 1, 6
FIRST = 20  # of an entry's samples, from which these are chosen


def dtypes_of(entry: OpInfo, place: int) -> list[torch.dtype]:
    """All dtypes of the entry, or float32 and one other: bfloat16 for every second entry, and a different dtype for
    each of the others."""
    listed = sorted(entry.supported_dtypes(DEVICE), key=str)
    if FULL:
        return listed
    first, second = ([dtype for dtype in (each,) if dtype in listed] for each in (torch.float32, torch.bfloat16))
    others = [dtype for dtype in listed if dtype in (*KINDS, torch.complex64) and dtype not in (*first, *second)]
    if place % 2 == 0 or not second:
        second = others[place // 2 % max(1, len(others)) :][:1] or second
    return first + second


def cases() -> list[tuple[str, torch.dtype]]:
    places = enumerate(ENTRIES.items())
    return [(name, dtype) for place, (name, entry) in places for dtype in dtypes_of(entry, place)]


def samples_of(
    entry: OpInfo, dtype: torch.dtype, has_gradient: bool
) -> tuple[list[SampleInput], Iterator[SampleInput]]:
    """The samples to test, and the others."""
    samples = iter(entry.sample_inputs(DEVICE, dtype, requires_grad=has_gradient))
    if FULL:
        given = [*samples, *reference_inputs(entry, dtype, has_gradient)]
        return chosen(given, MANY), iter(given)
    given = list(islice(samples, FIRST))
    return chosen(given, MOST if dtype == torch.float32 else FEW), chain(given, samples)


def reference_inputs(entry: OpInfo, dtype: torch.dtype, has_gradient: bool) -> list[SampleInput]:
    try:
        return list(entry.reference_inputs(DEVICE, dtype, requires_grad=has_gradient))
    except ValueError:  # some entries have integer tensors, which have no gradient
        return list(entry.reference_inputs(DEVICE, dtype, requires_grad=False))


def is_double(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128)


def is_fused(problem: Problem) -> bool:
    return bool(problem.compiled()[1].forward.compiled.programs)


@pytest.mark.parametrize(("name", "dtype"), cases(), ids=lambda value: str(value).removeprefix("torch."))
def test_samples_are_as_eager(name: str, dtype: torch.dtype) -> None:
    expect_samples_as_eager(name, dtype)


@pytest.mark.skipif(DEVICE != "cpu" or is_simulated(), reason="on a GPU no program runs in the interpreter")
@pytest.mark.parametrize(("name", "dtype"), cases()[::4], ids=lambda value: str(value).removeprefix("torch."))
def test_samples_in_the_interpreter(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs until nests are compiled, and where none are."""
    monkeypatch.setenv("FOURFOLD_GENERATOR", "interpreter")
    expect_samples_as_eager(name, dtype)


def expect_samples_as_eager(name: str, dtype: torch.dtype) -> None:
    entry = ENTRIES[name]
    has_gradient = entry.supports_autograd and dtype in entry.supported_backward_dtypes(DEVICE)
    samples, others = samples_of(entry, dtype, has_gradient)
    fused = False
    for sample in samples:
        problem = Problem.of(entry, sample, has_gradient)
        expected = problem.expected()
        if expected is None:
            continue
        if DEVICE in WITHOUT_FLOAT64 and any(is_double(value) for value in (*problem.tensors, *expected)):
            pytest.skip("this device, or the one that is simulated here, has no float64")
        function, captured = problem.compiled()
        any_zeros = DEVICE != "cpu" and name in ZEROS_ON_GPU
        expect_as_eager(problem, function, expected, WORSE.get(name, 1), any_zeros)
        fused |= bool(captured.forward.compiled.programs)
    if name in LEFT and dtype in KINDS:
        assert not fused, f"{name} is fused: {LEFT[name]} is no longer so"
    elif not left_to_torch(name, dtype, DEVICE):
        fused = fused or any(is_fused(Problem.of(entry, sample, has_gradient)) for sample in others)
        assert fused, f"no program was made of {name} in {dtype}"
