"""Finds stacks of Linear layers with an activation between them in an nn.Sequential, and runs each as one operator;
also finds near misses."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _NormBase

from fourfold import functional as F
from fourfold._optimize.layers import (
    FORWARDS,
    IDENTITIES,
    SEES_NODES,
    Fused,
    is_followed,
    is_plain,
    runs_torchs_forward,
    sees_nodes,
    torchs_class,
    why_class_is_left,
    why_not_plain,
)
from fourfold._optimize.limits import over_limits, why_no_kernel
from fourfold.nn.mlp import ACTIVATIONS, activation_of

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_LEAVES = FORWARDS.keys() - {nn.Sequential}
_linear = nn.functional.linear


class Stack(NamedTuple):
    """leaves[begin:end] of a Sequential: layers with the same activation between each two, and dropout that is off."""

    begin: int
    end: int
    layers: tuple[nn.Linear, ...]
    activation: str


def leaves_of(module: nn.Module, path: str = "") -> list[tuple[str, nn.Module]]:
    """A Sequential's children by name, with nested Sequentials flattened, unless a hook or a forward of their own would
    be skipped."""
    leaves = []
    for name, child in module._modules.items():
        if isinstance(child, nn.Sequential) and not _is_seen(child):
            leaves += leaves_of(child, f"{path}{name}.")
        else:
            leaves.append((path + name, child))
    return leaves


def _is_seen(child: nn.Module) -> bool:
    """Whether a call of it does more than its forward in torch's class."""
    hooks = child._forward_hooks or child._forward_pre_hooks or child._backward_hooks or child._backward_pre_hooks
    if hooks or "forward" in child.__dict__:
        return True
    kind = type(child)
    if kind in FORWARDS:  # the fast path, since every call checks each layer
        return kind.forward is not FORWARDS[kind]
    return not runs_torchs_forward(kind.former if issubclass(kind, Fused) else kind)


def _is_linear(child: nn.Module) -> bool:
    return type(child) is nn.Linear or torchs_class(type(child)) is nn.Linear


def _is_off(child: nn.Module) -> bool:
    """Whether it returns its input, as dropout does in eval mode."""
    return type(child) in IDENTITIES and (not child.training or getattr(child, "p", 0) == 0)


def sizes_of(layers: Sequence[nn.Linear]) -> str:
    return "-".join(map(str, (layers[0].in_features, *(layer.out_features for layer in layers))))


def find_stacks(leaves: Sequence[nn.Module]) -> list[Stack]:
    """The longest stacks of two layers or more, in order, as they are in eval mode."""
    stacks, at = [], 0
    while at < len(leaves):
        stack = stack_at(leaves, at, lambda child: type(child) in IDENTITIES)
        if stack is not None:
            stacks.append(stack)
        at = at + 1 if stack is None else stack.end
    return stacks


def stack_at(leaves: Sequence[nn.Module], begin: int, is_off: Callable[[nn.Module], bool] = _is_off) -> Stack | None:
    linear, count = nn.Linear, len(leaves)
    if type(leaves[begin]) is not linear and not _is_linear(leaves[begin]):
        return None
    layers, end, activation = [leaves[begin]], begin + 1, None
    while True:
        name, at = None, end
        while at < count and type(leaves[at]) is not linear:
            found = activation_of(leaves[at])
            if found is not None and name is None:
                name = found
            elif found is not None or not is_off(leaves[at]):
                break
            at += 1
        if at == count or name is None or (activation or name) != name:
            break
        if type(leaves[at]) is not linear and not _is_linear(leaves[at]):
            break
        activation, end = name, at + 1
        layers.append(leaves[at])
    return None if activation is None else Stack(begin, end, tuple(layers), activation)


def why_not_one(stack: Stack, leaves: Sequence[nn.Module]) -> str | None:
    """Why a stack can't run as one operator, or None."""
    for child in leaves[stack.begin : stack.end]:
        if _is_seen(child):
            return "one of its layers has hooks or a replaced forward, which would not be called"
    for layer in stack.layers:
        reason = why_not_plain(layer, ("weight", "bias"), "a layer's")
        if reason is not None:
            return reason
    count = sum(layer.in_features * layer.out_features for layer in stack.layers)
    return over_limits(stack.layers[0]._parameters["weight"].dtype, "its number of weights", count)


