"""A build of the Python modules with an existing libfourfold: what it compiles, and which libraries it rejects."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import build_library
from configuring import configuring, copy_of_the_sources
from machine import LIBFOURFOLD, ROOT, linux_only, output_of, tool

pytestmark = linux_only

# Options of the stand-in library: it has only the CPU's kernels.
LIBRARY = ("-DFOURFOLD_PYTHON=OFF", "-DFOURFOLD_BITCODE=OFF")
MODULES = ("-DFOURFOLD_BITCODE=AUTO", "-DFOURFOLD_TORCH_HEADERS=OFF")


def ninja(folder, *words):
    return output_of(tool("ninja", "ninja"), "-C", folder, *words)


class Built:
    """A library from a copy of the sources: its build facts as a build installs them, and this installation's file."""

    def __init__(self, folder):
        self.source, self.build, self.prefix = folder / "source", folder / "library", folder / "prefix"
        copy_of_the_sources(self.source)
        code, said = configuring(self.build)(*LIBRARY, source=self.source)
        assert code == 0, said
        self.facts = self.prefix / "share" / "fourfold" / "build.cmake"
        self.facts.parent.mkdir(parents=True)
        self.install()
        (file,) = re.findall('FOURFOLD_BUILT_FILE "(.*)"', self.facts.read_text())
        (self.prefix / file).parent.mkdir()
        (self.prefix / file).symlink_to(LIBFOURFOLD)

    def install(self):
        ninja(self.build, "package/build.cmake")
        self.facts.write_text((self.build / "package" / "build.cmake").read_text())


@pytest.fixture(scope="module")
def one_for_all(tmp_path_factory):
    return Built(tmp_path_factory.mktemp("built"))


@pytest.fixture
def built(one_for_all):
    text = one_for_all.facts.read_text()
    yield one_for_all
    one_for_all.facts.write_text(text)


@pytest.fixture
def configure(tmp_path, built):
    def run(*options, **environment):
        chosen = (f"-DFOURFOLD_LIBRARY={built.prefix}", *MODULES, *options)
        return configuring(tmp_path / "modules")(*chosen, source=built.source, **environment)

    return run


def refusal(configure, prefix, *options):
    code, said = configure(*options)
    assert code == 1
    again = f"Build it again with `python scripts/build_library.py {prefix}`, or unset FOURFOLD_LIBRARY to compile the"
    (why,) = re.findall(f"FOURFOLD_LIBRARY names {prefix}, (.*?) {re.escape(again)} library here.", said)
    return why


def test_only_the_modules_are_compiled(configure, built, tmp_path):
    """Ninja lists all commands that it would run."""
    code, said = configure()
    assert code == 0, said
    assert f"library that in {built.prefix}, built with " in said
    planned = ninja(tmp_path / "modules", "-t", "commands")
    compiled = re.findall(r" -c (\S+)", planned)
    folders = {Path(name).parent.name for name in compiled if "stub" not in name and "empty.cpp" not in name}
    assert folders == {"bindings", "model"}  # of the latter what Python's reader of files calls
    assert len(compiled) < 12, "the library alone has a hundred"
    assert not re.search(r"libfourfold\.so\b(?=.* -shared)|-o \S*libfourfold\.so", planned)


def test_the_package_has_the_library_that_was_built(configure, built, tmp_path):
    assert configure()[0] == 0
    install = (tool("cmake", "cmake"), "--install", tmp_path / "modules", "--component", "python", "--prefix")
    # CMake reports the modules, which are not built here, as missing, after it has installed the library.
    rules = (tmp_path / "modules" / "cmake_install.cmake").read_text()
    assert f'FILES "{built.prefix}/lib' in rules
    done = subprocess.run([*map(str, install), str(tmp_path / "package")], capture_output=True, text=True)
    assert "bindings" in done.stderr and "libfourfold" not in done.stderr


