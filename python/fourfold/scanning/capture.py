"""Captures one step: Dynamo traces it once, whatever the length of the sequence, and passes its graph to a function
that runs the whole loop."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fourfold.scanning.structure import (
    Structure,
    are_tensors,
    expect_pair,
    filled,
    flattened,
    is_pair,
    leaves_like,
    shown,
)

Backend = Callable[[GraphModule, Sequence[object]], Callable[..., object]]
NUMBERS = (bool, int, float)
WARNING_OF_GRAD = "The .grad attribute of a Tensor"  # of one that is no leaf


@dataclass(frozen=True)
class ScanCall:
    """A call of scan. carries: the initial tensors; xs: tensors with time as the first dimension. step: what errors
    name. runs_again: whether the backward runs the steps again. read: for a step that leaves values outside, what it
    reads from outside, each value with Dynamo's expression for its source."""

    carries: Sequence[Tensor]
    xs: Sequence[Tensor]
    steps: int
    reverse: bool
    step: object = None
    runs_again: bool = False
    read: list[tuple[str, object]] = field(default_factory=list)
    traced: list[CapturedStep] = field(default_factory=list)  # during this call


def carried(value: Tensor, index: int) -> Tensor:
    """Marks a tensor of the new state in Dynamo's graph, and makes it a tensor of its own."""
    return value.clone()


def result(value: Tensor, index: int) -> Tensor:
    """Marks a tensor of the step's result."""
    return value.clone()


def number_like(old: Tensor, new: bool | int | float | complex) -> Tensor:
    """A number as a tensor, of the state's precision; other kinds and shapes are rejected later."""
    made = torch.tensor(new)
    return made.to(old.dtype) if made.is_floating_point() and old.is_floating_point() else made


def step_once(step, carries, xs, structure):  # noqa: ANN001, ANN201
    """Traced by Dynamo. The inputs are cloned, so that the step may change them in place."""
    olds = [leaf.clone() for leaf in carries]
    returned = step(structure.carry(olds), structure.xs([leaf.clone() for leaf in xs]))
    if not is_pair(returned):
        return None, returned, None
    carry, y = returned
    news, spec = leaves_like(carry, structure.carry_kind, structure.carry_spec)
    fits = spec == structure.carry_spec and [leaf is not None for leaf in news] == list(structure.has_carry)
    if fits:
        news = [leaf for leaf in news if leaf is not None]
        news = [
            carried(new if isinstance(new, Tensor) else number_like(old, new), k)
            for k, (old, new) in enumerate(zip(olds, news))  # noqa: B905
        ]
    new = news if fits else carry
    if isinstance(y, Tensor):  # without pytrees, which Dynamo takes long to trace
        return fits, new, result(y, 0)
    if type(y) is tuple and are_tensors(y):
        return fits, new, tuple([result(leaf, k) for k, leaf in enumerate(y)])
    ys, results = pytree.tree_flatten(y)
    has = [leaf is not None for leaf in ys]
    ys = [leaf if isinstance(leaf, Tensor) else torch.tensor(leaf) for leaf in ys if leaf is not None]
    ys = filled(has, [result(leaf, k) for k, leaf in enumerate(ys)])
    return fits, new, pytree.tree_unflatten(ys, results)


@dataclass(frozen=True)
class CapturedStep:
    """A step as Dynamo traced it. inputs: for each of the graph's inputs, ("carry", k), ("x", k) or ("closure", k).
    carries, ys: the indices of the new state's and the result's tensors among the graph's results. effects: the indices
    of values that the step leaves outside, for which the last step's count."""

    module: GraphModule
    fakes: Sequence[object]
    inputs: Sequence[tuple[str, int]]
    carries: Sequence[int]
    ys: Sequence[int]
    effects: Sequence[int]
    sources: Sequence[str]  # of the inputs: Dynamo's expressions for where they come from, empty for none

    @classmethod
    def of(cls, module: GraphModule, fakes: Sequence[object]) -> CapturedStep:
        results = list(module.graph.output_node().args[0])
        marks: Mapping[object, dict[int, int]] = {carried: {}, result: {}}
        for k, node in enumerate(results):
            if isinstance(node, Node) and node.target in marks:
                marks[node.target][node.args[1]] = k
        known = {*marks[carried].values(), *marks[result].values()}
        inputs = module.graph.find_nodes(op="placeholder")
        return cls(
            module,
            fakes,
            [role_of(node, k) for k, node in enumerate(inputs)],
            [marks[carried][k] for k in sorted(marks[carried])],
            [marks[result][k] for k in sorted(marks[result])],
            [k for k in range(len(results)) if k not in known],
            list(map(source_of, inputs)),
        )


