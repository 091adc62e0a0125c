"""fourfold.scan: a recurrence from one step that is written in Python."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from fourfold import _native, _onnx
from fourfold.compiler.options import Options
from fourfold.compiler.pipeline import fallback
from fourfold.scanning import capture, record
from fourfold.scanning.function import RunsInPython, recurrence_of
from fourfold.scanning.lines import hint_of_batch, line_of_error
from fourfold.scanning.python_loop import python_loop
from fourfold.scanning.structure import Structure, expect_pair, filled, shown

Carry = TypeVar("Carry")
PLAIN = (Tensor, torch.nn.Parameter)


def scan(
    step: Callable[[Carry, Any], tuple[Carry, Any]],
    init: Carry,
    xs: Any,
    dim: int = 0,
    reverse: bool = False,
    checkpoint_every: int | None = None,
) -> tuple[Carry, Any]:
    """Runs ``carry, y = step(carry, x)`` for each x along a dimension of ``xs``.

    Dynamo traces the step once, and it runs as compiled code for any length of the sequence. Products that don't read
    the carry are computed for all steps at once before the loop, operators whose results no later step needs after it,
    and the gradient of each weight is one product. The scan is differentiable, also twice, in init, xs and the tensors
    that the step closes over.

    Args:
        step: a function or module of a carry and a slice of xs. It returns the new carry, with the structure, shapes
            and dtypes of the old one, and a result. Its control flow must not depend on tensors' values.
        init: the first carry: a tensor, or a pytree of tensors and None. Numbers become tensors.
        xs: the sequence: a tensor or a pytree of tensors and None, all with the same size in dimension ``dim``.
        dim: the dimension of xs to scan along. Results are stacked along the same dimension, or along the first if they
            have fewer dimensions.
        reverse: start with the last element. Results are in the order of xs.
        checkpoint_every: save the carry every so many steps, and run these steps again in the backward. The backward
            then needs the memory of (checkpoint_every + steps / checkpoint_every) steps instead of all; the forward is
            computed twice.

    Returns:
        The last carry, and all y stacked.

    Raises:
        ValueError, TypeError: arguments or results that don't fit; ValueError with checkpoint_every for a trained step
            that changes other tensors in place.
        RuntimeError: a step that can't be traced, with the line.

    Under torch.func's transforms, forward-mode differentiation and tracers, the steps run one by one in Python.
    """
    if torch.compiler.is_dynamo_compiling():  # is_dynamo_compiling() is for this thread, is_compiling() for the process
        if is_whole_graph_of_ours() and checkpoint_every is None:
            return through_torchs_operator(step, init, xs, dim, reverse, trained=torch.is_grad_enabled())
        return outside_graphs(step, init, xs, dim, reverse, checkpoint_every)
    if not callable(step):
        raise TypeError(f"scan: expected step to be callable, but got {type(step).__name__}")
    if checkpoint_every is not None and (type(checkpoint_every) is not int or checkpoint_every < 1):
        raise ValueError(f"scan: expected checkpoint_every to be a positive integer, but got {checkpoint_every!r}")
    structure, carries, sequences = Structure.of(init, xs, dim)
    if is_exported():
        forget_traces_of_torchs_operator()
        return through_torchs_operator(step, init, xs, dim, reverse)
    steps = sequences[0].shape[0]
    if must_run_in_python((*carries, *sequences)):
        record.called(step, structure, capture.ScanCall(carries, sequences, steps, reverse), record.OF_TENSORS)
        new, ys, results = python_loop(step, structure, carries, sequences, steps, reverse)
    elif checkpoint_every is not None and checkpoint_every < steps and torch.is_grad_enabled():
        new, ys, results = checkpointed(step, structure, carries, sequences, steps, reverse, checkpoint_every)
    else:
        new, ys, results = run(step, structure, carries, sequences, steps, reverse)
    return structure.carry(new), pytree.tree_unflatten([stacked_along(y, dim) for y in ys], results)


def is_exported() -> bool:
    """Whether torch.export captures the program. It keeps torch's scan operator; torch.onnx unrolls loops."""
    return torch.compiler.is_exporting() and not _onnx.is_exporting()


