"""Whether fourfold's operators compute what torch.nn's own code would: on plain tensors, in a call that nobody follows.

A subclass of torch.Tensor, and a mode, may give torch's operations another meaning; a tracer records them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

# torch's stand-ins for plain tensors, while a program is captured, are plain.
PLAIN = frozenset({Tensor, nn.Parameter, FakeTensor, FunctionalTensor})

_strided = torch.strided
_is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._is_tracing
_function_modes = torch._C._len_torch_function_stack
_function_mode_at = torch._C._get_function_stack_at
_dispatch_modes = torch._C._len_torch_dispatch_stack


def is_plain(tensor: Any) -> bool:
    return type(tensor) in PLAIN and tensor.layout is _strided and not tensor.is_nested


def why_not_plain(layer: nn.Module, names: Iterable[str], whose: str = "its") -> str | None:
    """What of a layer's parameters fourfold's operators don't take."""
    for name in names:
        if name not in layer._parameters:
            return f"{whose} {name} is no parameter, but made of others, as by weight_norm or pruning"
        tensor = layer._parameters[name]
        if tensor is None:
            continue
        if type(tensor) not in PLAIN:
            return f"{whose} {name} is a {type(tensor).__name__}, and not exactly a torch.Tensor or Parameter"
        if not is_plain(tensor):
            return f"{whose} {name} is no dense tensor"
    return None


def is_followed() -> bool:
    """Whether someone follows torch's operations one by one."""
    if _function_modes() and _by_function_mode():
        return True
    if _is_compiling():
        return _exports_onnx()
    return _is_tracing() or (_dispatch_modes() > 0 and _by_mode())


def _exports_onnx() -> bool:
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and onnx.is_in_onnx_export()


def _by_function_mode() -> bool:
    # torch's own, of which torch.set_default_device is one, leave the operations what they are.
    modes = (_function_mode_at(k) for k in range(_function_modes()))
    return any(not type(mode).__module__.startswith("torch.") for mode in modes)


def _by_mode() -> bool:
    # Of fake tensors and of captured programs torch's own modes take care, which know the operators.
    return any(not mode.is_infra_mode() for mode in _get_current_dispatch_mode_stack())
