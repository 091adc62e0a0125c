"""Gradients for other versions of torch than the one of the build: which headers a build fetches."""

import os
import zipfile

import pytest
import torch

from configuring import configuring, copy_of_the_sources

pytestmark = pytest.mark.slow

MINE = ".".join(torch.__version__.split(".")[:2])


@pytest.fixture
def configure(tmp_path):
    """Configures a copy of the sources, into which headers are fetched; the package index is a folder."""
    source, run = copy_of_the_sources(tmp_path / "source"), configuring(tmp_path / "build")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index"), "PIP_CONFIG_FILE": os.devnull}
    (tmp_path / "index").mkdir()
    # For a user who pins the torch of the build.
    pinned = tmp_path / "constraints.txt"
    pinned.write_text(f"torch=={torch.__version__}\n")
    index |= {"PIP_CONSTRAINT": str(pinned), "PIP_BUILD_CONSTRAINT": str(pinned)}

    def configured(wanted, **others):
        return run(f"-DFOURFOLD_TORCH_HEADERS={wanted}", source=source, **index, **others)

    configured.index, configured.source = tmp_path / "index", source
    return configured


def put(index, version):
    """A wheel of torch with the files that the configure step reads, and others."""
    major, minor = version.split(".")[:2]
    files = {
        f"torch-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"torch-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"torch-{version}.dist-info/RECORD": "",
        "torch/lib/libtorch_cpu.so": "not a header",
        "torch/include/torch/csrc/Dtype.h": "",
        "torch/include/torch/headeronly/version.h": f"#define TORCH_VERSION_MAJOR {major}\n"
        f"#define TORCH_VERSION_MINOR {minor}\n",
    }
    with zipfile.ZipFile(index / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


def test_a_wheel_has_gradients_for_every_minor_version(configure):
    for version in ("2.9.1", "2.10.0", "2.98.0", "2.98.1", "2.99.0"):
        put(configure.index, version)
    code, said = configure("ON")
    assert code == 0, said
    assert "headers of torch 2.98.1" in said and "2.98.0" not in said
    assert f"-- gradients {MINE} 2.10 2.98 2.99 -- CPU on" in said
    fetched = configure.source / "build" / "torch-headers"
    assert sorted(folder.name for folder in fetched.iterdir()) == ["2.10", "2.98", "2.99"]
    assert not list(fetched.rglob("lib"))


@pytest.mark.parametrize(("wanted", "others"), [("OFF", ""), ("", ""), ("TRUE", " 2.99")])
def test_only_builds_that_ask_for_them_fetch_headers(configure, wanted, others):
    put(configure.index, "2.99.0")
    code, said = configure(wanted)
    assert code == 0, said
    assert f"-- gradients {MINE}{others} -- CPU on" in said
    assert ("Fetching" in said) is bool(others)


def test_a_missing_index_is_named(configure):
    why = "pip index versions torch says: No matching distribution found for torch"
    code, said = configure("ON")
    assert code == 1
    assert (
        "FOURFOLD_TORCH_HEADERS=ON asks for gradients for every minor version of torch, but their headers were not "
        f"fetched: {why}. Or set FOURFOLD_TORCH_HEADERS to OFF." in said
    )


def test_a_wheel_that_cannot_be_read_is_a_sentence(configure):
    put(configure.index, "2.99.0")
    wheel = configure.index / "torch-2.99.0-py3-none-any.whl"
    whole = wheel.read_bytes()
    wheel.write_bytes(whole.replace(b"TORCH_VERSION_MAJOR", b"TORCH_VERSION_BAD!!"))
    code, said = configure("ON")
    assert code == 1
    assert "but their headers were not fetched: the headers were not read: Bad CRC-32 for file" in said
    wheel.write_bytes(whole)
    code, said = configure("ON")  # an interrupted download isn't taken for complete
    assert code == 0 and f"-- gradients {MINE} 2.99 -- CPU on" in said


def test_a_folder_without_headers_is_named(configure):
    code, said = configure("/nonexistent")
    assert code == 1
    assert "names /nonexistent, which doesn't contain the headers of torch 2.10 or newer. Name the include" in said
