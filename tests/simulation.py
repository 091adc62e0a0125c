"""Commands of Python on a simulated library, each in a process of its own."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from pathlib import Path

from forked import Forks
from machine import output_of, tool

HERE = Path(__file__).parent
ENVIRONMENT = {
    "checked": {"UBSAN_OPTIONS": "print_stacktrace=1"},
    "thread": {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1 exitcode=66"},
}
RUNTIME = {"thread": "libtsan.so"}
_of_thread = threading.local()


def forks() -> Forks:
    """Of this thread: they run one command at a time."""
    if not hasattr(_of_thread, "forks"):
        _of_thread.forks = Forks("torch", "torch._dynamo", "torch._functorch.aot_autograd", "pytest", limit=0)
        atexit.register(_of_thread.forks.close)
    return _of_thread.forks


def preloaded(library: str) -> str:
    """The value of LD_PRELOAD. Python itself is built without the sanitizer, so its runtime is loaded first."""
    found = (output_of(tool("g++", "g++"), f"-print-file-name={name}").strip() for name in (library, "libstdc++.so"))
    return " ".join(found)


def run_python(*command: object, sanitizer: str = "checked", **environment: str) -> subprocess.CompletedProcess[str]:
    """In the folder of the tests. Its stdout is all that the command prints, errors too."""
    own = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)} | ENVIRONMENT[sanitizer] | environment
    if sanitizer not in RUNTIME:
        done = forks().run(*command, cwd=HERE, env=own)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout + done.stderr)
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env=own | {"LD_PRELOAD": preloaded(RUNTIME[sanitizer])},
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
