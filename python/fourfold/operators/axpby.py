"""axpby: z = αx + βy."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling

from fourfold import reference
from fourfold.operators import _axes, _check
from fourfold.operators._axes import Axes
from fourfold.operators._declare import declare

_REAL = (*_check.FLOATING, *_check.INTEGRAL)
_LARGEST_WHOLE = 2**53  # factors are passed as doubles, which represent whole numbers exactly up to here


def _check_arguments(op: str, a: SimpleNamespace) -> None:
    _check.expect_tensors(op, x=a.x, y=a.y)
    for name, given in (("x", a.x.dtype), ("y", a.y.dtype), ("dtype", a.dtype)):
        if given is not None and given not in _REAL:
            raise TypeError(f"{op}: expected {name} to be bool, an integer or floating point, but got {given}")
    _check_factors(a.alpha, a.beta, a.dtype or torch.result_type(a.x, a.y))
    shape = _broadcast_shape(a.x, a.y)
    if shape not in (a.x.shape, a.y.shape):
        _check.expect_countable(op, "the result", *shape)


def _check_factors(alpha: float, beta: float, dtype: torch.dtype) -> None:
    for name, factor in (("alpha", alpha), ("beta", beta)):
        _check.expect_number("axpby", name, factor)
        if not dtype.is_floating_point and (factor != factor // 1 or abs(factor) > _LARGEST_WHOLE):
            raise ValueError(
                f"axpby: expected {name} to be a whole number within 2^53 for a result of {dtype}, "
                f"but got {factor:g}; pass a floating point dtype"
            )


def _broadcast_shape(x: Tensor, y: Tensor) -> tuple:
    for a, b in zip(reversed(x.shape), reversed(y.shape), strict=False):
        if a != b and a != 1 and b != 1:
            raise ValueError(
                f"axpby: expected x and y to broadcast together, but got {_check.shape_of(x)} and {_check.shape_of(y)}"
            )
    return torch.broadcast_shapes(x.shape, y.shape)


def _fake(a: SimpleNamespace) -> Tensor:
    shape = _broadcast_shape(a.x, a.y)
    dtype = a.dtype or torch.result_type(a.x, a.y)
    for like in (a.x, a.y):
        if like.shape == shape:
            return torch.empty_like(like, dtype=dtype)
    return a.x.new_empty(shape, dtype=dtype)


def _definition(x: Tensor, y: Tensor, alpha: float, beta: float, dtype: torch.dtype | None) -> Tensor:
    dtype = dtype or _promoted(x, y)
    return reference.axpby(x.to(dtype), y.to(dtype), alpha, beta)


def _facts(x: Tensor, y: Tensor, alpha: float, beta: float, dtype: torch.dtype | None) -> list[tuple]:
    return [(alpha, x.shape, x.dtype), (beta, y.shape, y.dtype)]


def _gradients(facts: list[tuple], grad: Tensor, needed: Sequence[bool]) -> list[Tensor | None]:
    """Each is a scaling, which torch computes in one pass; a factor of 1, the usual β, needs none."""
    gradients: list[Tensor | None] = [None] * len(needed)
    for k, (factor, shape, dtype) in enumerate(facts):
        if needed[k]:
            gradients[k] = (grad if factor == 1 else grad * factor).sum_to_size(shape).to(dtype)
    return gradients


def _vmap(op: Any, size: int, dims: SimpleNamespace, a: SimpleNamespace) -> tuple:
    """Broadcasting aligns the last dimensions, so the mapped one goes before the longer of the two shapes."""
    operands = ((a.x, dims.x), (a.y, dims.y))
    rank = max(t.dim() - (d is not None) for t, d in operands)
    dtype = a.dtype
    if dtype is None:  # otherwise the operator would promote again, with ranks that include the mapped dimension
        dtype = torch.result_type(*(_PROBES[t.dtype, min(t.dim() - (d is not None), 1)] for t, d in operands))
    aligned = []
    for t, d in operands:
        if d is not None:
            t = t.movedim(d, 0)
            t = t.reshape(t.shape[0], *(1,) * (rank + 1 - t.dim()), *t.shape[1:])
        aligned.append(t)
    return (op(*aligned, a.alpha, a.beta, dtype),), (0,)


# A tensor of each dtype, of rank 0 and 1: promotion depends on nothing else. No sizes and devices are passed here: to
# read them torch looks for NumPy, and warns if there is none.
_PROBES = {(dtype, 1): torch.frombuffer(bytearray(8), dtype=dtype, count=1) for dtype in _REAL}
_PROBES |= {(dtype, 0): probe.squeeze() for (dtype, _), probe in _PROBES.items()}


def _promoted(x: Tensor, y: Tensor, alpha: float | None = None, beta: float | None = None) -> torch.dtype:
    """The dtype of αx + βy, or of x + y, as torch promotes."""
    if torch.compiler.is_compiling():  # a graph can't hold dtypes, but tensors that have one
        a, b = (torch.empty((1,) * min(t.dim(), 1), dtype=t.dtype, device="meta") for t in (x, y))
        return (a + b if alpha is None else alpha * a + beta * b).dtype
    if alpha is None:
        return torch.result_type(x, y)
    a = _PROBES[torch.result_type(x, alpha), min(x.dim(), 1)]
    b = _PROBES[torch.result_type(y, beta), min(y.dim(), 1)]
    return torch.result_type(a, b)


def _convert(x: Tensor, y: Tensor, alpha: float, beta: float) -> tuple:
    """Adds the result's dtype, which depends on the factors' types too, unless all have one floating-point type."""
    numbers = type(alpha) in (int, float) and type(beta) in (int, float)
    tensors = isinstance(x, Tensor) and isinstance(y, Tensor)
    if tensors and numbers and x.dtype == y.dtype and x.dtype.is_floating_point:
        return x, y, alpha, beta
    _check.expect_number("axpby", "alpha", alpha)
    _check.expect_number("axpby", "beta", beta)
    if not tensors or x.dtype not in _REAL or y.dtype not in _REAL:
        return x, y, alpha, beta  # the operator rejects these
    dtype = _promoted(x, y, alpha, beta)
    if dtype.is_floating_point:
        return x, y, float(alpha), float(beta), dtype
    _check_factors(alpha, beta, dtype)  # while a large int is still exact
    return x, y, alpha, beta, dtype


# Its gradient is torch's own scaling, so the library has no operator for it.
FORWARD = declare(
    "axpby",
    check=_check_arguments,
    fake=_fake,
    definition=_definition,
    vmap=_vmap,
    gradient=(_facts, _gradients),
    convert=_convert,
    axes=Axes(_axes.of_elements, linear=("x", "y")),
)


def axpby(x: Tensor, y: Tensor, alpha: float = 2, beta: float = 1) -> Tensor:
    """Computes αx + βy in one pass over memory; by default 2x + y.

    Args:
        x, y: shapes that broadcast; bool, integer or floating point. Dtypes promote as in ``alpha * x + beta * y``:
            integers stay integers unless a factor is a float. The computation uses the result's dtype, so an int8 does
            not wrap around before it is added to an int64.
        alpha, beta: numbers; for an integer result whole numbers within 2^53.

    Returns:
        A tensor of the broadcast shape and the promoted dtype.

    Raises:
        TypeError: x or y is not a dense real tensor, or a factor is not a real number.
        ValueError: shapes that don't broadcast, tensors on different devices.

    Example:
        >>> fourfold.axpby(torch.ones(2), torch.ones(2))
        tensor([3., 3.])
    """
    return (FORWARD.traced if is_compiling() else FORWARD.call)(x, y, alpha, beta)
