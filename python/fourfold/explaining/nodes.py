"""What people read of a graph: the names of its nodes, their shapes, and which of them torch runs."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, GraphModule, Node

from fourfold.compiler.building import Built
from fourfold.compiler.lowering import CONSTANT, POINTWISE, ROWS, refusal
from fourfold.compiler.nodes import can_be_computed, keeps_its_place
from fourfold.compiler.record import Half
from fourfold.compiler.views import VIEWS, hint

LONGEST = 30  # of a name in a picture


def is_view(node: Node) -> bool:
    """Whether its result is memory of what it reads."""
    if node.target in VIEWS:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        return False
    return any(result.alias_info is not None for result in node.target._schema.returns)


def is_operator(node: Node) -> bool:
    """Whether it computes: not a view, one of several results, or a size."""
    if node.op != "call_function" or node.target is operator.getitem or is_view(node):
        return False
    return any(isinstance(value, torch.Tensor) for value in values_of(node)) or keeps_its_place(node)


def operators_of(built: Built) -> list[Node]:
    """What a program computes; of one that only copies, the view that it copies."""
    computing = [node for node in built.members if is_operator(node)]
    return computing or [node for node in built.members if node.target is not operator.getitem]


def viewed(node: Node) -> Node:
    """What a view, or a view of a view, shows."""
    while node.op == "call_function" and is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def is_recomputed(node: Node) -> bool:
    """Of a node in a backward: whether it is a copy of one of the forward's, which autograd's own are not."""
    return node.op == "call_function" and "source_fn_stack" in node.meta


def values_of(node: Node) -> tuple[object, ...]:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def operator_name(node: Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        namespace, _, name = node.target._schema.name.partition("::")
        return name if namespace == "aten" else f"{namespace}::{name}"
    return str(getattr(node.target, "__name__", node.target))


def clipped(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def title(node: Node) -> str:
    """The operator with the numbers that it is given."""
    words = [spelled(a) for a in node.args if not any(True for _ in nodes_in(a)) and a is not None]
    words += [f"{k}={spelled(v)}" for k, v in node.kwargs.items() if isinstance(v, (bool, int, float, torch.dtype))]
    return clipped(" ".join([operator_name(node), *(word for word in words if len(word) <= 16)]))


def spelled(value: object) -> str:
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def nodes_in(argument: object) -> Iterable[Node]:
    found: list[Node] = []
    torch.fx.map_arg(argument, found.append)
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """As torch.fx writes it: f32, bf16, i64, b8."""
    name = str(dtype).removeprefix("torch.")
    for long, short in (
        ("bfloat", "bf"),
        ("float", "f"),
        ("uint", "u"),
        ("int", "i"),
        ("complex", "c"),
        ("bool", "b8"),
    ):
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


def shape(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{type(value).__name__.removeprefix('Sym').lower()} {value}"
    return ""


def detail(node: Node) -> str:
    return clipped(", ".join(filter(None, map(shape, values_of(node)))), LONGEST)


def line_of(node: Node) -> str:
    """The line of Python that it comes from."""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    return lines[-1].strip() if len(lines) > 1 else ""


@dataclass
class Reading:
    """A graph, with what became of each node."""

    graph: Graph
    programs: list[Built]
    program: dict[Node, int] = field(default_factory=dict)  # of those within one
    run: set[Node] = field(default_factory=set)  # by torch

    @classmethod
    def of(cls, half: Half) -> Reading:
        programs = half.compiled.programs
        program = {node: k for k, built in enumerate(programs) for node in built.members}
        found = cls(half.graph.graph, programs, program)
        pending = [node for node in found.graph.nodes if node.op in ("placeholder", "output") or keeps_its_place(node)]
        seen: set[Node] = set()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in program:
                pending.extend(programs[program[node]].inputs)
                continue
            if node.op in ("call_function", "get_attr"):
                found.run.add(node)
            pending.extend(node.all_input_nodes)
        return found

    def bytes_before(self, is_backward: bool) -> int | None:
        operators = [
            node for node in self.graph.nodes if is_operator(node) and not (is_backward and is_recomputed(node))
        ]
        return moved(([*node.all_input_nodes], [node]) for node in operators)

    def bytes_after(self, copied: int) -> int | None:
        """copied: how many of the results, the first, torch copies into inputs."""
        steps = [([node], [node]) for node in self.graph.output_node().args[0][:copied]]
        steps += map(inputs_and_outputs, self.programs)
        steps += [([*node.all_input_nodes], [node]) for node in self.run if is_operator(node)]
        return moved(steps)


def inputs_and_outputs(built: Built) -> tuple[list[Node], list[Node]]:
    return list(dict.fromkeys(built.inputs)), built.outputs


def bytes_of_program(built: Built) -> int | None:
    return moved([inputs_and_outputs(built)])


def moved(steps: Iterable[tuple[list[Node], list[Node]]]) -> int | None:
    """Bytes read and written; None where a size is known only when it runs."""
    try:
        return sum(
            sum(bytes_of(node) for node in reads) + sum(bytes_of(node) for node in writes) for reads, writes in steps
        )
    except TypeError:
        return None


def bytes_of(node: Node) -> int:
    """Of the elements that lie in memory; an expanded dimension has one."""
    count = 0
    for value in values_of(node):
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            sizes = [hint(size) for size, stride in zip(value.shape, value.stride(), strict=True) if hint(stride) != 0]
            count += math.prod(sizes) * value.element_size() * (0 not in value.shape)
    return count


def why_outside(half: Half, node: Node) -> str:
    if node in half.compiled.left:
        return half.compiled.left[node]
    if keeps_its_place(node):
        return "it draws random numbers, writes to a tensor or has another effect"
    if node.target in CONSTANT:
        return "a constant that is kept, or that torch's operators read"
    if node.target in POINTWISE or node.target in ROWS:
        dtype = next((value.dtype for value in values_of(node) if isinstance(value, torch.Tensor)), torch.float32)
        refused = refusal(node.target, dtype, node.args, node.kwargs)
        if refused is not None:
            return refused
        if not can_be_computed(node):
            return "a tensor that programs don't take, for its dtype, layout, device or origin"
        if node.target in POINTWISE:
            return "no program was made of its group"
        return "a reduction that isn't over the last dimensions"
    return "no operation of programs"


CLEARS = re.compile(r";  [\w, =]+ = None$")
PLACE = re.compile(r"# File: .*?:(\d+) in (.*?), code: (.*)$")


def code_of(module: GraphModule) -> str:
    """The graph as Python, without the frame of a class, the ends of values, and the paths of files."""
    text = module.print_readable(print_output=False).rstrip()
    given = {node.target: node.name for node in module.graph.nodes if node.op == "placeholder"}
    given = {target: name for target, name in given.items() if target != name}
    if given:
        targets = "|".join(map(re.escape, given))
        text = re.sub(rf"\n *(\w+) = ({targets})(?=\n)", lambda m: "" if given[m[2]] == m[1] else m[0], text)
        text = re.sub(rf"\b({targets}): ", lambda m: f"{given[m[1]]}: ", text)
    lines: list[str] = []
    for line in text.splitlines():
        line = PLACE.sub(r"# line \1, \2: \3", CLEARS.sub("", line.rstrip()))
        if line or lines and lines[-1] and not lines[-1].endswith(":"):
            lines.append(line)
    if sum(line.lstrip().startswith("class ") for line in lines) == 1 and lines[0].startswith("class "):
        lines = [line.removeprefix("    ") for line in lines[1:]]
    return "\n".join(lines).strip("\n") + "\n"
