"""Runs fourfold's compiled programs as GPU kernels in the simulator, with CPU tensors.

g++ replaces NVRTC and hipRTC: it compiles the same generated text into a library whose kernels the simulator runs.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from unittest import mock

import torch

from fourfold.compiler.nest.jit import service
from fourfold.devices import programs
from fourfold.devices.runtime_compiler import CompilationError
from simulated import BUILD, SANITIZERS, SIMULATORS, built, run

MODULES = SIMULATORS / "modules"
KERNEL = re.compile(r"__global__ void __launch_bounds__\(\d+\) (\w+)\(Arguments arguments\)")
# As on a GPU: no fused multiply-add unless the source has one, and integers wrap around.
FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-fwrapv", "-ffp-contract=off", "-fvisibility=hidden")


def flags_of(sanitizer: str) -> tuple[str, ...]:
    """A sanitizer's reports name lines."""
    return (*FLAGS, "-g1", *SANITIZERS[sanitizer])


def serve(library: str, record: str | None = None) -> None:
    """From here on, compiled functions run their programs on the library's device. record: a file to which each
    compiled program and layout is appended, as a line of JSON."""
    torch.ops.load_library(library)  # its operators are not called in this way
    simulator = ctypes.CDLL(library)
    sanitizer = Path(library).parent.name.split("-")[1]

    def compile(source: str, architecture: str, name: str) -> bytes:
        return compiled(source, Path(library), sanitizer)

    programs.LANGUAGES["hip"] = programs.Language("cuda", compile, lambda: None)
    programs.INTERPRETED.clear()
    if hasattr(simulator, "gpusim_metal_lend"):  # Apple's GPUs; the library itself compiles their kernels
        programs.WITHOUT_FLOAT64.add("cpu")
    if record is not None:
        note_programs(record)
    simulator.gpusim_run_programs()


def note_programs(file: str) -> None:
    compile_grid = service.Service.compile_grid

    def noted(self: service.Service, text: str, layout: str, target: str) -> None:
        with Path(file).open("a") as lines:
            lines.write(json.dumps([text, layout]) + "\n")
        compile_grid(self, text, layout, target)

    mock.patch.object(service.Service, "compile_grid", noted).start()


def compiled(source: str, simulator: Path, sanitizer: str) -> bytes:
    """A module for the simulator: the path of a library."""
    text = f'#include "device.h"\n{source}\n{"".join(map(entry, KERNEL.findall(source)))}'
    digest = hashlib.sha256(
        "\0".join((text, str(simulator), *(p.read_text() for p in sorted(MODULES.iterdir())))).encode()
    )
    folder = BUILD / "programs"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{digest.hexdigest()[:24]}.so"
    if not target.exists():
        file = target.with_suffix(f".{os.getpid()}.cpp")
        file.write_text(text)
        part = file.with_suffix(".so")
        command = ["g++", "-shared", *flags_of(sanitizer), "-I", precompiled(sanitizer).parent, "-I", MODULES]
        command += [file, "-o", part, simulator]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CompilationError(f"{' '.join(map(str, command))} failed", done.stderr)
        file.rename(target.with_suffix(".cpp"))
        part.rename(target)
    return f"{target}\0".encode()


@cache
def precompiled(sanitizer: str) -> Path:
    """device.h, whose standard headers take half of a program's compilation. g++ takes it where it finds it first."""

    def compile(_: Path, header: Path) -> None:
        run("g++", *flags_of(sanitizer), "-x", "c++-header", MODULES / "device.h", "-o", header)

    return built(f"device-{sanitizer}", "device.h.gch", compile, [MODULES], flags_of(sanitizer))


def entry(kernel: str) -> str:
    """The function through which the simulator calls a kernel."""
    exported = 'extern "C" __attribute__((visibility("default")))'
    return f"""
{exported} void {kernel}_call(const void* argument) {{
  fourfold::{kernel}(*static_cast<const fourfold::Arguments*>(argument));
}}
{exported} const std::size_t {kernel}_bytes = sizeof(fourfold::Arguments);
"""
