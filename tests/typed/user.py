"""A user's program that calls the whole public API. test_types.py checks it with mypy and pyright in strict mode, and
runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from typing_extensions import assert_type

import fourfold
import fourfold.compiler
import fourfold.functional as F

Carry = tuple[Tensor, Tensor]


def functions() -> None:
    x = torch.randn(6)
    assert_type(fourfold.axpby(x, x, alpha=3, beta=0.5), Tensor)
    assert_type(F.softshrink(x, lambd=0.25), Tensor)
    input, state = torch.randn(5, 2, 3), torch.zeros(2, 4)
    weights = torch.randn(12, 7)
    assert_type(F.lltm_cell(input[0], state, state, weights), Carry)
    assert_type(F.lltm(input, state, state, weights, reverse=True), tuple[Tensor, Carry])
    assert_type(F.lstm(input, state, state, torch.randn(16, 3), torch.randn(16, 4)), tuple[Tensor, Carry])
    assert_type(F.gru(input, state, torch.randn(12, 3), torch.randn(12, 4)), tuple[Tensor, Tensor])
    assert_type(F.mlp(x, torch.randn(4, 6), None, torch.randn(2, 4), torch.zeros(2)), Tensor)
    assert_type(F.mlp_layers(x, [torch.randn(4, 6), torch.randn(2, 4)], activation="tanh"), Tensor)
    assert_type(fourfold.reference.axpby(x, x), Tensor)
    assert_type(fourfold.reference.gru(input, state, torch.randn(12, 3), torch.randn(12, 4)), tuple[Tensor, Tensor])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = fourfold.nn.LSTM(3, 4, num_layers=2, batch_first=True)
        self.head = fourfold.nn.MLP([4, 8, 1], activation="silu")
        self.shrink = fourfold.nn.Softshrink(0.1)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.recurrent(x)
        y: Tensor = self.head(self.shrink(output))
        return y


def layers() -> None:
    x = torch.randn(5, 2, 3)
    lltm = fourfold.nn.LLTM(3, 4, bidirectional=True, dtype=torch.float32)
    assert_type(lltm.forward(x)[0], Tensor | PackedSequence)
    assert_type((lltm.input_size, lltm.dropout, lltm.bidirectional), tuple[int, float, bool])
    assert_type(fourfold.nn.LLTMCell(3, 4).forward(x[0]), Carry)
    assert_type(fourfold.nn.LSTMCell(3, 4).forward(x[0]), Carry)
    assert_type(fourfold.nn.GRUCell(3, 4).forward(x[0]), Tensor)
    gru = fourfold.nn.GRU(3, 4)
    packed = gru.forward(pack_sequence([torch.randn(3, 3), torch.randn(2, 3)]))[0]
    assert isinstance(packed, PackedSequence)
    assert_type(fourfold.nn.MLP(3, 4, 2).forward(x), Tensor)
    assert_type(fourfold.nn.Axpby(alpha=3).forward(x, x), Tensor)
    assert_type(fourfold.nn.Softshrink().forward(x), Tensor)
    of_cells = fourfold.nn.Recurrent(
        lambda layer, reverse: fourfold.nn.LSTMCell(3 if layer == 0 else 8, 4), 2, bidirectional=True
    )
    assert_type(of_cells.forward(x)[0], Tensor | PackedSequence)
    fourfold.nn.Recurrent([nn.GRUCell(3, 4), nn.GRUCell(4, 4)], num_layers=2)


def scans() -> None:
    def step(carry: Carry, x: Tensor) -> tuple[Carry, Tensor]:
        v, i = carry
        i = i + 0.2 * (x - i)
        v = v + 0.1 * (i - v)
        return (v, i), torch.sigmoid(v)

    zeros = torch.zeros(2, 4)
    carry, ys = fourfold.scan(step, (zeros, zeros), torch.randn(5, 2, 4), checkpoint_every=2)
    assert_type(carry, Carry)
    y: Tensor = ys
    assert y.shape == (5, 2, 4)


def models(folder: Path) -> None:
    model = Model().eval()
    report = fourfold.optimize(
        nn.ModuleDict({"layer": nn.LSTM(3, 4), "stack": nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))})
    )
    assert_type(report.changed[0].name, str)
    assert_type(str(report), str)
    assert_type(fourfold.freeze(model), Model)
    assert_type(fourfold.unfreeze(model), Model)
    with fourfold.frozen(model) as same, torch.no_grad():
        assert_type(same, Model)
        same(torch.randn(2, 5, 3))
    restored = fourfold.optimize(model)
    fourfold.restore(model)
    assert restored.left or not restored.changed

    program = torch.export.export(model, (torch.randn(2, 5, 3),))
    fourfold.save(program, folder / "model.ff")
    loaded = fourfold.load(folder / "model.ff", device="cpu")
    assert_type(loaded, fourfold.Model)
    assert_type(loaded.arguments, list[str])
    assert_type(loaded.tensors["head.0.weight"], Tensor)
    result = loaded(torch.randn(2, 5, 3))
    assert isinstance(result, Tensor)


def compiled(folder: Path) -> None:
    def gate(x: Tensor, g: Tensor) -> Tensor:
        return x * torch.nn.functional.silu(g)

    options: dict[str, str | int | bool | Callable[..., object]] = {"generator": "interpreter"}
    f = torch.compile(gate, backend="fourfold", options=options)  # pyright: ignore[reportUnknownMemberType] # torch's own
    y: Tensor = f(torch.randn(8, 16, requires_grad=True), torch.randn(8, 16))
    y.sum().backward()  # type: ignore[no-untyped-call] # torch's own
    assert callable(fourfold.compiler.backend)
    explanation = fourfold.explain(gate, torch.randn(8, 16), torch.randn(8, 16))
    assert_type(str(explanation), str)
    explanation.save(folder / "gate.html")


def measured() -> None:
    with fourfold.profiler.profile(with_stack=False) as prof:
        fourfold.softshrink(torch.randn(1000))
    assert_type(prof.rows(), list[fourfold.profiler.Row])
    assert_type(prof.rows()[0].operator, str)
    start, end = fourfold.Event("cpu"), fourfold.Event("cpu")
    start.record()
    end.record()
    end.synchronize()
    assert_type(start.elapsed_time(end), float)
    assert_type(start.device, torch.device)


def installation() -> None:
    assert_type(fourfold.__version__, str)
    assert_type(fourfold.cpu_capability(), str)
    assert_type(fourfold.operator_names(), tuple[str, ...])
    assert_type(fourfold.backends()["cpu"]["usable"], bool)
    assert_type(fourfold.empty_cache(), int)
    assert_type(fourfold.wait_for_nests(timeout=1), bool)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    functions()
    layers()
    scans()
    models(folder)
    compiled(folder)
    measured()
    installation()