def source_of(node: Node) -> str:
    name = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", "")
    return name() if callable(name) else name  # a method under older torches


def role_of(node: Node, index: int) -> tuple[str, int]:
    """From the source that Dynamo recorded: an item of step_once's argument ``carries`` or ``xs``."""
    source = getattr(node.meta.get("grapharg"), "source", None)
    base = getattr(source, "base", None)
    name = getattr(base, "local_name", None)
    if name in ("carries", "xs") and getattr(base, "is_input", False) and isinstance(source.index, int):
        return "carry" if name == "carries" else "x", source.index
    return "closure", index


_now = threading.local()


def current_call() -> ScanCall:
    return _now.call


def trace(
    step: Callable[..., object], structure: Structure, call: ScanCall, backend: Backend
) -> tuple[list[Tensor], list[Tensor | None], pytree.TreeSpec]:
    """Runs the loop with Dynamo's graph of this step, which is captured if there is none yet. Dynamo traces it with
    tensors of one step, and with floating-point states that require a gradient, because gradients may reach a state
    through later steps alone."""
    wants = torch.is_grad_enabled()
    carries = [stand_in(each, wants and is_differentiable(each)) for each in call.carries]
    first = [x.detach()[0] if call.steps else x.new_zeros(x.shape[1:]) for x in call.xs]
    xs = [stand_in(each, wants and x.requires_grad) for each, x in zip(first, call.xs, strict=True)]
    known = {"step": step, "carries": carries, "xs": xs, "structure": structure}
    before = getattr(_now, "call", None)
    _now.call = call
    try:
        function = compiled_for(step, structure, backend)
        try:
            fits, new, y = function(**known)
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            del _compiled[code_of(step)][structure]
            function = compiled_for(step, structure, backend)
            fits, new, y = function(**known)
        except torch._dynamo.exc.InternalTorchDynamoError as error:
            if WARNING_OF_GRAD not in str(error):
                raise
            # Dynamo reads .grad of the tensors that the step closes over. It hides the warning, unless it is an error.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=WARNING_OF_GRAD)
                fits, new, y = function(**known)
    finally:
        _now.call = before
    for source, value in call.read:
        expect_unchanged(source, value, known)
    if call.traced:
        try:
            expect_guards(function, known)
        except RuntimeError:
            del _compiled[code_of(step)][structure]  # the next call is checked again
            raise
    if fits is None:
        expect_pair(new)
    if not fits:
        got = pytree.tree_structure(new)
        raise TypeError(
            f"scan: expected the step to return a carry like init, {shown(structure.carry_spec)}, but got {shown(got)}"
        )
    return new, *flattened(y)


def expect_unchanged(source: str, value: object, known: Mapping[str, object]) -> None:
    """Raises RuntimeError for a tensor or a number that the step reads from outside and replaces: every step would read
    the first one's."""
    try:
        found = eval(source, {"L": known, "G": step_once.__globals__, "torch": torch})
    except (AttributeError, IndexError, KeyError, NameError, SyntaxError, TypeError):
        return  # not a Python expression: Dynamo found the tensor in another way, such as a view's base
    is_changed = found is not value if isinstance(value, Tensor) else type(value) in NUMBERS and found != value
    if is_changed and isinstance(found, (Tensor, *NUMBERS)):
        name = readable(source, known["step"])
        raise RuntimeError(f"scan: the step reads {name} and replaces it; make it part of the carry instead")


def expect_guards(function: Callable[..., object], known: Mapping[str, object]) -> None:
    """Raises RuntimeError if a guard of a graph that Dynamo has just traced, in a call with these arguments, fails
    after the call: every step would see the Python objects that the first one sees."""
    entries = _debug_get_cache_entry_list(function._torchdynamo_orig_callable.__code__)
    if not entries or entries[0].guard_manager.check(known):
        return
    broken = entries[0].guard_manager.check_verbose(known).verbose_code_parts
    expression = (
        readable(broken[0].partition(" # ")[0].strip(), known["step"]) if broken else "an assumption of Dynamo's"
    )
    raise RuntimeError(
        f"scan: the step changes Python objects that it depends on: {expression} is false after it; make "
        "them part of the carry instead"
    )


