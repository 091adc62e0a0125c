"""Large float32 products in compiled graphs: oneDNN computes them on processors whose vector units MKL doesn't use
fully."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from compiled import compiled

M, K, N = 192, 160, 131  # more than 2 ** 21 multiply-adds


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns)


LAYOUTS = {
    "plain": plain,
    "transposed": lambda rows, columns: plain(columns, rows).t(),
    "columns of a wider one": lambda rows, columns: plain(rows, columns + 29)[:, 7 : 7 + columns],
    "rows of a transposed one": lambda rows, columns: plain(columns, rows + 29).t()[7 : 7 + rows],
    "the same row": lambda rows, columns: plain(1, columns).expand(rows, columns),
    "every other": lambda rows, columns: plain(rows, 2 * columns)[:, ::2],
}


def product(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return a @ b


def with_bias(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, a, b)


def with_factors(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, a, b, beta=0.5, alpha=2)


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_any_layout(left: str, right: str) -> None:
    torch.manual_seed(0)
    a, b, bias = LAYOUTS[left](M, K), LAYOUTS[right](K, N), torch.randn(N)
    for function in (product, with_bias, with_factors):
        found = compiled(function)(a, b, bias)
        expected = function(a.double(), b.double(), bias.double())
        assert found.stride() == (N, 1)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("start", [lambda: torch.randn(1, N), lambda: torch.randn(M, N), lambda: torch.randn(M, 1)])
def test_what_is_added(start: Callable[[], Tensor]) -> None:
    a, b, added = plain(M, K), plain(K, N), start()
    expected = with_bias(a.double(), b.double(), added.double())
    torch.testing.assert_close(compiled(with_bias)(a, b, added).double(), expected, rtol=1e-5, atol=2e-4)


def test_weights_gradients() -> None:
    """For many rows: the transposed product moves less memory."""
    x, weight, factor = torch.randn(1600, 32), torch.randn(512, 32, requires_grad=True), torch.randn(1600, 512)
    (compiled(torch.nn.functional.linear)(x, weight) * factor).sum().backward()
    torch.testing.assert_close(weight.grad.double(), factor.double().T @ x.double(), rtol=1e-5, atol=1e-3)
    assert weight.grad.is_contiguous()


def has_wide_vectors() -> bool:
    """Whether this is a Zen 5 or later AMD processor, with a torch that uses MKL for products."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    family = re.search(r"cpu family\s*: (\d+)", text)
    is_amd = "AuthenticAMD" in text and "avx512bw" in text and family is not None and int(family[1]) >= 26
    return is_amd and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()


def test_who_multiplies() -> None:
    a, b, bias = plain(M, K), plain(K, N), torch.randn(N)
    for function, few in ((product, a[:31]), (with_bias, a[:31])):
        run = compiled(function, dynamic=False)
        for left, is_large in ((a, True), (few, False)):
            run(left, b, bias)
            with torch.profiler.profile() as profile:
                run(left, b, bias)
            names = {event.key for event in profile.key_averages()}
            assert ("mkldnn::_linear_pointwise" in names) == (is_large and has_wide_vectors())


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # from PyTorch, whatever the flag
def test_without_onednn() -> None:
    a, b, bias = plain(M, K), plain(K, N), torch.randn(N)
    function = compiled(with_bias)
    with torch.backends.mkldnn.flags(enabled=False), torch.profiler.profile() as profile:
        found = function(a, b, bias)
    torch.testing.assert_close(found, with_bias(a, b, bias), rtol=1e-5, atol=2e-4)
    assert "mkldnn::_linear_pointwise" not in {event.key for event in profile.key_averages()}


def test_no_rows() -> None:
    function = compiled(product)
    for rows in (M, 7, 0):
        a, b = torch.randn(rows, 4096), torch.randn(4096, 64)
        torch.testing.assert_close(function(a, b, b), a @ b, rtol=1e-5, atol=1e-3)
