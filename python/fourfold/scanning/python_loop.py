"""Runs the steps one by one in Python: the definition of scan, and the fallback under transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fourfold.scanning.structure import Structure, expect_pair, shown


def python_loop(
    step: Callable[..., object],
    structure: Structure,
    carries: Sequence[Tensor],
    sequences: Sequence[Tensor],
    steps: int,
    reverse: bool,
) -> tuple[list[Tensor], list[Tensor | None], pytree.TreeSpec]:
    """The last carry's leaves, the results' leaves and the results' structure. Raises ValueError for no steps."""
    if steps == 0:
        where = "under transforms and tracers, and without fourfold's compiled library"
        raise ValueError(f"scan: expected at least one step {where}, but got xs of size 0")
    carry, rows, spec = structure.carry([each.clone() for each in carries]), [], None  # the step may change them
    for t in range(steps - 1, -1, -1) if reverse else range(steps):
        returned = step(carry, structure.xs([each.select(0, t).clone() for each in sequences]))
        expect_pair(returned)
        carry, y = returned
        leaves, carry_spec = pytree.tree_flatten(carry)
        if carry_spec != structure.carry_spec:
            raise TypeError(
                f"scan: expected the step to return a carry like init, {shown(structure.carry_spec)}, but got "
                f"{shown(carry_spec)}"
            )
        row, spec = pytree.tree_flatten(y)
        rows.append([leaf if isinstance(leaf, Tensor) or leaf is None else torch.tensor(leaf) for leaf in row])
    if reverse:
        rows.reverse()
    ys = [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]
    return [leaf for leaf in leaves if leaf is not None], ys, spec
