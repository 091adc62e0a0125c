"""What the command line's subcommands share: its parser, its argument types, its one kind of error."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, NoReturn


class UsageError(Exception):
    """What was asked for can't be done here; ``str()`` of it is the one sentence the user sees."""


class HelpFormatter(argparse.HelpFormatter):
    """Fills descriptions to the terminal's width and leaves the examples in an epilog as they were written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An argparse parser with our help format, whose errors are one sentence and exit code 2."""

    def __init__(self, **settings: Any):
        super().__init__(**{"formatter_class": HelpFormatter, **settings})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.rstrip('.')} (--help shows the options).\n")


def positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive integer, but got {text!r}")
    return int(text)


def natural_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer from 0 on, but got {text!r}")
    return int(text)


def positive_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, but got {text!r}")
    return value


def output_file(text: str) -> Path:
    """A file to be written later; refused now when that can't work, so that no long run ends in an error."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a directory that exists, but got {text!r}")
    return path


def add_integer(group: argparse._ArgumentGroup, flag: str, default: int, text: str) -> None:
    group.add_argument(flag, type=positive_integer, default=default, metavar="N", help=f"{text} (%(default)s)")
