"""The step of check_backends.py for Windows: the calls of the operating system (cpp/system/windows.h), compiled by zig
and run with Wine if it is installed. Nothing else is compiled or run for Windows yet."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import backend_tools as tools
from backend_report import Refused, Report
from backend_tools import ROOT, WORK, run

TARGET = "x86_64-windows-gnu"


def compiler() -> Path:
    """A command that compiles C++ for Windows."""
    zig, folder = WORK / "zig", WORK / "windows"
    tools.python_packages(zig, tools.ZIG)
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / "c++"
    command.write_text(
        f"#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR='{folder / 'cache'}' PYTHONPATH='{zig}'\n"
        f"exec '{sys.executable}' -m ziglang c++ -target {TARGET} \"$@\"\n"
    )
    command.chmod(0o755)
    return command


def windows(report: Report) -> None:
    """It proves nothing about GPU backends: its outcome is a line of the report."""
    report.facts.append(f"windows: {ask_the_system()}; the library itself is unproved there")


def ask_the_system() -> str:
    """The output of tests/cpp/system.cpp under Wine."""
    command, folder = compiler(), WORK / "windows"
    program = folder / "system.exe"
    source = ROOT / "tests" / "cpp" / "system.cpp"
    options = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "cpp")
    log = folder / "system.log"
    if run(command, *options, source, "-o", program, log=log).returncode:
        raise Refused(f"what fourfold asks of the system does not compile for Windows; see {log.relative_to(ROOT)}")
    wine = shutil.which("wine64") or shutil.which("wine") or shutil.which("wine64", path="/usr/lib/wine")
    if wine is None:
        return "its calls of the system compiled, and not run: there is no Wine"
    with tempfile.TemporaryDirectory() as name:
        files = Path(name)
        (files / "digits").write_text("0123456789")
        (files / "empty").touch()
        # Wine creates the prefix, its system drive, in its first seconds.
        surroundings = os.environ | {"WINEPREFIX": str(WORK / "wine"), "WINEDEBUG": "-all", "DISPLAY": ""}
        words = [wine, str(program), "digits", "empty", "."]
        try:
            done = subprocess.run(words, cwd=files, env=surroundings, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            raise Refused("fourfold's calls of Windows did not end under Wine within 300 s") from None
    if done.returncode:
        raise Refused(f"fourfold's calls of Windows fail under Wine: {(done.stdout + done.stderr).strip()}")
    return f"its calls of the system run under Wine ({done.stdout.strip()})"
