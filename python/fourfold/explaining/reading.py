"""What the compiler's graphs say, as plain data: the only module here that reads them."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

import fourfold
from fourfold.compiler import record
from fourfold.compiler.fused import Fused
from fourfold.compiler.lowering import CONSTANT
from fourfold.compiler.support import REFUSAL, has_effect
from fourfold.compiler.views import VIEWS, hint
from fourfold.explaining.data import Box, Graph, Half, Outside, Program, Stage, plural
from fourfold.explaining.explanation import Explanation
from fourfold.explaining.running import Observed, Seen

Inputs = dict[str, tuple[str, str]]
LONGEST = 30  # of a line in a box
NO_REASON = "programs have no such operator"
CONSTANT_REASON = "a constant that torch's operators read, or a result"
EFFECT = "it draws random numbers, writes to a tensor or has another effect"
COPIED = "torch's runtime writes an input's new value into it"
PLACE = re.compile(r"# File: .*?:(\d+) in (.*?), code: (.*)$")
CLEARS = re.compile(r";  [\w, =]+ = None$")
DTYPES = {"bfloat": "bf", "float": "f", "uint": "u", "int": "i", "complex": "c", "bool": "b8"}


def explained(f: Callable[..., Any], observed: Observed) -> Explanation:
    name = getattr(f, "__qualname__", None) or type(getattr(f, "_orig_mod", f)).__name__
    cold, warm = observed.cold, observed.warm
    graphs = [
        graph_of(seen, f" of graph {k}" if len(observed.seen) > 1 else "") for k, seen in enumerate(observed.seen)
    ]
    return Explanation(
        name.rpartition("<locals>.")[2],
        f"fourfold {fourfold.__version__}, torch {torch.__version__}",
        tuple(graphs),
        tuple(map(short_reason, observed.breaks)),
        tuple(Stage(stage, cold.get(stage), warm.get(stage)) for stage in cold | warm),
        observed.compilations,
    )


def short_reason(reason: str) -> str:
    """Of torch's page of text what it is and why."""
    kept = [line.strip().removeprefix("Explanation: ") for line in reason.splitlines()[:2]]
    return ": ".join(line for line in kept if line and not line.startswith("Hint:"))


def graph_of(seen: Seen, of: str) -> Graph:
    """of: what tells it from other graphs, " of graph 1"."""
    captured = seen.captured
    primals = [node.name for node in captured.forward.graph.graph.find_nodes(op="placeholder")]
    names = seen.names if len(seen.names) == len(primals) else primals
    kept, backward = 0, None
    if captured.backward is not None:
        given = [node.name for node in captured.backward.graph.graph.find_nodes(op="placeholder")]
        gradients = [name for name in given if name.startswith("tangents")]
        kept = len(given) - len(gradients)
        known = {name: (name, "saved") for name in given}
        known |= {p: (name, "saved") for p, name in zip(primals, names, strict=True) if p in known}
        known |= {g: (f"gradient of result{number(k, gradients)}", "gradient") for k, g in enumerate(gradients)}
        backward = half_of(captured.backward, "backward", of, known, [f"gradient of {name}" for name in names])
    traced = captured.forward.graph.graph.output_node().args[0]
    count = len(traced) - kept
    results = [f"result{number(k, range(count))}" for k in range(count)] + [str(node) for node in traced[count:]]
    known = {p: (name, "input") for p, name in zip(primals, names, strict=True)}
    forward = half_of(captured.forward, "forward", of, known, results, kept, captured.copied)
    return Graph(code_of(captured.graph), captured.runtime, forward, backward)


def number(k: int, among: Sequence[object]) -> str:
    return f" {k}" if len(among) > 1 else ""


