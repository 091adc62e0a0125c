"""Equal programs have equal texts, and one nest: whatever the graph calls their inputs, whatever the sizes of their
axes, and whether the earlier one still exists."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fourfold
from compiled import compiled
from fourfold.compiler.nest.jit import service
from fourfold.compiler.nodes.fused import Fused, displayed
from fourfold.compiler.pipeline.calling import Program
from fourfold.compiler.pipeline.record import Record
from nests import compiled_so_far, needs_nests
from program_cases import assert_same_bits
from programs import HEAD


class Gated(nn.Module):
    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 2 * out)
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.linear(F.softmax(x * self.weight, -1) * torch.exp(x)).chunk(2, -1)
        return torch.tanh(a) * torch.sigmoid(b)


def gated(*sizes: int) -> nn.Module:
    return nn.Sequential(*(Gated(*pair) for pair in pairwise(sizes)))


def programs_of(model: nn.Module, x: Tensor, **settings: object) -> list[Fused]:
    """Of the forward and the backward, which are run."""
    record = Record()
    compiled(model, record, **settings)(x).sum().backward()
    captured = record.captured[0]
    return [*captured.forward.compiled.programs, *captured.backward.compiled.programs]


def test_equal_layers_have_equal_texts() -> None:
    few, many = (programs_of(gated(*[16] * (1 + layers)), torch.randn(4, 16)) for layers in (3, 6))
    assert len(many) > len(few) and {one.text for one in many} == {one.text for one in few}


@needs_nests
def test_equal_layers_have_one_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also layers of other sizes, if their rows have more columns than a nest is compiled for alone, and those of a
    model that is gone."""
    monkeypatch.setenv("FOURFOLD_GENERATOR", "llvm")
    programs_of(gated(300, 300, 300, 300), torch.randn(40, 300))
    before = compiled_so_far()
    found = programs_of(gated(300, 324, 328, 332), torch.randn(40, 300))
    assert len({one.text for one in found}) > 4 and service.service.compiled == before


@needs_nests
def test_a_nest_serves_other_sizes_of_axes() -> None:
    before, expected = compiled_so_far(), []
    for size in (100, 33, 8):
        text = (
            f"{HEAD}axes a={size} | b=x0.1\nx0: float32 = input float32 [a b]\nv1: float32 = asinh x0\n"
            "v2: float32 = sum v1\noutput v2 float32 [a]\n"
        )
        x = torch.randn(size, 40)
        expected.append(Program(text, "interpreter", 0)(x))
        assert_same_bits(Program(text, "nest", service.number("llvm"))(x), expected[-1])
    assert service.service.compiled == before + 1


def test_names_of_the_graph_stand_in_errors_and_explanations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    (fused,) = programs_of(WithBias(), torch.randn(7, 5))[:1]
    names = [own.name for own in fused.inputs]
    assert "x0: float32 = input float32 [a b]" in fused.text and names[0] not in fused.text
    with pytest.raises(ValueError, match=rf"expected dimension 1 of {names[0]} to have size 5, but got 4"):
        fused(torch.randn(7, 4), *(torch.randn(5) for _ in names[1:]))
    program = fourfold.explain(WithBias(), torch.randn(7, 5)).graphs[0].forward.programs[0]
    assert f"{names[0]}: float32 = input float32 [a b]" in program.text and "x0" not in program.text


class WithBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x) * self.bias


@pytest.mark.parametrize(
    ("name", "shown"), [("primals_1", "primals_1"), ("v5", "v5_"), ("v5_", "v5__"), ("m" * 70, "m" * 50 + "_3")]
)
def test_a_displayed_name_fits_into_a_programs_text(name: str, shown: str) -> None:
    assert displayed(name, 3) == shown
    text = f"{HEAD}axes a=9\n{shown}: float32 = input float32 [a]\nv5: float32 = sin {shown}\noutput v5 float32 [a]\n"
    x = torch.randn(9)
    torch.testing.assert_close(Program(text)(x), x.sin())
