"""What the recurrent operators share: from a cell's description, checks, fake kernels, gradients and vmap rules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fourfold.operators import _check, _declare, _prepack, _shapes
from fourfold.operators._operator import Operator


@dataclass(frozen=True, eq=False)
class Cell:
    """A recurrent operator's description.

    states: the names of what a step hands to the next.
    kept: how many values of a hidden unit the forward keeps of its gates.
    parameters: the shapes of the arguments that hold the weights, in order.
    definition: the operator in plain torch; returns the output and the final state.
    """

    name: str
    states: tuple[str, ...]
    kept: int
    parameters: dict[str, str]
    definition: Callable[..., tuple]

    def shapes(self, packed: bool) -> dict[str, str]:
        """Of all tensors, with a dimension of rows in the place of time and batch where the input is packed."""
        steps, rows = ("rows", "rows") if packed else ("time batch", "time*batch")
        return {
            "input": f"{steps} input_size",
            **{f"{state}_0": "batch hidden_size" for state in self.states},
            "reset": f"? {steps}",
            **self.parameters,
            "output": f"{steps} hidden_size",
            **{f"{state}_n": "batch hidden_size" for state in self.states},
            "gates": f"{rows} {self.kept}*hidden_size",
            **({"cells": f"{rows} hidden_size"} if len(self.states) > 1 else {}),
        }


def kept_dtype(like: Tensor) -> torch.dtype:
    """bfloat16 is kept as it is, whatever it is computed in; float16 is computed in float32 on a CPU, and kept so."""
    return like.dtype if like.dtype == torch.bfloat16 else _check.kept_dtype(like)


def declare(cell: Cell) -> Operator:
    """The operator, its backward's and the one that prepacks its weights."""
    layouts = {packed: cell.shapes(packed) for packed in (False, True)}
    arguments = [name for name in layouts[False] if name not in ("output", "gates", "cells") and name[-2:] != "_n"]
    results = ["output", *(f"{state}_n" for state in cell.states)]
    kept = ["gates", "cells"][: len(cell.states)]

    def layout(a: SimpleNamespace) -> dict[str, str]:
        return layouts[a.batch_sizes is not None]

    def sizes_of(op: str, a: SimpleNamespace) -> _shapes.Sizes:
        shapes = layout(a)
        sizes = _shapes.check(op, {name: shapes[name] for name in arguments}, a, dtypes={"reset": torch.bool})
        rows = sizes["rows"] if a.batch_sizes is not None else sizes["time"] * sizes["batch"]
        _check.expect_countable(op, "what is kept of each step", rows, cell.kept * sizes["hidden_size"])
        return sizes

    def check(op: str, a: SimpleNamespace) -> None:
        if a.batch_sizes is not None:
            _check.expect_tensor(op, "batch_sizes", a.batch_sizes)
            if a.batch_sizes.device.type != "cpu" and not (a.batch_sizes.is_meta and a.input.is_meta):
                raise ValueError(f"{op}: expected batch_sizes to be on the CPU, but got {a.batch_sizes.device}")
        sizes_of(op, a)
        if a.batch_sizes is not None:
            _check.expect_dtype(op, "batch_sizes", a.batch_sizes, torch.int64)
            _check.expect_shape(op, "batch_sizes", a.batch_sizes, {"time": None})
        if getattr(a, "prepacked", None) is not None:
            _check.expect_tensors(op, input=a.input, prepacked=a.prepacked)
            _check.expect_prepacked(op, a.prepacked)

    def check_backward(op: str, a: SimpleNamespace) -> None:
        sizes, shapes = sizes_of(op, a), layout(a)
        _check.expect_gradient(op, "output", a.output, a.input, _shapes.expected(shapes["output"], sizes))
        for name in results:
            grad = getattr(a, f"grad_{name}")
            _check.expect_gradient(op, f"grad_{name}", grad, a.input, _shapes.expected(shapes[name], sizes))
        for name in kept:
            wanted = _shapes.expected(shapes[name], sizes)
            wanted = {"rows" if "time" in dimension else dimension: size for dimension, size in wanted.items()}
            _check.expect_kept(op, getattr(a, name), a.input, kept_dtype(a.input), wanted)
        _check.expect_mask(op, a.output_mask, 1 + len(cell.states) + len(cell.parameters))

    def fake(a: SimpleNamespace) -> tuple[Tensor, ...]:
        sizes, shapes = sizes_of(cell.name, a), layout(a)

        def empty(name: str, dtype: torch.dtype) -> Tensor:
            left_out = name in kept and not a.save_for_backward
            return a.input.new_empty(
                (0,) if left_out else list(_shapes.expected(shapes[name], sizes).values()), dtype=dtype
            )

        outputs = (empty(name, a.input.dtype) for name in results)
        return (*outputs, *(empty(name, kept_dtype(a.input)) for name in kept))

    def vmap(operator: Any, size: int, dims: SimpleNamespace, a: SimpleNamespace) -> tuple | None:
        if a.batch_sizes is not None:  # packed input has no batch dimension to fold
            return None
        shapes = layouts[False]
        given = {name: shapes[name] for name in arguments}
        return _shapes.folded(operator, given, size, dims, a, [shapes[name] for name in (*results, *kept)])

    forward = _declare.declare(
        cell.name,
        check=check,
        check_backward=check_backward,
        fake=fake,
        definition=_with_known_batch_sizes(cell),
        vmap=vmap,
        casts=True,
    )
    # By weight_hh the hidden size is known, so weight_ih comes last.
    _prepack.declare(cell.name, dict(sorted(cell.parameters.items(), key=lambda item: item[0] == "weight_ih")))
    return forward


def _with_known_batch_sizes(cell: Cell) -> Callable[..., tuple]:
    """The definition, which reads batch_sizes."""

    @functools.wraps(cell.definition)
    def definition(**given: Any) -> tuple:
        batch_sizes = given["batch_sizes"]
        if batch_sizes is not None:
            if _is_fake(batch_sizes):
                raise NotImplementedError(
                    f"{cell.name}: forward-mode and second derivatives of packed input read batch_sizes, which a "
                    "captured graph does not know; compute them outside torch.compile"
                )
            _check.expect_batch_sizes(cell.name, batch_sizes, given["input"].shape[0], given["h_0"].shape[0])
        return cell.definition(**given)

    return definition


def _is_fake(tensor: Tensor) -> bool:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return isinstance(tensor, torch._subclasses.FakeTensor)