def test_a_library_of_other_sources_is_refused(tmp_path):
    """The error has both digests. Files that only the modules are compiled from don't count."""
    built = Built(tmp_path)
    source = built.source

    def configure():
        chosen = (f"-DFOURFOLD_LIBRARY={built.prefix}", *MODULES)
        return configuring(tmp_path / "modules")(*chosen, source=source)

    for name in ("cpp/bindings/module.cpp", "cpp/graph/graph.cpp"):
        with (source / name).open("a") as file:
            file.write("// changed\n")
    assert configure()[0] == 0
    with (source / "cpp" / "ops" / "softshrink.cpp").open("a") as file:
        file.write("// changed\n")
    (digest,) = re.findall("FOURFOLD_BUILT_SOURCES (.*)\\)", built.facts.read_text())
    why = refusal(configure, built.prefix)
    digests = r"its sources have the digest (\w+), these have (\w+)\."
    found = re.fullmatch(rf"which was not built from the sources in {source}: {digests}", why)
    assert found is not None, why
    assert found[1] == digest != found[2] and re.fullmatch("[0-9a-f]{64}", found[2])
    # Rebuilt, without being configured again, it matches these sources.
    built.install()
    assert configure()[0] == 0


@pytest.mark.parametrize(
    ("fact", "value", "options", "why"),
    [
        ("VERSION", '"0.0.9"', (), r"which is fourfold 0\.0\.9, but .*/source is \d.*\."),
        (
            "SYSTEM",
            '"Linux on riscv64"',
            (),
            r"which was built for Linux on riscv64, but this build is for Linux on .*\.",
        ),
        ("SANITIZE", '"address"', (), "which was built with FOURFOLD_SANITIZE=address, but this build has .*=OFF."),
        ("CPU_LEVELS", '"AUTO"', (), "which was built with FOURFOLD_CPU_LEVELS=AUTO, but this build has .*=ON."),
        ("FILE", '"lib/other.so"', (), "which lacks lib/other.so."),
        ("CUDA", "TRUE", (), "which was built with what FOURFOLD_CUDA=OFF leaves out: .*"),
        (
            None,
            None,
            ("-DFOURFOLD_CUDA=ON",),
            "which was built without what FOURFOLD_CUDA=ON asks for: switched off .*",
        ),
        (None, None, ("-DFOURFOLD_BITCODE=ON",), "which was built without what FOURFOLD_BITCODE=ON asks for: .*"),
    ],
)
def test_a_library_that_was_built_otherwise_is_refused(configure, built, fact, value, options, why):
    if fact is not None:
        text, changed = re.subn(rf"(set\(FOURFOLD_BUILT_{fact} ).*\)", rf"\1{value})", built.facts.read_text())
        assert changed == 1
        built.facts.write_text(text)
    assert re.fullmatch(why, refusal(configure, built.prefix, *options))


def test_a_folder_without_a_library_is_refused(configure, built):
    built.facts.unlink()
    assert refusal(configure, built.prefix) == "which has no share/fourfold/build.cmake."
    code, said = configure("-DFOURFOLD_PYTHON=OFF")
    assert code == 1
    assert (
        "FOURFOLD_LIBRARY names a library to build the Python modules with, but FOURFOLD_PYTHON=OFF builds none."
        in said
    )


def test_the_library_is_configured_as_pip_would(monkeypatch, tmp_path):
    """With the same names, variables and defaults, and without Python."""
    asked = []
    monkeypatch.setattr(build_library.subprocess, "run", lambda words, check: asked.append(words))
    for name in ("HIP", "METAL", "CPU_LEVELS", "BITCODE", "SANITIZE"):
        monkeypatch.delenv(f"FOURFOLD_{name}", raising=False)
    monkeypatch.setenv("FOURFOLD_CUDA", "ON")
    monkeypatch.setattr(sys, "argv", ["build_library.py", str(tmp_path), "--", "-DCMAKE_BUILD_TYPE=Debug"])
    build_library.main()
    configured, built, installed = asked
    listed = re.findall(r"^(FOURFOLD_\w+) = \{", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    given = dict(word[2:].split("=", 1) for word in configured if word.startswith("-DFOURFOLD_"))
    assert set(given) == {*listed, "FOURFOLD_PYTHON", "FOURFOLD_INSTALL"} - {
        "FOURFOLD_LIBRARY",
        "FOURFOLD_TORCH_HEADERS",
    }
    assert (given["FOURFOLD_CUDA"], given["FOURFOLD_HIP"], given["FOURFOLD_CPU_LEVELS"]) == ("ON", "AUTO", "AUTO")
    assert given["FOURFOLD_PYTHON"] == "OFF" and configured[-1] == "-DCMAKE_BUILD_TYPE=Debug"
    assert f"-DCMAKE_INSTALL_PREFIX={tmp_path}" in configured
    assert built[1] == "--build" and installed[-3:] == ["--component", "fourfold", "--strip"]
