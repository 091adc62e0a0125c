"""One of torch's control flow operators as one node of a graph, with compiled bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Function = Callable[..., Sequence[object]]


@dataclass(eq=False, repr=False)
class Body:
    """A branch, a step or a condition. compiled: its graph (``compiled.Compiled``). function: what runs it, with a list
    of its inputs. is_single: whether it returns one value instead of a tuple."""

    compiled: object
    function: Callable[[list[object]], Sequence[object]]
    is_single: bool

    def __call__(self, *given: object) -> object:
        results = self.function(list(given))
        return results[0] if self.is_single else results


def cond(condition: object, yes: Function, no: Function, operands: Sequence[object]) -> Sequence[object]:
    return (yes if condition else no)(*operands)


def while_loop(
    condition: Function, step: Function, carries: Sequence[object], others: Sequence[object], *rest: object
) -> Sequence[object]:
    first = carries
    while condition(*carries, *others):
        carries = step(*carries, *others)
    # A graph's results are tensors of their own.
    return [each.clone() if isinstance(each, Tensor) else each for each in carries] if carries is first else carries


def while_loop_stack_output(
    condition: Function, step: Function, carries: Sequence[object], others: Sequence[object], *rest: object
) -> Sequence[object]:
    """The states after each step, which a gradient reads. torch's gradient always has a step."""
    rows = []
    while condition(*carries, *others):
        carries = step(*carries, *others)
        rows.append(carries)
    if not rows:
        raise ValueError(
            "while_loop: expected at least one step where a gradient is wanted, since torch's would be that of one "
            "step; call it under torch.no_grad(), or choose with torch.cond whether to loop"
        )
    return list(map(torch.stack, zip(*rows, strict=True)))


def scan(
    step: Function,
    carries: Sequence[object],
    xs: Sequence[Tensor],
    others: Sequence[object],
    is_reverse: bool = False,
) -> Sequence[object]:
    count, rows = len(carries), []
    for t in range(len(xs[0]) - 1, -1, -1) if is_reverse else range(len(xs[0])):
        results = step(*carries, *(x[t] for x in xs), *others)
        carries = results[:count]
        rows.append(results[count:])
    if is_reverse:
        rows.reverse()
    return [*carries, *map(stacked, zip(*rows, strict=True))]


def map_impl(step: Function, xs: Sequence[Tensor], others: Sequence[object]) -> Sequence[object]:
    return scan(step, (), xs, others)


def stacked(rows: Sequence[Tensor | None]) -> Tensor | None:
    return None if rows[0] is None else torch.stack(rows)


RUN: dict[object, Callable[..., Sequence[object]]] = {
    getattr(torch.ops.higher_order, each.__name__): each
    for each in (cond, while_loop, while_loop_stack_output, scan, map_impl)
    if hasattr(torch.ops.higher_order, each.__name__)
}


@dataclass(eq=False, repr=False)
class ControlFlow:
    """The target of a node that is called with the operator's tensors and numbers, without gradients.

    operator: one of ``RUN``. bodies: in the order of its arguments. leaves, structure: its arguments, with bodies; of
    those at ``places`` the node is called with the values. native: this object as C++ calls it, a ``fourfold.Graph``;
    None without the module for this torch."""

    operator: torch._ops.HigherOrderOperator
    bodies: Sequence[Body]
    leaves: Sequence[object]
    structure: pytree.TreeSpec
    places: Sequence[int]
    native: object = None

    @property
    def __name__(self) -> str:
        return str(self.operator)

    def __call__(self, *given: object) -> Sequence[object]:
        leaves = list(self.leaves)
        for place, value in zip(self.places, given, strict=True):
            leaves[place] = value
        return tuple(RUN[self.operator](*pytree.tree_unflatten(leaves, self.structure)))

    def boxed(self, given: list[object]) -> Sequence[object]:
        return self(*given)
