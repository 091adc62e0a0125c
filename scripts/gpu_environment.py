"""Makes .venv-gpu, in which `make check-gpu` builds and tests fourfold with the torch of this machine.

    python scripts/gpu_environment.py

A machine with a GPU has a torch that suits its driver, and perhaps no network. So the torch of the Python that runs
this is used and none is installed, and what is there of the other tools is used as well. What is missing pip looks for:
in PIP_FIND_LINKS, a folder of wheels, where there is no network.
"""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-gpu"
PYTHON = FOLDER / "bin" / "python"
# What pyproject.toml asks for besides torch. Versions are not pinned here: what is installed already has to do.
TOOLS = ("scikit-build-core>=0.11", "pybind11>=3.0", "cmake>=3.24", "ninja", "pytest>=8", "numpy", "expecttest")


def expect_gpu() -> None:
    """Leaves with a sentence where this Python's torch has no GPU."""
    try:
        import torch
    except ImportError:
        sys.exit(
            f"{sys.executable} has no torch; install one that is built for this machine's GPU, or name a Python that "
            "has one: make check-gpu PYTHON=..."
        )
    if not torch.cuda.is_available():
        sys.exit(
            f"torch {torch.__version__} of {sys.executable} sees no GPU; name a Python whose torch does: "
            "make check-gpu PYTHON=..."
        )


def lend_packages() -> None:
    """A virtual environment sees its base Python's packages; of those of another environment it has to be told."""
    show = "import sys; print(*(path for path in sys.path if path.endswith('-packages')), sep='\\n')"
    own = subprocess.run([str(PYTHON), "-c", show], check=True, capture_output=True, text=True).stdout.splitlines()
    lent = [path for path in sys.path if path.endswith("-packages") and path not in own]
    Path(own[0], "lent.pth").write_text("".join(f"{path}\n" for path in lent))


def main() -> None:
    expect_gpu()
    venv.create(FOLDER, system_site_packages=True, clear=True, with_pip=True)
    lend_packages()
    command = [str(PYTHON), "-m", "pip", "install", *TOOLS]
    print("+", *command, flush=True)
    sys.exit(subprocess.run(command, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
