"""Moves ``gather`` before elementwise operators: if only one element of each row is read, as by a loss or a policy
gradient, the operands are gathered and one element is computed, and nothing else is written to memory."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.support import REFUSAL, is_computed
from fourfold.compiler.analysis.views import VIEWS, is_one, same, shape_of
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.compiler.nodes.recorder import Recorder, numbers_of, rewritten
from fourfold.compiler.pipeline.fallback import visiting

aten = torch.ops.aten
GATHER = aten.gather.default
NLL_LOSS = aten.nll_loss_forward.default
NONE, MEAN = range(2)  # reductions, as torch numbers them; 2 is the sum
MOST_STEPS = 16
Rewrite = Callable[[Recorder], object]


def sink_gather(module: GraphModule) -> GraphModule:
    """Rewrites ``gather`` and ``nll_loss`` if their input is computed from one tensor that is in memory anyway."""
    inputs = numbers_of(module.graph)
    for node in visiting(module):
        rewrite = RULES[node.target](node) if node.target in RULES and REFUSAL not in node.meta else None
        if rewrite is not None:
            rewritten(node, rewrite, inputs)
    return module


def of_gather(node: Node) -> Rewrite | None:
    source, dim, index, *_ = node.args
    sizes = shape_of(source)
    dim = dim % max(len(sizes), 1)
    chosen = shape_of(index)
    one_of_each = len(chosen) == len(sizes) > 0 and all(
        is_one(got) if d == dim else same(got, size) for d, (got, size) in enumerate(zip(chosen, sizes, strict=True))
    )
    base = base_of(source, dim) if one_of_each and node.kwargs == {} else None

    def rewrite(record: Recorder) -> Tensor:
        picked = torch.gather(record.value(base), dim, record.value(index))  # raises for an index out of bounds
        return again(record, source, dim, {base: picked})

    return None if base is None else rewrite


def of_nll_loss(node: Node) -> Rewrite | None:
    """torch's operator picks from the base and checks the targets; ignored targets don't count."""
    source, target, weight, reduction, ignored = node.args
    base = base_of(source, 1) if weight is None and len(shape_of(source)) == 2 and not node.kwargs else None

    def rewrite(record: Recorder) -> tuple[Tensor, Tensor]:
        labels = record.value(target)
        picked = -NLL_LOSS(record.value(base), labels, None, NONE, ignored)[0]
        own = -again(record, source, 1, {base: picked.unsqueeze(1)}).squeeze(1)
        counted = labels != ignored
        loss = torch.where(counted, own, torch.zeros((), dtype=own.dtype))
        weights = torch.zeros((), dtype=own.dtype, device=own.device)
        if reduction != NONE:
            wide = torch.promote_types(own.dtype, torch.float32)
            count = counted.sum()
            loss = loss.sum(dtype=wide)
            if reduction == MEAN:  # also of more rows than a float16 can count
                loss = loss / count.to(wide)
            loss, weights = loss.to(own.dtype), count.to(own.dtype)
        return loss, weights

    return None if base is None else rewrite


RULES = {GATHER: of_gather, NLL_LOSS: of_nll_loss}


def base_of(source: Node, dim: int) -> Node | None:
    """The one floating-point tensor from which the source is computed elementwise and that varies along the dimension.
    None if there is not exactly one, or if the source is written to memory itself."""
    if source.target not in POINTWISE or any(user.op == "output" for user in source.users):
        return None
    bases: set[Node] = set()
    pending = [source]
    seen: set[Node] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if not is_computed(node, POINTWISE):
            bases.add(node)
        else:
            pending.extend(operand for operand in node.all_input_nodes if varies(operand, source, dim))
        if len(seen) > MOST_STEPS or len(bases) > 1:
            return None
    base = next(iter(bases), None)
    has_shape = base is not None and len(shape_of(base)) == len(shape_of(source))
    has_shape = has_shape and all(same(a, b) for a, b in zip(shape_of(base), shape_of(source), strict=True))
    return base if has_shape and is_of_another_operator(base) and base.meta["val"].dtype.is_floating_point else None


def is_of_another_operator(node: Node) -> bool:
    """Whether an operator that no program supports computes it, or it is an input. Those that a program supports but
    that torch runs don't count."""
    while node.target in VIEWS or node.target is operator.getitem:
        node = node.args[0]
    return node.target not in POINTWISE and node.target not in ROWS


def varies(operand: Node, source: Node, dim: int) -> bool:
    """Whether the operand varies along the dimension."""
    own = shape_of(operand) if isinstance(operand.meta["val"], torch.Tensor) else []
    place = dim - len(shape_of(source)) + len(own)
    return place >= 0 and not is_one(own[place])


def again(record: Recorder, source: Node, dim: int, known: dict[Node, Tensor]) -> Tensor:
    """Recomputes the source from another value of its base, the one known node."""
    base = next(iter(known))

    def visit(node: Node) -> object:
        if node not in known:
            own = {o for o in node.all_input_nodes if o is base or varies(o, source, dim)}
            args, kwargs = torch.fx.map_arg(
                (node.args, node.kwargs), lambda o: visit(o) if o in own else record.value(o)
            )
            known[node] = node.target(*args, **kwargs)
        return known[node]

    return visit(source)
