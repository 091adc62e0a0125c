"""Renders the files of ``templates`` with jinja2, which torch requires."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(("html",)),
    undefined=StrictUndefined,
    trim_blocks=True,
)
ENVIRONMENT.filters["quoted"] = functools.partial(json.dumps, ensure_ascii=False)


def render(template: str, **values: object) -> str:
    return ENVIRONMENT.get_template(template).render(values) + "\n"
