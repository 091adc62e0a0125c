"""The topological order that is updated as groups grow, against a search of the whole graph."""

from __future__ import annotations

import random

import pytest

from fourfold.compiler.analysis import order
from fourfold.compiler.analysis.order import Order


def reaches(graph: Order, start: int, end: int) -> bool:
    pending, seen = [start], set()
    while pending:
        unit = pending.pop()
        if unit == end:
            return True
        new = graph.after[unit] - seen
        seen |= new
        pending += new
    return False


@pytest.mark.parametrize("seed", range(40))
def test_it_stays_an_order(seed: int) -> None:
    draw = random.Random(seed)
    graph, alive = Order(), []
    for _ in range(60):
        alive.append(graph.add(draw.sample(alive, min(len(alive), draw.randrange(3)))))
    for _ in range(120):
        a, b = draw.sample(alive, 2)
        if draw.random() < 0.5:
            change = graph.wait(a, {b})
            assert (change is None) == reaches(graph, a, b)
        elif len(alive) > 10:
            change = graph.merge(a, b)
            assert (change is None) == any(
                reaches(graph, unit, end)
                for start, end in ((a, b), (b, a))
                for unit in graph.after[start]
                if unit != end
            )
            if change is not None:
                alive.remove(b)
        else:
            change = None
        if change is not None:
            change()
        for unit in alive:
            assert all(graph.position[other] < graph.position[unit] for other in graph.before[unit])
            assert all(unit in graph.after[other] for other in graph.before[unit])
    assert len({graph.position[unit] for unit in alive}) == len(alive)


def test_far_apart_is_left_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise time would grow with the square of a graph's size."""
    monkeypatch.setattr(order, "MOST_VISITED", 5)
    graph = Order()
    last = first = graph.add(())
    for _ in range(20):
        last = graph.add({last})
    assert graph.wait(first, {last}) is None


def test_a_change_is_found_by_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Order()
    a, b, c = graph.add(()), graph.add(()), graph.add(())
    wait, searches, reached = graph.wait(a, {b}), [], graph.reached
    monkeypatch.setattr(graph, "reached", lambda *given: searches.append(given) or reached(*given))
    wait()
    assert not searches and graph.position[b] < graph.position[a]
    merge = graph.merge(b, c)
    searches.clear()
    merge()
    assert not searches and graph.before[a] == {b} and graph.after[b] == {a}
