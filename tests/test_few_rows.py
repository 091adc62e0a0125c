"""Calls with few rows read the weights in place, others pack them: both give the same results at every size around the
threshold."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fourfold
from op_cases import case_id
from test_long_sums import error, of_parameters

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=case_id)
@pytest.mark.parametrize("input_size", [10, 33])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_around_the_changes_of_path(name: str, input_size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = getattr(nn, name)(input_size, 36).double()
    ours = getattr(fourfold.nn, name)(input_size, 36).to(dtype)
    ours.load_state_dict(plain.state_dict())
    exact = copy.deepcopy(plain)
    exact.load_state_dict({key: value.to(dtype).double() for key, value in plain.state_dict().items()})
    # The rounding errors of gates, their gradients and sums, in the norm over all elements.
    allowed = 8 * torch.finfo(dtype).eps
    for time, batch in ((1, 1), (1, 8), (3, 3), (2, 8), (1, 17), (4, 6), (5, 5), (16, 4), (13, 5), (2, 128)):
        x = torch.randn(time, batch, input_size).to(dtype)
        with torch.no_grad():
            assert error(ours(x)[0].double(), exact(x.double())[0]) < allowed
        got, wanted = of_parameters(ours, x), of_parameters(exact, x.double())
        for key, value in wanted.items():
            assert not value.any() or error(got[key], value) < allowed, (key, time, batch)


@pytest.mark.parametrize("rows", [32, 33, 64, 65])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_around_the_changes_of_path_of_large_weights(name: str, rows: int) -> None:
    """For weights larger than a core's private cache, 2 MB or less on most processors, the threshold is higher."""
    torch.manual_seed(0)
    plain = getattr(nn, name)(40, 640).double()
    ours = getattr(fourfold.nn, name)(40, 640)
    ours.load_state_dict(plain.state_dict())
    x, allowed = torch.randn(1, rows, 40), 8 * torch.finfo(torch.float32).eps
    plain.load_state_dict({key: value.float().double() for key, value in plain.state_dict().items()})
    with torch.no_grad():
        assert error(ours(x)[0].double(), plain(x.double())[0]) < allowed
    got, wanted = of_parameters(ours, x), of_parameters(plain, x.double())
    for key, value in wanted.items():
        assert not value.any() or error(got[key], value) < allowed, key


@pytest.mark.parametrize("rows", [1, 8, 9, 15, 16, 40])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=case_id)
def test_a_perceptron_around_the_changes_of_path(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = fourfold.nn.MLP(37, 50, 19).to(dtype)
    x = torch.randn(rows, 37, dtype=dtype)
    hidden = (x.double() @ model.hidden_weights.double().T + model.hidden_bias.double()).relu()
    exact = hidden @ model.output_weights.double().T + model.output_bias.double()
    assert error(model(x).double(), exact) < 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("batch", [3, 70])
@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_rows_of_an_odd_number_of_bfloat16_do_not_meet(name: str, batch: int) -> None:
    """They are multiplied in pairs, and a row's last element has no partner: the next row's first element must not
    replace it."""
    torch.manual_seed(0)
    layer = getattr(fourfold.nn, name)(33, 20).bfloat16()
    x = torch.randn(2, batch, 33).bfloat16()
    spoiled = x.clone()
    spoiled[:, 1] = torch.nan
    with torch.no_grad():
        output, expected = layer(spoiled)[0], layer(x)[0]
    kept = [row for row in range(batch) if row != 1]
    assert torch.equal(output[:, kept], expected[:, kept]) and output[:, 1].isnan().all()
