"""Tests the installed wheel under three versions of torch: the pinned one, the oldest, and the newest for this Python.

    python scripts/wheel_tests.py

cibuildwheel.toml calls this in an environment that has the wheel and the pinned torch; it installs the others there.
The whole suite runs under the pinned torch, in a process per core; of one Python the tests of the repository too, which
test no wheel. Under the other versions of torch the tests that depend on it run. TORCH_INDEX names another index for
torch.
"""

import importlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from torch_headers import minor_versions

TESTS = Path(__file__).resolve().parent.parent / "tests"
PARALLEL = ("-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")  # as in the Makefile
OF_REPOSITORY = "cp312"  # the Python whose wheel's run has the repository's tests
# Imports, symbols, values, gradients, schemas, compiled functions; scans, frozen layers and saved models.
OF_TORCH = ("import", "library", "values", "gradients", "schemas", "modules", "compile", "program")
OF_TORCH += ("scan", "frozen_models", "saving", "saved_graphs", "streams", "few_positions", "packed_weights")


def minor_of(version: str) -> str:
    return ".".join(version.split(".")[:2])


def other_versions(pinned: str, available: list[str]) -> list[str]:
    """Minor versions: the oldest and the newest of `available`, without the pinned one's."""
    ends = dict.fromkeys((available[0], available[-1]))
    return [version for version in ends if version != minor_of(pinned)]


def run(*words: object) -> None:
    print("+", *words, flush=True)
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that wait actively would slow other processes
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True, env=environment)


def left_out() -> list[str]:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    return [] if tag == OF_REPOSITORY else [f"--ignore={TESTS / 'repository'}"]


def main() -> None:
    pinned = importlib.metadata.version("torch")
    print(f"torch {pinned}, the pinned one: all tests", flush=True)
    run("pytest", *PARALLEL, TESTS, *left_out())
    index = os.environ.get("TORCH_INDEX")
    for version in other_versions(pinned, minor_versions()):
        run("pip", "install", *(("--extra-index-url", index) if index else ()), f"torch=={version}.*")
        importlib.invalidate_caches()
        installed = importlib.metadata.version("torch")
        if minor_of(installed) != version:
            sys.exit(f"wheel_tests.py: pip installed torch {installed} for {version}")
        print(f"torch {installed}: what depends on it", flush=True)
        run("pytest", *PARALLEL, *(TESTS / f"test_{name}.py" for name in OF_TORCH))


if __name__ == "__main__":
    main()
