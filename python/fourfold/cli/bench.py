"""``python -m fourfold bench``: the walk-throughs' own tables, fourfold beside plain PyTorch."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from fourfold import reference
from fourfold.cli import timing
from fourfold.cli.usage import UsageError, usable_device

SIZES = {
    "cell": {"batch_size": 16, "input_size": 32, "hidden_size": 128},
    "mlp": {"batch_size": 32, "input_size": 5, "hidden_size": 15, "output_size": 1},
}
PHASES = ("forward, no grad", "forward", "backward", "forward+backward")

Samples = Mapping[str, Mapping[str, list[float]]]  # by way and phase, in seconds


class Way:
    """A module, called with (x, h, c) or with (x)."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.parameters = [p for _, p in sorted(module.named_parameters())]  # in the order of the other way's

    def __call__(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        return self.module(x, state) if state else (self.module(x),)

    def results(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs and the parameters' gradients, in float64."""
        outputs = self(*inputs)
        return [r.detach().double() for r in (*outputs, *torch.autograd.grad(total(outputs), self.parameters))]


def total(outputs: tuple[Tensor, ...]) -> Tensor:
    return sum((output.sum() for output in outputs[1:]), outputs[0].sum())


def modules(suite: str, sizes: Mapping[str, int]) -> dict[str, nn.Module]:
    _, *shape = sizes.values()
    if suite == "cell":
        return {"plain PyTorch": reference.LLTMCell(*shape), "fourfold": fourfold.nn.LLTMCell(*shape)}
    plain = nn.Sequential(nn.Linear(shape[0], shape[1]), nn.ReLU(), nn.Linear(shape[1], shape[2]))
    return {"nn.Sequential": plain, "fourfold": fourfold.nn.MLP(*shape)}


def run(options: argparse.Namespace) -> int:
    """Check, time and print; the exit code is 1 when a way computes something else."""
    if options.suite == "cell" and options.output_size is not None:
        raise UsageError(f"bench cell: expected --output-size only with mlp, but got {options.output_size}")
    sizes = {name: getattr(options, name) or size for name, size in SIZES[options.suite].items()}
    device, dtype = usable_device(f"bench {options.suite}", options.device), getattr(torch, options.dtype)
    batch_size, input_size, hidden_size = list(sizes.values())[:3]
    shapes = [(batch_size, input_size)] + [(batch_size, hidden_size)] * 2 * (options.suite == "cell")
    with timing.pinned_threads(options.threads or torch.get_num_threads()), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = modules(options.suite, sizes)
        ways = {name: Way(module.to(device, dtype)) for name, module in made.items()}
        inputs = [torch.randn(shape).to(device, dtype) for shape in shapes]
        plain, ours = ways.values()
        with torch.no_grad():
            for mine, theirs in zip(ours.parameters, plain.parameters, strict=True):
                mine.copy_(theirs.view_as(mine))
        exact = Way(copy.deepcopy(plain.module).double()).results([x.double() for x in inputs])
        errors = {name: largest_error(way.results(inputs), exact) for name, way in ways.items()}
        allowed = tolerance(dtype, max(input_size + hidden_size, batch_size))
        print(opening(options, sizes, errors, allowed), flush=True)
        if not all(error <= allowed for error in errors.values()):
            print("WRONG, so nothing was timed.")
            return 1
        measured = timing.interleave({n: sampler(way, inputs, device) for n, way in ways.items()}, options.repeats)
        print(table(measured))
        if options.json is not None:
            options.json.write_text(json.dumps(contents(options, sizes, errors, measured), indent=1) + "\n")
    return 0


def tolerance(dtype: torch.dtype, longest_sum: int) -> float:
    """A sum's rounding error grows as the root of its length; eight times that, for a chain of sums. In 16 bits sums
    are in float32, and what is between them is rounded, some eight times in a row."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rounding = 4 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0.0
    return 8 * torch.finfo(wide).eps * math.sqrt(longest_sum) + rounding


def largest_error(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest ‖result - exact‖ / ‖exact‖; NaN where a result has one."""
    errors = [(r.view_as(e) - e).norm() / (e.norm() or 1.0) for r, e in zip(results, exact, strict=True)]
    return torch.stack(errors).max().item()


def sampler(way: Way, inputs: Sequence[Tensor], device: torch.device) -> timing.Sample:
    """The tutorial's loop: forward and backward timed apart, gradients cleared between; first, forward without."""

    def now() -> float:
        timing.synchronize(device)
        return time.perf_counter()

    def sample(iterations: int) -> dict[str, float]:
        start, forward, backward = now(), 0.0, 0.0
        with torch.no_grad():
            for _ in range(iterations):
                way(*inputs)
        without = now() - start
        for _ in range(iterations):
            for parameter in way.parameters:
                parameter.grad = None
            start = now()
            outputs = way(*inputs)
            middle = now()
            total(outputs).backward()
            forward, backward = forward + middle - start, backward + now() - middle
        seconds = (without, forward, backward, forward + backward)
        return {phase: value / iterations for phase, value in zip(PHASES, seconds, strict=True)}

    return sample


def opening(options: argparse.Namespace, sizes: Mapping[str, int], errors: Mapping[str, float], allowed: float) -> str:
    what = {"cell": "LLTM cell", "mlp": "MLP"}[options.suite]
    shape = ", ".join(f"{name.removesuffix('_size')} {size}" for name, size in sizes.items())
    where = f"CPU threads {torch.get_num_threads()}" if options.device == "cpu" else options.device
    found = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    load = timing.load_average()
    busy = f"\nThe load average is {load:.2f}: expect the times to vary." if timing.is_noisy(load) else ""
    return (
        f"{what}, {shape}, {options.dtype}; {where}; fourfold {fourfold.__version__}, torch {torch.__version__}\n"
        f"Relative error against float64: {found} (tolerance {allowed:.1e}).{busy}\n"
    )


def table(measured: Samples) -> str:
    """Medians, and how many times as fast fourfold is: the median over pairs of samples taken side by side."""
    plain, ours = measured
    lines = [f"{'median µs':18}{plain:>16}{ours:>12}{'times as fast':>16}"]
    for phase in PHASES:
        times = [1e6 * timing.summarise(measured[name][phase]).median for name in (plain, ours)]
        ratio = timing.summarise(timing.paired_ratios(measured[plain][phase], measured[ours][phase]))
        lines.append(f"{phase:18}{times[0]:>16.1f}{times[1]:>12.1f}{ratio.median:>15.2f}×")
    return "\n".join(lines)


def contents(
    options: argparse.Namespace, sizes: Mapping[str, int], errors: Mapping[str, float], measured: Samples
) -> dict[str, Any]:
    """Seconds, for JSON, with what a figure needs beside it."""
    return {
        **{name: getattr(options, name) for name in ("suite", "device", "dtype")},
        "sizes": dict(sizes),
        "threads": torch.get_num_threads(),
        "fourfold": fourfold.__version__,
        "torch": torch.__version__,
        "cpu_level": fourfold.cpu_capability(),
        "rows": [
            {
                "name": name,
                "relative_error": errors[name],
                "phases": {phase: dataclasses.asdict(timing.summarise(taken)) for phase, taken in phases.items()},
            }
            for name, phases in measured.items()
        ],
    }
