"""Converts the compiler's graphs to plain data; the only module here that reads them."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.fx.graph import dtype_abbrs

from fourfold import _C
from fourfold.compiler.analysis.concatenations import filled, source_of
from fourfold.compiler.analysis.in_place import COPY
from fourfold.compiler.analysis.parts import parts_of
from fourfold.compiler.analysis.support import REFUSAL, device_of, has_effect
from fourfold.compiler.analysis.views import VIEWS, has_hints, hint
from fourfold.compiler.ir.dtypes import NUMBERS
from fourfold.compiler.lowering import CONSTANT
from fourfold.compiler.lowering.decompositions import late
from fourfold.compiler.nodes.control_flow import ControlFlow
from fourfold.compiler.nodes.fused import STARTS, Fused, flat, fused_nodes
from fourfold.compiler.nodes.loop import Loop
from fourfold.compiler.nodes.subgraph import Subgraph
from fourfold.compiler.pipeline import record
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.devices import programs
from fourfold.explaining.data import Box, Graph, Half, Outside, Program, cut, plural

Inputs = dict[str, tuple[str, str]]
NO_REASON = "programs have no such operator"
KEPT_REASON = "torch's kernel is as fast as its pieces would be here"
CONSTANT_REASON = "a constant that torch's operators read, a result, or a part of one"
EFFECT = "it draws random numbers, writes to a tensor or has another effect"
COPIED = "torch's runtime writes an input's new value into it"
UPDATED = "an input's new value, which no program writes into it"
IN_BODIES = "control flow; each of its bodies is compiled, and programs in them have its name"
PARTLY = "programs write some of its parts where they belong, and the others are copied"
NOTES = {"kept": ("kept for the backward",), "saved": ("kept by the forward",)}
PLACE = re.compile(r"# File: .*?:(\d+) in (.*?), code: (.*)$")
DISABLED = re.compile(r"wrapped with `torch\.compiler\.disable` \(reason: (?!None\))(.+)\)$", re.MULTILINE)
# FX names programs, loops and control flow after their modules.
MODULE = re.compile(r"\bfourfold_compiler_nodes_(?:fused|loop|control_flow|subgraph)_(?=\w+\()")
CLEARS = re.compile(r";  [\w, =]+ = None$")

clipped = functools.partial(cut, most=30)  # for a line in a box


def short_reason(reason: str) -> str:
    """The first lines of torch's long text: the kind of break and its explanation; for a function that a package
    excludes from graphs, the package's reason."""
    if found := DISABLED.search(reason):
        return found[1]
    kept = [line.strip().removeprefix("Explanation: ") for line in reason.splitlines()[:2]]
    return ": ".join(line for line in kept if line and not line.startswith("Hint:"))


def graph_of(captured: record.CapturedGraph, parameters: Sequence[str], of: str) -> Graph:
    """of: a suffix that distinguishes several graphs, such as " of graph 1"."""
    primals = placeholders(captured.forward.graph)
    own = [input_name(node, parameters) for node in captured.graph.graph.find_nodes(op="placeholder")]
    names = dict(zip(primals, own if len(own) == len(primals) else primals, strict=True))
    traced = captured.forward.graph.graph.output_node().args[0]
    kept, backward = 0, None
    if captured.backward is not None:
        given = placeholders(captured.backward.graph)
        gradients = [name for name in given if name.startswith("tangents")]
        kept = len(given) - len(gradients)
        known = {name: (names.get(name, name), "saved") for name in given}
        wanted = results_of(len(gradients))
        known |= {name: (f"gradient of {one}", "gradient") for name, one in zip(gradients, wanted, strict=True)}
        backward = half_of(captured.backward, "backward", of, known, [f"gradient of {name}" for name in names.values()])
    results = results_of(len(traced) - kept) + [str(node) for node in traced[len(traced) - kept :]]
    known = {primal: (name, "input") for primal, name in names.items()}
    forward = half_of(captured.forward, "forward", of, known, results, kept, captured.copied)
    return Graph(code_of(captured.graph), captured.runtime, forward, backward)


def touched(node: Node) -> list[Node]:
    """The tensors, or parts of them, that an operator or a program reads and writes."""
    if isinstance(node.target, Fused):
        return [*(each for given in node.all_input_nodes for each in read_of(given, node)), node]
    return [node.args[1], node] if node.target is COPY else [*node.all_input_nodes, node]


