"""Reads the kernels' sources with a compiler that only checks them."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Each source of a backend defines these, in its own translation unit.
OF_EACH = ("add_kernels", "elementwise_kernels")


def refusals(sources: Mapping[str, Path], all_of_them: Path, command: Callable[[Path], list[str]]) -> dict[str, str]:
    """The compiler's first error in each source that has one, by name.

    It reads all sources as one, `all_of_them`, which this writes: most of the time goes into their common headers. Only
    after an error does it read each alone, to find which has it.
    """
    all_of_them.write_text("".join(included(name, path) for name, path in sources.items()))
    why = error(command(all_of_them))
    if not why:
        return {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = list(pool.map(lambda path: error(command(path)), sources.values()))
    return {name: said for name, said in zip(sources, errors, strict=True) if said} or dict.fromkeys(sources, why)


def included(name: str, path: Path) -> str:
    """The lines that include a source, and leave none of its own macros behind."""
    macros = re.findall(r"^#define (\w+)", path.read_text(), re.MULTILINE)
    renamed = [f"#define {each} {each}_of_{name}" for each in OF_EACH]
    return "\n".join([*renamed, f'#include "{path}"', *(f"#undef {each}" for each in (*OF_EACH, *macros)), ""])


def error(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return next((line for line in said if "error:" in line), said[0] if said else f"exit code {done.returncode}")
