"""A model loaded from its file, called with the leaves of its arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fourfold.saving.in_python import operators, tensor_file
from fourfold.saving.in_python.operators import OTHER, TENSOR
from fourfold.saving.in_python.reader import Reader
from fourfold.saving.in_python.signature import Signature
from fourfold.saving.in_python.values import (
    Refused,
    constant_of,
    expect,
    index_of,
    laid_out,
    member,
    order_of,
    parsed,
    shown,
)

NEWEST = 1  # the newest supported version of files
LEAVES = (Tensor, int, float, str, type(None))


class Model:
    """Model(path, device, allow, generator): raises ValueError if the file can't be loaded. Called with leaves, returns
    a list."""

    def __init__(self, path: str, device: str | None, allow: Iterable[str], generator: int):
        try:
            self.load(path, device, allow, generator)
        except Refused as error:
            raise ValueError(f"load: expected {path} to be a model that fourfold.save wrote, but {error}") from None
        except RuntimeError as error:
            raise ValueError(f"load: expected to load {path}, but torch says: {error}") from None

    def load(self, path: str, device: str | None, allow: Iterable[str], generator: int) -> None:
        metadata, stored = tensor_file.read(path)
        expect_version(metadata)
        for key in ("fourfold.graph", "fourfold.structure"):
            if key not in metadata:
                raise Refused(f"expected its metadata to have {key}, but they have none")
        self.graph_text, self.structure = metadata["fourfold.graph"], metadata["fourfold.structure"]
        parsed(self.structure)
        graph = parsed(self.graph_text)
        self.device = torch.empty(0, device=device or "cpu").device  # cuda as cuda:0
        stored = {name: tensor.to(self.device) for name, tensor in stored.items()}
        self.tensors = tensors_of(member(graph, "tensors", "the graph"), stored)
        symbols, arguments = (member(graph, key, "the graph") for key in ("symbols", "arguments"))
        self.signature = Signature(symbols, arguments, self.device)
        kinds = [TENSOR] * len(self.tensors)
        for own in self.signature.arguments:
            number = OTHER if own.number is None else operators.INTEGER if own.number is int else operators.FLOAT
            kinds.append(number if own.dtype is None else TENSOR)
        surroundings = operators.Surroundings(self.device, {"aten", "prims", "fourfold", *allow})
        reader = Reader(stored, surroundings, generator)
        reader.read_programs(member(graph, "programs", "the graph"))
        read = reader.graph_of(member(graph, "graph", "the graph"), kinds)
        self.run = read.compiled.run
        # The arguments' memory layouts on which torch's operators depend.
        self.orders = {
            k: order_of(given["order"], len(self.signature.arguments[k].shape))
            for k, given in enumerate(arguments)
            if "order" in given
        }
        self.results = [
            result_of(each, len(read.results))
            for each in expect(member(graph, "results", "the graph"), list, "results")
        ]
        self.state = self.state_of(expect(graph.get("state", []), list, "state"))

    def state_of(self, given: list[Any]) -> list[tuple[int, int]]:
        """Each an argument and the result that it takes, -1 for one that the model changes in place."""
        found: dict[int, int] = {}
        for pair in given:
            if len(expect(pair, list, "a state")) != 2:
                raise Refused("expected a state to be an argument and a result")
            argument = index_of(pair[0], "an argument", len(self.signature.arguments))
            result = -1 if pair[1] is None else index_of(pair[1], "a result", len(self.results))
            is_tensor = result < 0 or self.results[result][0] is not None
            if argument in found or not is_tensor or self.signature.arguments[argument].dtype is None:
                raise Refused("expected each state to be one tensor")
            found[argument] = result
        return list(found.items())

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("model: expected to be loaded from its file, but got a copy or a pickle of it")

    def __call__(self, *leaves: Any) -> list[Any]:
        for k, leaf in enumerate(leaves):
            if not isinstance(leaf, LEAVES):
                own = self.signature.arguments
                name = own[k].name if k < len(own) else f"argument {k}"
                raise TypeError(
                    f"model: expected {name} to be a tensor or a number, but got {type(leaf).__name__}; convert it "
                    "with torch.as_tensor"
                )
        self.signature.check(leaves)
        given = list(leaves)
        with torch.no_grad(), without_autocast(self.device.type):
            for k, order in self.orders.items():
                given[k] = laid_out(given[k], order)
            outputs = self.run([*self.tensors.values(), *given])
        return [constant if output is None else outputs[output] for output, constant in self.results]


def without_autocast(device_type: str) -> contextlib.AbstractContextManager[object]:
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def expect_version(metadata: dict[str, str]) -> None:
    if "fourfold.version" not in metadata:
        raise Refused("it is a safetensors file that fourfold.save didn't write: it holds tensors and no graph")
    given = expect(parsed(metadata["fourfold.version"]), int, "fourfold.version")
    if given > NEWEST:
        raise Refused(f"it has version {given}, and this fourfold reads files up to version {NEWEST}: upgrade fourfold")
    if given < 1:
        raise Refused(f"expected fourfold.version to be at least 1, but got {given}")


def tensors_of(given: Any, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for described in expect(given, list, "tensors"):
        name = expect(member(described, "name", "a tensor"), str, "a name")
        data = expect(member(described, "data", "a tensor"), str, "a tensor's data")
        if data not in stored:
            raise Refused(f"expected a tensor {shown(data)} for {shown(name)}, and there is none")
        if name in found:
            raise Refused(f"expected one tensor {shown(name)}")
        if "order" in described:
            stored[data] = laid_out(stored[data], order_of(described["order"], stored[data].dim()))
        found[name] = stored[data]
    return found


def result_of(given: Any, outputs: int) -> tuple[int | None, Any]:
    """The index of one of the graph's outputs, or a constant."""
    if "output" in expect(given, dict, "a result"):
        return index_of(given["output"], "a result", outputs), None
    return None, constant_of(member(given, "constant", "a result"))
