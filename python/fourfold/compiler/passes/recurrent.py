"""Replaces torch.lstm and torch.gru by fourfold's operators, before AOTAutograd would unroll them step by step.

An operator computes one layer in one direction; fourfold.nn's function composes layers, directions and dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fourfold import functional as F
from fourfold._optimize.layers import is_plain
from fourfold._optimize.limits import over_limits, why_no_kernel
from fourfold.compiler.analysis.support import REFUSAL
from fourfold.nn.lstm_gru import in_torchs_dtype
from fourfold.nn.recurrent import run_layers

OPERATORS = {"lstm": F.lstm, "gru": F.gru}
GATES = {"lstm": 4, "gru": 3}
_SHARED = ("params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
DENSE = ("input", "hx", *_SHARED, "batch_first")
PACKED = ("data", "batch_sizes", "hx", *_SHARED)


@dataclass(frozen=True)
class LayerCall:
    """A call of torch.lstm or torch.gru. In a graph its tensors are nodes.

    states: h_0 and, of an LSTM, c_0. batch_sizes: of packed input, else None."""

    name: str
    input: Tensor
    batch_sizes: Tensor | None
    states: Sequence[Tensor]
    weights: Sequence[Tensor]
    has_biases: bool
    num_layers: int
    dropout: float
    bidirectional: bool
    batch_first: bool

    @classmethod
    def of(cls, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> LayerCall:
        packed = "data" in kwargs or len(args) > 3 and isinstance(args[3], (list, tuple))
        given = dict(zip(PACKED if packed else DENSE, args, strict=False)) | dict(kwargs)  # the rest by name
        return cls(
            name,
            given["data" if packed else "input"],
            given.get("batch_sizes"),
            tuple(given["hx"]) if name == "lstm" else (given["hx"],),
            given["params"],
            given["has_biases"],
            given["num_layers"],
            given["dropout"] if given["train"] else 0.0,
            given["bidirectional"],
            given.get("batch_first", False),
        )

    def parameters(self) -> list[tuple[Tensor | None, ...]]:
        """The parameters of each layer and direction, as the operators take them."""
        each = 4 if self.has_biases else 2
        layers = [tuple(self.weights[k : k + each]) for k in range(0, len(self.weights), each)]
        return layers if self.has_biases else [(*weights, None, None) for weights in layers]

    def refusal(self) -> str | None:
        """Why fourfold's operators can't compute it, or would be slower, or None. Takes fake tensors."""
        tensors = [self.input, *self.states, *self.weights]
        if not all(isinstance(tensor, Tensor) and is_plain(tensor) for tensor in tensors):
            return "an argument is not exactly a dense torch.Tensor"
        directions = 2 if self.bidirectional else 1
        if len(self.weights) != self.num_layers * directions * (4 if self.has_biases else 2):
            return "it has a proj_size"
        weight = self.weights[0]
        hidden_size = weight.shape[0] // GATES[self.name]
        return over_limits(weight.dtype, "hidden_size", hidden_size) or why_no_kernel(self.name, weight)

    def run(self) -> tuple[Tensor, ...]:
        x = self.input.transpose(0, 1) if self.batch_first else self.input
        output, final = run_layers(
            OPERATORS[self.name],
            self.parameters(),
            x,
            self.states,
            num_layers=self.num_layers,
            dropout=self.dropout,
            batch_sizes=self.batch_sizes,
        )
        output, final = in_torchs_dtype(self.name.upper(), x, self.states, self.batch_sizes, output, final)
        return (output.transpose(0, 1) if self.batch_first else output, *final)


def lstm(*args: object, **kwargs: object) -> tuple[Tensor, ...]:
    """torch.lstm on fourfold's operator: output, h_n, c_n."""
    return LayerCall.of("lstm", args, kwargs).run()


def gru(*args: object, **kwargs: object) -> tuple[Tensor, ...]:
    """torch.gru on fourfold's operator: output, h_n."""
    return LayerCall.of("gru", args, kwargs).run()


NAMES: dict[object, str] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    **{getattr(torch.ops.aten.lstm, overload): "lstm" for overload in ("input", "data")},
    **{getattr(torch.ops.aten.gru, overload): "gru" for overload in ("input", "data")},
}
FUNCTIONS: dict[str, Callable[..., tuple[Tensor, ...]]] = {"lstm": lstm, "gru": gru}


def recurrent(module: GraphModule) -> GraphModule:
    """Replaces the calls in Dynamo's graph and in graphs nested in it, such as checkpoints. A node that is not replaced
    has the reason in ``meta[REFUSAL]``."""
    for part in module.modules():
        if isinstance(part, GraphModule) and any([replaced(node) for node in part.graph.nodes]):
            part.recompile()
    return module


def replaced(node: Node) -> bool:
    if node.op != "call_function" or node.target not in NAMES:
        return False
    name = NAMES[node.target]
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), traced)
    why = LayerCall.of(name, args, kwargs).refusal()
    if why is None:
        node.target = FUNCTIONS[name]
    else:
        node.meta[REFUSAL] = why
    return why is None


def traced(node: Node) -> object:
    """Its fake value, which Dynamo and AOTAutograd store under different names."""
    return node.meta.get("example_value", node.meta.get("val"))
