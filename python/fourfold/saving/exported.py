"""Lowers an exported program to the graph of a file: decomposes it, copies what it changes at its end, and runs the
compiler's passes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node

from fourfold.compiler import passes
from fourfold.compiler.analysis.concatenations import FOR_A_FILE
from fourfold.compiler.lowering import decompositions
from fourfold.compiler.lowering.rounding_decompositions import rounding_as_eager
from fourfold.compiler.options import Options
from fourfold.compiler.passes.recurrent import FUNCTIONS, NAMES, LayerCall, traced
from fourfold.compiler.pipeline import fallback
from fourfold.compiler.pipeline.tracing import KEPT
from fourfold.saving.masks import convert_masks
from fourfold.saving.steps import Unsaved
from fourfold.saving.tensors import PLAIN
from fourfold.scanning.as_node import NotOneLoop, replace_scan
from fourfold.scanning.in_graphs import SCAN
from fourfold.scanning.step_graphs import memory_of

aten = torch.ops.aten
higher_order = torch.ops.higher_order
# Prefixes of composite operators that stay whole: their decomposition differs between devices, or has an effect, the
# check for singular matrices.
WHOLE = (
    *("scaled_dot_product_attention", *KEPT),
    *("inverse", "linalg_solve", "linalg_inv", "linalg_tensorinv", "linalg_tensorsolve"),
    *("linalg_cholesky", "linalg_lu_factor", "linalg_ldl_factor"),
)
# Operators that the file doesn't need: it holds shapes and dtypes, and runs without gradients.
NEEDLESS = (aten._assert_tensor_metadata.default,)
# Uninitialized memory becomes zeros, so that a file's graph can't read what was there before.
ZEROS = {
    aten.empty.memory_format: aten.zeros.default,
    aten.empty_like.default: aten.zeros_like.default,
    aten.new_empty.default: aten.new_zeros.default,
}
INSTEAD = {
    "cond": "compute both branches and choose with torch.where, or export each branch by itself",
    "while_loop": "use torch's scan or fourfold.scan, whose number of steps is known before the loop",
    "map_impl": "use torch.vmap, or torch's scan",
    "associative_scan": "use torch's scan or fourfold.scan",
    "auto_functionalized": "call operators that return new tensors",
    "auto_functionalized_v2": "call operators that return new tensors",
    "with_effects": "leave out operators with effects besides their results",
    "flex_attention": "use scaled_dot_product_attention",
}


def lowered(program: ExportedProgram) -> tuple[ExportedProgram, GraphModule, list[object]]:
    """The decomposed program, its graph with a plan, and for each result the index of the graph's output or
    ("constant", value). Raises Unsaved."""
    expect_inputs(program)
    expect_different_arguments(program)
    expect_own_memory(program)
    program = decomposed(program)
    module = GraphModule(program.graph_module, fallback.copied(program.graph))
    inline_modes(module)
    expect_operators(module)
    for node in list(module.graph.nodes):
        if node.target in NEEDLESS:
            module.graph.erase_node(node)
        elif node.target in ZEROS:
            node.target = ZEROS[node.target]
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != "memory_format"}
    results = write_outputs(program, module)
    convert_masks(module)
    compile_scans(module)
    module.meta |= {"options": Options(), FOR_A_FILE: True}
    with torch.no_grad():
        module = passes.run(passes.FUSION, passes.run(passes.INFERENCE, module))
    if module.meta["plan"] is None:
        raise Unsaved(module.meta["needs Python"])
    return program, module, results


def compile_scans(module: GraphModule) -> None:
    """Raises Unsaved for a scan that doesn't become one loop."""
    for node in module.graph.find_nodes(op="call_function", target=SCAN):
        try:
            replace_scan(module, node, in_file=True)
        except NotOneLoop as reason:
            raise Unsaved(f"a scan that doesn't become one loop: {reason}") from reason
    module.graph.lint()


def expect_inputs(program: ExportedProgram) -> None:
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN):
            what = (
                "an object of TorchScript" if spec.kind == InputKind.CUSTOM_OBJ else "an effect that orders operators"
            )
            raise Unsaved(f"{spec.arg.name}, {what}")


def expect_different_arguments(program: ExportedProgram) -> None:
    """Raises ValueError if one tensor was exported as two arguments: torch.export takes them for one, and its program
    computes everything from the last of them."""
    if program.example_inputs is None:
        return
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    known: dict[int, str] = {}
    for name, value in zip(names, torch.utils._pytree.tree_leaves(program.example_inputs), strict=False):
        other = known.setdefault(id(value), name) if isinstance(value, torch.Tensor) else name
        if other != name:
            raise ValueError(
                f"save: expected {other} and {name} to be different tensors, since torch.export takes one tensor for "
                f"one argument and its program ignores {other}; export with {name}.clone()"
            )


