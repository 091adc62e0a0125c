"""``mlp``: small perceptrons; the first is the one of the ROCm extension tutorial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

import fourfold
from benchmarks import aten
from benchmarks.problem import Candidate, Contender, Problem, compiled, functional, normal
from benchmarks.request import Request
from benchmarks.targets import INDUCTOR, OURS, PLAIN
from fourfold import reference

NAMES = ("batch_size", "input_size", "hidden_size", "output_size")
# The last one is a control policy, with tanh.
*SIZES, TANH = (
    dict(zip(NAMES, sizes, strict=True))
    for sizes in ((32, 5, 15, 1), (16, 64, 128, 10), (256, 784, 512, 10), (1, 64, 64, 2))
)
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}
SEQUENTIAL, OUR_FUNCTION = "nn.Sequential", f"{OURS}, functional"


def tables(request: Request) -> Iterator[Problem]:
    for sizes in request.chosen(SIZES):
        yield problem(sizes, request.device)
    if request.device.type == "cpu" and not request.sizes:
        yield problem(TANH, request.device, "tanh")


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
        rows=rows(activation, input_size, hidden_size, output_size),
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


def rows(activation: str, *sizes: int) -> list[Contender]:
    plain = [Contender(SEQUENTIAL, sequential), Contender(f"{PLAIN}, functional", functional)]
    if activation != "relu":
        ours = partial(fourfold.nn.MLP, sizes, activation=activation)
        return [*plain, Contender(OURS, partial(module, ours))]
    return [
        *plain,
        Contender("C++ composition of ATen calls", partial(module, partial(aten.MLP, *sizes)), tool="aten"),
        Contender(INDUCTOR, partial(module, partial(aten.PlainMLP, *sizes), backend="inductor"), tool="inductor"),
        Contender(OUR_FUNCTION, partial(functional, call=lambda *inputs: (fourfold.mlp(*inputs),))),
        Contender(OURS, partial(module, partial(fourfold.nn.MLP, *sizes))),
    ]


def module(make: Callable[[], nn.Module], problem: Problem, backend: str = "") -> Candidate:
    mlp = make().to(problem.device)
    call = compiled(mlp, backend)
    return Candidate(lambda x: (call(x),), in_order(mlp))


def in_order(mlp: nn.Module) -> tuple[Tensor, ...]:
    """A weight and a bias for each layer."""
    weights, biases = ([p for name, p in mlp.named_parameters() if word in name] for word in ("weight", "bias"))
    return tuple(p for pair in zip(weights, biases, strict=True) for p in pair)


def sequential(problem: Problem) -> Candidate:
    inputs, hidden, outputs = (problem.sizes[name] for name in NAMES[1:])
    layers = nn.Sequential(nn.Linear(inputs, hidden), ACTIVATIONS[problem.kind](), nn.Linear(hidden, outputs))
    layers.to(problem.device)
    return Candidate(lambda x: (layers(x),), tuple(layers.parameters()))
