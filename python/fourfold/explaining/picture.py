"""A graph as boxes, arrows and frames: inputs above, results below, what became one program in a frame of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import Node

from fourfold.explaining.layers import Edge, layers_of
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
from fourfold.explaining.sketch import MOST, Item, Picture, Sketch, count_of


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
        box_of = {name: name if one.group is None else ("program", one.group) for name, one in self.items.items()}
        inside: dict[object, list[Item]] = {}
        for name, item in self.items.items():
            inside.setdefault(box_of[name], []).append(item)
        self.links = dict.fromkeys((box_of[a], box_of[b]) for a, b in self.links if box_of[a] != box_of[b])
        self.items = {box: items[0] if box in self.items else self.whole(items) for box, items in inside.items()}

    def whole(self, inside: list[Item]) -> Item:
        """A program as one box."""
        number = inside[0].group
        outputs = clipped(", ".join(map(detail, self.reading.programs[number].outputs)))
        lines = [f"program_{number}", count_of(inside), outputs]
        return Item("program", lines, " ".join(item.lines[0] for item in inside), number)

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

    def sketch(self) -> Sketch:
        """Without the graph."""
        number = {name: k for k, name in enumerate(self.items)}
        links = [(number[a], number[b]) for a, b in self.links]
        return Sketch({number[name]: item for name, item in self.items.items()}, links, self.collapsed)

    def picture(self) -> Picture:
        return self.sketch().picture()
