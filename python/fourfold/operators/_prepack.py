"""The operators that lay a layer's weights out ahead of calls, for fake tensors and vmap. There is no gradient."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fourfold import _C
from fourfold.operators import _check, _shapes
from fourfold.operators._operator import library
from fourfold.operators._schema import schema_of


def declare(op: str, shapes: Mapping[str, str]) -> None:
    """shapes: of the weights, the ones that say the hidden size first."""
    name = f"{op}_prepack"
    prepack = getattr(torch.ops.fourfold, name).default
    schema = schema_of(name)

    def fake(*args: Any) -> Tensor:
        a = schema.named(args)
        sizes = _check_weights(name, shapes, a)
        like = args[0]
        dtype = str(like.dtype).removeprefix("torch.")
        # C++ alone knows how it lays weights out, so their sizes are no symbols here.
        size = _C.prepacked_bytes(op, dtype, int(sizes["input_size"]), int(sizes["hidden_size"]))
        return like.new_empty(size, dtype=torch.uint8)

    def each(info: Any, in_dims: tuple, *args: Tensor | None) -> tuple[Tensor, int]:
        elements = (
            [a if d is None else a.select(d, k) for a, d in zip(args, in_dims, strict=True)]
            for k in range(info.batch_size)
        )
        return torch.stack([prepack(*element) for element in elements]), 0

    torch.library.register_fake(f"fourfold::{name}", fake, lib=library)
    torch.library.register_vmap(f"fourfold::{name}", each, lib=library)


def _check_weights(op: str, shapes: Mapping[str, str], a: SimpleNamespace) -> _shapes.Sizes:
    first, shape = next(iter(shapes.items()))
    weights = getattr(a, first)
    _check.expect_floating(op, first, weights)
    rows, columns = shape.split()
    lltm = "input_size" in columns
    _check.expect_shape(
        op, first, weights, {_shapes.spelled(rows) if lltm else "rows": None, _shapes.spelled(columns): None}
    )
    _check.expect_countable(op, first, *weights.shape)
    if not lltm:
        return _shapes.check(op, shapes, a, {"hidden_size": weights.shape[1]})
    hidden_size = weights.shape[0] // 3
    sizes = {"hidden_size": hidden_size, "input_size": weights.shape[1] - hidden_size}
    return _shapes.check(op, shapes, a, sizes)
