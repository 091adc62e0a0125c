"""A graph as a picture, or as DOT: igraph orders the layers by Sugiyama's method, boxes are spread by their sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from fourfold.explaining.data import Box, Half
from fourfold.explaining.filling import render

MOST = 160  # boxes, with operators in programs; in a larger graph a program is one box
BEGINNING = 60  # operators and programs that are drawn of a graph with more than MOST of them
MOST_INPUTS = 5  # of one box there, which no other reads
CHARACTER, LINE, APART, GAP = 7.3, 15.0, 20.0, 40.0
PASSING = 4.0  # the width of an edge that passes a layer
GIVEN, RESULTS = ("input", "saved", "gradient", "kept", "given"), ("result", "kept")
SWEEPS = 24
INSTALL = "explain: expected the package igraph for pictures; pip install 'fourfold[explain]', or use dot()"


@dataclass
class Picture:
    width: float
    height: float
    boxes: list[tuple[Box, float, float, float, float, Picture | None]]  # x and y of the middle of the top
    edges: list[str]  # SVG paths
    heads: list[str]


def igraph() -> ModuleType | None:
    try:
        import igraph
    except ModuleNotFoundError:
        return None
    return igraph


def shown(half: Half, whole: bool = False) -> tuple[tuple[Box, ...], str]:
    """The boxes that are drawn, and what a reader has to know of them."""
    boxes, note = half.boxes, ""
    if sum(inner.kind != "given" for box in boxes for inner in (box, *box.inside)) > MOST and half.programs:
        boxes, note = tuple(replace(box, inside=()) for box in boxes), "Each program is one box."
    given = sources(boxes)
    inner = [box for box in boxes if box.name not in given and not is_result(box)]
    if whole or len(inner) <= MOST:
        return boxes, note
    drawn = {box.name for box in inner[:BEGINNING]}
    drawn |= {box.name for box in boxes if is_result(box) and drawn.intersection(box.reads)}
    for box in reversed(boxes):  # what these read
        alone = [name for name in box.reads if name in given and given[name] == 1]
        hidden = set(alone[MOST_INPUTS:])
        drawn |= set(box.reads) - hidden if box.name in drawn else set()
    left = f"{len(inner) - BEGINNING:,} more"
    kept = [
        replace(box, reads=tuple(name for name in box.reads if name in drawn)) for box in boxes if box.name in drawn
    ]
    read = tuple(dict.fromkeys(n for box in inner[BEGINNING:] for n in box.reads if n in drawn and n not in given))
    return (
        *kept,
        Box("more", "view", (left, "not drawn"), left, read),
    ), f"The first {BEGINNING} of {len(inner):,} boxes."


def is_result(box: Box) -> bool:
    return box.kind in RESULTS and bool(box.reads)


def sources(boxes: Sequence[Box]) -> dict[str, int]:
    """Inputs and views of them; and how many boxes read each."""
    found: dict[str, int] = {}
    for box in boxes:
        for name in box.reads:
            if name in found:
                found[name] += 1
        if box.kind in GIVEN and not box.reads or box.kind == "view" and all(name in found for name in box.reads):
            found[box.name] = 0
    return found


def svg(half: Half, whole: bool = False) -> str:
    if igraph() is None:
        raise ImportError(INSTALL)
    boxes, note = shown(half, whole)
    return render("graph.svg", half=half, picture=arranged(boxes), note=note)


def arranged(boxes: Sequence[Box]) -> Picture:
    inside = {box.name: arranged(box.inside) for box in boxes if box.inside}
    size = {box.name: size_of(box, inside.get(box.name)) for box in boxes}
    layer, routes = layered(boxes)
    links = {pair for route in routes for pair in zip(route, route[1:], strict=False)}
    for name in layer:
        size.setdefault(name, (PASSING, 0.0))
    x, rows = placed(layer, sorted(links, key=str), {name: width for name, (width, _) in size.items()})
    top, y = {}, 0.0
    for k in range(len(rows)):
        top[k], y = y, y + max(size[name][1] for name in rows[k]) + GAP
    left = min((x[name] - size[name][0] / 2 for name in x), default=0.0)
    width = max((x[name] + size[name][0] / 2 for name in x), default=0.0) - left
    ends = [[(x[n] - left, top[layer[n]], *size[n]) for n in route] for route in routes]
    heights = {k: max(size[name][1] for name in rows[k]) for k in range(len(rows))}
    edges = [path(route, [heights[layer[n]] for n in names]) for route, names in zip(ends, routes, strict=True)]
    places = [(b, x[b.name] - left, top[layer[b.name]], *size[b.name], inside.get(b.name)) for b in boxes]
    heads = [f"M{x - 3.5:.1f} {y - 7:.1f}L{x:.1f} {y:.1f}L{x + 3.5:.1f} {y - 7:.1f}Z" for *_, (x, y, _, _) in ends]
    return Picture(width, max(y - GAP, 0.0), places, list(dict.fromkeys(edges)), list(dict.fromkeys(heads)))


def size_of(box: Box, inside: Picture | None) -> tuple[float, float]:
    width, height = CHARACTER * max(map(len, box.lines)) + 20.0, LINE * len(box.lines) + 10.0
    return (width, height) if inside is None else (max(width, inside.width + 24.0), inside.height + height + 18.0)


def layered(boxes: Sequence[Box]) -> tuple[dict[object, int], list[list[object]]]:
    """The layer of each box, and of each point where an edge passes a layer; and the edges through these."""
    layer: dict[object, int] = {}
    readers: dict[str, list[str]] = {}
    for box in boxes:
        layer[box.name] = 1 + max((layer[name] for name in box.reads), default=-1)
        for name in box.reads:
            readers.setdefault(name, []).append(box.name)
    given = sources(boxes)
    for box in reversed(boxes):  # right above those that read it
        if box.name in given and box.name in readers:
            layer[box.name] = max(layer[box.name], min(layer[name] for name in readers[box.name]) - 1)
    routes = []
    for box in boxes:
        for name in box.reads:
            points = [(name, k) for k in range(layer[name] + 1, layer[box.name])]
            routes.append([name, *points, box.name])
    layer |= {point: point[1] for route in routes for point in route[1:-1]}
    return layer, routes


def placed(
    layer: dict[object, int], links: Sequence[tuple[object, object]], width: dict[object, float]
) -> tuple[dict[object, float], list[list[object]]]:
    """Of each the middle, and the layers from the left to the right."""
    index = {name: k for k, name in enumerate(layer)}
    graph = igraph().Graph(len(index), [(index[a], index[b]) for a, b in links], directed=True)
    points = graph.layout_sugiyama(layers=list(layer.values()), hgap=120) if index else []
    x = {name: points[k][0] for name, k in index.items()}
    rows: list[list[object]] = [[] for _ in range(1 + max(layer.values(), default=-1))]
    for name in sorted(x, key=x.__getitem__):
        rows[layer[name]].append(name)
    near: dict[object, list[object]] = {name: [] for name in x}
    for a, b in links:
        near[a].append(b)
        near[b].append(a)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            want = [sum(x[other] for other in near[name]) / len(near[name]) if near[name] else x[name] for name in row]
            x |= dict(zip(row, spread(want, [width[name] for name in row]), strict=True))
    return x, rows


def spread(want: Sequence[float], width: Sequence[float]) -> list[float]:
    """The nearest places that leave the boxes apart, by isotonic regression; edges that pass by count more."""
    blocks: list[list[float]] = []  # sum, weight, how many
    offset = [0.0]
    for a, b in zip(width, width[1:], strict=False):
        offset.append(offset[-1] + (a + b) / 2 + APART)
    for place, left, wide in zip(want, offset, width, strict=True):
        weight = 8.0 if wide == PASSING else 1.0
        blocks.append([weight * (place - left), weight, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    places = [total / weight for total, weight, count in blocks for _ in range(int(count))]
    return [place + left for place, left in zip(places, offset, strict=True)]


def path(route: Sequence[tuple[float, float, float, float]], heights: Sequence[float]) -> str:
    """From the bottom of the first, straight past layers, to the top of the last."""
    (x, y, _, height), *others = route
    text = f"M{x:.1f} {y + height:.1f}V{y + heights[0]:.1f}"
    y += heights[0]
    for (to_x, to_y, _, _), passed in zip(others, heights[1:], strict=True):
        middle = (y + to_y) / 2
        text += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y + passed
        text += f"V{y:.1f}" if to_x is not others[-1][0] else ""
    return text


def dot(half: Half, whole: bool = False) -> str:
    boxes, note = shown(half, whole)
    lines = [f"digraph {half.name} {{", f"  label={quoted(note or half.title)}; node [shape=box];"]
    for box in boxes:
        words = "\n".join([*box.lines, *([box.tip] if box.kind == "program" else [])])
        lines.append(f"  {quoted(box.name)} [label={quoted(words)}, class={box.kind}];")
        lines += [f"  {quoted(read)} -> {quoted(box.name)};" for read in box.reads]
    return "\n".join([*lines, "}"]) + "\n"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
