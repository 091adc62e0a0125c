"""Builds libfourfold, which doesn't depend on Python, into a folder from which the wheels for all Pythons take it.

    python scripts/build_library.py PREFIX [-- CMake's options]
    FOURFOLD_LIBRARY=PREFIX pip wheel --no-build-isolation .

The options are those of pip's build, from the same environment variables ([tool.scikit-build.cmake.define] in
pyproject.toml). Needs the packages in requirements-build.txt. cibuildwheel.toml calls this once per platform.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "library"


def options() -> list[str]:
    """pyproject.toml's definitions without those for the Python modules only."""
    listed = re.findall(
        r'^(FOURFOLD_\w+) = \{ env = "(\w+)", default = "(.*)" \}', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    of_modules = ("FOURFOLD_LIBRARY", "FOURFOLD_TORCH_HEADERS")
    values = {name: os.environ.get(variable) or default for name, variable, default in listed if name not in of_modules}
    if not values:
        sys.exit("build_library.py: expected pyproject.toml to define CMake's options from the environment")
    return [f"-D{name}={value}" for name, value in values.items()]


def tool(name: str) -> str:
    """CMake and Ninja, beside Python or on PATH."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None:
        sys.exit(f"build_library.py needs {name}: python -m pip install -r requirements-build.txt")
    return found


def run(*command: object) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True)


def build(prefix: Path, chosen: list[str], folder: Path = BUILD) -> None:
    cmake = tool("cmake")
    configure = (cmake, "--fresh", "-S", ROOT, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
    configure += (
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_INSTALL_PREFIX={prefix}",
    )
    run(*configure, "-DFOURFOLD_PYTHON=OFF", "-DFOURFOLD_INSTALL=ON", *options(), *chosen)
    run(cmake, "--build", folder)
    # The one of an earlier build is invalid until all files of this build are installed.
    (prefix / "share" / "fourfold" / "build.cmake").unlink(missing_ok=True)
    run(cmake, "--install", folder, "--component", "fourfold", "--strip")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", type=Path)
    parser.add_argument("options", nargs="*", metavar="OPTION", help="for CMake, such as -DFOURFOLD_CUDA=OFF")
    arguments = parser.parse_args()
    prefix = arguments.prefix.resolve()
    build(prefix, arguments.options)
    print(f"The library is in {prefix}")


if __name__ == "__main__":
    main()
