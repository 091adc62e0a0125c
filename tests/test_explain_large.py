"""fourfold.explain of realistic code: a model with many layers, a function with side effects, many graphs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold.explaining.explanation import SMALL

LAYERS = 6
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # from Dynamo
    pytest.mark.slow,
]


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotated(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


class Layer(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = Norm(size), Norm(size)
        self.q, self.k, self.v, self.o = (nn.Linear(size, size) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, size = x.shape
        y = self.first(x)
        q, k, v = (m(y).view(batch, length, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, size))
        y = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A language model's decoder: norms, rotary positions, causal attention, a gated network."""

    def __init__(self, layers: int, size: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(50, size), Norm(size)
        self.layers = nn.ModuleList(Layer(size, heads) for _ in range(layers))
        self.frequencies = size // heads // 2

    def forward(self, tokens: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(tokens.shape[1]), 0.1 ** torch.arange(self.frequencies))
        angles = torch.cat([angles, angles], -1)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.norm(x) @ self.embedding.weight.t()


@pytest.fixture(scope="module")
def decoder() -> fourfold.explaining.Explanation:
    torch._dynamo.reset()
    return fourfold.explain(Decoder(LAYERS), torch.randint(0, 50, (2, 16)))


def test_a_summary_comes_first_and_is_short(decoder: fourfold.explaining.Explanation) -> None:
    text = str(decoder)
    lines = text.splitlines()
    assert text == decoder.summary() and len(lines) <= 40 and max(map(len, lines)) <= 100
    assert lines[0].startswith("Decoder, compiled by fourfold ") and lines[-1].startswith("print(explanation.detail())")
    forward = decoder.graphs[0].forward
    (row,) = (line.split() for line in lines if line.startswith("  forward "))
    assert row[1:5] == [
        str(count)
        for count in (forward.operators, forward.fused, len(forward.programs), forward.operators - forward.fused)
    ]
    assert "Left to torch\n  programs have no such operator: " in text and " addmm" in text
    assert "Time" not in text and decoder.stages == ()


def test_programs_that_are_alike_are_told_once(decoder: fourfold.explaining.Explanation) -> None:
    counts = [kind.count for kind in decoder.programs]
    assert sum(counts) == sum(len(half.programs) for half in decoder.graphs[0].halves)
    gated = [kind for kind in decoder.programs if kind.half == "forward" and kind.first.operators == ("silu", "mul")]
    assert [kind.count for kind in gated] == [LAYERS]
    assert gated[0].bytes == LAYERS * gated[0].first.bytes == LAYERS * 3 * 4 * 2 * 16 * 64
    most = max(decoder.programs, key=lambda kind: kind.bytes)
    assert most.count >= LAYERS
    row = rf"^  {most.count} × {most.half} {most.names[0]} +{most.bytes / 1000:.1f} kB   \w"
    assert re.search(row, str(decoder), re.MULTILINE)
    text = decoder.detail()
    assert text.count("fourfold program 1") == len(counts)
    assert f"{LAYERS} programs are the same: {', '.join(gated[0].names)}" in re.sub(r"\s+", " ", text)
    assert len({(kind.half, kind.first.text) for kind in decoder.programs}) == len(counts)


def test_names_of_tensors_make_no_program_another() -> None:
    def f(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return torch.mm(x, x).sin() * y, torch.mm(y, y).sin() * z, torch.mm(z, z).cos() * x

    kinds = fourfold.explain(f, *torch.randn(3, 4, 4)).programs
    assert [(kind.count, kind.first.operators) for kind in kinds] == [(2, ("sin", "mul")), (1, ("cos", "mul"))]


def test_a_tensor_may_be_called_like_an_operation() -> None:
    """Inputs are named after the operators that compute them."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        add, other = x @ x + 1, y @ y + 1
        return (add @ add).sin() * add + 2, (other @ other).sin() * other + 2

    counts = [kind.count for kind in fourfold.explain(f, *torch.randn(2, 4, 4)).programs]
    assert counts == [2]


def test_a_small_function_shows_all_stages() -> None:
    explanation = fourfold.explain(lambda x: x.sin() + 1, torch.ones(8))
    assert str(explanation) == explanation.detail() != explanation.summary()
    halves = [half for graph in explanation.graphs for half in graph.halves]
    assert sum(half.operators for half in halves) <= SMALL


def test_the_page_of_a_large_model_is_of_use(decoder: fourfold.explaining.Explanation, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    decoder.save(page)
    text = page.read_text(encoding="utf-8")
    assert len(text) < 100_000 * (2 + LAYERS)
    assert text.count("<details>") > 10 and text.index("<h2") < text.index("</table>") < text.index("<details>")


# A function is called once.


@pytest.mark.parametrize("breaks", [False, True])
def test_a_function_runs_once(breaks: bool) -> None:
    weight, state, told, hooked = torch.randn(4, requires_grad=True), torch.zeros(4), [], []
    weight.register_hook(hooked.append)

    def f(x: Tensor) -> Tensor:
        told.append("called")
        state.add_(1)
        if breaks:
            torch._dynamo.graph_break()
        return (x * weight).exp() * torch.rand(4)

    before = torch.random.get_rng_state()
    explanation = fourfold.explain(f, torch.ones(4))
    assert told == ["called"] and state.tolist() == [1.0] * 4
    assert torch.equal(torch.random.get_rng_state(), before)
    assert explanation.graphs[-1].backward is not None and hooked == [] and weight.grad is None


def test_timing_is_asked_for() -> None:
    calls = []

    def f(x: Tensor) -> Tensor:
        calls.append("called")
        return x.sin() + 1

    x = torch.ones(4, requires_grad=True)
    explanation = fourfold.explain(f, x, timing=True)
    assert len(calls) > 3 and x.grad is None
    stages = {stage.name: stage for stage in explanation.stages}
    assert stages["a later call, backward"].again > 0 and stages["a first call, in all"].first > 0
    assert "\nTime\n" in str(explanation) and "<h2" in explanation._repr_html_()
    assert fourfold.explain(f, x).stages == () and "\nTime\n" not in fourfold.explain(f, x).summary()


def test_a_backward_is_compiled_without_a_call_as_with_one() -> None:
    model, x = Decoder(1), torch.randint(0, 50, (2, 16))
    told = [fourfold.explain(model, x, timing=timing).graphs[0].backward for timing in (False, True)]
    assert [half.summary for half in told][0] == told[1].summary
    assert [program.kind for program in told[0].programs] == [program.kind for program in told[1].programs]


def test_many_graphs_are_summed_up() -> None:
    source = "def f(x):\n"
    source += "    x = (x.sin() * 2 + 1).exp() + x.cos() * x\n    torch._dynamo.graph_break()\n" * 6
    namespace = {"torch": torch}
    exec(f"{source}    return torch.mm(x, x)\n", namespace)
    explanation = fourfold.explain(namespace["f"], torch.randn(4, 4, requires_grad=True))
    count = len(explanation.graphs)
    lines = str(explanation).splitlines()
    assert count > 3 and len(lines) <= 40 and max(map(len, lines)) <= 100
    row = next(line for line in lines if line.startswith(f"  forward, {count} graphs"))
    assert row.endswith(" fewer") and "Graph breaks" in lines
    text = explanation._repr_html_()
    assert text.count(" for Graphviz</summary>") == 2 * count and len(text) < 1_000_000
