"""Calls with tensors that lie as in earlier calls: the same bits as other calls, in memory that is there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import fourfold
from compiled import compiled
from compiled_functions import FUNCTIONS, Function, results_of
from machine import linux_only, output_of, tool
from saved_models import CASES, reloaded, saved

CALLS = 6  # some of which are steady


def others(values: Any, seed: int) -> Any:
    """Tensors that lie in the same way, with other values."""
    generator = torch.Generator().manual_seed(seed)

    def another(given: Any) -> Any:
        if not isinstance(given, Tensor) or not given.is_floating_point():
            return given
        made = torch.empty_strided(given.size(), given.stride(), dtype=given.dtype)
        with torch.no_grad():
            made.copy_(given + torch.randn(given.shape, generator=generator, dtype=torch.float64).to(given.dtype) / 8)
        return made.requires_grad_(given.requires_grad)

    return tree_map(another, values)


def unsteady(call: Callable[[], Any]) -> Any:
    """A call that torch's profiler sees is computed step by step."""
    with torch.autograd.profiler.profile():
        return call()


def expect_equal(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.definition is None], ids=lambda f: f.name)
def test_compiled_functions(function: Function) -> None:
    call = compiled(function.call, dynamic=function.dynamic)
    results_of(call, function.on("cpu"))
    fourfold.wait_for_nests()
    kept = []
    for seed in range(CALLS):
        arguments = others(function.on("cpu"), seed)
        again = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in arguments]
        got = results_of(call, arguments)
        kept.append((got, [each.clone() for each in got]))
        if not any(isinstance(a, Tensor) and not a.is_contiguous() for a in arguments):
            expect_equal(got, unsteady(lambda given=again: results_of(call, given)))
    for got, was in kept:
        expect_equal(got, was)  # later calls write to other memory


@pytest.mark.parametrize("name", CASES)
def test_saved_models(name: str, tmp_path: Path) -> None:
    steady, other = (fourfold.load(saved(name, tmp_path)) for _ in range(2))
    kept = []
    for size in (*CASES[name].sizes, *CASES[name].sizes):
        args, kwargs = CASES[name].inputs(size)
        for seed in range(CALLS):
            given, named = others((args, kwargs), seed)
            theirs = tree_map(lambda each: each.clone() if isinstance(each, Tensor) else each, (given, named))
            got = steady(*given, **named)
            expected = unsteady(lambda theirs=theirs: other(*theirs[0], **theirs[1]))
            expect_equal(got, expected)
            expect_equal((given, named), theirs)  # what a model changes in place
            kept.append((tree_leaves(got), [x.clone() if isinstance(x, Tensor) else x for x in tree_leaves(got)]))
    if name not in ("counter", "cache"):  # whose results are their buffers and their arguments
        for got, was in kept:
            expect_equal(got, was)


