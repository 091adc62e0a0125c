"""lltm_cell: one step of the LLTM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling

from fourfold import reference
from fourfold.operators import _check, _shapes
from fourfold.operators._declare import declare

ARGUMENTS = {
    "x": "batch input_size",
    "h": "batch hidden_size",
    "c": "batch hidden_size",
    "weights": "3*hidden_size hidden_size+input_size",
    "bias": "? (1) 3*hidden_size",
}
STATE, GATES = "batch hidden_size", "batch 3*hidden_size"


def _check_arguments(op: str, a: SimpleNamespace) -> None:
    _shapes.check(op, ARGUMENTS, a)


def _check_backward(op: str, a: SimpleNamespace) -> None:
    sizes = _shapes.check(op, ARGUMENTS, a)
    for name in ("grad_next_h", "grad_next_c", "next_c"):
        _check.expect_gradient(op, name, getattr(a, name), a.x, _shapes.expected(STATE, sizes))
    _check.expect_kept(op, a.gates, a.x, _check.kept_dtype(a.x), _shapes.expected(GATES, sizes))
    _check.expect_mask(op, a.output_mask, len(ARGUMENTS))


def _fake(a: SimpleNamespace) -> tuple[Tensor, ...]:
    batch, hidden_size = a.h.shape
    kept = (batch, 3 * hidden_size) if a.save_for_backward else (0,)
    gates = a.h.new_empty(kept, dtype=_check.kept_dtype(a.x))
    return a.h.new_empty(batch, hidden_size), a.h.new_empty(batch, hidden_size), gates


def _vmap(op: Any, size: int, dims: SimpleNamespace, a: SimpleNamespace) -> tuple | None:
    return _shapes.folded(op, ARGUMENTS, size, dims, a, (STATE, STATE, GATES))


FORWARD = declare(
    "lltm_cell",
    check=_check_arguments,
    check_backward=_check_backward,
    fake=_fake,
    definition=reference.lltm_cell,
    vmap=_vmap,
    casts=True,
)


def lltm_cell(x: Tensor, h: Tensor, c: Tensor, weights: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One step of the LLTM, the recurrent cell of PyTorch's C++ extension tutorial.

    With [i, o, g] = [h, x] Wᵀ + b:  c' = c + σ(i) elu(g),  h' = σ(o) tanh(c').

    Args:
        x: (batch, input_size); float16, bfloat16, float32 or float64. The two low precisions compute in float32.
        h, c: (batch, hidden_size), x's dtype.
        weights: (3 * hidden_size, hidden_size + input_size), h before x, gates in the order i, o, g.
        bias: (3 * hidden_size,), or (1, 3 * hidden_size), or None.

    Returns:
        (h', c'), each (batch, hidden_size).

    Raises:
        TypeError: an argument is no dense floating point tensor, or dtypes differ.
        ValueError: shapes that do not fit together, tensors on different devices.
    """
    return (FORWARD.traced if is_compiling() else FORWARD.call)(x, h, c, weights, bias)
