"""softshrink: shrinks towards zero by λ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fourfold import reference
from fourfold.operators import _check
from fourfold.operators._operator import Operator, vjp_of


def _check_arguments(op: str, x: Tensor, lambd: float) -> None:
    _check.expect_floating(op, "x", x)
    _check.expect_number(op, "lambd", lambd)
    if not lambd >= 0:
        raise ValueError(f"{op}: expected lambd to be at least 0, but got {lambd:g}")


def _check_forward(x: Tensor, lambd: float = 0.5) -> None:
    _check.expect_tensors("softshrink", x=x)
    _check_arguments("softshrink", x, lambd)


def _check_backward(grad: Tensor, x: Tensor, lambd: float) -> None:
    op = "softshrink_backward"
    _check.expect_tensors(op, grad=grad, x=x)
    _check_arguments(op, x, lambd)
    _check.expect_dtype(op, "grad", grad, x.dtype)
    if grad.shape != x.shape:
        raise ValueError(f"{op}: expected grad to have x's shape {_check.shape_of(x)}, but got {_check.shape_of(grad)}")


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    x, ctx.lambd = inputs
    ctx.save_for_backward(x)


def _gradient(ctx: Any, grad: Tensor | None) -> tuple:
    if grad is None:
        return (None, None)
    (x,) = ctx.saved_tensors
    return BACKWARD(grad, x, ctx.lambd), None


def _vmap(operator: Operator, info: Any, in_dims: tuple, *args: Any) -> tuple[Tensor, int]:
    """Elementwise: the mapped dimension is one more."""
    tensors = []
    for a, d in zip(args, in_dims, strict=True):
        if isinstance(a, Tensor):
            a = a.movedim(d, 0) if d is not None else a.expand(info.batch_size, *a.shape)
        tensors.append(a)
    return operator.op(*tensors), 0


FORWARD = Operator(
    "softshrink",
    check=_check_forward,
    fake=lambda x, lambd=0.5: torch.empty_like(x),
    reference=reference.softshrink,
    setup_context=_setup_context,
    backward=_gradient,
    vmap=_vmap,
)
BACKWARD = Operator(
    "softshrink_backward",
    check=_check_backward,
    fake=lambda grad, x, lambd: torch.empty_like(x),
    reference=lambda grad, x, lambd: vjp_of(reference.softshrink, (x, lambd), [grad])[0],
    vmap=_vmap,
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
    if type(lambd) is not float and type(lambd) is not int:  # a tensor would be taken, and its gradient lost
        _check.expect_number("softshrink", "lambd", lambd)
    return FORWARD(x, lambd)
