"""A process as in a container: a user id without an entry in passwd, a read-only root except for a folder for temporary
files, no HOME, and no compiler."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from machine import linux_only, missing, output_of, tool

pytestmark = linux_only

USER = 4242
# $1: the folder for temporary files, which stays writable. The rest is the command.
READ_ONLY = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=1777 tmpfs "$1"
mount -o remount,bind,ro /
shift
exec "$@"
"""
AS_CONTAINERS_ARE = """
import os, pwd, shutil
import fourfold
try:
    raise AssertionError(f"the user id has an entry: {pwd.getpwuid(os.getuid())}")
except KeyError:
    pass
assert "HOME" not in os.environ and shutil.which("c++") is None
assert not any(os.access(place, os.W_OK) for place in ("/", fourfold.__path__[0]))
"""
CALLS = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(6, 2, 5, requires_grad=True)


def near(f, fused):
    pairs = [(call(x), torch.autograd.grad(call(x).square().sum(), x)) for call in (fused, f)]
    torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-5)


f = lambda x: torch.softmax(x.sin(), -1)
near(f, torch.compile(f, backend="fourfold"))
lstm, head = nn.LSTM(5, 8, num_layers=2), nn.Linear(8, 3)
model = lambda x: head(lstm(x)[0]).relu()
near(model, torch.compile(model, backend="fourfold", fullgraph=True))
fourfold.nn.GRU(5, 8)(x)[0].sum().backward()
print(fourfold.explain(f, x))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """For temporary files, accessible to another user: pytest's own folders are not."""
    made = Path(tempfile.mkdtemp(prefix="fourfold-container-"))
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


def in_a_container(folder: Path, *arguments: str) -> str:
    """The output of a Python there, including errors."""
    if os.geteuid() != 0:
        missing("this test needs root, to start a process of another user")
    if any(entry.pw_uid == USER for entry in pwd.getpwall()):
        missing(f"this test needs a user id that nobody has, but {USER} is taken")
    ids = (f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
    surroundings = ("PATH=/nonexistent", f"TMPDIR={folder}", "OMP_NUM_THREADS=2")
    python = [tool("env", "coreutils"), "-i", *surroundings, tool("setpriv", "util-linux"), *ids, sys.executable]
    if not succeeds(*python, "-c", ""):
        missing("this test needs a Python that other users may read")
    unshare = (tool("unshare", "util-linux"), "--mount", "bash", "-c")
    if succeeds(*unshare, "true"):
        python = [*unshare, READ_ONLY, "bash", str(folder), *python]
    return output_of(*python, *arguments, cwd="/")


def succeeds(*command: str) -> bool:
    return subprocess.run(command, cwd="/", check=False, capture_output=True).returncode == 0


def test_compiled_functions(folder: Path) -> None:
    told = in_a_container(folder, "-c", AS_CONTAINERS_ARE + CALLS)
    assert "compiled by fourfold" in told


def test_info(folder: Path) -> None:
    assert "fourfold" in in_a_container(folder, "-m", "fourfold", "info")
