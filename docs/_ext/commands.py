"""The directive `commands`: what `python -m fourfold … --help` prints, each command under a heading."""

from __future__ import annotations

import argparse
import os
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WIDTH = "88"


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        from fourfold.cli import build_parser

        found: list[nodes.Node] = []
        parser = build_parser()
        (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        for name, each in ((None, parser), *commands.choices.items()):
            section = nodes.section(ids=[f"command-{name or 'fourfold'}"])
            section += nodes.title(
                "", "", nodes.literal(text=f"python -m fourfold {name}" if name else "python -m fourfold")
            )
            with mock.patch.dict(os.environ, COLUMNS=WIDTH):
                text = each.format_help()
            section += nodes.literal_block(text, text, language="text")
            found.append(section)
        return found


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
