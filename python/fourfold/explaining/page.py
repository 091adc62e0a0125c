"""An explanation as HTML, from a template: a page that needs nothing else, and the same for a notebook."""

from __future__ import annotations

import re

from fourfold.explaining import text
from fourfold.explaining.data import Findings, Half
from fourfold.explaining.filling import FOLDER, render
from fourfold.explaining.picture import dot, igraph, shown, svg

LEAST_SCALE = 0.7  # of a picture that is wider than the page


def page(explanation: Findings) -> str:
    return html(explanation, links=True)


def fragment(explanation: Findings) -> str:
    """Without what others on the same page could have too: rules for the whole page, and names to link to."""
    return html(explanation, links=False)


def html(explanation: Findings, links: bool) -> str:
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    titles = ["Summary"] if explanation.graphs else []
    for k, graph in enumerate(explanation.graphs):
        number = f" {k}" if len(explanation.graphs) > 1 else ""
        titles += [f"{name}{number}" for name in ("Captured graph", *(half.name.capitalize() for half in graph.halves))]
    titles += ["Graph breaks"] * bool(explanation.breaks) + ["Time"] * bool(explanation.stages)
    values = {"explanation": explanation, "links": links, "titles": titles, "style": style}
    return render("page.html", **values, text=text, draw=draw)


def draw(half: Half) -> dict[str, str]:
    """The picture, as wide as the page within bounds; without igraph the graph as a list and for Graphviz."""
    boxes, note = shown(half)
    if igraph() is None:
        return {"svg": "", "text": "\n".join(text.box_lines(boxes)), "dot": dot(half)}
    picture = svg(half)
    width = int(re.search(r'width="(\d+)"', picture)[1])
    bounds = f'style="min-width: {LEAST_SCALE * width:.0f}px; max-width: {width}px"'
    picture = re.sub(r' xmlns="[^"]*"', "", picture, count=1)  # HTML knows its name
    first = re.search(r'<rect class="\w+" x="([\d.]+)"', picture)
    left = 100 * (float(first[1]) + 60) / width if first else 0  # scrolled to at first
    return {"svg": picture.replace("<svg", f"<svg {bounds}", 1), "left": f"{left:.0f}", "note": note}