def read_of(given: Node, node: Node) -> list[Node]:
    """The parts that a program reads of a tensor, or the tensor if they have as many elements."""
    parts = [part_read(own) for own, other in zip(node.target.inputs, node.args, strict=True) if other is given]
    sizes = [sum(map(elements_of, nodes)) for nodes in (parts, [given])]
    return parts if sizes[0] < sizes[1] else [given]


def part_read(own: Node) -> Node:
    """The last slice or selection of an input, which nothing else reads."""
    last, reader = own, own
    while own.meta[STARTS] and (reader := next(iter(reader.users), None)) is not None and is_view(reader):
        last = last if reader.target in VIEWS else reader
    return last


def elements_of(node: Node) -> int:
    value = node.meta["val"]
    return math.prod(map(hint, value.shape)) if isinstance(value, torch.Tensor) and has_hints(value) else 0


def placeholders(module: GraphModule) -> list[str]:
    return [node.name for node in module.graph.find_nodes(op="placeholder")]


def results_of(count: int) -> list[str]:
    return ["result"] if count == 1 else [f"result {k}" for k in range(count)]


def input_name(node: Node, parameters: Sequence[str]) -> str:
    """An input's name as in the user's code, such as x or self.linear.weight, from Dynamo's source."""
    name = getattr(getattr(node, "_dynamo_source", None), "name", None)
    name = name() if callable(name) else name
    if not isinstance(name, str):
        return node.name
    name = without_registries(name)
    name = re.sub(r"^[LG](?:\['kwargs'\])?\['(\w+)'\]", r"\1", name)
    return re.sub(r"^args\[(\d+)\]", lambda place: dict(enumerate(parameters)).get(int(place[1]), place[0]), name)


def without_registries(name: str) -> str:
    return re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", name)


def half_of(
    half: record.Half, name: str, of: str, inputs: Inputs, results: Sequence[str], kept: int = 0, copied: int = 0
) -> Half:
    """inputs: each placeholder's name and kind of box. results: their names. kept: how many of the last ones are
    saved."""
    graph, is_backward = half.compiled.module.graph, name == "backward"
    calls = fused_nodes(graph)
    copied_parts, done, left = left_of(half.compiled)
    inner = list(within(half.compiled))
    left_inside = [node for _, each in inner for node in left_of(each)[2]]
    inside = [(prefix, node) for prefix, each in inner for node in fused_nodes(each.module.graph)]
    every = [*calls, *(node for _, node in inside)]
    operators = [one for node in every for one in operators_of(node.target)] + left + left_inside

    def moves(node: Node) -> list[Node]:
        return copied_parts[node] * 2 if node in copied_parts else touched(node)

    traced = [node for node in half.graph.graph.nodes if is_operator(node) and not (is_backward and is_again(node))]
    updated = graph.output_node().args[0][:copied]
    return Half(
        name,
        f"The {name}{of}: {plural(len(operators), 'operator')}",
        code_of(half.graph),
        code_of(half.compiled.module),
        boxes_of(graph, inputs, is_backward, results, kept, done),
        (*map(program_of, calls), *(program_of(node, prefix) for prefix, node in inside)),
        outside_of(left + left_inside, copied_parts, copied),
        len(operators),
        sum(map(is_again, operators)) if is_backward else 0,
        moved(touched(node) for node in traced if node.target is not COPY),
        moved([*([node, node] for node in updated), *map(touched, calls), *map(moves, left)]),
    )


def left_of(compiled: Compiled) -> tuple[dict[Node, list[Node]], set[Node], list[Node]]:
    """The concatenations into which programs write parts, each with the other parts; the operators whose results are
    written in place; and the operators that torch runs."""
    constants = filled(compiled.module, compiled.concatenations)
    copied_parts = {
        node: [part for part in parts_left(node, written) if part not in constants]
        for node, written in compiled.concatenations.items()
    }
    done = {*compiled.updates, *compiled.overwritten, *(node for node, parts in copied_parts.items() if not parts)}
    return copied_parts, done, [node for node in compiled.nodes if is_operator(node) and node not in done]


