"""``python -m fourfold bench``: the tables of the walk-throughs, fourfold beside plain PyTorch."""

import argparse
import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from fourfold import reference
from fourfold.cli import timing
from fourfold.cli.usage import UsageError, limit_memory, usable_device

SIZES = {
    "cell": {"batch_size": 16, "input_size": 32, "hidden_size": 128},
    "mlp": {"batch_size": 32, "input_size": 5, "hidden_size": 15, "output_size": 1},
}
PHASES = ("forward, no grad", "forward", "backward", "forward+backward")
SAMPLE_SECONDS = 5e-3  # long against the clock's resolution, short against a scheduler's interruptions

Sampler = Callable[[int], Sequence[float]]  # runs this many iterations; returns each phase's mean seconds


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
        gradients = torch.autograd.grad(total(outputs), self.parameters)
        return [timing.with_float64(result.detach()) for result in (*outputs, *gradients)]

    def sample(self, inputs: Sequence[Tensor], device: torch.device, iterations: int) -> Sequence[float]:
        """The tutorial's loop, which times forward and backward separately; before it, the forward without
        gradients."""

        first, last = events(device, 2)
        first.record()
        with torch.no_grad():
            for _ in range(iterations):
                self(*inputs)
        last.record()
        marks = [events(device, 3) for _ in range(iterations)]
        for start, middle, end in marks:
            for parameter in self.parameters:
                parameter.grad = None
            start.record()
            outputs = self(*inputs)
            middle.record()
            total(outputs).backward()
            end.record()
        marks[-1][-1].synchronize()
        forward, backward = (sum(mark[k].elapsed_time(mark[k + 1]) for mark in marks) for k in (0, 1))
        times = (first.elapsed_time(last), forward, backward, forward + backward)
        return [1e-3 * milliseconds / iterations for milliseconds in times]


def events(device: torch.device, count: int) -> list[fourfold.Event]:
    return [fourfold.Event(device) for _ in range(count)]


def total(outputs: tuple[Tensor, ...]) -> Tensor:
    return sum((output.sum() for output in outputs[1:]), outputs[0].sum())


def modules(suite: str, sizes: Mapping[str, int]) -> dict[str, nn.Module]:
    _, *shape = sizes.values()
    if suite == "cell":
        return {"plain PyTorch": reference.LLTMCell(*shape), "fourfold": fourfold.nn.LLTMCell(*shape)}
    plain = nn.Sequential(nn.Linear(shape[0], shape[1]), nn.ReLU(), nn.Linear(shape[1], shape[2]))
    return {"nn.Sequential": plain, "fourfold": fourfold.nn.MLP(*shape)}


def run(options: argparse.Namespace) -> int:
    """Checks, times and prints; the exit code is 1 if a result is wrong."""
    if options.suite == "cell" and options.output_size is not None:
        raise UsageError(f"bench cell: expected --output-size only with mlp, but got {options.output_size}")
    sizes = {name: getattr(options, name) or size for name, size in SIZES[options.suite].items()}
    device = usable_device(f"bench {options.suite}", options.device)
    if device.type == "mps" and options.dtype == "float64":
        raise UsageError(f"bench {options.suite}: expected --dtype float64 only on cpu or cuda, but got mps")
    limit_memory(f"bench {options.suite}", device, options.memory_fraction)
    with timing.pinned_threads(options.threads or torch.get_num_threads()), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        load = timing.load_average()  # before anything runs
        measured = measure(options.suite, sizes, device, getattr(torch, options.dtype), options.repeats)
        record = {
            **{name: getattr(options, name) for name in ("suite", "device", "dtype", "repeats")},
            "sizes": sizes,
            "threads": torch.get_num_threads(),
            "load_average": load,
            "fourfold": fourfold.__version__,
            "torch": torch.__version__,
            "cpu_level": fourfold.cpu_capability(),
            **measured,
        }
    print(text(record))
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int("phases" not in record)


