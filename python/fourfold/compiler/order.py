"""A topological order that holds while dependencies are added and units are merged, by Pearce and Kelly's algorithm
("A dynamic topological sort algorithm for directed acyclic graphs", 2006): only units between the two that a new
dependency connects are visited, so that the cost follows the change and not the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable

MOST_VISITED = 2000  # units, in search of a cycle; beyond it two units are left apart, so that time stays linear


class Order:
    def __init__(self) -> None:
        self.position: list[int] = []
        self.before: list[set[int]] = []  # of each unit, those that it waits for
        self.after: list[set[int]] = []

    def add(self, before: Iterable[int]) -> int:
        """A new unit, behind all others."""
        unit = len(self.position)
        self.position.append(unit)
        self.before.append(set(before))
        self.after.append(set())
        for other in self.before[unit]:
            self.after[other].add(unit)
        return unit

    def can_wait(self, unit: int, before: Iterable[int]) -> bool:
        """Whether none of these waits for the unit."""
        return self.moves_of_wait(unit, set(before) - {unit}) is not None

    def wait(self, unit: int, before: Iterable[int]) -> None:
        """Makes the unit wait for these, which it has to be able to."""
        new = set(before) - {unit}
        self.reorder(self.moves_of_wait(unit, new))
        self.before[unit] |= new
        for other in new:
            self.after[other].add(unit)

    def moves_of_wait(self, unit: int, before: set[int]) -> list[set[int]] | None:
        later = {other for other in before if self.position[other] > self.position[unit]}
        if not later:
            return []
        last = max(self.position[other] for other in later)
        behind = self.reached(self.after, {unit}, lambda p: p <= last, later)
        ahead = None if behind is None else self.reached(self.before, later, lambda p: p > self.position[unit])
        return None if ahead is None else [ahead, behind]

    def can_merge(self, a: int, b: int) -> bool:
        """Whether no third unit lies between the two."""
        return self.moves_of_merge(a, b) is not None

    def merge(self, a: int, b: int) -> None:
        """Makes one unit, a, of two that can be merged."""
        self.reorder(self.moves_of_merge(a, b))
        for own, others in ((self.before, self.after), (self.after, self.before)):
            for unit in own[b]:
                others[unit].discard(b)
                others[unit].add(a)
            own[a] |= own[b]
            own[b] = set()
        self.before[a] -= {a, b}
        self.after[a] -= {a, b}

    def moves_of_merge(self, a: int, b: int) -> list[set[int]] | None:
        first, last = sorted((a, b), key=self.position.__getitem__)
        low, high = self.position[first], self.position[last]
        behind = self.reached(self.after, self.after[first] - {last}, lambda p: p < high, self.before[last])
        ahead = None if behind is None else self.reached(self.before, self.before[last] - {first}, lambda p: p > low)
        return None if ahead is None else [ahead, {a, b}, behind]

    def reached(
        self, edges: list[set[int]], start: Iterable[int], within: Callable[[int], bool], stop: Iterable[int] = ()
    ) -> set[int] | None:
        """All units that edges lead to, positions within a range; None where one of `stop` is among them, or where
        there are too many to tell."""
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

    def reorder(self, parts: list[set[int]]) -> None:
        """Gives these units' positions out again: the parts one after the other, each in its own order."""
        ordered = [unit for part in parts for unit in sorted(part, key=self.position.__getitem__)]
        positions = sorted(self.position[unit] for unit in ordered)
        for unit, position in zip(ordered, positions, strict=True):
            self.position[unit] = position
