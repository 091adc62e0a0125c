"""What the modules check before an operator does, in words about the module."""

import numbers
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

# The types of tensor that mean what they say. torch's stand-ins, while a program is captured, do.
PLAIN = frozenset({Tensor, nn.Parameter, FakeTensor, FunctionalTensor})


def expect_size(module: str, name: str, value: Any) -> int:
    """A layer's size: a whole number of at least 1."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"{module}: expected {name} to be an int, but got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{module}: expected {name} to be at least 1, but got {value}")
    return int(value)


def expect_features(module: str, input: Any, input_size: int, parameter: Tensor) -> None:
    """What a user got wrong is the input, though it may be the parameters that then do not fit."""
    if isinstance(input, torch.fx.Proxy):  # which stands for a tensor while symbolic_trace looks on
        return
    if not isinstance(input, Tensor):
        raise TypeError(f"{module}: expected the input to be a torch.Tensor, but got {type(input).__name__}")
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
            f"{module}: expected the input to have the parameters' dtype {parameter.dtype}, but got {input.dtype}"
        )


def expect_pair(module: str, state: Any, names: str) -> tuple[Tensor, Tensor]:
    """A recurrent state: two tensors, and not one tensor that could be cut in two."""
    if not isinstance(state, (tuple, list)) or len(state) != 2 or not all(isinstance(s, Tensor) for s in state):
        raise TypeError(f"{module}: expected the state to be a pair of tensors, {names}")
    return state[0], state[1]
