"""Small recurrent layers for the tests of the compiler, and the graphs that Dynamo captures of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from compiled import draw

KINDS = (nn.LSTM, nn.GRU)
# torch's and fourfold's kernels add up products in a different order, over several steps and their backward.
NEAR = {"rtol": 1e-4, "atol": 1e-5}

each_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind: type[nn.RNNBase], dtype: torch.dtype = torch.float32, **settings: object) -> nn.RNNBase:
    torch.manual_seed(1)
    return kind(5, 8, **settings).to(dtype)


def state_of(layer: nn.RNNBase, batch: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    shape = (layer.num_layers * (2 if layer.bidirectional else 1), batch, layer.hidden_size)
    return tuple(draw(*shape, dtype=dtype, seed=k) for k in range(2 if layer.mode == "LSTM" else 1))


def captured(function: Callable[..., object], *given: object, **settings: object) -> GraphModule:
    """The graph that Dynamo passes to a backend, before any handling of recurrent layers."""
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.compile(function, backend=keep, fullgraph=True, **settings)(*given)
    (graph,) = graphs
    return graph


def targets_of(graph: GraphModule) -> list[object]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]
