"""Views as index arithmetic: the dimensions of a view from those of its base, and back.

Each dimension of a tensor in a group has the axes along which it runs, outermost first; none if it has one element or
is expanded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from fourfold.compiler.ir.values import Dims, Starts

aten = torch.ops.aten
Size = int | torch.SymInt

RESHAPES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
    }
)
PERMUTATIONS = frozenset({aten.permute.default, aten.transpose.int, aten.t.default})
EXPANSIONS = frozenset({aten.expand.default})
VIEWS = RESHAPES | PERMUTATIONS | EXPANSIONS


def keys(sizes: Sequence[Size]) -> tuple[object, ...]:
    """Sizes or strides as a hashable key: numbers, and the expressions of symbolic ones, which are slow to print but
    not to compare."""
    expressions = (size if isinstance(size, int) else size.node.expr for size in sizes)
    return tuple(each if isinstance(each, int) or not each.is_Integer else int(each) for each in expressions)


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are known to be equal, without a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return not isinstance(a, int) and not isinstance(b, int) and a.node.expr == b.node.expr


def is_one(size: Size) -> bool:
    """Whether it is known to be 1: for a symbolic size by a guard, as when half of a dimension of 3 broadcasts."""
    if isinstance(size, int) or size.node.hint != 1:
        return isinstance(size, int) and size == 1
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(size == 1)


def has_hints(fake: torch.Tensor) -> bool:
    """Whether its sizes are known while tracing; they are not if they depend on data."""
    if not fake._has_symbolic_sizes_strides:
        return True
    return all(isinstance(s, int) or s.node.hint is not None for s in (*fake.shape, *fake.stride()))


def hint(size: Size) -> int:
    """The traced size."""
    return size if isinstance(size, int) else int(size.node.hint)


def shape_of(node: Node) -> Sequence[Size]:
    return node.meta["val"].shape


def have_same_shape(a: Node, b: Node) -> bool:
    shapes = shape_of(a), shape_of(b)
    return len(shapes[0]) == len(shapes[1]) and all(same(*sizes) for sizes in zip(*shapes, strict=True))


def viewed(node: Node, dims: Dims, sizes: Sequence[Size]) -> Dims | None:
    """The dimensions of a view, from those of its base; None if an axis would have to be split."""
    if node.target in EXPANSIONS:
        return ((),) * (len(shape_of(node)) - len(dims)) + dims
    if node.target in PERMUTATIONS:
        return tuple(dims[d] for d in permutation(node))
    return reshaped(dims, shape_of(node.args[0]), shape_of(node), sizes)


def unviewed(node: Node, dims: Dims, sizes: Sequence[Size]) -> Dims | None:
    """The reverse: the dimensions of the base, from those of the view."""
    base = shape_of(node.args[0])
    if node.target in EXPANSIONS:
        return broadcast(dims, base)
    if node.target in PERMUTATIONS:
        result: list[tuple[int, ...]] = [()] * len(dims)
        for place, d in enumerate(permutation(node)):
            result[d] = dims[place]
        return tuple(result)
    return reshaped(dims, shape_of(node), base, sizes)


def unviewed_part(node: Node, dims: Dims, starts: Starts, sizes: Sequence[Size]) -> tuple[Dims, Starts] | None:
    """The same of a view of which a part is read; None if the view merges or splits dimensions."""
    if not starts:
        below = unviewed(node, dims, sizes)
        return None if below is None else (below, ())
    view, base = shape_of(node), shape_of(node.args[0])
    if node.target in PERMUTATIONS:
        order = permutation(node)
    elif node.target in EXPANSIONS:
        order = range(-len(view) + len(base), len(base))
    else:
        kept, own = ([d for d, size in enumerate(shape) if not is_one(size)] for shape in (view, base))
        if len(kept) != len(own) or not all(same(view[d], base[e]) for d, e in zip(kept, own, strict=True)):
            return None
        place = dict(zip(kept, own, strict=True))
        order = [place.get(d, -1) for d in range(len(view))]
    found: list[tuple[tuple[int, ...], int | None]] = [((), None)] * len(base)
    for d, own_dim in enumerate(order):
        if own_dim >= 0 and not is_one(base[own_dim]):
            found[own_dim] = dims[d], starts[d]
    return tuple(dim for dim, _ in found), tuple(start for _, start in found)


def broadcast(whole: Dims, shape: Sequence[Size]) -> Dims:
    """The dimensions of a tensor of this shape that is broadcast to `whole`."""
    kept = whole[len(whole) - len(shape) :]
    return tuple(() if is_one(size) else dim for size, dim in zip(shape, kept, strict=True))


def permutation(node: Node) -> list[int]:
    count = len(shape_of(node))
    if node.target is aten.permute.default:
        return [d % count for d in node.args[1]]
    order = list(range(count))
    if node.target is aten.t.default:
        return order[::-1]
    if count:
        a, b = (d % count for d in node.args[1:3])
        order[a], order[b] = b, a
    return order


def reshaped(dims: Dims, old: Sequence[Size], new: Sequence[Size], sizes: Sequence[Size]) -> Dims | None:
    """Adds and removes dimensions of size 1, merges others, and splits those that run along several axes."""
    given = [(size, dim) for size, dim in zip(old, dims, strict=True) if not is_one(size)]
    wanted = [size for size in new if not is_one(size)]
    if len(given) == len(wanted) and all(same(size, other) for (size, _), other in zip(given, wanted, strict=True)):
        rest = iter(dim for _, dim in given)
        return tuple(() if is_one(size) else next(rest) for size in new)
    if any(not dim for _, dim in given):
        return None
    axes = iter([axis for _, dim in given for axis in dim])
    result = []
    for size in new:
        dim: tuple[int, ...] = ()
        product: Size = 1
        while not same(product, size):
            axis = next(axes, None)
            if axis is None or not isinstance(size, int) and dim:
                return None
            dim, own = (*dim, axis), sizes[axis]
            known = isinstance(own, int) and isinstance(product, int)
            product = own if is_one(product) else product * own if known else 0
            if is_one(product) or isinstance(product, int) and isinstance(size, int) and product > size:
                return None
        result.append(dim)
    return tuple(result) if next(axes, None) is None else None


def splits(dims: Dims, shape: Sequence[Size], sizes: Sequence[Size]) -> dict[int, list[Size]] | None:
    """The axes to split, and into which sizes, so that a tensor with these dimensions can be reshaped to this shape;
    None if it can't. sizes: those of the axes."""
    remaining = [(axis, sizes[axis]) for dim in reversed(dims) for axis in reversed(dim)]
    parts: dict[int, list[Size]] = {}
    for size in shape:
        while not is_one(size):  # what the next axes have to fill of this dimension
            if not remaining:
                return None
            axis, own = remaining.pop()
            if same(own, size):
                part, size = own, 1
            elif isinstance(own, int) and isinstance(size, int) and min(own, size):
                part = min(own, size)
                if own % part or size % part:
                    return None
                size //= part
                if own > part:
                    remaining.append((axis, own // part))
            else:
                return None
            parts.setdefault(axis, []).append(part)
    return None if remaining else {axis: each for axis, each in parts.items() if len(each) > 1}


def memory_order(fake: torch.Tensor) -> list[int]:
    """A tensor's dimensions by decreasing stride; of equal strides a dimension of size 1 is the inner one."""
    strides = [hint(stride) for stride in fake.stride()]
    return sorted(range(fake.dim()), key=lambda d: (-strides[d], is_one(fake.shape[d])))
