"""Argument checks of operators, with their error messages. TypeError is for a dtype, or for something that is not a
tensor; ValueError for a shape, a device or a value.

cpp/ops/check.h has the same messages and checks every call. These checks run for fake tensors, and when C++ has
rejected a call, to choose the Python exception. They read only metadata, so shapes may be symbolic.
"""

import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGRAL = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
MOST_ELEMENTS = 2**48


def shape_of(tensor: Tensor) -> str:
    return spelled(tensor.shape)


def spelled(sizes: Sequence[Any]) -> str:
    return f"({', '.join(str(size) for size in sizes)}{',' if len(sizes) == 1 else ''})"


def expect_tensors(op: str, **tensors: Any) -> None:
    """Raises unless each is a dense tensor, and all are on one device that has a kernel for the operator."""
    first = None
    for name, tensor in tensors.items():
        expect_tensor(op, name, tensor)
        first = first or (name, tensor.device)
        if tensor.device != first[1]:
            raise ValueError(
                f"{op}: expected {name} to be on {first[1]} like {first[0]}, but got {tensor.device}; "
                f"move it with .to({str(first[1])!r})"
            )
    if first and not has_kernel(op, first[1]):
        raise ValueError(
            f"{op}: this build of fourfold has no kernel for device {first[1].type}; move the tensors to the CPU, or "
            "install a build with that backend (python -m fourfold info lists them)"
        )


def expect_tensor(op: str, name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{op}: expected {name} to be a torch.Tensor, but got {type(tensor).__name__}")
    if not is_dense(tensor):
        raise TypeError(f"{op}: expected {name} to be a dense tensor, but got {kind_of(tensor)}")


def is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def kind_of(tensor: Tensor) -> str:
    """Describes a tensor that is not dense."""
    if tensor.is_nested:
        return "a nested tensor; torch.nested.to_padded_tensor makes a dense one"
    return f"layout {tensor.layout}"


def has_kernel(op: str, device: torch.device) -> bool:
    key = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS", "meta": "Meta"}.get(device.type)
    # The plain package composes its operators from torch's, which run on every device.
    keys = ("CompositeImplicitAutograd", *([key] if key else []))
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(f"fourfold::{op}", each) for each in keys)


def expect_number(op: str, name: str, value: Any) -> None:
    if isinstance(value, (torch.SymFloat, torch.SymInt)):
        return
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{op}: expected {name} to be a real number, but got {type(value).__name__}")


def expect_floating(op: str, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in FLOATING:
        raise TypeError(
            f"{op}: expected {name} to be floating point (float16, bfloat16, float32 or float64), "
            f"but got {tensor.dtype}"
        )


def expect_dtype(op: str, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise TypeError(f"{op}: expected {name} to have dtype {dtype}, but got {tensor.dtype}")


def expect_shape(op: str, name: str, tensor: Tensor, shape: dict[str, Any]) -> None:
    """shape: each dimension's name and size, None for any size."""
    sizes = list(shape.values())
    if tensor.dim() != len(sizes) or any(e is not None and s != e for s, e in zip(tensor.shape, sizes, strict=True)):
        names = ", ".join(shape)
        values = ", ".join("any" if size is None else str(size) for size in sizes)
        comma = "," if len(sizes) == 1 else ""
        raise ValueError(
            f"{op}: expected {name} to have shape ({names}{comma}) = ({values}{comma}), but got {shape_of(tensor)}"
        )


def expect_countable(op: str, name: str, *sizes: Any) -> None:
    """Raises if the product of the sizes, with 0 as 1, might overflow in C++: an empty tensor may have any other
    sizes."""
    if all(isinstance(size, int) for size in sizes) and math.prod(size or 1 for size in sizes) >= MOST_ELEMENTS:
        raise ValueError(
            f"{op}: expected {name} to have sizes whose product, a 0 counted as 1, is below 2^48, "
            f"but got {spelled(sizes)}"
        )


def expect_bias(op: str, name: str, tensor: Tensor, size_name: str, size: Any) -> None:
    rows = tensor.dim() == 1 or (tensor.dim() == 2 and tensor.shape[0] == 1)
    if not rows or tensor.shape[-1] != size:
        raise ValueError(
            f"{op}: expected {name} to have shape ({size_name},) or (1, {size_name}) with {size_name} = {size}, "
            f"but got {shape_of(tensor)}"
        )


def expect_gradient(op: str, name: str, tensor: Tensor | None, like: Tensor, shape: dict[str, Any]) -> None:
    """Checks a gradient that is passed to a backward: on the forward's device, of any floating dtype, or None."""
    if tensor is not None:
        expect_tensors(op, like=like, **{name: tensor})
        expect_floating(op, name, tensor)
        expect_shape(op, name, tensor, shape)


def expect_kept(op: str, tensor: Tensor, like: Tensor, dtype: torch.dtype, shape: dict[str, Any]) -> None:
    """Checks what the forward kept for its backward."""
    expect_tensors(op, like=like, kept=tensor)
    if tensor.dim() == 1 and tensor.shape[0] == 0 and all(size != 0 for size in shape.values()):
        raise ValueError(f"{op}: the forward call saved nothing for its backward; call it with save_for_backward=True")
    expect_shape(op, "what the forward kept", tensor, shape)
    expect_dtype(op, "what the forward kept", tensor, dtype)


def expect_mask(op: str, output_mask: Sequence[bool], count: int) -> None:
    """Checks a backward's output_mask: which gradients are needed, with an entry for each element of a list."""
    if len(output_mask) != count:
        raise ValueError(
            f"{op}: expected output_mask to have one for each of the {count} gradients, but got {len(output_mask)}"
        )


def expect_gradient_of_output(op: str, grad: Tensor, x: Tensor, output_size: Any) -> None:
    """Checks the gradient of an output with x's leading dimensions."""
    expect_tensors(op, x=x, grad=grad)
    expect_floating(op, "grad", grad)
    if grad.shape != (*x.shape[:-1], output_size):
        raise ValueError(f"{op}: expected grad to have output's shape (..., {output_size}), but got {shape_of(grad)}")


def expect_batch_sizes(op: str, batch_sizes: Tensor, rows: int, batch: int) -> None:
    """The only check that reads data."""
    most, total = batch, 0
    for t, size in enumerate(batch_sizes.tolist()):
        if size < 1 or size > most or (t == 0 and size != batch):
            raise ValueError(
                f"{op}: expected batch_sizes to begin with batch = {batch} and never to increase or reach 0, "
                f"but got {size} at step {t}"
            )
        most, total = size, total + size
    if total != rows:
        spelled_total = total if total < 2**63 else "2^63 or more"
        raise ValueError(
            f"{op}: expected batch_sizes to add up to input's {rows} rows, but they add up to {spelled_total}"
        )


def kept_dtype(like: Tensor) -> torch.dtype:
    """The dtype in which a call computes, and keeps values for its backward: float32 for float16 and bfloat16 on the
    CPU, these themselves on a GPU."""
    return torch.float32 if like.dtype in (torch.float16, torch.bfloat16) and not like.is_cuda else like.dtype


def allows_tf32(like: Tensor) -> bool:
    """Whether products of float32 may round their factors to TF32, by torch's setting; GPUs only."""
    if not isinstance(like, Tensor) or not like.is_cuda:  # the operator rejects other types, or a tracer records them
        return False
    if torch.compiler.is_compiling():  # the getter that Dynamo supports and guards
        return torch._C._get_cublas_allow_tf32()
    return torch.backends.cuda.matmul.fp32_precision == "tf32"