def half_of(
    half: record.Half, name: str, of: str, inputs: Inputs, results: Sequence[str], kept: int = 0, copied: int = 0
) -> Half:
    """inputs: of each placeholder its name and its kind of box. results: their names. kept: so many of the last."""
    module, is_backward = half.compiled.module, name == "backward"
    calls = [node for node in module.graph.nodes if isinstance(node.target, Fused)]
    programs = tuple(program_of(node) for node in calls)
    left = [node for node in module.graph.nodes if is_operator(node)]
    counts = Counter((operator_name(node), reason(node)) for node in left)
    outside = [Outside(operator, count, why) for (operator, why), count in counts.items()]
    outside += [Outside("copy_", copied, COPIED)] if copied else []
    operators = [one for node in calls for one in operators_of(node.target)] + left
    traced = [node for node in half.graph.graph.nodes if is_operator(node) and not (is_backward and is_again(node))]
    updated = module.graph.output_node().args[0][:copied]
    return Half(
        name,
        f"The {name}{of}: {plural(len(operators), 'operator')}",
        code_of(half.graph),
        code_of(module),
        boxes_of(module.graph, inputs, results, kept, is_backward),
        programs,
        tuple(outside),
        len(operators),
        sum(map(is_again, operators)) if is_backward else 0,
        moved([*node.all_input_nodes, node] for node in traced),
        moved([*([node, node] for node in updated), *([*node.all_input_nodes, node] for node in (*calls, *left))]),
    )


def program_of(node: Node) -> Program:
    fused = node.target
    names = tuple(map(operator_name, operators_of(fused)))
    return Program(fused.__name__, names, fused.text, moved([[*node.all_input_nodes, node]]))


def operators_of(fused: Fused) -> list[Node]:
    """What it computes; of one that only copies, the views that it copies."""
    return list(filter(is_operator, fused.members)) or [n for n in fused.members if n.target is not operator.getitem]


def reason(node: Node) -> str:
    if REFUSAL in node.meta:
        return node.meta[REFUSAL]
    return EFFECT if has_effect(node) else CONSTANT_REASON if node.target in CONSTANT else NO_REASON


def boxes_of(
    graph: torch.fx.Graph, inputs: Inputs, results: Sequence[str], kept: int, is_backward: bool
) -> tuple[Box, ...]:
    """Each after those that it reads. A program's own results have no boxes and no names."""
    boxes: dict[str, Box] = {}
    box_of: dict[Node, str] = {}  # what an item of several results is part of
    outputs = graph.output_node().args[0][: len(results)]
    saved = set(outputs[len(results) - kept :])
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        if node.op == "output" or not (node.users or is_operator(node)):
            continue
        reads = tuple(dict.fromkeys(box_of[one] for one in node.all_input_nodes))
        box_of[node], labels[node] = node.name, inputs.get(node.name, (node.name,))[0]
        if node.op == "placeholder":
            boxes[node.name] = input_box(node, *inputs[node.name], node in saved)
        elif isinstance(node.target, Fused):
            owns = zip(node.target.inputs, node.args, strict=True)
            given = {own.name: (labels[arg] if isinstance(arg, Node) else str(arg), "given") for own, arg in owns}
            inside = boxes_of(node.target.graph, given, (), 0, is_backward)
            count = plural(len(operators_of(node.target)), "operator")
            words = (f"{node.target.__name__}: {count}", clipped(", ".join(map(detail, node.target.outputs))))
            boxes[node.name] = Box(node.name, "program", words, program_of(node).counted, reads, inside)
        elif node.target is operator.getitem:
            box_of[node] = reads[0]
        else:
            boxes[node.name] = operator_box(node, reads, is_backward and is_again(node), not results)
    for k, (node, label) in enumerate(zip(outputs, results, strict=True)):
        is_kept = k >= len(results) - kept
        if isinstance(node, Node) and node in box_of and not (is_kept and node.op == "placeholder"):
            lines = (clipped(label), detail(node), *(["kept for the backward"] if is_kept else []))
            kind = "kept" if is_kept else "result"
            boxes[f"result {k}"] = Box(f"result {k}", kind, lines, label, (box_of[node],))
    return tuple(boxes.values())


def input_box(node: Node, label: str, kind: str, is_kept: bool) -> Box:
    kind = "kept" if is_kept else kind
    words = {"kept": ["kept for the backward"], "saved": ["kept by the forward"]}.get(kind, [])
    return Box(node.name, kind, (clipped(label), detail(node), *words), f"{kind}: {label}", ())


