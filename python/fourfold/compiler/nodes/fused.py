"""A fusion group as one node of a graph, which calls a program."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from fourfold.compiler.analysis.iteration_space import IterationSpace, broadcast
from fourfold.compiler.analysis.parts import SELECT, SLICE, piece_of
from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import constant_of, is_tensor, refuse
from fourfold.compiler.analysis.views import RESHAPES, VIEWS, memory_order, shape_of, unviewed_part
from fourfold.compiler.ir.values import Dims, Starts
from fourfold.compiler.pipeline import fallback

LONGEST_PROFILED_NAME = 60
LONGEST_NAME = 60  # in a program's text, as cpp/program/lines.h reads it
COPIED_META = ("val", "stack_trace", "source_fn_stack")
UNKNOWN = object()  # a symbolic size that the subgraph can't compute
STARTS = "starts"  # in an input's meta, as in ir.values.Input
Place = tuple[Node, Dims, Starts]  # how a tensor is read: the dimensions, and where parts of these begin


class NotExtracted(Exception):
    """The group can't become a subgraph; ``str()`` gives the reason."""


@dataclass(eq=False, repr=False)
class Fused:
    """The target of a fused node. graph: the group's operators, as a graph of its inputs; running it is the fallback.
    space: their iteration space, until lowering; ``space.dims`` has each node's dimensions in it."""

    space: IterationSpace | None
    graph: Graph = field(default_factory=Graph)
    text: str = ""  # the program's text, written by the lower pass
    call: Callable[..., object] | None = None  # the program, loaded by the library
    __name__: str = "fused"

    @property
    def inputs(self) -> list[Node]:
        return self.graph.find_nodes(op="placeholder")

    @property
    def outputs(self) -> list[Node]:
        return list(self.graph.output_node().args[0])

    @property
    def members(self) -> list[Node]:
        """The operators that the program computes, without views, constants and sizes."""
        return [node for node in self.graph.nodes if "member" in node.meta]

    @property
    def operator(self) -> object:
        """The first operator, which identifies the group in failure reports."""
        return self.members[0].target

    @property
    def profiled_name(self) -> str:
        """The operators in order, as many as fit."""
        targets = [node.target for node in self.members if node.target is not operator.getitem]
        name = "fourfold"
        for word in dict.fromkeys(target._schema.name.split("::")[1] for target in targets):
            if len(name) + len(word) > LONGEST_PROFILED_NAME:
                return name + "_etc"
            name += f"_{word}"
        return name

    def named(self, text: str) -> str:
        """The program's text, or an error of it, with the graph's names of its inputs instead of x0, x1, …"""
        names = {f"x{k}": displayed(own.name, k) for k, own in enumerate(self.inputs)}
        return re.sub(r"\bx\d+\b", lambda word: names.get(word[0], word[0]), text)

    def __call__(self, *given: object) -> object:
        try:
            return self.call(*given)
        except Exception as error:
            return self.run_operators(error, *given)

    def run_operators(self, error: Exception, *given: object) -> object:
        """The fallback: runs torch's operators one by one."""
        if not any(map(fallback.is_traced, given)):
            error.args = (self.named(str(error)),)
            fallback.report(self.operator, error)
        known: dict[Node, object] = dict(zip(self.inputs, given, strict=True))
        with torch.no_grad():
            for node in self.graph.nodes:
                if node.op == "call_function":
                    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
                    known[node] = node.target(*args, **kwargs)
        results = tuple(known[node] for node in self.outputs)
        return results[0] if len(results) == 1 else results


def displayed(name: str, input: int) -> str:
    """A name that a program's text may have and that none of its values has."""
    short = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 10]}_{input}"
    return f"{short}_" if re.fullmatch(r"v\d+_*", short) else short


