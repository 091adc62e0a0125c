"""pip's build: in an environment of its own, but with the torch of the environment that it installs into."""

from __future__ import annotations

import importlib
import sys
import venv
from pathlib import Path
from types import ModuleType

import pytest

from configuring import configuring
from machine import ROOT, missing, output_of

pytestmark = pytest.mark.slow


@pytest.fixture
def build_backend() -> ModuleType:
    if importlib.util.find_spec("scikit_build_core") is None:
        missing("this test needs scikit-build-core: pip install -r requirements-build.txt")
    return importlib.import_module("build_backend")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment, to whose packages a test can add a torch."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def packages_of(python: Path) -> Path:
    return Path(output_of(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())


def put_torch(python: Path, version: str) -> Path:
    """The parts of torch that the build looks at first."""
    torch = packages_of(python) / "torch"
    files = torch / "share" / "cmake" / "Torch"
    files.mkdir(parents=True, exist_ok=True)
    (torch / "version.py").write_text(f"__version__ = '{version}'\ndebug = False\n")
    (files / "TorchConfigVersion.cmake").write_text(
        f"set(PACKAGE_VERSION {version.split('+')[0]})\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n"
    )
    (files / "TorchConfig.cmake").write_text(f'set(TORCH_INSTALL_PREFIX "{torch}")\nset(TORCH_FOUND TRUE)\n')
    return torch


@pytest.mark.parametrize("kind", ["wheel", "editable"])
@pytest.mark.parametrize(
    ("version", "downloads"),
    [(None, True), ("2.9.1", True), ("2.13.0+cpu", False), ("2.10.0a0+git123", False)],
)
def test_torch_is_downloaded_only_without_one(
    build_backend: ModuleType,
    environment: Path,
    kind: str,
    version: str | None,
    downloads: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    python = environment
    if version is None:
        venv.create(tmp_path / "empty", symlinks=True)
        python = tmp_path / "empty" / "bin" / "python"
    else:
        put_torch(environment, version)
    monkeypatch.setattr(build_backend, "packages", lambda: packages_of(python))
    monkeypatch.chdir(ROOT)
    wanted = getattr(build_backend, f"get_requires_for_build_{kind}")({})
    assert [each for each in wanted if each.startswith("torch")] == (["torch>=2.10"] if downloads else [])
    assert any(each.startswith("pybind11") for each in wanted)


def test_the_build_finds_the_torch_of_the_environment(environment: Path, tmp_path: Path) -> None:
    """Whose Python runs with the packages of pip's build environment alone."""
    torch = put_torch(environment, "2.9.1")  # too old, so that the configure step ends with its name
    isolated = tmp_path / "isolated"
    isolated.mkdir()
    configure = configuring(tmp_path / "build")  # needs pybind11
    (isolated / "pybind11").symlink_to(Path(importlib.import_module("pybind11").__file__ or "").parent)
    code, said = configure(python=environment, PYTHONPATH=str(isolated))
    assert code == 1
    assert f"but found 2.9.1 in {torch}. Upgrade it" in said


def test_the_backend_has_every_hook(build_backend: ModuleType) -> None:
    from scikit_build_core import build

    assert build_backend.packages() == packages_of(Path(sys.executable))
    assert {name for name in build.__all__ if not hasattr(build_backend, name)} == set()
    assert not hasattr(build_backend, "no_hook")
