"""Published models in fresh processes: load and first call in Python and in C++, a warm call in both, and memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import fourfold
from benchmarks import files
from benchmarks.cold import median
from benchmarks.published.case import example
from benchmarks.results import Report
from benchmarks.suites import target
from benchmarks.targets import OURS, Outcome
from fourfold import _native
from fourfold.saving import objects
from fourfold.saving.tree import LEAF, Tree, items_of

# By model the shapes of a call, as `python -m fourfold objects --call` takes them.
SHAPES = {
    "silero_vad": "1x512",
    "deepfilternet3": "1x480",
    "english_g2": "1x1x64x256",
    "resemblyzer": "1x160x40",
    "kraken_segmentation": "1x3x600x428",
    "g2p_en": "1x8",
    "kokoro_text": "1x60,1x128",
    "causal_transformer": "1x512",
}
START, CPP_START = "load and first call in Python, ms", "in C++, ms"
WARM, INTERPRETED, COMPILED = "a later call in Python, µs", "in C++, interpreted, µs", "in C++, compiled, µs"
PLAIN_MEMORY, MEMORY = "memory of plain PyTorch, MB", "of fourfold in C++, MB"
AIMED = {START: "Python", CPP_START: "C++"}
REPEATS = 3


def table(names: Sequence[str], folder: Path, quick: bool) -> Report:
    """Empty where the C++ program can't be built."""
    program = files.cpp_program(folder / "cpp")
    if program is None:
        return Report("start", (), notes=["The C++ program couldn't be built: there is no table of start and memory."])
    found = {name: figures_of(name, folder, program, 1 if quick else REPEATS) for name in names}
    return Report(
        title="Start, C++ and memory",
        headings=("", START, CPP_START, WARM, INTERPRETED, COMPILED, PLAIN_MEMORY, MEMORY),
        cells=[(name, *(f"{number:,.1f}" for number in row.values())) for name, row in found.items()],
        figures=[{"model": name, **row} for name, row in found.items()],
        outcomes=[
            Outcome(target("Silero VAD, load and first frame", against), "silero_vad", found["silero_vad"][key])
            for key, against in AIMED.items()
            if "silero_vad" in found
        ],
    )


def figures_of(name: str, folder: Path, program: Path, repeats: int) -> dict[str, float]:
    """Medians, in the units of the headings."""
    path, results = folder / f"start_{name}.ff", folder / "results.pt"
    example(name).save(str(path))
    leaves = leaves_of(path, SHAPES[name].split(","))
    torch.save([leaves], folder / "calls.pt")
    torch.save(arguments_of(path, leaves), folder / "inputs.pt")
    library = loops_of(path, SHAPES[name], folder)
    found: list[dict[str, float]] = []
    for _ in range(repeats):
        command = [sys.executable, "-m", "benchmarks.first_file"]
        ours = json.loads(files.run([*command, OURS, path, folder / "inputs.pt", results]).splitlines()[-1])
        plain = json.loads(files.run([*command, "model", name, folder / "inputs.pt", results]).splitlines()[-1])
        cpp = [program, path, folder / "calls.pt", results, 2000]
        interpreted = words_of(files.run(cpp))
        compiled = words_of(files.run(cpp, LD_PRELOAD=str(library)))
        found.append(
            {
                START: ours["load"] + ours["first call"],
                CPP_START: interpreted["load"] + interpreted["first"],
                WARM: 1e3 * ours["warm call"],
                INTERPRETED: 1e3 * interpreted["warm"],
                COMPILED: 1e3 * compiled["warm"],
                PLAIN_MEMORY: plain["memory"],
                MEMORY: interpreted["memory"],
            }
        )
    return {key: median([one[key] for one in found]) for key in found[0]}


def words_of(said: str) -> dict[str, float]:
    return {name: float(number) for name, number in map(str.split, said.splitlines())}


def leaves_of(path: Path, shapes: Sequence[str]) -> list[Any]:
    """A call's; those of a stream's state are zeros."""
    native = fourfold.load(path)._native
    graph, *_, state = _native.module.describe_model(native)
    arguments, own = json.loads(graph)["arguments"], {argument for argument, _ in state}
    given = list(objects.leaves_of([each for k, each in enumerate(arguments) if k not in own], shapes))
    if not own:
        return given
    stream = _native.module.Stream(native, {})
    stream(*given)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in _native.module.state_of_stream(stream).items()}
    others = iter(given)
    return [zeros[each["name"]] if k in own else next(others) for k, each in enumerate(arguments)]


def arguments_of(path: Path, leaves: Sequence[Any]) -> tuple[Any, ...]:
    """As a call in Python passes them."""
    given: Iterator[Any] = iter(leaves)

    def nested(tree: Tree) -> Any:
        return next(given) if tree == LEAF else [nested(item) for item in items_of(tree)]

    return tuple(map(nested, fourfold.load(path)._structure.args["tuple"]))


def loops_of(path: Path, shapes: str, folder: Path) -> Path:
    """The model's compiled loops as a library: one program can load those of each model."""
    made, library = folder / "loops.o", folder / f"{path.stem}.so"
    command = [sys.executable, "-m", "fourfold", "objects", path, "--call", shapes, "--threads", 1, "-o", made]
    files.run(command)
    files.run(["c++", "-shared", "-o", library, made])
    return library