class Mixed(nn.Module):
    """A step of each way: convolutions, packed products, programs, operators with and without memory given, views of
    arguments and of what is computed, and results that share memory."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(6, 8, 3, padding=1), nn.Conv1d(8, 8, 3, stride=2, groups=2)
        self.up, self.linear = nn.ConvTranspose1d(8, 4, 2), nn.Linear(8, 5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        self.calls.add_(1)
        h = self.two(self.one(x).relu().tanh())
        joined = torch.cat([h.sigmoid() * 2, h.cos() + h], 1)
        part = self.linear(joined[:, :8].transpose(1, 2))
        sorted, _ = joined.flatten(1).sort(1)
        first, second = part.sort(1)[0].split([2, 3], 2)
        whole = torch.stack([first.sum(2), second.mean(2)]) * y
        return {
            "up": self.up(h), "view": x[:, 1:], "whole": whole, "part": whole[0], "sorted": sorted.exp(),
            "cumulated": torch.cumsum(sorted, 1), "calls": self.calls,
        }  # fmt: skip


@pytest.fixture
def mixed(tmp_path: Path) -> tuple[nn.Module, Any, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model, arguments = Mixed().eval().requires_grad_(False), (torch.randn(2, 6, 9), torch.randn(2, 2, 4))
    loaded = reloaded(model, arguments, tmp_path)
    model.calls.zero_()
    return model, loaded, arguments


def test_every_kind_of_step(mixed: tuple[nn.Module, Any, tuple[Tensor, Tensor]]) -> None:
    model, loaded, arguments = mixed
    for seed in range(CALLS):
        x, y = others(arguments, seed)
        got, expected = loaded(x, y), model(x, y)
        torch.testing.assert_close(got, expected)
        assert got["view"].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert got["part"].untyped_storage().data_ptr() == got["whole"].untyped_storage().data_ptr()


class WithWeight(nn.Module):
    def __init__(self, call: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.call, self.weight = call, nn.Parameter(torch.randn(6, 6))
        self.register_buffer("ok", torch.ones((), dtype=torch.bool))
        self.register_buffer("kernel", torch.randn(4, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


# Views of what is computed: as of other dtypes, and conjugate ones.
OTHER_VIEWS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "conjugate": lambda m, x: torch.view_as_real(torch.fft.fft(x @ m.weight) * torch.fft.fft(x).conj()),
    "complex": lambda m, x: (
        torch.view_as_complex((x @ m.weight).view(4, 3, 2)) * torch.complex(x[:, :3], x[:, 3:])
    ).abs(),
    "real": lambda m, x: torch.fft.fft(x @ m.weight).real.cumsum(0),
    "bits": lambda m, x: (x @ m.weight).double().cumsum(0).view(torch.int64).sort(0)[0],
}


@pytest.mark.parametrize("name", OTHER_VIEWS)
def test_views_of_other_dtypes(tmp_path: Path, name: str) -> None:
    model, x = WithWeight(OTHER_VIEWS[name]).eval().requires_grad_(False), torch.randn(4, 6)
    loaded = reloaded(model, (x,), tmp_path)
    for seed in range(CALLS):
        each = others(x, seed)
        if name == "bits":
            expect_equal(loaded(each), unsteady(lambda each=each: loaded(each)))
        else:
            torch.testing.assert_close(loaded(each), model(each))


def checked(model: Any, x: Tensor) -> Tensor:
    """A step without results reads a constant, behind values that follow from weights."""
    y = model.weight.softmax(0).cumsum(0)
    torch._assert_async(model.ok, "ok")
    return torch.relu(torch.conv1d(x[None], model.kernel, padding=1)[0].cumsum(0) @ y).cumsum(1)


def test_values_of_weights_that_somebody_changes(tmp_path: Path) -> None:
    model, x = WithWeight(checked).eval().requires_grad_(False), torch.randn(4, 6)
    loaded = reloaded(model, (x,), tmp_path)
    for seed in range(9):
        each = others(x, seed)
        torch.testing.assert_close(loaded(each), model(each))
    for seed in range(3):
        for weight in (loaded.tensors["weight"], model.weight):
            weight.copy_(torch.randn(6, 6, generator=torch.Generator().manual_seed(seed)))
        each = others(x, seed)
        torch.testing.assert_close(loaded(each), model(each))


@pytest.mark.filterwarnings("ignore:fourfold could not run")
def test_functionalize(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Softmax(-1)).eval().requires_grad_(False), torch.randn(2, 6)
    loaded = reloaded(model, (x,), tmp_path)
    for _ in range(CALLS):
        torch.testing.assert_close(torch.func.functionalize(loaded)(x), model(x))


def test_threads_at_once(mixed: tuple[nn.Module, Any, tuple[Tensor, Tensor]]) -> None:
    _, loaded, arguments = mixed
    given = [others(arguments, seed) for seed in range(8)]
    expected = [loaded(*each) for each in given]
    wrong: list[str] = []

    def run(seed: int) -> None:
        for _ in range(100):
            got = loaded(*given[seed])
            for name in got:
                if name != "calls" and not torch.equal(got[name], expected[seed][name]):
                    wrong.append(name)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(f.__name__)
        return f(*args, **(kwargs or {}))


def test_what_torch_may_see_is_there_to_be_seen(mixed: tuple[nn.Module, Any, tuple[Tensor, Tensor]]) -> None:
    """In any order: modes, inference mode, other layouts, dtypes that an operator refuses."""
    model, loaded, (x, y) = mixed
    ways = [
        lambda: loaded(x, y), lambda: loaded(x, y), lambda: loaded(x, y), lambda: in_a_mode(loaded, x, y),
        lambda: in_inference_mode(loaded, x, y), lambda: loaded(x.transpose(0, 1).contiguous().transpose(0, 1), y),
        lambda: loaded(x.clone().requires_grad_(), y),
    ]  # fmt: skip
    chosen = random.Random(0)
    for _ in range(60):
        got = chosen.choice(ways)()
        expected = model(x, y)
        for name in expected:
            if name != "calls":
                torch.testing.assert_close(got[name], expected[name])
    with pytest.raises(ValueError, match="x"):
        loaded(x.double(), y)


def in_a_mode(loaded: Any, *arguments: Tensor) -> Any:
    with Seen() as seen:
        result = loaded(*arguments)
    assert "convolution.default" in seen.names
    return result


def in_inference_mode(loaded: Any, *arguments: Tensor) -> Any:
    with torch.inference_mode():
        return loaded(*arguments)


def test_weights_that_somebody_changes(tmp_path: Path) -> None:
    model, x = (
        nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)).eval().requires_grad_(False),
        torch.randn(2, 6),
    )
    loaded = reloaded(model, (x,), tmp_path)
    for _ in range(CALLS):
        loaded(x)
    loaded.tensors["0.weight"].data.mul_(2)
    loaded.tensors["2.bias"].mul_(3)
    model[0].weight.mul_(2), model[2].bias.mul_(3)
    for _ in range(CALLS):
        torch.testing.assert_close(loaded(x), model(x))


def test_results_of_sizes_that_change(tmp_path: Path) -> None:
    """A model with a dynamic size, called with more sizes than are remembered."""
    n = torch.export.Dim("n", min=1, max=64)
    model = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 2, 3, padding=1)).eval()
    loaded = reloaded(model, (torch.randn(1, 3, 7),), tmp_path, ({2: n},))
    sizes = random.Random(1)
    with torch.no_grad():
        for _ in range(40):
            x = torch.randn(1, 3, sizes.choice((1, 2, 3, 5, 9, 17, 33)))
            for _ in range(sizes.choice((1, 2, 5))):
                torch.testing.assert_close(loaded(x), model(x))


COUNTER = """
#include <stddef.h>
void* __libc_malloc(size_t);
void* __libc_memalign(size_t, size_t);
static long small, aligned;
void* malloc(size_t n) { __atomic_add_fetch(&small, 1, 0); return __libc_malloc(n); }
int posix_memalign(void** p, size_t to, size_t n) {
  __atomic_add_fetch(&aligned, 1, 0);
  return (*p = __libc_memalign(to, n)) ? 0 : 12;
}
long calls_of_malloc(void) { return small; }
long calls_of_memalign(void) { return aligned; }
"""
COUNTED = """
import ctypes, sys, torch, fourfold
counter = ctypes.CDLL(sys.argv[2])
torch.set_num_threads(1)
call, x = fourfold.load(sys.argv[1]), torch.randn(1, 4, 16)
for _ in range(8):
    call(x)
