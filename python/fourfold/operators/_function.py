"""An operator as an autograd.Function that supports every transform: for functorch, and for torch's Autograd key if
there is no kernel in C++.

Second and forward-mode derivatives are those of the operator's definition in plain torch. torch.vmap maps operators,
and so does torch's older vmap, which ``is_grads_batched`` and ``torch.autograd.functional``'s ``vectorize`` use.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fourfold.operators._schema import ARGUMENT, GRADIENT, MASK, OUTPUT, Rule

if TYPE_CHECKING:
    from fourfold.operators._operator import Operator

_below_autograd = torch._C._AutoDispatchBelowAutograd
_transforms_active = torch._C._are_functorch_transforms_active
_add_batch_dim = torch._add_batch_dim
_remove_batch_dim = torch._remove_batch_dim
_dispatch_keys = torch._C._dispatch_keys
_BATCHED = torch._C._parse_dispatch_key("Batched")


def function_of(operator: "Operator", lengths: tuple[int, ...]) -> type[torch.autograd.Function]:
    """The Function takes and returns flat tuples."""
    methods = _Methods(operator, lengths)
    names = ("forward", "setup_context", "backward", "jvp", "vmap")
    # A result's grad_fn has this name, such as fourfold_softshrinkBackward.
    members = {name: staticmethod(getattr(methods, name)) for name in names}
    return type(f"fourfold_{operator.name}", (torch.autograd.Function,), members)


class _Methods:
    """The Function's methods, for lists of these lengths."""

    def __init__(self, operator: "Operator", lengths: tuple[int, ...]) -> None:
        self.operator = operator
        self.lengths = lengths
        self.spans = operator.schema.spans(lengths)

    def forward(self, *flat: Any) -> tuple:
        with nullcontext() if _transforms_active() else _below_autograd():
            return self.operator.call_flat(self.lengths, flat)

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
        """The forward's arguments and outputs that the backward takes. Results are copied, so that users may change
        them in place, as torch.nn's layers allow."""
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
        # Read once: under checkpointing each access unpacks again, and a second one raises an error.
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
        each = partial(self.operator.call_flat, self.lengths)
        return map_each(self.operator.name, each, info, in_dims, flat)


def _of_tensors(f: Callable[..., Any], args: Sequence[Any]) -> tuple[Callable[..., Any], list[int]]:
    """f as a function of its floating-point tensors alone, which returns a tuple, and the indices of these in args."""
    places = [k for k, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]

    def of_tensors(*tensors: Tensor) -> Any:
        full = list(args)
        for k, tensor in zip(places, tensors, strict=True):
            full[k] = tensor
        outputs = f(*full)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return of_tensors, places


def vjp_of(f: Callable[..., Any], args: Sequence[Any], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradient of f at args with respect to each argument, differentiable again; None unless it is a tensor.

    ``grads`` belong to f's outputs in order; None, or one left out at the end, is zero.
    """
    of_tensors, places = _of_tensors(f, args)
    outputs, pullback = torch.func.vjp(of_tensors, *(args[k] for k in places))
    pairs = zip_longest(outputs, grads[: len(outputs)])
    cotangents = tuple(torch.zeros_like(o) if g is None else g.to(o.dtype) for o, g in pairs)
    results: list[Tensor | None] = [None] * len(args)
    for k, gradient in zip(places, pullback(cotangents), strict=True):
        results[k] = gradient
    return results


def jvp_of(f: Callable[..., Any], args: Sequence[Any], tangents: Sequence[Tensor | None]) -> tuple:
    """The outputs' tangents, by a gradient of the gradient: u ↦ Jᵀu is linear, and its pullback maps a tangent t to J
    t. A jvp of f would nest forward mode, which torch doesn't support in a captured graph."""
    of_tensors, places = _of_tensors(f, args)
    primals = tuple(args[k] for k in places)
    directions = tuple(
        torch.zeros_like(p) if tangents[k] is None else tangents[k] for k, p in zip(places, primals, strict=True)
    )
    outputs, pullback = torch.func.vjp(of_tensors, *primals)
    _, push = torch.func.vjp(lambda *u: pullback(u), *map(torch.zeros_like, outputs))
    return push(directions)


def map_each(name: str, op: Callable[[tuple], tuple], info: Any, in_dims: tuple, args: Sequence) -> tuple[tuple, tuple]:
    """One call per element: correct for every operator, and as fast as a loop. op takes and returns flat tuples."""
    if info.batch_size == 0:
        raise ValueError(f"{name}: cannot vmap over a dimension of size 0 here; skip the empty batch instead")
    results = []
    for k in range(info.batch_size):
        # For a list without tensors functorch passes a list of dimensions.
        mapped = (isinstance(a, Tensor) and d is not None for a, d in zip(args, in_dims, strict=True))
        results.append(op(tuple(a.select(d, k) if m else a for a, d, m in zip(args, in_dims, mapped, strict=True))))
    return tuple(torch.stack(column) for column in zip(*results, strict=True)), (0,) * len(results[0])


def older_map_each(name: str, op: Callable[[tuple], tuple], args: Sequence) -> tuple:
    """torch's older vmap has a loop of its own as a fallback, but not for operators with lists."""
    # The last level first: torch requires that a tensor's levels are added in order.
    level = max(_last_level(a) for a in args if isinstance(a, Tensor))
    in_dims = tuple(0 if isinstance(a, Tensor) and _is_mapped(a, level) else None for a in args)
    whole = [a if d is None else _remove_batch_dim(a, level, 1, d) for a, d in zip(args, in_dims, strict=True)]
    size = next(a.shape[0] for a, d in zip(whole, in_dims, strict=True) if d is not None)
    outputs, _ = map_each(name, op, SimpleNamespace(batch_size=size), in_dims, whole)
    return tuple(_add_batch_dim(o, 0, level) for o in outputs)


def _is_mapped(tensor: Tensor, level: int) -> bool:
    """Whether torch's older vmap maps the tensor at that level. Otherwise _remove_batch_dim expands it to any size."""
    return _remove_batch_dim(tensor, level, 2, 0).shape[0] == _remove_batch_dim(tensor, level, 3, 0).shape[0]


def _last_level(tensor: Tensor) -> int:
    """The last of the levels at which torch's older vmap maps the tensor; 0 for none."""
    level = 0
    while _dispatch_keys(tensor).has(_BATCHED):
        level += 1
        if _is_mapped(tensor, level):
            tensor = _remove_batch_dim(tensor, level, 1, 0)
    return level
