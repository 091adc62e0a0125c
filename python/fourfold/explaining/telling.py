"""From what was observed to what is told of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

import fourfold
from fourfold.compiler import record
from fourfold.compiler.building import Built
from fourfold.explaining.explanation import Explanation, Graph, Half, Outside, Program, Stage, plural
from fourfold.explaining.nodes import (
    Reading,
    bytes_of_program,
    code_of,
    is_operator,
    is_recomputed,
    operator_name,
    operators_of,
    why_outside,
)
from fourfold.explaining.picture import Drawing, Names
from fourfold.explaining.running import Observed, Seen

MOST_DESCRIBED = 12  # programs, to one who listens
STAGES = {
    "load": "load torch's compiler",
    "capture": "capture (torch)",
    "differentiate": "differentiate (torch)",
    "forward": "programs of the forward",
    "backward": "programs of the backward",
    "first call": "a first call, in all",
    "later forward": "a later call, forward",
    "later backward": "a later call, backward",
}


def explained(f: Callable[..., Any], observed: Observed) -> Explanation:
    name = getattr(f, "__qualname__", None) or type(getattr(f, "_orig_mod", f)).__name__
    cold, warm = observed.cold, observed.warm
    absent = set() if any(seen.captured.backward is not None for seen in observed.seen) else {"backward"}
    absent |= set() if observed.seen else {"differentiate", "forward"}
    stages = [
        Stage(words, cold.get(key), warm.get(key))
        for key, words in STAGES.items()
        if (key in cold or key in warm) and key not in absent
    ]
    return Explanation(
        name.rpartition("<locals>.")[2],
        f"fourfold {fourfold.__version__}, torch {torch.__version__}",
        tuple(graph_of(seen, place if len(observed.seen) > 1 else None) for place, seen in enumerate(observed.seen)),
        tuple(short_reason(reason) for reason in observed.breaks),
        tuple(stages),
        observed.compilations,
    )


def short_reason(reason: str) -> str:
    """Of torch's page of text what it is and why."""
    kept = [line.strip().removeprefix("Explanation: ") for line in reason.splitlines()[:2]]
    return ": ".join(line for line in kept if line and not line.startswith("Hint:"))


def graph_of(seen: Seen, place: int | None) -> Graph:
    captured = seen.captured
    of = "" if place is None else f" of graph {place}"
    inputs, kept = forward_inputs(seen), kept_by(captured)
    primals = [node for node in captured.forward.graph.graph.nodes if node.op == "placeholder"]
    forward = half_of(
        captured.forward,
        "forward",
        of,
        Names(inputs, ["input"] * len(primals), results_of(captured, kept), kept),
        captured.copied,
    )
    backward = None
    if captured.backward is not None:
        names, kinds = backward_inputs(captured.backward, dict(zip((p.name for p in primals), inputs, strict=True)))
        backward = half_of(
            captured.backward, "backward", of, Names(names, kinds, [f"gradient of {name}" for name in inputs])
        )
    return Graph(code_of(captured.graph), captured.runtime, forward, backward)


def forward_inputs(seen: Seen) -> list[str]:
    primals = [node.name for node in seen.captured.forward.graph.graph.nodes if node.op == "placeholder"]
    return seen.names if len(seen.names) == len(primals) else primals


def backward_inputs(half: record.Half, primals: dict[str, str]) -> tuple[list[str], list[str]]:
    """The names of a backward's inputs, and their kinds: what the forward has kept, and the results' gradients."""
    given = [node.name for node in half.graph.graph.nodes if node.op == "placeholder"]
    gradients = [name for name in given if name.startswith("tangents")]
    words = {name: "gradient of result" + (f" {k}" if len(gradients) > 1 else "") for k, name in enumerate(gradients)}
    names = [words.get(name) or primals.get(name, name) for name in given]
    return names, ["gradient" if name in words else "saved" for name in given]


def kept_by(captured: record.Captured) -> int:
    """How many of the forward's results are for its backward."""
    if captured.backward is None:
        return 0
    return sum(kind == "saved" for kind in backward_inputs(captured.backward, {})[1])


def results_of(captured: record.Captured, kept: int) -> list[str]:
    results = captured.forward.graph.graph.output_node().args[0]
    count = len(results) - kept if isinstance(results, (tuple, list)) else 1
    return ["result"] if count == 1 else [f"result {k}" for k in range(count)]


def half_of(half: record.Half, name: str, of: str, names: Names, copied: int = 0) -> Half:
    reading = Reading.of(half)
    drawing = Drawing(reading, names)
    programs = tuple(program_of(built, k) for k, built in enumerate(half.compiled.programs))
    outside = outside_of(half, reading)
    if copied:
        outside += (Outside("copy_", copied, "torch's runtime writes into an input what it becomes"),)
    operators = [node for built in half.compiled.programs for node in operators_of(built)]
    operators += [node for node in reading.run if is_operator(node)]
    return Half(
        name,
        code_of(half.graph),
        half.compiled.source,
        drawing.sketch(),
        f"The {name}{of}: {plural(len(operators), 'operator')}",
        described(programs, outside),
        programs,
        outside,
        len(operators),
        sum(map(is_recomputed, operators)) if name == "backward" else 0,
        reading.bytes_before(name == "backward"),
        reading.bytes_after(copied),
    )


def described(programs: Sequence[Program], outside: Sequence[Outside]) -> str:
    """What a picture shows, for those who can't see it."""
    words = [f"{one.name} does {', '.join(one.operators)}." for one in programs[:MOST_DESCRIBED]]
    words += [f"There are {len(programs)} such programs."] if len(programs) > MOST_DESCRIBED else []
    words += [f"Torch runs {', '.join(f'{one.count} {one.operator}' for one in outside)}."] if outside else []
    return " ".join(words)


def program_of(built: Built, number: int) -> Program:
    operators = tuple(map(operator_name, operators_of(built)))
    text = built.program.text()
    return Program(f"program_{number}", operators, text, bytes_of_program(built), renamed(text))


def renamed(text: str) -> str:
    """With names in the order in which they come up: the tensors' differ from one layer of a model to the next."""
    names = {name: f"v{k}" for k, name in enumerate(re.findall(r"^(\w+): ", text, re.MULTILINE))}
    return re.sub(r"[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), text)


def outside_of(half: record.Half, reading: Reading) -> tuple[Outside, ...]:
    found: Counter[tuple[str, str]] = Counter()
    for node in reading.graph.nodes:
        if node in reading.run and is_operator(node):
            found[operator_name(node), why_outside(half, node)] += 1
    return tuple(Outside(name, count, reason) for (name, reason), count in found.items())
