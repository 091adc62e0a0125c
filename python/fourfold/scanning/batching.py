"""Values of a step's nodes for all steps at once, with the steps as the first dimension."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.fx import Node

from fourfold.scanning.fission import draws

aten = torch.ops.aten
Values = Callable[[Node], object]

# Random operators that draw for each element of a tensor, or for each element of a size.
DRAWING = frozenset(
    {
        aten.bernoulli.default,
        aten.bernoulli.p,
        aten.native_dropout.default,
        aten.rand.default,
        aten.rand_like.default,
        aten.randn.default,
        aten.randn_like.default,
    }
)


def batched(node: Node, value: Values, is_batched: Callable[[Node], bool], steps: object) -> object:
    """The operator applied to every step's operands, by torch's vmap rules. Random operators draw for each step, even
    where all steps have the same operands."""
    operands = node.all_input_nodes
    values = [value(each) for each in operands]

    def apply(*given: object) -> object:
        known = dict(zip(operands, given, strict=True))
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
        return node.target(*args, **kwargs)

    if node.target is operator.getitem:
        return values[0][node.args[1]]
    if draws(node):
        return drawn(node, value, is_batched, steps, apply)
    dims = tuple(0 if is_batched(each) else None for each in operands)
    if all(dim is None for dim in dims) or node.target is aten.fill.Scalar:  # fill has no vmap rule in torch
        return apply(*values)
    if node.target in (aten.cat.default, aten.stack.default):
        return joined(node, value, is_batched, steps)
    if node.target in (aten.split.Tensor, aten.split_with_sizes.default):
        return divided(node, value)
    if node.target is aten.addmm.default and not node.kwargs and dims[1:] == (0, None):
        start, rows, weights = values
        if dims[0] == 0 or start.dim() == 1:
            return plus_product(start, rows, weights, has_rows=dims[0] == 0)
    with without_fallback():
        return torch.vmap(apply, in_dims=dims, randomness="different")(*values)


@contextlib.contextmanager
def without_fallback() -> Iterator[None]:
    """Makes operators without a vmap rule raise RuntimeError; torch would apply them to each step, with a warning."""
    before = torch._C._functorch._is_vmap_fallback_enabled()
    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(before)


def plus_product(start: Tensor, rows: Tensor, weights: Tensor, has_rows: bool) -> Tensor:
    """The rows of all steps in one operator; torch's vmap rule makes two."""
    every = rows.reshape(rows.shape[0] * rows.shape[1], rows.shape[2])
    if has_rows:
        start = start.expand(*rows.shape[:2], weights.shape[1]).reshape(every.shape[0], weights.shape[1])
    return aten.addmm.default(start, every, weights).reshape(*rows.shape[:2], weights.shape[1])


def joined(node: Node, value: Values, is_batched: Callable[[Node], bool], steps: object) -> Tensor:
    """Avoids torch's vmap rule, which would fix the number of steps."""
    dim = node.args[1] if len(node.args) > 1 else 0
    parts = [of_every_step(each, value, is_batched, steps) for each in node.args[0]]
    return node.target(parts, dim + 1 if dim >= 0 else dim)


def divided(node: Node, value: Values) -> list[Tensor]:
    """Avoids torch's vmap rule, which would fix a symbolic size."""
    tensor, sizes, *dims = torch.fx.map_arg(node.args, value)
    dim = dims[0] if dims else node.kwargs.get("dim", 0)
    return node.target(tensor, sizes, dim + 1 if dim >= 0 else dim)


def of_every_step(node: Node, value: Values, is_batched: Callable[[Node], bool], steps: object) -> object:
    """A tensor's value for all steps, expanded if all steps have the same one."""
    known = value(node)
    return known if is_batched(node) or not isinstance(known, Tensor) else known.expand([steps, *known.shape])


def drawn(
    node: Node, value: Values, is_batched: Callable[[Node], bool], steps: object, apply: Callable[..., object]
) -> object:
    """Random numbers for all steps."""

    def whole(operand: Node) -> object:
        return of_every_step(operand, value, is_batched, steps)

    if node.target in DRAWING:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), whole)
        if isinstance(args[0], (list, tuple)):
            args = ([steps, *args[0]], *args[1:])
        return node.target(*args, **kwargs)
    # Expanded, since a vmap rule may draw once for operands that all steps share.
    operands = list(map(whole, node.all_input_nodes))
    dims = (0, *(0 if isinstance(each, Tensor) else None for each in operands))
    every = torch.empty(steps, device="cpu")
    with without_fallback():
        return torch.vmap(lambda _, *given: apply(*given), in_dims=dims, randomness="different")(every, *operands)
