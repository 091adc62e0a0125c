"""Linear layers of an nn.Sequential that look like a stack and are none, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fourfold.stacks import ACTIVATIONS, Stack

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


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
    layers = [child for child in children if isinstance(child, nn.Linear)]
    sizes = (layers[0].in_features, *(layer.out_features for layer in layers))
    names = dict.fromkeys(type(child).__name__ for child in children)
    return f"{'-'.join(names)} {'-'.join(map(str, sizes))}"


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
