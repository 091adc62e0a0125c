"""The gradients of weights and biases are sums over all rows: their error grows no faster than torch's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold import reference
from op_cases import case_id

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# Compared are norms of errors of sums of thousands of rounded values, which vary by tenths, not by a factor of three.
WORSE = 3


class LltmCell(fourfold.nn.LLTMCell):
    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> Any:
        h, c = state or (x.new_zeros(2, x.size(0), self.hidden_size)).unbind()
        return reference.lltm_cell(x, h, c, self.weights, self.bias)


class Lltm(fourfold.nn.LLTM):
    def forward(self, x: Tensor) -> Any:
        zeros = x.new_zeros(x.size(1), self.hidden_size)
        return reference.lltm(x, zeros, zeros, self.weights_l0, self.bias_l0)


class Mlp(fourfold.nn.MLP):
    def forward(self, x: Tensor) -> Any:
        return reference.mlp(x, self.hidden_weights, self.hidden_bias, self.output_weights, self.output_bias)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))


def optimized() -> nn.Module:
    model = perceptron()
    fourfold.optimize(model)
    return model


# name: fourfold's layer, torch's with the same parameters, and the shape of an input with many rows.
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: fourfold.nn.LSTM(6, 20), lambda: nn.LSTM(6, 20), (3, 4096, 6)),
    "gru": (lambda: fourfold.nn.GRU(6, 20), lambda: nn.GRU(6, 20), (3, 4096, 6)),
    "lltm": (lambda: fourfold.nn.LLTM(6, 20), lambda: Lltm(6, 20), (3, 4096, 6)),
    "lstm-cell": (lambda: fourfold.nn.LSTMCell(6, 20), lambda: nn.LSTMCell(6, 20), (8192, 6)),
    "gru-cell": (lambda: fourfold.nn.GRUCell(6, 20), lambda: nn.GRUCell(6, 20), (8192, 6)),
    "lltm-cell": (lambda: fourfold.nn.LLTMCell(6, 20), lambda: LltmCell(6, 20), (8192, 6)),
    "mlp": (lambda: fourfold.nn.MLP(6, 20, 3), lambda: Mlp(6, 20, 3), (4096, 6)),
    "mlp_layers": (optimized, perceptron, (4096, 6)),
}


def of_parameters(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The parameters' gradients, with x's first column as the output's gradient."""
    output = module(x)
    while not isinstance(output, Tensor):
        output = output[0]
    module.zero_grad()
    (output * x[..., :1]).sum().backward()
    return {name: p.grad.double() for name, p in module.named_parameters()}


def error(got: Tensor, exact: Tensor) -> float:
    return ((got - exact).norm() / exact.norm()).item()


def expect_no_worse(ours: nn.Module, plain: nn.Module, x: Tensor, exact: dict[str, Tensor]) -> None:
    got, of_torch = of_parameters(ours, x), of_parameters(plain, x)
    for name, value in exact.items():
        if not value.any():  # W_hh after a single step from a zero state
            continue
        rounding = torch.finfo(x.dtype).eps / 4  # of the result only
        assert error(got[name], value) <= WORSE * max(error(of_torch[name], value), rounding), name


def pair_of(name: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module, nn.Module]:
    torch.manual_seed(0)
    make, make_plain, _ = LAYERS[name]
    plain = make_plain().to(dtype)
    ours = make().to(dtype)
    ours.load_state_dict(plain.state_dict())
    return ours, plain, copy.deepcopy(plain).double()


@pytest.mark.parametrize("dtype", DTYPES, ids=case_id)
@pytest.mark.parametrize("name", LAYERS)
def test_of_many_rows(name: str, dtype: torch.dtype) -> None:
    ours, plain, exact = pair_of(name, dtype)
    x = torch.randn(LAYERS[name][2]).to(dtype)
    # In float64 short sums are accurate, and fsum adds them up exactly.
    parts = [of_parameters(exact, part.double()) for part in x.split(16, dim=-2)]
    summed = {
        key: torch.tensor([math.fsum(values) for values in torch.stack([p[key].flatten() for p in parts]).T.tolist()])
        for key in parts[0]
    }
    shapes = {key: value.view_as(parts[0][key]) for key, value in summed.items()}
    expect_no_worse(ours, plain, x, shapes)


# With one row, a few steps more than the 64 pieces of 256 rows from which on a second matrix accumulates rounding
# errors. torch and the exact result take seconds for these.
MANY_STEPS = [(500, 64, name, dtype) for name in ("lstm", "gru") for dtype in (torch.float32, torch.bfloat16)]
MANY_STEPS += [(17_000, 1, "lstm", torch.bfloat16), (17_000, 1, "gru", torch.float32)]


@pytest.mark.parametrize(("time", "batch", "name", "dtype"), MANY_STEPS, ids=case_id)
def test_of_many_steps(time: int, batch: int, name: str, dtype: torch.dtype) -> None:
    ours, plain, exact = pair_of(name, dtype)
    x = torch.randn(time, batch, 6).to(dtype)
    expect_no_worse(ours, plain, x, of_parameters(exact, x.double()))


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "mlp_layers"])
def test_an_infinite_gradient_stays_infinite(name: str) -> None:
    """The rounding error of an infinite sum is NaN and must not be added to it."""
    ours = LAYERS[name][0]()
    output = ours(torch.ones((20_000, 6) if len(LAYERS[name][2]) == 2 else (2, 20_000, 6)))
    while not isinstance(output, Tensor):
        output = output[0]
    (output * 1e36).sum().backward()
    grads = [p.grad for p in ours.parameters()]
    assert any(g.isinf().any() for g in grads)
    assert not any(g.isnan().any() for g in grads)


@pytest.mark.parametrize("name", ["lstm", "gru", "lltm"])
def test_long_sums_have_the_same_bits_for_any_number_of_threads(name: str) -> None:
    torch.manual_seed(0)
    layer = fourfold.nn.LLTM(64, 256) if name == "lltm" else getattr(fourfold.nn, name.upper())(64, 256)
    x = torch.randn(100, 7, 64)  # too few rows to be split between threads
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(of_parameters(layer, x))
    finally:
        torch.set_num_threads(threads)
    for key, value in results[0].items():
        assert torch.equal(value, results[1][key]), key
