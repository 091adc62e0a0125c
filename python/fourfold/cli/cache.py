"""``python -m fourfold cache``: the machine code that is kept for other processes."""

from __future__ import annotations

import argparse
import json

from fourfold.cli.usage import Parser, UsageError

TEXT = """\
Print how much machine code of loop nests and GPU kernels is kept in the folder that FOURFOLD_CACHE names, and remove it
on request. FOURFOLD_CACHE_SIZE limits it, in MiB: the least recently used code is removed."""

EXAMPLES = """\
examples:
  python -m fourfold cache
  python -m fourfold cache --clear"""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    text = "show or clear the machine code in FOURFOLD_CACHE"
    parser = commands.add_parser("cache", help=text, description=TEXT, epilog=EXAMPLES)
    parser.add_argument("--clear", action="store_true", help="remove the code; processes that run it keep it")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fourfold.compiler.nest.jit import cache

    folder = cache.folder()
    if folder is None:
        raise UsageError(f"cache: expected {cache.VARIABLE} to name a folder, but it is not set, so no code is kept")
    try:
        limit = cache.limit()
    except ValueError as error:
        raise UsageError(f"cache: {str(error).partition(': ')[2]}") from None
    found = cache.entries(folder)
    size = sum(entry.size for entry in found)
    if options.clear:
        cache.remove(folder)
    if options.json:
        print(json.dumps({"folder": str(folder), "entries": len(found), "bytes": size, "limit": limit}))
        return 0
    what = "removed" if options.clear else "kept"
    print(f"{folder}: {len(found)} nests and kernels {what}, {size / 2**20:.1f} of at most {limit >> 20} MiB")
    return 0
