"""The pictures of fourfold.explain: boxes don't overlap, arrows point down, everything appears once; and the fallback
without igraph."""

from __future__ import annotations

import itertools
import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold.explaining.data import Box, Half
from fourfold.explaining.picture import MOST, Picture, arranged, shown, spread

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


def expect_whole(boxes: tuple[Box, ...], picture: Picture) -> None:
    """Each box appears once, inside the picture, apart from the others and below those that it reads; programs
    likewise."""
    assert [place.box for place in picture.places] == list(boxes)
    for a in picture.places:
        assert a.x - a.width / 2 >= -0.01 and a.x + a.width / 2 <= picture.width + 0.01
        assert a.y >= 0 and a.y + a.height <= picture.height + 0.01
    for a, b in itertools.combinations(picture.places, 2):
        assert abs(a.x - b.x) >= (a.width + b.width) / 2 or a.y + a.height <= b.y or b.y + b.height <= a.y
    bottom = {place.box.name: place.y + place.height for place in picture.places}
    for place in picture.places:
        assert all(bottom[name] < place.y for name in place.box.reads)
        if place.box.inside:
            assert place.inside.width < place.width and place.inside.height < place.height
            expect_whole(place.box.inside, place.inside)
    edges = [(route[0].box.name, route[-1].box.name) for route in picture.routes]
    assert sorted(edges) == sorted({(name, box.name) for box in boxes for name in box.reads})


def halves(f, *args: Tensor) -> list[Half]:
    return [half for graph in fourfold.explain(f, *args).graphs for half in graph.halves]


def test_a_transformers_block_is_drawn_whole() -> None:
    found = halves(Attention(), torch.randn(2, 5, 16, requires_grad=True))
    assert len(found) == 2
    for half in found:
        boxes, note = shown(half)
        assert boxes == half.boxes and note == "" and 40 < len(boxes) <= MOST
        programs = [box for box in boxes if box.kind == "program"]
        assert len(programs) == len(half.programs) >= 3 and all(box.inside for box in programs)
        inner = sum(box.kind in ("operator", "again") for program in programs for box in program.inside)
        assert inner >= half.fused > 0
        expect_whole(boxes, arranged(boxes))


def test_a_large_graph_shows_programs_as_boxes() -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(50):
            x = torch.mm(x, x).sin().cos()
        return x

    explanation = fourfold.explain(f, torch.randn(3, 3))
    boxes, note = shown(explanation.graphs[0].forward)
    programs = [box for box in boxes if box.kind == "program"]
    assert len(programs) == 50 and programs[0].lines[0] == "program_0: 2 operators" and programs[0].inside == ()
    expect_whole(boxes, arranged(boxes))
    assert note == "Each program is one box."
    assert note in explanation.svg() and note in explanation._repr_html_()


def test_a_view_that_a_program_reads_and_torch_too() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = x.sin()
        b = a.view(6, 2).transpose(0, 1)
        c = (b.cos() + torch.full((6,), 2.0)) @ y
        return b, c.view(-1).exp(), torch.zeros(2)

    for half in halves(f, torch.randn(3, 4, requires_grad=True), torch.randn(6, 2)):
        expect_whole(half.boxes, arranged(half.boxes))


def test_places_are_the_nearest_that_are_apart() -> None:
    assert spread([0, 300], [20, 20]) == [0, 300]
    assert spread([50, 50], [20, 20]) == [30, 70]
    assert arranged(()).places == []


@pytest.mark.usefixtures("in_programs")
def test_svg_is_well_formed_and_its_text_is_text() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if "</svg><script>&" else x

    explanation = fourfold.explain(f, torch.randn(3, requires_grad=True))
    for half in ("forward", "backward"):
        text = explanation.svg(half)
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.get("role") == "img"
        assert root[0].tag.endswith("title") and root[0].text == f"The {half}: 1 operator"
        assert root[1].tag.endswith("desc") and root[1].text == "program_0 does mul."
        assert "<script" not in text and " id=" not in text and "href" not in text and "<style" not in text
        assert len(re.findall("<rect", text)) >= 4


def test_a_box_says_the_line_of_its_operator() -> None:
    def triple(x: torch.Tensor) -> torch.Tensor:
        return (x @ x) * 3  # named here

    svg = fourfold.explain(triple, torch.randn(4, 4)).svg()
    assert "return (x @ x) * 3  # named here" in svg and "^^^" not in svg and "~~~" not in svg


def test_kinds_of_boxes_differ() -> None:
    explanation = fourfold.explain(lambda x: (x.sin() ** 2).sum(0), torch.randn(3, 4, requires_grad=True))
    forward, backward = explanation.svg("forward"), explanation.svg("backward")
    assert '<g class="node kept">' in forward and '<g class="node result">' in forward
    assert '<g class="node saved">' in backward and '<g class="node gradient">' in backward
    assert ">sum [0]<" in forward and ">kept for the backward<" in forward and ">kept by the forward<" in backward


def test_dot_has_every_box_and_arrow() -> None:
    explanation = fourfold.explain(Attention(), torch.randn(2, 5, 16))
    text, half = explanation.dot("backward"), explanation.graphs[0].backward
    assert text.startswith("digraph backward {\n") and text.endswith("}\n")
    assert text.count("[label=") == len(half.boxes)
    assert text.count(" -> ") == sum(len(box.reads) for box in half.boxes)
    assert re.search(r'label="program_0: \d+ operators?\\n', text)


def test_without_igraph_the_page_has_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "igraph", None)
    explanation = fourfold.explain(lambda x: torch.mm(x.sin(), x), torch.randn(3, 3))
    with pytest.raises(ImportError, match=r"explain: expected the package igraph .* pip install 'fourfold\[explain\]'"):
        explanation.svg()
    html = explanation._repr_html_()
    assert "<svg" not in html and "pip install" in html and "digraph forward {" in html
    assert re.search(r"\nmm: mm, f32\[3, 3\]  &lt;- \w+, \w+\n", html)
