"""Writes the graph of a whole sequence: what runs before the loop, the loop, and what runs after it."""

from __future__ import annotations

import contextlib
import logging
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_or

from fourfold.compiler.analysis.sizes import Sizes
from fourfold.compiler.analysis.support import IN_LOOP, is_tensor
from fourfold.compiler.nodes.loop import Loop
from fourfold.compiler.nodes.recorder import NotRecorded
from fourfold.compiler.options import Options
from fourfold.compiler.passes.cleanup import eliminate_dead_code
from fourfold.compiler.pipeline import runtime
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.scanning.batching import batched
from fourfold.scanning.fakes import Fakes
from fourfold.scanning.fission import Fission, Kind, Phase
from fourfold.scanning.numbers import SizeRecorder
from fourfold.scanning.step_graphs import StepGraph
from fourfold.scanning.totals import Totals, summed_in_loop

aten = torch.ops.aten
FAKES_LOG = logging.getLogger("torch._subclasses.fake_tensor")


class RunsInLoop(Exception):
    """An operator of the step that can't be applied to all steps at once."""

    def __init__(self, node: Node):
        super().__init__(f"{node.target} can't be applied to all steps at once")
        self.node = node


@dataclass(frozen=True)
class Whole:
    """The graph of a whole sequence, and the places of the step's operators. loop: None if nothing runs in one."""

    module: GraphModule
    fission: Fission
    loop: Loop | None


def whole_of(step: StepGraph, steps: int, reverse: bool, options: Options) -> Whole:
    """steps: their number in the first call. Raises RunsInLoop, NotRecorded."""
    forced: set[Node] = set()
    while True:
        try:
            return Writer(step, Fakes(steps), reverse, options, forced).write()
        except RunsInLoop as found:
            if found.node in forced:
                raise
            forced.add(found.node)


