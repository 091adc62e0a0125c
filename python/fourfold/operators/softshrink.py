"""softshrink: shrinks towards zero by λ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling

from fourfold import reference
from fourfold.operators import _check
from fourfold.operators._declare import declare


def _check_arguments(op: str, a: SimpleNamespace) -> None:
    _check.expect_tensors(op, **({"grad": a.grad} if hasattr(a, "grad") else {}), x=a.x)
    _check.expect_floating(op, "x", a.x)
    _check.expect_number(op, "lambd", a.lambd)
    if not a.lambd >= 0:
        raise ValueError(f"{op}: expected lambd to be at least 0, but got {a.lambd:g}")


def _check_backward(op: str, a: SimpleNamespace) -> None:
    _check.expect_dtype(op, "grad", a.grad, a.x.dtype)
    if a.grad.shape != a.x.shape:
        raise ValueError(
            f"{op}: expected grad to have x's shape {_check.shape_of(a.x)}, but got {_check.shape_of(a.grad)}"
        )


def _vmap(op: Any, size: int, dims: SimpleNamespace, a: SimpleNamespace) -> tuple:
    """Elementwise: the mapped dimension is one more."""
    whole = dict(vars(a))
    for name, d in vars(dims).items():
        if isinstance(whole[name], Tensor):
            x = whole[name]
            whole[name] = x.movedim(d, 0) if d is not None else x.expand(size, *x.shape)
    return (op(*whole.values()),), (0,)


FORWARD = declare(
    "softshrink",
    check=_check_arguments,
    check_backward=_check_backward,
    fake=lambda a: torch.empty_like(a.x),
    fake_backward=lambda a: torch.empty_like(a.x),
    definition=reference.softshrink,
    vmap=_vmap,
    vmap_backward=_vmap,
)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Shrinks each element towards zero by λ: x - λ above λ, x + λ below -λ, 0 between; NaN stays NaN.

    The values of :func:`torch.nn.functional.softshrink`. The gradient passes where x is NaN or beyond λ.

    Args:
        x: any shape; float16, bfloat16, float32 or float64.
        lambd: λ, at least 0.

    Returns:
        A tensor of x's shape, dtype and layout in memory.

    Raises:
        TypeError: x is no dense floating point tensor, or lambd no number.
        ValueError: lambd is negative or NaN.

    Example:
        >>> fourfold.softshrink(torch.tensor([-2.0, 0.1, 2.0]), lambd=0.5)
        tensor([-1.5000,  0.0000,  1.5000])
    """
    return (FORWARD.traced if is_compiling() else FORWARD.call)(x, lambd)
