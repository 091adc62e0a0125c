"""``bench mlp``: a perceptron with one hidden layer, the ROCm extension tutorial's program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import Tensor, nn

import fourfold
from fourfold import reference
from fourfold.bench import aten
from fourfold.bench.comparison import inductor, left_out
from fourfold.bench.problem import OURS, Candidate, Contender, Problem
from fourfold.bench.request import Request


def problems(request: Request) -> Iterator[Problem]:
    yield problem(request.sizes, request.device)


def problem(sizes: Mapping[str, int], device: torch.device | str = "cpu") -> Problem:
    batch_size, input_size, hidden_size, output_size = (
        sizes[name] for name in ("batch_size", "input_size", "hidden_size", "output_size")
    )
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    hidden = (normal(hidden_size, input_size) * input_size**-0.5, normal(1, hidden_size))
    output = (normal(output_size, hidden_size) * hidden_size**-0.5, normal(1, output_size))
    return Problem(
        title=f"MLP {input_size}-{hidden_size}-{output_size} with relu, batch {batch_size}, float32",
        parameters=(*hidden, *output),
        inputs=(normal(batch_size, input_size),),
        definition=lambda *inputs: (reference.mlp(*inputs),),
        longest_sum=max(sizes.values()),
        sizes=sizes,
    )


def contenders(problem: Problem, skip: Collection[str]) -> list[Contender]:
    shape = tuple(problem.sizes[name] for name in ("input_size", "hidden_size", "output_size"))

    def candidate(mlp: nn.Module, wrap: Callable[[nn.Module], nn.Module] = lambda mlp: mlp) -> Candidate:
        call = wrap(mlp.to(problem.device))
        parameters = (mlp.hidden_weights, mlp.hidden_bias, mlp.output_weights, mlp.output_bias)
        return Candidate(lambda x: (call(x),), parameters)

    def sequential() -> Candidate:
        layers = nn.Sequential(nn.Linear(*shape[:2]), nn.ReLU(), nn.Linear(*shape[1:])).to(problem.device)
        return Candidate(lambda x: (layers(x),), (layers[0].weight, layers[0].bias, layers[2].weight, layers[2].bias))

    def compiled() -> Candidate:
        return inductor(lambda compile: candidate(reference.MLP(*shape), compile), problem)

    def extension() -> Candidate:
        aten.extension()
        return candidate(aten.MLP(*shape))

    return [
        Contender("plain PyTorch", lambda: candidate(reference.MLP(*shape))),
        Contender("plain PyTorch, nn.Sequential", sequential),
        Contender("C++ composition of ATen calls", left_out if "aten" in skip else extension),
        Contender("torch.compile (Inductor)", left_out if "inductor" in skip else compiled),
        Contender(OURS, lambda: candidate(fourfold.nn.MLP(*shape))),
    ]
