"""Runs scripts one after another in the processes that torchrun starts: ``by_two_processes.py FOLDER IMPORT...``.

FOLDER/jobs.json has each job's name and command. Each runs in forks of processes that have imported the modules, which
takes seconds, and writes its output to FOLDER/NAME.RANK.txt and its exit code to FOLDER/NAME.RANK.code. The last one,
"alone", runs without a fork: its output and exit code reach torchrun.
"""

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from torch.distributed import TCPStore

from forked import CAN_FORK, redirect, run_as_python

LIMIT = 100  # seconds; a process whose partner has failed may wait forever


def run(name: str, command: list[str], folder: Path) -> bool:
    """Whether this is the child, whose command is still to run."""
    file = folder / f"{name}.{os.environ['RANK']}"
    if not CAN_FORK:
        with Path(f"{file}.txt").open("w") as out:
            words = [sys.executable, *command]
            code = subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, timeout=LIMIT).returncode
    elif child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    else:
        signal.alarm(LIMIT)
        redirect(1, f"{file}.txt")
        os.dup2(1, 2)
        return True
    Path(f"{file}.code").write_text(str(code))
    return False


def main(folder: Path) -> None:
    where, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    torchruns = TCPStore(where, int(port), is_master=False)
    for name, command in json.loads((folder / "jobs.json").read_text()).items():
        # Each job finds a new store, as processes do that torchrun has restarted.
        if os.environ["RANK"] == "0":
            store = TCPStore(where, 0, is_master=True, wait_for_workers=False)
            # It is never destroyed: a fork would end with an error, because the store's thread isn't in it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))
            torchruns.set(name, str(store.port))
        os.environ["MASTER_PORT"] = torchruns.get(name).decode()
        if name == "alone" or run(name, command, folder):
            run_as_python(command)
            break


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    main(Path(sys.argv[1]))
