"""``compiling``: how long torch.compile takes over a model with nn.LLTM, against the length of the sequence.

fourfold's sequence is one operator of the graph, so the time should not depend on its length; a loop is unrolled.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.aten import first_sentence
from benchmarks.report import Report
from benchmarks.request import Request
from benchmarks.targets import Outcome
from benchmarks.timing import summarise
from fourfold import reference
from fourfold.cli.timing import pinned_threads

LENGTHS = (16, 64, 256, 1024, 4096)
QUICK_LENGTHS = (16, 4096)
LONGEST_LOOP = 64
REPEATS, QUICK_REPEATS, INDUCTOR_REPEATS = 5, 2, 2
FLAT = 1.25  # what is still called flat: a compilation's own spread is about as much
BATCH, INPUT, HIDDEN = 4, 16, 32


@dataclass(frozen=True)
class Way:
    """A layer and a backend: longest is the length up to which it is compiled."""

    name: str
    layer: type
    backend: str
    repeats: int
    longest: int


class Model(nn.Module):
    """The recurrent layer between two linear ones."""

    def __init__(self, layer: type):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(INPUT, INPUT), layer(INPUT, HIDDEN), nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor) -> Tensor:
        zeros = x.new_zeros(1, x.size(1), HIDDEN)
        return self.last(self.layer(torch.relu(self.first(x)), (zeros, zeros))[0])


def ways(request: Request) -> list[Way]:
    repeats = QUICK_REPEATS if request.quick else REPEATS
    found = [Way("fourfold, aot_eager", fourfold.nn.LLTM, "aot_eager", repeats, LENGTHS[-1])]
    if not request.quick:
        found.append(Way("plain loop, aot_eager", reference.LLTM, "aot_eager", 1, LONGEST_LOOP))
        if "inductor" not in request.skip:
            found.append(Way("fourfold, Inductor", fourfold.nn.LLTM, "inductor", INDUCTOR_REPEATS, LENGTHS[-1]))
    return found


def reports(request: Request) -> Iterator[Report]:
    with pinned_threads(1):
        yield report(request, measure)


def take(
    chosen: list[Way], lengths: tuple[int, ...], measured: Callable[[Way, int], float]
) -> tuple[dict[tuple[str, int], list[float]], list[str]]:
    """Seconds by way and length, and why a way could not be measured."""
    seconds: dict[tuple[str, int], list[float]] = {}
    reasons = []
    for way in chosen:
        try:
            measured(way, lengths[0])  # what the first compilation in a process does for all others
            for _ in range(way.repeats):
                for length in lengths:
                    if length <= way.longest:
                        seconds.setdefault((way.name, length), []).append(measured(way, length))
        except RuntimeError as error:  # Dynamo's and Inductor's own errors too
            reasons.append(f"{way.name} can't be compiled: {first_sentence(error)}")
    return seconds, reasons


def report(request: Request, measured: Callable[[Way, int], float]) -> Report:
    lengths = QUICK_LENGTHS if request.quick else LENGTHS
    chosen = ways(request)
    seconds, reasons = take(chosen, lengths, measured)
    outcomes = [
        Outcome(
            f"compile time, T={lengths[-1]} over T={lengths[0]}",
            "",
            way.name,
            FLAT,
            growth(seconds, way, lengths),
            at_most=True,
        )
        for way in chosen
        if way.layer is fourfold.nn.LLTM
    ]
    notes = [
        f"{o.where}: T={lengths[-1]} takes {o.measured:.2f}× as long as T={lengths[0]}." for o in outcomes if o.measured
    ]
    if any(way.longest == LONGEST_LOOP for way in chosen):
        notes.append(f"The plain loop, which is unrolled, is compiled up to {LONGEST_LOOP} steps.")
    return Report(
        title=f"Compile time of a model with nn.LLTM, batch {BATCH}, input {INPUT}, hidden {HIDDEN}: seconds until "
        "forward and backward have run once; medians",
        headings=("steps", *(way.name for way in chosen)),
        cells=[(str(length), *(words(seconds.get((way.name, length))) for way in chosen)) for length in lengths],
        figures=[
            {
                "way": name,
                "time": length,
                "seconds": summarise(found).median,
                "minimum": min(found),
                "repeats": len(found),
            }
            for (name, length), found in seconds.items()
        ],
        notes=[*notes, *reasons],
        outcomes=outcomes,
    )


def words(found: list[float] | None) -> str:
    return "-" if not found else f"{summarise(found).median:.2f} (min {min(found):.2f})"


def growth(seconds: dict[tuple[str, int], list[float]], way: Way, lengths: tuple[int, ...]) -> float | None:
    """How much longer the longest takes than the shortest, of the minima: what disturbs a compilation only adds."""
    short, long = (seconds.get((way.name, length)) for length in (lengths[0], lengths[-1]))
    return min(long) / min(short) if short and long else None


def measure(way: Way, length: int) -> float:
    """Seconds until a fresh model has been compiled and run, less what a second run takes."""
    torch.compiler.reset()
    model, x = Model(way.layer), torch.randn(length, BATCH, INPUT)
    compiled = torch.compile(model, backend=way.backend, fullgraph=True)

    def run() -> float:
        start = time.perf_counter()
        compiled(x).sum().backward()
        return time.perf_counter() - start

    with warnings.catch_warnings(), torch._inductor.config.patch(force_disable_caches=True):
        warnings.simplefilter("ignore", UserWarning)  # Inductor says there that a GPU would be faster, and such
        first = run()
        return first - run()
