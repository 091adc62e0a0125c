"""fourfold.explain: which programs have loop nests, and their C++, LLVM IR and assembly."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold import _C
from fourfold.cli import main
from fourfold.compiler.nest.ir import levels
from fourfold.compiler.nest.jit import service
from machine import ROOT
from nests import needs_nests

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def normalized(x: Tensor, w: Tensor) -> Tensor:
    d = x - x.mean(-1, keepdim=True)
    return d * (d.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w


def explained(**options: str) -> fourfold.Explanation:
    x, w = torch.randn(8, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    return fourfold.explain(normalized, x, w, options=options)


def test_nests_as_cpp_and_as_llvm_ir() -> None:
    explanation = explained()
    for half in ("forward", "backward"):
        assert "void groups(int64 begin, int64 end" in explanation.nest(half)
        assert "define void @groups(i64 %begin" in explanation.llvm(half)
    assert "rsqrt(" in explanation.nest() and "float32x" in explanation.nest()


@needs_nests
def test_assembly() -> None:
    assert "groups:" in explained().assembly()


def test_with_the_prelude_it_is_a_file_to_compile(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None or levels.level() is None:
        pytest.skip("needs a C++ compiler, and a CPU level with loop nests")
    (tmp_path / "nest.cpp").write_text(explained().nest(prelude=True), encoding="utf-8")
    flags = ("-march=native", "-std=c++20", "-O0", "-w", "-Wno-psabi", "-fsyntax-only")
    subprocess.run([compiler, *flags, str(tmp_path / "nest.cpp")], check=True)


def test_what_runs_programs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "The interpreter runs all programs: as the option generator says." in str(explained(generator="interpreter"))
    monkeypatch.setattr(service, "obstacle", lambda: "")
    assert "compiled when a layout comes again." in str(explained(generator="auto"))
    monkeypatch.setattr(service, "obstacle", lambda: "llvmlite is not installed")
    explanation = explained(generator="auto")
    assert "The interpreter runs all programs: llvmlite is not installed." in str(explanation)
    assert "void groups(" in explanation.nest()
    with pytest.raises(ImportError, match="llvmlite is not installed"):
        explanation.assembly()


def test_without_a_nest_there_is_a_reason() -> None:
    def softmax(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).softmax(-1) + 1

    across = torch.randn(3, 40, 5).permute(2, 0, 1)  # adjacent in memory along the first of two row axes
    explanation = fourfold.explain(softmax, torch.randn(5, 3, 40), across)
    with pytest.raises(ValueError, match="expected a program with a loop nest, but program_0 has none: "):
        explanation.nest()
    assert "The interpreter runs 1: " in explanation.runner or "llvmlite" in explanation.runner
    with pytest.raises(ValueError, match="expected a forward with programs, but it has none"):
        fourfold.explain(lambda x: x @ x, torch.randn(3, 3)).nest()
    with pytest.raises(ValueError, match="expected one of 1 program, but got 1"):
        explanation.nest(program=1)


def test_the_page_shows_nests() -> None:
    assert "The loop nest of program_0 of the forward" in explained()._repr_html_()


@pytest.mark.parametrize("form", ["c", "llvm"])
def test_the_command(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", "torch.nn.functional:gelu", "--shapes", "100", "--no-grad", "--nest", form]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "program_0 of the forward" in said
    assert ("void elements(" if form == "c" else "define void @elements(") in said


def test_the_nest_is_as_the_page_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    code, shown = next((code, blocks[k + 1][1]) for k, (_, code) in enumerate(blocks) if "explanation.nest(" in code)
    exec(compile(blocks[0][1].replace("print(explanation)", ""), "explain.md", "exec"), namespace := {})
    exec(compile(code, "explain.md", "exec"), namespace)
    if _C.cpu_capability() == "avx2":
        assert capsys.readouterr().out.rstrip() == shown.rstrip()
