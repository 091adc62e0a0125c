"""An explanation as HTML: a page that needs nothing else, and the same for a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from fourfold.explaining import style
from fourfold.explaining.explanation import Explanation, Graph, Half, Program, plural
from fourfold.explaining.svg import SVG
from fourfold.explaining.text import (
    BYTES,
    NOTHING,
    about_time,
    called,
    counted,
    is_small,
    once_each,
    outside_rows,
    overview_rows,
    program_rows,
    run_by,
    time_rows,
)

LEAST_SCALE = 0.7  # of a picture that is wider than the page
MOST_DRAWN = 8  # pictures; a function with more graphs has those of its first
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
    several, small = len(explanation.graphs) > 1, is_small(explanation)
    sections = [("Summary", summary(explanation))] if explanation.graphs else []
    drawn = 0
    for k, graph in enumerate(explanation.graphs):
        sections += graph_sections(graph, f" {k}" if several else "", small, drawn < MOST_DRAWN)
        drawn += len(graph.halves)
    if explanation.breaks:
        reasons = "".join(f"<p>{escape(reason)}</p>" for reason in explanation.breaks)
        sections.append(("Graph breaks", reasons))
    if explanation.stages:
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


def summary(explanation: Explanation) -> str:
    """Counts, then the programs that move most, then what torch runs."""
    parts = [table(overview_rows(explanation), "Operators, programs and bytes of the forward and the backward")]
    kinds = sorted(explanation.programs, key=lambda kind: kind.bytes or 0, reverse=True)
    if kinds:
        parts.append(table(program_rows(kinds), "Programs", words=(0, 2)))
    if explanation.outside:
        parts.append(table(outside_rows(explanation.outside), "Operators that torch runs", words=(0, 2)))
    parts += [f'<p class="about">{escape(words)}</p>' for words in (called(explanation.graphs), BYTES)]
    return "\n".join(parts)


def anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def graph_sections(graph: Graph, number: str, small: bool, drawn: bool) -> list[tuple[str, str]]:
    """small: whether code is in the open. drawn: whether there are pictures."""
    about = f'<p class="about">{escape(run_by(graph))}</p>'
    sections = [(f"Captured graph{number}", listing(graph.code, f"Captured graph{number}", small) + about)]
    for half in graph.halves:
        sections.append((half.name.capitalize() + number, half_text(half, half.name + number, small, drawn)))
    return sections


def half_text(half: Half, name: str, small: bool, drawn: bool) -> str:
    parts = [f"<p>{escape(half.summary[0].upper() + half.summary[1:])}.</p>"]
    if drawn:
        picture = half.sketch.beginning()
        parts.append(scroll(drawing(half.svg()), f"Picture of the {name}", "scroll drawn"))
        about = [LEGEND] if half.name == "forward" else []
        about += [picture.note] if picture.note else []
        parts += [f'<p class="about">{escape(words)}</p>' for words in about]
    parts.append(folded(f"The {name} as code", code(half.code, f"The {name} as code")))
    for program, others in once_each(half.programs):
        parts += program_text(program, others, name, small)
    if half.outside:
        parts.append(f"<h3>Outside programs in the {escape(name)}</h3>")
        parts.append(table(outside_rows(half.outside), f"Operators of the {name} that torch runs", (0, 2)))
    calls = f"The Python that runs the {name}"
    parts.append(folded(calls, code(half.calls, calls)))
    return "\n".join(parts)


def program_text(program: Program, others: Sequence[str], name: str, small: bool) -> list[str]:
    parts = [f"<h3>{program.name} of the {escape(name)}</h3>"]
    does = f"{plural(len(program.operators), 'operator')}: {counted(program.operators)}"
    does += f". {plural(len(others), 'other program')} {'is' if len(others) == 1 else 'are'} the same" if others else ""
    parts.append(f"<p>{escape(does)}.</p>")
    parts.append(listing(program.text, f"{program.name} of the {name}", small))
    return parts


def listing(text: str, name: str, is_open: bool) -> str:
    return code(text, name) if is_open else folded(name, code(text, name))


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
    return scroll(f"<table>\n{inside}\n</table>", caption, "scroll plain")
