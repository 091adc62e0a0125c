"""Processes of their own that are asked for one answer at a time."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent  # where ``python -m benchmarks.NAME`` finds its module


@contextlib.contextmanager
def child(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    # In a session of its own Ctrl-C does not reach it: this process is told, and ends it.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, start_new_session=True, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        process.kill()  # which ends a stopped process too
        process.communicate()


def ask(process: subprocess.Popen[str], question: str) -> str:
    """The line that it answers a line with; empty where it has ended."""
    try:
        process.stdin.write(f"{question}\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline()
