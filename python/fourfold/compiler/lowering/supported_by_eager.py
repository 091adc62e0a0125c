"""Asks torch's kernels for CPUs whether they support a call. Formulas and decompositions would compute some calls for
which eager mode raises an error, such as a complex loss, `ldexp` of truth values or the maximum of nothing; these are
left to torch, which raises it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.fx import Node
from torch.utils._mode_utils import no_dispatch

from fourfold.compiler.lowering.call import named

ANSWERS: dict[tuple[object, str], bool] = {}  # a cache, by operator and described arguments


def is_unusual(node: Node) -> bool:
    """Whether the node's operands have several dtypes, no floating one, or no elements."""
    tensors = [each.meta["val"] for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]
    dtypes = {each.dtype for each in tensors}
    is_plain = len(dtypes) == 1 and tensors[0].dtype.is_floating_point or not dtypes
    return not is_plain or any(0 in small(each.shape) for each in tensors)


def eager_supports(target: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether torch's kernel computes this call, tried with tensors of as many dimensions, each of size 2 at most.
    Arguments are nodes or traced tensors, numbers and settings. Calls that draw random numbers are not tried."""
    if torch.Tag.nondeterministic_seeded in target.tags:
        return True
    described = {name: spec_of(value, name) for name, value in named(target, args, kwargs).items()}
    key = target, repr(described)  # 1, 1.0 and True are equal, but are other calls
    if key not in ANSWERS:
        ANSWERS[key] = succeeds(target, described)
    return ANSWERS[key]


class TensorSpec:
    """A tensor's dtype, and its shape with sizes of at most 2: those of 1 are broadcast, those of 0 are empty."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype, self.shape = tensor.dtype, small(tensor.shape)

    def __repr__(self) -> str:
        return f"{self.dtype}{self.shape}"


def small(sizes: Sequence[int | torch.SymInt]) -> tuple[int, ...]:
    return tuple(min(size, 2) if isinstance(size, int) else 2 for size in sizes)


def spec_of(value: object, name: str) -> object:
    if isinstance(value, Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return TensorSpec(value)
    if isinstance(value, (list, tuple)):
        return small(value) if name == "normalized_shape" else [spec_of(each, name) for each in value]
    if isinstance(value, torch.SymInt):
        return 1
    return 1.0 if isinstance(value, torch.SymFloat) else value


def succeeds(target: Callable[..., object], described: Mapping[str, object]) -> bool:
    def own(value: object) -> object:
        if isinstance(value, list):
            return [own(each) for each in value]
        return torch.ones(value.shape, dtype=value.dtype) if isinstance(value, TensorSpec) else value

    with no_dispatch(), torch.no_grad():
        try:
            target(**{name: own(value) for name, value in described.items()})
        except (RuntimeError, TypeError, ValueError, IndexError):  # NotImplementedError is a RuntimeError
            return False
    return True
