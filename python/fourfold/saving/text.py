"""A model's graph as readable text."""

from __future__ import annotations

import json
from collections.abc import Iterator


def text_of(graph: str) -> str:
    return "\n".join(lines_of(json.loads(graph)))


def lines_of(graph: dict[str, object]) -> Iterator[str]:
    count = 0
    for tensor in graph["tensors"]:
        yield f"%{count} = {tensor['kind']} {tensor['name']}"
        count += 1
    for argument in graph["arguments"]:
        yield f"%{count} = argument {argument['name']}: {described(argument)}"
        count += 1
    for name, bounds in graph["symbols"].items():
        to = "" if bounds["maximum"] is None else f" to {bounds['maximum']}"
        yield f"{name} from {bounds['minimum']}{to}"
    yield from steps_of(graph["graph"], count, "")
    results = ", ".join(
        f"%{graph['graph']['outputs'][each['output']]}" if "output" in each else repr(each["constant"])
        for each in graph["results"]
    )
    yield f"return {results}"
    for k, program in enumerate(graph["programs"]):
        yield ""
        yield f"program {k}, {program['name']}:"
        yield from (f"  {line}" for line in program["text"].splitlines())


def described(argument: dict[str, object]) -> str:
    if "dtype" in argument:
        return f"{argument['dtype']} [{', '.join(map(size_of, argument['shape']))}]"
    return argument.get("number") or f"constant {argument['constant']!r}"


def size_of(size: object) -> str:
    if not isinstance(size, list):
        return str(size)
    operation, a, b = size
    return f"({size_of(a)} {'//' if operation == '/' else operation} {size_of(b)})"


def steps_of(graph: dict[str, object], count: int, indent: str) -> Iterator[str]:
    """count: of the values before the first step."""
    for step in graph["steps"]:
        made, what, inner = described_step(step)
        names = ", ".join(f"%{count + k}" for k in range(made))
        yield f"{indent}{names} = {what}" if made else f"{indent}{what}"
        if inner is not None:
            yield from steps_of(inner, len(step["inputs"]) - ("loop" in step), indent + "  ")
            yield f"{indent}  return {', '.join('None' if k is None else f'%{k}' for k in inner['outputs'])}"
        count += made


def described_step(step: dict[str, object]) -> tuple[int, str, dict[str, object] | None]:
    """How many results it has, the step in words, and the graph within it."""
    inputs = ", ".join(f"%{k}" for k in step.get("inputs", ()))
    if "operator" in step:
        arguments = ", ".join(f"{name}={argument_of(value)}" for name, value in step["arguments"].items())
        return step.get("results", 1), f"{step['operator']}({arguments})", None
    if "program" in step:
        updates = "".join(f", result {output} into %{value}" for output, value in step.get("updates", ()))
        return step.get("results", 1), f"program {step['program']}({inputs}){updates}", None
    if "item" in step:
        return 1, f"%{step['item'][0]}[{step['item'][1]}]", None
    if "constant" in step:
        return 1, f"constant {step['constant']}", None
    if "number" in step:
        return 1, f"{step['number']}({', '.join(map(argument_of, step['operands']))})", None
    if "concatenation" in step:
        own = step["concatenation"]
        what = f"memory for a concatenation {own['dtype']} {own['sizes']}, of {own['lengths']} along {own['dimension']}"
        return 1 + len(own["lengths"]), what, None
    if "loop" in step:
        body = step["loop"]["body"]
        backwards = ", last step first" if step["loop"]["reverse"] else ""
        return len(body["outputs"]), f"loop({inputs}){backwards}:", body
    return len(step["graph"]["outputs"]), f"graph({inputs}):", step["graph"]


def argument_of(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(argument_of, value))}]"
    if isinstance(value, dict):
        name, own = next(iter(value.items()))
        return f"%{own}" if name == "value" else str(own)
    return repr(value)