def forget_traces_of_torchs_operator() -> None:
    """Dynamo checks the sizes of what it has traced before. With the symbolic sizes of torch.export, such a check would
    make them constants of the exported program."""
    from torch._higher_order_ops.scan import scan as torchs

    for constant in torchs.__code__.co_consts:
        if isinstance(constant, types.CodeType):  # a nested function, one of which Dynamo traces
            torch._dynamo.reset_code(constant)


@torch._dynamo.assume_constant_result
def is_whole_graph_of_ours() -> bool:
    """Whether Dynamo traces with fullgraph=True for this package's backend, which runs torch's operator as scan."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    tracer = InstructionTranslator.current_tx()
    compiler = getattr(tracer.output.compiler_fn, "_torchdynamo_orig_backend", tracer.output.compiler_fn)
    return tracer.one_graph and getattr(compiler, "compiler_name", "") == "fourfold"


def through_torchs_operator(
    step: Callable[[Carry, Any], tuple[Carry, Any]],
    init: Carry,
    xs: Any,
    dim: int,
    reverse: bool,
    trained: bool = False,
) -> tuple[Carry, Any]:
    """Runs torch's operator with contiguous copies of all that the step takes and returns, because it allows no
    aliases, and no other layout of a new carry. It takes and returns no None. trained: whether gradients may be wanted.
    """
    from torch._higher_order_ops.scan import scan as torchs

    carries, carry_spec = pytree.tree_flatten(init)
    sequences, xs_spec = pytree.tree_flatten(xs)
    has_carry, has_x = ([leaf is not None for leaf in leaves] for leaves in (carries, sequences))

    def on_copies(carry: list[Tensor], x: list[Tensor]) -> tuple[list[Tensor], Any]:
        copies = copied(carry)
        if trained:
            require_gradients(copies)
        given = pytree.tree_unflatten(filled(has_carry, copies), carry_spec)
        returned = step(given, pytree.tree_unflatten(filled(has_x, copied(x)), xs_spec))
        expect_pair(returned)
        new, y = returned
        news, spec = pytree.tree_flatten(new)
        if spec != carry_spec:
            raise TypeError(
                f"scan: expected the step to return a carry like init, {shown(carry_spec)}, but got {shown(spec)}"
            )
        return copied(news), pytree.tree_map(lambda leaf: absent() if leaf is None else copy(leaf), y)

    first = [leaf.movedim(dim, 0) for leaf in sequences if leaf is not None]
    last, y = torchs(on_copies, copied(carries), first, dim=0, reverse=reverse)
    results = pytree.tree_map(lambda leaf: None if is_absent(leaf) else stacked_along(leaf, dim), y)
    return pytree.tree_unflatten(filled(has_carry, last), carry_spec), results


def require_gradients(carry: Sequence[Tensor]) -> None:
    """Weights may reach a carry in later steps only. If the inputs of an autograd.Function need no gradient in the
    traced step, Dynamo keeps only its forward."""
    for leaf in carry:
        if capture.is_differentiable(leaf) and not leaf.requires_grad:
            leaf.requires_grad_()


def copied(leaves: Sequence[Any]) -> list[Tensor]:
    """Copies of all but None."""
    return [copy(leaf) for leaf in leaves if leaf is not None]


def copy(leaf: Any) -> Tensor:
    return leaf.clone(memory_format=torch.contiguous_format) if isinstance(leaf, Tensor) else torch.tensor(leaf)


# The shape of what represents None among a step's results. A step has no results of this shape otherwise.
ABSENT = (0,) * 8


def absent() -> Tensor:
    return torch.zeros(ABSENT, dtype=torch.bool)


def is_absent(stacked: Tensor) -> bool:
    return stacked.dtype is torch.bool and tuple(stacked.shape[1:]) == ABSENT


OUTSIDE_GRAPHS = (
    "fourfold.scan traces its step by itself, outside of other graphs; with fullgraph=True it needs "
    'backend="fourfold" and no checkpoint_every'
)


@torch.compiler.disable(reason=OUTSIDE_GRAPHS)
def outside_graphs(*given: Any) -> tuple[Any, Any]:
    """Breaks Dynamo's graph: scan traces its step by itself."""
    return scan(*given)


