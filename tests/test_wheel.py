"""The normal form of wheels, and the checks that reject a wrong one, each with a wheel that has only that error."""

import os
import platform
import re
import stat
import zipfile
from pathlib import Path

import pytest

import repair_wheel
import wheel as wheel_script
import wheel_checks
import wheel_tests
from machine import ROOT, linux_only, output_of, tool
from test_metadata import tomllib
from wheel_archive import FIRST_OF_ZIP, moment, normalise

MACHINE = platform.machine()
PLATFORM = f"manylinux_2_28_{MACHINE}"
SUFFIX = f".cpython-311-{MACHINE}-linux-gnu.so"
LIBRARIES = (f"fourfold/_C{SUFFIX}", f"fourfold/_torch_2_13{SUFFIX}", "fourfold/libfourfold.so")
NOW = (2026, 11, 26, 3, 4, 6)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    for name in ("SOURCE_DATE_EPOCH", "AUDITWHEEL_PLAT", "MACOSX_DEPLOYMENT_TARGET"):
        monkeypatch.delenv(name, raising=False)


def library(folder: Path, *options: str, text: str = "") -> bytes:
    """A shared library of this system."""
    source, path = folder / "library.c", folder / "library.so"
    source.write_text(text)
    output_of(
        tool("cc", "gcc"), "-shared", "-fPIC", source, "-o", path, *(options if text else ("-nostdlib", *options))
    )
    return path.read_bytes()