class Extraction:
    """Writes a group's subgraph, or extends that of a fused node. known: maps an outer node, and how it is read, to its
    node in the subgraph."""

    def __init__(self, space: IterationSpace, fused: Fused | None = None, inputs: Sequence[Node] = ()):
        self.space = space
        self.fused = fused or Fused(IterationSpace(list(space.sizes), space.columns))
        self.graph = self.fused.graph
        self.inputs = list(inputs)
        pairs = zip(inputs, self.fused.inputs, strict=True)
        self.known: dict[Place, Node] = {(node, space.dims[own], own.meta[STARTS]): own for node, own in pairs}
        self.sizes = Sizes(own for own in self.known.values() if is_tensor(own.meta["val"]))
        self.members: dict[Node, Node] = {}  # members, and views of them, with their copies

    def extract(self, members: Sequence[Node], outputs: Sequence[Node]) -> tuple[Fused, list[Node]]:
        """Returns the fused node's target and arguments. Raises NotExtracted."""
        self.graph.output(())
        for node in members:  # every input before the nodes that read its sizes
            for operand in (*node.args, *node.kwargs.values()):
                if isinstance(operand, Node) and operand not in self.space.dims:
                    self.find_input(operand, self.space.whole(node))
        for node in members:
            self.add_member(node)
        self.graph.output_node().args = (tuple(self.members[node] for node in outputs),)
        return self.fused, self.inputs

    def find_input(self, node: Node, whole: Dims) -> None:
        if not is_tensor(node.meta["val"]):
            self.add_input(node, ())
        elif constant_of(node) is None:
            self.read(node, broadcast(whole, shape_of(node)))

    def read(self, node: Node, dims: Dims) -> None:
        """Makes a tensor an input; for a view that is index arithmetic, or a part of a tensor, its base."""
        place: Place = (node, dims, ())
        while place not in self.known and (below := self.below(place)) is not None:
            place = below
        self.add_input(*place)

    def below(self, place: Place) -> Place | None:
        """How the base of a view, or the tensor that a node is a part of, is read; None for any other node."""
        node, dims, starts = place
        if node.op != "call_function":
            return None
        if node.target in VIEWS:
            found = unviewed_part(node, dims, starts, self.space.sizes)
            return found and (node.args[0], *found)
        piece = piece_of(node)
        if piece is None:
            return None
        base, dim, places = piece
        if len(shape_of(node)) < len(shape_of(base)):
            dims = (*dims[:dim], (), *dims[dim:])
            starts = (*starts[:dim], None, *starts[dim:]) if starts else ()
        elif len(dims[dim]) > 1:  # several axes run along the part
            return None
        if len(places) == shape_of(base)[dim]:
            return base, dims, starts
        given = list(starts or (None,) * len(dims))
        given[dim] = places.start + (given[dim] or 0)
        return base, dims, tuple(given)

    def add_input(self, node: Node, dims: Dims, starts: Starts = ()) -> None:
        if (node, dims, starts) not in self.known:
            with self.graph.inserting_before(self.first):
                own = self.graph.placeholder(node.name)
                own.target = own.name  # the graph makes node names unique, but not the names of arguments
            own.meta = {"val": node.meta["val"], STARTS: starts}
            if is_tensor(node.meta["val"]):
                self.sizes.add(own)
            self.fused.space.dims[own] = dims
            self.known[node, dims, starts] = own
            self.inputs.append(node)

    @functools.cached_property
    def first(self) -> Node:
        """The node before which the next input is inserted."""
        return next(own for own in self.graph.nodes if own.op != "placeholder")

    def add_member(self, node: Node) -> None:
        copy, space = self.within(node), self.fused.space
        copy.meta["member"] = True
        for known, own in ((self.space.results, space.results), (self.space.reduced, space.reduced)):
            if node in known:
                own[copy] = known[node]

    def within(self, node: Node) -> Node:
        """The copy of a member or of its view."""
        if node not in self.members:
            whole = self.space.whole(node)
            self.members[node] = self.copied(node, lambda operand: self.operand(operand, whole))
            self.fused.space.dims[self.members[node]] = self.space.dims[node]
        return self.members[node]

    def operand(self, node: Node, whole: Dims) -> object:
        """The argument in the subgraph for a node that a user reads with these dimensions."""
        if node in self.space.dims:
            return self.within(node)
        if not is_tensor(node.meta["val"]):
            return self.number(node)
        if constant_of(node) is not None:
            return self.constant(node)
        return self.outside(node, broadcast(whole, shape_of(node)))

    def constant(self, node: Node) -> Node:
        fake = node.meta["val"]
        sizes = [size if isinstance(size, int) else self.size(size) for size in fake.shape]
        return self.write(node, torch.ops.aten.full.default, (sizes, constant_of(node)), {"dtype": fake.dtype})

    def outside(self, node: Node, dims: Dims, starts: Starts = ()) -> object:
        """The node in the subgraph for a tensor computed outside: an input, or a view or a part of one."""
        if not is_tensor(node.meta["val"]):
            return self.number(node)
        place = node, dims, starts
        if place not in self.known:
            below = self.below(place)
            if node.target in VIEWS:
                copy = self.copied(node, lambda operand: self.outside(operand, *below[1:]))
            else:
                base, dim, places = piece_of(node)
                is_selected = len(shape_of(node)) < len(shape_of(base))
                target, where = (SELECT, (places.start,)) if is_selected else (SLICE, (places.start, places.stop))
                copy = self.write(node, target, (self.outside(*below), dim, *where), {})
            self.known[place] = copy
            self.fused.space.dims[copy] = dims
        return self.known[place]

    def copied(self, node: Node, operand: Callable[[Node], object]) -> Node:
        return self.write(node, node.target, *torch.fx.map_arg((node.args, node.kwargs), operand))

    def write(self, node: Node, target: object, args: tuple, kwargs: dict[str, object]) -> Node:
        """Writes the copy of a node. One size of a reshape may be unknown in the subgraph; torch infers it."""
        unknown = sum(each is UNKNOWN for each in flat((args, kwargs)))
        if unknown > (target in RESHAPES):
            raise NotExtracted("a size that no input of its group has")
        args = torch.fx.node.map_aggregate(args, lambda each: -1 if each is UNKNOWN else each)
        with self.graph.inserting_before(self.graph.output_node()):
            copy = self.graph.call_function(target, args, kwargs)
        copy.meta = {key: node.meta[key] for key in COPIED_META if key in node.meta}
        return copy

    def number(self, node: Node) -> object:
        """A number that is an input, or an input's size."""
        place = node, (), ()
        return self.known[place] if place in self.known else self.size(node.meta["val"])

    def size(self, wanted: object) -> object:
        """A node that reads this size from an input; UNKNOWN if no input has it."""
        found = self.sizes.find(wanted) if isinstance(wanted, torch.SymInt) else None
        if found is None:
            return UNKNOWN
        with self.graph.inserting_before(self.graph.output_node()):
            copy = self.graph.call_function(torch.ops.aten.sym_size.int, found)
        copy.meta = {"val": wanted}
        return copy


