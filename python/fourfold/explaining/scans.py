"""Converts the record of scans to plain data."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from fourfold.compiler.nodes.fused import fused_nodes
from fourfold.compiler.nodes.loop import Loop
from fourfold.compiler.options import generator_of_environment
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.explaining import data, plans
from fourfold.explaining.data import Kept, Operators, Program, ScanHalf, Tensors, grouped
from fourfold.explaining.reading import (
    code_of,
    is_operator,
    left_of,
    operator_name,
    outside_of,
    program_of,
    shape,
    without_registries,
)
from fourfold.explaining.shapes import DEPENDS_ON_DATA, LoopCall, Shapes, faked, memory, new_mode
from fourfold.scanning import capture, record
from fourfold.scanning.fission import Kind, Phase
from fourfold.scanning.sequence import Whole
from fourfold.scanning.step_graphs import StepGraph

FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)(?:\n\s*(?!File ")(.*))?')
TRACING = (str(Path(torch.__file__).parent), str(Path(capture.__file__).parent))
PACKAGE = str(Path(capture.__file__).parents[1])


def scans_of(scans: Sequence[record.Scan]) -> tuple[data.Scan, ...]:
    return tuple(scan_of(group[0], len(group)) for group in grouped(scans, kind_of).values())


def kind_of(scan: record.Scan) -> tuple[object, ...]:
    """Equal for calls that run in the same way for tensors of the same shapes."""
    call = scan.call
    layouts = [(each.dtype, each.shape, each.stride()) for each in (*call.carries, *call.xs)]
    step = scan.recurrence and id(scan.recurrence)
    return code_of_step(scan), step, call.steps, call.reverse, scan.trains, scan.reason, scan.has_hooks, *layouts


def code_of_step(scan: record.Scan) -> object:
    return None if scan.step is None else capture.code_of(scan.step)


def scan_of(scan: record.Scan, count: int) -> data.Scan:
    names = names_of(scan)
    rows: dict[str, list[Tensors]] = {"carry": [], "x": [], "closure": []}
    for (role, _), name, own, value in names:
        rows[role].append(Tensors(name, own, shape(value)))
    forward = backward = None
    if scan.is_compiled:
        forward, backward = halves_of(scan, [name for _, name, _, _ in names])
    step, place = step_and_place(scan)
    tables = (tuple(each) for each in rows.values())
    return data.Scan(
        step,
        place,
        count,
        scan.call.steps,
        scan.call.reverse,
        *tables,
        re.sub("^it ", "the step ", scan.reason),
        scan.has_hooks,
        forward,
        backward,
    )


def step_and_place(scan: record.Scan) -> tuple[str, str]:
    """The step's name, and the file and line of its definition."""
    if scan.step is None:
        return "torch's scan operator", ""
    step = scan.step
    name = getattr(step, "__qualname__", None) or type(getattr(step, "func", step)).__name__
    code = capture.code_of(step)
    known = code is not capture.step_once.__code__
    place = f"{Path(code.co_filename).name}:{code.co_firstlineno}" if known else ""
    return name.rpartition("<locals>.")[2], place


Named = tuple[tuple[str, int], str, str, object]  # role and index, the user's name, the one in programs, one step's


def names_of(scan: record.Scan) -> list[Named]:
    """The inputs of the step's graph; the states and xs alone if there is none."""
    call, known = scan.call, names_of_leaves(scan)
    if scan.recurrence is None:
        values = [(("carry", k), value) for k, value in enumerate(call.carries)]
        values += [(("x", k), value.select(0, 0) if call.steps else value) for k, value in enumerate(call.xs)]
        return [(key, known[key], "", value) for key, value in values]
    captured, found = scan.recurrence.captured, []
    graph = scan.recurrence.graphs.forward
    for key, own, source, value in zip(captured.inputs, graph.inputs, captured.sources, scan.inputs, strict=True):
        role, k = key
        if role == "closure":
            name = name_of(source, scan.step) if source and scan.step is not None else ""
            found.append((key, name or own.name, own.name, value))
        else:
            one = value.select(0, 0) if role == "x" else value
            found.append((key, known.get(key, f"{role}[{k}]"), own.name, one))
    return found


def name_of(source: str, step: object) -> str:
    """The source as the step's author writes it."""
    return without_registries(re.sub(r"G\['__import_[^']*'\]\.", "", capture.readable(source, step)))