def readable(expression: str, step: object) -> str:
    """Dynamo's expression for an object, with the names in the step's code."""
    variables = getattr(step, "__code__", step_once.__code__).co_freevars
    cell = r"L\['step'\]\.__closure__\[(\d+)\]\.cell_contents"
    text = re.sub(cell, lambda found: variables[int(found[1])], expression)
    text = re.sub(r"G\['__import_\w+'\]\.", "", text).replace("L['step']", "step")
    return re.sub(r"G\['(\w+)'\]", r"\1", text)


def stand_in(tensor: Tensor, requires_grad: bool) -> Tensor:
    """A tensor that the step doesn't have elsewhere: Dynamo treats two occurrences of a tensor as one input."""
    made = tensor.detach()
    return made.requires_grad_() if requires_grad else made


def is_differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


# Each dtype, rank and module setting has a graph of its own.
LIMIT = {"recompile_limit": 64} if "recompile_limit" in inspect.signature(torch.compile).parameters else {}
_count = itertools.count()
_compiled: weakref.WeakKeyDictionary[types.CodeType, dict[object, Callable[..., object]]] = weakref.WeakKeyDictionary()


def compiled_for(step: object, structure: Structure, backend: Backend) -> Callable[..., object]:
    """The compiled function for a step's code and structure. Each has a code object of its own, because Dynamo limits
    how often it compiles one."""
    known = _compiled.setdefault(code_of(step), {})
    if (found := known.get(structure)) is not None:
        return found
    for mark in (carried, result):
        torch._dynamo.allow_in_graph(mark)
    # Dynamo remembers by name and line which sizes change.
    code = step_once.__code__.replace(co_name=f"{step_once.__name__}_{next(_count)}")
    function = types.FunctionType(code, step_once.__globals__, code.co_name)
    options = {"guard_filter_fn": guards_of_step}
    known[structure] = torch.compile(function, backend=backend, fullgraph=True, options=options, **LIMIT)
    return known[structure]


def guards_of_step(guards: Sequence[object]) -> list[bool]:
    """Whether Dynamo has to check each guard in every call. Most are about the pytrees of step_once, and about
    builtins: each structure has a function of its own, and the others don't change."""
    for guard in guards:
        guard.orig_guard.obj_weakref = None  # torch expects the first check's object, but W.T is always a new one
    return [not is_own(guard.name) and not is_replaced(guard.orig_guard) for guard in guards]


def is_replaced(guard: object) -> bool:
    """Whether a guard is about the old value of a module's buffer, where the step sets it: Dynamo guards that value
    too, but only a read makes the step depend on it, and has a guard of its own."""
    stack = getattr(guard, "user_stack", None)
    return bool(stack) and stack[-1].name == "__setattr__" and stack[-1].filename == nn.modules.module.__file__


def is_own(name: str) -> bool:
    """name: Dynamo's expression for an object, without the scope of a local one."""
    is_structure = re.match(r"(L\['structure'\]|structure)(\.|$)", name) is not None
    return is_structure or any(each in name for each in OWN_GLOBALS)


OWN_GLOBALS = (
    "G['__import_torch_dot_utils_dot__pytree']",
    "__import__('torch').utils._pytree",
    "G['__import_fourfold_dot_scanning",
    "G['__builtins_dict__",
    *(f"G['{name}']" for name in step_once.__code__.co_names if name in step_once.__globals__),
)


def code_of(step: object) -> types.CodeType:
    """The code that a callable runs; callables with the same code share graphs."""
    while True:
        if isinstance(step, functools.partial):
            step = step.func
        elif isinstance(step, torch.nn.Module):
            step = type(step).forward
        elif isinstance(step, types.MethodType):
            step = step.__func__
        elif isinstance(step, types.FunctionType):
            return step.__code__
        elif isinstance(method := inspect.getattr_static(type(step), "__call__"), types.FunctionType):
            return method.__code__
        else:  # a builtin, such as torch.add
            return step_once.__code__
