"""The common part of the command line's subcommands: the parser, argument types, and the error type."""

import argparse
import errno
import importlib.util
import math
import os
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

MOST = 2**48  # of a count; no memory holds more
MOST_OF_A_SEED = 2**63 - 1
MOST_OF_A_NUMBER = 1e30  # computed with in float32
MOST_THREADS = 1024  # some systems end a process that starts more
DIGITS = 20


class UsageError(Exception):
    """A request that can't be met; ``str()`` is the one sentence that the user sees."""


class HelpFormatter(argparse.HelpFormatter):
    """Fills descriptions to the terminal's width and leaves the examples in an epilog unchanged."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An argparse parser with our help format, whose errors are one sentence and exit code 2."""

    def __init__(self, **settings: Any):
        super().__init__(**{"formatter_class": HelpFormatter, **settings})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.rstrip('.')} (--help shows the options).\n")


def _integer(text: str, words: str, least: int, most: int) -> int:
    if not text.isdecimal() or not text.strip("0") and least > 0:
        raise argparse.ArgumentTypeError(f"expected {words}, but got {text!r}")
    if len(text) > DIGITS or int(text) > most:
        shown = text if len(text) <= DIGITS else f"one of {len(text)} digits"
        raise argparse.ArgumentTypeError(f"expected {words}, at most {most}, but got {shown}")
    return int(text)


positive_integer = partial(_integer, words="a positive integer", least=1, most=MOST)
thread_count = partial(_integer, words="a positive integer", least=1, most=MOST_THREADS)
natural_number = partial(_integer, words="an integer from 0 on", least=0, most=MOST_OF_A_SEED)


def positive_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, but got {text!r}")
    if value > MOST_OF_A_NUMBER:
        raise argparse.ArgumentTypeError(f"expected a positive number, at most {MOST_OF_A_NUMBER}, but got {text!r}")
    return value


def memory_fraction(text: str) -> float:
    """A number that some backend allows; :func:`limit_memory` checks it for the device."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 2, but got {text!r}")
    return value


def output_file(text: str) -> Path:
    """A file to be written later; rejected now if that can't work, so that no long run ends in an error."""
    reason = why_unwritable(Path(text))
    if reason is not None:
        words = "a file in a directory that exists and can be written to"
        raise argparse.ArgumentTypeError(f"expected {words}, but got {text!r}: {reason}")
    return Path(text)


def output_directory(command: str, flag: str, path: Path, file: str) -> None:
    """Creates a directory, and rejects one in which ``file`` can't be written later."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        reason = why_unwritable(path / file)
    except OSError as error:
        reason = error.strerror
    if reason:
        raise UsageError(f"{command}: expected {flag} to be a directory to write to, but got {str(path)!r}: {reason}")


def why_unwritable(path: Path) -> str | None:
    """Why a file can't be written, or None; the check leaves nothing behind."""
    path = Path(os.path.realpath(path))
    try:
        new = not path.exists()
        if new or path.is_file():
            with path.open("a"):
                pass
            if new:
                path.unlink()
        elif path.is_dir():
            return os.strerror(errno.EISDIR)
        elif not os.access(path, os.W_OK):  # a pipe is not opened, because its reader would notice
            return os.strerror(errno.EACCES)
    except OSError as error:
        return error.strerror
    return None


def add_integer(group: argparse._ArgumentGroup, flag: str, default: int, text: str) -> None:
    group.add_argument(flag, type=positive_integer, default=default, metavar="N", help=f"{text} (%(default)s)")


def add_machine(group: argparse._ArgumentGroup) -> None:
    """Adds the options for :func:`usable_device` and :func:`limit_memory`, and the number of threads."""
    device = "device of both: cpu, cuda, cuda:1, mps (%(default)s)"
    group.add_argument("--device", default="cpu", metavar="NAME", help=device)
    add_memory_fraction(group)
    group.add_argument("--threads", type=thread_count, metavar="N", help="CPU threads (torch's default)")


def add_memory_fraction(group: argparse._ArgumentGroup) -> None:
    text = (
        "the part of a GPU's memory that torch may use: on cuda up to 1; on mps up to 2 times what Metal recommends, "
        "and 0 for no limit (torch's default)"
    )
    group.add_argument("--memory-fraction", type=memory_fraction, metavar="X", help=text)


def limit_memory(command: str, device: torch.device, fraction: float | None) -> None:
    """Lets torch allocate at most this part of a GPU's memory; None changes nothing."""
    if fraction is None:
        return
    if device.type == "cuda" and 0 < fraction <= 1:
        torch.cuda.set_per_process_memory_fraction(fraction, device.index)
    elif device.type == "mps":
        torch.mps.set_per_process_memory_fraction(fraction)
    elif device.type == "cuda":
        raise UsageError(f"{command}: expected --memory-fraction above 0 and at most 1 with cuda, but got {fraction:g}")
    else:
        raise UsageError(f"{command}: expected --memory-fraction only with --device cuda or mps, but got {device}")


def expect_module(command: str, name: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # from importing its package, or for a relative name
        found = None
    if found is None:
        raise UsageError(f"{command}: expected a module that python can import, but there is none named {name!r}")


def usable_device(command: str, name: str) -> torch.device:
    """The device of that name; a GPU with its index."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"{command}: expected --device to be cpu, cuda, cuda:1 or mps, but got {name!r}")
    if device.type == "cpu":
        return device
    present = torch.accelerator.current_accelerator(check_available=True)
    if present is None or present.type != device.type:
        sees = f"torch {torch.__version__} sees {'no GPU' if present is None else f'one that is {present.type}'}"
        raise UsageError(f"{command}: expected --device to be one that torch can use, but got {name!r}: {sees}")
    count, index = torch.accelerator.device_count(), device.index or 0
    if index >= count:
        raise UsageError(f"{command}: expected one of the GPUs 0 to {count - 1}, but got {name!r}")
    return torch.device(device.type, index)
