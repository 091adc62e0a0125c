"""The normal form of wheels, and the checks that reject a wrong one, each with a wheel that has only that error."""

import os
import platform
import re
import stat
import zipfile
from pathlib import Path

import pytest

import repair_wheel
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


def library(folder: Path, option: str = "", text: str = "", needed: str = "") -> bytes:
    """A shared library of this system; needed: the name of another one that it loads."""
    source, path, options = folder / "library.c", folder / "library.so", [option] * bool(option)
    if needed:
        other = folder / "other.so"
        other.write_bytes(library(folder, f"-Wl,-soname,{needed}"))
        options += ["-Wl,--no-as-needed", str(other)]
    source.write_text(text)
    output_of(tool("cc", "gcc"), "-shared", "-fPIC", source, "-o", path, *options, *["-nostdlib"] * (not text))
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
        "fourfold-0.1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: fourfold\nVersion: 0.1.0\n",
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
def test_repair_tags_a_wheel_and_writes_it_in_normal_form(tmp_path):
    """Equal files give equal wheels, which pass every check."""
    tool("auditwheel", "auditwheel")
    # auditwheel skips libraries that don't look like extension modules.
    text = 'int puts(const char*); void PyInit__C() { puts("loaded"); }'
    content = library(tmp_path, "-Wl,-rpath,$ORIGIN", text=text)
    made = make(tmp_path / "raw", f"linux_{MACHINE}", content=content)
    again = make(tmp_path / "again", f"linux_{MACHINE}", content=content, time=(2025, 1, 1, 0, 0, 0))
    first = repair_wheel.repair(made, tmp_path / "first")
    second = repair_wheel.repair(again, tmp_path / "second")
    assert "manylinux" in first.name and first.name == second.name
    assert first.read_bytes() == second.read_bytes()


OURS_AND = "should hold libfourfold, _C and _torch_. only, but has .*"
ORIGIN = r"should look for libraries in \$ORIGIN only, but does in \["
LOADS = "should load no library but torch's and the system's, but loads "
EXPORTS = "should export nothing of CUDA's or OpenMP's runtime, but exports "
OTHERS = ("libomp.so.1", "libgomp-a34b3233.so.1.0.0", "libcudart.so.12", "libtorch_cpu.so", "_torch_wrong.so")
NEEDED = ("libgomp.so.1", "libcudart.so.12", "libcuda.so.1", "libtorch_cuda.so", "libmkl_rt.so")
RUNTIMES = ("cudaMalloc", "__cudaRegisterFunction", "GOMP_parallel", "omp_lock", "__kmpc_fork_call")
WRONG = [
    ({"content": bytes(7_000_000)}, {}, r"has 21\.0 MB, but should have at most 20"),
    ({"libraries": LIBRARIES[:2]}, {}, OURS_AND),
    ({"libraries": LIBRARIES[1:]}, {}, OURS_AND),
    *(({"libraries": (*LIBRARIES, f"fourfold/.libs/{name}")}, {}, OURS_AND + name.split(".")[0]) for name in OTHERS),
    ({"libraries": (*LIBRARIES, "fourfold.libs/notes.txt")}, {}, r"but has .* in \['fourfold', 'fourfold.libs'\]"),
    *(
        ({}, {"option": f"-Wl,-rpath,{path},{tags}"}, ORIGIN)
        for path in ("/opt/torch/lib", "$ORIGIN/../torch/lib", "$ORIGIN:/usr/local/cuda/lib64", "lib")
        for tags in ("--enable-new-dtags", "--disable-new-dtags")
    ),
    *(({}, {"needed": name}, LOADS + re.escape(f"['{name}']")) for name in NEEDED),
    ({}, {"needed": "libfourfold.so"}, r"should look for libfourfold in \$ORIGIN, but has no search path"),
    *(({}, {"text": f"int {name}(void) {{ return 1; }}"}, EXPORTS + re.escape(f"['{name}']")) for name in RUNTIMES),
    ({"platforms": f"linux_{MACHINE}"}, {}, "should be for manylinux_X_Y_.* or older, but is for linux_"),
    ({"platforms": "manylinux_2_28_riscv64"}, {}, "but is for manylinux_2_28_riscv64"),
    ({"platforms": f"{PLATFORM}.musllinux_1_2_{MACHINE}"}, {}, "but is for musllinux"),
    ({"tags": [f"cp311-cp311-manylinux_2_17_{MACHINE}"]}, {}, "the tags of its name, but its metadata says"),
    ({"python": "cp312", "abi": "cp312"}, {}, "should hold modules for cp312, but has _C"),
    ({"abi": "cp311t"}, {}, "should hold modules for cp311t, but has _C"),
    ({"libraries": (*LIBRARIES, "fourfold/_torch_2_14.so")}, {}, "for cp311, but has _torch_2_14.so"),
]
PRIVATE = "static int omp_lock(void) { return 1; } int fourfold_omp_lock(void) { return omp_lock(); }"


