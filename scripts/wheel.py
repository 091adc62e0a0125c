"""Builds the wheel for this machine into dist/, and tests it in a fresh environment, away from the sources.

    python scripts/wheel.py build
    python scripts/wheel.py test [--torch-index URL] [--other-torch-python PYTHON] [-- pytest's arguments]

The Python that runs this needs what PINNED lists; `make wheel` installs it. If there is an nvcc, the wheel has kernels
for the usual GPUs, whatever this machine has; TORCH_CUDA_ARCH_LIST selects others. It has all CPU levels;
FOURFOLD_CPU_LEVELS=AUTO restricts it to this machine's. It has gradients in C++ for every minor version of
torch, whose headers the build fetches; FOURFOLD_TORCH_HEADERS=OFF restricts it to the installed torch. It has bitcode,
which needs Clang, from ziglang or elsewhere; FOURFOLD_BITCODE=OFF leaves it out. FOURFOLD_LIBRARY names the folder of a
library that scripts/build_library.py built: then only the modules are compiled.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from backend_tools import MACOS
from repair_wheel import repair

ROOT = Path(__file__).resolve().parent.parent
PINNED = (ROOT / "requirements-build.txt", ROOT / "requirements-dev.txt")


def run(*command: object, **keywords: object) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT, **keywords)


def build() -> Path:
    raw = ROOT / "build" / "wheel"
    for old in raw.glob("fourfold-*.whl"):
        old.unlink()
    os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", MACOS)  # for the build and the repair
    settings = {
        "FOURFOLD_CPU_LEVELS": os.environ.get("FOURFOLD_CPU_LEVELS") or "ON",
        "FOURFOLD_TORCH_HEADERS": os.environ.get("FOURFOLD_TORCH_HEADERS") or "ON",
        "FOURFOLD_BITCODE": os.environ.get("FOURFOLD_BITCODE") or "ON",
        "TORCH_CUDA_ARCH_LIST": os.environ.get("TORCH_CUDA_ARCH_LIST") or "Common",
    }
    pip = (sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps")
    run(*pip, "--wheel-dir", raw, ".", env=os.environ | settings)
    (wheel,) = raw.glob("fourfold-*.whl")
    return repair(wheel, ROOT / "dist")


def fresh_environment(path: Path, home: str) -> Path:
    """Creates a virtual environment of the Python `home`; returns its interpreter."""
    run(home, "-m", "venv", "--clear", path)
    return path / "bin" / "python"


def test(python: Path, wheel: Path, constraints: Sequence[Path], index: list[str], pytest: list[str]) -> None:
    pins = [word for file in constraints for word in ("--constraint", file)]
    # Collecting the whole suite must work with the extra "test" alone.
    run(python, "-m", "pip", "install", "--quiet", *index, *pins, f"{wheel}[test]")
    run(python, "-m", "pytest", "--collect-only", "-qq")
    run(python, "-m", "pip", "install", "--quiet", *index, *pins, f"{wheel}[test,demo]")
    where = "import fourfold, sys, torch; print(fourfold.__file__, 'with torch', torch.__version__); "
    run(python, "-c", where + "sys.exit('site-packages' not in fourfold.__file__)")
    run(python, "-m", "pytest", *pytest, env=os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"})


def borrow_torch(python: Path, other: str) -> None:
    """Makes the packages of the Python `other`, including its torch, importable in `python`."""
    show = [other, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    show[0] = str(python)
    own = subprocess.run(show, check=True, capture_output=True, text=True).stdout.strip()
    Path(own, "other-torch.pth").write_text(packages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("build", "test"))
    parser.add_argument("--torch-index")
    parser.add_argument("--other-torch-python")
    parser.add_argument("pytest", nargs="*")
    arguments = parser.parse_args()
    if arguments.step == "build":
        print(f"The wheel is {build().relative_to(ROOT)}")
        return
    index = ["--extra-index-url", arguments.torch_index] if arguments.torch_index else []
    (wheel,) = (ROOT / "dist").glob("fourfold-*.whl")
    test(fresh_environment(ROOT / ".venv-wheel", sys.executable), wheel, PINNED, index, arguments.pytest)
    if arguments.other_torch_python:
        python = fresh_environment(ROOT / ".venv-wheel", arguments.other_torch_python)
        borrow_torch(python, arguments.other_torch_python)
        other_pins = ROOT / "build" / "other-torch-constraints.txt"
        pins = [line for file in PINNED for line in file.read_text().splitlines() if not line.startswith("torch==")]
        other_pins.write_text("\n".join(pins) + "\n")
        test(python, wheel, [other_pins], [], arguments.pytest)


if __name__ == "__main__":
    main()