fourfold.wait_for_nests()
for _ in range(8):
    call(x)
before = counter.calls_of_malloc(), counter.calls_of_memalign()
for _ in range(100):
    call(x)
print((counter.calls_of_malloc() - before[0]) / 100, (counter.calls_of_memalign() - before[1]) / 100)
"""


@linux_only
def test_a_steady_call_allocates_its_results(tmp_path: Path) -> None:
    """Ten convolutions with activations: memory for one tensor, and what torch allocates to describe it."""
    (tmp_path / "counter.c").write_text(COUNTER)
    library = tmp_path / "counter.so"
    output_of(tool("cc", "gcc"), "-O1", "-shared", "-fPIC", tmp_path / "counter.c", "-o", library)
    layers = [layer for _ in range(10) for layer in (nn.Conv1d(4, 4, 3, padding=1), nn.ReLU(), nn.Tanh())]
    fourfold.save(torch.export.export(nn.Sequential(*layers).eval(), (torch.randn(1, 4, 16),)), tmp_path / "m.ff")
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONMALLOC": "pymalloc"}
    command = (sys.executable, "-c", COUNTED, tmp_path / "m.ff", library)
    said = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=True)
    small, aligned = map(float, said.stdout.split())
    assert aligned == 1
    assert small < 60  # two of them for each program
