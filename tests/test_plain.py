"""The package that FOURFOLD_NO_EXTENSION=1 builds without a compiler; its operators are composed of torch's."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import dependencies
import fourfold
from forked import Forks
from fourfold import _cmake
from machine import ROOT, missing
from test_schemas import registered

pytestmark = pytest.mark.slow

REINSTALL = _cmake.REINSTALL
PLAIN = "built with FOURFOLD_NO_EXTENSION=1, without fourfold's compiled library"
# Names that only the plain module has.
OWN = {"PLAIN", "SCHEMAS", "OPERATORS"}


def build(folder: Path, source: Path = ROOT, **environment: str) -> Path:
    """The wheel, built by a pip that finds no compiler: PATH is an empty folder."""
    if importlib.util.find_spec("scikit_build_core") is None:
        missing("this test needs scikit-build-core: pip install -r requirements-build.txt")
    (folder / "bin").mkdir(parents=True)
    command = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index")
    others = {n: v for n, v in os.environ.items() if n not in ("CXX", "CC", "CMAKE_ARGS", "SOURCE_DATE_EPOCH")}
    own = {"PATH": str(folder / "bin"), "FOURFOLD_NO_EXTENSION": "1", "SKBUILD_BUILD_DIR": str(folder / "build")}
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder), str(source)],
        capture_output=True,
        text=True,
        env=others | own | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    command = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(target))
    subprocess.run([*command, str(wheel)], check=True)
    return target


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -S: without site, an editable install's import hook doesn't come before this path.
    path = os.pathsep.join([str(installed), *filter(None, sys.path)])
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    surroundings |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-S", *arguments], capture_output=True, text=True, env=surroundings)


# As the first lines of a fork's code: this copy of the package, before an editable install's import hook.
FIRST = """
import sys, warnings, torch
sys.path.insert(0, {!r})
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
import fourfold
assert fourfold.__file__.startswith(sys.path[0])
"""


@pytest.fixture
def output(installed: Path, after_torch: Forks) -> Callable[[str], str]:
    """What code prints, after importing the plain package."""
    first = FIRST.format(str(installed))
    return lambda code: after_torch.output_of("-c", first + code)


def test_the_wheel_is_pure(wheel: Path) -> None:
    assert wheel.name == f"fourfold-{fourfold.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {"fourfold/_C.py", "fourfold/_C.pyi", "fourfold/py.typed", "fourfold/reference.py"} <= set(names)
    assert not [name for name in names if name.endswith((".so", ".dylib", ".cmake")) or "/include/" in name]
    assert "Requires-Dist: torch>=2.10\n" in metadata and "Requires-Dist: llvmlite" not in metadata


def test_the_wheel_is_the_same_to_the_byte_when_built_again(wheel: Path, tmp_path: Path) -> None:
    """Also from files with other times and permissions."""
    source = tmp_path / "source"
    for name in ("python", "scripts"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored, copy_function=shutil.copyfile)
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    (source / "python" / "fourfold" / "nn" / "mlp.py").chmod(0o600)
    assert build(tmp_path / "again", source).read_bytes() == wheel.read_bytes()
    dated = build(tmp_path / "dated", SOURCE_DATE_EPOCH="1700000000")
    with zipfile.ZipFile(dated) as archive:
        assert {entry.date_time[:3] for entry in archive.infolist()} == {(2023, 11, 14)}


LAYERS = """
layer = fourfold.nn.LSTM(4, 8, num_layers=2, bidirectional=True)
torchs = torch.nn.LSTM(4, 8, num_layers=2, bidirectional=True)
torchs.load_state_dict(layer.state_dict())
x = torch.randn(5, 3, 4, requires_grad=True)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    (y, _), (expected, _) = layer(x), torchs(x)
    layer(x)
    fourfold.softshrink(x)
torch.testing.assert_close(y, expected)
for inputs in (x, *layer.parameters()), :
    pairs = zip(torch.autograd.grad(y.sum(), inputs), torch.autograd.grad(expected.sum(), (x, *torchs.parameters())))
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs)
cell = fourfold.nn.LLTM(2, 3, dtype=torch.float64)
z = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradgradcheck(lambda z: cell(z)[0], (z,))
torch.testing.assert_close(fourfold.axpby(x, x, alpha=3, beta=2), 5 * x)
mlp = fourfold.nn.MLP([4, 8, 2])
rows = torch.randn(6, 4)
torch.testing.assert_close(torch.func.vmap(mlp)(rows), mlp(rows))
assert torch.func.hessian(lambda row: mlp(row).sum())(rows[0]).shape == (4, 4)
captured = torch.compile(lambda z: cell(z)[0] * 2, backend="aot_eager", fullgraph=True)
torch.testing.assert_close(captured(z), cell(z)[0] * 2)
with torch.autocast("cpu", torch.bfloat16):
    assert mlp(rows).dtype == torch.bfloat16
with fourfold.frozen(layer), torch.no_grad():
    assert torch.equal(layer(x)[0], y)
