"""The modules' checks before an operator's own, with messages about the module."""

import numbers
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.utils.rnn import PackedSequence

from fourfold.operators._check import is_dense, kind_of

# Tensor types without behaviour of their own, including torch's stand-ins while a program is captured.
PLAIN = frozenset({Tensor, nn.Parameter, FakeTensor, FunctionalTensor})


def expect_size(module: str, name: str, value: Any) -> int:
    """A layer's size: a whole number of at least 1."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{module}: expected {name} to be an int, but got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{module}: expected {name} to be at least 1, but got {value}")
    return int(value)


def expect_features(module: str, input: Any, input_size: int, parameter: Tensor) -> None:
    """Reports a wrong input as such, although the error may have been about the parameters, which then don't fit."""
    if isinstance(input, torch.fx.Proxy):  # stands for a tensor in symbolic_trace
        return
    if not isinstance(input, Tensor):
        raise TypeError(f"{module}: expected the input to be a torch.Tensor, but got {type(input).__name__}")
    if not is_dense(input):
        raise TypeError(f"{module}: expected the input to be a dense tensor, but got {kind_of(input)}")
    if input.dim() > 0 and input.shape[-1] != input_size:
        raise ValueError(
            f"{module}: expected the last dimension of the input to be input_size = {input_size}, "
            f"but got shape {tuple(input.shape)}"
        )
    if input.device != parameter.device:
        raise ValueError(
            f"{module}: expected the input to be on the parameters' device {parameter.device}, but got {input.device}"
        )
    if input.dtype != parameter.dtype and not torch.is_autocast_enabled(input.device.type):
        raise TypeError(
            f"{module}: expected the input to have the parameters' dtype {parameter.dtype}, but got {input.dtype}; "
            f"convert it with input.to({parameter.dtype})"
        )


def expect_unbatched(module: str, name: str, state: Tensor) -> Tensor:
    """The state of an unbatched call of a cell, as a batch of one."""
    if state.dim() != 1:
        raise RuntimeError(
            f"{module}: expected {name} to be 1D as the unbatched input is, but got shape {tuple(state.shape)}; "
            "give both a batch, or neither"
        )
    return state.unsqueeze(0)


def expect_pair(module: str, state: Any, names: str) -> tuple[Tensor, Tensor]:
    """A recurrent state: a pair of tensors; one tensor, which could be unpacked too, is rejected."""
    if not isinstance(state, (tuple, list)) or len(state) != 2 or not all(isinstance(s, Tensor) for s in state):
        raise TypeError(f"{module}: expected the state to be a pair of tensors, {names}")
    return state[0], state[1]


def not_dense(*arguments: Any) -> str | None:
    """Describes the first tensor among a layer's arguments that is not dense; None if there is none."""
    for argument in arguments:
        if isinstance(argument, (tuple, list)):
            found = not_dense(argument.data) if isinstance(argument, PackedSequence) else not_dense(*argument)
        else:
            found = kind_of(argument) if isinstance(argument, Tensor) and not is_dense(argument) else None
        if found is not None:
            return found
    return None