def measure(
    suite: str, sizes: Mapping[str, int], device: torch.device, dtype: torch.dtype, repeats: int
) -> dict[str, Any]:
    """Each way's error, and, if none is too large, each phase's times in seconds."""
    ways = {name: Way(module.to(device, dtype)) for name, module in modules(suite, sizes).items()}
    batch_size, input_size, hidden_size = list(sizes.values())[:3]
    shapes = [(batch_size, input_size)] + [(batch_size, hidden_size)] * 2 * (suite == "cell")
    inputs = [torch.randn(shape).to(device, dtype) for shape in shapes]
    plain, ours = ways.values()
    with torch.no_grad():
        for mine, theirs in zip(ours.parameters, plain.parameters, strict=True):
            mine.copy_(theirs.view_as(mine))
    exact = Way(timing.with_float64(copy.deepcopy(plain.module))).results([*map(timing.with_float64, inputs)])
    errors = {name: largest_error(way.results(inputs), exact) for name, way in ways.items()}
    allowed = tolerance(dtype, max(input_size + hidden_size, batch_size))
    checked = {"tolerance": allowed, "relative_errors": errors}
    if not all(error <= allowed for error in errors.values()):
        return checked
    samplers = [partial(way.sample, inputs, device) for way in ways.values()]
    pairs = list(zip(*interleaved(samplers, repeats), strict=True))
    by_phase = {phase: [(one[k], other[k]) for one, other in pairs] for k, phase in enumerate(PHASES)}
    return {**checked, "phases": {phase: figures(list(ways), found) for phase, found in by_phase.items()}}


def tolerance(dtype: torch.dtype, longest_sum: int) -> float:
    """A sum's rounding error grows with the root of its length; the tolerance is eight times that, for a chain of sums.
    For 16-bit dtypes sums are in float32, and intermediate results are rounded, about eight times in a row."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rounding = 4 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0.0
    return 8 * torch.finfo(wide).eps * math.sqrt(longest_sum) + rounding


def largest_error(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest ‖result - exact‖ / ‖exact‖; NaN if a result has one."""
    errors = [(r.view_as(e) - e).norm() / (e.norm() or 1.0) for r, e in zip(results, exact, strict=True)]
    return torch.stack(errors).max().item()


def interleaved(samplers: Sequence[Sampler], repeats: int) -> list[list[Sequence[float]]]:
    """Each sampler's samples, of as many iterations as fit SAMPLE_SECONDS, in rotating order."""
    iterations = []
    for sample in samplers:
        sample(5)  # warms up
        iterations.append(max(1, round(SAMPLE_SECONDS / sum(sample(5)))))
    samples: list[list[Sequence[float]]] = [[] for _ in samplers]
    for repeat in range(repeats):
        for k in range(len(samplers)):
            k = (k + repeat) % len(samplers)
            samples[k].append(samplers[k](iterations[k]))
    return samples


def figures(names: Sequence[str], pairs: Sequence[Sequence[float]]) -> dict[str, float]:
    """The medians, and the median over pairs of adjacent samples of how many times as fast the second is."""
    medians = dict(zip(names, map(median, zip(*pairs, strict=True)), strict=True))
    return {**medians, "ratio": median(plain / ours for plain, ours in pairs)}


def text(record: Mapping[str, Any]) -> str:
    shape = ", ".join(f"{name.removesuffix('_size')} {size}" for name, size in record["sizes"].items())
    where = f"{record['threads']} CPU threads" if record["device"] == "cpu" else record["device"]
    errors = ", ".join(f"{name} {error:.1e}" for name, error in record["relative_errors"].items())
    lines = [
        f"{record['suite']}, {shape}, {record['dtype']}; {where}; fourfold on torch {record['torch']}",
        f"Relative error against float64: {errors} (tolerance {record['tolerance']:.1e}).",
    ]
    if "phases" not in record:
        return "\n".join([*lines, "WRONG, so nothing was timed."])
    if timing.is_noisy(record["load_average"]):
        lines.append(f"The load average is {record['load_average']:.2f}: expect the times to vary.")
    plain, ours = record["relative_errors"]
    lines += ["", f"{'median µs':18}{plain:>16}{ours:>12}{'paired ratio':>16}"]
    for phase, found in record["phases"].items():
        lines.append(f"{phase:18}{1e6 * found[plain]:>16.1f}{1e6 * found[ours]:>12.1f}{found['ratio']:>15.2f}×")
    lines.append(
        "Paired ratio: times as fast, the median over pairs of adjacent samples, not the quotient of the medians."
    )
    return "\n".join(lines)
