"""Finds the layouts of a call's values without computing them: fake tensors with the call's shapes, strides and
memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from fourfold.compiler.analysis.views import memory_order
from fourfold.compiler.nodes.fused import Fused
from fourfold.compiler.nodes.loop import Loop

DEPENDS_ON_DATA = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


@dataclass(frozen=True)
class LoopCall:
    """A loop in a call. given: its operands after the number of steps. body: the values of the first step, by node of
    the body. rows: for each result its values of all steps, None if only the last one is kept."""

    loop: Loop
    steps: int
    given: Sequence[object]
    body: dict[Node, object]
    rows: Sequence[Tensor | None]


class Shapes(Interpreter):
    """Runs a compiled graph on fake tensors, with their mode active. ``env`` has the values of all nodes, ``loop`` the
    loop's call."""

    def __init__(self, module: GraphModule):
        super().__init__(module, garbage_collect_values=False)
        self.loop: LoopCall | None = None

    def of_call(self, inputs: Sequence[object]) -> Sequence[object]:
        """The results."""
        return self.run(*inputs, enable_io_processing=False)

    def run_node(self, node: Node) -> object:
        if isinstance(node.target, Fused):
            return self.of_program(node.target, self.map_nodes_to_values(node.args, node))
        if isinstance(node.target, Loop):
            steps, *given = self.map_nodes_to_values(node.args, node)
            return self.of_loop(node.target, steps, given)
        return super().run_node(node)

    def of_program(self, fused: Fused, given: Sequence[object]) -> object:
        """The results, in the layouts in which the program writes them."""
        results = Interpreter(GraphModule({}, fused.graph)).run(*given, enable_io_processing=False)
        laid = [laid_out(value, own.meta["val"]) for value, own in zip(results, fused.outputs, strict=True)]
        return laid[0] if len(laid) == 1 else tuple(laid)

    def of_loop(self, loop: Loop, steps: int, given: Sequence[object]) -> tuple[Tensor, ...]:
        read = len(loop.feeds)
        series, invariants = given[read : read + loop.series], given[read + loop.series :]
        states = [each.contiguous() for each in given[:read]]
        body = Shapes(loop.body.module)
        results = body.of_call([*states, *(each[0] for each in series), *invariants])
        rows: list[Tensor | None] = []
        for k, result in enumerate(results):
            is_state = k < len(loop.trails)
            count = steps + is_state
            is_last = is_state and not loop.trails[k]
            rows.append(None if is_last else result.new_empty((count, *result.shape)))
        self.loop = LoopCall(loop, steps, given, body.env, rows)
        return tuple(result.clone() if row is None else row for result, row in zip(results, rows, strict=True))


def new_mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(allow_scalar_outputs=True))


def faked(mode: FakeTensorMode, value: object) -> object:
    """A fake tensor with the same sizes, strides and memory."""
    return mode.from_tensor(value.detach(), static_shapes=True) if isinstance(value, Tensor) else value


def laid_out(value: Tensor, like: Tensor) -> Tensor:
    """The tensor with the dimension order in memory of another tensor, without gaps."""
    strides, stride = [0] * value.dim(), 1
    for d in reversed(memory_order(like)):
        strides[d] = stride
        stride *= max(1, value.shape[d])
    return value.new_empty_strided(value.shape, strides)


def memory(value: Tensor) -> object:
    """Equal for tensors that share their memory."""
    return value.untyped_storage()._cdata
