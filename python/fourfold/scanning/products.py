"""Rewrites a step's products, so that the loop runs only those that multiply the state, as one operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fourfold.compiler.analysis.parts import CONCATENATION, SLICE
from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import is_tensor
from fourfold.compiler.analysis.views import have_same_shape, hint, keys
from fourfold.compiler.lowering.call import named
from fourfold.compiler.nest.ir.layout import LONGEST_REDUCED_ROW
from fourfold.compiler.nodes.recorder import Recorder, numbers_of, rewritten
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.scanning.fission import DTYPES, Kind, ancestors, kinds_of

aten = torch.ops.aten
ADD, MM, ADDMM = aten.add.Tensor, aten.mm.default, aten.addmm.default
VIEWING = (aten.expand.default, aten.view.default, aten._unsafe_view.default)


def factor(graph: Graph, kinds: Mapping[Node, Kind], states: Sequence[Node | None]) -> None:
    """Rewrites ``cat(h, x) @ W`` as a sum of products; a sum with products as one operator for each, the state's last;
    slices of a product that not all states need as products with slices; and products of vectors, or of a vector and a
    state that is a matrix, as elementwise operators and a sum, which a nest may have.

    kinds: of the graph's inputs. The results stay those of the graph's output node; some are replaced."""
    for rewrite in (divide, add_up, narrow, spread):
        found = kinds_of(graph, kinds)
        rewrite(graph, found, ancestors([node for node in states if node is not None]))
        eliminate_dead_code(graph)
        states = list(graph.output_node().args[0])[: len(states)]


def divide(graph: Graph, kinds: dict[Node, Kind], feeding: set[Node]) -> None:
    """Multiplies a concatenation of the state and of values that don't need it part by part."""
    for node in list(graph.nodes):
        if node.target not in (MM, ADDMM) or not is_product(node):
            continue
        joined, weights = node.args[-2:]
        if joined.target is not CONCATENATION or kinds[joined] is not Kind.CARRIED:
            continue
        parts = joined.args[0]
        if all(kinds[part] is Kind.CARRIED for part in parts):
            continue
        dim = joined.args[1] if len(joined.args) > 1 else 0
        values = [part.meta["val"] for part in parts]
        dtype = joined.meta["val"].dtype
        if any(each.dim() != 2 or each.dtype != dtype for each in values):  # such as one of shape (0,)
            continue
        lengths = [each.shape[dim] for each in values]
        if dim % 2 != 1:
            continue
        starts = [sum(lengths[:k]) for k in range(len(parts))]
        order = sorted(range(len(parts)), key=lambda k: kinds[parts[k]])
        start = node.args[0] if node.target is ADDMM else None

        def sum_of_parts(
            record: Recorder,
            parts: Sequence[Node] = parts,
            weights: Node = weights,
            places: Sequence[tuple[int, int, int]] = [(k, starts[k], starts[k] + lengths[k]) for k in order],
            start: Node | None = start,
        ) -> object:
            total = None if start is None else record.value(start)
            for part in parts:
                record.numbers.add(part)  # the places depend on its sizes
            for k, begin, end in places:
                product = MM(record.value(parts[k]), SLICE(record.value(weights), 0, begin, end))
                total = product if total is None else ADD(total, product)
            return total

        know(rewritten(node, sum_of_parts, numbers_of(graph)), kinds)


def know(written: Sequence[Node] | None, kinds: dict[Node, Kind]) -> None:
    """Adds the kinds of new nodes, which later sums read."""
    for node in written or ():
        kinds[node] = max((kinds[each] for each in node.all_input_nodes), default=Kind.INVARIANT)


@dataclass(frozen=True)
class Term:
    """A term of a sum: a value, or the product of two."""

    factors: tuple[Node, ...]

    @property
    def is_product(self) -> bool:
        return len(self.factors) == 2

    def kind(self, kinds: Mapping[Node, Kind]) -> Kind:
        return max(kinds[each] for each in self.factors)


def add_up(graph: Graph, kinds: dict[Node, Kind], feeding: set[Node]) -> None:
    """Starts a sum that has products of the state with the terms that don't need the state."""
    for node in list(graph.nodes):
        if not is_sum(node) or any(is_sum(user) and len(node.users) == 1 for user in node.users):
            continue
        terms = terms_of(node, node)
        if not any(term.is_product and term.kind(kinds) is Kind.CARRIED for term in terms):
            continue
        dtype = node.meta["val"].dtype
        if any(factor.meta["val"].dtype != dtype for term in terms for factor in term.factors):
            continue

        def summed(record: Recorder, terms: Sequence[Term] = terms) -> object:
            total = None
            for term in sorted(terms, key=lambda term: (term.kind(kinds), term.is_product)):
                values = [record.value(each) for each in term.factors]
                if term.is_product:
                    total = MM(*values) if total is None else ADDMM(total, *values)
                else:
                    total = values[0] if total is None else ADD(total, values[0])
            return total

        know(rewritten(node, summed, numbers_of(graph)), kinds)


def is_sum(node: Node) -> bool:
    return (
        node.target is ADD
        and not node.kwargs
        and all(isinstance(each, Node) and is_tensor(each.meta.get("val")) for each in node.args)
        and node.meta["val"].dtype in DTYPES
    )


