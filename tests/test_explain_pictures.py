"""The pictures of fourfold.explain: where boxes, frames and arrows are, and that all is there once."""

from __future__ import annotations

import itertools
import random
import re
import xml.etree.ElementTree as ElementTree
from html import escape

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold.explaining.layers import Box, Edge, Layout, arranged, layers_of, nearest
from fourfold.explaining.nodes import Reading
from fourfold.explaining.picture import Drawing, Names
from fourfold.explaining.running import observe
from fourfold.explaining.sketch import HEAD, MOST, Picture
from fourfold.explaining.svg import svg


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def random_graph(seed: int, count: int) -> tuple[dict[int, tuple[float, float]], list[Edge]]:
    draw = random.Random(seed)
    sizes = {k: (draw.uniform(30, 200), draw.choice([40.0, 55.0])) for k in range(count)}
    pairs = {(draw.randrange(b), b) for b in range(1, count) for _ in range(draw.choice([0, 1, 1, 2, 3]))}
    return sizes, [Edge(a, b) for a, b in sorted(pairs)]


def overlap(a: Box, b: Box) -> bool:
    apart_x = a.x + a.width <= b.x or b.x + b.width <= a.x
    return not (apart_x or a.y + a.height <= b.y or b.y + b.height <= a.y)


def expect_apart(boxes: list[Box]) -> None:
    for a, b in itertools.combinations(boxes, 2):
        assert not overlap(a, b), (a, b)


def expect_down(routes: list[list[tuple[float, float]]]) -> None:
    """From point to point down, and straight wherever it passes a layer."""
    for route in routes:
        heights = [y for _, y in route]
        assert heights == sorted(heights) and heights[0] < heights[-1]
        assert all(a[0] == b[0] for a, b in zip(route[::2], route[1::2], strict=True))


def expect_free(routes: list[list[tuple[float, float]]], boxes: list[Box]) -> None:
    """No arrow runs through a box: neither straight past a layer, nor in a gap, where no box is."""
    for route, box in itertools.product(routes, boxes):
        for (x, y), (to_x, to_y) in zip(route, route[1:], strict=False):
            inside = Box(box.x + 1, box.y + 1, box.width - 2, box.height - 2)
            path = Box(min(x, to_x), y, abs(to_x - x), to_y - y)
            if to_y - y > 0.05:
                assert not overlap(inside, Box(path.x - 0.01, path.y, path.width + 0.02, path.height)), (route, box)


@pytest.mark.parametrize("count", [1, 2, 5, 30, 150])
@pytest.mark.parametrize("seed", range(6))
def test_boxes_are_apart_and_arrows_go_down(seed: int, count: int) -> None:
    sizes, edges = random_graph(seed, count)
    layout = arranged(sizes, edges)
    assert list(layout.boxes) and set(layout.boxes) == set(sizes)
    expect_apart(list(layout.boxes.values()))
    expect_down(layout.routes)
    expect_free(layout.routes, list(layout.boxes.values()))
    for edge, route in zip(edges, layout.routes, strict=True):
        source, target = layout.boxes[edge.source], layout.boxes[edge.target]
        assert route[0] == pytest.approx((source.middle, source.y + source.height))
        assert route[-1][1] == target.y and target.x <= route[-1][0] <= target.x + target.width
    for box in layout.boxes.values():
        assert box.x >= -0.01 and box.x + box.width <= layout.width + 0.01
        assert box.y >= 0 and box.y + box.height <= layout.height
    assert {name: (box.width, box.height) for name, box in layout.boxes.items()} == sizes


def test_the_same_graph_is_drawn_the_same() -> None:
    sizes, edges = random_graph(3, 60)
    assert arranged(sizes, edges) == arranged(dict(sizes), list(edges))


def test_a_chain_is_straight_and_a_tree_crosses_nothing() -> None:
    sizes = dict.fromkeys(range(8), (60.0, 40.0))
    layout = arranged(sizes, [Edge(k, k + 1) for k in range(7)])
    assert len({round(box.middle, 3) for box in layout.boxes.values()}) == 1
    layout = arranged(sizes, [Edge(a, b) for a, b in ((0, 4), (1, 5), (2, 4), (3, 5), (4, 6), (5, 6))])
    assert crossings(layout) == 0


def crossings(layout: Layout) -> int:
    ends = [(route[0], route[-1]) for route in layout.routes]
    return sum(
        (a[0][0] - b[0][0]) * (a[1][0] - b[1][0]) < 0
        for a, b in itertools.combinations(ends, 2)
        if a[0][1] == b[0][1] and a[1][1] == b[1][1]
    )


