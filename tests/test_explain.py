"""fourfold.explain: the walk-through "how PyTorch 2 compiles" as in docs/explain.md, and harder functions."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from forked import Forks
from fourfold.cli import main
from fourfold.explaining.running import apart
from machine import ROOT

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # from Dynamo
]
PAGE = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def masked(text: str) -> str:
    """Without the parts that differ between runs and versions of torch."""
    text = re.sub(r"^  (load torch's compiler|Loop nests run|The interpreter runs) .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"( +[\d.e+]+ (?:s|ms|µs)| +-)+$", " TIME", text, flags=re.MULTILINE)
    text = re.sub(r"one more compilation|the median of \d+ more compilations", "AGAIN", text)  # depends on their times
    return re.sub(r"^ +first +again$|fourfold [\d.]+, torch \S+", "", text, flags=re.MULTILINE)


def run_example(folder: Path) -> dict[str, Any]:
    """The page's first example, run from a file: torch records the source lines of operators."""
    file = folder / "example.py"
    file.write_text(BLOCKS[0][1], encoding="utf-8")
    return runpy.run_path(str(file), run_name=folder.name)  # unique: Dynamo looks up a module by name


def test_the_walkthrough_is_told_as_the_page_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace = run_example(tmp_path)
    said = capsys.readouterr().out
    assert masked(said) == masked(BLOCKS[1][1])
    assert max(map(len, said.splitlines())) <= 100
    for half in ("forward", "backward"):
        labels = re.findall(r'label="(.*?)"', namespace["explanation"].dot(half))
        drawn = re.findall("<text[^>]*>(.*?)</text>", (ROOT / "docs" / "explain" / f"{half}.svg").read_text("utf-8"))
        assert sorted(drawn) == sorted(line for label in labels for line in label.split(r"\n")) and len(drawn) > 8
        assert f"](explain/{half}.svg)" in PAGE
    exec(compile(BLOCKS[2][1], "explain.md", "exec"), namespace)
    assert capsys.readouterr().out == BLOCKS[3][1]


def test_joined_results_and_sums_over_rows_are_within_the_program() -> None:
    def gated(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return nn.functional.silu(gate) * up

    told = str(fourfold.explain(gated, torch.randn(20, 64, requires_grad=True)))
    assert "Backward: 5 operators in 1 program" in told and "silu_backward, cat" in told
    assert "outside programs in the backward" not in told
    norm = nn.Sequential(nn.LayerNorm(32), nn.Tanh())
    told = str(fourfold.explain(norm, torch.randn(20, 32, requires_grad=True)))
    assert "operators in 1 program" in told.partition("Backward: ")[2] and "2 sum" in told
    assert "outside programs in the backward" not in told


def test_a_graph_break_gives_several_graphs_and_its_reason() -> None:
    def f(x: Tensor) -> Tensor:
        x = x.sin() * 2
        torch._dynamo.graph_break()
        return x.cos() + 1

    explanation = fourfold.explain(f, torch.randn(5, requires_grad=True))
    assert len(explanation.graphs) == 2 and len(explanation.breaks) == 1
    text = str(explanation)
    assert "Captured graph 0\n" in text and "Backward 1: " in text and "Graph breaks\n  Call to `torch._dynamo" in text
    assert "sin" in explanation.dot("forward", 0) and "cos" in explanation.dot("forward", 1)
    for number in (2, -1):
        with pytest.raises(ValueError, match=f"explain: expected one of 2 graphs, but got {number}"):
            explanation.dot("forward", number)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return torch.tanh(self.norm(self.linear(x))) * scale


def test_a_module_keeps_its_gradients_and_random_numbers() -> None:
    model, x = Model(), torch.randn(3, 4)
    before = torch.random.get_rng_state()
    explanation = fourfold.explain(model, x, scale=2.0)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    (graph,) = explanation.graphs
    assert explanation.name == "Model" and graph.backward is not None
    drawn = explanation.dot("backward")
    assert r'"gradient of self.linear.weight\n' in drawn and r'"gradient of self.norm.bias\n' in drawn
    assert r'"x\n' in explanation.dot("forward")
    (outside,) = [one for one in graph.forward.outside]
    assert (outside.operator, outside.count, outside.reason) == ("addmm", 1, "programs have no such operator")


def test_graphs_that_were_there_before_stay_whole() -> None:
    weight = torch.randn(3, requires_grad=True)
    square = weight**2
    explanation = fourfold.explain(lambda x: (x * square).exp(), torch.randn(3))
    assert explanation.graphs[0].backward is not None and weight.grad is None
    square.sum().backward()
    torch.testing.assert_close(weight.grad, 2 * weight.detach())


def test_sizes_may_be_symbols() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, -1)

    x = torch.randn(7, 5, requires_grad=True)
    for given, dynamic in ((x, True), (x, None)):
        if dynamic is None:
            torch._dynamo.mark_dynamic(given, 0)
        explanation = fourfold.explain(f, given, dynamic=dynamic)
        forward = explanation.graphs[0].forward
        assert re.search(r"axes a=\w+\.0 \| b=", forward.programs[0].text)
        assert re.search(r"f32\[s\d+, ", explanation.dot())
        assert (forward.bytes_before, forward.bytes_after) == (4 * 140, 2 * 140)


