"""Models that tests save and load: together they have every kind of step that a file can contain."""

from __future__ import annotations

import contextlib
import json
import struct
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import fourfold
from fourfold import _native

Pair = namedtuple("Pair", ("first", "second"))


class Block(nn.Module):
    """Programs, attention, a dict of results, numbers, a constant argument."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor, causal: bool, *, scale: Tensor) -> dict[str, Any]:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        x = x + self.out(y.transpose(1, 2).flatten(2)) * scale
        return {"x": nn.functional.gelu(x), "length": x.shape[1] * 2, "pair": Pair(x.mean(), None), "scale": scale}


class Counter(nn.Module):
    """Buffers and an argument that are updated in place, one by a program; shared and transposed parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(6), persistent=False)
        self.weight = nn.Parameter(torch.randn(6, 6).t())
        self.tied = self.weight
        self.mask = torch.tensor([True, False, True, True, False, True])

    def forward(self, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        self.average.mul_(0.9).add_(x.mean(0) * 0.1)
        total.add_(x.sum(0))
        return x @ self.weight + (x @ self.tied).masked_fill(self.mask, -torch.inf).exp(), self.average * 2


class Scan(nn.Module):
    """A loop whose step is a product and a program; all states are results."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(5, 5), nn.Linear(5, 5, bias=False)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.w(h) + self.u(x))
            return h, h * h.abs()

        h, y = fourfold.scan(step, h, x, reverse=True)
        return y + 1, h


class Stream(nn.Module):
    """fourfold's operators, with a state that the caller keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = fourfold.nn.LSTM(4, 6, num_layers=2), nn.Linear(6, 3)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.lstm(x, state)
        return self.out(y), state


class Cache(nn.Module):
    """A growing cache: concatenations, parts of which are written by programs, and lists of tensors."""

    def forward(self, input: Tensor, cache: Tensor) -> tuple[Tensor, list[Tensor]]:
        cache = torch.cat([cache, input.sin()], 1)
        return torch.cat([input.exp(), input, input[:, :2].cos()], 1), list(torch.split(cache.cumsum(1), 2, 2))


@dataclass
class Case:
    """inputs: a function that returns the positional and keyword arguments for a size. sizes: the exported one
    first."""

    model: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
    dynamic: Any
    sizes: tuple[int, ...]


def dim(low: int = 2, high: int = 64) -> Dim:
    return Dim("n", min=low, max=high)


CASES: dict[str, Case] = {
    "block": Case(
        Block,
        lambda n: ((torch.randn(2, n, 16), True), {"scale": torch.randn(16)}),
        {"x": {1: dim()}, "causal": None, "scale": None},
        (5, 9, 2),
    ),
    "counter": Case(Counter, lambda n: ((torch.randn(n, 6), torch.ones(6)), {}), ({0: dim()}, None), (4, 7, 4)),
    "scan": Case(Scan, lambda n: ((torch.randn(n, 3, 5), torch.randn(3, 5)), {}), ({0: dim()}, None), (6, 40, 2)),
    "stream": Case(
        Stream,
        lambda n: ((torch.randn(n, 2, 4), (torch.randn(2, 2, 6), torch.randn(2, 2, 6))), {}),
        ({0: dim()}, (None, None)),
        (7, 30, 2),
    ),
    "cache": Case(Cache, lambda n: ((torch.randn(2, 3, 4), torch.randn(2, n, 4)), {}), (None, {1: dim()}), (4, 11, 2)),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(1)
    return CASES[name].model().eval()


def exported(name: str) -> torch.export.ExportedProgram:
    case = CASES[name]
    args, kwargs = case.inputs(case.sizes[0])
    with torch.no_grad():
        return torch.export.export(made(name), args, kwargs, dynamic_shapes=case.dynamic)


def saved(name: str, folder: Path) -> Path:
    path = folder / f"{name}.ff"
    fourfold.save(exported(name), path)
    return path


def reloaded(model: nn.Module, args: tuple[Any, ...], folder: Path, dynamic: Any = None) -> Any:
    """The model, exported with these arguments, saved and loaded."""
    path = folder / "model.ff"
    fourfold.save(torch.export.export(model, args, dynamic_shapes=dynamic), path)
    return fourfold.load(path)


def project_with_objects(folder: Path, lines: str) -> Path:
    """A folder with CMake lines that compile model.ff's loops, for a program whose main is compiled already."""
    folder.mkdir()
    program = "add_executable(app)\ntarget_link_libraries(app PRIVATE model_program fourfold::fourfold)\n"
    (folder / "CMakeLists.txt").write_text(program + lines, encoding="utf-8")
    reloaded(nn.Softmax(-1), (torch.zeros(3, 512),), folder, ({0: dim(1)},))
    return folder


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Files are saved, loaded and called as under a torch that fourfold has no module for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "module", None)
        yield


def header(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])


def graph(path: Path) -> dict[str, Any]:
    return json.loads(header(path)["__metadata__"]["fourfold.graph"])


def rewritten(path: Path, to: Path, change: Any) -> Path:
    """A copy with a changed header: change(header, graph)."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    own = json.loads(data[8 : 8 + length])
    inner = json.loads(own["__metadata__"]["fourfold.graph"])
    change(own, inner)
    own["__metadata__"]["fourfold.graph"] = json.dumps(inner)
    text = json.dumps(own).encode()
    text += b" " * (-(8 + len(text)) % 64)
    to.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    return to
