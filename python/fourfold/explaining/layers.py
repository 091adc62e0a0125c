"""A graph in layers, after Sugiyama, Tagawa and Toda (1981): each box below those that it reads, edges in between.

1. A box's layer is one below the lowest of those that it reads; what reads nothing stands right above its readers.
2. An edge over several layers gets a place in each; edges of one origin share them.
3. Layers are ordered by the barycentres of their neighbours, sweeping down and up; the fewest crossings stay.
4. A layer's positions are the nearest to its neighbours' that leave all apart (isotonic regression), in sweeps again.

Equal input gives an equal drawing."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

APART = 22.0  # of two boxes side by side
LANE = 14.0  # of an edge that passes a layer
CENTRE = 0.04  # how much it counts that a box is in the middle, against an edge that is straight
LEAST_GAP, MOST_GAP = 30.0, 74.0  # of two layers
ORDERINGS, PLACEMENTS, ROUGH = 12, 48, 8  # sweeps; the rough ones look only the way that they go

Name = Hashable
Point = tuple[float, float]


@dataclass(frozen=True)
class Edge:
    """Leaves and enters so far from the middles of the two boxes."""

    source: Name
    target: Name
    leaves: float = 0.0
    enters: float = 0.0


@dataclass(frozen=True)
class Box:
    x: float  # of its left
    y: float  # of its top
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass
class Layout:
    """Where each box is; of each edge the points that it runs through: across a gap, straight past a layer, …"""

    boxes: dict[Name, Box] = field(default_factory=dict)
    routes: list[list[Point]] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0


def layers_of(
    names: Iterable[Name], edges: Sequence[Edge], top: Iterable[Name] = (), bottom: Iterable[Name] = ()
) -> dict[Name, int]:
    """Of each box its layer; those at the top and the bottom stay there. Raises ValueError where there is a cycle."""
    names, top, bottom = list(names), set(top), set(bottom)
    below, above = neighbours(names, edges)
    waiting = {name: len(above[name]) for name in names}
    ready = [name for name in names if not waiting[name]]
    layer: dict[Name, int] = {}
    for name in ready:  # grows
        first = 1 if top and name not in top else 0
        layer[name] = max((layer[other] + 1 for other in above[name]), default=first)
        for other in below[name]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    if len(layer) < len(names):
        raise ValueError("a box is below itself")
    loose = {name for name in names if not above[name] and name not in top}
    for name in ready:
        if len(set(above[name])) == 1 and loose.issuperset(above[name]):
            loose.add(name)
    for name in reversed(ready):
        if name in loose and below[name]:
            layer[name] = min(layer[other] for other in below[name]) - 1
    last = max((at + (name not in bottom) for name, at in layer.items()), default=0)
    return layer | dict.fromkeys(bottom, last)


def neighbours(names: Iterable[Name], edges: Iterable[Edge]) -> tuple[dict[Name, list[Name]], dict[Name, list[Name]]]:
    """Those below each, and those above; once for every edge."""
    below: dict[Name, list[Name]] = {name: [] for name in names}
    above: dict[Name, list[Name]] = {name: [] for name in below}
    for edge in edges:
        below[edge.source].append(edge.target)
        above[edge.target].append(edge.source)
    return below, above


def arranged(
    sizes: Mapping[Name, tuple[float, float]],
    edges: Sequence[Edge],
    top: Iterable[Name] = (),
    bottom: Iterable[Name] = (),
) -> Layout:
    """Boxes of these sizes; those at the top and the bottom are in the first and the last layer."""
    return Arrangement(sizes, edges, layers_of(sizes, edges, top, bottom)).layout()


@dataclass(frozen=True)
class Lane:
    """Where an edge passes a layer."""

    source: Name
    leaves: float
    layer: int


class Arrangement:
    def __init__(self, sizes: Mapping[Name, tuple[float, float]], edges: Sequence[Edge], layer: Mapping[Name, int]):
        self.sizes = dict(sizes)
        self.edges = edges
        self.rows: list[list[Name]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
        for name in sizes:
            self.rows[layer[name]].append(name)
        self.chains: list[list[Name]] = []
        steps: dict[Edge, None] = {}  # from one layer to the next
        for edge in edges:
            lanes = [Lane(edge.source, edge.leaves, k) for k in range(layer[edge.source] + 1, layer[edge.target])]
            for lane in lanes:
                if lane not in self.sizes:
                    self.sizes[lane] = (LANE, 0.0)
                    self.rows[lane.layer].append(lane)
            chain = [edge.source, *lanes, edge.target]
            self.chains.append(chain)
            for k, (a, b) in enumerate(zip(chain, chain[1:], strict=False)):
                steps[Edge(a, b, 0.0 if k else edge.leaves, 0.0 if b in lanes else edge.enters)] = None
        self.steps = list(steps)
        self.above: dict[Name, list[Edge]] = {name: [] for name in self.sizes}
        self.below: dict[Name, list[Edge]] = {name: [] for name in self.sizes}
        for step in self.steps:
            self.above[step.target].append(step)
            self.below[step.source].append(step)

    # The order within layers.

    def order(self) -> None:
        best, fewest = [list(row) for row in self.rows], self.crossings()
        for sweep in range(ORDERINGS):
            down, at = sweep % 2 == 0, self.ranks()
            key = self.barycentre(at, down)
            for row in self.rows[1:] if down else self.rows[-2::-1]:
                row.sort(key=key)
                at.update({name: k for k, name in enumerate(row)})
            count = self.crossings()
            if count < fewest:
                best, fewest = [list(row) for row in self.rows], count
        self.rows = best

    def ranks(self) -> dict[Name, int]:
        return {name: k for row in self.rows for k, name in enumerate(row)}

    def barycentre(self, at: Mapping[Name, int], down: bool) -> Callable[[Name], float]:
        def key(name: Name) -> float:
            places = [self.port(at, e.source, e.leaves) for e in self.above[name]]
            if not down:
                places = [self.port(at, e.target, e.enters) for e in self.below[name]]
            return sum(places) / len(places) if places else at[name]

        return key

    def port(self, at: Mapping[Name, int], name: Name, offset: float) -> float:
        """A rank, and where in the box."""
        return at[name] + offset / (self.sizes[name][0] + 1.0)

    def crossings(self) -> int:
        at = self.ranks()
        rows: dict[int, list[tuple[float, float]]] = {}
        number = {name: k for k, row in enumerate(self.rows) for name in row}
        for e in self.steps:
            ends = self.port(at, e.source, e.leaves), self.port(at, e.target, e.enters)
            rows.setdefault(number[e.source], []).append(ends)
        count = 0
        for ends in rows.values():
            seen: list[float] = []
            for _, end in sorted(ends):
                count += len(seen) - bisect_right(seen, end)
                insort(seen, end)
        return count

    # Positions.

    def place(self) -> dict[Name, float]:
        """Of each the middle."""
        x: dict[Name, float] = {}
        for row in self.rows:
            offsets = self.offsets(row)
            x.update({name: offset - offsets[-1] / 2 for name, offset in zip(row, offsets, strict=True)})
        for sweep in range(PLACEMENTS):
            rough, down = sweep < ROUGH, sweep % 2 == 0
            for row in self.rows if down else self.rows[::-1]:
                wanted = [self.wanted(x, name, not rough or down, not rough or not down) for name in row]
                x.update(zip(row, nearest(wanted, self.offsets(row)), strict=True))
        return x

    def offsets(self, row: Sequence[Name]) -> list[float]:
        """The middles where all stand as close as they may."""
        found, at = [], 0.0
        for k, name in enumerate(row):
            width = self.sizes[name][0]
            if k:
                lanes = isinstance(name, Lane) or isinstance(row[k - 1], Lane)
                at += self.sizes[row[k - 1]][0] / 2 + width / 2 + (LANE / 2 if lanes else APART)
            found.append(at)
        return found

    def wanted(self, x: Mapping[Name, float], name: Name, from_above: bool, from_below: bool) -> tuple[float, float]:
        """Where its neighbours would have it, and how much that counts: an edge's lanes are to be straight."""
        places = [(x[e.source] + e.leaves - e.enters, weight(e)) for e in self.above[name]] if from_above else []
        places += [(x[e.target] + e.enters - e.leaves, weight(e)) for e in self.below[name]] if from_below else []
        places.append((0.0, CENTRE))
        whole = sum(heavy for _, heavy in places)
        return sum(place * heavy for place, heavy in places) / whole, whole

    # All together.

    def layout(self) -> Layout:
        self.order()
        x = self.place()
        left = min((x[name] - self.sizes[name][0] / 2 for name in x), default=0.0)
        x = {name: value - left for name, value in x.items()}
        tops, heights = self.levels(x)
        result = Layout()
        for k, row in enumerate(self.rows):
            for name in row:
                width, height = self.sizes[name]
                if not isinstance(name, Lane):
                    result.boxes[name] = Box(x[name] - width / 2, tops[k] + (heights[k] - height) / 2, width, height)
        level = {name: (tops[k], heights[k]) for k, row in enumerate(self.rows) for name in row}
        entries = self.entries(x)
        for edge, chain in zip(self.edges, self.chains, strict=True):
            end = x[edge.target] + (edge.enters or entries[chain[-2], edge.target])
            result.routes.append(self.route(edge, chain, x, end, result.boxes, [level[name] for name in chain]))
        result.width = max((x[name] + self.sizes[name][0] / 2 for name in x), default=0.0)
        result.height = tops[-1] + heights[-1] if tops else 0.0
        return result

    def levels(self, x: Mapping[Name, float]) -> tuple[list[float], list[float]]:
        """Of each layer its top and its height; where edges go far aside, the gap above is larger."""
        heights = [max((self.sizes[name][1] for name in row), default=0.0) for row in self.rows]
        tops: list[float] = []
        for k, row in enumerate(self.rows):
            if not k:
                tops.append(0.0)
                continue
            aside = max(
                (abs(x[e.source] + e.leaves - x[e.target] - e.enters) for n in row for e in self.above[n]), default=0
            )
            gap = min(max(LEAST_GAP, 0.16 * aside), MOST_GAP)
            tops.append(tops[-1] + heights[k - 1] + gap)
        return tops, heights

    def entries(self, x: Mapping[Name, float]) -> dict[tuple[Name, Name], float]:
        """How far from a box's middle each edge from above enters: side by side."""
        found = {}
        for name in self.sizes:
            sources = sorted({e.source: None for e in self.above[name] if not e.enters}, key=lambda source: x[source])
            step = min(LANE, (self.sizes[name][0] - LANE) / max(1, len(sources) - 1))
            for k, source in enumerate(sources):
                found[source, name] = step * (k - (len(sources) - 1) / 2)
        return found

    def route(
        self,
        edge: Edge,
        chain: Sequence[Name],
        x: Mapping[Name, float],
        end: float,
        boxes: Mapping[Name, Box],
        levels: Sequence[tuple[float, float]],
    ) -> list[Point]:
        source, target = boxes[edge.source], boxes[edge.target]
        points = [
            (source.middle + edge.leaves, source.y + source.height),
            (source.middle + edge.leaves, sum(levels[0])),
        ]
        for name, (top, height) in zip(chain[1:-1], levels[1:-1], strict=True):
            points += [(x[name], top), (x[name], top + height)]
        return [*points, (end, levels[-1][0]), (end, target.y)]


def weight(edge: Edge) -> float:
    """How much it counts that an edge is straight: most where it is long (Gansner, Koutsofios, North and Vo, 1993)."""
    return (1.0, 2.0, 8.0)[isinstance(edge.source, Lane) + isinstance(edge.target, Lane)]


def nearest(wanted: Sequence[tuple[float, float]], offsets: Sequence[float]) -> list[float]:
    """The positions nearest to those wanted, by weighted least squares, that are at least as far apart as the offsets:
    neighbours that would come too close are pooled."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for (value, weight), offset in zip(wanted, offsets, strict=True):
        mean, count = value - offset, 1
        while pools and pools[-1][0] > mean:
            before, heavy, many = pools.pop()
            mean = (before * heavy + mean * weight) / (heavy + weight)
            weight, count = heavy + weight, many + count
        pools.append((mean, weight, count))
    flat = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=True)]
