"""Derives an operator's checks, fake kernels and vmap rule from shapes as strings, such as "batch 3*hidden_size".

A dimension is a product or a sum of named sizes and of numbers. The first tensor that has a size determines it. An
optional tensor has a "? " before its shape; "(1) 3*hidden_size" is a bias, which may also be a row.
"""

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fourfold.operators import _check, _declare
from fourfold.operators._axes import Axes, Dimensions
from fourfold.operators._operator import Operator
from fourfold.operators._schema import rule_of, schema_of

Sizes = dict[str, Any]
Shapes = Mapping[str, str]
Dtypes = Mapping[str, torch.dtype]


def declare(
    name: str,
    layout: Callable[[SimpleNamespace], tuple[Shapes, Shapes]],
    definition: Callable[..., tuple],
    check_more: Callable[[str, SimpleNamespace, Sizes], None] = lambda *_: None,
    kept_dtype: Callable[[Tensor], torch.dtype] = _check.kept_dtype,
    dtypes: Dtypes | None = None,
) -> Operator:
    """Declares an operator and its backward from the shapes of their tensors.

    layout(a): the shapes of the arguments and of the results.
    definition: the operator in plain torch.
    check_more(op, a, sizes): further checks.
    kept_dtype(like): the dtype of what the forward keeps for the backward.
    dtypes: for the arguments whose dtype differs from the first one's.
    """
    schema, backward = schema_of(name), schema_of(f"{name}_backward")
    kept = schema.results[rule_of(schema, backward).outputs :]

    def results_of(op: str, a: SimpleNamespace) -> dict[str, dict[str, Any]]:
        """Checks the arguments; returns the results' shapes."""
        given, made = layout(a)
        sizes = check(op, given, a, dtypes=dtypes)
        check_more(op, a, sizes)
        return {result: expected(shape, sizes) for result, shape in made.items()}

    def check_backward(op: str, a: SimpleNamespace) -> None:
        like = getattr(a, schema.arguments[0])
        for result, shape in results_of(op, a).items():
            if result in kept:
                wanted = {"rows" if "time" in dimension else dimension: size for dimension, size in shape.items()}
                _check.expect_kept(op, getattr(a, result), like, kept_dtype(like), wanted)
                continue
            for argument in (result, f"grad_{result}"):
                if argument in backward.arguments:
                    _check.expect_gradient(op, argument, getattr(a, argument), like, shape)
        _check.expect_mask(op, a.output_mask, len(backward.results))

    def fake(a: SimpleNamespace) -> tuple[Tensor, ...]:
        like = getattr(a, schema.arguments[0])

        def empty(result: str, shape: dict[str, Any]) -> Tensor:
            if result not in kept:
                return like.new_empty(list(shape.values()))
            return like.new_empty(list(shape.values()) if a.save_for_backward else 0, dtype=kept_dtype(like))

        return tuple(empty(*result) for result in results_of(name, a).items())

    return _declare.declare(
        name,
        check=results_of,
        check_backward=check_backward,
        fake=fake,
        definition=definition,
        vmap=lambda op, size, dims, a: folded(op, *layout(a), size, dims, a),
        casts=True,
        axes=Axes(lambda a: _with_batch(*layout(a))),
    )


def _with_batch(given: Shapes, made: Shapes) -> Dimensions:
    """Rows of a batch are independent. Packed input has none: its rows are the steps of all sequences."""
    if not all("batch" in shape for shape in made.values()):
        return {}, frozenset()
    shapes = {name: shape.removeprefix("? ") for name, shape in (given | made).items() if "batch" in shape}
    return {name: tuple(shape.split()) for name, shape in shapes.items()}, frozenset({"batch"})


def size_of(dimension: str, sizes: Sizes) -> Any:
    """The size of a dimension; None if it contains an unknown size."""
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
    """Each dimension's name and size, spelled as in error messages."""
    return {spelled(dimension): size_of(dimension, sizes) for dimension in shape.split()}


def check(
    op: str, shapes: Shapes, a: SimpleNamespace, sizes: Sizes | None = None, dtypes: Dtypes | None = None
) -> Sizes:
    """Raises unless tensors fit together: on one device, of one floating dtype except for ``dtypes``, in these shapes.

    a: the tensors by name, None for an omitted one. sizes: the known ones. Returns all of them.
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
    op: Any, shapes: Shapes, results: Shapes, size: int, dims: SimpleNamespace, a: SimpleNamespace
) -> tuple[tuple, tuple] | None:
    """vmap as a larger batch: the mapped dimension, of that size, is folded into the batch dimension of each tensor
    that has one, and unfolded in the results. None if a tensor without one is mapped, or if a result has none, as for
    packed input."""
    mapped = {name for name, d in vars(dims).items() if isinstance(getattr(a, name), Tensor) and d is not None}
    with_batch = [n for n in shapes if "batch" in shapes[n].split() and isinstance(getattr(a, n), Tensor)]
    if not mapped <= set(with_batch) or not all("batch" in shape for shape in results.values()):
        return None
    whole, sizes = dict(vars(a)), {}
    for name in with_batch:
        tensor, d, shape = whole[name], getattr(dims, name), shapes[name].removeprefix("? ").split()
        tensor = tensor.expand(size, *tensor.shape) if d is None else tensor.movedim(d, 0)
        sizes |= dict(zip(shape, tensor.shape[1:], strict=True))
        dim = shape.index("batch")
        whole[name] = tensor.movedim(0, dim).flatten(dim, dim + 1)
    outputs = op(*whole.values())
    pairs = [_unfolded(o, shape, size, sizes) for o, shape in zip(outputs, results.values(), strict=True)]
    return tuple(o for o, _ in pairs), tuple(d for _, d in pairs)


def _unfolded(output: Tensor, shape: str, size: int, sizes: Sizes) -> tuple[Tensor, int]:
    first, *rest = shape.split()
    if output.dim() == 1 and rest:  # not computed
        return output.expand(size, 0), 0
    if first == "time*batch":
        parts = output.reshape(sizes["time"], size, sizes["batch"], *output.shape[1:])
        return parts.movedim(1, 0).reshape(size, sizes["time"] * sizes["batch"], *output.shape[1:]), 0
    dim = shape.split().index("batch")
    return output.unflatten(dim, (size, sizes["batch"])), dim
