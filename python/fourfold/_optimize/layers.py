"""The classes that fourfold.optimize assigns to torch.nn's layers. They check each call: it runs as in torch.nn if
fourfold's operators don't support its arguments, or if a mode or a tracer observes it.

A subclass of torch.Tensor, or a mode, may change the meaning of torch's operations; a tracer records them.
"""

import inspect
import operator
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fourfold import _onnx
from fourfold._optimize.limits import over_limits, why_no_kernel
from fourfold.nn.checks import PLAIN
from fourfold.nn.lstm_gru import CELL_NAMES, GRU, LSTM, GRUCell, LSTMCell
from fourfold.nn.mlp import ACTIVATIONS

IDENTITIES = (nn.Dropout, nn.AlphaDropout, nn.Identity)  # return their input in eval mode
_KINDS = (nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, nn.Sequential, nn.Linear, *ACTIVATIONS, *IDENTITIES)
# The forwards that the operators implement; a program may replace them.
FORWARDS = {kind: kind.forward for kind in _KINDS}
# Everything that a call in torch.nn runs. A subclass that overrides one of these may compute something else.
_CALLED = (
    *("forward", "__call__", "_call_impl", "_wrapped_call_impl", "__getattr__", "__getattribute__", "__iter__"),
    *("check_input", "check_hidden_size", "check_forward_args", "get_expected_hidden_size", "get_expected_cell_size"),
    *("permute_hidden", "weight", "bias", "_flat_weights", *CELL_NAMES),
)
_torchs_classes: dict[type, type[nn.Module] | None] = {kind: kind for kind in FORWARDS}
_ABSENT = object()
SEES_NODES = (
    "it has a hook of register_backward_hook, which looks into torch's graph; register_full_backward_hook does not"
)

_strided = torch.strided
_is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._is_tracing
_function_modes = torch._C._len_torch_function_stack
_function_mode_at = torch._C._get_function_stack_at
_dispatch_modes = torch._C._len_torch_dispatch_stack


def is_plain(tensor: Any) -> bool:
    return type(tensor) in PLAIN and tensor.layout is _strided and not tensor.is_nested


def why_not_plain(layer: nn.Module, names: Iterable[str], whose: str = "its") -> str | None:
    """Why fourfold's operators don't support a layer's parameters, or None."""
    own = layer._parameters
    for name in names:
        tensor = own.get(name, _ABSENT)
        if tensor is None or is_plain(tensor):
            continue
        if tensor is _ABSENT:
            return f"{whose} {name} is computed from other parameters, as by weight_norm or pruning"
        if type(tensor) in PLAIN:
            return f"{whose} {name} is not a dense tensor"
        return f"{whose} {name} is a {type(tensor).__name__}, not a plain torch.Tensor or Parameter"
    return None


def is_followed() -> bool:
    """Whether a mode or a tracer observes torch's operations one by one."""
    # torch's own function modes, such as torch.set_default_device's, don't change the operations.
    modes = _function_modes()
    if modes and any(not type(_function_mode_at(k)).__module__.startswith("torch.") for k in range(modes)):
        return True
    if _is_compiling():
        return _onnx.is_under_way()
    if _is_tracing():
        return True
    # torch's own modes handle fake tensors and captured programs, and support the operators.
    return _dispatch_modes() > 0 and any(not mode.is_infra_mode() for mode in _get_current_dispatch_mode_stack())


class Fused:
    """former: the class that :func:`fourfold.restore` gives back, torch's or a user's that derives from it.
    torchs: torch's."""

    former: ClassVar[type[nn.Module]]
    torchs: ClassVar[type[nn.Module]]

    def __prepare_scriptable__(self) -> NoReturn:
        raise TypeError(
            "torch.jit.script: expected a model of torch.nn's own layers, but one is optimized; call "
            "fourfold.restore(model) first, or use torch.jit.trace, which supports optimized models"
        )


class _FusedLayer(Fused):
    """A recurrent layer or cell."""

    @property
    def qconfig(self) -> NoReturn:
        # torch.ao marks modules to quantize with this attribute. Reading it raises, as if it were not set.
        raise AttributeError(f"'{type(self).__name__}' object has no attribute 'qconfig'")

    @qconfig.setter
    def qconfig(self, value: Any) -> NoReturn:
        raise TypeError(
            "torch.ao.quantization: expected a model of torch.nn's own layers, but one is optimized; call "
            "fourfold.restore(model) first, then quantize, then fourfold.optimize(model) for the other layers"
        )

    def _is_torchs(self, input: Any, hx: Any) -> bool:
        """Whether torch's class has to run a call."""
        if type(input.data if type(input) is PackedSequence else input) not in PLAIN:
            return True
        if hx is not None:
            for state in hx if isinstance(hx, (tuple, list)) else (hx,):
                if type(state) not in PLAIN:
                    return True
        own = self._parameters
        for name in names_of(self):
            parameter = own.get(name, _ABSENT)
            if parameter is not None and type(parameter) not in PLAIN:
                return True
        return is_followed() or sees_nodes(self) or not runs_torchs_forward(self.former)

    def _run_torchs(self, input: Any, hx: Any) -> Any:
        if isinstance(input, torch.fx.Proxy) and self is not input.tracer.root:
            # torch's own tracer makes a layer of torch.nn one node, and this one too.
            path = input.tracer.path_of_module(self)
            return input.tracer.create_proxy("call_module", path, (input, hx), {})
        return self.former.forward(self, input, hx)


