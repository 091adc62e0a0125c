"""``mlp``: small perceptrons; the first is the ROCm extension tutorial's program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

import fourfold
from benchmarks import aten
from benchmarks.problem import Candidate, Contender, Problem, compiled, functional, normal
from benchmarks.request import Request
from benchmarks.suites import FUNCTION, OUR_FUNCTION, SEQUENTIAL
from benchmarks.targets import INDUCTOR, OURS
from fourfold import reference

NAMES = ("batch_size", "input_size", "hidden_size", "output_size")
SIZES = ((32, 5, 15, 1), (16, 64, 128, 10), (256, 784, 512, 10))
TANH = (1, 64, 64, 2)  # a control policy's
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def problems(request: Request) -> Iterator[Problem]:
    for sizes in SIZES[:1] if request.quick or request.sizes else SIZES:
        yield problem({**dict(zip(NAMES, sizes, strict=True)), **request.sizes}, request.device)
    if request.device.type == "cpu" and not request.sizes:
        yield problem(dict(zip(NAMES, TANH, strict=True)), request.device, "tanh")


def problem(sizes: Mapping[str, int], device: torch.device | str = "cpu", activation: str = "relu") -> Problem:
    batch_size, input_size, hidden_size, output_size = (sizes[name] for name in NAMES)
    draw = normal(torch.Generator().manual_seed(0), device)
    hidden = (draw(hidden_size, input_size) * input_size**-0.5, draw(1, hidden_size))
    output = (draw(output_size, hidden_size) * hidden_size**-0.5, draw(1, output_size))
    work = f"MLP {batch_size}x{input_size}-{hidden_size}-{output_size}" + f" {activation}" * (activation != "relu")
    return Problem(
        title=f"MLP {input_size}-{hidden_size}-{output_size} with {activation}, batch {batch_size}, float32",
        parameters=(*hidden, *output),
        inputs=(draw(batch_size, input_size),),
        definition=partial(define, activation),
        longest_sum=max(sizes.values()),
        sizes=sizes,
        works=(work, f"{work}, functional") if torch.device(device).type == "cpu" else (),
        kind=activation,
        keeps=True,
    )


def define(activation: str, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor]:
    if activation == "relu":
        return (reference.mlp(x, w1, b1, w2, b2),)
    hidden = getattr(torch, activation)(nn.functional.linear(x, w1, b1.reshape(-1)))
    return (nn.functional.linear(hidden, w2, b2.reshape(-1)),)


def contenders(problem: Problem) -> list[Contender]:
    shape, activation = tuple(problem.sizes[name] for name in NAMES[1:]), problem.kind

    def module(make: type[nn.Module], *arguments: object, backend: str = "", **settings: str) -> Candidate:
        mlp = make(*(arguments or shape), **settings).to(problem.device)
        call = compiled(mlp, backend)
        return Candidate(lambda x: (call(x),), in_order(mlp))

    rows = [
        Contender(SEQUENTIAL, partial(sequential, problem)),
        Contender(FUNCTION, partial(functional, problem, problem.definition)),
    ]
    if activation != "relu":
        return [*rows, Contender(OURS, partial(module, fourfold.nn.MLP, list(shape), activation=activation))]
    return [
        *rows,
        Contender("C++ composition of ATen calls", partial(module, aten.MLP), tool="aten"),
        Contender(INDUCTOR, partial(module, aten.PlainMLP, backend="inductor"), tool="inductor"),
        Contender(OUR_FUNCTION, partial(functional, problem, lambda *inputs: (fourfold.mlp(*inputs),))),
        Contender(OURS, partial(module, fourfold.nn.MLP)),
    ]


def in_order(mlp: nn.Module) -> tuple[Tensor, ...]:
    """A weight and a bias a layer."""
    weights, biases = ([p for name, p in mlp.named_parameters() if word in name] for word in ("weight", "bias"))
    return tuple(p for pair in zip(weights, biases, strict=True) for p in pair)


def sequential(problem: Problem) -> Candidate:
    inputs, hidden, outputs = (problem.sizes[name] for name in NAMES[1:])
    layers = nn.Sequential(nn.Linear(inputs, hidden), ACTIVATIONS[problem.kind](), nn.Linear(hidden, outputs))
    layers.to(problem.device)
    return Candidate(lambda x: (layers(x),), tuple(layers.parameters()))
