"""Weights that a loaded model packs for products with few rows: what changes them, and who."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fourfold
from compiled import assert_near
from operator_events import events
from saved_models import reloaded

ROWS = torch.export.Dim("rows", min=1, max=512)


class Layers(nn.Module):
    """A matrix in each of the ways in which products read it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 40)
        self.matrix = nn.Parameter(torch.randn(40, 33))
        self.convolution = nn.Conv1d(33, 7, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution((self.linear(x) @ self.matrix).unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_rows(tmp_path: Path, dtype: torch.dtype) -> None:
    model = Layers().to(dtype).eval()
    loaded = reloaded(model, (torch.randn(3, 24, dtype=dtype),), tmp_path, ({0: ROWS},))
    with torch.no_grad():
        for rows in (1, 3, 1, 2, 5, 8, 17, 64, 65, 300, 4):
            x = torch.randn(rows, 24, dtype=dtype)
            assert_near(loaded(x), model(x))
    called = set(events(loaded, torch.randn(3, 24, dtype=dtype)))
    assert not called & {"aten::mm", "aten::addmm", "aten::convolution", "aten::t"}
    assert "aten::mm" in events(loaded, torch.randn(300, 24, dtype=dtype))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_16_bits_round_once(tmp_path: Path, dtype: torch.dtype, bias: bool) -> None:
    """Packed with 16 bits, summed in float32: half a unit in the last place of the exact result, and float32's sums."""
    for depth, columns in ((1, 1), (7, 5), (24, 64), (130, 65), (301, 200)):
        model = nn.Linear(depth, columns, bias=bias).to(dtype).eval()
        loaded = reloaded(model, (torch.randn(3, depth, dtype=dtype),), tmp_path, ({0: ROWS},))
        with torch.no_grad():
            exact = copy.deepcopy(model).double()
            for rows in (1, 2, 3, 4, 5, 8):
                x = torch.randn(rows, 2 * depth).to(dtype)[:, ::2]
                expected = exact(x.double())
                last = expected.abs() * torch.finfo(dtype).eps / 2 + torch.finfo(dtype).tiny
                assert ((loaded(x).double() - expected).abs() <= last * 1.01 + 1e-5).all()
        assert not {"aten::mm", "aten::addmm"} & set(events(loaded, torch.randn(3, depth, dtype=dtype)))


def of_numpy(weight: Tensor) -> None:
    weight.numpy()[...] *= 2


def in_inference_mode(weight: Tensor) -> None:
    with torch.inference_mode():
        weight.mul_(2)


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda weight: weight.mul_(2),
    "data": lambda weight: weight.data.mul_(2),
    "numpy": of_numpy,
    "inference mode": in_inference_mode,
    "a view": lambda weight: weight.view(-1)[:].mul_(2),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["linear.weight", "linear.bias", "matrix", "convolution.weight"])
def test_calls_read_what_is_written_to_a_weight(tmp_path: Path, name: str, change: str) -> None:
    model, x = Layers().eval(), torch.randn(2, 24)
    loaded = reloaded(model, (x,), tmp_path)
    with torch.no_grad():
        for _ in range(2):
            assert_near(loaded(x), model(x))
        weight = loaded.tensors[name]
        loaded(x)
        for _ in range(2):
            CHANGES[change](weight)
            model.get_parameter(name).mul_(2)
            assert_near(loaded(x), model(x))


def test_only_weights_that_are_asked_for_are_read_as_they_are(tmp_path: Path) -> None:
    loaded, x = reloaded(Layers().eval(), (torch.randn(2, 24),), tmp_path), torch.randn(2, 24)
    assert sorted(loaded.tensors) == sorted(dict(Layers().named_parameters()))
    assert "matrix" in loaded.tensors and len(loaded.tensors) == 5
    assert "aten::mm" not in events(loaded, x)
    loaded.tensors["linear.bias"].zero_()
    assert "aten::mm" not in events(loaded, x)
    loaded.tensors["matrix"].zero_()
    assert {"aten::mm"} == {"aten::mm", "aten::addmm"} & set(events(loaded, x))
    with pytest.raises(KeyError):
        loaded.tensors["bias"]


RECURRENT = {
    "lstm": lambda **options: fourfold.nn.LSTM(12, 20, bidirectional=True, **options),
    "gru": lambda **options: fourfold.nn.GRU(12, 20, num_layers=2, **options),
    "lltm": lambda **options: fourfold.nn.LLTM(12, 20, **options),
}
STEPS = torch.export.Dim("steps", min=1, max=512)


def packs(loaded: Callable, x: Tensor) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        loaded(x)
    return sum("_prepack" in event.name for event in profiled.events())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers(tmp_path: Path, kind: str, dtype: torch.dtype, bias: bool) -> None:
    """Packed in the first call, for any number of steps."""
    model = RECURRENT[kind](bias=bias).to(dtype).eval().requires_grad_(False)
    loaded = reloaded(model, (torch.randn(5, 3, 12, dtype=dtype),), tmp_path, ({0: STEPS},))
    counts = [packs(loaded, torch.randn(steps, 3, 12, dtype=dtype)) for steps in (5, 1, 40, 1, 1, 1, 1)]
    assert counts == [1 if kind == "lltm" else 2, *[0] * 6]
    for steps in (1, 2, 17):
        x = torch.randn(steps, 3, 12, dtype=dtype)
        assert_near(loaded(x)[0], model(x)[0])


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_read_what_is_written(tmp_path: Path, kind: str) -> None:
    for change in CHANGES.values():
        model, x = RECURRENT[kind]().eval().requires_grad_(False), torch.randn(4, 2, 12)
        loaded = reloaded(model, (x,), tmp_path)
        for _ in range(5):
            loaded(x)
        for name, parameter in model.named_parameters():
            change(loaded.tensors[name])
            parameter.mul_(2)
            assert_near(loaded(x)[0], model(x)[0])


class Learning(nn.Module):
    """Changes its own matrix in each call, and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(5))
        self.fixed = nn.Parameter(torch.randn(5, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ self.matrix @ self.fixed
        self.matrix.add_(x.t() @ y)
        return y @ self.matrix, self.fixed


def test_a_model_that_changes_its_matrix(tmp_path: Path) -> None:
    model, x = Learning(), torch.randn(1, 5)
    loaded = reloaded(model, (x,), tmp_path)
    with torch.no_grad():
        for _ in range(4):
            (got, fixed), (expected, own) = loaded(x), model(x)
            assert_near(got, expected)
            fixed.data.neg_()
            own.data.neg_()


class Returning(nn.Module):
    """Returns views of its matrix: those of a list, of a dynamic size, and one that it multiplies with."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        turned = self.matrix.t()
        return x @ self.matrix + x @ turned, self.matrix.chunk(2)[1], self.matrix[: x.shape[0]], turned


@pytest.mark.parametrize("result", [1, 2, 3])
def test_calls_read_what_is_written_to_a_returned_view(tmp_path: Path, result: int) -> None:
    model, x = Returning().eval(), torch.randn(2, 4)
    loaded = reloaded(model, (x,), tmp_path, ({0: torch.export.Dim("rows", min=1, max=4)},))
    with torch.no_grad():
        for _ in range(3):
            got, expected = loaded(x), model(x)
            assert_near(got[0], expected[0])
            got[result].data.mul_(2)
            expected[result].data.mul_(2)
            got[3].t_()  # a result is the caller's own
            assert_near(loaded(x)[3], model(x)[3])


def test_large_matrices_are_packed_after_the_first_calls(tmp_path: Path) -> None:
    model, x = nn.Linear(1025, 1024).eval(), torch.randn(2, 1025)
    loaded = reloaded(model, (x,), tmp_path)
    with torch.no_grad():
        results = [loaded(x) for _ in range(5)]
        for got in results:
            assert_near(got, model(x))
    assert torch.equal(results[0], results[1]) and torch.equal(results[3], results[4])
    assert "aten::addmm" not in events(loaded, x)


def test_a_model_that_was_loaded_in_inference_mode(tmp_path: Path) -> None:
    model, x = Layers().eval(), torch.randn(2, 24)
    with torch.inference_mode():
        loaded = reloaded(model, (x,), tmp_path)
        assert_near(loaded(x), model(x))
    assert "aten::mm" not in events(loaded, x)
    assert_near(loaded(x), model(x).detach())


def test_threads_pack_once_each_need(tmp_path: Path) -> None:
    model = Layers().eval()
    loaded = reloaded(model, (torch.randn(3, 24),), tmp_path, ({0: ROWS},))
    inputs = [torch.randn(1 + k % 20, 24) for k in range(40)]
    results: list[Tensor | None] = [None] * len(inputs)
    barrier = threading.Barrier(8)

    def run(thread: int) -> None:
        barrier.wait()
        for k in range(thread, len(inputs), 8):
            results[k] = loaded(inputs[k])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        for x, got in zip(inputs, results, strict=True):
            assert got is not None
            assert_near(got, model(x))


def test_two_models_of_one_file_have_their_own_weights(tmp_path: Path) -> None:
    model, x = Layers().eval(), torch.randn(2, 24)
    first = reloaded(model, (x,), tmp_path)
    second = fourfold.load(tmp_path / "model.ff")
    first.tensors["matrix"].zero_()
    with torch.no_grad():
        assert_near(second(x), model(x))
        assert not torch.equal(first(x), second(x))
