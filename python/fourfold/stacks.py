"""Linear layers with an activation between, recognised in an nn.Sequential and run as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from fourfold import functional as F
from fourfold.fused import Fused, sees_nodes
from fourfold.limits import LIMITS
from fourfold.plain import is_followed, is_plain

# mlp_layers' activations, by torch.nn's class.
ACTIVATIONS = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.GELU: "gelu", nn.SiLU: "silu"}
# What the operator computes is what these classes compute, unless a program exchanges it.
_FORWARDS = {kind: kind.forward for kind in (nn.Linear, *ACTIVATIONS)}
_linear = nn.functional.linear
_ABSENT = object()


class Stack(NamedTuple):
    """children[begin:end] of a Sequential: layers with the same activation between each two."""

    begin: int
    end: int
    layers: tuple[nn.Linear, ...]
    activation: str


def run_stack(x: Tensor, layers: Sequence[nn.Linear], activation: str) -> Tensor:
    own = [layer._parameters for layer in layers]
    return F.mlp_layers(x, [p["weight"] for p in own], [p["bias"] for p in own], activation)


def count_weights(stack: Stack) -> int:
    return sum(layer.in_features * layer.out_features for layer in stack.layers)


def fits_limits(stack: Stack) -> bool:
    limits = LIMITS.get(stack.layers[0]._parameters["weight"].dtype)
    return limits is not None and count_weights(stack) <= limits.stack_weights


def find_stacks(children: Sequence[nn.Module]) -> list[Stack]:
    """The longest stacks of two layers or more, in order."""
    stacks, at = [], 0
    while at < len(children):
        stack = stack_at(children, at)
        if stack is not None:
            stacks.append(stack)
        at = at + 1 if stack is None else stack.end
    return stacks


def stack_at(children: Sequence[nn.Module], begin: int) -> Stack | None:
    if type(children[begin]) is not nn.Linear:
        return None
    layers, end, activation = [children[begin]], begin + 1, None
    while end + 1 < len(children):
        name = activation_of(children[end])
        if name is None or (activation or name) != name or type(children[end + 1]) is not nn.Linear:
            break
        activation = name
        layers.append(children[end + 1])
        end += 2
    return None if activation is None else Stack(begin, end, tuple(layers), activation)


def activation_of(child: nn.Module) -> str | None:
    """mlp_layers' name for what the module computes, if it has one."""
    if type(child) is nn.GELU and child.approximate != "none":
        return None
    return ACTIVATIONS.get(type(child))


def is_watched(child: nn.Module) -> bool:
    """Whether a call of the module does more than its forward, or its forward is not its class's."""
    return bool(
        child._forward_hooks
        or child._forward_pre_hooks
        or child._backward_hooks
        or child._backward_pre_hooks
        or "forward" in child.__dict__
        or type(child).forward is not _FORWARDS[type(child)]
    )


def has_plain_parameters(layer: nn.Linear) -> bool:
    own = layer._parameters
    bias = own.get("bias", _ABSENT)
    return is_plain(own.get("weight")) and (bias is None or is_plain(bias))


class FusedSequential(Fused, nn.Sequential):
    """An nn.Sequential that runs its stacks as one operator each. Children, and so state_dict's keys, are as they were.
    What a stack is, is looked at in each call: a child that was exchanged, or has a hook by now, is called itself."""

    former = nn.Sequential

    def forward(self, input: Any) -> Any:
        children = list(self._modules.values())
        layer_by_layer = (
            torch_module._has_any_global_hook()
            or is_followed()
            or sees_nodes(self)
            or nn.functional.linear is not _linear
        )
        at = 0
        while at < len(children):
            stack = None if layer_by_layer or not is_plain(input) else stack_at(children, at)
            fused = (
                stack is not None
                and all(map(has_plain_parameters, stack.layers))
                and fits_limits(stack)
                and not any(map(is_watched, children[at : stack.end]))
            )
            if fused:
                input = run_stack(input, stack.layers, stack.activation)
                at = stack.end
            else:
                input = children[at](input)
                at += 1
        return input
