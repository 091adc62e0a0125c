"""What a group's results end in, within its program: concatenations of them, and sums over its rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.fx import Node

from fourfold.compiler.groups import along, have_same_shape, joined_along, read_dims, reduced_dims, rows_place
from fourfold.compiler.ir import Dims
from fourfold.compiler.nodes import can_be_computed, can_be_held, can_be_read
from fourfold.compiler.views import hint, shape_of

if TYPE_CHECKING:
    from fourfold.compiler.fusion import Fusion

TOTAL = torch.ops.aten.sum.dim_IntList
CONCATENATION = torch.ops.aten.cat.default
FEWEST_COLUMNS = 16  # that sums over rows are worth the while for


def place_concatenation(fusion: Fusion, node: Node) -> None:
    """A concatenation of a group's results: these are written where they belong in it."""
    if node.target is not CONCATENATION or not can_be_held(node.meta["val"]):
        return
    parts, dim = joined_along(node)
    if any(len(shape_of(part)) != len(shape_of(node)) for part in parts):  # a part of shape (0,) adds nothing
        return
    made = [part for part in parts if part in fusion.within and fusion.within[part] == fusion.unit[part]]
    dtype = node.meta["val"].dtype
    if not made or not all(can_be_read(part) and part.meta["val"].dtype == dtype for part in parts):
        return
    unit = fusion.unit[made[0]]
    dims = fusion.groups[unit].dims[made[0]]
    others = [part for part in parts if fusion.within.get(part) != unit]
    is_whole = along(dims) == fusion.groups[unit].axes and dims[dim]
    alike = all(fusion.groups[unit].dims.get(part, dims) == dims for part in parts)
    alike = alike and all(have_same_shape(part, made[0]) for part in others)
    if not is_whole or not alike or not fusion.can_join(unit, others):
        return
    fusion.grow(unit, fusion.waits_for(others))
    fusion.unit[node] = unit
    fusion.groups[unit].joins.append(node)
    fusion.groups[unit].dims[node] = dims


def place_total(fusion: Fusion, node: Node) -> None:
    """A sum over the leading dimensions of what a group computes or reads, whose rows these are or become."""
    if node.target is not TOTAL or len(node.args) < 2 or not can_be_computed(node):
        return
    x, dims, *_ = node.args
    unit, own = where_whole(fusion, x)
    if not own or fusion.reach[unit] >> fusion.unit[node] & 1:
        return
    group = fusion.groups[unit]
    reduced = reduced_dims(dims, len(own))
    rows = frozenset(axis for d in reduced for axis in own[d])
    columns = group.axes - rows
    alike = x.meta["val"].dtype == node.meta["val"].dtype and x.meta["val"].dtype.is_floating_point
    is_last = bool(rows) and max(rows_place(own, rows)) < min(rows_place(own, columns), default=0)
    if not alike or along(own) != group.axes or group.columns not in (None, columns) or not is_last:
        return
    if math.prod(hint(group.sizes[axis]) for axis in columns) < FEWEST_COLUMNS:
        return
    kept = [() if d in reduced else dim for d, dim in enumerate(own)]
    is_short = len(shape_of(node)) < len(own)
    group.columns = columns
    group.totals[node] = own
    group.dims[node] = tuple(dim for d, dim in enumerate(kept) if not (is_short and d in reduced))
    fusion.unit[node] = unit


def where_whole(fusion: Fusion, node: Node) -> tuple[int, Dims | None]:
    """A group that computes a tensor, or reads it, and with which dimensions; None where there is none."""
    unit = fusion.within.get(node)
    if unit is not None:
        return unit, fusion.groups[unit].dims[node]
    for user in node.users:
        unit = fusion.within.get(user)
        if unit is not None and unit == fusion.unit[user]:
            dims = read_dims(fusion.groups[unit], user, node)
            if dims is not None and along(dims) == fusion.groups[unit].axes:
                return unit, dims
    return -1, None