def operator_box(node: Node, reads: tuple[str, ...], again: bool, inner: bool) -> Box:
    kind = "view" if not is_operator(node) else "again" if again else "operator" if inner else "torch"
    words = ", ".join(filter(None, [detail(node), "again" if again else ""]))
    tip = f"{node.name} = {operator_name(node)}({', '.join(one.name for one in node.all_input_nodes)})"
    tip += f"\ntorch runs it: {reason(node)}" if kind == "torch" or again and not inner else ""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    return Box(node.name, kind, (title(node), words), "\n".join([tip, *(line.strip() for line in lines[-1:])]), reads)


def title(node: Node) -> str:
    """The operator with the numbers that it is given."""
    words = [spelled(a) for a in node.args if a is not None and not has_nodes(a)]
    words += [f"{k}={spelled(v)}" for k, v in node.kwargs.items() if isinstance(v, (bool, int, float, torch.dtype))]
    return clipped(" ".join([operator_name(node), *(word for word in words if len(word) <= 16)]))


def has_nodes(argument: object) -> bool:
    found: list[Node] = []
    torch.fx.map_arg(argument, found.append)
    return bool(found)


def spelled(value: object) -> str:
    return (
        dtype_name(value) if isinstance(value, torch.dtype) else f"{value:.6g}" if type(value) is float else str(value)
    )


def detail(node: Node) -> str:
    return clipped(", ".join(filter(None, map(shape, values_of(node)))))


def shape(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{type(value).__name__.removeprefix('Sym').lower()} {value}"
    return ""


def dtype_name(dtype: torch.dtype) -> str:
    """As torch.fx writes it: f32, bf16, i64, b8."""
    return re.sub("^(bfloat|float|uint|int|complex|bool)", lambda m: DTYPES[m[0]], str(dtype).removeprefix("torch."))


def clipped(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def operator_name(node: Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.removeprefix("aten::")
    return str(getattr(node.target, "__name__", node.target))


def is_operator(node: Node) -> bool:
    """Whether it computes: not a view, one of several results, a size or a program."""
    if node.op != "call_function" or node.target is operator.getitem or isinstance(node.target, Fused):
        return False
    return not is_view(node) and (any(isinstance(v, torch.Tensor) for v in values_of(node)) or has_effect(node))


def is_view(node: Node) -> bool:
    if node.target in VIEWS:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        return False
    return any(result.alias_info is not None for result in node.target._schema.returns)


def is_again(node: Node) -> bool:
    """Of a backward's node: whether it is a copy of one of the forward's, which autograd's own are not."""
    return "source_fn_stack" in node.meta


def values_of(node: Node) -> tuple[object, ...]:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def moved(steps: Iterable[Iterable[Node]]) -> int | None:
    """Bytes of the tensors in each; None where a size is known only at run time."""
    tensors = [v for nodes in steps for node in nodes for v in values_of(node) if isinstance(v, torch.Tensor)]
    tensors = [value for value in tensors if value.layout == torch.strided]
    try:
        return sum(map(bytes_of, tensors))
    except TypeError:
        return None


def bytes_of(value: torch.Tensor) -> int:
    """Of the elements that lie in memory; an expanded dimension has one."""
    sizes = [hint(size) for size, stride in zip(value.shape, value.stride(), strict=True) if hint(stride) != 0]
    return math.prod(sizes) * value.element_size() * (0 not in value.shape)


def code_of(module: GraphModule) -> str:
    """The graph as Python, without the ends of values and the paths of files."""
    text = module.graph.python_code("self", verbose=True).src.replace("fourfold_compiler_fused_", "")
    given = {node.target: node.name for node in module.graph.find_nodes(op="placeholder") if node.target != node.name}
    for target, name in given.items():
        text = re.sub(rf"\n *{name} = {target}(?=\n)", "", text)
        text = re.sub(rf"\b{target}: ", f"{name}: ", text)
    lines = (PLACE.sub(r"# line \1, \2: \3", CLEARS.sub("", line.rstrip())) for line in text.splitlines())
    lines = [line for line in lines if line and "# No stacktrace" not in line]
    return "\n".join(lines) + "\n"
