"""Loads and runs files where there is no module for the installed torch, with the functions, checks and errors of that
module. The graph of a file becomes a graph of torch.fx, which runs like one of torch.compile."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fourfold.saving.in_python.model import Model as Model
from fourfold.saving.in_python.stream import Stream as Stream


def describe_model(model: Model) -> tuple[str, str, list[str], list[str], int, list[tuple[int, int]]]:
    """The graph and the structure in JSON, the names of arguments and tensors, the number of results, the state."""
    names = [argument.name for argument in model.signature.arguments]
    return model.graph_text, model.structure, names, list(model.tensors), len(model.results), model.state


def tensor_of_model(model: Model, name: str) -> Tensor:
    return model.tensors[name]


def state_of_stream(stream: Stream) -> dict[str, Tensor]:
    return stream.copied_state()


def reset_stream(stream: Stream, streams: Tensor | None, dim: int | Mapping[str, int] | None) -> None:
    stream.reset(streams, dim)
