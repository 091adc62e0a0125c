"""fourfold.explain's graphs for Graphviz: every box once, after those that it reads, and its kind."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold.explaining.data import Half

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Attention(nn.Module):
    """A small transformer block."""

    def __init__(self, size: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.into, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        parts = self.into(self.first(x)).view(batch, length, 3, self.heads, size // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 3, -1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, size))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def expect_whole(half: Half, text: str) -> None:
    nodes = re.findall(r'^  "(.*?)" \[label=', text, re.MULTILINE)
    assert nodes == [box.name for box in half.boxes] and len(set(nodes)) == len(nodes)
    assert re.findall(r'^  "(.*?)" -> "(.*?)";$', text, re.MULTILINE) == [
        (name, box.name) for box in half.boxes for name in box.reads
    ]
    for k, box in enumerate(half.boxes):
        assert set(box.reads) <= set(nodes[:k])


def test_a_transformers_block_is_drawn_whole() -> None:
    explanation = fourfold.explain(Attention(), torch.randn(2, 5, 16, requires_grad=True))
    (graph,) = explanation.graphs
    for half in graph.halves:
        text = explanation.dot(half.name)
        assert text.startswith(f"digraph {half.name} {{\n") and text.endswith("}\n") and len(half.boxes) > 25
        expect_whole(half, text)
        programs = [box for box in half.boxes if box.kind == "program"]
        assert [box.lines[0].partition(":")[0] for box in programs] == [one.name for one in half.programs]
        assert sum(box.kind in ("torch", "again") for box in half.boxes) == half.left > 0
        assert re.search(r'label="program_0: \d+ operators?\\n', text)


def test_a_view_that_a_program_reads_and_torch_too() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = x.sin()
        b = a.view(6, 2).transpose(0, 1)
        c = (b.cos() + torch.full((6,), 2.0)) @ y
        return b, c.view(-1).exp(), torch.zeros(2)

    explanation = fourfold.explain(f, torch.randn(3, 4, requires_grad=True), torch.randn(6, 2))
    for half in explanation.graphs[0].halves:
        expect_whole(half, explanation.dot(half.name))


def test_kinds_of_boxes_differ() -> None:
    explanation = fourfold.explain(lambda x: (x.sin() ** 2 @ x).sum(0), torch.randn(3, 3, requires_grad=True))
    forward, backward = explanation.dot("forward"), explanation.dot("backward")
    assert r'"x\nf32[3, 3]\nkept for the backward", style="rounded,dashed"' in forward
    assert r'"sum [0]\nf32[3]", style="filled"' in forward and r'"result\nf32[3]", style="rounded"' in forward
    assert r'\nf32[3, 3]", style="bold"' in forward
    assert r'"x\nf32[3, 3]\nkept by the forward", style="rounded,dashed"' in backward
    assert r'"gradient of result\nf32[3]", style="rounded"' in backward


@pytest.mark.usefixtures("in_programs")
def test_labels_are_quoted() -> None:
    text = fourfold.explain(lambda x: {'a"b': x * 2}['a"b'], torch.randn(3)).dot()
    box = re.compile(r'  "[^"\\]*" \[label="(?:[^"\\]|\\.)*", style="[a-z,]+"\];')
    assert all(box.fullmatch(line) for line in text.splitlines() if "[label=" in line)