def stacked_along(y: Tensor | None, dim: int) -> Tensor | None:
    if y is None or dim == 0:
        return y
    return y.movedim(0, dim) if -y.dim() <= dim < y.dim() else y


def must_run_in_python(tensors: Sequence[Tensor]) -> bool:
    if _native.PLAIN or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    if torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        return True
    if any(type(tensor) not in PLAIN for tensor in tensors):
        return True
    return torch.autograd.forward_ad._current_level >= 0 and any(map(fallback.has_tangent, tensors))


def run(
    step: Callable[..., object],
    structure: Structure,
    carries: Sequence[Tensor],
    sequences: Sequence[Tensor],
    steps: int,
    reverse: bool,
    runs_again: bool = False,
) -> tuple[list[Tensor], list[Tensor | None], pytree.TreeSpec]:
    """The last carry's leaves, the results' leaves and the results' structure."""
    call = capture.ScanCall(carries, sequences, steps, reverse, step, runs_again)
    record.called(step, structure, call)
    try:
        return capture.trace(step, structure, call, backend)
    except RunsInPython as reason:
        record.ran_in_python(call, str(reason))
        code = capture.code_of(step)
        fallback.report(f"the scan of {code.co_name} ({code.co_filename}:{code.co_firstlineno})", reason)
        return python_loop(step, structure, carries, sequences, steps, reverse)
    except Exception as error:
        if not isinstance(error, torch._dynamo.exc.TorchDynamoException) and OF_THE_STEP not in str(error):
            raise
        why = explained(error, step)
        hint = hint_of(structure) or (hint_of_batch(call) if OF_SHAPES.search(why) else "")
        raise RuntimeError(f"scan: the step can't be traced{why}{hint}") from error


