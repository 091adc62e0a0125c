"""Sums of values over all steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor
from torch.fx import Node

from fourfold.compiler.analysis.parts import SLICE
from fourfold.compiler.analysis.views import PERMUTATIONS, RESHAPES
from fourfold.compiler.nest.ir.steps import IN_REGISTERS
from fourfold.scanning.batching import Values
from fourfold.scanning.fission import Fission, Phase

aten = torch.ops.aten
SUM = aten.sum.dim_IntList

# Operators of one tensor that commute with a sum over steps.
LINEAR = PERMUTATIONS | RESHAPES | {aten.neg.default, SLICE, aten.slice_backward.default, aten.select_backward.default}


def commutes(node: Node) -> bool:
    """Whether its total can be computed from its operand's."""
    return node.target is SUM or (node.target in LINEAR and not node.kwargs)


def base_of(node: Node, fission: Fission) -> Node:
    """The value from whose total operators after the loop that commute with the sum compute this node's total."""
    while commutes(node) and fission.place.get(node) is Phase.BEHIND:
        node = node.args[0]
    return node


def summed_in_loop(totals: Collection[Node], others: Collection[Node], fission: Fission) -> list[Node]:
    """The values that the loop adds up from step to step: those that it computes and of which only totals are needed.
    As a series they would have the size of all steps. others: the other results."""
    found = []
    for base in dict.fromkeys(base_of(total, fission) for total in totals):
        value = base.meta.get("val")
        if fission.place.get(base) is not Phase.INSIDE or str(value.dtype).removeprefix("torch.") not in IN_REGISTERS:
            continue
        if only_summed(base, totals, others, fission):
            found.append(base)
    return found


def only_summed(node: Node, totals: Collection[Node], others: Collection[Node], fission: Fission) -> bool:
    """Whether operators after the loop read a value only for totals."""
    if node in others:
        return False
    behind = [user for user in node.users if fission.place.get(user) is Phase.BEHIND]
    return all(commutes(user) and only_summed(user, totals, others, fission) for user in behind)


class Totals:
    """Sums over all steps. value: a node's value, for all steps if is_batched. has_value: whether it has been computed
    already. summed: totals that the loop has computed."""

    def __init__(
        self,
        value: Values,
        is_batched: Callable[[Node], bool],
        has_value: Callable[[Node], bool],
        summed: Mapping[Node, Tensor],
        fission: Fission,
        steps: int,
    ):
        self.value, self.is_batched, self.has_value, self.steps = value, is_batched, has_value, steps
        self.summed, self.fission = summed, fission

    def total(self, node: Node) -> Tensor:
        if node in self.summed:
            return self.summed[node]
        if not self.is_batched(node):
            return self.value(node) * self.steps
        if not self.has_value(node) and node.op == "call_function":
            found = self.linear(node)
            if found is not None:
                return found
        return self.value(node).sum(0).to(node.meta["val"].dtype)

    def linear(self, node: Node) -> Tensor | None:
        """The total from the totals of the operands, or by one larger product; None if the operator has no rule."""
        target, args = node.target, node.args
        if target in LINEAR and not node.kwargs:
            return target(self.total(args[0]), *torch.fx.map_arg(args[1:], self.value))
        if target is SUM and base_of(args[0], self.fission) in self.summed:
            return SUM(self.total(args[0]), *args[1:], **node.kwargs)
        if target is SUM and args[1]:
            dims = [dim % args[0].meta["val"].dim() + 1 for dim in args[1]]
            keeps = len(args) > 2 and args[2]
            total = SUM(self.value(args[0]), [0, *dims], keeps, **node.kwargs)
            return total.squeeze(0) if keeps else total
        if target is aten.mm.default:
            return self.product(*args)
        return None

    def product(self, x: Node, y: Node) -> Tensor:
        if not self.is_batched(y):
            return aten.mm.default(self.total(x), self.value(y))
        if not self.is_batched(x):
            return aten.mm.default(self.value(x), self.total(y))
        a, b = self.value(x), self.value(y)
        rows, columns = a.shape[1], b.shape[2]
        every = a.shape[0] * a.shape[2]
        return aten.mm.default(a.permute(1, 0, 2).reshape(rows, every), b.reshape(every, columns))
