"""Records calls of the operators, for tests/cpp/recorded_calls.cpp, which repeats them where there is no Python:

    python tests/recorded_calls.py FILE

Every case of every operator in float32, some in float64, forward and backward, and programs that together use every
operation of the language."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fourfold.compiler.pipeline.calling import ProgramByDispatcher
from op_cases import CASES, Case, flatten
from program_cases import programs

# Packed for the CPU's level.
OPAQUE = ("prepacked", "kept")
LARGEST = 5_000


class Recorder(TorchDispatchMode):
    """Calls of fourfold's operators whose tensors are small."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes] = []
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [each.clone() if isinstance(each, Tensor) else each for each in args]
        out = func(*args, **(kwargs or {}))
        if func.namespace == "fourfold":
            self.record(func._schema, given, kwargs or {}, out)
        return out

    def record(self, schema: Any, args: list[Any], kwargs: dict[str, Any], out: Any) -> None:
        named = {a.name: a.default_value for a in schema.arguments} | kwargs
        named |= {a.name: value for a, value in zip(schema.arguments, args, strict=False)}
        outputs = [out] if len(schema.returns) == 1 else list(out)
        # torch's C function takes the types of several results in reverse: all have to be tensors.
        mixed = len(outputs) > 1 and not all(isinstance(each, Tensor) for each in outputs)
        if mixed or any(t.numel() > LARGEST for t in flatten_all([*named.values(), *outputs])):
            return
        if not all(each.is_contiguous() for each in flatten_all(outputs)):  # the program in C++ compares these alone
            return
        written = [f"{schema.name} {len(named)} ".encode()]
        written += [argument(str(a.type), named[a.name]) for a in schema.arguments]
        written.append(f"{len(outputs)} ".encode())
        written += [result(r.name, value) for r, value in zip(schema.returns, outputs, strict=True)]
        self.calls.append(b"".join(written))
        self.names.add(schema.name)


def flatten_all(values: list[Any]) -> list[Tensor]:
    found = [each for value in values for each in (value if isinstance(value, (list, tuple)) else [value])]
    return [each for each in found if isinstance(each, Tensor)]


def block(data: bytes) -> bytes:
    return f"{len(data)} ".encode() + data + b" "


def tensor(value: Tensor) -> bytes:
    value = value.detach().contiguous()
    sizes = "".join(f"{size} " for size in value.shape)
    head = f"{str(value.dtype).removeprefix('torch.')} {value.dim()} {sizes}"
    return head.encode() + block(bytes(value.reshape(-1).view(torch.uint8).tolist()) if value.numel() else b"")


def optional(value: Tensor | None) -> bytes:
    return b"none " if value is None else b"some " + tensor(value)


WRITERS = {
    "Tensor": ("tensor", tensor),
    "Optional[Tensor]": ("tensor?", optional),
    "float": ("float", lambda value: block(struct.pack("<d", value))),
    "int": ("int", lambda value: f"{value} ".encode()),
    "bool": ("bool", lambda value: f"{int(value)} ".encode()),
    "str": ("str", lambda value: block(value.encode())),
}


def argument(kind: str, value: Any) -> bytes:
    if kind in WRITERS:
        name, write = WRITERS[kind]
        return f"{name} ".encode() + write(value)
    if kind.startswith("List["):
        name, write = WRITERS[kind[5:-1]]
        name = "tensors?" if name == "tensor?" else f"{name}s"
        return f"{name} {len(value)} ".encode() + b"".join(map(write, value))
    if value is None:
        return b"none "
    raise TypeError(f"no writer for {kind}")


def result(name: str, value: Any) -> bytes:
    if isinstance(value, Tensor):
        return (b"any " if name in OPAQUE else b"tensor ") + tensor(value)
    return f"tensors {len(value)} ".encode() + b"".join(map(tensor, value))


def record(cases: Sequence[Case] = CASES) -> Recorder:
    torch.manual_seed(0)
    recorder = Recorder()
    for case in cases:
        for dtype in (torch.float32, torch.float64) if case.every_path else (torch.float32,):
            if dtype not in case.dtypes:
                continue
            args = case.arguments(dtype)
            leaves = [each.detach().requires_grad_() if is_differentiable(each) else each for each in args]
            with recorder:
                outputs = [each for each in flatten(case.function(*leaves)) if each.requires_grad]
                if case.gradient and outputs:
                    torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
    for _, text, draw in programs():
        program = ProgramByDispatcher(text)
        given = [moderate(each) if is_differentiable(each) else each for each in draw(67)]
        with recorder:
            program(*given)
    return recorder


def moderate(x: Tensor) -> Tensor:
    """MinGW's C library, which reduces larger numbers for sine and cosine, is wrong for huge ones."""
    return torch.where(x.isfinite() & (x.abs() > 1e4), x.sign() * 1e4, x)


def is_differentiable(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


if __name__ == "__main__":
    recorded = record()
    Path(sys.argv[1]).write_bytes(b"".join(recorded.calls))
    print(len(recorded.calls), "calls of", *sorted(recorded.names))