def names_of(layer: nn.Module) -> Sequence[str]:
    return layer._flat_weights_names if isinstance(layer, nn.RNNBase) else CELL_NAMES


def torchs_class(kind: type[nn.Module]) -> type[nn.Module] | None:
    """The class of torch whose calls a class has: itself, or the base of a subclass that overrides nothing that a call
    runs; otherwise None."""
    if kind not in _torchs_classes:
        if _is_compiling():  # Dynamo can't trace inspect; unknown classes run as they are
            return None
        base = next((base for base in kind.__mro__ if base in FORWARDS), None)
        same = all(inspect.getattr_static(kind, n, None) is inspect.getattr_static(base, n, None) for n in _CALLED)
        _torchs_classes[kind] = base if same and not issubclass(kind, nn.modules.lazy.LazyModuleMixin) else None
    return _torchs_classes[kind]


def runs_torchs_forward(kind: type[nn.Module]) -> bool:
    """Whether a class runs torch's forward, which a program may replace at any time."""
    base = torchs_class(kind)
    return base is not None and kind.forward is FORWARDS[base]


def why_class_is_left(module: nn.Module, ours: type["Fused"]) -> str | None:
    """Why a module can't get a class that derives from ours and its own, or None."""
    kind, torchs = type(module), ours.torchs
    if torchs_class(kind) is not torchs:
        return "a subclass, whose forward may differ"
    if not runs_torchs_forward(kind) or "forward" in module.__dict__:
        return "its forward was replaced"
    own = [c for c in kind.__mro__ if c not in torchs.__mro__]
    if type(kind) is not type or any("__init_subclass__" in vars(c) for c in own):
        return "a subclass with a metaclass or an __init_subclass__, which would run for fourfold's derived class"
    # The attributes would clash. torch.nn's layers have a list _all_weights, and torch.ao sets a qconfig.
    mine = {n for c in ours.__mro__ if c not in torchs.__mro__ for n in vars(c)} - {"_all_weights", "qconfig"}
    taken = sorted(n for n in mine & {*vars(module), *(n for c in own for n in vars(c))} if not n.startswith("__"))
    return f"it has an attribute {taken[0]}, as fourfold's class has" if taken else None


def sees_nodes(module: nn.Module) -> bool:
    """Whether a hook of the module gets the autograd node of its last operation, as torch's original backward hooks
    do."""
    if module._backward_hooks and not module._is_full_backward_hook:
        return True
    return bool(torch_module._global_backward_hooks and not torch_module._global_is_full_backward_hook)


def why_layer_is_left(module: nn.Module) -> str | None:
    """Why a recurrent layer or cell can't be changed, or None."""
    if isinstance(module, (nn.RNN, nn.RNNCell)):
        return "fourfold has no operator for it"
    if nn.utils.parametrize.is_parametrized(module):
        return "its parameters are parametrized"
    ours = next((ours for torchs, ours in FUSED_LAYERS.items() if isinstance(module, torchs)), None)
    if ours is None:
        return "fourfold has no operator for it"
    if (reason := why_class_is_left(module, ours)) is not None:
        return reason
    if sees_nodes(module):
        return SEES_NODES
    if getattr(module, "proj_size", 0):
        return "it has a proj_size"
    weight = next(module.parameters(), None)
    if weight is None:
        return "it has no parameters"
    reason = why_not_plain(module, names_of(module)) or over_limits(weight.dtype, "hidden_size", module.hidden_size)
    return reason or why_no_kernel("lstm" if isinstance(module, (nn.LSTM, nn.LSTMCell)) else "gru", weight)


class _FusedSequence(_FusedLayer):
    def _is_torchs(self, input: Any, hx: Any) -> bool:
        # torch.nn's call reads this list, which a program may have changed, as weight-dropping code does.
        if not _is_compiling() and not self._lists_its_parameters():
            self._update_flat_weights()  # as torch.nn's call does if a parameter was replaced
            if not self._lists_its_parameters():
                return True
        return super()._is_torchs(input, hx)

    def _lists_its_parameters(self) -> bool:
        listed = self._flat_weights
        own = self._parameters
        return len(listed) == len(self._flat_weights_names) and all(
            map(operator.is_, listed, map(own.get, self._flat_weights_names))
        )

    def _forward(self, input: Any, hx: Any, reset: Any) -> Any:
        if not self._is_torchs(input, hx):
            return super()._forward(input, hx, reset)
        if reset is not None:
            raise TypeError(
                f"{self.mode}: expected no reset in a call that torch.nn.{self.mode} runs, because the input or "
                "a parameter is not a plain tensor, or a mode observes the call; leave reset out"
            )
        return self._run_torchs(input, hx)


class FusedLSTM(_FusedSequence, LSTM):
    former = torchs = nn.LSTM


class FusedGRU(_FusedSequence, GRU):
    former = torchs = nn.GRU


class _FusedCell(_FusedLayer):
    def forward(self, input: Tensor, hx: Any = None) -> Any:
        if self._is_torchs(input, hx):
            return self._run_torchs(input, hx)
        return super().forward(input, hx)


class FusedLSTMCell(_FusedCell, LSTMCell):
    former = torchs = nn.LSTMCell


class FusedGRUCell(_FusedCell, GRUCell):
    former = torchs = nn.GRUCell


FUSED_LAYERS = {ours.torchs: ours for ours in (FusedLSTM, FusedGRU, FusedLSTMCell, FusedGRUCell)}
