"""A loop over the steps of a sequence as one node of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False, repr=False)
class Loop:
    """The target of a loop's node, which is called with the number of steps, the initial states that the body reads,
    the series and the invariants.

    body: the compiled graph of one step (``compiled.Compiled``). Its inputs are the states that it reads, a step's
    element of each series, and the invariants; its results are the new states and the step's other results.
    native: the body as C++ calls it, a ``fourfold.Graph``; None without the C++ module for this torch.
    feeds: for each state that the body reads, the index of the new state that the next step reads there.
    trails: for each new state, whether the loop returns all of them, with the initial one, of shape (steps + 1, …), or
    only the last one. series: how many. reverse: whether the last step runs first; results are in the series' order.

    Results: for each new state the last or all, then the steps' other results, of shape (steps, …)."""

    body: object
    native: object
    feeds: Sequence[int]
    trails: Sequence[bool]
    series: int
    reverse: bool
    __name__: str = "loop"

    def __call__(self, steps: int, *given: Tensor) -> tuple[Tensor, ...]:
        """Runs the steps one by one, in Python. Raises ValueError for series of another length."""
        read, states = len(self.feeds), len(self.trails)
        first = list(given[:read])
        series, invariants = given[read : read + self.series], list(given[read + self.series :])
        if steps < 1:
            raise ValueError(f"loop: expected at least one step, but got {steps}")
        for each in series:
            if not each.dim() or each.size(0) != steps:
                raise ValueError(f"loop: expected series of {steps} steps, but got one of shape {list(each.shape)}")
        order = range(steps - 1, -1, -1) if self.reverse else range(steps)
        carries, rows = first, []
        for t in order:
            results = self.body.run([*carries, *(each[t] for each in series), *invariants])
            carries = [results[k] for k in self.feeds]
            rows.append(results)
        if self.reverse:
            rows.reverse()
        columns = list(zip(*rows, strict=True))
        found = []
        for k, is_trail in enumerate(self.trails):
            if is_trail:
                initial = first[self.feeds.index(k)]
                every = [*columns[k], initial] if self.reverse else [initial, *columns[k]]
                found.append(torch.stack(every))
            else:
                found.append(columns[k][0 if self.reverse else -1].clone())
        return *found, *(torch.stack(column) for column in columns[states:])