def outside_of(left: Sequence[Node], copied_parts: Container[Node] = (), copied: int = 0) -> tuple[Outside, ...]:
    outside = Counter((operator_name(node), PARTLY if node in copied_parts else reason(node)) for node in left)
    outside += Counter({("copy_", COPIED): copied})
    return tuple(Outside(operator, count, why) for (operator, why), count in outside.items())


def parts_left(node: Node, written: Sequence[Node]) -> list[Node]:
    """The parts of a concatenation that no program writes."""
    parts, dim = parts_of(node)
    return [part for part in parts if source_of(part, dim) not in written]


def within(compiled: Compiled, prefix: str = "") -> Iterator[tuple[str, Compiled]]:
    """The bodies of control flow, and the graphs and bodies of loops, each with a prefix for its programs' names."""
    for node in compiled.nodes:
        bodies: Sequence[Compiled] = ()
        if isinstance(node.target, ControlFlow):
            bodies = [body.compiled for body in node.target.bodies]
        elif isinstance(node.target, (Loop, Subgraph)):
            bodies = [node.target.body if isinstance(node.target, Loop) else node.target.compiled]
        for k, body in enumerate(bodies):
            own = f"{prefix}{node.name}_" + (f"{k}_" if len(bodies) > 1 else "")
            yield own, body
            yield from within(body, own)


def program_of(node: Node, prefix: str = "") -> Program:
    names = tuple(map(operator_name, operators_of(node.target)))
    bytes = moved([touched(node)])
    device = device_of(node).type
    text = node.target.named(node.target.text)
    return Program(prefix + node.target.__name__, names, text, bytes, layout(node), device)


def layout(node: Node) -> str:
    """The layout of a program's tensors; empty if their sizes depend on data."""
    given = [values_of(one)[0] if isinstance(one, Node) else one for one in node.args]
    if not all(has_hints(value) for value in given if isinstance(value, torch.Tensor)):
        return ""
    place = programs.place_of(device_of(node))
    numbers = _C.program_numbers(node.target.text, *place)
    inputs = [
        (NUMBERS[value.dtype], list(map(hint, value.shape)), list(map(hint, value.stride())), 0)
        if isinstance(value, torch.Tensor)
        else (number, [], [], 0)
        for value, number in zip(given, numbers, strict=True)
    ]
    return _C.program_layout(node.target.text, *place, inputs)


def operators_of(fused: Fused) -> list[Node]:
    """The operators that it computes; if it only copies, the views that it copies."""
    return list(filter(is_operator, fused.members)) or [n for n in fused.members if n.target is not operator.getitem]


def reason(node: Node) -> str:
    if REFUSAL in node.meta:
        return node.meta[REFUSAL]
    if node.target is COPY:
        return UPDATED
    if isinstance(node.target, (ControlFlow, Loop, Subgraph)):
        return IN_BODIES
    if node.target in late():
        return KEPT_REASON
    return EFFECT if has_effect(node) else CONSTANT_REASON if node.target in CONSTANT else NO_REASON


def boxes_of(
    graph: torch.fx.Graph,
    inputs: Inputs,
    is_backward: bool,
    results: Sequence[str],
    kept: int,
    done: Container[Node],
) -> tuple[Box, ...]:
    """The boxes in topological order. done: updates and concatenations that programs write in place."""
    boxes: list[Box] = []
    box_of: dict[Node, str] = {}  # the box of each node; an item of several results shares its operator's
    outputs = graph.output_node().args[0][: len(results)]
    saved = outputs[len(outputs) - kept :]
    for node in graph.nodes:
        if node.op == "output" or not (node.users or is_operator(node)):
            continue
        reads = tuple(dict.fromkeys(box_of[one] for one in node.all_input_nodes))
        box_of[node] = reads[0] if node.target is operator.getitem else node.name
        if node in done and node.target is COPY:
            box_of[node] = box_of[node.args[1]]
            label = f"{inputs[node.args[0].name][0]}, in place"
            boxes.append(edge_box(node.name, "result", label, node, (box_of[node],)))
        elif node.op == "placeholder":
            label, kind = inputs[node.name]
            boxes.append(edge_box(node.name, "kept" if node in saved else kind, label, node))
        elif isinstance(node.target, Fused):
            boxes.append(Box(node.name, "program", lines_of_program(node), reads))
        elif node.target is not operator.getitem:
            kind = "view" if node in done or not is_operator(node) else "torch"
            kind = "again" if kind == "torch" and is_backward and is_again(node) else kind
            words = ", ".join(filter(None, [detail(node), "again" * (kind == "again")]))
            boxes.append(Box(node.name, kind, (title(node), words), reads))
    for k, (node, label) in enumerate(zip(outputs, results, strict=True)):
        is_kept = k >= len(outputs) - kept
        if node in box_of and not (is_kept and node.op == "placeholder"):
            boxes.append(edge_box(f"result {k}", "kept" if is_kept else "result", label, node, (box_of[node],)))
    return tuple(boxes)


