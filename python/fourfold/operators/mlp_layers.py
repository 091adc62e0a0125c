"""mlp_layers: a network of any depth, one activation between its layers."""

import math
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from fourfold import reference
from fourfold.operators import _check, mlp
from fourfold.operators._axes import Axes, of_rows
from fourfold.operators._declare import declare

ACTIVATIONS = ("relu", "tanh", "gelu", "silu")


def _check_arguments(op: str, a: SimpleNamespace) -> None:
    if a.activation not in ACTIVATIONS:
        raise ValueError(f"{op}: expected activation to be relu, tanh, gelu or silu, but got {a.activation}")
    if not a.weights:
        raise ValueError(f"{op}: expected weights to have a matrix for each layer, but got none")
    count = len(a.weights)
    if len(a.biases) != count:
        raise ValueError(
            f"{op}: expected biases to have one for each of the {count} weights, None for a layer without, "
            f"but got {len(a.biases)}"
        )
    sizes_and_output = ("output_size", "input_size", "each layer's output")
    names = [(f"weights[{k}]", f"biases[{k}]", *sizes_and_output) for k in range(count)]
    rows, sizes = mlp.check_layers(op, a.x, names, a.weights, a.biases)
    _check.expect_countable(op, "all layers' outputs", rows, sum(sizes))


def _keeps_bits(x: Tensor, activation: str) -> bool:
    """Whether a relu is kept as bits if no gradient of a weight is needed: only the CPU's kernels do that."""
    return activation == "relu" and not x.is_cuda


def _kept_width(weights: list[Tensor], bits: bool) -> Any:
    return sum((w.shape[0] + 7) // 8 if bits else w.shape[0] for w in weights[:-1])


def _check_backward(op: str, a: SimpleNamespace) -> None:
    _check.expect_gradient_of_output(op, a.grad, a.x, a.weights[-1].shape[0])
    count = len(a.weights)
    _check.expect_mask(op, a.output_mask, 1 + 2 * count)
    bits = _keeps_bits(a.x, a.activation) and a.kept.dtype == torch.uint8
    kept = {"rows": math.prod(a.x.shape[:-1]), "kept_size": _kept_width(a.weights, bits)}
    _check.expect_kept(op, a.kept, a.x, torch.uint8 if bits else _check.kept_dtype(a.x), kept)
    if bits and any(a.output_mask[1 : 1 + count]):
        raise ValueError(
            f"{op}: the forward call saved only bits, which are not enough for the weights' gradients; call it with "
            "need_weights=True"
        )


def _fake(a: SimpleNamespace) -> tuple[Tensor, ...]:
    bits = not a.need_weights and _keeps_bits(a.x, a.activation)
    dtype = torch.uint8 if bits and a.save_for_backward else _check.kept_dtype(a.x)
    kept = (math.prod(a.x.shape[:-1]), _kept_width(a.weights, bits)) if a.save_for_backward else (0,)
    return a.x.new_empty(*a.x.shape[:-1], a.weights[-1].shape[0]), a.x.new_empty(kept, dtype=dtype)


FORWARD = declare(
    "mlp_layers",
    check=_check_arguments,
    check_backward=_check_backward,
    fake=_fake,
    definition=reference.mlp_layers,
    vmap=mlp.with_leading_dimension,
    casts=True,
    axes=Axes(partial(of_rows, kept="kept")),
)


def mlp_layers(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    activation: str = "relu",
) -> Tensor:
    """Computes linear layers with an activation f between them: … f(f(x W₀ᵀ + b₀) W₁ᵀ + b₁) ….

    Args:
        x: (..., input_size); float16, bfloat16, float32 or float64. The two low precisions compute in float32.
        weights: a matrix (output_size, input_size) for each layer, at least one, as in :class:`torch.nn.Linear`; x's
            dtype, as are all parameters. A layer's input_size is the output_size of the one before.
        biases: for each layer (output_size,), or (1, output_size), or None; None for a network without biases.
        activation: "relu", "tanh", "gelu" (exact, by erf) or "silu"; after every layer but the last.

    Returns:
        (..., the last layer's output_size).

    Raises:
        TypeError: an argument is not a dense floating-point tensor, or dtypes differ.
        ValueError: shapes that don't fit together, tensors on different devices, an unknown activation, or
            different numbers of biases and weights.
    """
    if biases is None:
        biases = (None,) * len(weights)
    if is_compiling():
        return FORWARD.traced(x, weights, biases, activation)
    # mlp's operator takes no lists, which can cost more than the products.
    if activation == "relu" and len(weights) == len(biases) == 2 and isinstance(x, Tensor):
        try:
            # Not if the backward needs only a relu's bits.
            if not x.requires_grad or weights[0].requires_grad or weights[1].requires_grad:
                return mlp.FORWARD.call(x, weights[0], biases[0], weights[1], biases[1])
        except (AttributeError, RuntimeError, TypeError, ValueError):
            pass  # the call below raises the error with this operator's names
    return FORWARD.call(x, weights, biases, activation)
