"""How the loop of a scan runs: as one loop nest, in stages, or step by step; and why not in a faster way.

The conditions are those of cpp/graph/loop_step.cpp and loop_stages.cpp, for the layouts of a call."""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.fx import Node

from fourfold import _C, _native
from fourfold.compiler.analysis.support import device_of
from fourfold.compiler.nest.cpu.build import NotCompiled
from fourfold.compiler.nest.ir.reading import read
from fourfold.compiler.nest.jit import service
from fourfold.compiler.nodes.fused import Fused, fused_nodes, results_of
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.devices import programs
from fourfold.explaining import nests
from fourfold.explaining.data import counted, plural
from fourfold.explaining.reading import NUMBERS, is_view, operator_name
from fourfold.explaining.shapes import FEWEST_OF_STAGES, LoopCall

aten = torch.ops.aten
# As in cpp/graph/loop_products.cpp: the bytes of a product that are computed at once, by whether its matrix is large;
# and from how many rows, and up to how many bytes of the input's matrix, two products are added in one pass.
ROOM, ROOM_OF_LARGE, LARGE = 192 * 1024, 1024 * 1024, 512 * 1024
FEWEST_ADDED, LARGEST_ADDED = 8, 256 * 1024
PRODUCTS = {
    aten.mm.default: 0,
    aten.bmm.default: 0,
    aten.mv.default: 0,
    aten.addmm.default: 1,
    aten.baddbmm.default: 1,
    aten.addmv.default: 1,
}
OF_MATRICES = (aten.mv.default, aten.addmv.default)  # the matrix comes first


class NotPossible(Exception):
    """The loop can't run in this way; the message gives the reason."""


def obstacle(whole: Compiled) -> str:
    """Why the loop runs in Python; empty if it runs in C++."""
    if _native.module is None:
        return f"fourfold has no C++ module for this torch: {_native.path}"
    if whole.plan is None:
        return f"the graph of the sequence needs Python: {whole.module.meta.get('needs Python', 'its passes failed')}"
    return ""


def on_other_devices(call: LoopCall) -> str:
    """The devices of its tensors, except the CPU."""
    devices = {str(each.device) for each in call.given if isinstance(each, Tensor)} - {"cpu"}
    return ", ".join(sorted(devices))


def layout_of_nest(call: LoopCall, generator: str) -> str:
    """The layout that the nest is compiled for. Raises NotPossible."""
    if call.steps < 2:
        raise NotPossible("the first step runs separately, and there is no other")
    node = only_program(call)
    place = programs.place_of(device_of(node))
    text = node.target.text
    if any(output.join >= 0 for output in read(text).outputs):
        raise NotPossible("a result of its program is a concatenation")
    outputs, output_of = series_of_outputs(call, node)
    numbers = _C.program_numbers(text, *place)
    inputs = [element_of(call, each, output_of, number) for each, number in zip(node.args, numbers, strict=True)]
    described = [
        (number, [], [], 0) if value is None else described_as(value)
        for (value, _, _), number in zip(inputs, numbers, strict=True)
    ]
    layout = _C.program_layout_of_steps(
        text,
        *place,
        described,
        [described_as(value) for value, _ in outputs],
        call.steps - 1,
        [feed for _, feed, _ in inputs],
        [stride for _, _, stride in inputs],
        [stride for _, stride in outputs],
    )
    if not layout:
        raise NotPossible("its tensors have no elements")
    try:
        nests.built(text, layout)
    except NotCompiled as reason:
        raise NotPossible(str(reason)) from None
    if device_of(node).type in programs.INTERPRETED and (generator == "interpreter" or service.obstacle()):
        reason = "as the environment variable FOURFOLD_GENERATOR says" if generator == "interpreter" else ""
        raise NotPossible(reason or service.obstacle())
    return layout


def described_as(value: Tensor) -> tuple[int, list[int], list[int], int]:
    """The library's description: dtype, sizes, strides, and the offset in bytes into its memory."""
    return NUMBERS[value.dtype], list(value.shape), list(value.stride()), value.storage_offset() * value.itemsize


def first_of_nest(call: LoopCall) -> int:
    """The first step that the nest runs."""
    return call.steps - 2 if call.loop.reverse else 1


def only_program(call: LoopCall) -> Node:
    """The body's program, if the body consists of just one."""
    body = call.loop.body
    expect_plan(body)
    programs = fused_nodes(body.module.graph)
    if outside := names_outside(body):
        raise NotPossible(f"operators outside programs: {counted(outside)}")
    if len(programs) != 1:
        several = f"its step is {len(programs)} programs{about_numbers(call)}"
        raise NotPossible(several if programs else "there is nothing to compute")
    return programs[0]


def about_numbers(call: LoopCall) -> str:
    """A frequent cause of several programs."""
    results = call.loop.body.module.graph.output_node().args[0]
    sizes = [node.meta["val"].dim() for node in results[: len(call.loop.trails)]]
    return "; a state of one number beside larger ones needs their shape" if 0 in sizes and any(sizes) else ""


