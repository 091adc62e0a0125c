"""The command line's standard streams: any encoding, a pipe that nobody reads on, a disk that is full."""

import codecs
import io
import os
import sys
from collections.abc import Sequence

from fourfold.cli.usage import Parser, UsageError

# What the output has beyond ASCII, in ASCII.
_IN_ASCII = {"×": "x", "│": "|", "…": "...", "±": "+-", "µ": "u", "·": "*", "²": "^2", "→": "->"}
# What torch says of sizes that no memory holds.
_OUT_OF_MEMORY = ("allocate memory", "out of memory", "not enough memory", "size calculation", "numel: integer")


def run(parser: Parser, arguments: Sequence[str] | None) -> int:
    """Run one command and return its exit code: 0, 1 for a result that is wrong, 2 for a request that can't be met, and
    a shell's own where Ctrl-C or a closed pipe ended it."""
    show_every_character()

    def fail(sentence: str, code: int) -> int:
        print(f"{parser.prog}{sentence}", file=sys.stderr)
        return code

    try:
        try:
            parsed = parser.parse_args(arguments)
            return parsed.run(parsed)
        finally:
            sys.stdout.flush()  # while what goes wrong can still be told
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
        line = line.partition("DefaultCPUAllocator: ")[2] or line  # without torch's place in its own sources
        return fail(f": expected sizes that fit into memory, but torch says: {line}", 2)


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