def make(
    folder: Path, platforms=PLATFORM, python="cp311", abi="cp311", libraries=LIBRARIES, tags=None, content=b"", **others
):
    """A wheel as a build tool might write it. `others` are settings of each member."""
    wheel = folder / f"fourfold-0.1.0-{python}-{abi}-{platforms}.whl"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    tags = tags or [f"{python}-{abi}-{one}" for one in platforms.split(".")]
    texts = {
        "fourfold-0.1.0.dist-info/RECORD": "".join(f"{name},,\n" for name in ("fourfold/b.py", *libraries)),
        "fourfold-0.1.0.dist-info/WHEEL": "Wheel-Version: 1.0\n" + "".join(f"Tag: {tag}\n" for tag in tags),
        "fourfold/b.py": "b",
        "fourfold/a.py": "a",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in (texts | dict.fromkeys(libraries, content)).items():
            member = zipfile.ZipInfo(name, others.get("time", NOW))
            member.external_attr = others.get("mode", stat.S_IFREG | 0o664) << 16
            archive.writestr(member, data)
    return wheel


def normal(wheel: Path) -> Path:
    folder = wheel.parent / "normal"
    folder.mkdir(exist_ok=True)
    return normalise(wheel, folder / wheel.name)


@linux_only
def test_a_wheel_that_is_right_passes(tmp_path):
    for name in ("nm", "readelf"):
        tool(name, "binutils")
    made = make(tmp_path, content=library(tmp_path, "-Wl,-rpath,$ORIGIN"))
    wheel_checks.check(normal(made), "linux")


@linux_only
def test_repair_tags_a_wheel_and_writes_it_in_normal_form(tmp_path):
    tool("auditwheel", "auditwheel")
    # auditwheel skips libraries that don't look like extension modules.
    text = 'int puts(const char*); void PyInit__C() { puts("loaded"); }'
    content = library(tmp_path, "-Wl,-rpath,$ORIGIN", text=text)
    made = make(tmp_path / "raw", platforms=f"linux_{MACHINE}", content=content)
    with zipfile.ZipFile(made, "a") as archive:
        archive.writestr("fourfold-0.1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fourfold\nVersion: 0.1.0\n")
    again = make(tmp_path / "again", platforms=f"linux_{MACHINE}", content=content, time=(2025, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(again, "a") as archive:
        archive.writestr("fourfold-0.1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: fourfold\nVersion: 0.1.0\n")
    first = repair_wheel.repair(made, tmp_path / "first")
    second = repair_wheel.repair(again, tmp_path / "second")
    assert "manylinux" in first.name and first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_a_large_wheel_is_refused(tmp_path, monkeypatch):
    wheel = make(tmp_path, content=bytes(1_000_000))
    wheel_checks.check_size(wheel)
    monkeypatch.setattr(wheel_checks, "MEGABYTES", 2)
    with pytest.raises(SystemExit, match=r"has 3\.0 MB, but should have at most 2$"):
        wheel_checks.check_size(wheel)


@pytest.mark.parametrize("suffix", ["so", "dylib"])
@pytest.mark.parametrize("name", ["libomp", "libgomp-a34b3233", "libcudart", "libtorch_cpu", "_torch_wrong"])
def test_a_library_of_others_is_refused(suffix, name, tmp_path):
    ours = ("fourfold/_C.so", f"fourfold/libfourfold.{suffix}", "fourfold/_torch_2_13.so")
    wheel_checks.check_nothing_grafted(make(tmp_path, libraries=ours))
    wheel = make(tmp_path, libraries=(*ours, f"fourfold/.libs/{name}.{suffix}.1"))
    with pytest.raises(SystemExit, match=f"should hold libfourfold, _C and _torch_. only, but has .*{name}"):
        wheel_checks.check_nothing_grafted(wheel)
    wheel = make(tmp_path, libraries=(*ours, "fourfold.libs/notes.txt"))
    with pytest.raises(SystemExit, match=r"but has .* in \['fourfold', 'fourfold.libs'\]"):
        wheel_checks.check_nothing_grafted(wheel)


@linux_only
@pytest.mark.parametrize("path", ["/opt/torch/lib", "$ORIGIN/../torch/lib", "$ORIGIN:/usr/local/cuda/lib64", "lib"])
@pytest.mark.parametrize("tags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_a_library_that_looks_elsewhere_is_refused(path, tags, tmp_path):
    tool("readelf", "binutils")
    wheel = make(tmp_path, content=library(tmp_path, f"-Wl,-rpath,{path},{tags}"))
    with pytest.raises(SystemExit, match=r"should look for libraries in \$ORIGIN only, but does in \["):
        wheel_checks.check_libraries(wheel, "linux")


@linux_only
@pytest.mark.parametrize(
    "name", ["libgomp.so.1", "libcudart.so.12", "libcuda.so.1", "libtorch_cuda.so", "libmkl_rt.so"]
)
def test_a_library_that_loads_others_is_refused(name, tmp_path):
    tool("readelf", "binutils")
    other = tmp_path / "other.so"
    other.write_bytes(library(tmp_path, f"-Wl,-soname,{name}"))
    wheel = make(tmp_path, content=library(tmp_path, "-Wl,--no-as-needed", str(other)))
    with pytest.raises(SystemExit, match="should load no library but torch's and the system's, but loads") as refused:
        wheel_checks.check_libraries(wheel, "linux")
    assert f"['{name}']" in str(refused.value)


@linux_only
def test_a_library_that_does_not_find_ours_is_refused(tmp_path):
    tool("readelf", "binutils")
    ours = tmp_path / "ours.so"
    ours.write_bytes(library(tmp_path, "-Wl,-soname,libfourfold.so"))
    linked = ("-Wl,--no-as-needed", str(ours))
    wheel_checks.check_libraries(make(tmp_path, content=library(tmp_path, "-Wl,-rpath,$ORIGIN", *linked)), "linux")
    wheel = make(tmp_path, content=library(tmp_path, *linked))
    with pytest.raises(SystemExit, match=r"should look for libfourfold in \$ORIGIN, but has no search path"):
        wheel_checks.check_libraries(wheel, "linux")


@linux_only
@pytest.mark.parametrize(
    "name", ["cudaMalloc", "__cudaRegisterFunction", "GOMP_parallel", "omp_lock", "__kmpc_fork_call"]
)
@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_library_that_exports_a_runtime_is_refused(name, system, tmp_path):
    tool("nm", "binutils")
    underscore = "_" * (system == "darwin")
    private = f"static int {name}(void) {{ return 1; }} int fourfold_{name}(void) {{ return {name}(); }}"
    wheel_checks.check_exports(make(tmp_path, content=library(tmp_path, text=private)), system)
    public = f"int {underscore}{name}(void) {{ return 1; }}"
    with pytest.raises(SystemExit, match="should export nothing of CUDA's or OpenMP's runtime, but exports") as refused:
        wheel_checks.check_exports(make(tmp_path, content=library(tmp_path, text=public)), system)
    assert f"['{underscore}{name}']" in str(refused.value)


@pytest.mark.parametrize(
    ("rpath", "loaded", "why"),
    [
        ("@loader_path", "@rpath/libtorch_cpu.dylib", None),
        (
            "/opt/homebrew/lib",
            "@rpath/libtorch_cpu.dylib",
            r"in @loader_path only, but does in \['/opt/homebrew/lib'\]",
        ),
        ("@loader_path", "/opt/homebrew/lib/libomp.dylib", r"but loads \['/opt/homebrew/lib/libomp.dylib'\]"),
    ],
)
def test_a_macos_librarys_load_commands_are_read(rpath, loaded, why, tmp_path, monkeypatch):
    said = f"      cmd LC_RPATH\n  cmdsize 32\n     path {rpath} (offset 12)\n"
    said += f"      cmd LC_LOAD_DYLIB\n  cmdsize 56\n     name {loaded} (offset 24)\n"
    otool = tmp_path / "otool"
    otool.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    otool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    wheel = make(tmp_path)
    if why is None:
        wheel_checks.check_libraries(wheel, "darwin")
    else:
        with pytest.raises(SystemExit, match=why):
            wheel_checks.check_libraries(wheel, "darwin")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"platforms": f"linux_{MACHINE}"}, "should be for manylinux_X_Y_.* or older, but is for linux_"),
        ({"platforms": "manylinux_2_28_riscv64"}, "but is for manylinux_2_28_riscv64"),
        ({"platforms": f"{PLATFORM}.musllinux_1_2_{MACHINE}"}, "but is for musllinux"),
        (
            {"tags": [f"cp311-cp311-manylinux_2_17_{MACHINE}"]},
            "should have the tags of its name, but its metadata says",
        ),
        ({"python": "cp312", "abi": "cp312"}, "should hold modules for cp312, but has _C"),
        ({"abi": "cp311t"}, "should hold modules for cp311t, but has _C"),
        (
            {"libraries": (*LIBRARIES, "fourfold/_torch_2_14.so")},
            "should hold modules for cp311, but has _torch_2_14.so",
        ),
    ],
)
def test_a_wrong_tag_is_refused(wrong, why, tmp_path):
    wheel_checks.check_tags(make(tmp_path), "linux")
    with pytest.raises(SystemExit, match=why):
        wheel_checks.check_tags(make(tmp_path, **wrong), "linux")


