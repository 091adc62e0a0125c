"""torch.compile(backend="fourfold"): options, failures, and what torch's tools show of it."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from operator import attrgetter

import pytest
import torch
from torch import nn

import fourfold
from compiled import assert_same, compiled, draw, programs_of, results_of
from forked import Forks
from fourfold.compiler import lowering
from fourfold.compiler.passes.epilogues import Epilogues
from fourfold.compiler.passes.fuse import Fusion
from fourfold.compiler.pipeline import fallback, runtime
from fourfold.compiler.pipeline.calling import Program
from fourfold.compiler.pipeline.entry import backend
from fourfold.compiler.pipeline.record import Record
from machine import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore:Profiler clears events at the end of each cycle"),
    # torch warns when it captures what follows a graph break.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
WITH_OURS = fourfold._native.module is not None


@pytest.mark.parametrize("options", [None, {}, {"trace": True}])
def test_options(options: dict | None, caplog: pytest.LogCaptureFixture) -> None:
    record = Record()
    torch._dynamo.reset()
    call = torch.compile(
        lambda x: torch.softmax(x * 2 + 1, -1), backend=lambda *a: backend(*a, options=options, record=record)
    )
    x = draw(4, 6, gradient=False)
    with caplog.at_level(logging.INFO, logger="fourfold.compiler"):
        torch.testing.assert_close(call(x), torch.softmax(x * 2 + 1, -1))
    graph = record.captured[0].forward.compiled
    assert len(graph.programs) == 1 and not graph.refusals
    assert ("fourfold program 1" in caplog.text) == (options == {"trace": True})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"fuse": True}, "fourfold: expected an option of trace, generator, round, but got 'fuse'"),
        ({"round": "even"}, "fourfold: expected option round to be one of stored, eager, but got 'even'"),
        ({"trace": 1}, "fourfold: expected option trace to be True or False, but got 1"),
        ("fast", "fourfold: expected options to be a dict, but got 'fast'"),
    ],
)
def test_options_that_there_are_not(options: dict, sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        compiled(torch.sin, options=options)(torch.ones(3))


def test_modes_are_inductors() -> None:
    for mode, instead in (
        ("reduce-overhead", "leave it out: compiled graphs are called from C\\+\\+ already"),
        ("max-autotune", r"leave it out \(options: trace, generator, round\)"),
    ):
        with pytest.raises(Exception, match=f"fourfold: expected no mode, but got '{mode}'; {instead}"):
            torch.compile(torch.sin, backend=backend, mode=mode)(torch.ones(3))
    with pytest.raises(TypeError, match="fourfold: expected no speed, which other backends have"):
        backend(None, [], speed=3)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering with a bug."""

    def fault(call: object, x: object) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setitem(lowering.POINTWISE, torch.ops.aten.sin.default, fault)
    monkeypatch.setattr(fallback, "_reported", set())