assert torch.ops.fourfold.softshrink_backward(rows, rows, 0.5).shape == rows.shape
print(*[f"{each.category.__name__}: {each.message}" for each in said], sep="\\n")
"""


def test_layers_and_functions_compute_their_definitions_and_say_it_once(installed: Path) -> None:
    # Not in a fork, and so without another copy's hook.
    done = run(installed, "-c", f"import warnings, torch, fourfold\n{LAYERS}")
    assert done.returncode == 0, done.stderr
    assert "performance drop" not in done.stderr  # torch's warning about a vmap that falls back to a loop
    said = done.stdout.splitlines()
    assert said == [
        "UserWarning: fourfold computes its operators as plain torch, which is slower: this installation was "
        f"{PLAIN}; with a C++ compiler, unset the variable and {REINSTALL}"
    ]


def test_a_scan_runs_its_steps_in_python(output: Callable[[str], str]) -> None:
    code = """
def step(carry, x):
    carry = carry * 0.9 + x
    steps.append(type(carry))
    return carry, carry * 2
steps, x = [], torch.randn(5, 3, requires_grad=True)
carry, ys = fourfold.scan(step, torch.zeros(3), x, reverse=True)
assert steps == [torch.Tensor] * 5  # and none by a tracer
expected = [torch.zeros(3)]
for row in x.flip(0):
    expected.append(expected[-1] * 0.9 + row)
torch.testing.assert_close(carry, expected[-1])
torch.testing.assert_close(ys, 2 * torch.stack(expected[1:]).flip(0))
ys.sum().backward()
assert x.grad.isfinite().all()
assert fourfold.nn.Recurrent(torch.nn.GRUCell(3, 4))(torch.randn(5, 2, 3))[0].shape == (5, 2, 4)
"""
    output(code)


@pytest.mark.parametrize(
    ("caller", "call"),
    [
        ('torch.compile(backend="fourfold")', 'torch.compile(torch.sin, backend="fourfold")(torch.ones(2))'),
        ("explain", "fourfold.explain(torch.sin, torch.ones(2))"),
        ("load", "fourfold.load('model.ff')"),
        ("save", "fourfold.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(2, 2),)), 'model.ff')"),
    ],
)
def test_what_needs_the_library_says_what_to_install(output: Callable[[str], str], caller: str, call: str) -> None:
    said = output(f"try:\n    {call}\nexcept ImportError as error:\n    print(error)")
    assert said == (
        f"{caller}: expected fourfold's compiled library, but this installation was {PLAIN}; unset the variable and "
        f"{REINSTALL}, with a C++ compiler\n"
    )


def test_the_command_says_it_in_one_line(installed: Path) -> None:
    done = run(installed, "-m", "fourfold", "explain", "math:sin", "--shapes", "2")
    assert done.returncode == 2
    assert re.fullmatch(r"python -m fourfold explain: expected fourfold's compiled library, .*compiler\n", done.stderr)


def test_the_refusals_are_the_librarys(output: Callable[[str], str]) -> None:
    for call in ("softshrink(torch.ones(2), -1.0)", "softshrink(torch.ones(2, dtype=torch.int64))", "axpby(1, 2)"):
        with pytest.raises((TypeError, ValueError)) as raised:
            eval(f"fourfold.{call}", {"fourfold": fourfold, "torch": __import__("torch")})
        said = output(f"try:\n    fourfold.{call}\nexcept Exception as error:\n    print(repr(error))")
        assert said == f"{raised.value!r}\n"


def test_info_says_what_is_missing(installed: Path) -> None:
    done = run(installed, "-m", "fourfold", "info")
    assert done.returncode == 0, done.stderr
    assert PLAIN in done.stdout
    assert "Gradients and calls: plain torch" in done.stdout
    assert run(installed, "-m", "fourfold", "--version").stdout == f"fourfold {fourfold.__version__}\n"


def test_the_schemas_are_the_librarys(output: Callable[[str], str]) -> None:
    code = """
import json
print(json.dumps({name: str(getattr(torch.ops.fourfold, name).default._schema) for name in fourfold._C.OPERATORS}))
"""
    assert json.loads(output(code)) == registered()


def test_the_module_has_no_names_that_the_library_lacks(output: Callable[[str], str]) -> None:
    code = "print(*[n for n, v in vars(fourfold._C).items() if getattr(v, '__module__', '') == 'fourfold._C'])"
    names = set(output(code).split())
    assert {"build_info", "backends"} <= names
    assert {name for name in names if not name.startswith("_")} <= set(vars(fourfold._C)) | OWN


def test_an_installation_that_lost_its_library_is_broken(tmp_path: Path) -> None:
    """It doesn't fall back to the plain package, which nobody requested."""
    shutil.copytree(
        Path(fourfold.__file__).parent, tmp_path / "fourfold", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    done = run(tmp_path, "-c", "import fourfold")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: fourfold's compiled library could not be loaded under torch"
    )


@pytest.mark.parametrize(
    "value", ["", "0", "00", "off", "False", "f", "n", "no", "1", "2", "on", "yes", "TRUE", "maybe"]
)
def test_the_variable_is_read_by_one_rule(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = pytest.importorskip("scikit_build_core.settings.skbuild_overrides")
    monkeypatch.setenv("FOURFOLD_NO_EXTENSION", value)
    assert dependencies.without_extension() == overrides.strtobool(value)
