"""Maintains a topological order while dependencies are added and units are merged, by Pearce and Kelly's algorithm ("A
dynamic topological sort algorithm for directed acyclic graphs", 2006). It visits only units between the two that a new
dependency connects, so the cost depends on the change and not on the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from torch.fx import Node

from fourfold.compiler.analysis.support import has_effect

MOST_VISITED = 2000  # units in one search for a cycle; beyond it two units are not merged, which keeps the time linear
Change = Callable[[], None]


class Order:
    """``wait`` and ``merge`` return a change, or None if it would create a cycle. Call the change to apply it, before
    requesting another."""

    def __init__(self) -> None:
        self.position: list[int] = []
        self.before: list[set[int]] = []  # for each unit, the units that it depends on
        self.after: list[set[int]] = []

    def add(self, before: Iterable[int]) -> int:
        """Adds a unit after all others."""
        unit = len(self.position)
        self.position.append(unit)
        self.before.append(set(before))
        self.after.append(set())
        for other in self.before[unit]:
            self.after[other].add(unit)
        return unit

    def wait(self, unit: int, before: Iterable[int]) -> Change | None:
        """The change that makes the unit depend on these; None if one of them depends on the unit."""
        new = set(before) - {unit}
        later = {other for other in new if self.position[other] > self.position[unit]}
        if not later:
            return partial(self._wait, unit, new, ())
        last = max(self.position[other] for other in later)
        behind = self.reached(self.after, {unit}, lambda p: p <= last, later)
        ahead = None if behind is None else self.reached(self.before, later, lambda p: p > self.position[unit])
        return None if ahead is None else partial(self._wait, unit, new, (ahead, behind))

    def _wait(self, unit: int, new: set[int], moved: Sequence[set[int]]) -> None:
        self.reorder(moved)
        self.before[unit] |= new
        for other in new:
            self.after[other].add(unit)

    def merge(self, a: int, b: int) -> Change | None:
        """The change that merges b into a; None if a third unit lies between them."""
        first, last = sorted((a, b), key=self.position.__getitem__)
        low, high = self.position[first], self.position[last]
        behind = self.reached(self.after, self.after[first] - {last}, lambda p: p < high, self.before[last])
        ahead = None if behind is None else self.reached(self.before, self.before[last] - {first}, lambda p: p > low)
        return None if ahead is None else partial(self._merge, a, b, (ahead, {a, b}, behind))

    def _merge(self, a: int, b: int, moved: Sequence[set[int]]) -> None:
        self.reorder(moved)
        for own, others in ((self.before, self.after), (self.after, self.before)):
            for unit in own[b]:
                others[unit].discard(b)
                others[unit].add(a)
            own[a] |= own[b]
            own[b] = set()
        self.before[a] -= {a, b}
        self.after[a] -= {a, b}

    def reached(
        self, edges: list[set[int]], start: Iterable[int], within: Callable[[int], bool], stop: Iterable[int] = ()
    ) -> set[int] | None:
        """All units reachable by the edges at positions within a range; None if one of `stop` is among them, or if they
        are too many."""
        stop = frozenset(stop)
        pending = [unit for unit in start if within(self.position[unit])]
        found = set(pending)
        while pending:
            unit = pending.pop()
            new = [other for other in edges[unit] if other not in found and within(self.position[other])]
            if unit in stop or len(found) > MOST_VISITED:
                return None
            found.update(new)
            pending += new
        return found

    def reorder(self, parts: Sequence[set[int]]) -> None:
        """Reassigns these units' positions: one part after the other, each in its present order."""
        ordered = [unit for part in parts for unit in sorted(part, key=self.position.__getitem__)]
        positions = sorted(self.position[unit] for unit in ordered)
        for unit, position in zip(ordered, positions, strict=True):
            self.position[unit] = position


class Units(Order):
    """The order of a graph's nodes. Each is in a unit, alone or with others; nodes with effects keep their order."""

    def __init__(self) -> None:
        super().__init__()
        self.unit: dict[Node, int] = {}
        self.last_effect: set[int] = set()

    def of(self, nodes: Iterable[Node]) -> set[int]:
        return {self.unit[node] for node in nodes}

    def add_singleton(self, node: Node) -> int:
        before = self.of(node.all_input_nodes)
        if not has_effect(node):
            self.unit[node] = self.add(before)
        else:
            self.unit[node] = self.add(before | self.last_effect)
            self.last_effect = {self.unit[node]}
        return self.unit[node]
