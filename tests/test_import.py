"""``import fourfold`` is light; if something is wrong, the error has the versions and the remedy."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

import fourfold
from fourfold import _health
from machine import INSTALLED, LIBFOURFOLD, ROOT, linux_only

# The environment before any test ran: warnings are tested here, and other tests' libraries may silence them.
SURROUNDINGS = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}


def run_python(code, *options, **environment):
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, env=SURROUNDINGS | environment
    )


@pytest.fixture
def run_forked(after_torch):
    return lambda code, **environment: after_torch.run("-c", code, env=SURROUNDINGS | environment)


def import_error(*options, run=run_python, **environment):
    """The message of the ImportError that ``import fourfold`` raises in a new process."""
    done = run("import fourfold", *options, **environment)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1, done
    assert last.startswith("ImportError: "), done.stderr
    return last.removeprefix("ImportError: ")


def test_import_loads_nothing_heavy_and_needs_no_accelerator(run_forked):
    lowest = fourfold._C.build_info()["cpu_levels"][0]
    code = """
import sys, torch
before = set(sys.modules)
import fourfold
print(fourfold.cpu_capability(), *sorted(set(sys.modules) - before))
"""
    done = run_forked(code, CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="", FOURFOLD_CPU_CAPABILITY=lowest)
    assert done.returncode == 0, done.stderr
    level, *loaded = done.stdout.split()
    assert level == lowest
    assert "fourfold._C" in loaded
    heavy = r"sympy|torch\._(dynamo|inductor|export)|matplotlib|rich|fourfold\.(profiler|cli|demo|compiler|explaining)"
    assert [name for name in loaded if re.match(heavy, name)] == []


def test_what_is_loaded_later_is_there_when_it_is_asked_for(run_forked):
    code = "import fourfold; print(fourfold.profiler.profile, 'profiler' in dir(fourfold)); fourfold.nonesuch"
    done = run_forked(code)
    assert done.stdout == "<class 'fourfold.profiler.profile'> True\n"
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'fourfold' has no attribute 'nonesuch'"
    assert run_forked("from fourfold import *; profiler.profile, Event, softshrink").returncode == 0


def test_import_says_nothing_that_torch_does_not_say_without_numpy():
    """torch looks for NumPy once, and warns if it is missing, when it reads the name of a device. Some versions do so
    while they are imported: that read is removed here, so that a later one would show."""
    code = """
import importlib.machinery, sys
sys.modules["numpy"] = None  # there is none, for import and for importlib.util.find_spec
class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "torch._subclasses.functional_tensor":
            spec = super().find_spec(name, path, target)
            spec.loader = Changed(name, spec.origin)
            return spec
class Changed(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        return self.source_to_code(self.get_data(self.path).replace(b'torch.device("cpu")', b"None"), self.path)
sys.meta_path.insert(0, Without)
import torch
print("torch", file=sys.stderr, flush=True)
import fourfold, fourfold.cli, fourfold.compiler
print("fourfold", file=sys.stderr, flush=True)
torch.device("cpu")
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    first, second, *then = done.stderr.splitlines()
    assert (first, second) == ("torch", "fourfold"), done.stderr
    assert "Failed to initialize NumPy" in then[0]


def test_import_without_numpy_is_silent():
    """If this package imports torch: torch's own import warns."""
    code = """
import sys
sys.modules["numpy"] = None
import fourfold
from fourfold.cli import main
sys.exit(main(["info"]))
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "") and "cpu" in done.stdout.lower()


ANOTHER_TORCH = """
import sys, torch
torch.__version__ = torch.torch_version.TorchVersion("2.99.0")
import fourfold
import fourfold.nn, fourfold.compiler
x = torch.ones(3, requires_grad=True)
fourfold.axpby(x, x).sum().backward()
print(x.grad.tolist())
"""


def test_a_torch_without_gradients_is_one_warning_at_the_import(run_forked):
    mine = ".".join(torch.__version__.split(".")[:2])
    done = run_forked(ANOTHER_TORCH)
    assert (done.returncode, done.stdout) == (0, "[3.0, 3.0, 3.0]\n"), done.stderr
    assert re.fullmatch(
        r"<string>:4: UserWarning: fourfold runs gradients, calls and saved models in Python \(this build of fourfold "
        r"has none compiled for torch 2\.99\), which is slower; install a torch that it was built for "
        rf"\((2\.\d+, )*{re.escape(mine)}(, 2\.\d+)*\), "
        r"or reinstall it, in its source tree: pip install --force-reinstall --no-deps \., which compiles for this "
        "torch",
        done.stderr.strip(),
    )
    for options, environment in (
        (("-W", "ignore:fourfold runs gradients"), {}),
        (("-W", "error"), {"FOURFOLD_GRADIENTS": "python"}),  # requested
    ):
        done = run_python(ANOTHER_TORCH, *options, **environment)
        assert (done.returncode, done.stderr) == (0, "")
    assert run_python("import fourfold", "-W", "error").returncode == 0


def test_the_operators_are_registered():
    assert fourfold.operator_names()
    for name in fourfold.operator_names():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fourfold::{name}", "CPU")


def test_a_library_without_its_operators_is_refused(monkeypatch):
    facts = fourfold._C.build_info() | {"operators": ["axpby", "nonesuch"]}
    monkeypatch.setattr(_health, "_C", types.SimpleNamespace(build_info=lambda: facts))
    with pytest.raises(ImportError, match="not registered: nonesuch; reinstall it, in its source") as raised:
        _health.check()
    for version in (fourfold.__version__, torch.__version__, facts["torch_version"]):
        assert version in str(raised.value)


def test_an_old_torch_is_refused(tmp_path):
    (tmp_path / "torch.py").write_text("__version__ = '2.9.1+cpu'\n")
    said = import_error(PYTHONPATH=str(tmp_path))
    assert said == (
        "fourfold needs torch 2.10 or newer, but this is torch 2.9.1+cpu; upgrade it: pip install 'torch>=2.10'"
    )


@linux_only
def test_a_broken_library_is_refused(tmp_path):
    package = tmp_path / "fourfold"
    for part in (Path(fourfold.__file__).parent, INSTALLED):
        shutil.copytree(part, package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "libfourfold.so").write_bytes(LIBFOURFOLD.read_bytes()[:40])
    # -S: without site, an editable install's import hook doesn't come before this path.
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    said = import_error("-S", PYTHONPATH=path)
    assert said.startswith(f"fourfold's compiled library could not be loaded under torch {torch.__version__}: ")
    assert "libfourfold.so" in said
    assert said.endswith(
        "; reinstall it, in its source tree: pip install --force-reinstall --no-deps . (without a C++ compiler, set "
        "FOURFOLD_NO_EXTENSION=1 for a package in plain PyTorch)"
    )


def test_an_unknown_cpu_level_is_refused(run_forked):
    said = import_error(run=run_forked, FOURFOLD_CPU_CAPABILITY="bogus")
    assert re.fullmatch(
        r"FOURFOLD_CPU_CAPABILITY is bogus, but this CPU and this build of fourfold have: \w+(, \w+)*\. "
        r"Set it to one of these, or unset it\.",
        said,
    )


def test_the_level_is_the_one_that_is_asked_for():
    """Run once per CPU level by test_levels.py."""
    if asked := os.environ.get("FOURFOLD_CPU_CAPABILITY"):
        assert fourfold.cpu_capability() == asked


def test_there_is_one_version():
    (written,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert fourfold.__version__ == written == importlib.metadata.version("fourfold")