def test_a_wheel_is_for_the_oldest_system_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("AUDITWHEEL_PLAT", PLATFORM)
    both = f"manylinux_2_17_{MACHINE}.manylinux2014_{MACHINE}"
    for right in (PLATFORM, both):
        wheel_checks.check_tags(make(tmp_path, platforms=right), "linux")
    with pytest.raises(SystemExit, match=f"should be for {PLATFORM} or older, but is for manylinux_2_34_"):
        wheel_checks.check_tags(make(tmp_path, platforms=f"manylinux_2_34_{MACHINE}"), "linux")
    of_macos = tuple(name.replace(f"{MACHINE}-linux-gnu", "darwin") for name in LIBRARIES)
    mac = make(tmp_path, platforms="macosx_14_0_arm64", libraries=of_macos)
    wheel_checks.check_tags(mac, "darwin")
    monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", "15.0")
    with pytest.raises(SystemExit, match="should be for macosx_15_0_arm64"):
        wheel_checks.check_tags(mac, "darwin")


def test_the_normal_form_depends_on_the_files_alone(tmp_path, monkeypatch):
    first = normal(make(tmp_path / "a"))
    second = normal(make(tmp_path / "b", time=(2020, 2, 2, 2, 2, 2), mode=stat.S_IFREG | 0o600))
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        names = archive.namelist()
        lines = archive.read("fourfold-0.1.0.dist-info/RECORD").decode().splitlines()
        assert lines == sorted(f"{name},," for name in ("fourfold/b.py", *LIBRARIES))
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert names[:2] == [f"fourfold/_C{SUFFIX}", f"fourfold/_torch_2_13{SUFFIX}"]
    assert [name.split("/")[1] for name in names[-2:]] == ["WHEEL", "RECORD"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1764126245")
    third = normal(make(tmp_path / "c"))
    wheel_checks.check_normal_form(third)
    with zipfile.ZipFile(third) as archive:
        assert {member.date_time for member in archive.infolist()} == {(2025, 11, 26, 3, 4, 4)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(FIRST_OF_ZIP - 1))
    assert moment() == (1980, 1, 1, 0, 0, 0)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(SystemExit, match="expected SOURCE_DATE_EPOCH to be seconds since 1970, but got yesterday"):
        moment()


def test_a_wheel_in_another_form_is_refused(tmp_path):
    right = normal(make(tmp_path))
    wheel_checks.check_normal_form(right)
    with pytest.raises(
        SystemExit, match="should have its members once and in order, but begins with fourfold-0.1.0.dist"
    ):
        wheel_checks.check_normal_form(make(tmp_path))

    def rewritten(**changes):
        with zipfile.ZipFile(right) as source, zipfile.ZipFile(tmp_path / right.name, "w") as to:
            for member in source.infolist():
                for name, value in changes.items():
                    setattr(member, name, value)
                to.writestr(member, source.read(member.filename))
        return tmp_path / right.name

    wheel_checks.check_normal_form(rewritten())
    with pytest.raises(SystemExit, match=r"should be of \(1980, 1, 1, 0, 0, 0\), but is of \(2026, 11, 26, 3, 4, 6\)"):
        wheel_checks.check_normal_form(rewritten(date_time=NOW))
    with pytest.raises(SystemExit, match="with mode 644 or 755, but has 100664"):
        wheel_checks.check_normal_form(rewritten(external_attr=(stat.S_IFREG | 0o664) << 16))
    with zipfile.ZipFile(right, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("fourfold/a.py", "again")
    with pytest.raises(SystemExit, match="once and in order"):
        wheel_checks.check_normal_form(right)


def test_a_wheel_is_tested_under_the_oldest_and_the_newest_torch_too():
    listed = ["2.10", "2.11", "2.13", "2.15"]
    assert wheel_tests.other_versions("2.13.0+cpu", listed) == ["2.10", "2.15"]
    assert wheel_tests.other_versions("2.15.0", ["2.15"]) == []
    assert wheel_tests.other_versions("2.10.0", listed) == ["2.15"]
    assert {"frozen_models", "saving", "saved_graphs", "scan"} < set(wheel_tests.OF_TORCH)
    assert all((ROOT / "tests" / f"test_{name}.py").exists() for name in wheel_tests.OF_TORCH)


@pytest.mark.parametrize(("system", "processor"), [("linux", "x86_64"), ("linux", "aarch64"), ("macos", "arm64")])
def test_wheels_are_for_every_python_that_is_allowed(system, processor):
    """A new version of cibuildwheel adds the next Python; no list has to name it."""
    command = (tool("cibuildwheel", "cibuildwheel"), "--config-file", ROOT / "cibuildwheel.toml", "--platform", system)
    said = output_of(*command, "--archs", processor, "--print-build-identifiers", ROOT, cwd=ROOT)
    found = re.findall(r"^(cp3\d+t?)-(\S+)$", said, re.MULTILINE)
    assert {"cp310", "cp311", "cp312", "cp313", "cp314", "cp314t"} <= {python for python, _ in found}
    assert not {"cp38", "cp39", "cp313t"} & {python for python, _ in found}
    assert {where for _, where in found} == {f"{'macosx' if system == 'macos' else 'manylinux'}_{processor}"}
    assert not re.search(r"cp3\d\d", re.sub(r"skip = .*|/opt/python/\S+", "", (ROOT / "cibuildwheel.toml").read_text()))


def test_wheels_have_every_level_and_module_whatever_the_default(tmp_path, monkeypatch):
    """pip's own builds are for one machine and its torch."""
    every = {"FOURFOLD_CPU_LEVELS": "ON", "FOURFOLD_TORCH_HEADERS": "ON"}
    released = tomllib.loads((ROOT / "cibuildwheel.toml").read_text())["tool"]["cibuildwheel"]["environment"]
    assert every.items() <= released.items()
    asked = []
    monkeypatch.setattr(wheel_script, "ROOT", tmp_path)
    monkeypatch.setattr(wheel_script, "run", lambda *_, env: asked.append(env) or make(tmp_path / "build" / "wheel"))
    monkeypatch.setattr(wheel_script, "repair", lambda *_: None)
    for name in every:
        monkeypatch.delenv(name, raising=False)
    wheel_script.build()
    assert every.items() <= asked[0].items()
