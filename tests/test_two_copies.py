"""A second copy of libfourfold, or of the Python package, in one process: an error that names both, and no crash."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import fourfold
from forked import Forks
from machine import INSTALLED, LIBFOURFOLD, linux_only

pytestmark = [linux_only, pytest.mark.slow]

PACKAGE = Path(fourfold.__file__).parent


@pytest.fixture
def run(after_torch: Forks) -> Callable[..., subprocess.CompletedProcess]:
    return lambda code, *arguments: after_torch.run("-c", code, *arguments)


def last_line(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 1, (done.returncode, done.stderr)
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copy(LIBFOURFOLD, tmp_path / "libfourfold.so"))


def with_other_soname(copy: Path) -> Path:
    """Like a copy on macOS, whose loader doesn't identify libraries by their name only."""
    data = copy.read_bytes()
    assert data.count(b"\0libfourfold.so\0") == 1
    copy.write_bytes(data.replace(b"\0libfourfold.so\0", b"\0libfourfold.xx\0"))
    return copy


SENTENCE = (
    "fourfold: expected one libfourfold in a process, but {} was loaded after {}, whose operators stay in use; link "
    "the program with the libfourfold of the Python package that it imports (python -m fourfold --cmake-dir), and keep "
    "one of the two files"
)
AFTER = """
import ctypes, sys, torch, fourfold
library = ctypes.CDLL(sys.argv[1])
x = torch.randn(5, requires_grad=True)
fourfold.softshrink(x).sum().backward()
torch.testing.assert_close(fourfold.softshrink(x), torch.nn.functional.softshrink(x))
assert x.grad is not None and library.fourfold_has_registered() == 0
library.fourfold_other_copy_error.restype = ctypes.c_char_p
print(library.fourfold_other_copy_error().decode())
"""


def test_a_copy_that_is_loaded_later_registers_nothing(copy: Path, run: Callable) -> None:
    done = run(AFTER, copy)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == SENTENCE.format(copy, LIBFOURFOLD) + "\n"


def test_import_takes_a_copy_that_the_process_has_loaded(copy: Path, run: Callable) -> None:
    """The loader identifies the library by its name: a program that links a library of the same version may import the
    package."""
    code = """
import ctypes, sys, torch
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
import fourfold
assert torch.equal(fourfold.softshrink(torch.ones(3)), torch.full((3,), 0.5))
print({line.split()[-1] for line in open("/proc/self/maps") if "libfourfold" in line})
"""
    done = run(code, copy)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ {str(copy)} }\n", ""), done


IMPORT = "import ctypes, sys, torch; ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL); import fourfold"


def test_import_after_another_copy_is_refused(copy: Path, run: Callable) -> None:
    said = last_line(run(IMPORT.replace("GLOBAL", "LOCAL"), with_other_soname(copy)))
    assert said == "ImportError: " + SENTENCE.format(LIBFOURFOLD, copy)


def test_import_with_a_copy_of_another_version_is_refused(copy: Path, run: Callable) -> None:
    data, facts = copy.read_bytes(), f"version={fourfold.__version__}\ntorch_version=".encode()
    assert data.count(facts) == 1 and b"1" in facts
    copy.write_bytes(data.replace(facts, facts.replace(b"1", b"7")))
    said = last_line(run(IMPORT, copy))
    other = fourfold.__version__.replace("1", "7")
    assert said == (
        f"ImportError: fourfold: expected libfourfold {fourfold.__version__} for {fourfold._C.__file__}, but this "
        f"process has loaded {copy} of version {other}; link the program with the libfourfold of the Python package "
        "(python -m fourfold --cmake-dir)"
    )


FORGET = """
import sys
import fourfold
first = fourfold
for name in [name for name in sys.modules if name.split(".")[0] == "fourfold"]:
    del sys.modules[name]
if len(sys.argv) > 2:  # what an editable install finds first
    sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, sys.argv[1])
try:
    import fourfold
except ImportError as error:
    print(error)
import torch
print(first.softshrink(torch.ones(1)).item())
"""
TWICE = (
    "fourfold: expected one import of the package in a process, but {} is imported after {}, whose operators torch "
    "keeps; restart Python, and keep one of them on sys.path\n0.5\n"
)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_the_package_is_imported_once(tmp_path: Path, elsewhere: bool, run: Callable) -> None:
    second = PACKAGE
    if elsewhere:
        second = tmp_path / "fourfold"
        for part in (PACKAGE, INSTALLED):
            shutil.copytree(part, second, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    done = run(FORGET, second.parent, *([1] if elsewhere else []))
    assert done.stdout == TWICE.format(second, PACKAGE), done.stderr


def test_a_reload_is_no_second_import(run: Callable) -> None:
    code = "import importlib, fourfold, torch; importlib.reload(fourfold); fourfold.softshrink(torch.ones(1))"
    done = run(code)
    assert done.returncode == 0, done.stderr
