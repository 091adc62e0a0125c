"""Finds writes of slices and rows into tensors of which nothing reads the old values afterwards.

Functionalization traces ``out[:, 1:-1, 0] = value`` as a copy of the rows of a slice, which is copied into a copy of
the slice, and that into a copy of the whole. As in eager mode, one copy into a view is enough."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.in_place import COPY, is_new, is_result, readers
from fourfold.compiler.analysis.parts import CONCATENATION
from fourfold.compiler.analysis.views import VIEWS
from fourfold.compiler.lowering.call import named

aten = torch.ops.aten
VIEW_OF = {aten.slice_scatter.default: aten.slice.Tensor, aten.select_scatter.default: aten.select.int}
ALIASES = {*VIEWS, *VIEW_OF.values()}
# Operators that write some places of a copy of their first operand, and whose form in place writes into the operand.
# cpp/model/permitted.cpp lists the same ones: files may call them in place.
SCATTERS = {
    getattr(getattr(aten, name), overload)
    for name in (
        *("index_add", "index_copy", "index_fill", "index_put", "masked_scatter"),
        *("scatter", "scatter_add", "scatter_reduce"),
    )
    for overload in getattr(aten, name).overloads()
    if "out" not in overload
}
Place = tuple[object, tuple[object, ...]]  # the operator of a view, and its arguments but the tensor


@dataclass(frozen=True)
class Write:
    """into: the tensor. places: its view, one within the other. within: the nodes that the write makes unnecessary.
    is_of_itself: whether the value may be another view of the tensor. operator: the node of an operator that is called
    in place on the view; None if the value is copied there."""

    into: Node
    places: tuple[Place, ...]
    value: Node
    within: tuple[Node, ...]
    is_of_itself: bool
    operator: Node | None = None


def writes(module: GraphModule) -> dict[Node, Write]:
    """The writes that need no copy of the whole tensor, by the node of the result, which has the tensor's memory."""
    position = {node: k for k, node in enumerate(module.graph.nodes)}
    inner: set[Node] = set()
    every: list[tuple[Node, Write]] = []
    for node in reversed(module.graph.nodes):
        if node.target in VIEW_OF and node not in inner:
            every.append((node, write_of(node)))
            inner.update(every[-1][1].within)
    found: dict[Node, Write] = {}
    for node, write in reversed(every):
        is_own = write.into in found or has_own_memory(write.into)
        if is_own and is_last(node, write, position) and reads_in_time(node, write):
            found[node] = write
    return found


def write_of(node: Node, operators: Container[object] = ()) -> Write:
    """operators: those that may be called in place on a view."""
    into, value = node.args[0], node.args[1]
    places, scatters, views = [place_of(node)], [node], []
    while value.target in VIEW_OF and list(value.users) == [scatters[-1]] and is_view(value.args[0], scatters[-1]):
        views.append(value.args[0])
        places.append(place_of(value))
        scatters.append(value)
        value = value.args[1]
    operator = None
    if value.target in operators and list(value.users) == [scatters[-1]] and is_view(value.args[0], scatters[-1]):
        operator = value
        views.append(value.args[0])
    within = scatters[1:] if operator is None else [*scatters[1:], operator]
    for view in reversed(views):  # the value may be or read some of them too
        if view is not value and all(user in within or user is node for user in view.users):
            within.append(view)
    return Write(into, tuple(places), value, tuple(within), into in memory_of(value), operator)


def place_of(node: Node) -> Place:
    given = named(node.target, node.args, node.kwargs)
    names = ("dim", "index") if node.target is aten.select_scatter.default else ("dim", "start", "end", "step")
    return VIEW_OF[node.target], tuple(given[name] for name in names)


def is_view(node: Node, scatter: Node) -> bool:
    """Whether it is the view into which this scatter writes."""
    if node.target is not VIEW_OF[scatter.target] or node.args[0] is not scatter.args[0]:
        return False
    given = named(node.target, node.args, node.kwargs)
    names = [argument.name for argument in node.target._schema.arguments[1:]]
    return tuple(given[name] for name in names) == place_of(scatter)[1]


def has_own_memory(node: Node) -> bool:
    if node.op != "call_function":
        return False
    return is_result(node) or isinstance(node.target, torch._ops.OpOverload) and is_new(node)


def is_last(node: Node, write: Write, position: dict[Node, int]) -> bool:
    """Whether nothing reads the tensor, or a view of it, after this write."""
    others = [user for user in readers(write.into) if user is not node and user not in write.within]
    if any(position[user] > position[node] for user in others):
        return False
    # What programs write into a concatenation or an input has its memory there.
    is_written = is_result(write.into) or write.into.target is CONCATENATION
    return not is_written or not any(user.target in (CONCATENATION, COPY) for user in others)


def reads_in_time(node: Node, write: Write) -> bool:
    """Whether nothing that may write into the memory of the value comes between the innermost scatter or operator, that
    reads it, and the outermost one, which reads it now."""
    scatters = {each for each in write.within if each.target in VIEW_OF or each is write.operator}
    previous = node.prev
    while scatters:
        if previous not in write.within and previous.target not in ALIASES:
            return False
        scatters.discard(previous)
        previous = previous.prev
    return True


def memory_of(node: Node) -> set[Node]:
    """The tensors of which a node may be a view, and itself."""
    found, pending = {node}, [node]
    while pending:
        each = pending.pop()
        if each.op == "call_function" and not is_result(each) and not is_new(each):
            pending += [operand for operand in each.all_input_nodes if operand not in found]
            found.update(pending)
    return found