class Writer:
    """Inputs: the number of steps, then the step's inputs; series have the steps as their first dimension. Results: the
    last states, the series, the totals, and what is kept, preceded by the number of steps; None where the step has
    None. forced: operators that run in the loop."""

    def __init__(self, step: StepGraph, fakes: Fakes, reverse: bool, options: Options, forced: Collection[Node]):
        self.step, self.fakes, self.reverse, self.options = step, fakes, reverse, options
        self.graph = Graph()
        states = [node for node in step.states if node is not None]
        each = [node for node in (*step.series, *(step.kept or ())) if node is not None]
        self.fission = Fission(step.graph, step.kinds, states, each, forced)
        self.values: dict[Node, object] = {}  # by node of the step; for all steps, except invariants
        self.summed: dict[Node, Tensor] = {}  # totals that the loop computes
        self.constants: dict[str, Tensor] = {}
        self.loop: Loop | None = None

    def write(self) -> Whole:
        self.steps = self.placeholder("steps", self.fakes.steps)
        inputs = [self.placeholder(node.name, self.fake_input(node)) for node in self.step.inputs]
        output = self.graph.output((self.steps, *inputs))
        with SizeRecorder(output, Sizes()) as self.record:
            self.record.value(self.steps)
            self.values.update(
                (node, self.record.value(own)) for node, own in zip(self.step.inputs, inputs, strict=True)
            )
            results = self.results()
            output.args = (tuple(None if each is None else self.record.spelled(each) for each in results),)
        if self.loop is not None:  # after the block: a recorder, a mode, would record the passes
            compile_body(self.loop, self.options)
        eliminate_dead_code(self.graph)
        return Whole(GraphModule(self.constants, self.graph), self.fission, self.loop)

    def placeholder(self, name: str, fake: object) -> Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = fake
        return node

    def fake_input(self, node: Node) -> object:
        value = node.meta["val"]
        if not is_tensor(value):
            return self.fakes.number(value)
        return self.fakes.tensor(value, self.fakes.steps if self.fission.kind[node] is Kind.SERIES else None)

    def results(self) -> list[object]:
        step = self.step
        states = self.run_loop()
        series = [None if node is None else contiguous(self.of_all_steps(node)) for node in step.series]
        totals = Totals(
            self.value, self.is_batched, self.values.__contains__, self.summed, self.fission, self.fakes.steps
        )
        kept = [] if step.kept is None else [self.fakes.steps, *map(self.value, step.kept)]
        return [*states, *series, *(None if node is None else totals.total(node) for node in step.totals), *kept]

    def is_batched(self, node: Node) -> bool:
        return self.fission.kind[node] is not Kind.INVARIANT

    def value(self, node: Node) -> object:
        if node not in self.values:
            self.values[node] = self.computed(node)
        return self.values[node]

    def computed(self, node: Node) -> object:
        fake = node.meta.get("val")
        if node.op == "get_attr":
            return self.constant(node)
        if not is_tensor(fake) and not isinstance(fake, (tuple, list)):
            return self.fakes.number(fake)
        for operand in node.all_input_nodes:  # first, so that an error below is about this node
            self.value(operand)
        try:
            with silent(FAKES_LOG):
                result = batched(node, self.value, self.is_batched, self.fakes.steps)
        except (RuntimeError, ValueError, NotImplementedError, NotRecorded) as error:
            raise RunsInLoop(node) from error
        if not self.fakes.are_general:
            raise RunsInLoop(node)
        return result

    def constant(self, node: Node) -> Tensor:
        """A tensor that the step creates from numbers."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = getattr(self.step.graph.owning_module, node.target)
        with self.graph.inserting_before(self.record.before):
            own = self.graph.get_attr(name)
        own.meta["val"] = self.fakes.tensor(self.constants[name])
        return self.record.value(own)

    def of_all_steps(self, node: Node) -> Tensor:
        value = self.value(node)
        return value if self.is_batched(node) else aten.clone.default(value.expand([self.fakes.steps, *value.shape]))

    def run_loop(self) -> list[object]:
        """Writes the loop's node; returns the last states, None for those that nothing computes."""
        step = self.step
        parts = Parts.of(step, self.fission)
        last: list[object] = [None] * len(step.states)
        for node in step.unchanged():
            last[step.reads.index(node)] = aten.clone.default(self.value(node))
        if not parts.inside and not parts.states:
            return last
        self.loop = looped(step, parts, self.reverse)
        operands = [self.value(node) for node in parts.read(step)]
        operands += [self.zeros(node) for node in parts.summed]
        operands += [self.value(node) for node in (*parts.series, *parts.invariants)]
        trails = self.loop.trails[: len(parts.states)]
        fakes = [
            self.fakes.tensor(like(step, k).meta["val"], self.fakes.steps + 1 if is_trail else None)
            for k, is_trail in zip(parts.states, trails, strict=True)
        ]
        fakes += [self.fakes.tensor(node.meta["val"]) for node in parts.summed]
        fakes += [self.fakes.tensor(node.meta["val"], self.fakes.steps) for node in parts.kept]
        node = self.record.write(tuple(fakes), self.loop, (self.steps, *map(self.record.spelled, operands)))
        for k, fake in enumerate(fakes):
            self.record.write(fake, operator.getitem, (node, k))
        behind_states = len(parts.states) + len(parts.summed)
        self.summed |= zip(parts.summed, fakes[len(parts.states) : behind_states], strict=True)
        self.values |= zip(parts.kept, fakes[behind_states:], strict=True)
        for k, fake, is_trail in zip(parts.states, fakes, trails, strict=False):
            last[k] = self.last_of_trail(k, fake, parts) if is_trail else fake
        return last

    def zeros(self, node: Node) -> Tensor:
        value = node.meta["val"]
        sizes = [self.fakes.number(size) for size in value.shape]
        return aten.full.default(sizes, 0, dtype=value.dtype, device=value.device, pin_memory=False)

    def last_of_trail(self, k: int, trail: Tensor, parts: Parts) -> Tensor:
        """Sets a state's values before and after every step, which are all values of the trail but the last or the
        first."""
        first, rest = aten.slice.Tensor(trail, 0, 0, -1), aten.slice.Tensor(trail, 0, 1)
        old, new = (rest, first) if self.reverse else (first, rest)
        self.values[self.step.reads[k]] = old
        if self.step.states[k] in parts.inside:
            self.values[self.step.states[k]] = new
        return aten.clone.default(trail.select(0, 0 if self.reverse else -1))


