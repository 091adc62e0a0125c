"""The operators that pack a layer's weights, for fake tensors and vmap. Their bytes have no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fourfold import _C
from fourfold.operators import _check
from fourfold.operators._operator import _library


def declare(op: str, check: Callable[..., tuple[Any, Any]]) -> None:
    """``check`` refuses what C++ refuses, in the same words, and returns input_size and hidden_size."""
    name = f"{op}_pack"
    packs = getattr(torch.ops.fourfold, name).default

    def fake(weights: Tensor, *rest: Tensor | None) -> Tensor:
        sizes = check(name, weights, *rest)
        dtype = str(weights.dtype).removeprefix("torch.")
        # C++ alone knows how it lays weights out, so their sizes are no symbols here.
        return weights.new_empty(_C.packed_bytes(op, dtype, *map(int, sizes)), dtype=torch.uint8)

    def each(info: Any, in_dims: tuple, *args: Tensor | None) -> tuple[Tensor, int]:
        elements = (
            [a if d is None else a.select(d, k) for a, d in zip(args, in_dims, strict=True)]
            for k in range(info.batch_size)
        )
        return torch.stack([packs(*element) for element in elements]), 0

    torch.library.register_fake(f"fourfold::{name}", fake, lib=_library)
    torch.library.register_vmap(f"fourfold::{name}", each, lib=_library)


def check_gates(gates: int) -> Callable[..., tuple[Any, Any]]:
    """The check of weights that lie as torch.nn.LSTM and GRU have them."""
    rows = _check.multiple_of_hidden(gates)

    def check(
        op: str, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None = None, bias_hh: Tensor | None = None
    ) -> tuple[Any, Any]:
        _check.expect_floating(op, "weight_hh", weight_hh)
        _check.expect_dtype(op, "weight_ih", weight_ih, weight_hh.dtype)
        _check.expect_shape(op, "weight_hh", weight_hh, rows=None, hidden_size=None)
        _check.expect_countable(op, "weight_hh", *weight_hh.shape)
        size = weight_hh.shape[1]
        _check.expect_shape(op, "weight_hh", weight_hh, **{rows: gates * size, "hidden_size": size})
        _check.expect_shape(op, "weight_ih", weight_ih, **{rows: gates * size, "input_size": None})
        _check.expect_countable(op, "weight_ih", *weight_ih.shape)
        biases = {"bias_ih": bias_ih, "bias_hh": bias_hh}
        given = {name: bias for name, bias in biases.items() if bias is not None}
        for name, bias in given.items():
            _check.expect_dtype(op, name, bias, weight_hh.dtype)
            if bias.numel() != gates * size:
                _check.expect_shape(op, name, bias, **{rows: gates * size})
        _check.expect_tensors(op, weight_hh=weight_hh, weight_ih=weight_ih, **given)
        return weight_ih.shape[1], size

    return check


def check_lltm(op: str, weights: Tensor, bias: Tensor | None = None) -> tuple[Any, Any]:
    """The check of the LLTM's, the weights of h before those of x."""
    _check.expect_floating(op, "weights", weights)
    _check.expect_shape(op, "weights", weights, three_hidden=None, hidden_and_input=None)
    _check.expect_countable(op, "weights", *weights.shape)
    hidden_size = weights.shape[0] // 3
    input_size = weights.shape[1] - hidden_size
    _check.expect_lltm_parameters(op, weights.dtype, input_size, hidden_size, weights, bias)
    _check.expect_tensors(op, weights=weights, **({} if bias is None else {"bias": bias}))
    return input_size, hidden_size