def edge_box(name: str, kind: str, label: str, node: Node, reads: tuple[str, ...] = ()) -> Box:
    """The box of an input, or of a result, which has reads."""
    return Box(name, kind, (clipped(label), detail(node), *NOTES.get(kind, ())), reads)


def lines_of_program(node: Node) -> tuple[str, ...]:
    program, results = program_of(node), clipped(", ".join(map(detail, node.target.outputs)))
    return f"{program.name}: {plural(len(program.operators), 'operator')}", cut(program.counted, 60), results


def title(node: Node) -> str:
    """The operator with its numeric arguments."""
    words = [spelled(a) for a in node.args if a is not None and not any(isinstance(one, Node) for one in flat(a))]
    words += [f"{k}={spelled(v)}" for k, v in node.kwargs.items() if isinstance(v, (bool, int, float, torch.dtype))]
    return clipped(" ".join([operator_name(node), *(word for word in words if len(word) <= 16)]))


def spelled(value: object) -> str:
    if isinstance(value, torch.dtype):
        return dtype_abbrs[value]
    return f"{value:.6g}" if type(value) is float else str(value)


def detail(node: Node) -> str:
    return clipped(", ".join(filter(None, map(shape, values_of(node)))))


def shape(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_abbrs[value.dtype]}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{type(value).__name__.removeprefix('Sym').lower()} {value}"
    return ""


def operator_name(node: Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.removeprefix("aten::")
    return str(getattr(node.target, "__name__", node.target))


def is_operator(node: Node) -> bool:
    """Whether it is an operator: not a view, one of several results, a size or a program."""
    if node.op != "call_function" or node.target is operator.getitem or isinstance(node.target, Fused):
        return False
    return not is_view(node) and (any(isinstance(v, torch.Tensor) for v in values_of(node)) or has_effect(node))


def is_view(node: Node) -> bool:
    schema = node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None
    aliases = schema is not None and any(result.alias_info is not None for result in schema.returns)
    return node.target in VIEWS or aliases and not schema.is_mutable


def is_again(node: Node) -> bool:
    """Whether a node of the backward is recomputed: a copy of a forward node, not one that autograd wrote."""
    return "source_fn_stack" in node.meta


def values_of(node: Node) -> tuple[object, ...]:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def moved(steps: Iterable[Iterable[Node]]) -> int | None:
    """The bytes of the tensors in all steps; None if a size is unknown before run time."""
    values = [value for nodes in steps for node in nodes for value in values_of(node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.layout == torch.strided]
    return sum(map(bytes_of, tensors)) if all(map(has_hints, tensors)) else None


def bytes_of(value: torch.Tensor) -> int:
    """The bytes in memory: an expanded dimension counts as one element."""
    sizes = [hint(size) for size, stride in zip(value.shape, value.stride(), strict=True) if hint(stride) != 0]
    return math.prod(sizes) * value.element_size() * (0 not in value.shape)


def code_of(module: GraphModule) -> str:
    """The graph as Python, without statements that free values and without file paths."""
    text = MODULE.sub("", module.graph.python_code("self", verbose=True).src)
    given = {node.target: node.name for node in module.graph.find_nodes(op="placeholder") if node.target != node.name}
    for target, name in given.items():
        text = re.sub(rf"\n *{name} = {target}(?=\n)", "", text)
        text = re.sub(rf"\b{target}: ", f"{name}: ", text)
    lines = (PLACE.sub(r"# line \1, \2: \3", CLEARS.sub("", line.rstrip())) for line in text.splitlines())
    lines = [line for line in lines if line and "# No stacktrace" not in line]
    return "\n".join(lines) + "\n"
