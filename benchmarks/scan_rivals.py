"""Other ways to run the recurrences of the suite ``scan``: packages, if they are installed, and loops rewritten after
published programs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from benchmarks.other_recurrences import DISCOUNT, LAMBDA
from benchmarks.problem import Candidate, Problem, Unavailable, functional


def package(name: str) -> Any:
    """Raises Unavailable if it is missing, or was built for another torch."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        words = f"not installed: {name}" if isinstance(error, ImportError) else f"{name} can't be loaded"
        raise Unavailable(words) from error


def torchs_scan(step: Callable[[Any, Any], Any], init: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """torch's prototype operator. Its steps return no tensor that they are given, and none twice."""

    def on_copies(carry: Any, x: Any) -> Any:
        return pytree.tree_map(torch.clone, step(carry, x))

    return scan(on_copies, init, xs, dim=0, reverse=reverse)


def numpy_advantages(problem: Problem) -> Candidate:
    """As in stable-baselines3's RolloutBuffer."""

    def call(init: Tensor, *series: Tensor) -> tuple[Tensor, ...]:
        reward, value, following, runs = (x.numpy() for x in series)
        found = numpy.zeros_like(reward)
        last = init.numpy()
        for t in reversed(range(len(reward))):
            delta = reward[t] + DISCOUNT * following[t] * runs[t] - value[t]
            last = delta + DISCOUNT * LAMBDA * runs[t] * last
            found[t] = last
        return torch.from_numpy(found), torch.from_numpy(last)

    return Candidate(call, ())


def torchrl_advantages(problem: Problem) -> Candidate:
    compute = package("torchrl.objectives.value.functional").vec_generalized_advantage_estimate

    def call(init: Tensor, reward: Tensor, value: Tensor, following: Tensor, runs: Tensor) -> tuple[Tensor, ...]:
        done = runs == 0
        found, _ = compute(DISCOUNT, LAMBDA, value, following, reward, done, done)
        return found, found[0]

    return Candidate(call, ())


def torchaudio_biquad(problem: Problem) -> Candidate:
    lfilter = package("torchaudio.functional").lfilter

    def call(*given: Tensor) -> tuple[Tensor, ...]:
        *weights, x = given
        b, a = torch.stack(weights[:3]), torch.stack((torch.ones(()), *weights[3:]))
        return (lfilter(x, a, b, clamp=False),)

    return functional(problem, call)


def slow_selective_scan(problem: Problem) -> Candidate:
    """As in transformers' Mamba without kernels: the factors of all steps at once, then a loop. Its backward would take
    a minute, because the gradient of each step's factors is as large as those of all steps."""

    def call(h: Tensor, log_a: Tensor, skip: Tensor, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        dt = F.softplus(dt).unsqueeze(-1)
        factors = torch.exp(-torch.exp(log_a) * dt)
        terms = dt * b.unsqueeze(2) * x.unsqueeze(-1)
        ys = []
        for t in range(len(x)):
            h = factors[t] * h + terms[t]
            ys.append((h @ c[t].unsqueeze(-1)).squeeze(-1))
        return torch.stack(ys) + skip * x, h

    return functional(problem, call)


def in_jax(problem: Problem, function: Callable[[Any], Callable[..., tuple[Any, ...]]]) -> Candidate:
    """function: written in jax. Returns the compiled function of the inputs and parameters. Without gradients."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax = package("jax")
    run = jax.jit(function(jax))
    parameters = tuple(p.clone() for p in problem.parameters)

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        found = run(*map(jax.dlpack.from_dlpack, (*inputs, *parameters)))
        return tuple(torch.from_dlpack(y) for y in jax.block_until_ready(found))

    return Candidate(call, parameters)


def jax_scan(step: Callable[[Any, Any], tuple[Any, Any]], states: int, reverse: bool = False):
    """jax.lax.scan of a step on jax arrays; ``states`` of the inputs are the carry."""

    def function(jax: Any) -> Callable[..., tuple[Any, ...]]:
        def run(*given: Any) -> tuple[Any, ...]:
            carry, xs = given[:states], given[states:]
            carry, ys = jax.lax.scan(
                step, carry if states > 1 else carry[0], xs if len(xs) > 1 else xs[0], reverse=reverse
            )
            return ys, *(carry if states > 1 else (carry,))

        return run

    return lambda problem: in_jax(problem, function)


def jax_lltm(problem: Problem) -> Candidate:
    def function(jax: Any) -> Callable[..., tuple[Any, ...]]:
        def run(xs: Any, h: Any, c: Any, matrix: Any, bias: Any) -> tuple[Any, ...]:
            def step(carry: Any, x: Any) -> Any:
                h, c = carry
                i, o, g = jax.numpy.split(jax.numpy.concatenate((h, x), 1) @ matrix.T + bias, 3, 1)
                c = c + jax.nn.sigmoid(i) * jax.nn.elu(g)
                h = jax.nn.sigmoid(o) * jax.numpy.tanh(c)
                return (h, c), h

            carry, ys = jax.lax.scan(step, (h, c), xs)
            return ys, *carry

        return run

    return in_jax(problem, function)


def jax_neuron(carry: Any, x: Any) -> Any:
    v, i = carry
    i = i + 0.2 * (x - i)
    v = v + 0.1 * (i - v)
    spike = (v > 0.3).astype(v.dtype)
    return (v * (1 - spike), i), spike


def jax_advantages(advantage: Any, xs: Any) -> Any:
    reward, value, following, runs = xs
    advantage = reward + DISCOUNT * following * runs - value + DISCOUNT * LAMBDA * runs * advantage
    return advantage, advantage
