"""The module MLP: Linear layers and one activation between them, in one call."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fourfold import functional as F
from fourfold.nn.checks import PLAIN, expect_features, expect_size, not_dense
from fourfold.nn.recurrent import tensors_of

ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.GELU: "gelu", nn.SiLU: "silu"}
_CLASSES = {name: kind for kind, name in ACTIVATIONS.items()}
_TUTORIAL = ("hidden_weights", "output_weights", "hidden_bias", "output_bias")
_ABSENT = object()


def activation_of(child: nn.Module) -> str | None:
    """mlp_layers' name for what the module computes; None if it has none."""
    if type(child) is nn.GELU and child.approximate != "none":
        return None
    return ACTIVATIONS.get(type(child))


class MLP(nn.Module):
    """A network of Linear layers with an activation between them.

    ``MLP([64, 128, 10], activation="tanh")`` is ``nn.Sequential(Linear(64, 128), Tanh(), Linear(128, 10))`` in one
    call. It has the same children under the same names, "0", "1", …, and the same initial values, so the two can
    exchange state_dicts. The children hold the parameters. If a child has hooks, was replaced, or has parameters that
    are parametrized or not plain tensors, such as quantized ones, the children run one by one, as in a Sequential.

    ``MLP(64, 128, 10)`` has one hidden layer, and the parameters of AMD's C++ extension tutorial.

    Args:
        sizes: the sizes of the input, each hidden layer and the output; at least two. In the tutorial's form the
            size of the input, which may be passed as input_size.
        hidden_size, output_size: in the tutorial's form, the other two sizes.
        bias: whether all layers have a bias.
        activation: "relu", "tanh", "gelu" (exact, by erf) or "silu".
        device, dtype: of the parameters.

    Shapes:
        (..., input_size) to (..., output_size).

    Attributes:
        hidden_weights: in the tutorial's form, (hidden_size, input_size).
        hidden_bias: (1, hidden_size), or None. A checkpoint that holds (hidden_size,) loads too.
        output_weights: (output_size, hidden_size).
        output_bias: (1, output_size), or None. A checkpoint that holds (output_size,) loads too.

    Raises:
        ValueError: a size below 1, an unknown activation, or shapes that do not fit together.
        TypeError: sizes that are not integers, or dtypes that differ or are not floating point.
    """

    def __init__(
        self,
        sizes: Sequence[int] | int | None = None,
        hidden_size: int | None = None,
        output_size: int | None = None,
        bias: bool = True,
        activation: str = "relu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        input_size: int | None = None,
    ):
        super().__init__()
        if activation not in _CLASSES:
            raise ValueError(f"MLP: expected activation to be relu, tanh, gelu or silu, but got {activation}")
        self.activation = activation
        like = {"device": device, "dtype": dtype}
        if isinstance(sizes, Sequence):
            if (hidden_size, output_size, input_size) != (None, None, None):
                raise TypeError("MLP: expected all sizes in the list, or input_size, hidden_size and output_size alone")
            self.sizes: tuple[int, ...] = tuple(expect_size("MLP", f"sizes[{k}]", size) for k, size in enumerate(sizes))
            if len(self.sizes) < 2:
                raise ValueError(f"MLP: expected sizes to have those of the input and the output, but got {self.sizes}")
            for k, (inputs, outputs) in enumerate(pairwise(self.sizes)):
                if k > 0:
                    self.add_module(str(2 * k - 1), _CLASSES[activation]())
                self.add_module(str(2 * k), nn.Linear(inputs, outputs, bias, **like))
        else:
            named = {"input_size": sizes if sizes is not None else input_size}
            named |= {"hidden_size": hidden_size, "output_size": output_size}
            self.sizes = tuple(expect_size("MLP", name, size) for name, size in named.items())
            inputs, hidden, outputs = self.sizes
            self.hidden_weights: nn.Parameter = nn.Parameter(torch.empty(hidden, inputs, **like))
            self.output_weights: nn.Parameter = nn.Parameter(torch.empty(outputs, hidden, **like))
            for name, size in zip(_TUTORIAL[2:], (hidden, outputs), strict=True):
                self.register_parameter(name, nn.Parameter(torch.empty(1, size, **like)) if bias else None)
            self.reset_parameters()

    @property
    def input_size(self) -> int:
        return self.sizes[0]

    def reset_parameters(self) -> None:
        """torch.nn.Linear's rule; in the tutorial's form its own, all parameters uniform within ±1/√hidden_size."""
        for child in self.children():
            if isinstance(child, nn.Linear):
                child.reset_parameters()
        if not self._modules:
            bound = 1 / math.sqrt(self.sizes[1])
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        lists = self._lists()
        if lists is None:
            return self._child_by_child(x)
        weights, biases = lists
        try:
            return F.mlp_layers(x, weights, biases, self.activation)
        except (TypeError, ValueError):
            if self._modules and not_dense(x):  # a Sequential takes nested and sparse tensors
                return self._child_by_child(x)
            expect_features("MLP", x, self.sizes[0], weights[0])
            raise

    def _child_by_child(self, x: Tensor) -> Tensor:
        for child in self._modules.values():
            x = child(x)
        return x

    def _lists(self) -> tuple[list[Tensor], list[Tensor | None]] | None:
        """The weights and biases; None if a child was replaced, has hooks, or has parameters that are not plain
        tensors."""
        if not self._modules:
            hidden_weights, output_weights, hidden_bias, output_bias = tensors_of(self, _TUTORIAL)
            return [hidden_weights, output_weights], [hidden_bias, output_bias]
        weights, biases = [], []
        # One loop for all checks: a loop over the children costs as much as the smallest network's products.
        for child in self._modules.values():
            if child._forward_hooks or child._forward_pre_hooks or child._backward_hooks or child._backward_pre_hooks:
                return None
            if type(child) is nn.Linear:
                own = child._parameters
                weight, bias = own.get("weight"), own.get("bias", _ABSENT)
                if type(weight) not in PLAIN or (bias is not None and type(bias) not in PLAIN):
                    return None
                weights.append(weight)
                biases.append(bias)
            elif activation_of(child) != self.activation:
                return None
        whole = len(weights) == len(self.sizes) - 1 and len(self._modules) == 2 * len(weights) - 1
        return (weights, biases) if whole else None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key in (prefix + bias for bias in _TUTORIAL[2:]):
            if isinstance(state_dict.get(key), Tensor) and state_dict[key].dim() == 1:
                state_dict[key] = state_dict[key].unsqueeze(0)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        if self._modules:  # the children's reprs have the rest
            return ""
        said = ", ".join(map(str, self.sizes))
        said += "" if self.hidden_bias is not None else ", bias=False"
        return said + ("" if self.activation == "relu" else f", activation={self.activation!r}")
