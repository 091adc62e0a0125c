"""``compiling``: compile time of a model with nn.LLTM under torch.compile, by sequence length.

fourfold's sequence is one operator of the graph, so the time should not depend on the length; a Python loop is
unrolled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.measure import first_sentence, summarise, wall_seconds
from benchmarks.request import Request
from benchmarks.results import Report
from benchmarks.suites import target
from benchmarks.targets import Outcome
from fourfold import reference
from fourfold.cli.timing import pinned_threads

LENGTHS = (16, 64, 256, 1024, 4096)
LONGEST_LOOP = 64
BATCH, INPUT, HIDDEN = 4, 16, 32


@dataclass(frozen=True)
class Way:
    """A layer and a backend. longest: the greatest length for which it is compiled."""

    name: str
    layer: type
    backend: str
    repeats: int
    longest: int = LENGTHS[-1]


class Model(nn.Module):
    """The recurrent layer between two linear layers."""

    def __init__(self, layer: type):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(INPUT, INPUT), layer(INPUT, HIDDEN), nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor) -> Tensor:
        zeros = x.new_zeros(1, x.size(1), HIDDEN)
        return self.last(self.layer(torch.relu(self.first(x)), (zeros, zeros))[0])


def ways(request: Request) -> list[Way]:
    found = [Way("fourfold, aot_eager", fourfold.nn.LLTM, "aot_eager", 2 if request.quick else 5)]
    if not request.quick:
        found.append(Way("plain loop, aot_eager", reference.LLTM, "aot_eager", 1, LONGEST_LOOP))
        if "inductor" not in request.skip:
            found.append(Way("fourfold, Inductor", fourfold.nn.LLTM, "inductor", 2))
    return found


def tables(request: Request) -> Iterator[Report]:
    with pinned_threads(1):
        yield report(request, measure)


def report(request: Request, measured: Callable[[Way, int], float]) -> Report:
    lengths = LENGTHS[:: len(LENGTHS) - 1] if request.quick else LENGTHS
    chosen, seconds, notes, outcomes = ways(request), {}, [], []
    for way in chosen:
        try:
            measured(way, lengths[0])  # warm-up: one-time costs of the first compilation in a process
            for length in (length for _ in range(way.repeats) for length in lengths if length <= way.longest):
                seconds.setdefault((length, way.name), []).append(measured(way, length))
        except RuntimeError as error:  # Dynamo's and Inductor's own errors too
            notes.append(f"{way.name} can't be compiled: {first_sentence(error)}")
        if way.longest == LONGEST_LOOP:
            notes.append(f"The plain loop, which is unrolled, is compiled up to {LONGEST_LOOP} steps.")
            continue
        short, long = (seconds.get((length, way.name)) for length in (lengths[0], lengths[-1]))
        # The minimum: disturbances only add to a compile time.
        growth = min(long) / min(short) if short and long else None
        outcomes.append(Outcome(target("compile time, T=4096 over T=16"), way.name, growth))
        if growth:
            notes.append(f"{way.name}: T={lengths[-1]} takes {growth:.2f}× as long as T={lengths[0]}.")
    medians = {key: summarise(found).median for key, found in seconds.items()}
    words = {key: f"{medians[key]:.2f} (min {min(found):.2f})" for key, found in seconds.items()}
    return Report(
        title=f"Compile time of a model with nn.LLTM, batch {BATCH}, input {INPUT}, hidden {HIDDEN}: seconds until "
        "forward and backward have run once; medians",
        headings=("steps", *(way.name for way in chosen)),
        cells=[(str(length), *(words.get((length, way.name), "-") for way in chosen)) for length in lengths],
        figures=[
            {
                "way": name,
                "time": length,
                "seconds": medians[length, name],
                "minimum": min(found),
                "repeats": len(found),
            }
            for (length, name), found in seconds.items()
        ],
        notes=notes,
        outcomes=outcomes,
    )


def measure(way: Way, length: int) -> float:
    """Seconds to compile and run a fresh model, less the time of a second run."""
    torch.compiler.reset()
    model, x = Model(way.layer), torch.randn(length, BATCH, INPUT)
    compiled = torch.compile(model, backend=way.backend, fullgraph=True)
    with warnings.catch_warnings(), torch._inductor.config.patch(force_disable_caches=True):
        warnings.simplefilter("ignore", UserWarning)  # Inductor warns that a GPU would be faster, and the like
        first = wall_seconds(lambda: compiled(x).sum().backward())
        return first - wall_seconds(lambda: compiled(x).sum().backward())