def test_other_sizes_are_no_reason_for_symbols() -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin()

    for count in (3, 4, 5):
        assert f"axes a={count}\n" in str(fourfold.explain(f, torch.randn(count)))


def test_what_is_compiled_stays_compiled() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
    compiled(torch.ones(3))
    for _ in range(4):  # each compiles several times, more often than torch allows for one function
        assert len(fourfold.explain(compiled, torch.ones(3)).graphs) == 1
    compiled(torch.ones(3))
    assert len(graphs) == 1


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.sin() * 2
        torch._dynamo.graph_break()
        return x.cos() + 1


@pytest.mark.skipif(apart() == {}, reason="before torch 2.13 what is compiled within a function counts together")
def test_graph_breaks_within_what_is_called_leave_torchs_limit_alone() -> None:
    module, seen = Broken(), []
    for _ in range(3):
        assert len(fourfold.explain(module, torch.randn(4)).graphs) == 2
    torch.compile(module, backend=lambda graph, _: seen.append(graph) or graph.forward)(torch.randn(4))
    assert len(seen) == 2


def test_without_a_gradient_there_is_no_backward() -> None:
    explanation = fourfold.explain(lambda x: (x + 1, x.argmax()), torch.randn(4))
    assert explanation.graphs[0].backward is None
    assert "backward" not in str(explanation)
    with pytest.raises(ValueError, match="explain: expected forward, but got 'backward'"):
        explanation.dot("backward")


def test_a_function_that_computes_nothing() -> None:
    explanation = fourfold.explain(lambda x: x, torch.randn(4))
    assert explanation.graphs == () and "captured no graph" in str(explanation)
    assert "captured no graph" in explanation._repr_html_()


def test_in_place_changes_random_numbers_and_mixed_results() -> None:
    def f(x: Tensor) -> dict[str, Any]:
        x.add_(1)
        return {"drawn": torch.rand_like(x) * x, "sum": x.sum(0), "count": 3}

    explanation = fourfold.explain(f, torch.zeros(4, 3))
    assert {one.operator: one.reason for one in explanation.graphs[0].forward.outside}["rand_like"].startswith(
        "it draws"
    )
    assert explanation.graphs[0].runtime != "" and "torch's own runtime" in str(explanation)


def test_what_a_program_writes_in_place_is_not_copied() -> None:
    half = fourfold.explain(lambda x: x.mul_(2).sin_(), torch.randn(1000)).graphs[0].forward
    assert (half.bytes_before, half.bytes_after) == (16_000, 8_000)
    assert not half.outside and "x, in place" in [box.lines[0] for box in half.boxes]


def test_what_is_copied_into_a_changed_input_is_counted() -> None:
    half = fourfold.explain(lambda x: x.cumsum_(0), torch.randn(1000)).graphs[0].forward
    assert "copy_" in [one.operator for one in half.outside]
    changed = torch.randn(1000, requires_grad=True) * 1
    half = fourfold.explain(lambda x: x.mul_(2).sin_(), changed).graphs[0].forward
    assert [(one.operator, one.count) for one in half.outside] == [("copy_", 1)]


def test_reasons_are_the_compilers() -> None:
    """Operators that a pass leaves to torch without a reason of its own have one too."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin().sum(0), torch.mm(torch.full((8, 8), 2.0), x)

    half = fourfold.explain(f, torch.ones(8, 8)).graphs[0].forward
    reasons = {one.operator: one.reason for one in half.outside}
    assert reasons["mm"] == "programs have no such operator" and reasons["full"].startswith("a constant that torch's")
    assert "sin" not in reasons


def test_views_alone_are_no_operators() -> None:
    explanation = fourfold.explain(lambda x: x.view(2, 2).t(), torch.randn(4))
    assert "Forward: no operators" in str(explanation)


def test_errors_are_whose_they_are() -> None:
    def f(x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fourfold.explain(f, torch.ones(2))
    with pytest.raises(TypeError, match="^explain: expected f to be a function or a module, but got Tensor$"):
        fourfold.explain(torch.ones(2))
    with pytest.raises(ValueError, match="fourfold: expected an option of .*, but got 'speed'"):
        fourfold.explain(f, torch.ones(2), options={"speed": True})

    def broken(x: Tensor) -> Tensor:
        with torch._dynamo.error_on_graph_break(True):
            torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        fourfold.explain(broken, torch.ones(2))


def test_a_notebook_gets_a_fragment_with_a_style_of_its_own() -> None:
    html = fourfold.explain(lambda x: x.sin() + 1, torch.ones(8))._repr_html_()
    assert html.startswith('<div class="fourfold-explanation">') and html.count("<div") == html.count("</div>")
    assert " id=" not in html and "<script" not in html and "<html" not in html
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert re.findall(r"^(?![ }]).+", style, re.MULTILINE) == [".fourfold-explanation {"]  # all other rules are nested


def test_importing_fourfold_loads_neither_explain_nor_a_compiler(after_torch: Forks) -> None:
    code = """
