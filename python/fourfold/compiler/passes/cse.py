"""Eliminates common subexpressions: of equal calls one remains, so that one group computes what others also read.

The IR shares equal operations of one program; this pass makes them one node before groups are formed. The backward
of a norm, for instance, normalizes its input, and rematerialization does so again for the activation after it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_flatten

from fourfold.compiler.analysis.in_place import is_returned
from fourfold.compiler.analysis.parts import SELECT, SLICE
from fourfold.compiler.analysis.support import is_computed, is_tensor
from fourfold.compiler.analysis.views import RESHAPES, VIEWS
from fourfold.compiler.lowering import CONSTANT, POINTWISE, ROWS
from fourfold.compiler.nodes.recorder import layout
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.pipeline.fallback import visiting

SHARED = (POINTWISE, ROWS, VIEWS, CONSTANT, (SLICE, SELECT))


def cse(module: GraphModule) -> GraphModule:
    seen: dict[object, Node] = {}
    layouts = functools.cache(layout_of)
    for node in visiting(module):
        if node.target in RESHAPES:
            replace(node, reshaped_back(node, layouts))
        is_item = node.target is operator.getitem and is_computed(node.args[0], ROWS)
        if not is_item and not is_computed(node, *SHARED):
            continue
        replace(node, seen.setdefault(key_of(node), node))
    eliminate_dead_code(module.graph)
    return module


def replace(node: Node, other: Node) -> None:
    """Replaces a node in all users except those that return it: two results of the graph stay two tensors."""
    if other is not node:
        node.replace_all_uses_with(other, delete_user_cb=lambda user: not is_returned(user))


def reshaped_back(node: Node, layouts: Callable[[Node], object]) -> Node:
    """The start of a chain of reshapes, if the chain ends with the same shape and layout."""
    found = base = node
    while base.target in RESHAPES:
        base = base.args[0]
        if layouts(base) == layouts(node):
            found = base
    return found


def layout_of(node: Node) -> object:
    value = node.meta.get("val")
    return layout(value) if is_tensor(value) else node


def key_of(node: Node) -> object:
    """Equal for calls of one operator with the same arguments. 1, 1.0 and True are different arguments."""
    leaves, structure = tree_flatten((node.args, dict(sorted(node.kwargs.items()))))
    return node.target, tuple((type(leaf), repr(leaf)) for leaf in leaves), str(structure)
