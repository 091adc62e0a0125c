"""Splits the graph of one step into what runs for all steps before the loop, in the loop, and for all steps after
it."""

from __future__ import annotations

import collections
import enum
import math
import operator
from collections.abc import Collection, Mapping, Sequence

import torch
from torch.fx import Graph, Node

from fourfold.compiler.analysis.support import is_computed, is_tensor
from fourfold.compiler.analysis.views import PERMUTATIONS, hint, keys
from fourfold.compiler.lowering import POINTWISE
from fourfold.compiler.nest.ir.layout import LONGEST_REDUCED_ROW

aten = torch.ops.aten
REDUCTIONS = (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default)
DTYPES = (torch.float32, torch.float64)  # dtypes whose sums of products may be rounded in another order
SUMS_OF_PRODUCTS = (aten.addmm.default, aten.baddbmm.default, aten.addmv.default, aten.mm.default, aten.bmm.default)


class Kind(enum.IntEnum):
    """What a value depends on."""

    INVARIANT = 0  # the same in every step
    SERIES = 1  # a step's own, without the state
    CARRIED = 2  # the state


class Phase(enum.Enum):
    BEFORE = "before"
    INSIDE = "inside"
    BEHIND = "behind"


class Fission:
    """kinds: of the graph's inputs. states: the nodes of the new states; each: nodes whose values of every step are
    needed. forced: operators that run in the loop in any case.

    ``kind`` has the kind of every node, ``place`` the place of every operator."""

    def __init__(
        self,
        graph: Graph,
        kinds: Mapping[Node, Kind],
        states: Sequence[Node],
        each: Sequence[Node] = (),
        forced: Collection[Node] = (),
    ):
        self.kind = kinds_of(graph, kinds, forced)
        drawn = [node for node in graph.nodes if self.kind.get(node) is Kind.CARRIED and draws(node)]  # in order
        feeding = ancestors([*states, *forced, *drawn])
        self.rows = self.most_reduced(feeding, ancestors([*states, *each]))
        self.place: dict[Node, Phase] = {}
        for node in graph.nodes:
            if node.op == "call_function":
                self.place[node] = self.first_place(node, feeding)
        self.sink(graph, feeding)
        self.sink_products(graph)

    def first_place(self, node: Node, feeding: set[Node]) -> Phase:
        if self.kind[node] is not Kind.CARRIED:
            return Phase.BEFORE
        if node in feeding:
            return Phase.INSIDE
        if node.target is operator.getitem:
            return self.place.get(node.args[0], Phase.BEHIND)
        if node.target in PERMUTATIONS and len(node.users) == 1:  # sink() moves it back if the loop doesn't read it
            return self.place.get(node.args[0], Phase.INSIDE)
        return Phase.INSIDE if self.is_near(node) or self.is_short_reduction(node) else Phase.BEHIND

    def is_near(self, node: Node) -> bool:
        """Whether the loop computes it although no state needs it: it is cheap, and not larger than its operands."""
        operands = [each for each in node.all_input_nodes if self.kind[each] is Kind.CARRIED]
        if any(self.place.get(each) is Phase.BEHIND for each in operands) or not is_computed(node, POINTWISE):
            return False
        return elements(node) <= max(map(elements, operands))

    def is_short_reduction(self, node: Node) -> bool:
        """Whether it reduces short rows that the loop computes: a nest has them in registers; after the loop they would
        be read from memory."""
        if self.rows is None or short_rows(node) != self.rows:
            return False
        return node.args[0].op == "placeholder" or self.place.get(node.args[0]) is Phase.INSIDE

    def most_reduced(self, feeding: set[Node], needed: set[Node]) -> tuple | None:
        """The rows that reductions in the loop have, since a nest has rows along one axis only: those that states need,
        or else the most frequent ones. None for a loop with products. needed: what states and series need; reductions
        that only sums over the steps need are applied to these sums."""
        carried = [node for node in needed if self.kind.get(node) is Kind.CARRIED]
        if any(node.target in SUMS_OF_PRODUCTS and node in feeding for node in carried):
            return None
        found = {node: rows for node in carried if (rows := short_rows(node)) is not None}
        inner = {node: rows for node, rows in found.items() if node in feeding}
        counts = collections.Counter((inner or found).values())
        return max(sorted(counts), key=lambda rows: counts[rows]) if counts else None

    def sink(self, graph: Graph, feeding: set[Node]) -> None:
        """Moves elementwise operators into the loop, or after it, if all of their users are there. Views stay: they
        cost nothing where they are computed once. Operands of products stay too: products are not part of an
        elementwise loop."""
        for node in reversed(graph.nodes):
            is_inside = self.place.get(node) is Phase.INSIDE
            if is_inside and node.target in PERMUTATIONS and node not in feeding and not self.is_read_inside(node):
                self.place[node] = Phase.BEHIND
            if self.place.get(node) is not Phase.BEFORE or self.kind[node] is not Kind.SERIES:
                continue
            users = {self.place.get(user) for user in node.users}
            multiplies = any(user.target in SUMS_OF_PRODUCTS for user in node.users)
            if len(users) == 1 and users <= {Phase.INSIDE} and is_computed(node, POINTWISE) and not multiplies:
                self.place[node] = Phase.INSIDE

    def sink_products(self, graph: Graph) -> None:
        """Moves products of a step's own values that only the loop reads into a loop that has products anyway: it
        computes them for several steps at once, and their results stay in the cache."""
        if not any(place is Phase.INSIDE and node.target in SUMS_OF_PRODUCTS for node, place in self.place.items()):
            return
        for node in graph.nodes:
            if self.place.get(node) is Phase.BEFORE and self.can_run_ahead(node):
                read = [node, *views_of(node)]
                users = [user for each in read for user in each.users if user not in read]
                if users and all(self.place.get(user) is Phase.INSIDE for user in users):
                    self.place |= dict.fromkeys(read, Phase.INSIDE)

    def can_run_ahead(self, node: Node) -> bool:
        """Whether it multiplies a series by an invariant matrix, and adds nothing or an invariant vector."""
        value = node.meta.get("val")
        if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs or value.dtype not in DTYPES:
            return False
        if value.device.type != "cpu":  # the loop runs no products on other devices
            return False
        *start, a, b = node.args
        is_fixed = all(self.kind[each] is Kind.INVARIANT for each in (*start, b))
        is_series = self.kind[a] is Kind.SERIES and self.place.get(a, Phase.BEFORE) is Phase.BEFORE
        return is_fixed and is_series and all(each.meta["val"].dim() == 1 for each in start)

    def is_read_inside(self, node: Node) -> bool:
        return any(self.place.get(user) is Phase.INSIDE for user in node.users)