def flat(arguments: object) -> list[object]:
    found: list[object] = []
    torch.fx.node.map_aggregate(arguments, found.append)
    return found


def call(graph: Graph, fused: Fused, inputs: Sequence[Node]) -> list[Node]:
    """Writes a fused node at the graph's insertion point; returns the nodes of its results."""
    return items_of(graph.call_function(fused, tuple(inputs)), [None] * len(fused.outputs))


def items_of(node: Node, known: Sequence[Node | None]) -> list[Node]:
    """The nodes of a fused node's results. known: for each result its present node or None; results whose node is not
    an item of the fused node get a new one."""
    values = [output.meta["val"] for output in node.target.outputs]
    if len(values) == 1:
        node.meta["val"] = values[0]
        return [node]
    node.meta["val"] = tuple(values)
    items = []
    for k, (item, value) in enumerate(zip(known, values, strict=True)):
        if item is None or not is_item(item, node):
            with node.graph.inserting_after(node):
                item = node.graph.call_function(operator.getitem, (node, k))
            item.meta["val"] = value
        elif item.args[1] != k:
            item.args = (node, k)
        items.append(item)
    return items


def is_item(item: Node, node: Node) -> bool:
    return item.target is operator.getitem and item.args[0] is node


def results_of(node: Node) -> list[Node | None]:
    """For each result of a fused node its node, or None if it is unused."""
    count = len(node.target.outputs)
    found: list[Node | None] = [None] * count
    for item in node.users if count > 1 else ():
        found[item.args[1]] = item
    return [node] if count == 1 else found


