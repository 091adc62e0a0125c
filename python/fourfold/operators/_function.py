"""An operator as a Function that every transform accepts: for functorch, and for torch's Autograd key where C++ does
not serve it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fourfold.operators import _vmap
from fourfold.operators._derivative import jvp_of, vjp_of
from fourfold.operators._schema import ARGUMENT, GRADIENT, MASK, OUTPUT, Rule

if TYPE_CHECKING:
    from fourfold.operators._operator import Operator

_below_autograd = torch._C._AutoDispatchBelowAutograd
_transforms_active = torch._C._are_functorch_transforms_active


def function_of(operator: Operator, lengths: tuple[int, ...]) -> type[torch.autograd.Function]:
    """It takes and gives flat tuples."""
    methods = _Methods(operator, lengths)
    names = ("forward", "setup_context", "backward", "jvp", "vmap")
    # By this name a result's grad_fn is known: fourfold_softshrinkBackward.
    members = {name: staticmethod(getattr(methods, name)) for name in names}
    return type(f"fourfold_{operator.name}", (torch.autograd.Function,), members)


class _Methods:
    """Of the Function, for lists of these lengths."""

    def __init__(self, operator: Operator, lengths: tuple[int, ...]) -> None:
        self.operator = operator
        self.lengths = lengths
        self.spans = operator.schema.spans(lengths)

    def call(self, *flat: Any) -> tuple:
        return self.operator.call_flat(self.lengths, flat)

    def forward(self, *flat: Any) -> tuple:
        if _transforms_active():
            return self.call(*flat)
        with _below_autograd():
            return self.call(*flat)

    def setup_context(self, ctx: Any, inputs: tuple, output: tuple) -> None:
        # Freed as soon as the forward, with its jvp, is over.
        ctx.save_for_forward(*(a if isinstance(a, Tensor) else None for a in inputs))
        ctx.others = tuple(None if isinstance(a, Tensor) else a for a in inputs)
        ctx.set_materialize_grads(False)
        rule = self.operator.rule
        if self.operator.kept:
            ctx.mark_non_differentiable(*output[rule.outputs :])
        if self.operator.gradient:
            ctx.facts = self.operator.gradient[0](*inputs)
            return
        kept = self._arguments_of(rule, inputs, output) if rule else inputs
        ctx.save_for_backward(*(a if isinstance(a, Tensor) else None for a in kept))
        ctx.constants = tuple(None if isinstance(a, Tensor) else a for a in kept)

    def _arguments_of(self, rule: Rule, inputs: tuple, output: tuple) -> list:
        """What the backward takes of a forward's arguments and outputs; of a result a copy, so that a user may change
        it in place, as torch.nn's layers allow."""
        kept = []
        for kind, place in rule.sources:
            if kind == ARGUMENT:
                kept.extend(inputs[i] for i in self.spans[place])
            elif kind == OUTPUT:
                kept.append(output[place].clone() if place < rule.outputs else output[place])
        return kept

    def backward(self, ctx: Any, *grads: Tensor | None) -> tuple:
        count = len(ctx.needs_input_grad)
        if all(grad is None for grad in grads):
            return (None,) * count
        if self.operator.gradient:
            return tuple(self.operator.gradient[1](ctx.facts, grads[0], ctx.needs_input_grad))
        # Once: under checkpointing each access unpacks anew, and a second one is refused.
        kept = [b if a is None else a for a, b in zip(ctx.saved_tensors, ctx.constants, strict=True)]
        rule = self.operator.rule
        if rule is None:
            return tuple(vjp_of(self._definition, kept, grads))
        places = [i for place in rule.differentiable for i in self.spans[place]]
        mask = [ctx.needs_input_grad[i] for i in places]
        rest, args = iter(kept), []
        for kind, place in rule.sources:
            if kind == GRADIENT:
                args.append(grads[place])
            elif kind == MASK:
                args.append(mask)
            else:
                args.extend(next(rest) for _ in (self.spans[place] if kind == ARGUMENT else range(1)))
        backward = self.operator.backward
        results = backward.schema.flatten_results(backward.call_by_python(*backward.schema.nest(self.lengths, args)))
        gradients: list[Tensor | None] = [None] * count
        for place, wanted, gradient in zip(places, mask, results, strict=True):
            gradients[place] = gradient if wanted else None
        return tuple(gradients)

    def _definition(self, *flat: Any) -> Any:
        return self.operator.definition(*self.operator.schema.nest(self.lengths, flat))

    def jvp(self, ctx: Any, *tangents: Any) -> Any:
        inputs = tuple(b if a is None else a for a, b in zip(ctx.saved_tensors, ctx.others, strict=True))
        return (*jvp_of(self._definition, inputs, tangents), *[None] * self.operator.kept)

    def vmap(self, info: Any, in_dims: tuple, *flat: Any) -> tuple:
        schema, rule = self.operator.schema, self.operator.vmap
        if rule is not None:
            dims, args = (schema.named(schema.nest(self.lengths, given)) for given in (in_dims, flat))
            mapped = rule(self.operator.op, info.batch_size, dims, args)
            if mapped is not None:
                return mapped
        return _vmap.map_each(self.operator.name, self.call, info, in_dims, *flat)
