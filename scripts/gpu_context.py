"""What the steps of check_gpu.py have in hand: the GPU, the time that is left, and commands that keep to it."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
LEAST_SECONDS = 15  # with less left a step isn't begun


@dataclass
class Outcome:
    step: str
    state: str
    why: str = ""


@dataclass(frozen=True)
class Device:
    name: str
    capability: str
    driver: str | None
    torch: str
    cuda: str
    toolkit: str | None

    @property
    def slug(self) -> str:
        """NVIDIA H100 80GB HBM3 -> h100-80gb-hbm3, for file names."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower().removeprefix("nvidia ")).strip("-")


@dataclass
class Done:
    """What became of a command. code is None when it was stopped at the end of the time."""

    code: int | None
    seconds: float
    lines: list[str]

    def telling(self, pattern: str, otherwise: str = "it printed nothing") -> str:
        """The last line that the pattern finds, or the last line."""
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
    results: dict[Path, bool] = field(default_factory=dict)  # of each file of tests that ran, and whether all passed

    def seconds_left(self) -> float | None:
        minutes = self.arguments.minutes
        return None if minutes is None else self.started + 60 * minutes - time.monotonic()

    def no_time(self) -> bool:
        left = self.seconds_left()
        return left is not None and left < LEAST_SECONDS

    def run(self, *command: object, limit: float | None = None, **variables: str) -> Done:
        """A command in the repository's root with its output in the log; stopped, children and all, when time is up, or
        the command's own limit of seconds."""
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
                    os.killpg(process.pid, signal.SIGKILL)  # its own session: this command and what it started
                    process.wait()
            log.seek(start)
            lines = log.read().decode(errors="replace").splitlines()
        return Done(code, time.monotonic() - begun, [line for line in lines if line.strip()])


def stop(sentence: str) -> NoReturn:
    sys.exit(f"check_gpu: {sentence}")


def find_device() -> Device:
    """Ends the program with a sentence where torch has no GPU to use."""
    try:
        import torch
    except ImportError:
        stop(f"expected a Python with torch, but {sys.executable} has none; install a CUDA build of it.")
    if torch.version.cuda is None:
        stop(f"expected a CUDA build of torch, but torch {torch.__version__} is built without CUDA.")
    if not torch.cuda.is_available():
        stop(f"expected a GPU, but torch {torch.__version__} sees none; nvidia-smi shows what the driver sees.")
    properties = torch.cuda.get_device_properties(0)
    return Device(
        properties.name,
        f"{properties.major}.{properties.minor}",
        output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        torch.__version__,
        torch.version.cuda,
        toolkit(),
    )


def toolkit() -> str | None:
    nvcc = find_tool("nvcc")
    release = re.search(r"release (\S+?),", output_of(nvcc, "--version", all_lines=True) or "") if nvcc else None
    return release and release[1]


def find_tool(name: str) -> str | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home)]
    return shutil.which(name, path=os.pathsep.join(folders))


def output_of(*command: str, all_lines: bool = False) -> str | None:
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return said if all_lines else next(iter(said.splitlines()), None)
