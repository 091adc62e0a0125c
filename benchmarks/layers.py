"""The recurrent layers that the suites compare, built for a problem: torch.nn's, fourfold's and plain PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import fourfold
from benchmarks.problem import Candidate, Problem, compiled
from fourfold import reference

GATES = {"LLTM": 3, "LSTM": 4, "GRU": 3}  # of each layer
STATES = {"LLTM": 2, "LSTM": 2, "GRU": 1}  # number of tensors in the state


def draw(kind: str, sizes: Mapping[str, int], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Parameters with the modules' initialisation; the LLTM has one matrix for h and x."""
    input_size, hidden_size = sizes["input_size"], sizes["hidden_size"]
    rows, bound = GATES[kind] * hidden_size, hidden_size**-0.5
    shapes = [(rows, input_size), (rows, hidden_size), (rows,), (rows,)]
    shapes = [(rows, hidden_size + input_size), (rows,)] if kind == "LLTM" else shapes
    return tuple(torch.empty(shape).uniform_(-bound, bound, generator=generator) for shape in shapes)


def definition(kind: str, **settings: Any) -> Callable[..., tuple[Tensor, ...]]:
    """The layer in plain PyTorch, as a function of input, states and parameters. settings: ``batch_sizes`` or
    ``reset``."""
    function = getattr(reference, kind.lower())
    return lambda *inputs: flat(function(*inputs, **settings))


def flat(result: tuple[Tensor, Any]) -> tuple[Tensor, ...]:
    """A layer's ``output, state`` as one tuple; the state of a single layer without its first dimension."""
    output, state = result
    return output, *(s.squeeze(0) if s.dim() == 3 else s for s in as_tuple(state))


def as_tuple(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def module_of(package: ModuleType, problem: Problem, suffix: str = "") -> nn.Module:
    """The package's layer, or with the suffix "Cell" its cell."""
    make = getattr(package, problem.kind + suffix)
    module = make(problem.sizes["input_size"], problem.sizes["hidden_size"])
    return module.to(problem.device, problem.precision.dtype)


def call_module(
    module: nn.Module, batch_sizes: Tensor | None = None, reset: Tensor | None = None
) -> Callable[..., tuple[Tensor, ...]]:
    """Wraps a module with nn.LSTM's signature as a function of input and states (batch, hidden_size)."""
    settings = {} if reset is None else {"reset": reset}

    def call(input: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        given = input if batch_sizes is None else PackedSequence(input, batch_sizes)
        outer = tuple(state.unsqueeze(0) for state in states)
        output, state = module(given, outer if len(outer) > 1 else outer[0], **settings)
        return flat((output if batch_sizes is None else output.data, state))

    return call


def layer(problem: Problem, package: ModuleType = nn, backend: str = "") -> Candidate:
    """The layer of torch.nn or of another package."""
    module = module_of(package, problem)
    call = call_module(compiled(module, backend), problem.batch_sizes, problem.reset)
    return Candidate(call, tuple(module.parameters()))


ours = partial(layer, package=fourfold.nn)
plain = partial(layer, package=reference)  # the tutorial's module


def compiled_step(problem: Problem) -> Candidate:
    """The cell, compiled and called once per step: a compiled loop is unrolled, which takes minutes at a hundred
    steps."""
    module = module_of(reference, problem, "Cell")
    step = compiled(module, "inductor")

    def call(input: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        outputs = []
        for x in input:
            h, c = step(x, (h, c))
            outputs.append(h)
        return torch.stack(outputs), h, c

    return Candidate(call, tuple(module.parameters()))


def cell(make: type[nn.Module], problem: Problem, backend: str = "", **settings: str) -> Candidate:
    module = make(problem.sizes["input_size"], problem.sizes["hidden_size"], **settings).to(problem.device)
    call = compiled(module, backend)
    return Candidate(lambda x, h, c: call(x, (h, c)), (module.weights, module.bias))


def torch_cell(problem: Problem) -> Candidate:
    module = module_of(nn, problem, "Cell").eval()

    def step(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        new = as_tuple(module(x, states if len(states) > 1 else states[0]))
        return new[0], *new

    return Candidate(step, tuple(module.parameters()))


def frozen(problem: Problem) -> Candidate:
    """fourfold's module with its weights declared constant after they were set to the problem's."""
    module = module_of(fourfold.nn, problem)
    call = call_module(module)
    freeze = functools.cache(lambda: fourfold.freeze(module))

    def step(*inputs: Tensor) -> tuple[Tensor, ...]:
        freeze()
        return call(*inputs)

    return Candidate(step, tuple(module.parameters()))


def step_by_step(problem: Problem) -> Candidate:
    """As common PPO implementations write it."""
    module = module_of(nn, problem)
    kept = 1.0 - problem.reset.float()

    def call(input: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        state = tuple(s.unsqueeze(0) for s in states)
        outputs = []
        for x, keep in zip(input, kept, strict=True):
            masked = tuple(keep.view(1, -1, 1) * s for s in state)
            output, new = module(x.unsqueeze(0), masked if len(masked) > 1 else masked[0])
            state = as_tuple(new)
            outputs.append(output)
        return flat((torch.cat(outputs), state))

    return Candidate(call, tuple(module.parameters()))
