"""The simulator's Metal compiler: compiles a source, as passed to newLibraryWithSource:, to a library with its kernels.

    python compiler.py source.metal library.so SIMULATOR [flags of g++]

SIMULATOR is the library that provides the kernels. The source instantiates one template, or has kernels with host_name
that are not templates. Errors go to stderr.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
INSTANCE = re.compile(r'template \[\[host_name\("(\w+)"\)\]\] \[\[kernel\]\] decltype\((?P<kernel>.*)\) (?P=kernel);\n')
BOUND, DEFINED = r"max_total_threads_per_threadgroup\((?P<threads>\w+)\)", r"\((?P<parameters>.*?)\) \{"
TEMPLATE = rf"\[\[kernel, {BOUND}\]\] void %s{DEFINED}"
PLAIN = re.compile(rf'\[\[kernel, host_name\("(\w+)"\), {BOUND}\]\] void (?P<kernel>\w+){DEFINED}', re.DOTALL)
ATTRIBUTE = re.compile(r"\[\[(\w+)(?:\((\d+)\))?\]\]")
POSITIONS = {
    "thread_position_in_grid": "{position.grid}",
    "threadgroup_position_in_grid": "{position.group}",
    "threadgroups_per_grid": "{position.groups}",
    "thread_index_in_threadgroup": "{&position.index_in_group}",
    "thread_index_in_simdgroup": "{&position.lane}",
    "simdgroup_index_in_threadgroup": "{&position.simdgroup}",
}


class Refused(Exception):
    """The source has something that this compiler doesn't support."""


@dataclass(frozen=True)
class Kernel:
    """name: the host's name for it. code: the expression that names it. parameters: the text up to its body."""

    name: str
    code: str
    threads: str
    parameters: str


def kernels_of(source: str) -> Iterator[Kernel]:
    for found in PLAIN.finditer(source):
        yield Kernel(found[1], found["kernel"], found["threads"], found["parameters"])
    for instance in INSTANCE.finditer(source):
        template = instance["kernel"].partition("<")[0]
        found = re.search(TEMPLATE % re.escape(template), source, re.DOTALL)
        if found is None:
            raise Refused(f"error: no kernel {template} that says how many threads its threadgroups have at most")
        yield Kernel(instance[1], instance["kernel"], found["threads"], found["parameters"])


def entry(kernel: Kernel) -> str:
    """The function through which the simulator calls it."""
    parameters, arguments = [], []
    for parameter in kernel.parameters.split(","):
        found = ATTRIBUTE.search(parameter)
        if found is None:
            what = f"a parameter of {kernel.name} has no attribute, or a comma in its type"
            raise Refused(f"error: {what}: {parameter.strip()}")
        what, index = found.groups()
        if what in POSITIONS:
            parameters.append("{GpusimMetalWhat::position, 0}")
            arguments.append(f"GpusimMetalVector{POSITIONS[what]}")
        elif what == "buffer":
            parameters.append(f"{{GpusimMetalWhat::buffer, {index}}}")
            arguments.append(f"GpusimMetal{'Value' if '&' in parameter else 'Buffer'}{{buffers[{index}]}}")
        elif what == "threadgroup" and index == "0":
            parameters.append(f"{{GpusimMetalWhat::group_memory, {index}}}")
            arguments.append("GpusimMetalBuffer{gpusim_metal_threadgroup_memory()}")
        else:
            raise Refused(f"error: {kernel.name} has a parameter {what}({index}), which the simulator does not model")
    return f"""
static GpusimMetalParameter gpusim_parameters_of_{kernel.name}[] = {{{", ".join(parameters)}}};
static void gpusim_call_of_{kernel.name}(void* const* buffers) {{
  const GpusimMetalPosition position = gpusim_metal_position();
  (void)position;
  {kernel.code}({", ".join(arguments)});
}}
"""


def translated(source: str) -> str:
    """The source as C++ with the same line numbers, followed by the functions that call its kernels."""
    kernels = list(kernels_of(source))
    if not kernels:
        raise Refused("error: the source has no kernel that a host can ask for")
    # The name of an address space in an attribute would be replaced too.
    without = re.sub(r" \[\[threadgroup\(\d+\)\]\]", "", INSTANCE.sub("\n", source))
    rows = "".join(
        f"""
  {{"{kernel.name}", reinterpret_cast<const void*>(&{kernel.code}), {kernel.threads},
   sizeof gpusim_parameters_of_{kernel.name} / sizeof(GpusimMetalParameter),
   gpusim_metal_describe(&{kernel.code}, gpusim_parameters_of_{kernel.name}), gpusim_call_of_{kernel.name}}},"""
        for kernel in kernels
    )
    return f"""{without}
#include "entry.h"
namespace fourfold {{
{"".join(map(entry, kernels))}
extern "C" GPUSIM_METAL_EXPORTED const GpusimMetalKernel gpusim_metal_kernels[] = {{{rows}
  {{}}}};
}}
"""


def main() -> None:
    source, library, simulator, *flags = sys.argv[1:]
    target = Path(library)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes may compile it at the same time
        if target.exists():
            return
        text = target.with_suffix(".cpp")
        try:
            text.write_text(translated(Path(source).read_text()))
        except Refused as why:
            sys.exit(str(why))
        partial = target.with_suffix(".partial")
        command = ["g++", "-std=c++20", "-O1", "-g1", "-w", "-fPIC", "-shared", "-fvisibility=hidden"]
        command += ["-isystem", str(HERE / "run"), *flags, str(text), "-o", str(partial), simulator]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        partial.rename(target)


if __name__ == "__main__":
    main()
