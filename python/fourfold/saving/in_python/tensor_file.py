"""Reads a file in safetensors' format, as cpp/model/tensor_file.h does."""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.saving.in_python.values import Refused, expect, index_of, member, parsed, shown
from fourfold.saving.tensors import DTYPES

LONGEST_HEADER = 100_000_000  # the limit of safetensors
MOST_DIMENSIONS = 64  # the limit of torch's kernels
CUT_OFF = "; the file may have been cut off"
BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
Entry = tuple[int, int, str, torch.dtype, list[int]]  # begin, end, name, dtype, shape


def read(path: str) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata, and the tensors in the mapped file, which stays mapped while one of them exists. The mapping is
    private: writes don't change the file."""
    if not Path(path).is_file():
        raise Refused("it is no regular file")
    with Path(path).open("rb") as file:
        size = file.seek(0, 2)
        if size < 8:
            raise Refused(f"expected at least 8 bytes, but got {size}{CUT_OFF}")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    length, rest = int.from_bytes(mapped[:8], "little"), size - 8
    if length > min(rest, LONGEST_HEADER):
        raise Refused(
            f"expected a safetensors header of at most {min(rest, LONGEST_HEADER)} bytes, but its length is given as "
            f"{length}{CUT_OFF}, or be of another format"
        )
    header = expect(parsed(mapped[8 : 8 + length]), dict, "the header")
    metadata = expect(header.pop("__metadata__", {}), dict, "__metadata__")
    for text in metadata.values():
        expect(text, str, "metadata")
    entries = sorted(entry_of(name, described) for name, described in header.items())
    expect_dense(entries, rest - length)
    return metadata, {entry[2]: tensor_of(entry, mapped, 8 + length) for entry in entries}


def entry_of(name: str, described: Any) -> Entry:
    dtype = expect(member(described, "dtype", "a tensor"), str, "a dtype")
    if dtype not in BY_NAME:
        raise Refused(f"expected a dtype that fourfold knows, but got {shown(dtype)}; a newer fourfold may know it")
    shape = expect(member(described, "shape", "a tensor"), list, "a shape")
    shape = [index_of(size, "a size", 2**63 - 1) for size in shape]
    if len(shape) > MOST_DIMENSIONS:
        raise Refused(f"expected {shown(name)} to have at most {MOST_DIMENSIONS} dimensions")
    offsets = expect(member(described, "data_offsets", "a tensor"), list, "data_offsets")
    if len(offsets) != 2 or len(described) != 3:
        raise Refused(f"expected {shown(name)} to have dtype, shape and two data_offsets alone")
    begin, end = (index_of(each, "an offset", 2**63 - 1) for each in offsets)
    count = 1
    for size in shape:  # as 64-bit arithmetic would overflow, size by size
        count *= size
        if count * BY_NAME[dtype].itemsize >= 2**64:
            raise Refused(f"expected the shape of {shown(name)} to have fewer elements")
    needed = math.prod(shape) * BY_NAME[dtype].itemsize
    if end - begin != needed:
        raise Refused(
            f"expected the data_offsets of {shown(name)} to be {needed} bytes apart, as its shape and dtype need"
        )
    return begin, end, name, BY_NAME[dtype], shape


def expect_dense(entries: list[Entry], size: int) -> None:
    """The tensors' bytes fill the file without overlaps and gaps."""
    last = 0
    for begin, end, name, *_ in entries:
        if begin != last:
            raise Refused(f"expected the bytes of {shown(name)} to begin at {last}")
        last = end
    if last != size:
        cut_off = CUT_OFF if size < last else ""
        raise Refused(f"expected {last} bytes behind the header, but got {size}{cut_off}")


def tensor_of(entry: Entry, mapped: mmap.mmap, data: int) -> Tensor:
    begin, end, name, dtype, shape = entry
    if begin == end:
        return torch.empty(shape, dtype=dtype, device="cpu")
    held = torch.frombuffer(mapped, dtype=torch.uint8, count=end - begin, offset=data + begin)
    if dtype is torch.bool and int(held.max()) > 1:
        raise Refused(f"expected the bytes of {shown(name)}, a tensor of booleans, to be 0 or 1")
    if (data + begin) % dtype.itemsize:
        held = held.clone()
    return held.view(dtype).view(shape)
