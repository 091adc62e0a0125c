"""The structure of a scan's carry and sequence: pytrees with tensors as leaves."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Structure:
    """has_carry, has_x: for each leaf, whether it is a tensor; otherwise it is None. carry_kind, xs_kind: Tensor for a
    tensor, tuple for a tuple of tensors, which Dynamo traces faster without pytrees; None for other trees."""

    carry_spec: pytree.TreeSpec
    xs_spec: pytree.TreeSpec
    has_carry: tuple[bool, ...]
    has_x: tuple[bool, ...]
    carry_kind: type | None
    xs_kind: type | None

    @classmethod
    def of(cls, init: object, xs: object, dim: int) -> tuple[Structure, list[Tensor], list[Tensor]]:
        """Returns the structure, the carry's tensors, and the sequences' tensors with the steps as the first dimension.
        Raises ValueError or TypeError."""
        if not isinstance(dim, (int, torch.SymInt)):
            raise TypeError(f"scan: expected dim to be an integer, but got {dim!r}")
        leaves, carry_spec = flattened(init)
        carries = [as_tensor(leaf, k) for k, leaf in enumerate(leaves) if leaf is not None]
        given, xs_spec = flattened(xs)
        sequences = [leaf for leaf in given if leaf is not None]
        if not sequences:
            raise ValueError("scan: expected xs to have at least one tensor, whose size is the number of steps")
        for leaf in sequences:
            if not isinstance(leaf, Tensor):
                raise TypeError(f"scan: expected xs to be tensors, but got {type(leaf).__name__}")
            if not -leaf.dim() <= dim < leaf.dim():
                raise ValueError(
                    f"scan: expected tensors in xs with dimension {dim}, but got shape {tuple(leaf.shape)}"
                )
        lengths = [leaf.shape[dim] for leaf in sequences]
        if any(length != lengths[0] for length in lengths):  # symbolic under torch.export
            found = sorted({int(length) for length in lengths})
            raise ValueError(f"scan: expected tensors in xs of one size in dimension {dim}, but got {found}")
        if dim != 0:
            sequences = [leaf.movedim(dim, 0) for leaf in sequences]
        is_whole = len(carries) == len(leaves) and len(sequences) == len(given)
        key = id(carry_spec), id(xs_spec)
        if is_whole and key in _whole:
            return _whole[key], carries, sequences
        has = [tuple(leaf is not None for leaf in every) for every in (leaves, given)]
        kinds = map(kind_of, (carry_spec, xs_spec), has)
        found = cls(carry_spec, xs_spec, *has, *kinds)
        if is_whole and found.carry_kind is not None and found.xs_kind is not None:
            _whole[key] = found  # both kinds mean specs that are never freed
        return found, carries, sequences

    def __hash__(self) -> int:
        return self.own_hash

    @functools.cached_property
    def own_hash(self) -> int:
        """A spec computes its hash from its children at every call."""
        return hash((self.carry_spec, self.xs_spec, self.has_carry, self.has_x))

    def carry(self, leaves: Sequence[object]) -> object:
        if self.carry_kind is not None:
            return leaves[0] if self.carry_kind is Tensor else tuple(leaves)
        return pytree.tree_unflatten(filled(self.has_carry, leaves), self.carry_spec)

    def xs(self, leaves: Sequence[object]) -> object:
        if self.xs_kind is not None:
            return leaves[0] if self.xs_kind is Tensor else tuple(leaves)
        return pytree.tree_unflatten(filled(self.has_x, leaves), self.xs_spec)


_whole: dict[tuple[int, int], Structure] = {}  # those without None, by their specs


def shown(spec: pytree.TreeSpec) -> str:
    """A structure as a user writes it: (tensor, tensor)."""
    return str(pytree.tree_unflatten(["tensor"] * spec.num_leaves, spec)).replace("'tensor'", "tensor")


LEAVES = (Tensor, torch.nn.Parameter, type(None))


def flattened(tree: object) -> tuple[list[object], pytree.TreeSpec]:
    """Like ``pytree.tree_flatten``, which leaves a reference cycle for the garbage collector after every call."""
    kind = type(tree)
    if kind in LEAVES:
        return [tree], leaf_spec()
    if kind in (tuple, list) and all(type(each) in LEAVES for each in tree):
        return list(tree), spec_of_leaves(kind, len(tree))
    return pytree.tree_flatten(tree)


@functools.cache
def leaf_spec() -> pytree.TreeSpec:
    return pytree.tree_structure(None)


@functools.cache
def spec_of_leaves(kind: type, count: int) -> pytree.TreeSpec:
    """The structure of a tuple or a list of leaves."""
    return pytree.tree_structure(kind([None] * count))


def kind_of(spec: pytree.TreeSpec, has: Sequence[bool]) -> type | None:
    """spec: of ``flattened``, which returns the same object for trees of the same kind."""
    if not all(has):
        return None
    return Tensor if spec is leaf_spec() else tuple if spec is spec_of_leaves(tuple, len(has)) else None


def leaves_like(tree: object, kind: type | None, spec: pytree.TreeSpec) -> tuple[list[object], pytree.TreeSpec]:
    """Like ``pytree.tree_flatten``, for a tree that is likely of this kind and structure."""
    if kind is Tensor and isinstance(tree, Tensor):
        return [tree], spec
    if kind is tuple and type(tree) is tuple and len(tree) == spec.num_children and are_tensors(tree):
        return list(tree), spec
    return pytree.tree_flatten(tree)


def are_tensors(leaves: Sequence[object]) -> bool:
    for leaf in leaves:  # noqa: SIM110 - Dynamo traces all() more slowly
        if not isinstance(leaf, Tensor):
            return False
    return True


def filled(has: Sequence[bool], leaves: Sequence[object]) -> list[object]:
    """The leaves, with None in place of missing ones."""
    following = iter(leaves)
    return [next(following) if is_there else None for is_there in has]


def as_tensor(leaf: object, index: int) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    if isinstance(leaf, (bool, int, float, complex)):
        return torch.tensor(leaf)
    raise TypeError(f"scan: expected init to be tensors and numbers, but leaf {index} is {type(leaf).__name__}")


def is_pair(returned: object) -> bool:
    return isinstance(returned, (tuple, list)) and len(returned) == 2


class NotAPair(TypeError):
    """The step's result is not a pair."""


def expect_pair(returned: object) -> None:
    """Raises NotAPair."""
    if not is_pair(returned):
        kind = type(returned).__name__
        got = f"{kind} of {len(returned)}" if isinstance(returned, (tuple, list)) else kind
        raise NotAPair(f"scan: expected the step to return a pair, the new carry and the step's result, but got {got}")
