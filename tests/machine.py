"""What the tests need to know about the machine and the installation."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fourfold

ROOT = Path(__file__).parent.parent
# An editable install keeps the compiled files apart from the Python files.
INSTALLED = Path(fourfold._C.__file__).parent
LIBFOURFOLD = INSTALLED / "libfourfold.so"

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"  # for torch.distributed, whatever the host's name
# macOS doesn't support fork after it has loaded torch.
FORK = "spawn" if sys.platform == "darwin" else "fork"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files")


def devices() -> list[str]:
    """Devices that run operators: the CPU, and a GPU for which this build has kernels. FOURFOLD_REQUIRE=cuda or mps
    makes a missing GPU an error, for the machine that tests it."""
    backends = fourfold.backends()
    of_device = {"cuda": ("cuda", "hip"), "mps": ("metal",)}
    found = ["cpu"] + [d for d, names in of_device.items() if any(backends[name]["usable"] for name in names)]
    required = os.environ.get("FOURFOLD_REQUIRE", "cpu")
    if required not in found:
        reasons = [backends[name]["reason"] for name in of_device.get(required, ())]
        raise RuntimeError(f"FOURFOLD_REQUIRE={required}, but operators run on {found} here: {reasons}")
    return found


def has_tensor_cores(device: str | None) -> bool:
    """Whether recurrent layers can run persistent kernels there. device: of the test, the CPU by default, where a
    simulated GPU may run them."""
    if device == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)
    simulated = Path(os.environ.get("FOURFOLD_SIMULATED", "")).parent.name
    return bool(simulated) and not simulated.startswith("metal") and os.environ.get("GPUSIM_CAPABILITY") != "7.5"


def tool(name: str, package: str) -> str:
    """The program's path. If it is missing, the test is skipped, or fails in CI."""
    beside_python = Path(sys.executable).parent
    found = shutil.which(name, path=os.pathsep.join([str(beside_python), os.environ["PATH"]]))
    if found is None:
        missing(f"this test needs {name}; install the package {package}")
    return found


def needs(package: str) -> None:
    """Skips the test if a package of the extra ``demo`` is missing; in CI the test fails."""
    if importlib.util.find_spec(package) is None:
        missing(f"this test needs {package}: pip install 'fourfold[demo]'")


def missing(sentence: str) -> None:
    in_ci = os.environ.get("CI") == "true" and sys.platform == "linux"  # .ci/run installs its packages
    (pytest.fail if in_ci else pytest.skip)(sentence)


def output_of(*command: object, **keywords: object) -> str:
    """The command's output; if it fails, the test fails with the output."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **keywords
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}"
    return done.stdout
