"""Boxes, arrows and frames before they have places: plain data, from which a picture is drawn on demand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fourfold.explaining.layers import Box, Edge, Layout, Point, arranged

MOST = 150  # nodes that are drawn one by one; then each program is a box
BEGINNING = 60  # so many boxes are drawn where even these are more than MOST
MOST_INPUTS = 5  # of such a box
CHARACTER, LINE = 7.3, 15.0  # of the pictures' monospaced letters
HEAD = 22.0  # of a frame: the bar with its name, which arrows from outside end at
PADDING = 12.0
GIVEN = ("input", "saved", "gradient")
RESULTS = ("result", "kept")


@dataclass(eq=False)
class Item:
    """A box. kind: input, saved, gradient; operator, torch (an operator in no program), view, program; result, kept."""

    kind: str
    lines: list[str]
    more: str  # the tooltip
    group: int | None = None

    @property
    def size(self) -> tuple[float, float]:
        return CHARACTER * max(map(len, self.lines)) + 20.0, LINE * len(self.lines) + 10.0


@dataclass(eq=False)
class Frame:
    """A program, drawn around its operators."""

    number: int
    name: str
    box: Box


@dataclass
class Picture:
    boxes: list[tuple[Item, Box]] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    routes: list[list[Point]] = field(default_factory=list)
    ends: list[bool] = field(
        default_factory=list
    )  # of each route, whether it ends at a box or a frame, and doesn't leave one
    width: float = 0.0
    height: float = 0.0
    note: str = ""


@dataclass
class Sketch:
    """items: the boxes by number, in the order of the graph. links: of a box and one that reads it. collapsed: whether
    each program is one box."""

    items: dict[int, Item]
    links: list[tuple[int, int]]
    collapsed: bool = False
    left_out: int = 0  # boxes, of a picture that shows the first

    def beginning(self) -> Sketch:
        """The first boxes of a graph that is too large to be looked at, each after all that it reads."""
        computing = {name for name, item in self.items.items() if item.kind not in (*GIVEN, *RESULTS)}
        if len(computing) <= MOST:
            return self
        kept = set(self.in_order(computing)[:BEGINNING])
        links = [(a, b) for a, b in self.links if (a in kept) + (b in kept)]
        ends = {name for pair in links for name in pair}
        shown = {name: item for name, item in self.items.items() if name in kept or name in ends - computing}
        more, left_out = max(self.items) + 1, len(computing) - len(kept)
        shown[more] = Item("view", [f"{left_out:,} more", "not drawn"], "what follows")
        links = dict.fromkeys((a, b if b in shown else more) for a, b in links if a in shown)
        return Sketch(shown, list(links), self.collapsed, left_out).with_few_inputs()

    def with_few_inputs(self) -> Sketch:
        """What a box alone reads is drawn up to a number; the rest is one more box."""
        readers: dict[int, list[int]] = {}
        for a, b in self.links:
            if self.items[a].kind in GIVEN or self.items[a].kind == "kept":
                readers.setdefault(a, []).append(b)
        alone: dict[int, list[int]] = {}
        for name, found in readers.items():
            if len(found) == 1:
                alone.setdefault(found[0], []).append(name)
        items, links = dict(self.items), dict.fromkeys(self.links)
        for reader, names in alone.items():
            for name in names[MOST_INPUTS:]:
                del items[name], links[name, reader]
            if len(names) > MOST_INPUTS:
                more = max(items) + 1
                items[more] = Item(
                    "view", [f"{len(names) - MOST_INPUTS:,} more", "inputs"], "inputs that are not drawn"
                )
                links[more, reader] = None
        return replace(self, items=items, links=list(links))

    def in_order(self, computing: set[int]) -> list[int]:
        """Each after all that it reads, else as in the graph; a view where it is first read."""
        read: dict[int, list[int]] = {name: [] for name in sorted(computing)}
        for a, b in self.links:
            if a in computing and b in computing:
                read[b].append(a)
        views = [name for name in read if self.items[name].kind == "view"]
        found: dict[int, None] = {}
        for name in [*(name for name in read if name not in set(views)), *views]:
            pending = [name]
            while pending:
                missing = [other for other in read[pending[-1]] if other not in found]
                if missing:
                    pending += missing
                else:
                    found[pending.pop()] = None
        return list(found)

    @property
    def note(self) -> str:
        if self.left_out:
            what = "programs and operators" if self.collapsed else "operators"
            return f"The first {BEGINNING} {what} of {BEGINNING + self.left_out:,}."
        return f"A graph of more than {MOST} nodes: each program is one box." if self.collapsed else ""

    def picture(self) -> Picture:
        frames = {} if self.collapsed else self.frames()
        sizes = {}
        for name, item in self.items.items():
            if item.group in frames:
                sizes["frame", item.group] = frames[item.group].size
            else:
                sizes[name] = item.size
        edges: dict[Edge, None] = {}
        for a, b in self.links:
            above, below = frames.get(self.items[a].group), frames.get(self.items[b].group)
            if above is None or above is not below:
                source = (a, 0.0) if above is None else (above.name, above.leaves(a))
                target = (b, 0.0) if below is None else (below.name, below.enters(a))
                edges[Edge(source[0], target[0], source[1], target[1])] = None
        layout = arranged(sizes, list(edges))
        size = {"width": layout.width, "height": layout.height}
        result = Picture(routes=list(layout.routes), ends=[True] * len(edges), note=self.note, **size)
        result.boxes = [(self.items[name], box) for name, box in layout.boxes.items() if name in self.items]
        for number, inner in frames.items():
            self.put(result, number, inner, layout.boxes[inner.name])
        return result

    def put(self, result: Picture, number: int, inner: Inner, place: Box) -> None:
        dx, dy = place.x + inner.left, place.y + inner.above
        result.frames.append(Frame(number, inner.title, place))
        for name, box in inner.layout.boxes.items():
            if name in self.items:
                result.boxes.append((self.items[name], Box(box.x + dx, box.y + dy, box.width, box.height)))
        result.routes += [[(x + dx, y + dy) for x, y in route] for route in inner.layout.routes]
        result.ends += [edge.target in self.items for edge in inner.edges]

    def frames(self) -> dict[int, Inner]:
        members: dict[int, list[int]] = {}
        for name, item in self.items.items():
            if item.group is not None:
                members.setdefault(item.group, []).append(name)
        return {number: self.inner(number, names) for number, names in sorted(members.items())}

    def inner(self, number: int, names: list[int]) -> Inner:
        inside = set(names)
        edges = [Edge(a, b) for a, b in self.links if a in inside and b in inside]
        given = dict.fromkeys(a for a, b in self.links if a not in inside and b in inside)
        taken = dict.fromkeys(a for a, b in self.links if a in inside and b not in inside)
        edges += [Edge(("in", a), b) for a, b in self.links if a in given and b in inside]
        edges += [Edge(a, ("out", a)) for a in taken]
        ports = [("in", a) for a in given], [("out", a) for a in taken]
        sizes = {name: self.items[name].size for name in names}
        sizes |= dict.fromkeys(ports[0], (8.0, HEAD)) | dict.fromkeys(ports[1], (8.0, 0.0))
        layout = arranged(sizes, edges, *ports)
        words = count_of(self.items[name] for name in names)
        above, below = 0.0 if given else HEAD + PADDING, 0.0 if taken else PADDING
        return Inner(number, f"program_{number}: {words}, one pass", layout, edges, above, below)


@dataclass
class Inner:
    """What is within a frame. Arrows come in through places at its top and go out through others at its bottom."""

    number: int
    title: str
    layout: Layout
    edges: list[Edge]
    above: float
    below: float

    @property
    def name(self) -> tuple[str, int]:
        return ("frame", self.number)

    @property
    def size(self) -> tuple[float, float]:
        return max(self.layout.width + 2 * PADDING, self.words), self.layout.height + self.above + self.below

    @property
    def words(self) -> float:
        return CHARACTER * len(self.title) + 2 * PADDING

    @property
    def left(self) -> float:
        return (self.size[0] - self.layout.width) / 2

    def leaves(self, name: object) -> float:
        return self.layout.boxes["out", name].middle + self.left - self.size[0] / 2

    def enters(self, name: object) -> float:
        return self.layout.boxes["in", name].middle + self.left - self.size[0] / 2


def count_of(items: Iterable[Item]) -> str:
    count = sum(item.kind == "operator" for item in items)
    return f"{count} operator{'s' * (count != 1)}"
