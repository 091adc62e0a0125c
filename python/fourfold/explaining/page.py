"""An explanation as HTML: a page that needs nothing else, and the same for a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from fourfold.explaining import style
from fourfold.explaining.explanation import Explanation, Graph, Half, Program, plural
from fourfold.explaining.picture import MOST
from fourfold.explaining.svg import SVG
from fourfold.explaining.text import BYTES, NOTHING, about_time, byte_rows, counted, run_by, time_rows

LEAST_SCALE = 0.7  # of a picture that is wider than the page
LEGEND = (
    "A frame is a program: one pass over memory, which keeps nothing of what is between its inputs and its results. "
    "Grey boxes are operators that torch runs. What is faint moves nothing: views, and parts of several results. Amber "
    "is kept from the forward to the backward; what is dotted and says “again” the backward computes once more instead."
)


def page(explanation: Explanation) -> str:
    title = escape(f"{explanation.name}, explained by fourfold")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{style.page()}{style.sheet()}</style>\n</head>\n<body>\n"
        f'<main class="fourfold-explanation">\n{body(explanation, links=True)}\n</main>\n</body>\n</html>\n'
    )


def fragment(explanation: Explanation) -> str:
    """Without what others on the same page could have too: the page's own rules, and names to link to."""
    inside = body(explanation, links=False)
    return f'<div class="fourfold-explanation">\n<style>\n{style.sheet()}</style>\n{inside}\n</div>\n'


def body(explanation: Explanation, links: bool) -> str:
    several = len(explanation.graphs) > 1
    sections = []
    for k, graph in enumerate(explanation.graphs):
        sections += graph_sections(graph, f" {k}" if several else "")
    if explanation.breaks:
        reasons = "".join(f"<p>{escape(reason)}</p>" for reason in explanation.breaks)
        sections.append(("Graph breaks", reasons))
    if explanation.graphs:
        caption = "Bytes that the forward and the backward read and write"
        sections.append(
            ("Bytes moved", table(byte_rows(explanation), caption) + f'<p class="about">{escape(BYTES)}</p>')
        )
    about = f'<p class="about">{escape(about_time(explanation))}</p>'
    sections.append(("Time", table(time_rows(explanation.stages), "Time that each stage takes") + about))
    parts = [f"<h1><code>{escape(explanation.name)}</code></h1>"]
    parts.append(f'<p class="about">torch.compile(backend="fourfold"), {escape(explanation.versions)}</p>')
    parts += [] if explanation.graphs else [f"<p>{NOTHING}</p>"]
    if links:
        entries = "".join(f'<li><a href="#{anchor(title)}">{escape(title)}</a></li>' for title, _ in sections)
        parts.append(f'<nav aria-label="Sections"><ul>{entries}</ul></nav>')
    for title, text in sections:
        named = f' id="{anchor(title)}"' if links else ""
        parts.append(f"<section>\n<h2{named}>{escape(title)}</h2>\n{text}\n</section>")
    return "\n".join(parts)


def anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def graph_sections(graph: Graph, number: str) -> list[tuple[str, str]]:
    about = f'<p class="about">{escape(run_by(graph))}</p>'
    sections = [(f"Captured graph{number}", code(graph.code, f"Captured graph{number}") + about)]
    for half in graph.halves:
        sections.append((half.name.capitalize() + number, half_text(half, half.name + number)))
    return sections


def half_text(half: Half, name: str) -> str:
    parts = [f"<p>{escape(half.summary[0].upper() + half.summary[1:])}.</p>"]
    parts.append(scroll(drawing(half.svg), f"Picture of the {name}", "scroll drawn"))
    about = [LEGEND] if half.name == "forward" else []
    about += [f"The graph has more than {MOST} nodes, so each program is one box."] if half.collapsed else []
    parts += [f'<p class="about">{escape(words)}</p>' for words in about]
    parts.append(folded(f"The {name} as code", code(half.code, f"The {name} as code")))
    for program in half.programs:
        parts += program_text(program, name)
    if half.outside:
        parts.append(f"<h3>Outside programs in the {escape(name)}</h3>")
        rows = [("operator", "times", "why"), *((one.operator, f"{one.count:,}", one.reason) for one in half.outside)]
        parts.append(table(rows, f"Operators of the {name} that torch runs", words=(0, 2)))
    calls = f"The Python that runs the {name}"
    parts.append(folded(calls, code(half.calls, calls)))
    return "\n".join(parts)


def program_text(program: Program, name: str) -> list[str]:
    parts = [f"<h3>{program.name} of the {escape(name)}</h3>"]
    does = f"{plural(len(program.operators), 'operator')}: {counted(program.operators)}"
    parts.append(f"<p>{escape(does)}.</p>")
    parts.append(code(program.text, f"{program.name} of the {name}"))
    if program.cpp is not None:
        parts.append(f"<h4>{program.name} of the {escape(name)} as C++</h4>")
        parts.append(code(program.cpp, f"{program.name} of the {name} as C++"))
    return parts


def drawing(picture: str) -> str:
    """A picture as wide as the page, within bounds. Where it is wider, what it begins with is seen first, by
    ``scroll-initial-target``; browsers that don't know that yet begin on the left."""
    width = int(re.search(r'width="(\d+)"', picture)[1])
    bounds = f'style="min-width: {LEAST_SCALE * width:.0f}px; max-width: {width}px"'
    boxes = re.findall(r'class="box" x="([-\d.]+)" y="([-\d.]+)" width="([\d.]+)"', picture)
    x, _, wide = min(boxes, key=lambda box: float(box[1]), default=(0, 0, 0))
    start = f'<span class="start" style="left: {100 * (float(x) + float(wide) / 2) / width:.0f}%"></span>'
    return start + picture.replace(f' xmlns="{SVG}"', "", 1).replace("<svg", f"<svg {bounds}", 1)  # HTML knows its name


def code(text: str, name: str) -> str:
    return scroll(f"<pre><code>{escape(text.rstrip())}</code></pre>", name)


def scroll(inside: str, name: str, kind: str = "scroll") -> str:
    """What may be wider than the page: the keyboard reaches it, and can move it."""
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{escape(name)}">{inside}</div>'


def folded(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def table(rows: Sequence[tuple[str, ...]], caption: str, words: Iterable[int] = (0,)) -> str:
    """The first row heads the columns; the first column heads the rows. words: the columns that are not numbers."""
    words = set(words)
    kind = {k: "" if k in words else ' class="number"' for k in range(len(rows[0]))}
    heads = "".join(
        f'<th scope="col"{kind[k]}>{escape(cell)}</th>' if cell else "<td></td>" for k, cell in enumerate(rows[0])
    )
    lines = []
    for first, *others in rows[1:]:
        cells = "".join(f"<td{kind[k]}>{escape(cell)}</td>" for k, cell in enumerate(others, 1))
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    inside = f"<thead><tr>{heads}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>"
    return f'<table aria-label="{escape(caption)}">\n{inside}\n</table>'