def why_stack_is_left(module: nn.Sequential, stack: Stack, leaves: Sequence[nn.Module]) -> str | None:
    """Why a stack's container can't be changed, or None."""
    if (reason := why_class_is_left(module, FusedSequential)) is not None:
        return f"the container: {reason}"
    if sees_nodes(module):
        return SEES_NODES
    return why_not_one(stack, leaves) or why_no_kernel("mlp_layers", stack.layers[0].weight)


def has_dropout(stack: Stack, leaves: Sequence[nn.Module]) -> bool:
    return any(type(child) in IDENTITIES and getattr(child, "p", 0) > 0 for child in leaves[stack.begin : stack.end])


class FusedSequential(Fused, nn.Sequential):
    """An nn.Sequential that runs each of its stacks as one operator. Its children, and so state_dict's keys, don't
    change. Each call finds the stacks again: a child that was replaced, or has a hook by then, is called itself."""

    former = torchs = nn.Sequential

    def forward(self, input: Any) -> Any:
        layer_by_layer = (
            torch_module._has_any_global_hook()
            or is_followed()
            or sees_nodes(self)
            or nn.functional.linear is not _linear
            or not runs_torchs_forward(self.former)
        )
        if layer_by_layer:
            return self.former.forward(self, input)
        children = list(self._modules.values())
        if not _LEAVES.issuperset(map(type, children)):
            children = [child for _, child in leaves_of(self)]
        at = 0
        while at < len(children):
            stack = stack_at(children, at) if is_plain(input) else None
            if stack is not None and why_not_one(stack, children) is None:
                own = [layer._parameters for layer in stack.layers]
                input = F.mlp_layers(input, [p["weight"] for p in own], [p["bias"] for p in own], stack.activation)
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
    """Pairs of Linear layers that are not in one stack, with only activations, dropout or norms between them;
    consecutive pairs with the same reason are one entry."""
    found: list[Unfused] = []
    for begin, last in pairwise(k for k, child in enumerate(children) if isinstance(child, nn.Linear)):
        between, end = children[begin + 1 : last], last + 1
        plain = all(isinstance(c, _NORMS) or (not c._modules and next(c.parameters(), None) is None) for c in between)
        if not between or not plain or any(stack.begin <= begin and end <= stack.end for stack in stacks):
            continue
        reason = _why_no_stack(children[begin], between, children[last])
        if found and found[-1].end == begin + 1 and found[-1].reason == reason:
            begin = found.pop().begin
        whole = children[begin:end]
        names = dict.fromkeys(type(child).__name__ for child in whole)
        sizes = sizes_of([child for child in whole if isinstance(child, nn.Linear)])
        found.append(Unfused(begin, end, f"{'-'.join(names)} {sizes}", reason))
    return found


def _why_no_stack(first: nn.Linear, between: Sequence[nn.Module], last: nn.Linear) -> str:
    for layer in (first, last):
        if isinstance(layer, nn.LazyLinear):
            return "a LazyLinear has no weights before its first call; optimize the model after it"
        if nn.utils.parametrize.is_parametrized(layer):
            return "a layer's parameters are parametrized"
        if not _is_linear(layer):
            return f"its {type(layer).__name__} is a subclass of Linear, whose forward may differ"
    between = [child for child in between if type(child) not in IDENTITIES] or between
    for child in between:
        if type(child) is nn.GELU and child.approximate != "none":
            return f"its GELU is approximate={child.approximate!r}, and the operator's is exact"
        if type(child) not in ACTIVATIONS:
            return f"{type(child).__name__} is between its layers, and the operator supports ReLU, Tanh, GELU and SiLU"
    if len(between) > 1:
        return "there is more than one activation between two of its layers"
    return "its activation differs from that of the stack before; an operator has only one"