def expect_plan(body: Compiled) -> None:
    if body.plan is None:
        raise NotPossible(f"its graph needs Python: {body.module.meta.get('needs Python', 'its passes failed')}")
    if body.layouts:
        raise NotPossible("PyTorch's operators need the gradient of a state in the memory layout that was traced")


def names_outside(body: Compiled) -> list[str]:
    """The names of the plan's steps that are not programs; of views only if there is nothing else."""
    operators = [node for node in body.nodes if isinstance(node.target, torch._ops.OpOverload)]
    names = [operator_name(node) for node in operators if not is_view(node)] or list(map(operator_name, operators))
    others = [what for what, *_ in body.plan.steps if what not in ("program", "operator", "item")]
    return [*names, *others]


def series_of_outputs(call: LoopCall, node: Node) -> tuple[list[tuple[Tensor, int]], dict[int, int]]:
    """For each output of the program one step's tensor, and the distance in elements to the next step's, 0 if only the
    last one is kept; and for each new state its output."""
    loop, graph = call.loop, call.loop.body.module.graph
    inputs = graph.find_nodes(op="placeholder")
    index = {result: k for k, result in enumerate(results_of(node))}
    found: dict[int, tuple[Tensor, int]] = {}
    output_of: dict[int, int] = {}
    states = len(loop.trails)
    for are_series in (True, False):
        for k, result in enumerate(graph.output_node().args[0]):
            if (k >= states or loop.trails[k]) != are_series:
                continue
            if result not in index:
                place = inputs.index(result)
                if are_series or place >= len(loop.feeds) or loop.feeds[place] != k:
                    raise NotPossible("a result is an input of the step")
                continue
            if k < states:
                output_of[k] = index[result]
            if index[result] not in found:
                row = first_of_nest(call) + (k < states and not loop.reverse)
                value = call.rows[k][row] if are_series else call.results[k].contiguous()
                found[index[result]] = value, step_stride(call, call.rows[k]) if are_series else 0
            elif are_series:
                raise NotPossible("a value is returned twice")
    return [found[k] for k in range(len(index))], output_of


def element_of(call: LoopCall, node: Node, output_of: dict[int, int], number: int) -> tuple[Tensor | None, int, int]:
    """For an input of the program: a step's tensor, None for a number; the output that the next step reads there, or
    -1; and the distance in elements to the next step's tensor."""
    loop = call.loop
    place = call.loop.body.module.graph.find_nodes(op="placeholder").index(node)
    is_state, is_invariant = place < len(loop.feeds), place >= len(loop.feeds) + loop.series
    if number >= 0:
        if not is_invariant:
            raise NotPossible("its step reads a number that differs from step to step")
        return None, -1, 0
    if is_state:
        return call.results[loop.feeds[place]].contiguous(), output_of.get(loop.feeds[place], -1), 0
    value = call.given[place]
    return (value, -1, 0) if is_invariant else (value[first_of_nest(call)], -1, step_stride(call, value))


def step_stride(call: LoopCall, series: Tensor) -> int:
    return -series.stride(0) if call.loop.reverse else series.stride(0)


def stages_of(call: LoopCall) -> list[str]:
    """The stages that C++ runs in each step, in order. Raises NotPossible."""
    if devices := on_other_devices(call):
        raise NotPossible(f"on {devices} the steps run one by one")
    if call.steps < FEWEST_OF_STAGES:
        raise NotPossible(f"there are fewer than {FEWEST_OF_STAGES} steps")
    body = call.loop.body
    expect_plan(body)
    if body.concatenations:
        raise NotPossible("programs write parts of a concatenation")
    roots = Roots(call)
    found = []
    for node in body.module.graph.nodes:
        if isinstance(node.target, Fused):
            if any(output.column_sum for output in read(node.target.text).outputs):
                raise NotPossible(f"{node.target.__name__} sums over rows")
            found.append(f"loop_{node.target.__name__}")
        elif isinstance(node.target, torch._ops.OpOverload) and is_value(call.body[node]):
            stage = stage_of(node, call, roots)
            found += [stage] if stage else []
    copied = roots.copied()
    return [*found, *([f"{plural(copied, 'result')} copied"] if copied else [])]


def is_value(value: object) -> bool:
    return isinstance(value, (Tensor, tuple, list))


