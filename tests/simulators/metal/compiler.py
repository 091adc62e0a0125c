"""The simulator's Metal compiler: a source as newLibraryWithSource: is given it, into a library that holds its kernel.

    python compiler.py source.metal library.so SIMULATOR [flags of g++]

SIMULATOR is the library that serves the kernel. The source ends in the instantiation of one kernel. What is wrong with
it goes to stderr.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
INSTANCE = re.compile(r'template \[\[host_name\("\w+"\)\]\] \[\[kernel\]\] decltype\((?P<kernel>.*)\) (?P=kernel);\n')
SIGNATURE = r"\[\[kernel, max_total_threads_per_threadgroup\((?P<threads>\w+)\)\]\] void %s\((?P<parameters>.*?)\) \{"
ATTRIBUTE = re.compile(r"\[\[(\w+)(?:\((\d+)\))?\]\]")
POSITIONS = {
    "thread_position_in_grid": "{position.grid}",
    "threadgroup_position_in_grid": "{position.group}",
    "thread_index_in_threadgroup": "{&position.index_in_group}",
    "thread_index_in_simdgroup": "{&position.lane}",
    "simdgroup_index_in_threadgroup": "{&position.simdgroup}",
}


class Refused(Exception):
    """The source has something that this compiler knows nothing of."""


def translated(source: str) -> str:
    """The source as C++, line by line what it was, with the way to call its kernel behind it."""
    instance = INSTANCE.search(source)
    if instance is None:
        raise Refused("error: the source instantiates no kernel")
    kernel = instance["kernel"]
    name = kernel.partition("<")[0]
    signature = re.search(SIGNATURE % re.escape(name), source, re.DOTALL)
    if signature is None:
        raise Refused(f"error: no kernel {name} that says how many threads its threadgroups have at most")
    parameters, arguments = [], []
    for parameter in signature["parameters"].split(","):
        found = ATTRIBUTE.search(parameter)
        if found is None:
            raise Refused(f"error: a parameter of {name} has no attribute, or a comma in its type: {parameter.strip()}")
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
            raise Refused(f"error: {name} has a parameter {what}({index}), which the simulator does not model")
    without = source.replace(instance[0], "\n")
    # The name of an address space in an attribute would be taken for the address space.
    without = re.sub(r" \[\[threadgroup\(\d+\)\]\]", "", without)
    return f"""{without}
#include "entry.h"
namespace fourfold {{
static void gpusim_metal_call(void* const* buffers) {{
  const GpusimMetalPosition position = gpusim_metal_position();
  (void)position;
  {kernel}({", ".join(arguments)});
}}
static GpusimMetalParameter gpusim_metal_parameters[] = {{{", ".join(parameters)}}};
extern "C" GPUSIM_METAL_EXPORTED const GpusimMetalKernel gpusim_metal_kernel = {{
  reinterpret_cast<const void*>(&{kernel}), {signature["threads"]}, {len(parameters)},
  gpusim_metal_describe(&{kernel}, gpusim_metal_parameters), gpusim_metal_call}};
}}
"""


def main() -> None:
    source, library, simulator, *flags = sys.argv[1:]
    target = Path(library)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes may ask for it at the same time
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