@pytest.mark.usefixtures("failing")
def test_an_internal_failure_leaves_the_group_to_torch_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    x = draw(4, gradient=False)
    with pytest.warns(
        RuntimeWarning, match="could not compute aten.sin.default in a program, so torch's operators run instead"
    ) as seen:
        torch.testing.assert_close(compiled(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(lambda x: x.sin() * 2)(x), x.sin() * 2)


def test_a_graph_that_can_not_be_fused_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    monkeypatch.setattr(Fusion, "merge_readers", lambda self, node: ()[7])
    monkeypatch.setattr(fallback, "_reported", set())
    record = Record()
    x = draw(4, 18)
    with pytest.warns(RuntimeWarning, match="fourfold could not compute .* torch's operators run instead: IndexError"):
        got = results_of(compiled(lambda x: x.sin().sum(0), record), (x,))
    assert_same(got, results_of(lambda x: x.sin().sum(0), (x,)))
    assert programs_of(record) == 0
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    with pytest.raises(Exception, match="tuple index out of range"):
        compiled(lambda x: x.sin().sum(0))(x)


@pytest.mark.parametrize(("rule", "left"), [("concatenation", "cat"), ("column_sum", "sum")])
def test_a_failure_costs_its_own_group_and_is_blamed_alone(
    rule: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(attach: Epilogues, node: torch.fx.Node) -> None:
        if getattr(node.target, "__name__", "").startswith(left):
            raise IndexError("a fault of ours")

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin() * 2
        return torch.cat([y, x.cos()], -1), torch.cat([y.exp(), y], 0), y.sum(0), x.tanh().sum(0)

    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    monkeypatch.setattr(Epilogues, rule, fault)
    monkeypatch.setattr(fallback, "_reported", set())
    record = Record()
    x = draw(4, 18, gradient=False)
    with pytest.warns(
        RuntimeWarning, match=f"could not compute aten.{left}.*torch's operators run instead: IndexError"
    ) as seen:
        got = results_of(compiled(function, record), (x,))
    assert len(seen) == 1
    assert_same(got, results_of(function, (x,)))
    graph = record.captured[0].forward.compiled
    computed = {node.target.__name__.split(".")[0] for built in graph.programs for node in built.members}
    assert computed >= {"sin", "mul", "cos", "exp", "tanh"}
    assert {(node.target.__name__.split(".")[0], reason) for node, reason in graph.refusals.items()} == {
        (left, "failed: IndexError: a fault of ours")
    }


def test_a_node_that_can_not_be_placed_stays_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """explain reports only this node."""
    place = Fusion.place

    def fault(fusion: Fusion, node: torch.fx.Node, *settings: object) -> bool:
        if node.target == torch.ops.aten.tanh.default:
            raise KeyError("a fault of ours")
        return place(fusion, node, *settings)

    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    monkeypatch.setattr(Fusion, "place", fault)
    monkeypatch.setattr(fallback, "_reported", set())
    record = Record()
    x = draw(4, gradient=False)
    with pytest.warns(RuntimeWarning, match=r"could not compute aten.tanh.default .* KeyError"):
        got = compiled(lambda x: (x.sin() * 2).tanh().exp() + x.cos().tanh(), record)(x)
    torch.testing.assert_close(got, (x.sin() * 2).tanh().exp() + x.cos().tanh())
    left = record.captured[0].forward.compiled.refusals
    assert [node.target for node in left] == [torch.ops.aten.tanh.default] * 2
    assert programs_of(record) == 2


@pytest.mark.parametrize("name", ["decompose", "stack_gradients", "rematerialize"])
def test_a_failure_before_the_graph_is_cut_in_two(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning, and the gradients of eager code."""

    def fault(*given: object) -> None:
        raise KeyError("a fault of ours")

    def function(x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.layer_norm(x.sin(), (8,))
        return y[0] * y[1] + y[2].exp()

    within = {"decompose": "has_fused_neighbour", "stack_gradients": "stack", "rematerialize": "steps_of"}
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    monkeypatch.setattr(importlib.import_module(f"fourfold.compiler.passes.{name}"), within[name], fault)
    monkeypatch.setattr(fallback, "_reported", set())
    record = Record()
    x = draw(3, 8)
    with pytest.warns(
        RuntimeWarning, match="fourfold could not compute .* torch's operators run instead: KeyError"
    ) as seen:
        got = results_of(compiled(function, record), (x,))
    assert len({str(each.message) for each in seen}) == len(seen)
    assert_same(got, results_of(function, (x,)))
    assert programs_of(record) > 1
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    with pytest.raises(Exception, match="a fault of ours"):
        compiled(function)(x)


def test_sums_of_what_has_no_dimensions() -> None:
    x = draw()
    for dims in (0, -1, ()):
        got = compiled(lambda x, dims=dims: x.sin().sum(dims))(x)
        torch.testing.assert_close(got, x.sin())


@pytest.mark.usefixtures("failing")
def test_an_internal_failure_is_an_error_where_that_is_asked_for() -> None:
    with pytest.raises(Exception, match="a fault of ours"):
        compiled(lambda x: x.sin() + 1)(torch.ones(3))


@pytest.mark.parametrize("path", [attrgetter("run"), runtime.for_torch], ids=["python", "steps"])
def test_a_program_that_fails_when_it_runs_is_done_by_torch(path: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    monkeypatch.setattr(fallback, "_reported", set())
    record = Record()
    call = compiled(lambda x: torch.cat([x.sin() + 1, x.view(-1)]), record)
    x = draw(4, gradient=False)
    call(x)
    run = path(record.captured[0].forward.compiled)
    given = [x.double()]
    with pytest.warns(RuntimeWarning, match="torch's operators run instead: ValueError: program: expected"):
        (got,) = run(given)
    assert given == []
    torch.testing.assert_close(got, torch.cat([x.double().sin() + 1, x.double()]))
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    with pytest.raises(ValueError, match="program: expected another dtype"):
        run([x.double()])


@pytest.mark.parametrize("path", [attrgetter("run"), runtime.for_torch], ids=["python", "steps"])
def test_where_a_program_fails_nothing_happens_twice(path: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither random draws nor in-place changes happen twice."""
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    monkeypatch.setattr(fallback, "_reported", set())
    record = Record()

    def function(n: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        n.bernoulli_(0.5)
        return (n @ n) + x.sin()

    x, n = draw(4, gradient=False), draw(4, gradient=False)
    with torch.no_grad():
        compiled(function, record)(n, x)
    run = path(record.captured[0].forward.compiled)
    torch.manual_seed(1)
    expected = torch.empty(4).bernoulli_(0.5)
    number = torch.rand(1)
    torch.manual_seed(1)
    with pytest.warns(RuntimeWarning, match="torch's operators run instead"):
        results = run([n, x.double()])
    assert torch.equal(torch.rand(1), number)
    torch.testing.assert_close(results[-1], expected @ expected + x.double().sin())
    torch.testing.assert_close(n if len(results) == 1 else results[0], expected)


def test_strictness_is_1_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "yes")
    with pytest.raises(Exception, match="FOURFOLD_STRICT is yes; set it to 1"):
        compiled(torch.sin)(torch.ones(3))


def run_python(code: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd=ROOT,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def test_the_name_works_without_importing_fourfold_and_loads_nothing_of_inductor() -> None:
    """No more than aot_eager loads."""
    code = (
        "import sys, torch\n"
        "assert 'fourfold' in torch._dynamo.list_backends()\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "torch.compile(lambda x: x.sin() + 1, backend='{}')(x).sum().backward()\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('torch._inductor', 'sympy.', 'networkx'))))\n"
    )
    ours, theirs = (set(run_python(code.format(name)).split()) for name in ("fourfold", "aot_eager"))
    assert ours <= theirs


def test_importing_fourfold_loads_no_compiler(after_torch: Forks) -> None:
    code = "import sys, fourfold; assert not {'torch._dynamo', 'fourfold.compiler'} & set(sys.modules)"
    after_torch.output_of("-c", code)


def test_torchs_logs_show_the_graphs() -> None:
    code = "import torch; torch.compile(lambda x: x.sin() + 1, backend='fourfold')(torch.ones(3))"
    assert "torch.ops.aten.sin.default" in run_python(code, TORCH_LOGS="aot_graphs")


def test_profilers_show_programs_by_name() -> None:
    call = compiled(lambda x: x.sin() * 2 + 1)
    x = draw(1000)
    call(x).sum().backward()
    with torch.profiler.profile(record_shapes=True) as profile:
        call(x).sum().backward()
    names = {event.name: event.input_shapes for event in profile.events()}
    assert "fourfold_sin_mul_add" in names
    if WITH_OURS:
        assert names["fourfold_sin_mul_add"] == [[1000]]
    assert any(name.startswith("fourfold_") and "cos" in name for name in names)


def test_stances_and_what_is_disabled() -> None:
    record = Record()

    @torch.compiler.disable
    def left(x: torch.Tensor) -> torch.Tensor:
        assert not torch.compiler.is_compiling()
        return x + 1

    call = compiled(lambda x: left(x.sin()).cos(), record)
    x = draw(4, gradient=False)
    torch.testing.assert_close(call(x), (x.sin() + 1).cos())
    assert len(record.captured) == 2
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(call(draw(5, 5, gradient=False)), (draw(5, 5, gradient=False).sin() + 1).cos())
    assert len(record.captured) == 2


def test_dynamos_own_explanation() -> None:
    torch._dynamo.reset()
    assert torch._dynamo.explain(lambda x: x.sin() + 1)(torch.ones(3)).graph_count == 1


def test_a_compiled_module_is_exported() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()), backend="fourfold")
    x = draw(2, 4, gradient=False)
    expected = model(x)
    exported = torch.export.export(model, (x,), strict=False)
    torch.testing.assert_close(exported.module()(x), expected)


def test_a_named_program_is_a_callable() -> None:
    program = Program("fourfold program 1\naxes\nx: float32 = number\noutput x float32 []\n", "a_name")
    assert program(2.5).item() == 2.5
