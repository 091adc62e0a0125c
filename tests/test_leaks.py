"""Repeated calls use no more memory than one: of Python's objects, and of the C library's heap, where tensors and C++
objects are, if it is glibc, which says how much that is (from 2.33 on)."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fourfold
import saved_models
from op_cases import CASES, Case, case_id, differentiable, flatten

MALLINFO = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform == "linux" else None
CALLS = 100
OF_EACH = list({case.op: case for case in CASES if case.gradient and case.every_path}.values())


class Heap(ctypes.Structure):
    """glibc's struct mallinfo2, in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")
        + ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


def in_use() -> tuple[int, int]:
    """Bytes of the heap, and blocks of Python's objects."""
    gc.collect()
    if MALLINFO is None:
        return 0, sys.getallocatedblocks()
    MALLINFO.restype = Heap
    heap = MALLINFO()
    return heap.uordblks + heap.hblkhd, sys.getallocatedblocks()


def expect_no_growth(call: Callable[[], object]) -> None:
    """The smallest of a few measurements: caches, and other threads of torch, may grow once."""
    for _ in range(10):
        call()
    fourfold.wait_for_nests()
    growths = []
    for _ in range(4):
        before = in_use()
        for _ in range(CALLS):
            call()
        growths.append(tuple(now - then for now, then in zip(in_use(), before, strict=True)))
    # The smallest block of the heap has 32 bytes.
    assert min(heap for heap, _ in growths) < 32 * CALLS // 2, growths
    assert min(blocks for _, blocks in growths) < CALLS // 2, growths


def trained(function: Callable[..., object], args: tuple) -> Callable[[], object]:
    args, leaves = differentiable(args)
    return lambda: torch.autograd.grad(sum(output.sum() for output in flatten(function(*args))), leaves)


@pytest.mark.parametrize("case", OF_EACH, ids=case_id)
def test_operators(case: Case) -> None:
    args = case.arguments(torch.float32)
    expect_no_growth(lambda: case.function(*args))
    expect_no_growth(trained(case.function, args))


@pytest.mark.parametrize("layer", [fourfold.nn.LSTM, fourfold.nn.GRU, fourfold.nn.LLTM, fourfold.nn.LSTMCell])
def test_layers_and_frozen_ones(layer: type[torch.nn.Module]) -> None:
    x, module = torch.randn(3, 8), layer(8, 16).eval()
    x = x if layer is fourfold.nn.LSTMCell else x[:, None]
    expect_no_growth(trained(module, (x,)))
    with torch.no_grad():
        expect_no_growth(lambda: module(x))
        fourfold.freeze(module)
        expect_no_growth(lambda: module(x))


def normalised(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(torch.layer_norm(x @ w, (16,)).sin() * 2, -1)


def scanned(x: Tensor, w: Tensor) -> Tensor:
    def step(h: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        following = torch.tanh(given + h * w[0])
        return following, following

    return fourfold.scan(step, torch.zeros_like(x[0]), x)[1]


@pytest.mark.parametrize("function", [normalised, scanned])
@pytest.mark.parametrize("generator", ["llvm", "interpreter"])
def test_compiled_functions(function: Callable, generator: str) -> None:
    torch._dynamo.reset()
    made = torch.compile(function, backend="fourfold", options={"generator": generator})
    args = (torch.randn(8, 16), torch.randn(16, 16))
    expect_no_growth(lambda: made(*args))
    expect_no_growth(trained(made, args))


@pytest.mark.parametrize("name", saved_models.CASES)
def test_loaded_models(name: str, tmp_path: Path) -> None:
    model = fourfold.load(saved_models.saved(name, tmp_path))
    args, kwargs = saved_models.CASES[name].inputs(saved_models.CASES[name].sizes[1])
    expect_no_growth(lambda: model(*args, **kwargs))
    expect_no_growth(lambda: fourfold.load(tmp_path / f"{name}.ff"))


def refused_calls(tmp_path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    lltm, model = fourfold.nn.LLTM(4, 5), fourfold.load(saved_models.saved("counter", tmp_path))
    broken = tmp_path / "broken.ff"
    broken.write_bytes((tmp_path / "counter.ff").read_bytes()[:-8])
    yield "an operator", lambda: lltm(torch.zeros(3, 2, 7))
    yield "a loaded model", lambda: model(torch.zeros(4, 7), torch.ones(6))
    yield "a file", lambda: fourfold.load(broken)


def test_refused_calls(tmp_path: Path) -> None:
    for name, call in refused_calls(tmp_path):

        def refused(call: Callable[[], object] = call, name: str = name) -> None:
            with pytest.raises((ValueError, RuntimeError)):
                call()
                pytest.fail(f"{name} was not refused")

        expect_no_growth(refused)
