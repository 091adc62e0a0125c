"""Runs a captured step over whole sequences, with gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fourfold.compiler.analysis.views import has_hints, hint
from fourfold.compiler.nodes.recorder import NotRecorded
from fourfold.compiler.options import Options
from fourfold.compiler.pipeline import runtime
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.scanning import record
from fourfold.scanning.capture import CapturedStep, ScanCall
from fourfold.scanning.fission import Kind, draws
from fourfold.scanning.lines import hint_of_batch, line_of
from fourfold.scanning.sequence import RunsInLoop, Whole, whole_of
from fourfold.scanning.step_graphs import Refused, StepGraph, finish, step_graphs_of


class RunsInPython(Exception):
    """The step runs in Python, one by one; the message gives the reason."""


def recurrence_of(captured: CapturedStep, call: ScanCall, options: Options) -> Recurrence:
    """Raises ValueError for a state that changes its shape or dtype, RunsInPython."""
    check_states(captured, call)
    try:
        return Recurrence(captured, options)
    except Refused as reason:
        raise RunsInPython(str(reason)) from None


def check_states(captured: CapturedStep, call: ScanCall) -> None:
    graph = captured.module.graph
    results, inputs = graph.output_node().args[0], graph.find_nodes(op="placeholder")
    olds = {
        k: node.meta["example_value"]
        for (role, k), node in zip(captured.inputs, inputs, strict=True)
        if role == "carry"
    }
    for k, index in enumerate(captured.carries):
        old, node = olds.get(k, call.carries[k]), results[index]
        new = node.meta["example_value"]
        if not has_hints(new):
            raise RunsInPython(
                f"the size of leaf {k} of the new carry depends on data{line_of(node.args[0], call.step)}"
            )
        if new.dtype != old.dtype or new.dim() != old.dim() or not all(map(are_equal, new.shape, old.shape)):
            raise ValueError(
                f"scan: expected the step to return leaf {k} of the carry as {described(old)}, like the one that it "
                f"takes, but got {described(new)}{line_of(node.args[0], call.step)}"
                f"{start_for(old, new) or hint_of_batch(call)}"
            )


def are_equal(new: object, old: object) -> bool:
    """Whether two sizes are equal; for two symbols Dynamo adds a guard."""
    is_symbol = isinstance(new, torch.SymInt) and isinstance(old, torch.SymInt)
    return bool(new == old) if is_symbol else hint(new) == hint(old)


def described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(map(hint, tensor.shape))}"


def start_for(old: Tensor, new: Tensor) -> str:
    """What to pass as init in place of one number."""
    size = tuple(map(hint, new.shape))
    return f"; to start with zeros, pass torch.zeros({size}) in init" if not old.dim() and new.dim() else ""


FUNCTION = torch.ops.higher_order.autograd_function_apply


class Recurrence:
    """The function of a captured step. Dynamo calls it with the inputs of the step's graph; those that come from the
    call of scan stand for whole sequences."""

    def __init__(self, captured: CapturedStep, options: Options):
        self.captured = captured
        self.options = options
        self.graphs = step_graphs_of(captured, options)
        self.functions: dict[tuple[bool, bool], Callable[..., Sequence[object]]] = {}
        self.wholes: dict[tuple[str, bool], tuple[Whole, Compiled]] = {}
        self.make_backward: dict[bool, Callable[[], Compiled]] = {}  # by the forward's direction
        self.lock = threading.RLock()

    def __call__(self, call: ScanCall, given: Sequence[object]) -> tuple[object, ...]:
        """The results in the order of the step's graph."""
        inputs = [
            call.carries[k] if role == "carry" else call.xs[k] if role == "x" else value
            for (role, k), value in zip(self.captured.inputs, given, strict=True)
        ]
        if call.steps == 0:
            return self.without_steps(call, given)
        if self.captured.effects:
            triples = zip(self.captured.inputs, self.captured.sources, given, strict=True)
            call.read.extend((source, value) for (role, _), source, value in triples if role == "closure" and source)
        trains = self.graphs.backward is not None and torch.is_grad_enabled() and any(map(requires_grad, inputs))
        if trains and call.runs_again and self.graphs.changed:
            raise ValueError(
                "scan: expected no checkpoint_every for a step that changes other tensors in place, since the backward "
                "would change them again"
            )
        record.ran(self, call, inputs, trains)
        return self.arranged(inputs, self.function(call, trains)(call.steps, *inputs))

    def arranged(self, inputs: Sequence[object], results: Sequence[object]) -> tuple[object, ...]:
        """Copies the new values of inputs that the step changes in place, and returns the other results in order."""
        captured, changed = self.captured, self.graphs.changed
        states = [*captured.carries, *captured.effects]
        for k, value in zip(changed, results[len(states) :], strict=False):
            with torch.no_grad():
                inputs[k].copy_(value)
        found: list[object] = [None] * (len(states) + len(captured.ys))
        for k, value in zip(states, results, strict=False):
            found[k] = value
        series = results[len(states) + len(changed) :]
        for k, value in zip(captured.ys, series, strict=False):
            found[k] = value
        for name, value in zip(self.graphs.checks, series[len(captured.ys) :], strict=True):
            torch.ops.aten._linalg_check_errors(value, name, is_matrix=False)
        return tuple(found)

    def without_steps(self, call: ScanCall, given: Sequence[object]) -> tuple[object, ...]:
        """The initial state, and empty results."""
        captured = self.captured
        if captured.effects:
            raise ValueError("scan: expected at least one step, because the step sets attributes; but got xs of size 0")
        mode = FakeTensorMode()
        fakes = [mode.from_tensor(each) if isinstance(each, Tensor) else each for each in given]
        with mode, torch.no_grad():
            shapes = captured.module(*fakes)
        found: list[object] = [None] * len(shapes)
        for k, index in enumerate(captured.carries):
            found[index] = call.carries[k].clone()
        for index in captured.ys:
            like = shapes[index]
            found[index] = torch.empty((0, *like.shape), dtype=like.dtype, device=like.device)
        return tuple(found)

    def function(self, call: ScanCall, trains: bool) -> Callable[..., Sequence[object]]:
        key = trains, call.reverse
        if key not in self.functions:
            with self.lock:
                if key not in self.functions:
                    try:
                        self.functions[key] = self.training(call) if trains else self.inference(call)
                    except (NotRecorded, RunsInLoop) as reason:
                        record.ran_in_python(call, str(reason))
                        raise RunsInPython(str(reason)) from None
        return self.functions[key]

    def inference(self, call: ScanCall) -> Callable[..., Sequence[object]]:
        compiled = self.compiled("inference", self.graphs.inference, call.steps, call.reverse)
        if not runtime.is_native():
            return lambda *given: compiled.run(list(given))
        return runtime.inference(compiled, 1 + len(self.captured.inputs))

    def training(self, call: ScanCall) -> Callable[..., Sequence[object]]:
        graphs, steps, reverse = self.graphs, call.steps, call.reverse
        forward = self.compiled("forward", graphs.forward, steps, reverse)
        kind = self.wholes["forward", reverse][0].fission.kind
        for node, own in zip(graphs.backward.inputs, graphs.forward.kept or (), strict=False):
            graphs.backward.kinds[node] = min(kind[own], Kind.SERIES)
        finish(graphs.backward)

        def make_backward() -> Compiled:
            with self.lock:
                if ("backward", not reverse) not in self.wholes:
                    self.compiled("backward", graphs.backward, steps, not reverse, graphs.gradients)
            return self.wholes["backward", not reverse][1]

        self.make_backward[reverse] = make_backward

        def again(inputs: Sequence[object], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
            return self.differentiated_again(reverse, inputs, grads)

        is_smooth = self.can_run_again()
        wanted = [False, *(k is not None for k in graphs.gradients)]
        if not runtime.is_native():
            return in_python(forward, make_backward, again if is_smooth else None, graphs.differentiable, wanted)
        backward = torch._dynamo.disable(make_backward)
        return runtime.twice_differentiable(
            forward, backward, graphs.differentiable, wanted, again if is_smooth else None
        )

    def can_run_again(self) -> bool:
        """Whether its steps, run in Python, give the same values, and gradients that can be differentiated: PyTorch
        can't differentiate the backward of a torch.autograd.Function that Dynamo has traced."""
        functions = self.captured.module.graph.find_nodes(op="call_function", target=FUNCTION)
        return not (self.graphs.changed or functions or any(map(draws, self.graphs.forward.graph.nodes)))

    def compiled(
        self, name: str, step: StepGraph, steps: int, reverse: bool, order: Sequence[int | None] | None = None
    ) -> Compiled:
        """order: of the results; the number of steps, which is the first input, gets None."""
        whole = whole_of(step, steps, reverse, self.options)
        if order is not None:
            output = whole.module.graph.output_node()
            output.args = ((None, *(None if k is None else output.args[0][k] for k in order)),)
        made = Compiled.of(whole.module, self.options)
        self.wholes[name, reverse] = whole, made
        return made

    def differentiated_again(
        self, reverse: bool, inputs: Sequence[object], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The inputs' gradients, which can be differentiated, by running the steps one by one."""
        with torch.enable_grad():
            # Views, so that a gradient doesn't pass through the history by which one input depends on another.
            own = [each.view_as(each) if isinstance(each, Tensor) else each for each in inputs]
            wanted = [each for each in own if requires_grad(each)]
            results = self.one_by_one(reverse, *own)
            differentiable = [r for r, d in zip(results, self.graphs.differentiable, strict=False) if d]
            pairs = [(r, g) for r, g in zip(differentiable, grads, strict=True) if g is not None and r.requires_grad]
            if not pairs:
                return [None] * len(own)
            outputs, given = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(outputs, wanted, given, create_graph=True, allow_unused=True))
        return [next(found) if requires_grad(each) else None for each in own]

    def one_by_one(self, reverse: bool, steps: int, *inputs: object) -> list[Tensor]:
        """The results, states first, by running the step's graph in Python."""
        captured = self.captured
        order = [*captured.carries, *captured.effects]
        carries = {k: value for (role, k), value in zip(captured.inputs, inputs, strict=True) if role == "carry"}
        rows: list[list[Tensor]] = []
        results: Sequence[Tensor] = ()
        for t in range(steps - 1, -1, -1) if reverse else range(steps):
            given = [
                carries[k] if role == "carry" else value[t] if role == "x" else value
                for (role, k), value in zip(captured.inputs, inputs, strict=True)
            ]
            results = captured.module(*given)
            carries = {k: results[captured.carries[k]] for k in carries}
            rows.append([results[k] for k in captured.ys])
        if reverse:
            rows.reverse()
        return [*(results[k] for k in order), *(torch.stack(column) for column in zip(*rows, strict=True))]


def requires_grad(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def in_python(
    forward: Compiled,
    make_backward: Callable[[], Compiled],
    again: Callable[[Sequence[object], Sequence[Tensor | None]], list[Tensor | None]] | None,
    differentiable: Sequence[bool],
    wanted: Sequence[bool],
) -> Callable[..., Sequence[object]]:
    """The function with its gradient, if there is no C++ module for this torch."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):  # noqa: ANN001, ANN002, ANN205
            results = forward.run(list(inputs))
            count = len(differentiable)
            kept = results[count:]
            ctx.numbers = [value for value in kept if not isinstance(value, Tensor)]
            ctx.inputs = inputs
            ctx.save_for_backward(*(value for value in kept if isinstance(value, Tensor)))
            ctx.mark_non_differentiable(*(r for r, d in zip(results, differentiable, strict=False) if not d))
            return tuple(results[:count])

        @staticmethod
        def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
            if torch.is_grad_enabled() and again is None:
                raise NotImplementedError(
                    "scan: expected no create_graph=True for a step that draws random numbers, changes other tensors "
                    "or has a torch.autograd.Function; write a Python loop for second derivatives"
                )
            if torch.is_grad_enabled():
                return tuple(again(ctx.inputs, [g for g, d in zip(grads, differentiable, strict=True) if d]))
            given = [g for g, d in zip(grads, differentiable, strict=True) if d]
            found = make_backward().run([*ctx.numbers, *ctx.saved_tensors, *given])
            return tuple(g if is_wanted else None for g, is_wanted in zip(found, wanted, strict=True))

    return Function.apply
