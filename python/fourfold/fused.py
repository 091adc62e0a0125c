"""The classes that fourfold.optimize gives to torch.nn's layers. They look at each call: what fourfold's operators do
not take, and what someone follows, runs as torch.nn's own class runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.rnn import PackedSequence

from fourfold.plain import PLAIN, is_followed
from fourfold.torch_layers import _CELL_NAMES, GRU, LSTM, GRUCell, LSTMCell

_FORWARDS = {kind: kind.forward for kind in (nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell)}
_ABSENT = object()


class Fused:
    """former: torch's class, which :func:`fourfold.restore` gives back."""

    former: ClassVar[type[nn.Module]]

    def __prepare_scriptable__(self) -> NoReturn:
        raise TypeError(
            "torch.jit.script: expected a model of torch.nn's own layers, but one is optimized; call "
            "fourfold.restore(model) first, or torch.jit.trace, which takes it as it is"
        )


class _FusedLayer(Fused):
    """A recurrent layer or cell."""

    @property
    def qconfig(self) -> NoReturn:
        # torch.ao's mark of what it shall quantize. Without it a layer has none.
        raise AttributeError(f"'{type(self).__name__}' object has no attribute 'qconfig'")

    @qconfig.setter
    def qconfig(self, value: Any) -> NoReturn:
        raise TypeError(
            "torch.ao.quantization: expected a model of torch.nn's own layers, but one is optimized; call "
            "fourfold.restore(model) first, then quantize, then fourfold.optimize(model) for the other layers"
        )

    def _is_torchs(self, input: Any, hx: Any) -> bool:
        """Whether a call is torch's to run."""
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
        return is_followed() or sees_nodes(self) or not is_torchs_class(self.former)

    def _run_torchs(self, input: Any, hx: Any) -> Any:
        if isinstance(input, torch.fx.Proxy) and self is not input.tracer.root:
            # To torch's own tracer a layer of torch.nn is one node, and so is this one.
            path = input.tracer.path_of_module(self)
            return input.tracer.create_proxy("call_module", path, (input, hx), {})
        return self.former.forward(self, input, hx)


def names_of(layer: nn.Module) -> Sequence[str]:
    return layer._flat_weights_names if isinstance(layer, nn.RNNBase) else _CELL_NAMES


def is_torchs_class(kind: type[nn.Module]) -> bool:
    """Whether a class of torch's runs torch's forward, which a program may exchange."""
    return kind.forward is _FORWARDS[kind]


def sees_nodes(module: nn.Module) -> bool:
    """Whether a hook of the module's gets what its last operation has for a backward, as torch's first backward hooks
    did."""
    if module._backward_hooks and not module._is_full_backward_hook:
        return True
    return bool(torch_module._global_backward_hooks and not torch_module._global_is_full_backward_hook)


class _FusedSequence(_FusedLayer):
    def _forward(self, input: Any, hx: Any, reset: Any) -> Any:
        if not self._is_torchs(input, hx):
            return super()._forward(input, hx, reset)
        if reset is not None:
            raise TypeError(
                f"{self.mode}: expected no reset in a call that torch.nn.{self.mode} runs, as it does where the input "
                "or a parameter is no plain tensor and where a mode follows the call; leave reset out"
            )
        return self._run_torchs(input, hx)


class FusedLSTM(_FusedSequence, LSTM):
    former = nn.LSTM


class FusedGRU(_FusedSequence, GRU):
    former = nn.GRU


class _FusedCell(_FusedLayer):
    def forward(self, input: Tensor, hx: Any = None) -> Any:
        if self._is_torchs(input, hx):
            return self._run_torchs(input, hx)
        return super().forward(input, hx)


class FusedLSTMCell(_FusedCell, LSTMCell):
    former = nn.LSTMCell


class FusedGRUCell(_FusedCell, GRUCell):
    former = nn.GRUCell