def checkpointed(
    step: Callable[..., object],
    structure: Structure,
    carries: Sequence[Tensor],
    sequences: Sequence[Tensor],
    steps: int,
    reverse: bool,
    every: int,
) -> tuple[list[Tensor], list[Tensor | None], pytree.TreeSpec]:
    """Runs pieces of the sequence, each of which is computed again in the backward."""
    spec: list[pytree.TreeSpec] = []

    def piece(count: int, *leaves: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        given = leaves[: len(carries)], leaves[len(carries) :]
        new, ys, results = run(step, structure, *given, count, reverse, runs_again=True)
        spec.append(results)
        return new, ys

    starts = range(0, steps, every)
    found = []
    for start in reversed(starts) if reverse else starts:
        count = min(every, steps - start)
        parts = [each.narrow(0, start, count) for each in sequences]
        carries, ys = checkpoint(piece, count, *carries, *parts, use_reentrant=False)
        found.append(ys)
    if reverse:
        found.reverse()
    every_y = [None if pieces[0] is None else torch.cat(pieces) for pieces in zip(*found, strict=True)]
    return list(carries), every_y, spec[0]


def backend(module: GraphModule, fakes: Sequence[object]) -> Callable[..., object]:
    """Dynamo calls it with the graph of a step. If the step can't run, the returned function raises the error, so that
    Dynamo doesn't wrap it."""
    captured = capture.CapturedStep.of(module, fakes)
    capture.current_call().traced.append(captured)
    if len(captured.carries) != len(capture.current_call().carries):
        return module  # a carry of another structure, which capture.trace() rejects after this one step
    try:
        expect_no_changed_number(module)
        recurrence = recurrence_of(captured, capture.current_call(), Options())
    except (ValueError, RunsInPython) as error:
        return raising(error)

    def run(*given: object) -> tuple[object, ...]:
        return recurrence(capture.current_call(), given)

    return run


def expect_no_changed_number(module: GraphModule) -> None:
    """Raises RunsInPython for a change in place that PyTorch loses: it treats a 0-d float64 tensor as a Python
    number."""
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if isinstance(value, Tensor) and value.dim() == 0 and value.dtype == torch.float64 and is_changed(node):
            raise RunsInPython("it changes a float64 tensor of no dimensions in place")


# Names of functions that change their first argument, such as add_ and operator.iadd.
IN_PLACE = re.compile(r"[a-z]\w*_|i(add|sub|mul|truediv|floordiv|mod|pow|and|or|xor|lshift|rshift|matmul)|setitem")


def is_changed(node: Node) -> bool:
    """Whether an operator changes a tensor of Dynamo's graph, or a view of it, in place. The version alone is not
    enough: PyTorch also increments it when it makes the fake tensor of a view."""
    if node.meta["example_value"]._version == 0:
        return False
    reached, nodes = {node}, [node]
    while nodes:
        for user in nodes.pop().users:
            name = user.target if isinstance(user.target, str) else getattr(user.target, "__name__", "")
            if IN_PLACE.fullmatch(name) or "out" in user.kwargs:
                return True
            if user not in reached:
                reached.add(user)
                nodes.append(user)
    return False


def raising(error: Exception) -> Callable[..., object]:
    def run(*given: object) -> object:
        raise error

    return run


# Dynamo's messages about control flow and sizes that depend on a tensor's value, and about a failed operator.
OF_VALUES = re.compile(r"data-dependent|data dependent|GuardOnDataDependent", re.IGNORECASE)
OF_THE_STEP = "\n\nfrom user code:"  # begins what Dynamo appends, also to errors of other types
OF_SHAPES = re.compile(r": .*\b(sizes?|shapes?|dim\w*|broadcast\w*)\b", re.IGNORECASE)
FAILED = re.compile(r"\b(?:got|raised exception) (\w+)\((['\"])(.+)\2,?\)")


def explained(error: Exception, step: object) -> str:
    """The step's line and Dynamo's reason, as the end of an error message."""
    at = line_of_error(error, step)
    said = [line.strip() for line in str(error).partition(OF_THE_STEP)[0].splitlines() if line.strip()]
    if said and re.fullmatch(r"backend='.*' raised:", said[0]):  # Dynamo's prefix for errors of the backend
        del said[0]
    return f"{at}: {reason_of(said) if said else type(error).__name__}"


def reason_of(said: Sequence[str]) -> str:
    """The part of Dynamo's message that tells the step's author what to change."""
    if OF_VALUES.search(said[0]):
        return (
            "its control flow or a size depends on a tensor's value; choose values with torch.where, or write a Python "
            "loop over the steps"
        )
    if "builtin operator `print`" in " ".join(said):
        return "it runs once for all steps, so print has no values to show; return what you want to see as its result"
    for line in said:
        if found := FAILED.search(line):
            text = re.sub(r"s\d+: hint = (\d+)", r"\1", found[3])  # a symbolic size
            text = text.removesuffix(".").replace("FakeTensor", "Tensor").replace("immutable_list", "list")
            return f"{found[1]}: {text}"
    explanations = [line.removeprefix("Explanation: ") for line in said if line.startswith("Explanation: ")]
    return ": ".join([said[0], *explanations[:1]]).removesuffix(".")


def hint_of(structure: Structure) -> str:
    """About a list of tensors that was meant as the sequence itself."""
    count = len(structure.has_x)
    if structure.xs_spec.type is not list or count != structure.xs_spec.num_children:
        return ""
    slices = f"xs is a list of {count} tensors, so x is a list of {count} slices"
    return f"; {slices}; to scan over the list, pass torch.stack(xs)"
