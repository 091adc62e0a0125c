"""Extends Dynamo so that graphs captured for fourfold hold nn.LSTM and nn.GRU, and every change in place.

Dynamo breaks the graph at these layers unless torch._dynamo.config.allow_rnn is set, for all backends. It also traces
torch.lstm and torch.gru by unrolling them, which fixes the length of the sequence. Two extensions change both for
fourfold alone: layers that the pass ``recurrent`` replaces are captured, and their calls are traced with fourfold's
operators, which take any length. A third keeps the changes of float64 tensors without dimensions, which Dynamo drops
for every backend on AOTAutograd. They run at capture only; calls of compiled functions pay nothing."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fourfold._optimize.layers import names_of, why_layer_is_left, why_not_plain
from fourfold.compiler.passes.recurrent import FUNCTIONS, NAMES, LayerCall, traced
from fourfold.freezing import Freezable, is_frozen
from fourfold.nn import recurrent

# The attributes in which wrappers hold a backend: torch.compile's, Dynamo's, functools.partial's and functools.wraps'.
HOLDERS = ("compiler_fn", "_torchdynamo_orig_backend", "func", "__wrapped__")
MOST_WRAPPERS = 16  # an object may have every attribute, as mocks do


def is_for(backend: Callable[..., object], compiler: object) -> bool:
    """Whether the compiler that Dynamo calls with its graph is this backend, or a wrapper of it."""
    for _ in range(MOST_WRAPPERS):
        if compiler is None or compiler is backend:
            break
        held = (getattr(compiler, name, None) for name in HOLDERS)
        compiler = next((one for one in held if one is not None), None)
    return compiler is backend


def takes(layer: object) -> bool:
    """Whether to capture a layer: one that the pass replaces, or one of fourfold's own. Frozen layers run between
    graphs, where they read their packed weights."""
    if not isinstance(layer, (nn.LSTM, nn.GRU)):
        return False
    if isinstance(layer, Freezable):
        return not is_frozen(layer) and why_not_plain(layer, names_of(layer)) is None
    return why_layer_is_left(layer) is None


@functools.cache
def enable(backend: Callable[..., object]) -> None:
    """Extends Dynamo for all functions compiled with this backend later. If Dynamo lacks these extension points, this
    warns, and recurrent layers stay out of graphs, as with other backends."""
    keep_changes(backend)
    try:
        keep_packed_between_graphs()
        trace_calls(backend)  # first: without it, captured layers would be unrolled
        capture_layers(backend)
    except (ImportError, AttributeError) as error:
        what = "fourfold: recurrent layers run between compiled graphs, since Dynamo in this torch has no"
        warnings.warn(f"{what} {error}", RuntimeWarning, stacklevel=2)


def keep_changes(backend: Callable[..., object]) -> None:
    """Dynamo removes a number that became a constant, an input whose users are all item(), from the graph. It takes an
    operator that returns such an input, add_ for example, for the input, and an operator without users for one that
    only item() reads. Only inputs are numbers."""
    from torch._dynamo.output_graph import OutputGraph

    remove_torchs = getattr(OutputGraph, "remove_tensorify_specialized_graphargs", None)
    if remove_torchs is None:  # a torch that doesn't do it
        return
    value = "example_value"

    @functools.wraps(remove_torchs)
    def remove(self: Any) -> None:
        if not is_for(backend, self.compiler_fn):
            return remove_torchs(self)
        operators = [node for node in self.graph.nodes if node.op != "placeholder" and value in node.meta]
        hidden = {node: node.meta.pop(value) for node in operators}
        try:
            return remove_torchs(self)
        finally:
            for node in operators:
                node.meta[value] = hidden[node]

    OutputGraph.remove_tensorify_specialized_graphargs = remove


def capture_layers(backend: Callable[..., object]) -> None:
    from torch._dynamo.variables.builder import VariableBuilder

    wrap_torchs = VariableBuilder.wrap_module

    @functools.wraps(wrap_torchs)
    def wrap_module(self: Any, value: nn.Module) -> Any:
        if not isinstance(value, nn.RNNBase) or not is_for(backend, self.tx.output.compiler_fn) or not takes(value):
            return wrap_torchs(self, value)
        with torch._dynamo.config.patch(allow_rnn=True):
            return wrap_torchs(self, value)

    VariableBuilder.wrap_module = wrap_module


def keep_packed_between_graphs() -> None:
    """At a layer whose packed input has no state, Dynamo would break the graph in each function down to the one that
    reads the batch, with warnings."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    def is_graph_whole() -> bool:
        return InstructionTranslator.current_tx().one_graph

    reason = "the number of packed sequences is data, unless the layer gets a state"
    recurrent.between_graphs = torch.compiler.disable(recurrent.between_graphs, reason=reason)
    recurrent.is_graph_whole = torch._dynamo.assume_constant_result(is_graph_whole)


def trace_calls(backend: Callable[..., object]) -> None:
    from torch._dynamo.utils import proxy_args_kwargs
    from torch._dynamo.variables.builder import wrap_fx_proxy
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    def trace(variable: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        """The node keeps torch's target, which the pass replaces. None leaves the call to Dynamo."""
        if not is_for(backend, tx.output.compiler_fn):
            return None
        name = NAMES[variable.value]
        given = proxy_args_kwargs(args, kwargs)
        fakes = torch.fx.node.map_aggregate(given, lambda a: traced(a.node) if isinstance(a, torch.fx.Proxy) else a)
        if LayerCall.of(name, *fakes).refusal() is not None:
            return None
        proxy = tx.output.create_proxy("call_function", FUNCTIONS[name], *given)
        result = wrap_fx_proxy(tx, proxy)
        proxy.node.target = variable.value
        return result

    handlers = TorchInGraphFunctionVariable._get_handlers()
    for function in (torch.lstm, torch.gru):
        handlers.setdefault(function, trace)
