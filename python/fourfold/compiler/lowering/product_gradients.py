"""Gradients of prod and cumprod. Eager mode divides by the factors if none is zero. A trace can't look at the data, and
torch traces formulas for any data, which take twice as long. Here each gradient is one operator that looks: the pass
``products`` replaces the calls in Dynamo's graph, and ``decompose`` puts the gradient of prod into a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fourfold.compiler.lowering.decompositions import LATE, decomposes

aten = torch.ops.aten
library = torch.library.Library("fourfold_compiler", "DEF")
library.define("prod_backward(Tensor grad, Tensor x, Tensor result, int? dim) -> Tensor")
library.define("cumprod_backward(Tensor grad, Tensor x, Tensor result, int dim) -> Tensor")
PROD = torch.ops.fourfold_compiler.prod_backward.default
CUMPROD = torch.ops.fourfold_compiler.cumprod_backward.default


def has_zero(x: Tensor) -> bool:
    return bool(x.count_nonzero() < x.numel())


def prod_backward(grad: Tensor, x: Tensor, result: Tensor, dim: int | None) -> Tensor:
    """grad, result: of one element for each row along dim, or for all elements if that is None."""
    return product_of_others(grad, x, result, dim) if has_zero(x) else grad * result / x


@decomposes(PROD, LATE)
def product_of_others(grad: Tensor, x: Tensor, result: Tensor, dim: int | None) -> Tensor:
    """The gradient with respect to a factor, by the number of zeros among the factors."""
    over = list(range(x.dim())) if dim is None else [dim]
    zero = x == 0
    factors = torch.where(zero, 1, x)
    product = factors.prod() if dim is None else factors.prod(dim, keepdim=True)
    zeros = zero.sum(over, keepdim=dim is not None)
    others = product / factors
    return grad * torch.where((zeros == 0) | zero & (zeros == 1), others, others * 0)


def cumprod_backward(grad: Tensor, x: Tensor, result: Tensor, dim: int) -> Tensor:
    """As in eager mode, which a trace would replace by the formula for any data."""
    return aten.cumprod_backward(grad, x, dim, result)


for name, function in (("prod_backward", prod_backward), ("cumprod_backward", cumprod_backward)):
    library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fourfold_compiler::{name}", lambda grad, x, *rest: torch.empty_like(x), lib=library)


class Product(torch.autograd.Function):
    """operator: an overload of prod or cumprod. dim: None for the product of all elements."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: Tensor, operator: object, dim: int | None, *rest: bool
    ) -> Tensor:
        result = operator(x) if dim is None else operator(x, dim, *rest)
        ctx.save_for_backward(x, result)
        ctx.dim, ctx.cumulates = dim, operator is aten.cumprod.default
        return result

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, result = ctx.saved_tensors
        if not ctx.cumulates and ctx.dim is not None and result.dim() < x.dim():
            grad, result = grad.unsqueeze(ctx.dim), result.unsqueeze(ctx.dim)
        own = (CUMPROD if ctx.cumulates else PROD)(grad, x, result, ctx.dim)
        return own, *[None] * (len(ctx.needs_input_grad) - 1)


def prod(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    """torch.prod, with this gradient."""
    given = dict(zip(("dim", "keepdim"), args, strict=False)) | kwargs
    if not is_differentiated(x, given):
        return torch.prod(x, *args, **kwargs)
    if given.get("dim") is None:
        return Product.apply(x, aten.prod.default, None)
    return Product.apply(x, aten.prod.dim_int, given["dim"], given.get("keepdim", False))


def cumprod(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    """torch.cumprod, with this gradient."""
    given = dict(zip(("dim",), args, strict=False)) | kwargs
    if not is_differentiated(x, given):
        return torch.cumprod(x, *args, **kwargs)
    return Product.apply(x, aten.cumprod.default, given["dim"])


FUNCTIONS: dict[object, Callable[..., Tensor]] = {
    torch.prod: prod,
    torch.cumprod: cumprod,
    "prod": prod,  # methods
    "cumprod": cumprod,
}


def is_differentiated(x: Tensor, given: Mapping[str, object]) -> bool:
    """Whether autograd differentiates the call, and not functorch or a subclass's own operators. given: by name."""
    if torch._C._functorch.peek_interpreter_stack() is not None or is_traceable_wrapper_subclass(x):
        return False
    is_known = given.keys() <= {"dim", "keepdim", "dtype"} and isinstance(given.get("dim"), int | None)
    is_recorded = torch.is_grad_enabled() and x.requires_grad and x.is_floating_point() and x.dim() > 0
    return is_known and is_recorded and given.get("dtype") in (None, x.dtype)