def terms_of(node: Node, whole: Node) -> list[Term]:
    """The terms of a value that is a sum, or a part of one, through sums and products without other users."""
    is_own = node is whole or (len(node.users) == 1 and have_same_shape(node, whole))
    if is_own and is_sum(node):
        return [term for each in node.args for term in terms_of(each, whole)]
    if is_own and node.target is MM and is_product(node):
        return [Term(node.args)]
    if is_own and node.target is ADDMM and is_product(node):
        return [*terms_of(node.args[0], whole), Term(node.args[1:])]
    return [Term((node,))]


def is_product(node: Node) -> bool:
    return not node.kwargs and node.meta["val"].dtype in DTYPES


def narrow(graph: Graph, kinds: dict[Node, Kind], feeding: set[Node]) -> None:
    """Computes the columns of a product that no state needs after the loop, or not at all."""
    for node in list(graph.nodes):
        if node.target is not MM or not is_product(node) or kinds[node] is not Kind.CARRIED:
            continue
        if not node.users or not all(map(takes_columns, node.users)):
            continue
        count, taken = width(node), sum(map(width, node.users))
        if taken > count or (taken == count and all(user in feeding for user in node.users)):
            continue
        a, b = node.args
        for user in list(node.users):
            with Recorder(user, numbers_of(graph)) as record:  # after the nodes of its bounds
                bounds = [record.value(each) if isinstance(each, Node) else each for each in user.args[2:4]]
                product = MM(record.value(a), SLICE(record.value(b), 1, *bounds))
            user.replace_all_uses_with(record.node(product))  # its users accept any layout of the rows


def takes_columns(user: Node) -> bool:
    """Whether it is a slice of adjacent columns."""
    given = named(user.target, user.args, user.kwargs) if user.target is SLICE else {}
    return bool(given) and given["dim"] in (1, -1) and given["step"] == 1 and not user.kwargs


def width(node: Node) -> int:
    """The columns of a matrix; for a symbolic size, those of the first call."""
    return hint(node.meta["val"].shape[1])


def spread(graph: Graph, kinds: dict[Node, Kind], feeding: set[Node]) -> None:
    """Replaces products of vectors, and of a vector and a state, by elementwise operators."""
    for node in list(graph.nodes):
        if node.target in (MM, aten.bmm.default, aten.mv.default) and node.meta["val"].dtype in DTYPES:
            product = elements_of_product(node, kinds, feeding)
            if product is not None:
                know(spread_one(node, product, numbers_of(graph)), kinds)
    drop_views(graph)


Product = Callable[[Tensor, Tensor], Tensor]


def elements_of_product(node: Node, kinds: Mapping[Node, Kind], feeding: set[Node]) -> Product | None:
    """The product as a function of its operands, if it multiplies vectors that a state needs, or a short vector and a
    state. Other products of vectors are one product for all steps: weights' gradients, in a batch of one."""
    left, right = node.args
    if node.target is aten.mv.default:
        is_state = kinds[left] is Kind.CARRIED and is_short(left.meta["val"].shape[1])
        return (lambda a, b: (a * b).sum(1)) if is_state else None
    (rows, length), columns = left.meta["val"].shape[-2:], right.meta["val"].shape[-1]
    if is_one(length) and node in feeding:
        return lambda a, b: a * b
    if not is_short(length):
        return None
    if kinds[right] is Kind.CARRIED and is_one(rows):
        return lambda a, b: (a.mT * b).sum(-2, keepdim=True)
    if kinds[left] is Kind.CARRIED and is_one(columns):
        return lambda a, b: (a * b.mT).sum(-1, keepdim=True)
    return None


def is_one(size: object) -> bool:
    return type(size) is int and size == 1


def is_short(size: int | torch.SymInt) -> bool:
    """Whether a nest can hold the size, judged by the first call for a symbolic one; longer ones run in stages."""
    return 0 < hint(size) <= LONGEST_REDUCED_ROW


def spread_one(node: Node, product: Product, inputs: Sizes) -> list[Node] | None:
    operands, shape = before_views(node), node.meta["val"].shape
    return rewritten(node, lambda record: product(*map(record.value, operands)).reshape(shape), inputs)


def drop_views(graph: Graph) -> None:
    """Removes views of views, and those without effect: an elementwise operator whose result is read through a view
    can't move into the loop."""
    for node in graph.nodes:
        if node.target not in VIEWING:
            continue
        while node.target is not aten.expand.default and node.args[0].target in VIEWING[1:]:
            node.update_arg(0, node.args[0].args[0])
        before, after = node.args[0].meta["val"], node.meta["val"]
        if have_same_shape(node.args[0], node) and keys(before.stride()) == keys(after.stride()):
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")


def before_views(node: Node) -> tuple[Node, ...]:
    """The operands before torch.matmul flattened their batches; otherwise views of the state would be read after the
    loop."""
    found = tuple(map(unflattened, node.args))
    leading = [keys(each.meta["val"].shape[:-2]) for each in found]
    return found if leading[0] == leading[-1] else node.args


def unflattened(node: Node) -> Node:
    while node.target in VIEWING:
        first = 0 if node.target is aten.expand.default else -2  # an expansion changes the batch
        sizes = [keys(each.meta["val"].shape[first:]) for each in (node, node.args[0])]
        if sizes[0] != sizes[1]:
            break
        node = node.args[0]
    return node
