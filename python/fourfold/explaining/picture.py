"""A graph as boxes, arrows and frames: inputs above, results below, what became one program in a frame of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch.fx import Node

from fourfold.explaining.layers import Box, Edge, Layout, Point, arranged, layers_of
from fourfold.explaining.nodes import (
    Reading,
    clipped,
    detail,
    is_operator,
    is_recomputed,
    is_view,
    line_of,
    operator_name,
    operators_of,
    title,
    viewed,
)

MOST = 150  # nodes that are drawn one by one
CHARACTER, LINE = 7.3, 15.0  # of the pictures' monospaced letters
HEAD = 22.0  # of a frame: the bar with its name, which arrows from outside end at
PADDING = 12.0


@dataclass(eq=False)
class Item:
    """A box. kind: input, saved, gradient; operator, torch (an operator in no program), view, program; result, kept."""

    kind: str
    lines: list[str]
    more: str  # what a pointer that rests on it is told
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
class Names:
    """What a half's inputs and results are called, in order; and how many results are kept for the backward."""

    inputs: Sequence[str]
    kinds: Sequence[str]
    results: Sequence[str]
    kept: int = 0  # so many of the last


class Drawing:
    """A graph's items and what each reads."""

    def __init__(self, reading: Reading, names: Names):
        self.reading = reading
        self.names = names
        self.items: dict[object, Item] = {}
        self.links: dict[tuple[object, object], None] = {}
        self.collapsed = False
        results = reading.graph.output_node().args[0]
        self.results = list(results) if isinstance(results, (tuple, list)) else [results]
        self.kept = set(self.results[len(self.results) - names.kept :])
        self.computing = {node for built in reading.programs for node in operators_of(built)}
        self.groups = self.groups_of_nodes()
        self.add_nodes()
        self.add_results()
        if len(self.items) > MOST and reading.programs:
            self.collapse()
        self.break_cycles()

    def groups_of_nodes(self) -> dict[Node, int]:
        """Of each node the program it is drawn in. A view or a constant goes where it is only index arithmetic."""
        found = dict(self.reading.program)
        for node in reversed(self.reading.graph.nodes):
            if node.op != "call_function" or node in found or not (is_view(node) or node not in self.reading.run):
                continue
            users = {found.get(user) for user in node.users}
            base = self.reading.program.get(viewed(node))
            if node not in self.reading.run and len(users) == 1 and None not in users:
                found[node] = users.pop()
            elif base is not None and base in users:
                found[node] = base
        return found

    def add_nodes(self) -> None:
        inputs = 0
        for node in self.reading.graph.nodes:
            if node.op == "output":
                continue
            if node.op == "placeholder":
                name, kind = self.names.inputs[inputs], self.names.kinds[inputs]
                inputs += 1
                if any(user.op != "output" for user in node.users) or kind == "gradient":
                    self.items[node] = self.input_item(node, name, kind)
                continue
            if node in self.reading.run or self.groups.get(node) is not None:
                self.items[node] = self.item(node)
            for operand in node.all_input_nodes:
                self.links[operand, node] = None
        self.links = {pair: None for pair in self.links if pair[0] in self.items and pair[1] in self.items}

    def input_item(self, node: Node, name: str, kind: str) -> Item:
        """An input that the forward keeps says so itself."""
        if node in self.kept:
            kind = "kept"
        words = {"kept": "kept for the backward", "saved": "kept by the forward"}.get(kind)
        lines = [clipped(name), detail(node)] + ([words] if words else [])
        return Item(kind, lines, f"{words or kind}: {name}, {detail(node)}")

    def item(self, node: Node) -> Item:
        group = self.groups.get(node)
        kind = "operator" if group is not None else "torch"
        if node.op == "call_function" and node not in self.computing and not is_operator(node):
            kind = "view"
        words = [detail(node), "again" if is_recomputed(node) and self.is_backward else ""]
        more = f"{node.name} = {operator_name(node)}({', '.join(o.name for o in node.all_input_nodes)})"
        line = line_of(node)
        return Item(kind, [title(node), ", ".join(filter(None, words))], f"{more}\n{line}" if line else more, group)

    @property
    def is_backward(self) -> bool:
        return "gradient" in self.names.kinds

    def add_results(self) -> None:
        first_kept = len(self.results) - self.names.kept
        for k, node in enumerate(self.results):
            if not isinstance(node, Node) or k >= first_kept and node.op == "placeholder" and node in self.items:
                continue
            if node not in self.items and node.op == "placeholder":  # which nothing else reads
                self.items[node] = self.input_item(node, node.name, "input")
            name = node.name if k >= first_kept else self.names.results[k]
            lines = [clipped(name), detail(node)] + (["kept for the backward"] if k >= first_kept else [])
            self.items[k] = Item(
                "kept" if k >= first_kept else "result", lines, ": ".join(filter(None, [name, detail(node)]))
            )
            self.links[node, k] = None

    def collapse(self) -> None:
        """Each program into one box."""
        self.collapsed = True
        members: dict[int, list[Item]] = {}
        for item in self.items.values():
            if item.group is not None:
                members.setdefault(item.group, []).append(item)
        for number, inside in members.items():
            outputs = self.reading.programs[number].outputs
            lines = [f"program_{number}", count_of(inside), clipped(", ".join(map(detail, outputs)))]
            self.items["program", number] = Item("program", lines, " ".join(item.lines[0] for item in inside), number)

        def box_of(name: object) -> object:
            group = self.items[name].group
            return name if group is None else ("program", group)

        renamed = [(box_of(a), box_of(b)) for a, b in self.links]
        self.links = {pair: None for pair in renamed if pair[0] != pair[1]}
        inside = {name for name in self.items if self.items[name].group is not None and name != box_of(name)}
        self.items = {name: item for name, item in self.items.items() if name not in inside}

    def break_cycles(self) -> None:
        """Fusion leaves no program waiting for itself. Should views make it look so, the frames go, the boxes stay."""
        outer = {(self.outer(a), self.outer(b)) for a, b in self.links}
        names = dict.fromkeys(map(self.outer, self.items))
        try:
            layers_of(names, [Edge(a, b) for a, b in outer if a != b])
        except ValueError:
            for item in self.items.values():
                item.group = None

    def outer(self, name: object) -> object:
        group = self.items[name].group
        return name if group is None else ("frame", group)

    # The picture.

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
        result = Picture(routes=list(layout.routes), ends=[True] * len(edges), width=layout.width, height=layout.height)
        result.boxes = [(self.items[name], box) for name, box in layout.boxes.items() if name in self.items]
        for number, inner in frames.items():
            self.put(result, number, inner, layout.boxes[inner.name])
        if self.collapsed:
            result.note = f"A graph of more than {MOST} nodes: each program is one box."
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
        members: dict[int, list[object]] = {}
        for name, item in self.items.items():
            if item.group is not None:
                members.setdefault(item.group, []).append(name)
        return {number: self.inner(number, names) for number, names in sorted(members.items())}

    def inner(self, number: int, names: list[object]) -> Inner:
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
