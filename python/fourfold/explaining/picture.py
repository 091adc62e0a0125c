"""A graph as a picture or as DOT. igraph orders the layers by Sugiyama's method; boxes are spread by their sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from fourfold.explaining.data import Box, Half
from fourfold.explaining.filling import render

MOST = 160  # boxes, including operators in programs; in a larger graph each program is one box
BEGINNING = 60  # operators and programs drawn of a graph with more than MOST of them
MOST_INPUTS = 5  # of one box there, if no other box reads them
MOST_ON_A_PAGE = 5000  # operators in all pictures of a page
CHARACTER, LINE, APART, GAP = 7.3, 15.0, 20.0, 40.0
PASSING = 4.0  # the width of an edge that crosses a layer
GIVEN, RESULTS = ("input", "saved", "gradient", "kept", "given"), ("result", "kept")
SWEEPS = 24
INSTALL = "explain: expected the package igraph for pictures; pip install 'fourfold[explain]', or use dot()"


@dataclass(eq=False)
class Place:
    """The place of a box, or of an edge where it crosses a layer. x: the middle; y, bottom: the layer's top and
    bottom."""

    width: float
    height: float
    box: Box | None = None
    inside: Picture | None = None
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    bottom: float = 0.0


@dataclass
class Picture:
    width: float
    height: float
    places: list[Place]  # the boxes
    routes: list[list[Place]]  # the edges, from box to box


def igraph() -> ModuleType | None:
    try:
        import igraph
    except ModuleNotFoundError:
        return None
    return igraph


def shown(half: Half, whole: bool = False) -> tuple[tuple[Box, ...], str]:
    """The boxes to draw, and a note about them for the reader."""
    boxes, note = half.boxes, ""
    if sum(inner.kind != "given" for box in boxes for inner in (box, *box.inside)) > MOST and half.programs:
        boxes, note = tuple(replace(box, inside=()) for box in boxes), "Each program is one box."
    given = sources(boxes)
    inner = [box for box in boxes if box.name not in given and not is_result(box)]
    if whole or len(inner) <= MOST:
        return boxes, note
    first, others = inner[:BEGINNING], inner[BEGINNING:]
    drawn = {box.name for box in first}
    drawn |= {box.name for box in boxes if is_result(box) and drawn.intersection(box.reads)}
    for box in reversed(boxes):  # add their inputs
        alone = [name for name in box.reads if given.get(name) == 1]
        drawn |= set(box.reads).difference(alone[MOST_INPUTS:]) if box.name in drawn else set()
    kept = (replace(box, reads=tuple(drawn_of(box, drawn))) for box in boxes if box.name in drawn)
    read = dict.fromkeys(name for box in others for name in drawn_of(box, drawn) if name not in given)
    left = f"{len(others):,} more"
    more = Box("more", "view", (left, "not drawn"), left, tuple(read))
    return (*kept, more), f"The first {BEGINNING} of {len(inner):,} boxes."


def drawn_of(box: Box, drawn: set[str]) -> list[str]:
    return [name for name in box.reads if name in drawn]


def is_result(box: Box) -> bool:
    return box.kind in RESULTS and bool(box.reads)


def sources(boxes: Sequence[Box]) -> dict[str, int]:
    """Inputs and views of inputs, with the number of boxes that read each."""
    found: dict[str, int] = {}
    for box in boxes:
        for name in found.keys() & box.reads:
            found[name] += 1
        if box.kind in GIVEN and not box.reads or box.kind == "view" and found.keys() >= set(box.reads):
            found[box.name] = 0
    return found


def svg(half: Half, whole: bool = False, inline: bool = False) -> str:
    if igraph() is None:
        raise ImportError(INSTALL)
    boxes, note = shown(half, whole)
    return render("graph.svg", half=half, picture=arranged(boxes), note=note, inline=inline)


def arranged(boxes: Sequence[Box]) -> Picture:
    if not boxes:
        return Picture(0.0, 0.0, [], [])
    places = {box.name: place_of(box) for box in boxes}
    routes = layered(boxes, places)
    everything = list(dict.fromkeys(itertools.chain(places.values(), *routes)))
    y = 0.0
    for row in rows_of(everything, routes):
        bottom = y + max(place.height for place in row)
        for place in row:
            place.y, place.bottom = y, bottom
        y = bottom + GAP
    left = min(place.x - place.width / 2 for place in everything)
    for place in everything:
        place.x -= left
    return Picture(max(place.x + place.width / 2 for place in everything), y - GAP, list(places.values()), routes)


def place_of(box: Box) -> Place:
    width, height = CHARACTER * max(map(len, box.lines)) + 20.0, LINE * len(box.lines) + 10.0
    if not box.inside:
        return Place(width, height, box)
    inside = arranged(box.inside)
    return Place(max(width, inside.width + 24.0), inside.height + height + 18.0, box, inside)


def layered(boxes: Sequence[Box], places: dict[str, Place]) -> list[list[Place]]:
    """Assigns each box to a layer, and returns the edges, each with a place in every layer that it crosses."""
    readers: dict[str, list[Place]] = {}
    for box in boxes:
        places[box.name].layer = 1 + max((places[name].layer for name in box.reads), default=-1)
        for name in box.reads:
            readers.setdefault(name, []).append(places[box.name])
    given = sources(boxes)
    for name, place in reversed(places.items()):  # directly above its readers
        if name in given and name in readers:
            place.layer = max(place.layer, min(reader.layer for reader in readers[name]) - 1)
    passed: dict[tuple[str, int], Place] = {}
    routes = []
    for box in boxes:
        for name in box.reads:
            layers = range(places[name].layer + 1, places[box.name].layer)
            points = [passed.setdefault((name, k), Place(PASSING, 0.0, layer=k)) for k in layers]
            routes.append([places[name], *points, places[box.name]])
    return routes


def rows_of(places: Sequence[Place], routes: Sequence[Sequence[Place]]) -> list[list[Place]]:
    """The layers, each from left to right, with each place's x: igraph's layout, spread by the widths."""
    index = {place: k for k, place in enumerate(places)}
    links = list(dict.fromkeys(pair for route in routes for pair in itertools.pairwise(route)))
    graph = igraph().Graph(len(index), [(index[a], index[b]) for a, b in links], directed=True)
    points = graph.layout_sugiyama(layers=[place.layer for place in places], hgap=120)
    rows: list[list[Place]] = [[] for _ in range(1 + max(place.layer for place in places))]
    for place, (x, _) in zip(places, points, strict=True):
        place.x = x
        rows[place.layer].append(place)
    near: dict[Place, list[Place]] = {place: [] for place in places}
    for a, b in links:
        near[a].append(b)
        near[b].append(a)
    for row in rows:
        row.sort(key=lambda place: place.x)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            want = [sum(other.x for other in near[one]) / len(near[one]) if near[one] else one.x for one in row]
            for place, x in zip(row, spread(want, [place.width for place in row]), strict=True):
                place.x = x
    return rows


def spread(want: Sequence[float], width: Sequence[float]) -> list[float]:
    """The nearest positions without overlap, by isotonic regression; crossing edges weigh more."""
    blocks: list[list[float]] = []  # sum, weight, how many
    offset = [0.0]
    for a, b in itertools.pairwise(width):
        offset.append(offset[-1] + (a + b) / 2 + APART)
    for place, left, wide in zip(want, offset, width, strict=True):
        weight = 8.0 if wide == PASSING else 1.0
        blocks.append([weight * (place - left), weight, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    places = [total / weight for total, weight, count in blocks for _ in range(int(count))]
    return [place + left for place, left in zip(places, offset, strict=True)]


def dot(half: Half, whole: bool = False) -> str:
    boxes, note = shown(half, whole)
    return render("graph.dot", half=half, boxes=boxes, note=note)
