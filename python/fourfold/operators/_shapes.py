"""Shapes as strings, "batch 3*hidden_size", from which come an operator's checks, fake kernels and vmap rule.

A dimension is a product or a sum of sizes, which have names, and of numbers. The first tensor that has a size says how
large it is. A tensor that may be left out has a "? " before its shape; "(1) 3*hidden_size" is a bias, which may be a
row too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fourfold.operators import _check

Sizes = dict[str, Any]


def size_of(dimension: str, sizes: Sizes) -> Any:
    """None where a size in it is not known yet."""
    terms = []
    for term in dimension.split("+"):
        factors = [int(f) if f.isdigit() else sizes.get(f) for f in term.split("*")]
        if None in factors:
            return None
        terms.append(math.prod(factors))
    return sum(terms)


def spelled(dimension: str) -> str:
    return dimension.replace("*", " * ").replace("+", " + ")


def expected(shape: str, sizes: Sizes) -> dict[str, Any]:
    """Each dimension's name and size, as the sentences of the checks have them."""
    return {spelled(dimension): size_of(dimension, sizes) for dimension in shape.split()}


def check(
    op: str,
    shapes: Mapping[str, str],
    a: SimpleNamespace,
    sizes: Sizes | None = None,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> Sizes:
    """That tensors fit each other: on one device, of one floating dtype but for ``dtypes``, in these shapes.

    a: the tensors by name, None for one that is left out. sizes: those that are known. Returns all.
    """
    given = {n: t for n, shape in shapes.items() if (t := getattr(a, n)) is not None or not shape.startswith("? ")}
    _check.expect_tensors(op, **given)
    first, sizes, dtypes = next(iter(given)), dict(sizes or {}), dtypes or {}
    _check.expect_floating(op, first, given[first])
    for name, tensor in given.items():
        if name != first:
            _check.expect_dtype(op, name, tensor, dtypes.get(name, given[first].dtype))
        shape = shapes[name].removeprefix("? ")
        if shape.startswith("(1) "):
            size = shape.removeprefix("(1) ")
            _check.expect_bias(op, name, tensor, spelled(size), size_of(size, sizes))
            continue
        _check.expect_shape(op, name, tensor, expected(shape, sizes))
        for dimension, size in zip(shape.split(), tensor.shape, strict=True):
            sizes.setdefault(dimension, size)
        _check.expect_countable(op, name, *tensor.shape)
    return sizes


def folded(
    op: Any,
    shapes: Mapping[str, str],
    size: int,
    dims: SimpleNamespace,
    a: SimpleNamespace,
    results: Sequence[str],
) -> tuple[tuple, tuple] | None:
    """vmap by more batch: a mapped dimension of that size is folded into the dimension named batch of each tensor that
    has one, and unfolded in the results. None where a tensor without one is mapped."""
    mapped = {name for name, d in vars(dims).items() if isinstance(getattr(a, name), Tensor) and d is not None}
    with_batch = [n for n in shapes if "batch" in shapes[n].split() and isinstance(getattr(a, n), Tensor)]
    if not mapped <= set(with_batch):
        return None
    whole, sizes = dict(vars(a)), {}
    for name in with_batch:
        tensor, d, shape = whole[name], getattr(dims, name), shapes[name].removeprefix("? ").split()
        tensor = tensor.expand(size, *tensor.shape) if d is None else tensor.movedim(d, 0)
        sizes |= dict(zip(shape, tensor.shape[1:], strict=True))
        dim = shape.index("batch")
        whole[name] = tensor.movedim(0, dim).flatten(dim, dim + 1)
    outputs = op(*whole.values())
    pairs = [_unfolded(o, shape, size, sizes) for o, shape in zip(outputs, results, strict=True)]
    return tuple(o for o, _ in pairs), tuple(d for _, d in pairs)


def _unfolded(output: Tensor, shape: str, size: int, sizes: Sizes) -> tuple[Tensor, int]:
    first, *rest = shape.split()
    if output.dim() == 1 and rest:  # left out
        return output.expand(size, 0), 0
    if first == "time*batch":
        parts = output.reshape(sizes["time"], size, sizes["batch"], *output.shape[1:])
        return parts.movedim(1, 0).reshape(size, sizes["time"] * sizes["batch"], *output.shape[1:]), 0
    dim = shape.split().index("batch")
    return output.unflatten(dim, (size, sizes["batch"])), dim
