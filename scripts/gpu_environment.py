"""Creates .venv-gpu, in which `make check-gpu` and `make check-mac` build and test fourfold with this machine's torch.

    python scripts/gpu_environment.py [mps]

A machine with a GPU has a torch that suits its driver, and perhaps no network. So the environment uses torch and the
other packages of the Python that runs this, and installs only fourfold itself; missing packages are listed.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-gpu"
PYTHON = FOLDER / "bin" / "python"
# What the build and the tests import, and the package that provides it. Versions are not checked.
PACKAGES = {"scikit_build_core": "scikit-build-core", "pybind11": "pybind11", "pytest": "pytest", "numpy": "numpy"}
PROGRAMS = ("cmake", "ctest", "ninja")
TARGETS = {"cuda": "check-gpu", "mps": "check-mac"}  # make's targets, by torch's device type


def expect_gpu(where: str) -> None:
    """Exits with an error if this Python's torch has no GPU."""
    another = f"make {TARGETS[where]} PYTHON=..."
    try:
        import torch
    except ImportError:
        sys.exit(
            f"{sys.executable} has no torch; install one that is built for this machine's GPU, or name a Python that "
            f"has one: {another}"
        )
    if not (torch.backends.mps.is_available() if where == "mps" else torch.cuda.is_available()):
        torch_is = f"torch {torch.__version__} of {sys.executable}"
        sys.exit(f"{torch_is} sees no GPU; name a Python whose torch does: {another}")


def program(name: str) -> str | None:
    """Beside this Python, or else on PATH."""
    return shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)


def missing() -> list[str]:
    """The names of missing packages, for pip."""
    packages = [package for name, package in PACKAGES.items() if importlib.util.find_spec(name) is None]
    return packages + [name for name in ("cmake", "ninja") if program(name) is None]


def has_pip() -> bool:
    """Checked in another process: setuptools changes the meaning of `import distutils` when pip is looked up."""
    return subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0


def lend_packages() -> None:
    """A virtual environment sees its base Python's packages; a .pth file adds those of another environment."""
    show = "import sys; print(*(path for path in sys.path if path.endswith('-packages')), sep='\\n')"
    own = subprocess.run([str(PYTHON), "-c", show], check=True, capture_output=True, text=True).stdout.splitlines()
    lent = [path for path in sys.path if path.endswith("-packages") and path not in own]
    Path(own[0], "lent.pth").write_text("".join(f"{path}\n" for path in lent))


def lend_programs() -> None:
    """The build and some tests look for these programs beside their Python."""
    for name in PROGRAMS:
        if found := program(name):
            (PYTHON.parent / name).symlink_to(Path(found).resolve())


def main(where: str = "cuda") -> None:
    expect_gpu(where)
    if lacking := missing():
        sys.exit(
            f"{sys.executable} has all that make {TARGETS[where]} needs but {', '.join(lacking)}; install it there: "
            f"{sys.executable} -m pip install {' '.join(lacking)}"
        )
    # If this Python has pip, the environment gets it with the lent packages: some systems remove ensurepip.
    venv.create(FOLDER, system_site_packages=True, clear=True, symlinks=True, with_pip=not has_pip())
    lend_packages()
    lend_programs()


if __name__ == "__main__":
    main(*sys.argv[1:])
