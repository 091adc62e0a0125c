"""A picture as SVG, whole by itself: no fonts, scripts, style sheets or names that could meet others on a page.

Colours are attributes, so that a page's style sheet may give others for a dark background by the classes."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from fourfold.explaining.layers import Box, Point
from fourfold.explaining.sketch import CHARACTER, HEAD, LINE, Frame, Item, Picture

SVG = "http://www.w3.org/2000/svg"
MARGIN = 12.0
INK, PALE, EDGE, PAPER = "#212529", "#5c6370", "#7b8494", "#ffffff"
# Of each kind of box: what fills it, its border, whether that is dashed, and how round it is.
KINDS = {
    "input": ("#e7f0fb", "#3b6ea5", "", 14.0),
    "saved": ("#fff3d6", "#a8750a", "5 3", 14.0),
    "gradient": ("#f1e8fb", "#7d4bb0", "", 14.0),
    "result": ("#e2f5e6", "#2b7a43", "", 14.0),
    "kept": ("#fff3d6", "#a8750a", "5 3", 14.0),
    "operator": ("#ffffff", "#495057", "", 4.0),
    "again": ("#ffffff", "#495057", "2 2", 4.0),
    "torch": ("#f1f3f5", "#868e96", "", 4.0),
    "view": ("none", "#adb5bd", "2 3", 4.0),
}
FRAMES = ("#4263eb", "#0c8599", "#c2255c", "#e8590c", "#2f9e44", "#9c36b5")


def svg(picture: Picture, title: str, description: str) -> str:
    """title: what a screen reader says of it; description: what it shows, in words."""
    width, height = picture.width + 2 * MARGIN, picture.height + 2 * MARGIN
    if picture.note:
        width, height = max(width, CHARACTER * len(picture.note) + 2 * MARGIN), height + 2 * LINE
    parts = [
        f'<svg xmlns="{SVG}" class="graph" role="img" aria-label="{escape(title)}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="12">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description)}</desc>",
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}" rx="6" fill="{PAPER}"/>',
        *([text(picture.note, MARGIN, MARGIN + LINE, PALE, "pale")] if picture.note else []),
        f'<g transform="translate({MARGIN:.0f} {height - picture.height - MARGIN:.0f})">',
        *map(frame, picture.frames),
        *edges(picture.routes, picture.ends),
        *map(name_of, picture.frames),
        *(box(item, place) for item, place in picture.boxes),
    ]
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def colour(number: int) -> str:
    return FRAMES[number % len(FRAMES)]


def frame(one: Frame) -> str:
    ink = colour(one.number)
    paint = f'fill="{ink}" fill-opacity="0.09" stroke="{ink}" stroke-width="1.5"'
    return f'<rect class="frame" {place_of(one.box)} rx="10" {paint}/>'


def name_of(one: Frame) -> str:
    """A bar along the frame's top."""
    x, y, width = one.box.x, one.box.y, one.box.width
    bar = f"M{x:.1f} {y + HEAD:.1f}v{10 - HEAD:g}a10 10 0 0 1 10 -10h{width - 20:.1f}a10 10 0 0 1 10 10v{HEAD - 10:g}z"
    words = text(one.name, one.box.middle, y + 15, "#ffffff", "", "600", "middle")
    return f'<path d="{bar}" fill="{colour(one.number)}"/>{words}'


def box(item: Item, place: Box) -> str:
    kind = item.kind
    if kind == "program":
        ink = colour(item.group or 0)
        shape = f'<rect {place_of(place)} rx="10" fill="{ink}" fill-opacity="0.12" stroke="{ink}" stroke-width="1.5"/>'
    else:
        fill, border, dashes, round_ = KINDS[
            "again" if kind == "operator" and item.lines[1].endswith("again") else kind
        ]
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        rounded = min(round_, place.height / 2)
        shape = f'<rect class="box" {place_of(place)} rx="{rounded:g}" fill="{fill}" stroke="{border}"{dashed}/>'
    top = place.y + (place.height - LINE * len(item.lines)) / 2 + 11
    lines = [
        text(
            line, place.middle, top + LINE * k, PALE if k else INK, "pale" if k else "ink", "" if k else "600", "middle"
        )
        for k, line in enumerate(item.lines)
    ]
    return f'<g class="node {kind}"><title>{escape(item.more)}</title>{shape}{"".join(lines)}</g>'


def text(words: str, x: float, y: float, fill: str, kind: str, weight: str = "", anchor: str = "") -> str:
    settings = f' class="{kind}"' if kind else ""
    settings += f' font-weight="{weight}"' if weight else ""
    settings += f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{settings}>{escape(words)}</text>'


def place_of(one: Box) -> str:
    return f'x="{one.x:.1f}" y="{one.y:.1f}" width="{one.width:.1f}" height="{one.height:.1f}"'


def edges(routes: Iterable[list[Point]], ends: Iterable[bool]) -> list[str]:
    """All as one path: what several share is drawn once."""
    pieces: dict[str, None] = {}
    heads: dict[str, None] = {}
    for route, at_box in zip(routes, ends, strict=True):
        for (x, y), (to_x, to_y) in zip(route, route[1:], strict=False):
            if to_y - y < 0.05:
                continue
            start = f"M{x:.1f} {y:.1f}"
            bend = (y + to_y) / 2
            line = (
                f"V{to_y:.1f}"
                if abs(x - to_x) < 0.05
                else f"C{x:.1f} {bend:.1f} {to_x:.1f} {bend:.1f} {to_x:.1f} {to_y:.1f}"
            )
            pieces[start + line] = None
        if at_box:
            x, y = route[-1]
            heads[f"M{x - 3.5:.1f} {y - 7:.1f}L{x:.1f} {y:.1f}L{x + 3.5:.1f} {y - 7:.1f}Z"] = None
    return [
        f'<path class="edge" d="{"".join(pieces)}" fill="none" stroke="{EDGE}" stroke-width="1.4"/>',
        f'<path class="head" d="{"".join(heads)}" fill="{EDGE}"/>',
    ]
