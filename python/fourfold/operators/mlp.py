"""mlp: a network of one hidden layer."""

import math
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling

from fourfold import reference
from fourfold.operators import _check
from fourfold.operators._axes import Axes, of_rows
from fourfold.operators._declare import declare

Names = tuple[str, str, str, str, str]  # names in errors: a layer's weights, bias, size, input size and output
_NAMES: tuple[Names, ...] = (
    ("hidden_weights", "hidden_bias", "hidden_size", "input_size", "the hidden layer"),
    ("output_weights", "output_bias", "output_size", "hidden_size", "the output"),
)


def check_layers(
    op: str, x: Tensor, names: Sequence[Names], weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> tuple[Any, list]:
    """Checks that each layer's input has the size of the previous output. Returns the rows, and the sizes of the input
    and all outputs."""
    _check.expect_tensors(op, x=x)
    _check.expect_floating(op, "x", x)
    if x.dim() == 0:
        raise ValueError(f"{op}: expected x to have shape (..., input_size), but got ()")
    sizes = [x.shape[-1]]
    for (of_weights, of_bias, of_size, of_input, _), w, b in zip(names, weights, biases, strict=True):
        _check.expect_tensors(op, **{"x": x, of_weights: w})
        _check.expect_dtype(op, of_weights, w, x.dtype)
        _check.expect_shape(op, of_weights, w, {of_size: None, of_input: sizes[-1]})
        _check.expect_countable(op, of_weights, *w.shape)
        sizes.append(w.shape[0])
        if b is not None:
            _check.expect_tensors(op, **{"x": x, of_bias: b})
            _check.expect_dtype(op, of_bias, b, x.dtype)
            _check.expect_bias(op, of_bias, b, of_size, sizes[-1])
    _check.expect_countable(op, "x", *x.shape)
    rows = math.prod(x.shape[:-1])
    for (*_, of_output), size in zip(names, sizes[1:], strict=True):
        _check.expect_countable(op, of_output, rows, size)
    return rows, sizes


def _check_arguments(op: str, a: SimpleNamespace) -> None:
    check_layers(op, a.x, _NAMES, (a.hidden_weights, a.output_weights), (a.hidden_bias, a.output_bias))


def _check_backward(op: str, a: SimpleNamespace) -> None:
    _check.expect_gradient_of_output(op, a.grad, a.x, a.output_weights.shape[0])
    hidden = {"batch": math.prod(a.x.shape[:-1]), "hidden_size": a.hidden_weights.shape[0]}
    _check.expect_kept(op, a.hidden, a.x, _check.kept_dtype(a.x), hidden)
    _check.expect_mask(op, a.output_mask, 5)


def _fake(a: SimpleNamespace) -> tuple[Tensor, ...]:
    kept = (math.prod(a.x.shape[:-1]), a.hidden_weights.shape[0]) if a.save_for_backward else (0,)
    output = a.x.new_empty(*a.x.shape[:-1], a.output_weights.shape[0])
    return output, a.x.new_empty(kept, dtype=_check.kept_dtype(a.x))


def with_leading_dimension(op: Any, size: int, dims: SimpleNamespace, a: SimpleNamespace) -> tuple | None:
    """vmap of a network: if only x is mapped, the mapped dimension is an additional leading dimension of x; else
    None."""
    mapped = {
        name for name, d in vars(dims).items() if (any(e is not None for e in d) if type(d) is list else d is not None)
    }
    if mapped != {"x"}:
        return None
    x = a.x.movedim(dims.x, 0)
    output, kept = op(**(vars(a) | {"x": x}))
    kept = kept.expand(size, 0) if kept.dim() == 1 else kept.unflatten(0, (size, math.prod(x.shape[1:-1])))
    return (output, kept), (0, 0)


FORWARD = declare(
    "mlp",
    check=_check_arguments,
    check_backward=_check_backward,
    fake=_fake,
    definition=reference.mlp,
    vmap=with_leading_dimension,
    casts=True,
    axes=Axes(partial(of_rows, kept="hidden")),
)


def mlp(
    x: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor | None,
    output_weights: Tensor,
    output_bias: Tensor | None,
) -> Tensor:
    """Computes a network with one hidden layer: relu(x W₁ᵀ + b₁) W₂ᵀ + b₂.

    Args:
        x: (..., input_size); float16, bfloat16, float32 or float64. The two low precisions compute in float32.
        hidden_weights: (hidden_size, input_size), x's dtype, as are all parameters.
        hidden_bias: (1, hidden_size) as in the tutorial that this network comes from, or (hidden_size,), or None.
        output_weights: (output_size, hidden_size).
        output_bias: (1, output_size), or (output_size,), or None.

    Returns:
        (..., output_size).

    Raises:
        TypeError: an argument is not a dense floating-point tensor, or dtypes differ.
        ValueError: shapes that don't fit together, tensors on different devices.
    """
    call = FORWARD.traced if is_compiling() else FORWARD.call
    return call(x, hidden_weights, hidden_bias, output_weights, output_bias)
