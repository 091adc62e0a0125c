"""What makes an operator of torch's out of a kernel: gradients, transforms, fake tensors and autocast.

Each operator is declared once, as an :class:`Operator`, from which come all the roads on which a call can arrive:

========================================  ==============================================================
a call from ``fourfold.functional``       :meth:`Operator.__call__`: an old-style Function when a gradient
                                          is wanted, else the kernel directly; the cheapest that is right
``torch.ops.fourfold.*``, exported or     the kernel registered for torch's Autograd key
compiled programs
``torch.func`` transforms                 the kernel registered for functorch's front key: the same Function
                                          with setup_context, vmap and jvp
fake tensors                              ``fake``, with the same checks as C++
autocast                                  inputs cast where the operator has products; the key is excluded below
========================================  ==============================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_library = torch.library.Library("fourfold", "FRAGMENT")

# torch's own names for what no public function tells at this price. Bound here, one that a future torch lacks fails at
# import, and not in the middle of a call.
_any_requires_grad = torch._C._any_requires_grad
_below_autograd = torch._C._AutoDispatchBelowAutograd
_transforms_active = torch._C._are_functorch_transforms_active
_any_autocast_enabled = torch._C._is_any_autocast_enabled
_is_tracing = torch._C._is_tracing
_unpack_dual = torch._C._VariableFunctions._unpack_dual
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled

declared: dict[str, Operator] = {}  # by name, each when its file is imported

Outputs = Any  # a tensor, or a tuple of tensors


@dataclass(eq=False)
class Operator:
    """One operator of the library ``fourfold``.

    check: raises ValueError or TypeError for arguments that the kernel would refuse; reads metadata only.
    fake: the outputs' shapes, dtypes and strides, for arguments that passed ``check``.
    reference: the outputs that have a gradient, in plain torch, from the same arguments; the definition of forward-mode
        derivatives, and of the second derivative where there is no ``backward``.
    setup_context, backward: as in torch.autograd.Function, with all arguments, defaults too; without ``backward`` the
        gradient is that of ``reference``.
    saved: how many of the outputs, the last, are kept for the backward only. An operator that keeps any has an argument
        ``save_for_backward``, which a call without gradient sets to False.
    vmap: the rule of torch.autograd.Function.vmap; by default one call per element of the mapped dimension.
    casts: whether autocast casts the inputs, as it does for torch's own products.
    """

    name: str
    check: Callable[..., None]
    fake: Callable[..., Outputs]
    reference: Callable[..., Outputs]
    setup_context: Callable[[Any, tuple, Outputs], None] | None = None
    backward: Callable[..., tuple] | None = None
    saved: int = 0
    vmap: Callable[..., tuple] | None = None
    casts: bool = False
    op: Any = field(init=False)

    def __post_init__(self) -> None:
        if not hasattr(torch.ops.fourfold, self.name):
            raise ImportError(
                f"fourfold's library was built without the operator {self.name}; build it again: make build"
            )
        declared[self.name] = self
        self.op = getattr(torch.ops.fourfold, self.name).default
        self.defaults = tuple(a.default_value for a in self.op._schema.arguments)
        names = [a.name for a in self.op._schema.arguments]
        self.saves_at = names.index("save_for_backward") if self.saved else None
        self.fast_function, self.function = _make_functions(self)
        torch.library.register_fake(f"fourfold::{self.name}", self._fake, lib=_library)
        _library.impl(self.name, self._autograd, "Autograd")
        # functorch takes this key before all others while a transform is active. A Function that arrives only at the
        # Autograd key is refused by torch.func.grad, and a bare operator there would give zeros.
        _library.impl(self.name, self._transformed, "FuncTorchDynamicLayerFrontMode")
        if self.casts or self.name.endswith("_backward"):
            for device in ("cpu", "cuda"):
                _library.impl(self.name, _autocast(self, device), f"Autocast{device.upper()}")

    def __call__(self, *args: Any) -> Outputs:
        """The operator's outputs; those kept for the backward may be left out."""
        if _is_compiling():  # what refuses is the fake kernel, in the same words
            return self.op(*args) if _is_grad_enabled() else self.op(*self._inference(args))
        try:
            return self._eager(args)
        except (RuntimeError, TypeError) as error:
            refusal = self._refusal(args, error)
            if refusal is None:
                raise
        try:
            raise refusal
        finally:
            del refusal  # whose traceback holds this frame, and with it the arguments

    def _eager(self, args: tuple) -> Outputs:
        if not isinstance(args[0], Tensor) or _is_tracing() or _transforms_active():
            return self.op(*args)
        if self.casts and _any_autocast_enabled():
            args = _cast(args)
        if forward_ad._current_level >= 0 and _any_tangent(args):
            return self._forward_mode(args)
        if _is_grad_enabled() and _any_requires_grad(*args):
            return self.fast_function.apply(*self._full(args))
        with _below_autograd():
            return self.op(*self._inference(args))

    def _refusal(self, args: tuple, error: Exception) -> Exception | None:
        """The error with the type that a Python user expects; None when it is not a refusal of the arguments."""
        try:
            self.check(*args)
        except (TypeError, ValueError) as refusal:
            refusal.__context__ = None  # torch's words for the same
            return refusal.with_traceback(None)
        # What only the data says, as in batch_sizes, C++ alone has checked.
        return ValueError(str(error)) if str(error).startswith(f"{self.name}: ") else None

    def below_autograd(self, *args: Any) -> Outputs:
        with _below_autograd():
            return self.op(*args)

    def _inference(self, args: tuple) -> tuple:
        """The arguments of a call that no backward follows."""
        k = self.saves_at
        return args if k is None else (*args[:k], *self.defaults[len(args) : k], False, *args[k + 1 :])

    def _full(self, args: tuple) -> tuple:
        """The dispatcher drops arguments that equal their default."""
        return (*args, *self.defaults[len(args) :])

    def _autograd(self, *args: Any) -> Outputs:
        if _is_grad_enabled() and _any_requires_grad(*args):
            return self.function.apply(*self._full(args))
        if _any_tangent(args):
            return self._forward_mode(args)
        return self.below_autograd(*args)

    def _forward_mode(self, args: tuple) -> Outputs:
        """Dual tensors outside functorch: the reference carries their tangents, and keeps nothing for a backward."""
        self.check(*args)
        outputs = self.reference(*args)
        if not self.saved:
            return outputs
        kept = (args[0].new_empty(0) for _ in range(self.saved))
        return (*_as_tuple(outputs), *kept)

    def _transformed(self, *args: Any) -> Outputs:
        return self.function.apply(*self._full(_cast(args) if self.casts else args))

    def _below_autocast(self, keys: torch._C.DispatchKeySet, *args: Any) -> Outputs:
        if self.casts:
            args = _cast(args)
        # Below here a product of float32 must stay float32.
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return self.op(*args)

    def _fake(self, *args: Any) -> Outputs:
        self.check(*args)
        return self.fake(*args)


