"""A published model at work, in several ways."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.processes import ROOT
from benchmarks.targets import PLAIN

OPTIMIZED, COMPILED, LOADED = "fourfold.optimize", 'torch.compile(backend="fourfold")', "fourfold.load"
SCRIPT, ONNX = "TorchScript", "ONNX Runtime"
Way = Callable[[], Tensor]


@dataclass(frozen=True)
class Case:
    """Each way is a call that does the work and returns its result; plain PyTorch is among them.

    title: the work, of which suites.py has a target. against: the way whose time the ratios are of. per: how many of
    ``unit`` a call does. batch_of: the title of the case that does one at a time, which a batch's target is compared
    with. approximate: the way whose results need not be those of plain PyTorch, as of int8 weights.
    """

    title: str
    ways: Mapping[str, Way]
    against: str
    per: float = 1
    unit: str = "frame"
    batch_of: str = ""
    approximate: str = ""


def example(name: str) -> ModuleType:
    """The module of examples/models of that name."""
    spec = importlib.util.spec_from_file_location(f"model_{name}", ROOT / "examples/models" / name / "model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where Dynamo looks for a function's globals
    spec.loader.exec_module(module)
    return module


def package_file(package: str, *names: str) -> str:
    """A file of an installed package, which need not be importable."""
    (folder,) = importlib.util.find_spec(package).submodule_search_locations
    return str(Path(folder, *names))


def session(model: str | bytes) -> Any:
    """An ONNX file, or its bytes, in ONNX Runtime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def ways_of(model: nn.Module, loaded: Callable[..., Tensor]) -> dict[str, Callable[..., Any]]:
    """A model, as it is and as fourfold runs it, each a function of the model's arguments."""
    optimized = copy.deepcopy(model)
    fourfold.optimize(optimized)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="fourfold", dynamic=False)
    return {PLAIN: model, OPTIMIZED: optimized, COMPILED: compiled, LOADED: loaded}


def exported(model: nn.Module, arguments: tuple[Any, ...], **options: Any) -> torch.export.ExportedProgram:
    """Of an optimized copy, whose recurrent layers take any number of steps."""
    optimized = copy.deepcopy(model)
    fourfold.optimize(optimized)
    return torch.export.export(optimized, arguments, **options)


def over(step: Callable[[Tensor], Tensor], inputs: Sequence[Tensor] | Tensor) -> Way:
    """Calls the step with one input after the other, again and again."""
    place = -1

    def call() -> Tensor:
        nonlocal place
        place = (place + 1) % len(inputs)
        return step(inputs[place])

    return call


def with_state(call: Callable[..., tuple[Tensor, ...]], state: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """A step of (input, *state) -> (result, *next state), which keeps the state from call to call."""
    kept = list(state)

    def step(x: Tensor) -> Tensor:
        result, *kept[:] = call(x, *kept)
        return result

    return step