def expect_own_memory(program: ExportedProgram) -> None:
    """Raises ValueError if the program changes one of several tensors that share memory: a file stores them
    separately."""
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target is not None}
    changed = {targets[node.name] for node in map(memory_of, changed_nodes(program)) if node.name in targets}
    known: dict[int, str] = {}
    for target in targets.values():
        tensor = program.state_dict.get(target, program.constants.get(target))
        where = tensor.untyped_storage().data_ptr() if type(tensor) in PLAIN and tensor.numel() else 0
        other = known.setdefault(where, target)
        if where and other != target and changed & {target, other}:
            raise ValueError(
                f"save: expected {target} and {other} to share no memory, since the model changes one in place; give "
                "each its own, with clone(), before the export"
            )


def changed_nodes(program: ExportedProgram) -> Iterator[Node]:
    """The nodes that the program's operators change in place."""
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            for argument, given in zip(node.target._schema.arguments, node.args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write and isinstance(given, Node):
                    yield given


def decomposed(program: ExportedProgram) -> ExportedProgram:
    with warnings.catch_warnings():
        # torch pickles pytrees' specs while it copies graphs.
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        return program.run_decompositions(table(program))


def table(program: ExportedProgram) -> dict[object, object]:
    """The decompositions of torch.compile's backend, and those of composite operators."""
    composite = "CompositeImplicitAutograd"
    found = {
        op: how
        for op, how in torch.export.default_decompositions().items()
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), composite)
        and not op._schema.name.removeprefix("aten::").startswith(WHOLE)
        and op not in NAMES
    }
    return found | (rounding_as_eager() if Options().rounds_each else decompositions()) | recurrent(program)


def recurrent(program: ExportedProgram) -> dict[object, object]:
    """Replaces torch's LSTM and GRU by fourfold's operators, if these can compute all of the program's calls."""
    found = {}
    for op in NAMES:
        calls = [n for m in graphs_of(program) for n in m.graph.find_nodes(op="call_function", target=op)]
        given = [torch.fx.map_arg((node.args, node.kwargs), traced) for node in calls]
        if calls and all(LayerCall.of(NAMES[op], args, kwargs).refusal() is None for args, kwargs in given):
            found[op] = FUNCTIONS[NAMES[op]]
    return found


def graphs_of(program: ExportedProgram) -> list[GraphModule]:
    return [part for part in program.graph_module.modules() if isinstance(part, GraphModule)]


def inline_modes(module: GraphModule) -> None:
    """Inlines regions of torch.no_grad() and similar modes: a file computes no gradients."""
    found = True
    while found:
        found = module.graph.find_nodes(op="call_function", target=higher_order.wrap_with_set_grad_enabled)
        for node in found:
            inline(module, node, node.args[1], node.args[2:])


def inline(module: GraphModule, node: Node, body: Node, given: Sequence[object]) -> None:
    part = getattr(module, body.target)
    known = dict(zip(part.graph.find_nodes(op="placeholder"), given, strict=True))
    for own in part.graph.find_nodes(op="get_attr"):
        if not hasattr(module, own.target):
            setattr(module, own.target, getattr(part, own.target))
    with module.graph.inserting_before(node):
        results = module.graph.graph_copy(part.graph, known)
    results = results if isinstance(results, (tuple, list)) else (results,)
    for item in list(node.users):
        item.replace_all_uses_with(results[item.args[1]])
        module.graph.erase_node(item)
    module.graph.erase_node(node)
    if not body.users:
        module.graph.erase_node(body)


def expect_operators(module: GraphModule) -> None:
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is SCAN:
            continue
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            name = node.target.name()
            raise Unsaved(f"torch's {name}, which runs in Python; {INSTEAD.get(name, 'write the model without it')}")


def write_outputs(program: ExportedProgram, module: GraphModule) -> list[object]:
    """Makes the computed results the graph's outputs, and copies at its end what the program changes."""
    graph, output = module.graph, module.graph.output_node()
    specs = program.graph_signature.input_specs  # their names may be taken in a copy of the graph
    inputs = zip(specs, graph.find_nodes(op="placeholder"), strict=True)
    placeholders = {spec.arg.name: node for spec, node in inputs}
    names = {spec.target: spec.arg.name for spec in specs if spec.target is not None}
    changes, found, outputs = [], [], []
    for spec, result in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        if spec.kind == OutputKind.USER_OUTPUT:
            if isinstance(result, Node):
                found.append(len(outputs))
                outputs.append(result)
            else:
                found.append(("constant", result))
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            changes.append((placeholders[spec.target], result))
        elif spec.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
            changes.append((placeholders[names[spec.target]], result))
        else:
            raise Unsaved(f"{spec.arg.name}, an output of kind {spec.kind.name}")
    with graph.inserting_before(output):
        for k, (_, result) in enumerate(changes):
            if memory_of(result).op == "placeholder":  # another copy may change it before
                copy = graph.call_function(aten.clone.default, (result,))
                copy.meta["val"] = result.meta["val"]
                changes[k] = changes[k][0], copy
        for changed, result in changes:
            copy = graph.call_function(aten.copy_.default, (changed, result))
            copy.meta["val"] = changed.meta["val"]
    output.args = (tuple(outputs),)
    return found