def test_layers() -> None:
    edges = [Edge("a", "b"), Edge("b", "d"), Edge("c", "d"), Edge("w", "v"), Edge("v", "d")]
    assert layers_of("abcdwv", edges) == {"a": 0, "b": 1, "c": 1, "d": 2, "w": 0, "v": 1}
    assert layers_of("abd", edges[:2], top="a", bottom="d") == {"a": 0, "b": 1, "d": 2}
    assert layers_of([], []) == {} and arranged({}, []) == Layout()
    with pytest.raises(ValueError, match="a box is below itself"):
        layers_of("ab", [Edge("a", "b"), Edge("b", "a")])


def test_nearest_positions() -> None:
    assert nearest([(0, 1), (100, 1)], [0, 10]) == [0, 100]
    assert nearest([(5, 1), (5, 1)], [0, 10]) == [0, 10]
    assert nearest([(5, 3), (5, 1)], [0, 8]) == [3, 11]
    assert nearest([(9, 1), (0, 1), (0, 1)], [0, 1, 2]) == [2, 3, 4]


# Of graphs that torch captured.


class Attention(nn.Module):
    """A small transformer's block."""

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


def drawings(f, *args: Tensor) -> list[tuple[Drawing, Picture]]:
    """Of all halves."""
    found = []
    for seen in observe(f, args, {}, None, None).seen:
        for half in filter(None, (seen.captured.forward, seen.captured.backward)):
            inputs = sum(node.op == "placeholder" for node in half.graph.graph.nodes)
            results = len(half.graph.graph.output_node().args[0])
            names = Names(["x"] * inputs, ["input"] * inputs, ["y"] * results)
            drawing = Drawing(Reading.of(half), names)
            found.append((drawing, drawing.picture()))
    return found


def test_a_transformers_block_is_drawn_whole() -> None:
    found = drawings(Attention(), torch.randn(2, 5, 16, requires_grad=True))
    assert len(found) == 2
    for drawing, picture in found:
        assert not drawing.collapsed and 50 < len(picture.boxes) <= MOST
        assert len(picture.frames) == len(drawing.reading.programs) >= 5
        expect_whole(drawing, picture)


def expect_whole(drawing: Drawing, picture: Picture) -> None:
    """Each item once, apart; each program's in its frame, and no other; arrows around the boxes."""
    assert sorted(map(id, drawing.items.values())) == sorted(id(item) for item, _ in picture.boxes)
    boxes = [box for _, box in picture.boxes]
    expect_apart(boxes)
    expect_apart([frame.box for frame in picture.frames])
    expect_down(picture.routes)
    expect_free(picture.routes, boxes)
    frames = {frame.number: frame.box for frame in picture.frames}
    for item, box in picture.boxes:
        for number, frame in frames.items():
            inner = Box(frame.x, frame.y + HEAD, frame.width, frame.height - HEAD)
            if item.group == number:
                assert inner.x <= box.x and box.x + box.width <= inner.x + inner.width
                assert inner.y <= box.y and box.y + box.height <= inner.y + inner.height
            else:
                assert not overlap(box, frame)
    drawn = {node for node in drawing.reading.graph.nodes if node in drawing.items}
    assert drawn >= drawing.reading.run | set(drawing.reading.program)
    assert all(item.kind == "result" for name, item in drawing.items.items() if isinstance(name, int))


def test_a_large_graph_shows_programs_as_boxes() -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(60):
            x = torch.mm(x, x).sin().cos()
        return x

    (drawing, picture), *_ = drawings(f, torch.randn(3, 3))
    assert drawing.collapsed and picture.frames == []
    programs = [item for item, _ in picture.boxes if item.kind == "program"]
    assert len(programs) == 60 and programs[0].lines[:2] == ["program_0", "2 operators"]
    expect_apart([box for _, box in picture.boxes])
    expect_down(picture.routes)
    assert picture.note == "A graph of more than 150 nodes: each program is one box."
    assert escape(picture.note) in svg(picture, "title", "description")
    explanation = fourfold.explain(f, torch.randn(3, 3))
    assert (
        escape(picture.note) in explanation._repr_html_() and picture.note == explanation.graphs[0].forward.sketch.note
    )


def test_a_view_that_a_program_reads_and_torch_too() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = x.sin()
        b = a.view(6, 2).transpose(0, 1)
        c = (b.cos() + torch.full((6,), 2.0)) @ y
        return b, c.view(-1).exp(), torch.zeros(2)

    for drawing, picture in drawings(f, torch.randn(3, 4, requires_grad=True), torch.randn(6, 2)):
        expect_whole(drawing, picture)


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


def test_kinds_of_boxes_differ() -> None:
    explanation = fourfold.explain(lambda x: (x.sin() ** 2).sum(0), torch.randn(3, 4, requires_grad=True))
    forward, backward = explanation.svg("forward"), explanation.svg("backward")
    assert '<g class="node kept">' in forward and '<g class="node result">' in forward
    assert '<g class="node saved">' in backward and '<g class="node gradient">' in backward
    assert ">sum [0]<" in forward and ">kept for the backward<" in forward and ">kept by the forward<" in backward