def replace(node: Node, inputs: Sequence[Node], results: Sequence[tuple[Node, Node]]) -> list[Node]:
    """Makes these the results of a fused node: each is a node of the subgraph and the outer node that it replaces.
    Removes the operators and inputs that no result needs. Returns the nodes of the results."""
    fused, graph = node.target, node.graph
    fused.graph.output_node().args = (tuple(own for own, _ in results),)
    given = dict(zip(fused.inputs, inputs, strict=True))
    for own in reversed(fused.graph.nodes):
        if own.op == "call_function" and not own.users:
            fused.graph.erase_node(own)
    for own in unread(fused):
        fused.graph.erase_node(own)
        del given[own], fused.space.dims[own]
    node.args = tuple(given.values())
    before = [outside for _, outside in results]
    items = items_of(node, before)
    kept = {node, *items}
    gone = {*before, *(user for user in node.users if is_item(user, node))} - kept
    for outside, item in zip(before, items, strict=True):
        if outside is not item:
            outside.replace_all_uses_with(item, delete_user_cb=lambda user: user not in kept)
    for outside in gone:
        graph.erase_node(outside)
    return items


def unread(fused: Fused) -> list[Node]:
    """The unused inputs, except those that alone provide the symbolic size of an axis."""
    space, inputs = fused.space, fused.inputs
    known = {dim for own in inputs if own.users for dim in whole_dims(own, space)}
    known |= {(axis,) for axis, size in enumerate(space.sizes) if isinstance(size, int)}
    return [
        own for own in inputs if not own.users and all(len(dim) != 1 or dim in known for dim in whole_dims(own, space))
    ]


def whole_dims(own: Node, space: IterationSpace) -> list[tuple[int, ...]]:
    """The axes of each of an input's dimensions that is read whole."""
    dims = space.dims[own]
    starts = own.meta[STARTS] or (None,) * len(dims)
    return [dim for dim, start in zip(dims, starts, strict=True) if start is None]


def remove_unread(node: Node) -> None:
    """Removes unused results, and the operators and inputs that only they need."""
    fused = node.target
    pairs = zip(fused.outputs, results_of(node), strict=True)
    results = [(own, outside) for own, outside in pairs if outside is not None and outside.users]
    if not results:
        for item in (*node.users, node):
            node.graph.erase_node(item)
    elif len(results) < len(fused.outputs):
        replace(node, node.args, results)


def inline(node: Node, reason: str) -> None:
    """Puts a fused node's operators back into the graph and records the reason."""
    fused, graph = node.target, node.graph
    known: dict[Node, object] = dict(zip(fused.inputs, node.args, strict=True))
    with graph.inserting_before(node):
        for own in fused.graph.nodes:
            if own.op == "call_function":
                known[own] = graph.node_copy(own, known.__getitem__)
                if own.target is torch.ops.aten.full.default:
                    known[own] = placed(known[own])
                if known[own].meta.pop("member", False):
                    refuse(known[own], reason)
    for own, outside in zip(fused.outputs, results_of(node), strict=True):
        if outside is not None:
            outside.replace_all_uses_with(known[own])
            if outside is not node:
                graph.erase_node(outside)
    graph.erase_node(node)


def placed(constant: Node) -> Node:
    """A program's constant as torch needs it: on the tensors' device, and with the traced order of dimensions in
    memory, which full() doesn't have."""
    fake, graph = constant.meta["val"], constant.graph
    order, (sizes, number) = memory_order(fake), constant.args
    constant.args = ([sizes[d] for d in order], number)
    constant.kwargs = {**constant.kwargs, "device": fake.device}
    if order == sorted(order):
        return constant
    constant.meta = {**constant.meta, "val": fake.permute(order)}
    view = graph.call_function(torch.ops.aten.permute.default, (constant, [order.index(d) for d in range(len(order))]))
    view.meta = {"val": fake}
    return view


def fused_nodes(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.target, Fused)]
