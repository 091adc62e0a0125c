"""Declares elementwise operators of a floating-point tensor x and of numbers, whose result is like x."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fourfold.operators import _axes, _check
from fourfold.operators._declare import declare
from fourfold.operators._operator import Operator

ELEMENTWISE: list[str] = []  # the operators declared here


def declare_elementwise(
    name: str, definition: Callable[..., Tensor], check: Callable[[str, SimpleNamespace], None]
) -> Operator:
    """check(op, a): checks the numbers' values."""

    def check_arguments(op: str, a: SimpleNamespace) -> None:
        _check.expect_tensors(op, **({"grad": a.grad} if hasattr(a, "grad") else {}), x=a.x)
        _check.expect_floating(op, "x", a.x)
        for argument, value in vars(a).items():
            if argument not in ("grad", "x"):
                _check.expect_number(op, argument, value)
        check(op, a)

    ELEMENTWISE.append(name)
    return declare(
        name,
        check=check_arguments,
        check_backward=_check_backward,
        fake=lambda a: torch.empty_like(a.x),
        fake_backward=lambda a: torch.empty_like(a.x),
        definition=definition,
        vmap=_vmap,
        vmap_backward=_vmap,
        axes=_axes.ELEMENTWISE,
    )


def _check_backward(op: str, a: SimpleNamespace) -> None:
    _check.expect_dtype(op, "grad", a.grad, a.x.dtype)
    if a.grad.shape != a.x.shape:
        raise ValueError(
            f"{op}: expected grad to have x's shape {_check.shape_of(a.x)}, but got {_check.shape_of(a.grad)}"
        )


def _vmap(op: Any, size: int, dims: SimpleNamespace, a: SimpleNamespace) -> tuple:
    """The mapped dimension is an additional leading dimension."""
    whole = dict(vars(a))
    for name, d in vars(dims).items():
        if isinstance(whole[name], Tensor):
            x = whole[name]
            whole[name] = x.movedim(d, 0) if d is not None else x.expand(size, *x.shape)
    return (op(*whole.values()),), (0,)
