"""``mlp``: small perceptrons; the first is the ROCm extension tutorial's program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

import torch
from torch import Tensor, nn

import fourfold
from benchmarks import aten, layers
from benchmarks.comparison import inductor, left_out
from benchmarks.problem import BOTH, NO_GRAD, OURS, SAVED, Candidate, Contender, Problem, Target
from benchmarks.request import Request
from fourfold import reference

NAMES = ("batch_size", "input_size", "hidden_size", "output_size")
SIZES = ((32, 5, 15, 1), (16, 64, 128, 10), (256, 784, 512, 10))
TANH = (1, 64, 64, 2)  # a control policy's
SEQUENTIAL = "nn.Sequential"
PLAIN = "plain PyTorch, functional"
FUNCTIONAL = f"{OURS}, functional"
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def problems(request: Request) -> Iterator[Problem]:
    if request.sizes:
        yield problem({**dict(zip(NAMES, SIZES[0], strict=True)), **request.sizes}, request.device)
        return
    for sizes in SIZES[:1] if request.quick else SIZES:
        yield problem(dict(zip(NAMES, sizes, strict=True)), request.device)
    if request.device.type == "cpu":
        yield problem(dict(zip(NAMES, TANH, strict=True)), request.device, "tanh")


def problem(sizes: dict[str, int], device: torch.device | str = "cpu", activation: str = "relu") -> Problem:
    batch_size, input_size, hidden_size, output_size = (sizes[name] for name in NAMES)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    hidden = (normal(hidden_size, input_size) * input_size**-0.5, normal(1, hidden_size))
    output = (normal(output_size, hidden_size) * hidden_size**-0.5, normal(1, output_size))
    return Problem(
        title=f"MLP {input_size}-{hidden_size}-{output_size} with {activation}, batch {batch_size}, float32",
        parameters=(*hidden, *output),
        inputs=(normal(batch_size, input_size),),
        definition=partial(define, activation),
        longest_sum=max(sizes.values()),
        sizes=sizes,
        targets=targets(tuple(sizes[name] for name in NAMES)) if torch.device(device).type == "cpu" else (),
        kind=activation,
        keeps=True,
    )


def define(activation: str, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor]:
    if activation == "relu":
        return (reference.mlp(x, w1, b1, w2, b2),)
    hidden = getattr(torch, activation)(nn.functional.linear(x, w1, b1.reshape(-1)))
    return (nn.functional.linear(hidden, w2, b2.reshape(-1)),)


def targets(size: tuple[int, ...]) -> tuple[Target, ...]:
    work = "MLP {}x{}-{}-{}".format(*size)
    small = [
        Target(NO_GRAD, 2.2, SEQUENTIAL, 1, work),
        Target(BOTH, 1.8, SEQUENTIAL, 1, work),
        *(Target(phase, 1.3, PLAIN, 1, f"{work}, functional", FUNCTIONAL) for phase in (NO_GRAD, BOTH)),
    ]
    large = [
        *(Target(phase, 0.97, SEQUENTIAL, 1, work) for phase in (NO_GRAD, BOTH)),
        Target(SAVED, 2.0, SEQUENTIAL, 1, work),
    ]
    policy = [Target(NO_GRAD, 3.0, SEQUENTIAL, 1, f"{work} tanh")]
    return tuple({SIZES[0]: small, SIZES[1]: small, SIZES[2]: large, TANH: policy}.get(size, ()))


def contenders(problem: Problem, skip: Collection[str]) -> list[Contender]:
    shape, activation = tuple(problem.sizes[name] for name in NAMES[1:]), problem.kind
    rows = [Contender(SEQUENTIAL, partial(sequential, problem)), Contender(PLAIN, partial(functional, problem, define))]
    if activation != "relu":
        return [*rows, Contender(OURS, partial(layers.deep_mlp, shape, activation))]

    def extension() -> Candidate:
        aten.extension()
        return module(aten.MLP(*shape), problem)

    def compiled() -> Candidate:
        return inductor(lambda compile: module(aten.PlainMLP(*shape), problem, compile), problem)

    return [
        *rows,
        Contender("C++ composition of ATen calls", left_out if "aten" in skip else extension),
        Contender("torch.compile (Inductor)", left_out if "inductor" in skip else compiled),
        Contender(FUNCTIONAL, partial(functional, problem, lambda activation, *inputs: (fourfold.mlp(*inputs),))),
        Contender(OURS, lambda: module(fourfold.nn.MLP(*shape), problem)),
    ]


def module(mlp: nn.Module, problem: Problem, wrap: Callable[[nn.Module], nn.Module] = lambda mlp: mlp) -> Candidate:
    """A module with the tutorial's parameters."""
    call = wrap(mlp.to(problem.device))
    parameters = (mlp.hidden_weights, mlp.hidden_bias, mlp.output_weights, mlp.output_bias)
    return Candidate(lambda x: (call(x),), parameters)


def sequential(problem: Problem) -> Candidate:
    inputs, hidden, outputs = (problem.sizes[name] for name in NAMES[1:])
    layers = nn.Sequential(nn.Linear(inputs, hidden), ACTIVATIONS[problem.kind](), nn.Linear(hidden, outputs))
    layers.to(problem.device)
    return Candidate(lambda x: (layers(x),), (layers[0].weight, layers[0].bias, layers[2].weight, layers[2].bias))


def functional(problem: Problem, call: Callable[..., tuple[Tensor]]) -> Candidate:
    """A function on tensors, without a module around it."""
    parameters = [p.clone().requires_grad_() for p in problem.parameters]
    return Candidate(lambda x: call(problem.kind, x, *parameters), parameters)
