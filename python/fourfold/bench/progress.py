"""What a person sees of a benchmark while it runs: tables, and on a terminal a progress bar, which never moves while
something is timed."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from fourfold.bench import tables
from fourfold.bench.report import Report


class Screen:
    """Plain lines, for a file, a pipe, or a terminal without rich."""

    def text(self, text: str) -> None:
        print(text, flush=True)

    def begin(self, title: str) -> None:
        """A table's measurement begins."""

    def table(self, table: tables.Comparison | Report) -> None:
        self.text("\n" + (table.plain() if isinstance(table, Report) else tables.plain(table)))


class RichScreen(Screen):
    """Coloured tables above a bar that counts them."""

    def __init__(self, progress: Any, total: int):
        self.progress = progress
        self.task = progress.add_task("", total=total)

    def text(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False)

    def begin(self, title: str) -> None:
        self.progress.update(self.task, description=title)
        self.progress.refresh()

    def table(self, table: tables.Comparison | Report) -> None:
        self.text("")
        if isinstance(table, Report):
            self.text(table.plain())
        else:
            tables.print_rich(table, self.progress.console)
        self.progress.advance(self.task)
        self.progress.refresh()


@contextlib.contextmanager
def screen(total: int) -> Iterator[Screen]:
    """For ``total`` tables."""
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        yield Screen()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, auto_refresh=False, transient=True) as progress:
        yield RichScreen(progress, total)
