"""The tensors of a model's file, and the file in safetensors' format."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fourfold.compiler.analysis.views import memory_order

# safetensors' names.
DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
ALIGNMENT = 64


def refusal(name: str, tensor: Tensor) -> str | None:
    """Why a file can't hold a tensor, or None."""
    if type(tensor) not in PLAIN:
        return f"expected {name} to be a plain tensor, but got {type(tensor).__name__}; convert it before the export"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return (
            f"expected {name} to be dense, but got {tensor.layout}; call to_dense() or dequantize() before the export"
        )
    if tensor.device.type == "meta":
        return f"expected {name} to have values, but it is on the meta device; load the weights before the export"
    if tensor.dtype not in DTYPES:
        instead = "torch.view_as_real of it" if tensor.is_complex() else "another dtype"
        return f"expected {name} to have a dtype that safetensors holds, but got {tensor.dtype}; export {instead}"
    return None


class Stored:
    """The tensors of a file by name. Tensors that are the same memory are stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._known: dict[tuple[object, ...], str] = {}

    def add(self, name: str, tensor: Tensor) -> str:
        """Adds a tensor; returns its name in the file. Raises ValueError."""
        if why := refusal(name, tensor):
            raise ValueError(f"save: {why}")
        tensor = tensor.detach()
        where = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
        key = (*where, tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() and key in self._known:
            return self._known[key]
        while name in self.tensors or name == "__metadata__":
            name += "_"
        self.tensors[name] = tensor
        return self._known.setdefault(key, name)


def order_of(tensor: Tensor) -> list[int] | None:
    """A dense tensor's dimensions by decreasing stride; None if they are in order."""
    order = memory_order(tensor)
    is_dense = torch.ops.aten.is_non_overlapping_and_dense(tensor)
    return order if is_dense and not tensor.is_contiguous() else None


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes wide elements first, like safetensors' own writer, and tensors of whole cache lines before others, so that
    nearly all tensors begin at a cache line."""

    def place(name: str) -> tuple[int, bool, str]:
        tensor = tensors[name]
        return -tensor.element_size(), tensor.nbytes % ALIGNMENT != 0, name

    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    names = sorted(tensors, key=place)
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            held = tensors[name].cpu().resolve_neg().contiguous()
            file.write((ctypes.c_char * held.nbytes).from_address(held.data_ptr()) if held.nbytes else b"")


def temporary_beside(path: Path) -> Path:
    """A name in the same folder, for a file that can replace this one atomically."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
