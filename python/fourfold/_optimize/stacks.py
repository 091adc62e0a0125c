"""Linear layers with an activation between, recognised in an nn.Sequential and run as one operator; and those that look
like such a stack and are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _NormBase

from fourfold import functional as F
from fourfold._optimize.layers import Fused, is_followed, is_plain, is_torchs_class, sees_nodes
from fourfold._optimize.limits import LIMITS
from fourfold.nn.mlp import ACTIVATIONS, activation_of

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
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


def sizes_of(layers: Sequence[nn.Linear]) -> str:
    return "-".join(map(str, (layers[0].in_features, *(layer.out_features for layer in layers))))


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


def is_watched(child: nn.Module) -> bool:
    """Whether a call of the module does more than its forward, or its forward is not its class's."""
    return bool(
        child._forward_hooks
        or child._forward_pre_hooks
        or child._backward_hooks
        or child._backward_pre_hooks
        or "forward" in child.__dict__
        or not is_torchs_class(type(child))
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


class Unfused(NamedTuple):
    """children[begin:end] of a Sequential, from a Linear layer to a later one."""

    begin: int
    end: int
    kind: str
    reason: str


def find_unfused(children: Sequence[nn.Module], stacks: Sequence[Stack]) -> list[Unfused]:
    """Pairs of Linear layers, not in one stack, with nothing but activations, dropout or norms between; those that
    follow on one another for one reason are one entry."""
    found: list[Unfused] = []
    for begin, end in _pairs(children):
        if any(stack.begin <= begin and end <= stack.end for stack in stacks):
            continue
        reason = _reason(children, begin, end)
        if found and found[-1].end == begin + 1 and found[-1].reason == reason:
            begin = found.pop().begin
        found.append(Unfused(begin, end, _kind(children[begin:end]), reason))
    return found


def _pairs(children: Sequence[nn.Module]) -> Iterator[tuple[int, int]]:
    layers = [k for k, child in enumerate(children) if isinstance(child, nn.Linear)]
    for left, right in zip(layers, layers[1:], strict=False):
        between = children[left + 1 : right]
        if between and all(_may_stand_between(child) for child in between):
            yield left, right + 1


def _may_stand_between(child: nn.Module) -> bool:
    return isinstance(child, _NORMS) or (not child._modules and next(child.parameters(), None) is None)


def _kind(children: Sequence[nn.Module]) -> str:
    """As a stack's, with all the classes that occur, in order."""
    names = dict.fromkeys(type(child).__name__ for child in children)
    return f"{'-'.join(names)} {sizes_of([child for child in children if isinstance(child, nn.Linear)])}"


def _reason(children: Sequence[nn.Module], begin: int, end: int) -> str:
    for layer in (children[begin], children[end - 1]):
        if isinstance(layer, nn.LazyLinear):
            return "a LazyLinear has no weights before its first call; optimize the model after it"
        if nn.utils.parametrize.is_parametrized(layer):
            return "a layer's parameters are parametrized"
        if type(layer) is not nn.Linear:
            return f"its {type(layer).__name__} is a subclass of Linear, whose forward may be another"
    between = children[begin + 1 : end - 1]
    for child in between:
        if type(child) is nn.GELU and child.approximate != "none":
            return f"its GELU is approximate={child.approximate!r}, and the operator's is exact"
        if type(child) not in ACTIVATIONS:
            return f"{type(child).__name__} stands between its layers, and the operator has ReLU, Tanh, GELU and SiLU"
    if len(between) > 1:
        return "more than one activation stands between two of its layers"
    return "its activation is another than that of the stack before, and an operator takes one"
