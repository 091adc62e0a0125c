"""Derivatives by an operator's definition in plain torch: the second ones, and those of forward mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

Function = Callable[..., Any]


def _as_tuple(outputs: Any) -> tuple:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _of_tensors(f: Function, args: Sequence[Any]) -> tuple[Function, list[int]]:
    """f as a function of its floating point tensors alone, and where these stand among its arguments."""
    places = [k for k, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]

    def of_tensors(*tensors: Tensor) -> Any:
        full = list(args)
        for k, tensor in zip(places, tensors, strict=True):
            full[k] = tensor
        return f(*full)

    return of_tensors, places


def vjp_of(f: Function, args: Sequence[Any], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradient of f at args with respect to each argument, differentiable again; None for what is no tensor.

    ``grads`` belong to f's outputs in order; None, or one left out at the end, is zero.
    """
    of_tensors, places = _of_tensors(f, args)
    outputs, pullback = torch.func.vjp(of_tensors, *(args[k] for k in places))
    flat = _as_tuple(outputs)
    padded = [*grads, *[None] * len(flat)][: len(flat)]
    cotangents = tuple(torch.zeros_like(o) if g is None else g.to(o.dtype) for o, g in zip(flat, padded, strict=True))
    results: list[Tensor | None] = [None] * len(args)
    gradients = pullback(cotangents if isinstance(outputs, tuple) else cotangents[0])
    for k, gradient in zip(places, gradients, strict=True):
        results[k] = gradient
    return results


def jvp_of(f: Function, args: Sequence[Any], tangents: Sequence[Tensor | None]) -> tuple:
    """The outputs' tangents, as the gradient's own gradient: u ↦ Jᵀu is linear, and its pullback takes a tangent t to
    J t. A jvp of f would be forward mode inside forward mode, which torch refuses in a captured graph."""
    of_tensors, places = _of_tensors(f, args)
    primals = tuple(args[k] for k in places)
    directions = tuple(
        torch.zeros_like(p) if tangents[k] is None else tangents[k] for k, p in zip(places, primals, strict=True)
    )
    outputs, pullback = torch.func.vjp(of_tensors, *primals)
    single = isinstance(outputs, Tensor)
    cotangents = tuple(torch.zeros_like(o) for o in _as_tuple(outputs))
    _, push = torch.func.vjp(lambda *u: pullback(u[0] if single else u), *cotangents)
    return push(directions)


def in_compute_dtype(f: Function) -> Function:
    """f with float16 and bfloat16 arguments computed in float32, as the kernels do, and its outputs rounded once."""

    def computed(*args: Any) -> Any:
        dtype = next(a.dtype for a in args if isinstance(a, Tensor) and a.is_floating_point())
        if dtype not in (torch.float16, torch.bfloat16):
            return f(*args)
        out = f(*tree_map_only(Tensor, lambda a: a.float() if a.is_floating_point() else a, args))
        return tree_map_only(Tensor, lambda o: o.to(dtype), out)

    return computed