def _make_functions(operator: Operator) -> tuple[type, type]:
    """The same operator as an old-style Function, which is faster, and as one that every transform accepts."""
    setup_context = operator.setup_context or _save_inputs
    backward = operator.backward or _reference_backward(operator)

    def forward_with_context(ctx: Any, *args: Any) -> Outputs:
        output = operator.below_autograd(*args)
        ctx.set_materialize_grads(False)
        setup_context(ctx, args, output)
        # Each output costs a microsecond to wrap, and nobody sees what is kept.
        return output[: -operator.saved] if operator.saved else output

    def forward(*args: Any) -> Outputs:
        if _transforms_active():
            return operator.op(*args)
        return operator.below_autograd(*args)

    def setup_with_inputs(ctx: Any, inputs: tuple, output: Outputs) -> None:
        # Freed as soon as the forward, with its jvp, is over.
        ctx.save_for_forward(*(a if isinstance(a, Tensor) else None for a in inputs))
        ctx.others = tuple(None if isinstance(a, Tensor) else a for a in inputs)
        ctx.set_materialize_grads(False)
        if operator.saved:
            ctx.mark_non_differentiable(*output[-operator.saved :])
        setup_context(ctx, inputs, output)

    def jvp(ctx: Any, *tangents: Any) -> Outputs:
        inputs = (b if a is None else a for a, b in zip(ctx.saved_tensors, ctx.others, strict=True))
        return _reference_jvp(operator, tuple(inputs), tangents)

    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[Outputs, Any]:
        return (operator.vmap or map_each)(operator, info, in_dims, *args)

    def function(**methods: Callable) -> type:
        # By this name a result's grad_fn is known: fourfold_softshrinkBackward.
        members = {name: staticmethod(method) for name, method in methods.items()}
        return type(f"fourfold_{operator.name}", (torch.autograd.Function,), members)

    return (
        function(forward=forward_with_context, backward=backward),
        function(forward=forward, setup_context=setup_with_inputs, backward=backward, jvp=jvp, vmap=vmap),
    )


