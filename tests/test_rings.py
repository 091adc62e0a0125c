"""Inputs of which a graph changes some places, such as the rings of a key-value cache: they are changed in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from compiled import assert_same, compiled, results_of
from fourfold import _native
from fourfold.compiler.analysis.overwritten import overwritten
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.compiler.pipeline.runtime import graph_of
from fourfold.saving.exported import lowered
from graphs import traced

aten = torch.ops.aten
pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.skipif(_native.module is None, reason="Python runs the graphs, and copies the rings"),
]
Step = Callable[[Tensor, Tensor, Tensor], Any]


def drawn(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of two streams, their places, and the ring: (streams, heads, places, size)."""
    torch.manual_seed(0)
    return torch.randn(2, 3, 4).to(dtype), torch.tensor([1, 4]), torch.randn(2, 3, 6, 4).to(dtype)


def index_put(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring[torch.arange(2), :, at % 6] = x * 2
    return ring.sum(2) + x, at + 1


def accumulates(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring.index_put_((torch.arange(2), at * 0, at % 6), x[:, 0], accumulate=True)
    return ring.sum(2) + x, at + 1


def index_copy(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring.index_copy_(2, at[:1] % 6, x.unsqueeze(2))
    return ring.sum(2) + x, at + 1


def index_add(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring.index_add_(2, at[:1] % 6, x.unsqueeze(2))
    return ring.sum(2) + x, at + 1


def scatter(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring.scatter_(2, (at % 6).view(-1, 1, 1, 1).expand(2, 3, 1, 4), x.unsqueeze(2))
    return ring.sum(2) + x, at + 1


def filled(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring.index_fill_(2, at % 6, 2.5)
    return ring.sum(2) + x, at + 1


def row(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring[:, :, 3] = x.sin() * 2
    return ring.sum(2) + x, at + 1


def rows(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring[:, 1:, ::2] = x[:, :2].unsqueeze(2)
    return ring.sum(2) + x, at + 1


def of_layers(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    """A ring of each layer within one tensor."""
    for layer in range(3):
        own = ring[:, layer]
        own[torch.arange(2), at % 6] = x[:, layer] + 1
        x = x + own.sum(1).unsqueeze(1)
    return x, at + 1


def reads_before(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    before = ring.sum(2)
    ring[torch.arange(2), :, at % 6] = x
    return before, ring.sum(2), at + 1


def reads_itself_before(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring[torch.arange(2), :, at % 6] = x + ring[:, :, 0] * 2
    return ring.sum(2), at + 1


def twice(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ring[torch.arange(2), :, at % 6] = x
    between = ring.sum(2)
    ring.index_fill_(2, (at[1:] + 1) % 6, 0)
    return between, ring.sum(2), at + 1


WRITES = (index_put, accumulates, index_copy, index_add, scatter, filled, row, rows, of_layers)
READS = (reads_before, reads_itself_before, twice)


def copies_of(function: Step, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    """The old values are read after the write."""
    old = ring.clone()
    ring[torch.arange(2), :, at % 6] = old[:, :, 0] + 1
    return old.cumsum(2) + ring, at + 1


def shifted(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring[:, :, :-1] = ring[:, :, 1:].clone()
    ring[:, :, -1] = x
    return ring.sum(2), at + 1


def its_own_rows(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring.index_copy_(2, at % 2, ring[:, :, 2:4])
    return ring.sum(2) + x, at + 1


def given_back(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring.index_copy_(2, at[:1] % 6, x.unsqueeze(2))
    return ring, at + 1


def view_given_back(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring.index_copy_(2, at[:1] % 6, x.unsqueeze(2))
    return ring[0].mT, at + 1


OTHERS = (copies_of, shifted, its_own_rows, given_back, view_given_back)


class Model(nn.Module):
    def __init__(self, function: Step):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, at: Tensor, ring: Tensor) -> Any:
        return self.function(x, at, ring)


def exported(function: Step, *arguments: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(Model(function), tuple(each.clone() for each in arguments))


def as_plan(function: Step, *arguments: Tensor) -> Compiled:
    """The graph of an exported program, with all operators in place."""
    return Compiled(lowered(exported(function, *arguments))[1])


def called(compiled: Compiled) -> list[str]:
    return [step[1][0] for step in compiled.plan.steps if step[0] == "operator"]


def alternately(call: Callable[..., Any], function: Step, given: tuple[Tensor, Tensor, Tensor], calls: int = 7) -> None:
    """Compares calls whose place and ring are those of the call before."""
    x, at, ring = given
    places, rings = [at.clone(), at.clone()], [ring, ring.clone(memory_format=torch.preserve_format)]
    with torch.no_grad():
        for k in range(calls):
            results = [each(x * k, places[n], rings[n]) for n, each in enumerate((call, function))]
            unit = 5e-2 if ring.dtype == torch.bfloat16 else 1e-5  # programs round results only
            assert_same(list(results[0]), list(results[1]), atol=unit, rtol=unit)
            torch.testing.assert_close(rings[0], rings[1])
            places = [result[-1] for result in results]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [*WRITES, *READS, *OTHERS])
def test_compiled_steps(function: Step, dynamic: bool) -> None:
    alternately(compiled(function, dynamic=dynamic), function, drawn())


@pytest.mark.parametrize("function", [*WRITES, *READS, shifted])
def test_plans(function: Step) -> None:
    """As saved models run them, from the third call on with the memory of earlier ones."""
    graph = graph_of(as_plan(function, *drawn()))
    alternately(lambda *given: tuple(graph(list(given))), function, drawn())


@pytest.mark.parametrize("function", WRITES)
def test_nothing_copies_the_ring(function: Step) -> None:
    names = called(as_plan(function, *drawn()))
    written = names.count("aten::copy_"), sum(name.startswith(("aten::index", "aten::scatter")) for name in names)
    assert written in ((1, 0), (0, 1), (0, 3))
    assert all(name.endswith("_") for name in names if "index" in name or "scatter" in name)


@pytest.mark.parametrize("function", READS)
def test_reads_in_time_do_not_matter(function: Step) -> None:
    assert "aten::copy_" not in called(as_plan(function, *drawn()))


x, y = torch.randn(5, 3), torch.randn(5, 3)


def put(into: Tensor, value: Tensor) -> Tensor:
    return aten.index_copy(into, 0, torch.arange(2, 3), value)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x, y: (x.copy_(put(x, y[:1])), None)[1:], 1),
        (lambda x, y: (x.copy_(put(put(x, y[:1]), y[1:2])), None)[1:], 1),
        (lambda x, y: (x.copy_(put(x, y[:1])), y.copy_(put(y, y[:1].sin())), None)[2:], 2),
        (lambda x, y: (new := put(x, y[:1]), x.copy_(new), y.copy_(new), None)[3:], 1),
        # What it returns belongs to the caller.
        (lambda x, y: (new := put(x, y[:1]), x.copy_(new))[:1], 0),
        (lambda x, y: (new := put(x, y[:1]), x.copy_(new), new.mT)[2:], 0),
        (lambda x, y: (first := put(x, y[:1]), x.copy_(put(first, y[1:2])), first)[2:], 0),
        # The old values are read afterwards, through a view too.
        (lambda x, y: (new := put(x, y[:1]), x @ y.mT, x.copy_(new))[1:2], 0),
        (lambda x, y: (old := x[1:], new := put(x, y[:1]), old @ y.mT, x.copy_(new))[2:3], 0),
        (lambda x, y: (old := x @ y.mT, x.copy_(put(x, y[:1])), old)[2:], 1),
        (lambda x, y: (first := put(x, y[:1]), new := put(first, y[1:2]), first @ y.mT, x.copy_(new))[2:3], 0),
        # What is written is of the same memory.
        (lambda x, y: (x.copy_(put(x, x[1:2])), None)[1:], 0),
        (lambda x, y: (x.copy_(aten.slice_scatter(x, x[1:], 0, 0, 4)), None)[1:], 1),  # copied first
        # Another input's new value, another operator's, or two of one input.
        (lambda x, y: (y.copy_(put(x, y[:1])), None)[1:], 0),
        (lambda x, y: (x.copy_(put(x.cumsum(0), y[:1])), None)[1:], 0),
        (lambda x, y: (x.copy_(put(x, y[:1]).cumsum(0)), None)[1:], 0),
        (lambda x, y: (x.copy_(put(x, y[:1])), x.copy_(put(x, y[1:2])), None)[2:], 0),
    ],
)
def test_what_is_found(function: Callable[..., object], count: int) -> None:
    module = traced(function, x.clone(), y.clone())
    assert len(overwritten(module).copies) == count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("function", [index_put, index_copy, rows])
def test_dtypes(function: Step, dtype: torch.dtype) -> None:
    alternately(compiled(function), function, drawn(dtype), calls=3)


@pytest.mark.parametrize("function", [index_put, index_copy, row, of_layers])
def test_rings_with_gaps(function: Step) -> None:
    """And transposed ones, also where the exported ring was dense."""
    new, at, ring = drawn()
    gaps, transposed = torch.zeros(2, 3, 8, 4)[:, :, 1:7].copy_(ring), ring.mT.contiguous().mT
    graph = graph_of(as_plan(function, new, at, ring))
    for other in (gaps, transposed):
        alternately(compiled(function), function, (new, at, other.clone(memory_format=torch.preserve_format)))
        alternately(lambda *given: tuple(graph(list(given))), function, (new, at, other))


def two_rings(x: Tensor, at: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a[torch.arange(2), :, at % 4] = x
    b[torch.arange(2), :, (at + 1) % 4] = x * 2
    return a.sum(2) + 1, b.sum(2) * 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_rings_that_share_memory(dynamic: bool) -> None:
    """One tensor twice, and parts that overlap or lie apart."""
    call = compiled(two_rings, dynamic=dynamic)
    new, at, ring = drawn()

    def parts(whole: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        first = whole[:, :, :4]
        return {"apart": (first, whole[:, :, 4:].repeat(1, 1, 2, 1)), "one": (first, first)}.get(
            kind, (first, whole[:, :, 2:])
        )

    for kind in ("apart", "one", "overlap", "apart", "one"):
        mine, theirs = ring.clone(), ring.clone()
        with torch.no_grad():
            got, expected = call(new, at, *parts(mine, kind)), two_rings(new, at, *parts(theirs, kind))
        assert_same(list(got), list(expected), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mine, theirs)


def unchecked(x: Tensor, at: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
    ring.index_copy_(2, at[:1], x.unsqueeze(2))
    return ring.sum(2), at + 1


def test_places_out_of_range() -> None:
    """The error is eager's, and later calls work."""
    new, at, ring = drawn()
    call, graph = compiled(unchecked), graph_of(as_plan(unchecked, new, at, ring))
    for each in (unchecked, call, lambda *given: graph(list(given))):
        for _ in range(4):
            before = ring.clone()
            with torch.no_grad(), pytest.raises(IndexError, match="out of range|out of bounds"):
                each(new, at + 9, ring)
            assert torch.equal(ring, before)
            each(new, at, ring)
    alternately(call, unchecked, (new, at % 3, ring), calls=3)


def test_returned_rings_are_the_arguments() -> None:
    new, at, ring = drawn()
    call = compiled(given_back)
    with torch.no_grad():
        assert call(new, at, ring)[0] is ring
        assert call(new, at, ring)[0] is ring


@pytest.mark.parametrize("function", [index_put, row, of_layers])
def test_gradients(function: Step) -> None:
    """Those of what is computed from the ring, whose new values have none."""

    def step(w: Tensor, x: Tensor, at: Tensor, ring: Tensor) -> Tensor:
        function(x, at, ring)
        return (ring * w).sin().sum(2)

    given = (torch.randn(4, requires_grad=True), *drawn())
    call = compiled(step)
    for _ in range(2):
        assert_same(results_of(call, given), results_of(step, given), atol=1e-5, rtol=1e-5)


def test_autograd_sees_the_change() -> None:
    new, at, ring = drawn()
    w, call = torch.ones(4, requires_grad=True), compiled(index_put)
    loss = (ring * w).sum()
    with torch.no_grad():
        call(new, at, ring)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Buffered(nn.Module):
    def __init__(self, function: Step):
        super().__init__()
        self.function = function
        self.register_buffer("ring", torch.ones(2, 3, 6, 4))

    def forward(self, x: Tensor, at: Tensor) -> Any:
        return self.function(x, at, self.ring)


@pytest.mark.parametrize("function", [*WRITES, *READS, *OTHERS])
def test_saved_models(function: Step, tmp_path: Path) -> None:
    """With the ring as a state, and as a buffer."""
    new, at, ring = drawn()
    path, places = tmp_path / "ring.ff", len(Model(function)(new, at, ring.clone())) - 1
    fourfold.save(exported(function, new, at, ring), path, state={"at": places, "ring": None})
    alternately(fourfold.load(path), function, (new, at, ring.clone()))
    stream, own = fourfold.load(path).stream(at=at, ring=ring), [at, ring.clone()]
    for k in range(6):
        results = function(new * k, *own)
        own[0] = results[-1]
        given = stream(new * k)
        assert_same(list(given) if isinstance(given, tuple) else [given], list(results[:-1]), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(stream.state["ring"], own[1])
    module = Buffered(function)
    fourfold.save(torch.export.export(module, (new, at)), path)
    loaded = fourfold.load(path)
    for k in range(6):
        assert_same(list(loaded(new, at + k)), list(module(new, at + k)), atol=1e-5, rtol=1e-5)


def test_files_write_parts_in_place(tmp_path: Path) -> None:
    path = tmp_path / "ring.ff"
    for function in (row, rows):
        fourfold.save(exported(function, *drawn()), path)
        text = str(fourfold.load(path))
        assert text.count("aten::copy_(") == 1 and "scatter" not in text and "aten::cat" not in text


@pytest.mark.parametrize("function", [each for each in WRITES if each not in (row, rows)])
def test_files_call_operators_in_place(function: Step, tmp_path: Path) -> None:
    path = tmp_path / "ring.ff"
    fourfold.save(exported(function, *drawn()), path)
    assert "aten::copy_(" not in str(fourfold.load(path))
