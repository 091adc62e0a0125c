"""What ``fourfold.explain`` returns."""

from __future__ import annotations

from pathlib import Path

from fourfold.explaining import text
from fourfold.explaining.data import Findings, plural


class Explanation(Findings):
    """``print`` it, ``save`` it as a page, draw it by ``svg``, or let a notebook show it."""

    # Pages and pictures are imported when they are asked for: jinja2 and igraph take a while.

    def __str__(self) -> str:
        """All stages of a small function, the summary of a large one."""
        return self.detail() if text.is_small(self) else self.summary()

    def summary(self) -> str:
        """In at most 40 lines, and about ten more with times, however large the function is."""
        return text.summary(self)

    def detail(self) -> str:
        """All stages, however long: graphs, programs, and what torch runs; programs that are alike once."""
        return text.detail(self)

    def __repr__(self) -> str:
        graphs = plural(len(self.graphs), "graph")
        return f"<fourfold.explain of {self.name}: {graphs}; print it, or .save('page.html')>"

    def _repr_html_(self) -> str:
        from fourfold.explaining.page import fragment

        return fragment(self)

    def save(self, path: str | Path) -> None:
        """One HTML page, which needs nothing else."""
        from fourfold.explaining.page import page

        Path(path).write_text(page(self), encoding="utf-8")

    def svg(self, half: str = "forward", graph: int = 0, whole: bool = False) -> str:
        """The picture of ``"forward"`` or ``"backward"`` of the graph with this number. whole: all of a large graph,
        not only its beginning. Raises ValueError if there is no such graph, ImportError without igraph."""
        from fourfold.explaining.picture import svg

        return svg(self.half(half, graph), whole)

    def dot(self, half: str = "forward", graph: int = 0, whole: bool = False) -> str:
        """The same for Graphviz, which needs no package here."""
        from fourfold.explaining.picture import dot

        return dot(self.half(half, graph), whole)
