"""Handles the command line's standard streams: any encoding, a closed pipe, a full disk."""

import codecs
import io
import os
import sys
from collections.abc import Sequence

from fourfold.cli.usage import Parser, UsageError

# ASCII replacements for the output's other characters.
_IN_ASCII = {"×": "x", "│": "|", "…": "...", "±": "+-", "µ": "u", "·": "*", "²": "^2", "→": "->"}
# Parts of torch's messages about sizes that don't fit into memory.
_OUT_OF_MEMORY = ("allocate memory", "out of memory", "not enough memory", "size calculation", "numel: integer")


def run(parser: Parser, arguments: Sequence[str] | None) -> int:
    """Runs one command and returns its exit code: 0; 1 for a wrong result; 2 for a request that can't be met; and a
    shell's own code after Ctrl-C or a closed pipe."""
    show_every_character()

    def fail(sentence: str, code: int) -> int:
        print(f"{parser.prog}{sentence}", file=sys.stderr)
        return code

    try:
        try:
            parsed = parser.parse_args(arguments)
            return parsed.run(parsed)
        finally:
            sys.stdout.flush()  # while errors can still be reported
    except UsageError as error:
        return fail(f" {error}", 2)
    except KeyboardInterrupt:
        return fail(": interrupted", 130)
    except BrokenPipeError:
        give_up_output()
        return 141
    except OSError as error:
        give_up_output()
        return fail(f": expected to read and write its files, but the system says: {error}", 2)
    except (MemoryError, RuntimeError) as error:
        said = str(error).strip() or "out of memory"
        if not isinstance(error, MemoryError) and not any(words in said.lower() for words in _OUT_OF_MEMORY):
            raise
        line = said.splitlines()[0]
        line = line.partition("DefaultCPUAllocator: ")[2] or line  # without the line of torch's source
        return fail(f": expected sizes that fit into memory, but torch says: {line}", 2)


def show_every_character() -> None:
    """Replaces characters that a stream's encoding lacks by similar ones, instead of raising an exception."""
    codecs.register_error("fourfold", _like_it)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="fourfold")


def _like_it(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_IN_ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end


def give_up_output() -> None:
    """Discards what standard output still holds; otherwise Python would try to write it at exit, and report an
    error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