def names_of_leaves(scan: record.Scan) -> dict[tuple[str, int], str]:
    """The names of the states and the xs, from the step's parameters."""
    names = parameters(scan.step)
    found: dict[tuple[str, int], str] = {}
    if scan.structure is None:
        count = {"carry": len(scan.call.carries), "x": len(scan.call.xs)}
        return {(role, k): f"{role}[{k}]" for role in count for k in range(count[role])}
    trees = {"carry": scan.structure.carry, "x": scan.structure.xs}
    counts = {"carry": scan.structure.has_carry, "x": scan.structure.has_x}
    for (role, tree), name in zip(trees.items(), names, strict=True):
        leaves, _ = pytree.tree_flatten_with_path(tree(range(sum(counts[role]))))
        found |= {(role, k): name + pytree.keystr(path) for path, k in leaves if k is not None}
    return found


def parameters(step: object) -> tuple[str, str]:
    try:
        names = list(inspect.signature(getattr(step, "forward", step)).parameters)
    except (TypeError, ValueError):  # a builtin, or None
        names = []
    return (names[0], names[1]) if len(names) > 1 else ("carry", "x")


@dataclass(frozen=True)
class Half:
    """A forward or a backward in a call. function: the step's name. names: of the inputs of the sequence's graph,
    without the number of steps. results: the graph's; None if sizes depend on data, so that the values are unknown."""

    name: str
    function: str
    step: StepGraph
    whole: Whole
    compiled: Compiled
    names: Mapping[Node, str]
    results: Sequence[object] | None
    loop: LoopCall | None


def halves_of(scan: record.Scan, names: Sequence[str]) -> tuple[ScanHalf, ScanHalf | None]:
    halves, reverse, mode = scan.recurrence.graphs, scan.call.reverse, new_mode()
    inputs = [faked(mode, each) for each in scan.inputs]
    with mode, torch.no_grad():
        step, key = (halves.forward, "forward") if scan.trains else (halves.inference, "inference")
        forward = half_of("forward", scan, step, (key, reverse), names, [scan.call.steps, *inputs])
        if not scan.trains:
            return described(forward), None
        own = [forward.names.get(node, node.name) for node in step.kept]
        own += [f"gradient of {name}" for name in names_of_results(scan)]
        kept = gradients = None
        if forward.results is not None:
            count = len(halves.differentiable)
            kept = forward.results[count:]
            pairs = zip(forward.results[:count], halves.differentiable, strict=True)
            gradients = [torch.empty_like(each) for each, has_gradient in pairs if has_gradient]
        given = None if kept is None else [*kept, *gradients]
        backward = half_of("backward", scan, halves.backward, ("backward", not reverse), own, given)
        about_kept = () if kept is None else kept_of(forward, kept[1:], inputs)
        total = None if kept is None else bytes_in_all(about_kept)
        return replace(described(forward), kept=about_kept, kept_bytes=total), described(backward)


def names_of_results(scan: record.Scan) -> list[str]:
    """The names of the differentiable results, states first."""
    captured, halves = scan.recurrence.captured, scan.recurrence.graphs
    known = names_of_leaves(scan)
    names = [known[key] for key in (("carry", k) for k in range(len(captured.carries)))]
    names += [f"effect {k}" for k in range(len(captured.effects))] + ["changed"] * len(halves.changed)
    names += ["result" if len(captured.ys) == 1 else f"result {k}" for k in range(len(captured.ys))]
    return [name for name, has_gradient in zip(names, halves.differentiable, strict=False) if has_gradient]


def half_of(
    name: str,
    scan: record.Scan,
    step: StepGraph,
    key: tuple[str, bool],
    names: Sequence[str],
    inputs: Sequence[object] | None,
) -> Half:
    """key: of the sequence's graph. inputs: with the number of steps; None if unknown."""
    whole, compiled = scan.recurrence.wholes[key]
    shapes, results = Shapes(compiled.module), None
    with contextlib.suppress(*DEPENDS_ON_DATA):
        results = None if inputs is None else shapes.of_call(inputs)
    function = getattr(code_of_step(scan), "co_name", "")
    own = dict(zip(step.inputs, names, strict=True))
    return Half(name, function, step, whole, compiled, own, results, shapes.loop if results is not None else None)


def described(half: Half) -> ScanHalf:
    compiled, place = half.compiled, half.whole.fission.place
    places = ([node for node in half.step.graph.nodes if place.get(node) is each] for each in Phase)
    before, inside, after = (by_line(nodes, half.function) for nodes in places)
    loop = None if half.whole.loop is None else loop_of(compiled, half.whole.loop, half.loop)
    copied_parts, _, left = left_of(compiled)
    outside = outside_of([node for node in left if node.target is not half.whole.loop], copied_parts)
    around = tuple(map(program_of, fused_nodes(compiled.module.graph)))
    code = code_of(compiled.module)
    return ScanHalf(half.name, before, inside, after, trails_of(half), loop, around, outside, code)


