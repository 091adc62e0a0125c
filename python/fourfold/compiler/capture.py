"""Dynamo captures recurrent layers whole where it captures for fourfold.

Dynamo breaks its graph at every nn.LSTM and nn.GRU unless torch._dynamo.config.allow_rnn is set, which holds for all
backends; AOTAutograd then unrolls the layers, and traces each length of a sequence anew. So two of Dynamo's methods
ask, while they trace, for whom: layers that the pass ``recurrent`` replaces are let in, and traced by fourfold's
operators, which take any length. Other backends and compiled functions that run already don't come here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fourfold._optimize.layers import names_of, why_layer_is_left, why_not_plain
from fourfold.compiler.passes.recurrent import FUNCTIONS, NAMES, Call, traced
from fourfold.freezing import Freezable, is_frozen

# By what attribute one backend holds another: torch.compile's, Dynamo's, functools'.
HOLDERS = ("compiler_fn", "_torchdynamo_orig_backend", "func", "__wrapped__")


def is_for(backend: Callable[..., object], compiler: object) -> bool:
    """Whether what Dynamo calls with a graph is our backend, or holds it."""
    while compiler is not None and compiler is not backend:
        held = (getattr(compiler, name, None) for name in HOLDERS)
        compiler = next((one for one in held if one is not None), None)
    return compiler is backend


def takes(layer: object) -> bool:
    """Whether a layer is to be captured: where the pass replaces it, or where it is fourfold's own. A frozen one runs
    between graphs, with its packed weights."""
    if not isinstance(layer, (nn.LSTM, nn.GRU)):
        return False
    if isinstance(layer, Freezable):
        return not is_frozen(layer) and why_not_plain(layer, names_of(layer)) is None
    return why_layer_is_left(layer) is None


@functools.cache
def enable(backend: Callable[..., object]) -> None:
    """For functions that are compiled with that backend from now on."""
    let_layers_in(backend)
    trace_calls(backend)


def let_layers_in(backend: Callable[..., object]) -> None:
    from torch._dynamo.variables.builder import VariableBuilder

    wrap_torchs = VariableBuilder.wrap_module

    @functools.wraps(wrap_torchs)
    def wrap_module(self: Any, value: nn.Module) -> Any:
        if not isinstance(value, nn.RNNBase) or not is_for(backend, self.tx.output.compiler_fn) or not takes(value):
            return wrap_torchs(self, value)
        with torch._dynamo.config.patch(allow_rnn=True):
            return wrap_torchs(self, value)

    VariableBuilder.wrap_module = wrap_module


def trace_calls(backend: Callable[..., object]) -> None:
    from torch._dynamo.utils import proxy_args_kwargs
    from torch._dynamo.variables.builder import wrap_fx_proxy
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    def trace(variable: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        """The node remains torch's, for the pass to replace. None: Dynamo traces it itself."""
        if not is_for(backend, tx.output.compiler_fn):
            return None
        name = NAMES[variable.value]
        given = proxy_args_kwargs(args, kwargs)
        fakes = torch.fx.node.map_aggregate(given, lambda a: traced(a.node) if isinstance(a, torch.fx.Proxy) else a)
        if Call.of(name, *fakes).refusal() is not None:
            return None
        proxy = tx.output.create_proxy("call_function", FUNCTIONS[name], *given)
        result = wrap_fx_proxy(tx, proxy)
        proxy.node.target = variable.value
        return result

    handlers = TorchInGraphFunctionVariable._get_handlers()
    for function in (torch.lstm, torch.gru):
        handlers.setdefault(function, trace)