def stage_of(node: Node, call: LoopCall, roots: Roots) -> str:
    """The stage of an operator; empty for a view."""
    name = operator_name(node)
    if node.target._schema.is_mutable:
        raise NotPossible(f"{name} changes its inputs in place")
    if {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(node.target.tags):
        raise NotPossible(f"the size of {name}'s result depends on data")
    if node.target is aten.as_strided.default:
        raise NotPossible("as_strided counts from the beginning of the memory")
    if roots.is_view(node):
        return ""
    if len(node.target._schema.returns) == 1 and is_list(call.body[node]):
        raise NotPossible(f"{name} returns a list of new tensors")
    if node.target in PRODUCTS and is_packed(node, call, roots):
        return stage_of_product(node, call, roots)
    return "a copy" if node.target is aten.clone.default else f"{name} by PyTorch"


def is_list(value: object) -> bool:
    return isinstance(value, (tuple, list))


def is_packed(node: Node, call: LoopCall, roots: Roots) -> bool:
    """Whether it is a product with an invariant matrix, which is packed before the first step."""
    shift = PRODUCTS[node.target]
    factors = node.args[shift : shift + 2]
    a, b = reversed(factors) if node.target in OF_MATRICES else factors
    if any(node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")) or any(each != 1 for each in node.args[3:]):
        return False
    matrix, out = call.body[b], call.body[node]
    if not roots.is_invariant(b) or matrix.dtype not in (torch.float32, torch.float64):
        return False
    start = call.body[node.args[0]].expand(out.shape) if shift else None
    return start is None or out.shape[-1] <= 1 or start.stride(-1) == 1


def stage_of_product(node: Node, call: LoopCall, roots: Roots) -> str:
    """The stage of a product with a packed matrix; empty for one that another product adds in its own pass."""
    name = operator_name(node)
    if any(begins_with_product(user, call, roots) for user in node.users):
        return ""
    if begins_with_product(node, call, roots):
        return f"{name} and {operator_name(node.args[0])} in one pass with matrices packed once"
    count = together(node, call, roots)
    if count == call.steps and roots.root[node.args[-2]] is node.args[-2]:
        return f"{name} for all steps at once"
    return f"{name} with a matrix packed once" + f", for {count} steps at once" * (count > 1)


def begins_with_product(node: Node, call: LoopCall, roots: Roots) -> bool:
    """Whether it is computed in one pass together with the input's product, to which it adds its own."""
    if node.target is not aten.addmm.default or not is_packed(node, call, roots):
        return False
    start, out = node.args[0], call.body[node]
    if start.target not in PRODUCTS or len(start.users) != 1 or not is_of_input(start, call, roots):
        return False
    is_near = call.body[start.args[-1]].nbytes <= LARGEST_ADDED
    return is_near and call.body[start].shape == out.shape and out.shape[0] >= FEWEST_ADDED


def is_of_input(node: Node, call: LoopCall, roots: Roots) -> bool:
    """Whether it is a product of a step's own values that doesn't depend on the state."""
    if node.target not in (aten.mm.default, aten.addmm.default) or not is_packed(node, call, roots):
        return False
    *start, a, b = node.args
    out = call.body[node]
    is_bias = all(roots.is_invariant(each) and call.body[each].shape == out.shape[1:] for each in start)
    return is_bias and bool(out.nbytes) and roots.is_of_sequence(a)


def together(node: Node, call: LoopCall, roots: Roots) -> int:
    """For how many steps a packed product is computed at once; 1 if it depends on the state."""
    is_result = node in call.loop.body.module.graph.output_node().args[0]
    if is_result or not is_of_input(node, call, roots):
        return 1
    room = ROOM_OF_LARGE if call.body[node.args[-1]].nbytes > LARGE else ROOM
    return max(1, min(room // call.body[node].nbytes, call.steps))


class Roots:
    """Maps each value of a step to the value whose memory it is a view of."""

    def __init__(self, call: LoopCall):
        self.call = call
        self.inputs = call.loop.body.module.graph.find_nodes(op="placeholder")
        self.root: dict[Node, Node] = {}
        for node, value in call.body.items():
            self.root[node] = self.root_of(node, value)

    def root_of(self, node: Node, value: object) -> Node:
        if node.op != "call_function" or isinstance(node.target, Fused):
            return node
        if node.target is operator.getitem and isinstance(node.args[0].target, Fused):
            return node
        of = value[0] if is_list(value) and value else value
        for operand in node.all_input_nodes:
            read = self.call.body[operand]
            read = read[0] if is_list(read) and read else read
            if isinstance(of, Tensor) and isinstance(read, Tensor) and torch._C._is_alias_of(of, read):
                return self.root[operand]
        return node

    def is_view(self, node: Node) -> bool:
        return self.root[node] is not node

    def is_invariant(self, node: Node) -> bool:
        loop, root = self.call.loop, self.root[node]
        return root in self.inputs[len(loop.feeds) + loop.series :]

    def is_of_sequence(self, node: Node) -> bool:
        loop, root = self.call.loop, self.root[node]
        return root in self.inputs[len(loop.feeds) : len(loop.feeds) + loop.series]

    def copied(self) -> int:
        """How many results are copied in every step: views, inputs, and values returned twice."""
        loop, homes, copies = self.call.loop, set(), 0
        results = list(self.call.loop.body.module.graph.output_node().args[0])
        last = [k < len(loop.trails) and not loop.trails[k] for k in range(len(results))]
        for are_last in (False, True):
            for result, is_last in zip(results, last, strict=True):
                if is_last != are_last or is_last and result in homes:
                    continue
                is_own = not self.is_view(result) and result not in self.inputs and result not in homes
                homes |= {result} if is_own else set()
                copies += not is_own
        return copies
