"""Declares an operator together with the operator of its gradient."""

import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from fourfold.operators._axes import Axes
from fourfold.operators._function import vjp_of
from fourfold.operators._operator import Operator
from fourfold.operators._schema import GRADIENT, Schema, rule_of, schema_of


def declare(
    name: str,
    *,
    check: Callable[..., None],
    fake: Callable[..., Any],
    definition: Callable[..., Any],
    check_backward: Callable[..., None] | None = None,
    fake_backward: Callable[..., Any] | None = None,
    vmap: Callable[..., tuple | None] | None = None,
    vmap_backward: Callable[..., tuple | None] | None = None,
    casts: bool = False,
    gradient: tuple[Callable[..., Any], Callable[..., list]] | None = None,
    convert: Callable[..., tuple] | None = None,
    axes: Axes,
) -> Operator:
    """Declares an operator, and the operator of its gradient if the library has one.

    check(op, a): raises ValueError or TypeError for arguments that the kernel would reject; reads metadata only. ``a``
        has the arguments by name. ``op`` is the operator's name or its backward's, for those of the operator's
        arguments that the backward takes. check_backward(op, a): checks the backward's other arguments.
    fake(a), fake_backward(a): the outputs' shapes, dtypes and strides, for arguments that passed the check; by default
        a gradient is dense, in the shape of its argument.
    definition: computes the differentiable outputs in plain torch. Its parameters have the names of the schema's
        arguments, or of some of them. It defines forward-mode derivatives, and the gradient of operators that have no
        backward operator.
    vmap(op, size, dims, a), vmap_backward: return the outputs and their mapped dimensions; ``dims`` has those of ``a``.
        Without it, or if it returns None, there is one call per element.
    casts: whether autocast casts the inputs, as it does for torch's own products.
    gradient: for the one operator whose gradient consists of torch's operations: what it keeps, and its gradients.
    convert: converts a function's arguments to the operator's; C++ skips it if there is no dtype to choose.
    axes: the dimensions of its tensors, which determine how DTensors may be sharded.
    """
    if not hasattr(torch.ops.fourfold, name):
        raise ImportError(f"fourfold's library was built without the operator {name}; build it again: make build")
    schema = schema_of(name)
    defined = _in_order(schema, definition, casts)
    backward = None
    if check_backward is not None:
        of_gradient = schema_of(f"{name}_backward")

        def check_both(op: str, a: SimpleNamespace) -> None:
            check(op, a)
            check_backward(op, a)

        fake_backward = fake_backward or partial(_like_arguments, of_gradient)
        gradient_defined = _gradient_of(defined, schema, of_gradient)
        backward = Operator(of_gradient.name, check_both, fake_backward, gradient_defined, vmap_backward)
    return Operator(name, check, fake, defined, vmap, casts, backward, gradient, convert, axes)


def _in_order(schema: Schema, definition: Callable[..., Any], casts: bool) -> Callable[..., Any]:
    """The definition as a function of all arguments in order, with its outputs as one flat tuple. If it casts, float16
    and bfloat16 are computed in float32, as in the kernels, and the outputs are rounded once."""
    places = {name: schema.arguments.index(name) for name in inspect.signature(definition).parameters}

    def defined(*args: Any) -> Any:
        full = schema.full(args)
        given = {name: full[k] for name, k in places.items()}
        dtype = next(a.dtype for a in full if isinstance(a, Tensor) and a.is_floating_point()) if casts else None
        widened = dtype in (torch.float16, torch.bfloat16)
        if widened:
            given = tree_map_only(Tensor, lambda a: a.float() if a.is_floating_point() else a, given)
        outputs = definition(**given)
        if widened:
            outputs = tree_map_only(Tensor, lambda o: o.to(dtype), outputs)
        return outputs if isinstance(outputs, Tensor) else tuple(tree_leaves(outputs))

    return defined


def _gradient_of(defined: Callable[..., Any], forward: Schema, backward: Schema) -> Callable[..., Any]:
    """The definition of a backward operator: the definition's gradients, of shape (0) if not needed. It depends on the
    forward's arguments alone, and recomputes what the forward kept."""
    rule = rule_of(forward, backward)

    def gradient(*args: Any) -> Any:
        a = backward.named(args)
        given = [getattr(a, name, default) for name, default in zip(forward.arguments, forward.defaults, strict=True)]
        lengths, flat = forward.flatten(given)
        spans = forward.spans(lengths)
        grads = [args[k] for k, (kind, _) in enumerate(rule.sources) if kind == GRADIENT]
        results = vjp_of(lambda *flat: defined(*forward.nest(lengths, flat)), flat, grads)
        places = [i for place in rule.differentiable for i in spans[place]]
        mask = getattr(a, "output_mask", [True] * len(places))
        left_out = given[0].new_zeros(0)
        wanted = (need and results[i] is not None for i, need in zip(places, mask, strict=True))
        gradients = tuple(results[i] if w else left_out for i, w in zip(places, wanted, strict=True))
        return gradients[0] if backward.single else gradients

    return gradient


def _like_arguments(backward: Schema, a: SimpleNamespace) -> tuple:
    """Gradients in the shapes of their arguments, (0) if not needed."""
    arguments = [getattr(a, name.removeprefix("grad_")) for name in backward.results]
    flat, structure = tree_flatten(arguments)
    wanted = [p.shape if need and p is not None else (0,) for p, need in zip(flat, a.output_mask, strict=True)]
    return tuple(tree_unflatten([arguments[0].new_empty(shape) for shape in wanted], structure))