def by_line(nodes: Sequence[Node], function: str) -> tuple[Operators, ...]:
    groups = grouped(filter(is_operator, nodes), lambda node: line_of(node, function))
    return tuple(Operators(line, tuple(map(operator_name, group))) for line, group in groups.items())


def line_of(node: Node, function: str) -> str:
    """The innermost line of the user's code that computes it. function: the step's name, which is omitted."""
    frames = FRAME.findall(node.meta.get("stack_trace") or "")
    frames = [frame for frame in frames if not frame[0].startswith(TRACING)]
    own = [frame for frame in frames if not frame[0].startswith(PACKAGE)] or frames  # otherwise a layer of this package
    if not own:
        return ""
    _, number, where, code = own[-1]
    place = f"line {number}" if where == function else f"line {number}, {where}"
    return f"{place}: {code.strip()}" if code else place


def trails_of(half: Half) -> tuple[str, ...]:
    """The states whose values of all steps are kept."""
    if half.whole.loop is None:
        return ()
    step = half.step
    # After the states the loop has sums, which are not trails.
    trails = [k for k, is_trail in zip(step.changing(), half.whole.loop.trails, strict=False) if is_trail]
    return tuple(half.names[step.reads[k]] for k in trails)


def loop_of(whole: Compiled, loop: Loop, call: LoopCall | None) -> data.Loop:
    """How the loop runs. call: None if sizes depend on data."""
    way, until, generator, plan = "steps", "", generator_of_environment(), plans.LoopPlan({})
    if reason := plans.obstacle(whole):
        way, plan = "python", plans.LoopPlan({"cpp": reason})
    elif call is None:
        plan = plans.LoopPlan(dict.fromkeys(("nest", "stages"), "sizes depend on data"))
    else:
        plan = plans.plan_of(whole, call, generator)
        without_nest = "steps" if "stages" in plan.reasons else "stages"
        way = without_nest if "nest" in plan.reasons else "nest"
        until = without_nest if way == "nest" and generator == "auto" else ""
    layout = plan.layout if way == "nest" else ""
    programs = [in_loop(program_of(node), layout) for node in fused_nodes(loop.body.module.graph)]
    copied_parts, _, left = left_of(loop.body)
    outside = outside_of(left, copied_parts)
    return data.Loop(way, until, plan.stages, plan.reasons, tuple(programs), outside, code_of(loop.body.module))


def in_loop(program: Program, layout: str) -> Program:
    """layout: of the nest over all steps; empty if there is none."""
    return replace(program, name=f"loop_{program.name}", layout=layout or program.layout)


def kept_of(forward: Half, values: Sequence[object], inputs: Sequence[object]) -> tuple[Kept, ...]:
    """values: what the forward keeps, in the order of step.kept."""
    owner = {memory(each): name for each, name in zip(inputs, forward.names.values(), strict=True) if is_tensor(each)}
    from_inputs = set(owner)
    loop = () if forward.loop is None else [row for row in forward.loop.rows if row is not None]
    of_loop = set(map(memory, loop))
    ys = forward.results[len(forward.step.states) :][: len(forward.step.series)]
    of_results = {memory(each) for each in ys if is_tensor(each)}
    found = []
    for node, value in zip(forward.step.kept, values, strict=True):
        has_steps = forward.whole.fission.kind[node] is not Kind.INVARIANT
        name = forward.names.get(node, node.name)
        if not is_tensor(value):
            found.append(Kept(name, shape(value), False, 0, "a number"))
            continue
        place = memory(value)
        one = value[0] if has_steps else value
        if place in from_inputs:
            bytes, note = 0, "an input" if owner[place] == name else f"a view of the input {owner[place]}"
        elif place in owner:
            bytes, note = 0, f"in the memory of {owner[place]}"
        else:
            count, owner[place] = value.untyped_storage().nbytes(), name
            bytes = count if isinstance(count, int) else None  # its size depends on data
            note = note_of(node, forward, place in of_loop) + ", also a result" * (place in of_results)
        found.append(Kept(name, shape(one), has_steps, bytes, note))
    return tuple(found)


def bytes_in_all(kept: Sequence[Kept]) -> int | None:
    sizes = [one.bytes for one in kept]
    return None if None in sizes else sum(sizes)


def note_of(node: Node, forward: Half, is_of_loop: bool) -> str:
    step = forward.step
    if node in step.reads:
        return "as each step begins"
    if node in step.states:
        read = step.reads[step.states.index(node)]
        return "a new state" if read is None else f"the new {forward.names[read]}"
    return "computed in the loop" if is_of_loop else "computed for all steps at once"


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)
