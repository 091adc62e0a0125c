"""What the steps of check_gpu.py share: the GPU, the remaining time, and commands that keep to it."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpu_device import ROOT, Device

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
TESTED = r"\d+ (passed|failed|errors?|deselected)\b.* in "  # pytest's last line
LEAST_SECONDS = 15  # a step isn't started with less time left


@dataclass
class Outcome:
    step: str
    state: str
    why: str = ""


@dataclass
class Done:
    """A command's outcome. code is None if it was stopped at the time limit."""

    code: int | None
    seconds: float
    lines: list[str]

    def telling(self, pattern: str, otherwise: str = "it printed nothing") -> str:
        """The last line that matches the pattern, or the last line."""
        found = [line for line in self.lines if re.search(pattern, line)]
        return (found or self.lines or [otherwise])[-1].strip()


def stopped(done: Done) -> str:
    return f"stopped after {done.seconds:.0f} s, at the end of its time" if done.code is None else ""


@dataclass
class Context:
    arguments: argparse.Namespace
    device: Device
    log: Path
    started: float = field(default_factory=time.monotonic)
    results: dict[Path, bool] = field(default_factory=dict)  # for each file of tests that ran: whether all passed

    def seconds_left(self) -> float | None:
        minutes = self.arguments.minutes
        return None if minutes is None else self.started + 60 * minutes - time.monotonic()

    def no_time(self) -> bool:
        left = self.seconds_left()
        return left is not None and left < LEAST_SECONDS

    def run(self, *command: object, limit: float | None = None, **variables: str) -> Done:
        """Runs a command in the repository's root with its output in the log. It is stopped with its children when the
        time is up, or at the command's own limit in seconds."""
        words = [str(word) for word in command]
        begun = time.monotonic()
        with self.log.open("ab+") as log:
            log.write(f"\n$ {' '.join(words)}\n".encode())
            log.flush()
            start = log.tell()
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(min(filter(None, (limit, self.seconds_left())), default=None))
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # its session: the command and its children
                    process.wait()
            log.seek(start)
            lines = log.read().decode(errors="replace").splitlines()
        return Done(code, time.monotonic() - begun, [line for line in lines if line.strip()])
