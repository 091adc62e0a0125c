"""Derives the checks, fake kernels, gradients and vmap rules of recurrent operators from a cell's description."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fourfold import _C
from fourfold.operators import _check, _shapes
from fourfold.operators._function import map_each
from fourfold.operators._operator import Operator, library
from fourfold.operators._schema import schema_of


def declare(name: str, *, kept: int, parameters: dict[str, str], definition: Callable[..., tuple]) -> Operator:
    """Declares the operator, its backward, and the operator that prepacks its weights.

    kept: how many values of its gates the forward keeps for each hidden unit.
    parameters: the shapes of the arguments that hold the weights, in order.
    definition: the operator in plain torch; returns the output and the final state.
    """
    schema = schema_of(name)
    states = {argument: "batch hidden_size" for argument in schema.arguments if argument.endswith("_0")}

    def shapes(packed: bool) -> tuple[dict[str, str], dict[str, str]]:
        """The shapes of arguments and results; packed input has a dimension of rows instead of time and batch."""
        steps, rows = ("rows", "rows") if packed else ("time batch", "time*batch")
        given = {"input": f"{steps} input_size", **states, "reset": f"? {steps}", **parameters}
        made = {"output": f"{steps} hidden_size", "kept": f"{rows} {kept}*hidden_size", "cells": f"{rows} hidden_size"}
        return given, {result: made.get(result, "batch hidden_size") for result in schema.results}

    layouts = {packed: shapes(packed) for packed in (False, True)}

    def check_more(op: str, a: SimpleNamespace, sizes: _shapes.Sizes) -> None:
        rows = sizes["rows"] if a.batch_sizes is not None else sizes["time"] * sizes["batch"]
        _check.expect_countable(op, "what is kept of each step", rows, kept * sizes["hidden_size"])
        if a.batch_sizes is not None:
            _check.expect_tensor(op, "batch_sizes", a.batch_sizes)
            if a.batch_sizes.device.type != "cpu" and not (a.batch_sizes.is_meta and a.input.is_meta):
                raise ValueError(f"{op}: expected batch_sizes to be on the CPU, but got {a.batch_sizes.device}")
            _check.expect_dtype(op, "batch_sizes", a.batch_sizes, torch.int64)
            _check.expect_shape(op, "batch_sizes", a.batch_sizes, {"time": None})
        if getattr(a, "prepacked", None) is not None:
            # Checks metadata only; C++ reads from the data which weights were packed.
            _check.expect_tensors(op, input=a.input, prepacked=a.prepacked)
            _check.expect_dtype(op, "prepacked", a.prepacked, torch.uint8)
            _check.expect_shape(op, "prepacked", a.prepacked, {"bytes": None})
            if not a.prepacked.is_contiguous():
                raise ValueError(f"{op}: expected prepacked to be contiguous, but got stride {a.prepacked.stride(0)}")

    _declare_prepack(name, parameters)
    defined = _with_known_batch_sizes(name, definition)
    return _shapes.declare(
        name, lambda a: layouts[a.batch_sizes is not None], defined, check_more, kept_dtype, {"reset": torch.bool}
    )


def kept_dtype(like: Tensor) -> torch.dtype:
    """bfloat16 is kept as bfloat16, whatever it is computed in; float16 is computed and kept in float32 on a CPU."""
    return like.dtype if like.dtype == torch.bfloat16 else _check.kept_dtype(like)


def _declare_prepack(op: str, parameters: dict[str, str]) -> None:
    """Registers fake kernel and vmap rule of the operator that packs a layer's weights ahead of calls. It has no
    gradient."""
    name = f"{op}_prepack"
    prepack, schema = getattr(torch.ops.fourfold, name).default, schema_of(name)
    # The first of these determines the hidden size.
    shapes = dict(sorted(parameters.items(), key=lambda item: item[0] == "weight_ih"))
    (first, shape), *_ = shapes.items()
    rows, columns = map(_shapes.spelled, shape.split())
    both_inputs = "input_size" in columns

    def fake(*args: Any) -> Tensor:
        a = schema.named(args)
        weights = getattr(a, first)
        _check.expect_floating(name, first, weights)
        _check.expect_shape(name, first, weights, {rows if both_inputs else "rows": None, columns: None})
        _check.expect_countable(name, first, *weights.shape)
        hidden_size = weights.shape[0] // 3 if both_inputs else weights.shape[1]
        sizes = {"hidden_size": hidden_size, **({"input_size": weights.shape[1] - hidden_size} if both_inputs else {})}
        sizes = _shapes.check(name, shapes, a, sizes)
        dtype = str(weights.dtype).removeprefix("torch.")
        # Only C++ knows the layout of packed weights, so their sizes can't be symbolic here.
        size = _C.prepacked_bytes(op, dtype, int(sizes["input_size"]), int(sizes["hidden_size"]))
        return weights.new_empty(size, dtype=torch.uint8)

    def each(info: Any, in_dims: tuple, *args: Tensor | None) -> tuple[Tensor, int]:
        (packed,), _ = map_each(name, lambda one: (prepack(*one),), info, in_dims, args)
        return packed, 0

    torch.library.register_fake(f"fourfold::{name}", fake, lib=library)
    torch.library.register_vmap(f"fourfold::{name}", each, lib=library)


def _with_known_batch_sizes(name: str, definition: Callable[..., tuple]) -> Callable[..., tuple]:
    """The definition, preceded by a check of batch_sizes, which it reads."""

    @functools.wraps(definition)
    def known(**given: Any) -> tuple:
        batch_sizes = plain = given["batch_sizes"]
        if batch_sizes is not None:
            while torch._C._functorch.is_functorch_wrapped_tensor(plain):
                plain = torch._C._functorch.get_unwrapped(plain)
            if isinstance(plain, torch._subclasses.FakeTensor):
                raise NotImplementedError(
                    f"{name}: forward-mode and second derivatives of packed input read batch_sizes, which are unknown "
                    "in a captured graph; compute them outside torch.compile"
                )
            _check.expect_batch_sizes(name, batch_sizes, given["input"].shape[0], given["h_0"].shape[0])
        return definition(**given)

    return known
