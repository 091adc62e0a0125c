"""The command line's standard streams: any encoding, a pipe that nobody reads on, a disk that is full."""

from __future__ import annotations

import codecs
import io
import os
import sys

# What the output has beyond ASCII, in ASCII.
_IN_ASCII = {"×": "x", "│": "|", "…": "...", "±": "+-", "µ": "u", "·": "*", "²": "^2", "→": "->"}
# What torch says of sizes that no memory holds.
_OUT_OF_MEMORY = ("allocate memory", "out of memory", "not enough memory", "size calculation", "numel: integer")


def show_every_character() -> None:
    """A stream whose encoding lacks a character gets one like it, and not an exception."""
    codecs.register_error("fourfold", _like_it)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="fourfold")


def _like_it(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_IN_ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end


def give_up_output() -> None:
    """What standard output still holds goes nowhere; Python would try once more at its end, and say that it can't."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def first_line(error: Exception) -> str:
    text = (str(error).strip() or "out of memory").splitlines()[0]
    return text.partition("DefaultCPUAllocator: ")[2] or text  # without torch's place in its own sources
