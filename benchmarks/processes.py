"""Worker processes that answer requests: ``python -m benchmarks.processes MODULE FUNCTION ARGUMENTS``.

The function returns the request handler. Each line of JSON on stdin is a request, each line on stdout a reply.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent  # where ``python -m benchmarks.NAME`` finds its module


class Ended(Exception):
    """A process ended before it replied; ``str()`` names it."""


@contextlib.contextmanager
def child(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    # In a session of its own it doesn't receive Ctrl-C; this process ends it.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, start_new_session=True, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        process.kill()  # also ends a stopped process
        process.communicate()


@contextlib.contextmanager
def worker(
    module: str,
    function: str,
    *arguments: Any,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Callable[..., Any]]:
    """Returns a function that sends a request to a process; it raises Ended if the process has ended."""
    words = (module, function, json.dumps(arguments))
    with child([*launcher, sys.executable, "-m", "benchmarks.processes", *words], environment) as process:

        def ask(*question: Any) -> Any:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                raise Ended(f"the process of {function} ended; what it said stands above")
            return json.loads(answer)

        yield ask


def environment_in(folder: str) -> Mapping[str, str]:
    """The environment of a process whose temporary files and caches are in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    return {**kept, "TMPDIR": folder}


def main() -> None:
    module, function, arguments = sys.argv[1:]
    answer = getattr(importlib.import_module(f"benchmarks.{module}"), function)(*json.loads(arguments))
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
