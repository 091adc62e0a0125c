"""What a fresh process is started in: as usual, or with nothing that it could use beside Python and its packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Every mount is made read-only in a namespace of the process's own; the kernel's, which refuse, hold no files.
READ_ONLY = """\
while read -r _ _ _ _ point _; do mount -o remount,ro,bind "$point" 2>/dev/null; done < /proc/self/mountinfo
mount -t tmpfs -o size=16k tmpfs "$TMPDIR" || exit
"""
NO_GROWTH = "ulimit -f 1\n"
LEAVE = 'unset HOME; PATH=; exec "$@"'
NAMESPACES = (("--mount",), ("--user", "--map-root-user", "--mount"))  # root's, and anybody's where the kernel lets
PLACES = ("/", "/tmp", "/var/tmp", "/dev/shm", sys.prefix, ".")
WRITABLE = f"import json, os; print(json.dumps([place for place in {PLACES!r} if os.access(place, os.W_OK)]))"
TORCH_NEEDS = "without a place for temporary files torch's own import of torch.compile fails"


@dataclass(frozen=True)
class Surroundings:
    """launcher: how a command in them begins."""

    name: str
    launcher: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


USUAL = Surroundings("as usual, caches empty")


def environment(folder: str) -> Mapping[str, str]:
    """A process's, whose temporary files and caches are in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    return {**kept, "TMPDIR": folder}


def bare() -> Surroundings:
    """No PATH, no HOME, and a file system that is read-only as far as that can be had here."""
    name = "PATH empty, HOME unset"
    shell = shutil.which("sh")
    if shell is None:
        return Surroundings("nothing taken away", notes=("Neither PATH nor HOME is taken away, which takes a shell.",))
    for launcher in read_only_launchers(shell):
        if writable(launcher) == []:
            note = f"Written can be to 16 kB for temporary files, and nowhere else: {TORCH_NEEDS}."
            return Surroundings(f"{name}, file system read-only", launcher, (note,))
    note = f"No read-only file system can be made here, which takes unshare and mount. No more: {TORCH_NEEDS}."
    return Surroundings(f"{name}, no file above 512 bytes", (shell, "-c", NO_GROWTH + LEAVE, "sh"), (note,))


def read_only_launchers(shell: str) -> list[tuple[str, ...]]:
    unshare = shutil.which("unshare")
    if unshare is None or not Path("/proc/self/mountinfo").exists():
        return []
    return [(unshare, *options, shell, "-c", READ_ONLY + LEAVE, "sh") for options in NAMESPACES]


def writable(launcher: tuple[str, ...]) -> list[str] | None:
    """The places that a process so started could write to; None where it can't be started."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*launcher, sys.executable, "-c", WRITABLE]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(folder))
    return None if done.returncode else json.loads(done.stdout)