def _as_tuple(outputs: Outputs) -> tuple:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _save_inputs(ctx: Any, inputs: tuple, output: Outputs) -> None:
    ctx.save_for_backward(*(a for a in inputs if isinstance(a, Tensor)))
    ctx.constants = [None if isinstance(a, Tensor) else a for a in inputs]
    ctx.tensor_at = [k for k, a in enumerate(inputs) if isinstance(a, Tensor)]


def _as_function_of(f: Callable[..., Outputs], args: Sequence[Any]) -> tuple[Callable[..., Outputs], list[int]]:
    """f as a function of its floating point tensors alone, and where these stand among its arguments."""
    places = [k for k, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]

    def of_tensors(*tensors: Tensor) -> Outputs:
        full = list(args)
        for k, tensor in zip(places, tensors, strict=True):
            full[k] = tensor
        return f(*full)

    return of_tensors, places


def vjp_of(f: Callable[..., Outputs], args: Sequence[Any], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradient of f at args with respect to each argument, differentiable again; None for what is no tensor.

    ``grads`` belong to f's outputs in order; None, or one left out at the end, is zero.
    """
    of_tensors, places = _as_function_of(f, args)
    outputs, pullback = torch.func.vjp(of_tensors, *(args[k] for k in places))
    flat = _as_tuple(outputs)
    padded = [*grads, *[None] * len(flat)][: len(flat)]
    cotangents = tuple(torch.zeros_like(o) if g is None else g.to(o.dtype) for o, g in zip(flat, padded, strict=True))
    results: list[Tensor | None] = [None] * len(args)
    gradients = pullback(cotangents if isinstance(outputs, tuple) else cotangents[0])
    for k, gradient in zip(places, gradients, strict=True):
        results[k] = gradient
    return results


def _reference_backward(operator: Operator) -> Callable[..., tuple]:
    def backward(ctx: Any, *grads: Tensor | None) -> tuple:
        args = list(ctx.constants)
        for k, tensor in zip(ctx.tensor_at, ctx.saved_tensors, strict=True):
            args[k] = tensor
        return tuple(vjp_of(operator.reference, args, grads))

    return backward


def _reference_jvp(operator: Operator, args: tuple, tangents: tuple) -> Outputs:
    """The gradient's own gradient: u ↦ Jᵀu is linear, and its pullback takes a tangent t to J t. A jvp of the reference
    would be forward mode inside forward mode, which torch refuses in a captured graph."""
    of_tensors, places = _as_function_of(operator.reference, args)
    primals = tuple(args[k] for k in places)
    directions = tuple(
        torch.zeros_like(p) if tangents[k] is None else tangents[k] for k, p in zip(places, primals, strict=True)
    )
    outputs, pullback = torch.func.vjp(of_tensors, *primals)
    single = isinstance(outputs, Tensor)
    cotangents = tuple(torch.zeros_like(o) for o in _as_tuple(outputs))
    _, push = torch.func.vjp(lambda *u: pullback(u[0] if single else u), *cotangents)
    results = push(directions)
    return results[0] if single and not operator.saved else (*results, *[None] * operator.saved)


def map_each(operator: Operator, info: Any, in_dims: tuple, *args: Any) -> tuple[Outputs, Any]:
    """vmap by one call per element: right for every operator, and as fast as a loop."""
    if info.batch_size == 0:
        raise ValueError(f"{operator.name}: cannot vmap over a dimension of size 0 here; skip the empty batch instead")
    results = []
    for k in range(info.batch_size):
        element = (a if d is None else a.select(d, k) for a, d in zip(args, in_dims, strict=True))
        results.append(operator.op(*element))
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    return tuple(torch.stack(column) for column in zip(*results, strict=True)), (0,) * len(results[0])


def _any_tangent(args: tuple) -> bool:
    """Whether an argument is a dual tensor. Asked of the tensors: Python's count of open levels is not kept by a
    captured graph, and counts levels that other threads have opened."""
    return any(isinstance(a, Tensor) and _unpack_dual(a, level=0)[1] is not None for a in args)


def _cast(args: tuple) -> tuple:
    """The arguments as autocast wants a product's; above autograd, so that a Function keeps what the kernel saw."""
    device = next(a.device.type for a in args if isinstance(a, Tensor))
    if not torch.is_autocast_enabled(device):
        return args
    dtype = torch.get_autocast_dtype(device)

    def eligible(a: Any) -> bool:
        return isinstance(a, Tensor) and a.is_floating_point() and a.dtype != torch.float64

    return tuple(a.to(dtype) if eligible(a) else a for a in args)


def _autocast(operator: Operator, device: str) -> Callable[..., Outputs]:
    key = getattr(torch._C.DispatchKey, f"Autocast{device.upper()}")
    keys = torch._C.DispatchKeySet(key)

    def kernel(*args: Any) -> Outputs:
        return operator._below_autocast(keys, *args)

    return kernel


def gradients_of(
    reference: Callable[..., Outputs], args: Sequence[Any], grads: Sequence[Tensor | None], needed: Sequence[bool]
) -> tuple[Tensor, ...]:
    """The definition of a ``_backward`` operator: the reference's gradients by the first arguments, shape (0) for each
    that is not needed. A function of the forward's arguments alone: what it kept is computed from them once more."""
    results = vjp_of(in_compute_dtype(reference), args, grads)
    left_out = args[0].new_zeros(0)
    return tuple(g if need and g is not None else left_out for g, need in zip(results, needed, strict=False))


def in_compute_dtype(f: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """f with float16 and bfloat16 arguments computed in float32, as the kernels do, and its outputs rounded once."""

    def computed(*args: Any) -> Outputs:
        dtype = next(a.dtype for a in args if isinstance(a, Tensor) and a.is_floating_point())
        if dtype not in (torch.float16, torch.bfloat16):
            return f(*args)
        out = f(*(a.float() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args))
        return tuple(o.to(dtype) for o in out) if isinstance(out, tuple) else out.to(dtype)

    return computed


def unmapped_shape(tensor: Tensor, mapped: int | None) -> tuple:
    """The shape of one element of a mapped tensor."""
    sizes = list(tensor.shape)
    if mapped is not None:
        del sizes[mapped]
    return tuple(sizes)


def fold_batch(tensor: Tensor, mapped: int | None, size: int, batch_dim: int) -> Tensor:
    """Puts a mapped dimension of that size into ``batch_dim``: (…, batch, …) becomes (…, size * batch, …)."""
    if mapped is None:
        tensor = tensor.unsqueeze(batch_dim).expand(*tensor.shape[:batch_dim], size, *tensor.shape[batch_dim:])
    else:
        tensor = tensor.movedim(mapped, batch_dim)
    return tensor.flatten(batch_dim, batch_dim + 1)