@linux_only
@pytest.mark.parametrize(("wheel", "built", "why"), WRONG)
def test_a_wrong_wheel_is_refused(wheel, built, why, tmp_path, monkeypatch):
    for name in ("nm", "readelf"):
        tool(name, "binutils")
    right = library(tmp_path, "-Wl,-rpath,$ORIGIN", text=PRIVATE, needed="libfourfold.so")
    wheel_checks.check(normal(make(tmp_path / "right", content=right)), "linux")
    content = library(tmp_path, **built) if built else right
    made = make(tmp_path, **{"content": content, **wheel})
    with pytest.raises(SystemExit, match=why):
        wheel_checks.check(made if "content" in wheel else normal(made), "linux")


@pytest.mark.parametrize(
    ("rpath", "loaded", "why"),
    [
        ("@loader_path", "@rpath/libtorch_cpu.dylib", None),
        ("/opt/lib", "@rpath/libtorch_cpu.dylib", r"in @loader_path only, but does in \['/opt/lib'\]"),
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


def test_a_wheel_is_for_the_oldest_system_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("AUDITWHEEL_PLAT", PLATFORM)
    for right in (PLATFORM, f"manylinux_2_17_{MACHINE}.manylinux2014_{MACHINE}"):
        wheel_checks.check_tags(make(tmp_path, right), "linux")
    with pytest.raises(SystemExit, match=f"should be for {PLATFORM} or older, but is for manylinux_2_34_"):
        wheel_checks.check_tags(make(tmp_path, f"manylinux_2_34_{MACHINE}"), "linux")
    of_macos = tuple(name.replace(f"{MACHINE}-linux-gnu", "darwin") for name in LIBRARIES)
    mac = make(tmp_path, "macosx_14_0_arm64", libraries=of_macos)
    wheel_checks.check_tags(mac, "darwin")
    monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", "15.0")
    with pytest.raises(SystemExit, match="should be for macosx_15_0_arm64"):
        wheel_checks.check_tags(mac, "darwin")


def test_a_wheel_in_another_form_is_refused(tmp_path, monkeypatch):
    made = make(tmp_path)
    with pytest.raises(SystemExit, match="members once and in order, but begins with fourfold-0.1.0.dist"):
        wheel_checks.check_normal_form(made)
    right = normal(made)
    wheel_checks.check_normal_form(right)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1764126245")
    with pytest.raises(SystemExit, match=r"should be of \(2025, 11, 26, 3, 4, 4\), but is of \(1980, 1, 1, 0, 0, 0\)"):
        wheel_checks.check_normal_form(right)
    wheel_checks.check_normal_form(normal(made))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(FIRST_OF_ZIP - 1))
    assert moment() == (1980, 1, 1, 0, 0, 0)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(SystemExit, match="expected SOURCE_DATE_EPOCH to be seconds since 1970, but got yesterday"):
        moment()


def test_a_wheel_is_tested_under_the_oldest_and_the_newest_torch_too():
    listed = ["2.10", "2.11", "2.13", "2.15"]
    assert wheel_tests.other_versions("2.13.0+cpu", listed) == ["2.10", "2.15"]
    assert wheel_tests.other_versions("2.15.0", ["2.15"]) == []
    assert all((ROOT / "tests" / f"test_{name}.py").exists() for name in wheel_tests.OF_TORCH)


@pytest.mark.parametrize(("system", "processor"), [("linux", "x86_64"), ("linux", "aarch64"), ("macos", "arm64")])
def test_wheels_are_for_every_python_and_have_every_level_and_module(system, processor):
    """A new version of cibuildwheel adds the next Python. pip's own builds are for one machine and its torch."""
    command = (tool("cibuildwheel", "cibuildwheel"), "--config-file", ROOT / "cibuildwheel.toml", "--platform", system)
    said = output_of(*command, "--archs", processor, "--print-build-identifiers", ROOT, cwd=ROOT)
    found = re.findall(r"^(cp3\d+t?)-(\S+)$", said, re.MULTILINE)
    assert {"cp310", "cp311", "cp312", "cp313", "cp314", "cp314t"} <= {python for python, _ in found}
    assert not {"cp38", "cp39", "cp313t"} & {python for python, _ in found}
    assert {where for _, where in found} == {f"{'macosx' if system == 'macos' else 'manylinux'}_{processor}"}
    released = tomllib.loads((ROOT / "cibuildwheel.toml").read_text())["tool"]["cibuildwheel"]["environment"]
    assert {"FOURFOLD_CPU_LEVELS": "ON", "FOURFOLD_TORCH_HEADERS": "ON"}.items() <= released.items()
