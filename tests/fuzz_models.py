"""Loads and runs randomly changed model files: whatever the bytes, the only failure is a Python exception.

    python tests/fuzz_models.py FOLDER SECONDS SEED

FOLDER has NAME.ff and NAME.pt, a list of calls as scripts/freeze_models.py writes it. The file that is being loaded is
FOLDER/current.ff, which remains after a crash. The same seed gives the same files.
"""

from __future__ import annotations

import copy
import json
import random
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fourfold

NUMBERS = (0, 1, -1, 2, 3, 7, 64, 127, 255, 256, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63))
WORDS = ("", "x", "float32", "int64", "bool", "inf", "nan", "cpu", "cuda", "aten::mm", "aten::add.Tensor", "add", "s0")
LARGEST = 1 << 26  # elements of a result that is compared; these models have no larger ones


def parts_of(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["fourfold.graph"]), data[8 + length :]


def joined(header: dict[str, Any], graph: dict[str, Any], rest: bytes) -> bytes:
    header["__metadata__"]["fourfold.graph"] = json.dumps(graph)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return struct.pack("<Q", len(text)) + text + rest


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or object with each of its keys."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield node, key
        yield from places(value)


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    found = bytearray(data)
    kind = draw.randrange(5)
    for _ in range(draw.choice((1, 1, 1, 2, 5, 20))):
        end = min(8 + length, len(found)) if draw.random() < 0.9 else len(found)
        if end <= 0:
            break
        at = draw.randrange(end)
        if kind == 0:
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            found[at] = draw.choice(b'0123456789-.,:[]{}"\\ntfe\x00\xff')
        elif kind == 2:
            del found[at : at + draw.choice((1, 2, 5, 100))]
        elif kind == 3:
            found[at:at] = found[at : at + draw.choice((1, 5, 50))]
        else:
            del found[at:]
    return bytes(found)


def changed_text(text: str, draw: random.Random) -> str:
    """Changes a program's text: removes, duplicates or swaps words, or replaces numbers."""
    lines = [line.split(" ") for line in text.split("\n")]
    for _ in range(draw.choice((1, 1, 2, 4))):
        line = draw.choice(lines)
        at = draw.randrange(len(line))
        kind = draw.randrange(6)
        if kind == 0:
            del line[at]
        elif kind == 1:
            line.insert(at, draw.choice(draw.choice(lines) or [""]))
        elif kind == 2:
            line[at] = draw.choice(draw.choice(lines) or [""])
        elif kind == 3:
            line[at] = str(draw.choice(NUMBERS))
        elif kind == 4:
            lines.insert(draw.randrange(len(lines)), list(line))
        else:
            lines.remove(line)
        lines = [each or [""] for each in lines] or [[""]]
    return "\n".join(map(" ".join, lines))


def changed_json(data: bytes, draw: random.Random) -> bytes:
    header, graph, rest = parts_of(data)
    root = graph if draw.random() < 0.85 else header
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        every = list(places(root))
        holder, key = draw.choice(every)
        value = holder[key]
        kind = draw.randrange(8)
        if isinstance(value, str) and value.startswith("fourfold program"):
            holder[key] = changed_text(value, draw)
        elif kind < 3 and isinstance(value, (int, float)) and not isinstance(value, bool):
            holder[key] = draw.choice((value + 1, value - 1, draw.choice(NUMBERS), value * 2))
        elif kind == 3 and isinstance(value, bool):
            holder[key] = not value
        elif kind == 4:
            del holder[key]
        elif kind == 5 and isinstance(holder, list):
            holder.insert(draw.randrange(len(holder) + 1), copy.deepcopy(value))
        elif kind == 6:
            other, own = draw.choice(every)
            holder[key] = copy.deepcopy(other.get(own) if isinstance(other, dict) else value)
        else:
            holder[key] = draw.choice((draw.choice(NUMBERS), draw.choice(WORDS), None, True, [], {}, 0.5, [value]))
    return joined(header, graph, rest)


def run(path: Path, calls: list[Any]) -> str:
    """Returns how far it got."""
    try:
        model = fourfold.load(path)
    except ValueError as error:
        assert str(error).startswith("load: "), error
        return "refused"
    str_of(model)
    said = "ran"
    for call in copy.deepcopy(calls):
        try:
            found = model._structure.unflatten(model._native(*call["arguments"]))
        except Exception:  # any, as torch's operators raise
            said = "raised"
        else:
            for leaf in torch.utils._pytree.tree_leaves(found):
                if isinstance(leaf, Tensor) and 0 < leaf.numel() < LARGEST:
                    leaf.double().sum().item()  # reads every element
    return said


def str_of(model: fourfold.Model) -> None:
    try:
        str(model)
    except Exception:  # keys that the text refers to and C++ doesn't read may be missing
        return


def main() -> None:
    folder, seconds, seed = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    seeds = {
        path.stem: (path.read_bytes(), torch.load(path.with_suffix(".pt"))) for path in sorted(folder.glob("[a-z]*.ff"))
    }
    seeds.pop("current", None)
    warnings.simplefilter("ignore")
    fourfold.load(next(folder.glob("[a-z]*.ff")))  # imports what loads files, before the time counts
    counts: dict[str, int] = {}
    end = time.monotonic() + seconds
    number = seed * 1_000_000_000
    while time.monotonic() < end:
        draw = random.Random(number)
        data, calls = seeds[draw.choice(list(seeds))]
        change = changed_bytes if draw.random() < 0.25 else changed_json
        try:
            changed = change(data, draw)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, UnicodeEncodeError):
            changed = data  # after the previous change there is no graph left to change
        current = folder / "current.ff"
        current.unlink(missing_ok=True)  # a loaded file stays mapped
        current.write_bytes(changed)
        said = run(current, calls)
        counts[said] = counts.get(said, 0) + 1
        number += 1
    print(number - seed * 1_000_000_000, counts)


if __name__ == "__main__":
    main()
