"""The files of ``templates``, which jinja2 fills in; torch requires it."""

from __future__ import annotations

import functools
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

FOLDER = Path(__file__).parent / "templates"


@functools.cache
def environment() -> Environment:
    escaped = select_autoescape(("html", "svg"))
    return Environment(loader=FileSystemLoader(FOLDER), autoescape=escaped, undefined=StrictUndefined, trim_blocks=True)


def render(template: str, **values: object) -> str:
    return environment().get_template(template).render(values) + "\n"
