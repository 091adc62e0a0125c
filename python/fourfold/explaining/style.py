"""The style sheet of a page, and of what a notebook shows: each rule is for what is in ``.fourfold-explanation``."""

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "pale": "#57606a",
    "line": "#d0d7de",
    "ground": "#f5f7f9",
    "accent": "#0b57d0",
}
DARK = {
    "paper": "#16181d",
    "ink": "#e6e8eb",
    "pale": "#a4adb8",
    "line": "#3a4048",
    "ground": "#20242b",
    "accent": "#8ab4f8",
}
# Of a picture's boxes on dark paper: what fills them, and their border.
DARK_BOXES = {
    "input": ("#1c2f45", "#6ea8e0"),
    "saved": ("#3b2f12", "#e0b352"),
    "kept": ("#3b2f12", "#e0b352"),
    "gradient": ("#312343", "#bb91e6"),
    "result": ("#17331f", "#6cc487"),
    "operator": ("#252a31", "#aeb6c0"),
    "torch": ("#30353c", "#8b949e"),
    "view": ("none", "#7d8590"),
}

RULES = """\
@ { background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
@ { max-width: 74rem; padding: 0 1rem 2rem; overflow-wrap: anywhere; }
@ h1, @ h2, @ h3, @ h4 { color: inherit; font-weight: 650; line-height: 1.25; margin: 1.8em 0 0.6em; padding: 0; }
@ h1 { font-size: 1.7rem; margin-top: 1.2rem; }
@ h2 { font-size: 1.3rem; border-bottom: 1px solid var(--line); padding-bottom: 0.25em; }
@ h3 { font-size: 1.1rem; }
@ h4 { font-size: 1rem; }
@ p { margin: 0.5em 0; max-width: 46rem; }
@ .about { color: var(--pale); font-size: 0.92rem; }
@ a { color: var(--accent); }
@ nav ul { display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; list-style: none; margin: 0.6em 0; padding: 0; }
@ .scroll { overflow: auto; max-height: 85vh; border: 1px solid var(--line); border-radius: 6px; margin: 0.6em 0; }
@ .scroll { background: var(--ground); }
@ .scroll.drawn { background: var(--paper); }
@ .scroll.plain { max-height: none; border: 0; background: none; overflow-wrap: break-word; }
@ .scroll:focus-visible, @ a:focus-visible, @ summary:focus-visible { outline: 3px solid var(--accent); }
@ pre { margin: 0; padding: 0.8em 1em; white-space: pre; background: none; border: 0; color: inherit; }
@ pre, @ code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@ pre, @ code { font-size: 0.82rem; line-height: 1.45; }
@ h1 code { font-size: 1.6rem; }
@ code { color: inherit; background: none; padding: 0; }
@ svg { display: block; width: 100%; height: auto; margin: 0 auto; }
@ .drawn { position: relative; }
@ .start { position: absolute; top: 0; width: 1px; height: 1px; scroll-initial-target: nearest; }
@ details { margin: 0.6em 0; }
@ summary { cursor: pointer; width: fit-content; }
@ table { border-collapse: collapse; margin: 0.6em 0; font-size: 0.92rem; background: none; color: inherit; }
@ th, @ td { border: 0; border-bottom: 1px solid var(--line); padding: 0.3em 1.4em 0.3em 0; text-align: left; }
@ th, @ td { vertical-align: top; background: none; color: inherit; }
@ tbody th { font-weight: 400; }
@ td.number, @ th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""

PAGE = """\
html { color-scheme: light dark; background: %(light)s; }
body { margin: 0; }
.fourfold-explanation { margin: 0 auto; }
@media (prefers-color-scheme: dark) { html { background: %(dark)s; } }
"""

PRINT = """\
@ { max-width: none; padding: 0; font-size: 10pt; }
@ .scroll { max-height: none; overflow: visible; border: 0; background: none; }
@ pre { white-space: pre-wrap; padding: 0; }
@ svg { min-width: 0 !important; max-width: 100% !important; height: auto; }
@ nav, @ details, @ .start { display: none; }
@ h2, @ h3, @ h4 { break-after: avoid; }
@ tr { break-inside: avoid; }
"""


def sheet() -> str:
    dark = [variables(DARK), *(box(kind, *colours) for kind, colours in DARK_BOXES.items())]
    dark += ["@ .graph .ink { fill: var(--ink); }", "@ .graph .pale { fill: var(--pale); }"]
    dark += ["@ .graph .paper { fill: var(--paper); }", "@ .graph .edge { stroke: #8b949e; }"]
    dark += ["@ .graph .head { fill: #8b949e; }", "@ .graph .frame { fill-opacity: 0.2; }"]
    medium = "@media screen and (prefers-color-scheme: dark) {\n" + scoped("\n".join(dark)) + "\n}\n"
    return f"{scoped(variables(LIGHT))}\n{scoped(RULES)}{medium}@media print {{\n{scoped(PRINT)}}}\n"


def page() -> str:
    """What a page of its own has besides."""
    return PAGE % {"light": LIGHT["paper"], "dark": DARK["paper"]}


def scoped(rules: str) -> str:
    """With the class in the place of each @."""
    return rules.replace("@", ".fourfold-explanation")


def variables(colours: dict[str, str]) -> str:
    return "@ { " + " ".join(f"--{name}: {colour};" for name, colour in colours.items()) + " }"


def box(kind: str, fill: str, border: str) -> str:
    return f"@ .graph .{kind} .box {{ fill: {fill}; stroke: {border}; }}"
