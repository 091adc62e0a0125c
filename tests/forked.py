"""Scripts in forks of one process that has already imported what they need: each saves the seconds that importing torch
takes, and otherwise runs as in a process of its own.

`python forked.py IMPORT...` runs the commands that its input lists, one after another; Forks starts it and asks it.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# macOS doesn't support fork after it has loaded torch.
CAN_FORK = sys.platform == "linux"


def run_as_python(command: list[str]) -> None:
    """Runs ``SCRIPT``, ``-m MODULE`` or ``-c CODE``, each with arguments, as python does, as the last thing that this
    process does."""
    option, *words = command
    if option == "-m":
        sys.argv, sys.path[0] = words, str(Path.cwd())
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = [option, *words[1:]] if option == "-c" else command
    sys.path[0] = "" if option == "-c" else str(Path(option).resolve().parent)
    # Unlike those of runpy, the script's globals live until the process ends.
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    text, file = (words[0], "<string>") if option == "-c" else (Path(option).read_text(), option)
    exec(compile(text, file, "exec"), main.__dict__)


def redirect(stream: int, file: str) -> None:
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, stream)
    os.close(target)


class Forks:
    """Runs commands in forks of a process with these modules; on macOS, in processes of their own. limit: after so many
    seconds a command is ended; 0 for never."""

    def __init__(self, *imports: str, limit: int = 600) -> None:
        self.imports, self.limit = imports, limit
        self.process: subprocess.Popen[str] | None = None

    def run(
        self, *command: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """env: the environment. What modules and sanitizers read of it when they are loaded is that of the first call,
        but new folders in PYTHONPATH come first."""
        words, env = [str(word) for word in command], dict(os.environ if env is None else env)
        if not CAN_FORK:
            return subprocess.run(
                [sys.executable, *words], capture_output=True, text=True, cwd=cwd, env=env, timeout=self.limit or None
            )
        if self.process is None:
            line = [sys.executable, __file__, *self.imports]
            # Libraries that other tests import set PYTHONWARNINGS, and what the forks say would be silenced.
            first = {name: value for name, value in env.items() if name != "PYTHONWARNINGS"}
            self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=first)
        with tempfile.TemporaryDirectory() as folder:
            files = [f"{folder}/out", f"{folder}/error"]
            wanted = {"command": words, "cwd": str(cwd or Path.cwd()), "files": files, "env": env, "limit": self.limit}
            json.dump(wanted, self.process.stdin)
            print(file=self.process.stdin, flush=True)
            code = int(self.process.stdout.readline())
            out, error = (Path(file).read_text() for file in files)
        return subprocess.CompletedProcess(words, code, out, error)

    def output_of(self, *command: object, **keywords: Any) -> str:
        done = self.run(*command, **keywords)
        assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()


def forked(wanted: Mapping[str, Any]) -> bool:
    """Whether this is the child, which has what the command needs; else prints its exit code once it has ended."""
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        return False
    signal.alarm(wanted["limit"])
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in folders if folder and folder not in sys.path]
    for stream, file in enumerate(wanted["files"], 1):
        redirect(stream, file)
    return True


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in iter(sys.stdin.readline, ""):
        if forked(asked := json.loads(line)):
            sys.stdin = io.StringIO()
            run_as_python(asked["command"])
            break