def kinds_of(graph: Graph, kinds: Mapping[Node, Kind], forced: Collection[Node] = ()) -> dict[Node, Kind]:
    """The kind of every node, from those of the inputs. forced: operators that count as carried."""
    found: dict[Node, Kind] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            found[node] = kinds[node]
        elif node.op == "get_attr":
            found[node] = Kind.INVARIANT
        elif node.op == "call_function":
            least = Kind.SERIES if draws(node) else Kind.INVARIANT
            found[node] = max((found[each] for each in node.all_input_nodes), default=least)
            found[node] = max(found[node], least)
            if not is_tensor(node.meta.get("val")) and not isinstance(node.meta.get("val"), (tuple, list)):
                found[node] = Kind.INVARIANT  # a size
            if node in forced:
                found[node] = Kind.CARRIED
    return found


def short_rows(node: Node) -> tuple | None:
    """The shape and dimensions of a reduction's rows, if a nest can keep these in registers."""
    if node.target not in REDUCTIONS or len(node.args) < 2 or not node.args[1]:
        return None
    value = node.args[0].meta["val"]
    dims = tuple(sorted(dim % value.dim() for dim in node.args[1]))
    sizes = [value.shape[dim] for dim in dims]
    is_one_axis = dims == tuple(range(dims[0], dims[-1] + 1))
    is_floating = value.is_floating_point() and node.meta["val"].dtype == value.dtype
    if not is_floating or not is_one_axis:
        return None
    return (keys(value.shape), dims) if math.prod(map(hint, sizes)) <= LONGEST_REDUCED_ROW else None


def views_of(node: Node) -> list[Node]:
    """All views of it, and views of these."""
    found: list[Node] = []
    for user in node.users:
        if is_view(user):
            found += [user, *views_of(user)]
    return found


def is_view(node: Node) -> bool:
    if node.target in (operator.getitem, aten.unsafe_split.Tensor):
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not schema.is_mutable and any(each.alias_info for each in schema.returns)


def draws(node: Node) -> bool:
    """Whether it draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def ancestors(nodes: Sequence[Node]) -> set[Node]:
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def elements(node: Node) -> int:
    value = node.meta.get("val")
    return math.prod(map(hint, value.shape)) if is_tensor(value) else 0