import sys, fourfold
late = ("torch._dynamo", "fourfold.compiler", "fourfold.explaining")
heavy = lambda: [name for name in sys.modules if name.startswith(late)]
assert heavy() == [], heavy()
assert "explain" in dir(fourfold) and callable(fourfold.explain)
assert not any(name.startswith("torch._dynamo") for name in heavy()), heavy()
"""
    after_torch.output_of("-c", code)


# The command line.

WAVES = """
import torch
SIZE = 3
def power(x):
    return torch.sin(x) ** 2 + torch.cos(x) ** 2
def both(x, y):
    return x * y + 1
class Model(torch.nn.Module):
    def forward(self, x):
        return x.exp()
model = Model()
"""


@pytest.fixture
def waves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "waves_explained.py").write_text(WAVES)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("waves_explained", None)


def explained(*arguments: object) -> int:
    return main(["explain", *map(str, arguments)])


def test_the_command_prints_and_saves(waves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sys.path[:]
    assert explained("waves_explained:power", "--shapes", "16x8", "--save", "page.html") == 0
    assert sys.path == path
    said = capsys.readouterr().out
    assert (
        said.startswith("power, compiled by fourfold ")
        and "Backward: " in said
        and said.endswith("\nPage: page.html\n")
    )
    assert "f32[16, 8]" in (waves / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "shown", "has_backward"),
    [
        ("waves_explained:both --shapes 3x1 --shapes scalar", 'l_y_: "f32[]"', True),
        ("waves_explained:both --shapes 3×1 --shapes 4 --no-grad", 'l_y_: "f32[4]"', False),
        ("waves_explained:model --shapes 2 --dtype bfloat16", 'f32"', True),
        ("waves_explained:both --shapes 5 --shapes 5 --dtype int64", 'l_y_: "i64[5]"', False),
        ("torch.nn.functional:gelu --shapes 0x4", '"f32[0, 4]"', True),
    ],
)
@pytest.mark.usefixtures("waves")
def test_shapes_and_dtypes(arguments: str, shown: str, has_backward: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(*arguments.split()) == 0
    said = capsys.readouterr().out
    assert shown.replace('f32"', '"bf16[2]"' if "bfloat16" in arguments else 'f32"') in said or shown in said
    assert ("\nBackward: " in said) == has_backward


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "the following arguments are required: MODULE:FUNCTION, --shapes"),
        ("waves_explained:power", "the following arguments are required: --shapes"),
        ("waves_explained --shapes 3", "explain: expected a function as module:function, but got 'waves_explained'"),
        (
            "nonesuch.inner:f --shapes 3",
            "expected a module that python can import, but there is none named 'nonesuch.inner'",
        ),
        (".relative:f --shapes 3", "expected a module that python can import, but there is none named '.relative'"),
        ("waves_explained:powr --shapes 3", "expected a function of waves_explained, but it has no 'powr'"),
        (
            "waves_explained:SIZE --shapes 3",
            "expected a function or a module's instance, but waves_explained:SIZE is a int",
        ),
        (
            "waves_explained:Model --shapes 3",
            "expected a function or a module's instance, but waves_explained:Model is a class",
        ),
        (
            "waves_explained:both --shapes 3",
            "expected a shape for each argument of waves_explained:both(x, y), but got 1 of",
        ),
        (
            "waves_explained:power --shapes 3x",
            "argument --shapes: expected sizes such as 16x128, or scalar, but got '3x'",
        ),
        ("waves_explained:power --shapes -3", "argument --shapes: expected"),
        ("waves_explained:power --shapes 3 --dtype int8", "argument --dtype: invalid choice: 'int8'"),
        ("waves_explained:power --shapes 3 --dtype int64 --grad", "expected --grad only with a floating-point --dtype"),
        ("waves_explained:power --shapes 3 --save no/page.html", "argument --save: expected a file in a directory"),
    ],
)
@pytest.mark.usefixtures("waves")
def test_a_mistake_is_one_sentence(arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = explained(*arguments.split())
    except SystemExit as stopped:
        code = stopped.code
    output, error = capsys.readouterr()
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert complaint in error


def test_the_command_needs_no_terminal_that_has_every_character(waves: Path) -> None:
    command = [sys.executable, "-m", "fourfold", "explain", "waves_explained:power", "--shapes", "100", "--time"]
    done = subprocess.run(command, capture_output=True, cwd=waves, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert b"x fewer" in done.stdout and b" us" in done.stdout


def test_a_norm_that_stays_whole_has_a_reason() -> None:
    norm = nn.BatchNorm2d(4)
    explanation = fourfold.explain(lambda x: norm(x).relu(), torch.randn(2, 4, 5, 5))
    reasons = {one.operator: one.reason for one in explanation.graphs[0].forward.outside}
    assert reasons["_native_batch_norm_legit_functional"] == "torch's kernel is as fast as its pieces would be here"