@dataclass(frozen=True)
class Parts:
    """What the loop reads and returns. inside: its operators. states: the indices of the states that it computes.
    trails: those whose values of all steps are needed. summed: values that it adds up, as additional states. kept:
    other values needed of all steps."""

    inside: Collection[Node]
    states: Sequence[int]
    trails: Collection[int]
    summed: Sequence[Node]
    kept: Sequence[Node]
    series: Sequence[Node]
    invariants: Sequence[Node]

    @classmethod
    def of(cls, step: StepGraph, fission: Fission) -> Parts:
        place = fission.place
        inside = dict.fromkeys(node for node in step.graph.nodes if place.get(node) is Phase.INSIDE)
        states = step.changing()
        held = {step.reads[k] for k in states} - {None}
        others = {*filter(None, step.series), *(step.kept or ()), *filter(None, step.states)}
        totals = dict.fromkeys(filter(None, step.totals))
        summed = summed_in_loop(totals, others, fission)
        results = [node for node in (*step.series, *totals, *(step.kept or ())) if node is not None]
        behind = (o for node in step.graph.nodes if place.get(node) is Phase.BEHIND for o in node.all_input_nodes)
        wanted = (node for node in (*behind, *results) if node not in summed)
        needed = dict.fromkeys(node for node in wanted if node in inside or node in held)
        trails = {k for k in states if step.reads[k] in needed}
        on_trails = {step.states[k] for k in trails}
        read = [operand for node in inside for operand in node.all_input_nodes]
        read += [step.states[k] for k in states if step.states[k] is not None]
        outside = [node for node in dict.fromkeys(read) if node not in inside and node not in held]
        series = [n for n in outside if is_tensor(n.meta.get("val")) and fission.kind[n] is not Kind.INVARIANT]
        kept = [node for node in needed if node in inside and node not in on_trails]
        return cls(inside, states, trails, summed, kept, series, [node for node in outside if node not in series])

    def read(self, step: StepGraph) -> list[Node]:
        """The inputs of the states that the loop's body takes."""
        return [step.reads[k] for k in self.states if step.reads[k] is not None]


@contextlib.contextmanager
def silent(log: logging.Logger) -> Iterator[None]:
    """Silences torch's error log for what fake tensors can't compute: here the operator then runs in the loop."""
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def like(step: StepGraph, k: int) -> Node:
    """A node with the shape and dtype of a state."""
    return step.states[k] if step.states[k] is not None else step.reads[k]


def contiguous(value: Tensor) -> Tensor:
    """A result in the layout that torch.stack returns."""
    expected: int | torch.SymInt = 1
    for size, stride in reversed(list(zip(value.shape, value.stride(), strict=True))):
        if not statically_known_true(sym_or(size == 1, stride == expected)):
            return aten.clone.default(value, memory_format=torch.contiguous_format)
        expected = expected * size
    return value


def looped(step: StepGraph, parts: Parts, reverse: bool) -> Loop:
    """The loop, whose body is not compiled yet."""
    body = Graph()
    own: dict[Node, Node] = {}
    for node in parts.read(step):
        own[node] = placeholder(body, node, node.name)
    sums = [placeholder(body, node, f"sum_{node.name}") for node in parts.summed]
    for node in (*parts.series, *parts.invariants):
        own[node] = placeholder(body, node, node.name)
    for node in parts.inside:
        own[node] = body.node_copy(node, own.__getitem__)
    states = [new_state(body, step, k, own) for k in parts.states]
    for node, before in zip(parts.summed, sums, strict=True):
        states.append(body.call_function(aten.add.Tensor, (before, own[node])))
        states[-1].meta = dict(node.meta)
    body.output((*states, *map(own.__getitem__, parts.kept)))
    module = GraphModule({}, body)
    module.meta[IN_LOOP] = True
    feeds = [at for at, k in enumerate(parts.states) if step.reads[k] is not None]
    feeds += range(len(parts.states), len(states))
    trails = [k in parts.trails for k in parts.states] + [False] * len(sums)
    return Loop(module, None, feeds, trails, len(parts.series), reverse)


def placeholder(body: Graph, like: Node, name: str) -> Node:
    """An input of the body, with the value of a node of the step."""
    made = body.placeholder(name.replace("tangents", "gradients"))  # tangents: autograd's name for gradients
    made.meta = {"val": like.meta["val"]}
    return made


def compile_body(loop: Loop, options: Options) -> None:
    loop.body = Compiled.of(loop.body, options)
    loop.native = runtime.graph_of(loop.body) if runtime.is_native() else None


def new_state(body: Graph, step: StepGraph, k: int, own: Mapping[Node, Node]) -> Node:
    """The body's node of a new state. A state that is another state or a series is copied, so that a program computes
    it."""
    old, new = step.reads[k], step.states[k]
    if new is not None and (new is old or own[new].op != "placeholder"):
        return own[new]
    source = own[old if new is None else new]
    target = (aten.full_like.default, (source, 0)) if new is None else (aten.clone.default, (source,))
    made = body.call_function(*target)
    made.meta = {"val": source.meta["val"]}
    return made
