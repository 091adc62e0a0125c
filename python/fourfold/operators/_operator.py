"""Turns a kernel into an operator of torch: gradients, transforms, fake tensors and autocast.

Each operator is declared once (``_declare.py``). The declaration covers all ways in which it can be called:

========================================  ==============================================================
a call from ``fourfold.functional``       :attr:`Operator.call`: C++ that reads the arguments and calls torch's
                                          dispatcher, or :meth:`Operator.call_by_python`, which does the same
``torch.ops.fourfold.*``, exported or     the kernel at torch's Autograd key: C++'s, or the Function of
compiled programs                         ``_function.py``; for forward-mode derivatives always the latter
``torch.func`` transforms                 the kernel at functorch's front key: a Function that supports all transforms
fake tensors                              ``fake``, with the same checks as C++
autocast                                  inputs are cast if the operator has products; the key is excluded below
========================================  ==============================================================
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from fourfold import _native, _onnx
from fourfold.operators import _check
from fourfold.operators._axes import Axes
from fourfold.operators._function import function_of, older_map_each
from fourfold.operators._schema import Schema, rule_of

library = torch.library.Library("fourfold", "FRAGMENT")

# Private functions of torch, where public ones are missing or slower. They are bound here, so that one that a future
# torch lacks fails at import, and not during a call.
_any_requires_grad = torch._C._any_requires_grad
_below_autograd = torch._C._AutoDispatchBelowAutograd
_transforms_active = torch._C._are_functorch_transforms_active
_is_tracing = torch._C._is_tracing
_unpack_dual = torch._C._VariableFunctions._unpack_dual
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled

declared: dict[str, "Operator"] = {}  # by name, each when its file is imported

Args = Sequence[Any]


@dataclass(eq=False)
class Operator:
    """One operator of the library ``fourfold``, with the arguments of ``declare``; its definition takes all arguments
    in order. backward: the operator of its gradient; forward: for a backward, the operator that it differentiates.
    axes: the dimensions of its tensors, for DTensor."""

    name: str
    check_named: Callable[..., None]
    fake_named: Callable[..., Any]
    definition: Callable[..., Any]
    vmap: Callable[..., tuple | None] | None = None
    casts: bool = False
    backward: "Operator | None" = None
    gradient: tuple[Callable[..., Any], Callable[..., list]] | None = None
    convert: Callable[..., tuple] | None = None
    axes: Axes | None = None
    forward: "Operator | None" = None

    def __post_init__(self) -> None:
        name, backward = self.name, self.backward
        if backward is not None:
            backward.forward = self
        self.op = getattr(torch.ops.fourfold, name).default
        self.schema = schema = Schema(self.op._schema)
        self.rule = rule_of(schema, backward.schema) if backward else None
        self.kept = len(schema.results) - self.rule.outputs if self.rule else 0
        # The operator on flat arguments, as a Function that every transform accepts, by the lengths of the lists.
        self.function = functools.cache(functools.partial(function_of, self))
        self.call = self.call_by_python
        if _native.module is not None and not name.endswith("_backward"):
            self.call = _native.module.Call(f"fourfold::{name}", self.kept, self.call_by_python, self.refuse)
        declared[name] = self
        if not _native.PLAIN:  # otherwise it is composed of torch's operators
            self._register_transforms()
        if self.casts or name.endswith("_backward"):
            for key in ("AutocastCPU", "AutocastCUDA"):
                keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
                library.impl(name, functools.partial(self._below_autocast, keys), key)

    def _register_transforms(self) -> None:
        torch.library.register_fake(f"fourfold::{self.name}", self._fake, lib=library)
        library.impl(self.name, self._autograd, "Autograd")
        # While a transform is active, functorch dispatches to this key before all others. torch.func.grad rejects a
        # Function that is only at the Autograd key, and a bare operator there would give zeros.
        library.impl(self.name, self._transformed, "FuncTorchDynamicLayerFrontMode")
        if self.schema.lists:
            library.impl(self.name, self._older_map, "Batched")

    def call_by_python(self, *args: Any) -> Any:
        """The operator's outputs without those kept for the backward."""
        if _is_compiling() or _is_tracing() and _onnx.is_exporting():
            return self.traced(*args)
        try:
            args = self._converted(args)
            return self._without_kept(self.op(*self._as_needed(args)))
        except (RuntimeError, TypeError) as caught:
            error = caught
        try:
            self.refuse(error, *args)  # outside the except block, so that it has no context
        finally:
            del error

    def traced(self, *args: Any) -> Any:
        """The same while a program is captured, for ONNX in torch's operators. The fake kernel raises the same
        errors."""
        args = self._converted(args)
        if _onnx.is_exporting():
            return self.definition(*args)
        return self._without_kept(self.op(*(args if _is_grad_enabled() else self._keeping(args, False))))

    def _converted(self, args: tuple) -> tuple:
        """Rejects a tensor in place of a number: the dispatcher would accept it, and its gradient would be lost."""
        for k in self.schema.numbers:
            if k < len(args) and isinstance(args[k], Tensor):
                _check.expect_number(self.name, self.schema.arguments[k], args[k])
        return self.convert(*args) if self.convert else args

    def _without_kept(self, outputs: Any) -> Any:
        if not self.kept:
            return outputs
        return outputs[0] if self.rule.outputs == 1 else tuple(outputs[: self.rule.outputs])

    def _as_needed(self, args: tuple) -> tuple:
        """The arguments of a call that keeps only what a backward will need."""
        if not self.kept or _transforms_active() or _is_tracing() or not isinstance(args[0], Tensor):
            return args
        recording = _is_grad_enabled() and _any_requires_grad(*self.schema.flatten(args)[1])
        return self._keeping(args, recording)

    def _keeping(self, args: tuple, recording: bool) -> tuple:
        """The arguments with save_for_backward and need_weights set."""
        args = list(self.schema.full(args))
        for k, name in enumerate(self.schema.arguments):
            if name == "save_for_backward":
                args[k] = recording
            elif name == "need_weights":
                args[k] = recording and _any_requires_grad(*args[self.schema.arguments.index("weights")])
        return tuple(args)

    def refuse(self, error: Exception, *args: Any) -> NoReturn:
        """Raises the error of a call; if the arguments were rejected, as the exception that a Python user expects."""
        refusal = error
        try:
            self.check(*args)
            # C++ alone checks what depends on data, such as batch_sizes.
            if str(error).startswith(f"{self.name}: "):
                refusal = ValueError(str(error))
        except (TypeError, ValueError) as found:
            refusal = found
        if refusal is not error:
            refusal.__context__ = None  # torch's message for the same error
            refusal = refusal.with_traceback(None)
        try:
            raise refusal
        finally:
            del refusal, error  # the traceback holds this frame, and with it the arguments

    def call_flat(self, lengths: tuple[int, ...], flat: Args) -> tuple:
        return self.schema.flatten_results(self.op(*self.schema.nest(lengths, flat)))

    def _autograd(self, *args: Any) -> Any:
        lengths, flat = self.schema.flatten(args)
        if _is_grad_enabled() and _any_requires_grad(*flat):
            return self.schema.nest_results(lengths, self.function(lengths).apply(*flat))
        # Read from the tensors: a captured graph doesn't keep Python's count of open levels, which also includes levels
        # that other threads have opened.
        if not any(isinstance(a, Tensor) and _unpack_dual(a, level=0)[1] is not None for a in flat):
            with _below_autograd():
                return self.op(*args)
        # Dual tensors outside functorch: the definition carries their tangents, and keeps nothing for a backward.
        self.check(*args)
        outputs = self.definition(*args)
        if not self.kept:
            return outputs
        kept = (args[0].new_empty(0) for _ in range(self.kept))
        return (*(outputs if isinstance(outputs, tuple) else (outputs,)), *kept)

    def _transformed(self, *args: Any) -> Any:
        lengths, flat = self.schema.flatten(args)
        flat = _cast(flat) if self.casts else flat
        return self.schema.nest_results(lengths, self.function(lengths).apply(*flat))

    def _older_map(self, *args: Any) -> Any:
        lengths, flat = self.schema.flatten(args)
        results = older_map_each(self.name, functools.partial(self.call_flat, lengths), flat)
        return self.schema.nest_results(lengths, results)

    def _below_autocast(self, keys: torch._C.DispatchKeySet, *args: Any) -> Any:
        if self.casts:
            lengths, flat = self.schema.flatten(args)
            args = self.schema.nest(lengths, _cast(flat))
        # Below here a product of float32 must stay float32.
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return self.op(*args)

    def check(self, *args: Any) -> None:
        self.check_named(self.name, self.schema.named(args))

    def _fake(self, *args: Any) -> Any:
        self.check(*args)
        return self.fake_named(self.schema.named(args))


def _cast(args: tuple) -> tuple:
    """The arguments, cast like a product's by autocast; above autograd, so that a Function keeps what the kernel
    got."""
    device = next(a.device.type for a in args if isinstance(a, Tensor))
    if not torch.is_autocast_enabled(device):
        return args
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() and a.dtype != torch.float64 else a for a in args
    )
