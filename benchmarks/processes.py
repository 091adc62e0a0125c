"""Processes of their own that answer questions: ``python -m benchmarks.processes MODULE FUNCTION ARGUMENTS``.

The function makes what answers; then a line of JSON on the input asks, and one on the output answers.
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
    """A process ended where an answer was expected; ``str()`` says of which."""


@contextlib.contextmanager
def child(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    # In a session of its own Ctrl-C does not reach it: this process ends it.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, start_new_session=True, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        process.kill()  # which ends a stopped process too
        process.communicate()


@contextlib.contextmanager
def worker(
    module: str,
    function: str,
    *arguments: Any,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Callable[..., Any]]:
    """What asks a process; asking raises Ended where it has ended."""
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
    """A process's, whose temporary files and caches are in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    return {**kept, "TMPDIR": folder}


def main() -> None:
    module, function, arguments = sys.argv[1:]
    answer = getattr(importlib.import_module(f"benchmarks.{module}"), function)(*json.loads(arguments))
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
