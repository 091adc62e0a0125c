"""fourfold.explain of functions that call fourfold.scan."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from explained_scans import explained, lstm_step, parameter, spiking, summed_up, twice
from fourfold.cli import main
from fourfold.explaining.data import Operators
from fourfold.scanning import capture
from machine import ROOT

T, B, N, H = 9, 3, 4, 8  # steps, batch, features of x, hidden size
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # from Dynamo


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    yield
    torch._dynamo.reset()


def names(found: tuple[Operators, ...]) -> list[str]:
    return [name for one in found for name in one.names]


def zeros(count: int = 1) -> Any:
    states = tuple(torch.zeros(B, H) for _ in range(count))
    return states if count > 1 else states[0]


# The report on an LSTM.


def test_an_lstm_by_places() -> None:
    step = lstm_step(parameter(N, 4 * H), parameter(H, 4 * H))
    explanation, scan = explained(step, zeros(2), torch.randn(T, B, N))
    line = step.__code__.co_firstlineno
    assert (scan.step, scan.place) == ("lstm", f"explained_scans.py:{line}")
    assert (scan.steps, scan.count, scan.reverse, scan.reason) == (T, 1, False, "")
    assert [(one.name, one.value) for one in (*scan.states, *scan.xs, *scan.closures)] == [
        ("carry[0]", f"f32[{B}, {H}]"),
        ("carry[1]", f"f32[{B}, {H}]"),
        ("x", f"f32[{B}, {N}]"),
        ("weight", f"f32[{N}, {4 * H}]"),
        ("recurrent", f"f32[{H}, {4 * H}]"),
    ]
    forward, backward = scan.forward, scan.backward
    product = f"line {line + 2}: i, f, g, o = (x @ weight + h @ recurrent).chunk(4, 1)"
    assert (forward.inside[0].source, forward.inside[0].names) == (product, ("mm", "addmm"))
    assert sorted(names(forward.inside[1:])) == sorted(["sigmoid", "mul", "tanh"] * 2 + ["sigmoid", "mul", "add"])
    assert names(forward.before) == names(forward.after) == names(backward.before) == []
    assert [(one.source, one.names) for one in backward.after] == [(product, ("mm", "mm"))]  # the weights' gradients
    assert names(backward.inside).count("mm") == 1 and "tanh_backward" in names(backward.inside)
    assert (forward.trails, backward.trails) == (("carry[0]", "carry[1]"), ())
    assert forward.loop.stages == ("mm for all steps at once", "addmm with a matrix packed once", "loop_program_0")
    assert backward.loop.stages == ("loop_program_0", "mm with a matrix packed once")
    assert (forward.loop.way, forward.loop.reasons) == ("stages", {"nest": "operators outside programs: mm, addmm"})
    assert [one.operator for one in backward.outside] == ["mm"]
    assert " = Loop(" in forward.code and " = program_0(" in forward.loop.code


def test_an_lstm_in_words(tmp_path: Path) -> None:
    step = lstm_step(parameter(N, 4 * H), parameter(H, 4 * H))
    explanation, scan = explained(step, zeros(2), torch.randn(T, B, N))
    text = explanation.detail()
    assert max(map(len, text.splitlines())) <= 100
    for words in (
        f"Scan 0: lstm ({scan.place}), {T} steps\n",
        "recurrent   from outside",
        "Forward of scan 0\n    before the loop, for all steps at once\n      nothing\n",
        "    in the loop\n      mm, addmm ",
        "    after the loop, for all steps at once\n      nothing\n",
        "    after the loop, for all steps at once\n      2 mm  line ",
        "in the memory of carry[1]",
        "  loop_program_0 does 3 sigmoid, 3 mul, 2 tanh, add\n    fourfold program 1\n",
        "  outside programs before and after the loop\n    2 × mm",
    ):
        assert words in text, words
    flowing = " ".join(text.split())
    for words in (
        "The loop runs in stages, which C++ runs one after another in each step: mm for all steps at "
        "once, addmm with a matrix packed once, loop_program_0. Not as one loop nest: operators outside "
        "programs: mm, addmm. ",
        "The values of carry[0] and carry[1] in all steps are stored. ",
        f"Kept for the backward: {scan.forward.kept_bytes / 1000:.1f} kB in {T} steps; inputs take no more memory. ",
    ):
        assert words in flowing, words
    summary = explanation.summary()
    assert f"scan 0, lstm: forward         0            11       0   {scan.forward.kept_bytes / 1000:.1f} kB" in summary
    assert "3 stages a step" in summary and len(summary.splitlines()) <= 40
    explanation.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for words in (
        "Scan 0",
        "Backward of scan 0",
        "The loop nest of loop_program_0 of the backward of scan 0",
        " = input float32 [a b+",
    ):
        assert words in page, words
    assert "<script" not in page


def test_a_scan_is_no_graph_break(tmp_path: Path) -> None:
    def between(xs: Tensor) -> Tensor:
        _, ys = fourfold.scan(twice, zeros(), torch.sin(xs))
        return torch.cos(ys[0]) * ys[1]

    def broken(xs: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return between(xs)

    xs = torch.randn(T, B, H)
    alone, _ = explained(twice, zeros(), xs)
    explanation = fourfold.explain(between, xs)
    assert alone.breaks == explanation.breaks == ()
    assert (len(alone.graphs), len(explanation.graphs)) == (0, 2)
    apart = "the operators before and after a scan are separate graphs. With torch.compile(..., fullgraph=True) they"
    for text, says in ((alone.detail(), False), (explanation.detail(), True), (explanation.summary(), True)):
        assert "Graph breaks" not in text
        assert (apart in " ".join(text.split())) == says
    explanation.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Graph breaks" not in page and apart in page
    (reason,) = fourfold.explain(broken, xs).breaks
    assert reason.startswith("Call to `torch._dynamo.graph_break()`")


# How the loop runs.


def test_a_nest_is_said_with_what_runs_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourfold.compiler.nest.jit.service.obstacle", lambda: "")
    monkeypatch.setenv("FOURFOLD_GENERATOR", "auto")
    xs = torch.randn(T, B, H, requires_grad=True)
    explanation, scan = explained(spiking, zeros(2), xs)
    for half in scan.halves:
        assert (half.loop.way, half.loop.until, half.loop.reasons) == ("nest", "stages", {})
        code = explanation.nest(half.name, scan=0)
        assert "for (int64 step = 0; step < steps; ++step)" in code and "state" in code
        assert "define void @elements(" in explanation.llvm(half.name, scan=0)
    assert scan.forward.loop.outside == scan.backward.loop.outside == ()
    words = " ".join(explanation.detail().split())
    assert "as one loop nest over the steps, with the states in registers, from the second call on; until then" in words
    assert "one loop nest" in explanation.summary()
    monkeypatch.setenv("FOURFOLD_GENERATOR", "interpreter")
    _, scan = explained(spiking, zeros(2), xs)
    assert scan.forward.loop.way == "stages"
    assert scan.forward.loop.reasons["nest"] == "as the environment variable FOURFOLD_GENERATOR says"
    monkeypatch.setenv("FOURFOLD_GENERATOR", "auto")
    monkeypatch.setattr("fourfold.compiler.nest.jit.service.obstacle", lambda: "llvmlite is not installed")
    assert explained(spiking, zeros(2), xs)[1].forward.loop.reasons["nest"] == "llvmlite is not installed"


def test_an_operator_that_pytorch_runs_in_every_step() -> None:
    explanation, scan = explained(summed_up, zeros(), torch.randn(T, B, H, requires_grad=True))
    assert scan.forward.loop.stages == ("loop_program_0", "cumsum by PyTorch", "loop_program_1")
    assert [one.operator for one in scan.forward.loop.outside] == ["cumsum"]
    assert "operators outside programs: cumsum" in " ".join(explanation.detail().split())


def test_steps_that_are_run_by_the_steps_graph_have_a_reason() -> None:
    def counted(h: Tensor, x: Tensor) -> Any:
        return h + torch.nonzero(h + x > 0).sum(), h

    explanation, scan = explained(counted, zeros(), torch.randn(T, B, H))
    assert (scan.forward.loop.way, scan.forward.loop.stages) == ("steps", ())
    assert "nonzero" in scan.forward.loop.reasons["stages"] or "depend on data" in scan.forward.loop.reasons["stages"]
    assert "step by step: C++ runs the graph of a step for each. " in " ".join(explanation.detail().split())


def multiplied(h: Tensor, x: Tensor) -> Any:
    return torch.tanh(h @ torch.ones(H, H)) + x, h


def shifted(window: Tensor, x: Tensor) -> Any:
    window = torch.cat([window[:, 1:], torch.tanh(x[:, :1])], 1)
    return window, window.sum(1)


def beside_a_number(carry: Any, x: Tensor) -> Any:
    h, n = carry
    return (torch.tanh(h) + x, n + 1), h * n


# The step, the number of steps, and why there is no nest and, unless empty, why there are no stages.
REASONS = {
    "one step": (twice, 1, "the first step runs separately, and there is no other", "there are fewer than 4 steps"),
    "three steps": (multiplied, 3, "operators outside programs: mm", "there are fewer than 4 steps"),
    "a concatenation": (shifted, T, "operators outside programs: concatenation", "programs write parts of a concat"),
    "a number": (beside_a_number, T, "its step is 2 programs; a state of one number beside larger ones needs", ""),
}


@pytest.mark.parametrize("name", REASONS)
def test_reasons_come_from_the_code_that_runs_the_loop(name: str) -> None:
    step, steps, nest, stages = REASONS[name]
    init = (zeros(), torch.zeros(())) if step is beside_a_number else zeros()
    _, scan = explained(step, init, torch.randn(steps, B, H))
    reasons = scan.forward.loop.reasons
    assert reasons["nest"].startswith(nest) and reasons.get("stages", "").startswith(stages)
    assert ("stages" in reasons) == bool(stages)


def test_a_backward_is_planned_without_running() -> None:
    step = lstm_step(parameter(N, 4 * H), parameter(H, 4 * H))
    with torch.profiler.profile() as profile:
        _, scan = explained(step, zeros(2), torch.randn(T, B, N))
    assert scan.backward.loop.way == "stages"
    programs = [event.key for event in profile.key_averages() if event.key.startswith("fourfold_")]
    assert "fourfold_loop_in_stages" in programs and not any("backward" in name for name in programs)


def test_without_calls_for_this_torch_python_runs_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourfold._native.module", None)
    monkeypatch.setattr("fourfold._native.path", "Python (FOURFOLD_GRADIENTS=python)")
    explanation, scan = explained(spiking, zeros(2), torch.randn(T, B, H, requires_grad=True))
    for half in scan.halves:
        assert (half.loop.way, half.loop.until) == ("python", "")
        assert "FOURFOLD_GRADIENTS=python" in half.loop.reasons["cpp"]
    assert "Not in C++: fourfold has no C++ module for this torch" in " ".join(explanation.detail().split())


def test_a_step_that_runs_in_python_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = parameter(H) * 2

    def changing(h: Tensor, x: Tensor) -> Any:
        changed.mul_(0.5)
        return h + x * changed, h

    monkeypatch.delenv("FOURFOLD_STRICT")
    with pytest.warns(RuntimeWarning, match="requires a gradient"):
        explanation, scan = explained(changing, zeros(), torch.randn(T, B, H))
    reason = "the step changes another tensor that requires a gradient in place"
    assert (scan.step, scan.reason, scan.halves, scan.steps) == ("changing", reason, (), T)
    assert f"run in Python, one by one: {reason}." in " ".join(explanation.detail().split())
    assert "in Python: " in explanation.summary() and "run in Python" in explanation._repr_html_()
    with pytest.raises(ValueError, match="expected a scan that is compiled, but got 'forward'"):
        explanation.nest(scan=0)


def test_a_transform_is_a_reason_too() -> None:
    def run(x: Tensor) -> Tensor:
        return torch.vmap(lambda each: fourfold.scan(twice, torch.zeros(H), each)[0])(x)

    (scan,) = fourfold.explain(run, torch.randn(2, T, H)).scans
    assert scan.reason.startswith("transforms") and scan.forward is None
    assert (scan.steps, scan.states[0].value) == (T, f"f32[{H}]")


# What is saved.


def test_kept_tensors_are_told_one_by_one() -> None:
    recurrent = parameter(H, H)

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(x @ recurrent + h @ recurrent)
        return h, h.exp()

    _, scan = explained(step, zeros(), torch.randn(T, B, H))
    kept = {one.name: one for one in scan.forward.kept}
    element = B * H * 4
    assert (kept["h"].value, kept["h"].has_steps, kept["h"].bytes) == (f"f32[{B}, {H}]", True, (T + 1) * element)
    assert kept["h"].note == "as each step begins"
    assert (kept["x"].bytes, kept["x"].note) == (0, "an input")
    assert (kept["recurrent"].has_steps, kept["recurrent"].note) == (False, "an input")
    others = [one for name, one in kept.items() if name not in ("h", "x", "recurrent")]
    assert {one.note for one in others} <= {"in the memory of h", "computed in the loop, also a result"}
    assert scan.forward.kept_bytes == sum(one.bytes for one in kept.values())


def test_checkpoints_keep_through_hooks() -> None:
    xs = torch.randn(25, B, H, requires_grad=True)
    explanation = fourfold.explain(lambda x: fourfold.scan(twice, zeros(), x, checkpoint_every=10), xs)
    assert [(scan.steps, scan.count, scan.has_hooks) for scan in explanation.scans] == [(10, 2, True), (5, 1, True)]
    assert "torch.utils.checkpoint, get it" in " ".join(explanation.detail().split())


def test_without_gradients_nothing_is_kept() -> None:
    explanation, scan = explained(twice, zeros(), torch.randn(T, B, H), reverse=True)
    assert (scan.backward, scan.forward.kept, scan.forward.kept_bytes, scan.reverse) == (None, (), 0, True)
    assert "Kept for the backward" not in explanation.detail()
    assert f"{T} steps, the last one first" in explanation.detail()


# Which scans are listed, and what explain leaves unchanged.


def test_every_scan_is_listed_with_its_calls() -> None:
    layer = fourfold.nn.Recurrent(lambda number, reverse: nn.RNNCell(N if number == 0 else H, H), num_layers=2)

    def run(x: Tensor) -> Tensor:
        return sum(layer(x)[0] for _ in range(3))

    explanation = fourfold.explain(run, torch.randn(T, B, N))
    assert [(scan.count, scan.forward.loop.way) for scan in explanation.scans] == [(3, "stages"), (3, "stages")]
    assert {"cell.weight_hh", "cell.bias_ih"} < {one.name for one in explanation.scans[1].closures}
    assert "Scan 1: " in explanation.detail() and ", 3 calls" in explanation.detail()
    with pytest.raises(ValueError, match="expected one of 2 scans, but got 2"):
        explanation.nest(scan=2)


def test_trees_are_named_as_the_step_has_them() -> None:
    def step(state: Any, given: Any) -> Any:
        return {"a": state["a"] + given["u"], "none": None, "n": state["n"] + 1}, given["v"] * state["a"]

    _, scan = explained(step, {"a": zeros(), "none": None, "n": 0}, {"u": torch.randn(T, B, H), "v": torch.ones(T, 1)})
    assert [(one.name, one.value) for one in scan.states] == [("state['a']", f"f32[{B}, {H}]"), ("state['n']", "i64[]")]
    assert [one.name for one in scan.xs] == ["given['u']", "given['v']"]


def test_what_was_traced_stays_and_gradients_are_untouched() -> None:
    weight = parameter(H, H)

    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(x + h @ weight)
        return h, h

    xs = torch.randn(T, B, H)
    fourfold.scan(step, zeros(), xs)
    before = dict(capture._compiled[capture.code_of(step)])
    explained(step, zeros(), xs)
    assert capture._compiled[capture.code_of(step)] == before and weight.grad is None
    fourfold.scan(step, zeros(), xs)[1].sum().backward()
    assert weight.grad is not None


def test_torchs_own_scan_operator() -> None:
    from torch._higher_order_ops.scan import scan as torchs

    def run(x: Tensor) -> Tensor:
        return torchs(lambda h, x: (torch.tanh(h) + x, h * 2), zeros(), x)[1] + 1

    (scan,) = fourfold.explain(run, torch.randn(T, B, H)).scans
    assert (scan.step, scan.steps) == ("torch's scan operator", T) and "tanh" in names(scan.forward.inside)


def test_the_report_is_as_the_page_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "scan.md").read_text(encoding="utf-8")
    before, _, section = page.partition("## Seeing what runs\n")
    code = before + section.partition("\nprints, among others:")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", code, re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text("\n".join((*blocks[:2], blocks[-1])), encoding="utf-8")
    runpy.run_path(str(tmp_path / "example.py"), run_name=tmp_path.name)  # unique: Dynamo finds modules by name
    said = iter(capsys.readouterr().out.splitlines())
    shown = re.findall(
        r"^    (.*)", section.partition("prints, among others:")[2].partition("\n`explanation")[0], re.MULTILINE
    )
    assert len(shown) > 15
    for line in shown:  # in this order
        assert line in said, line


def test_an_error_that_the_function_catches() -> None:
    def run(x: Tensor) -> Tensor:
        try:
            return fourfold.scan(lambda h, x: (h[:1], h), zeros(), x)[1]
        except ValueError:
            return x + 1

    explanation = fourfold.explain(run, torch.randn(T, B, H))
    assert explanation.scans[0].halves == () and "It raised an error." in explanation.detail()


def test_no_steps() -> None:
    explanation, scan = explained(twice, zeros(), torch.randn(0, B, H))
    assert (scan.steps, scan.halves) == (0, ()) and "There are no steps." in explanation.detail()


def test_the_command_shows_nests_of_scans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "import torch, fourfold\ndef decay(h, x):\n    h = 0.9 * h + x\n    return h, h\n"
    source += "def decayed(x):\n    return fourfold.scan(decay, torch.zeros(8), x)[1]\n"
    (tmp_path / "decaying_steps.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fourfold.compiler.nest.jit.service.obstacle", lambda: "")
    monkeypatch.setenv("FOURFOLD_GENERATOR", "auto")
    assert main(["explain", "decaying_steps:decayed", "--shapes", "20x8", "--nest", "c"]) == 0
    said = capsys.readouterr().out
    assert "Scan 0: decay (decaying_steps.py:2), 20 steps" in said
    assert "loop_program_0 of the backward of scan 0\n" in said and said.count("; ++step)") >= 2
