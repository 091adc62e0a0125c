"""The table that a profile prints, and the notes below it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fourfold.profiler._rows import Row

HOST = ("", "cpu", "meta")  # devices whose work takes the host's time
HEADINGS = ("calls", "dtype", "device", "device ms", "share", "host ms", "copied", "fell back")
ON_THE_CPU = ("calls", "dtype", "device", "ms", "share", "copied", "fell back")
OWN = "A fourfold operator's figures include everything that it calls; a torch operator's are its self time."
NO_KERNEL_TIMES = "torch's profiler doesn't record the time on {device}{elsewhere}."
ELSEWHERE = {"mps": "; Metal System Trace, in Apple's Instruments, shows it by operator"}
FELL_BACK = (
    "{operator} fell back to the CPU in {fell_back} of {calls} calls: it has no kernel for {device}, so its inputs "
    "and results are copied."
)


def table(rows: Sequence[Row], elapsed: float | None, torch_rows: int | None) -> str:
    """elapsed: ms that the block took. torch_rows: how many of torch's operators have a row, None for all."""
    ours = sorted((row for row in rows if row.is_fourfolds), key=weight)
    others = sorted((row for row in rows if not row.is_fourfolds), key=weight)
    shown = others if torch_rows is None else others[:torch_rows] + [r for r in others[torch_rows:] if r.fell_back]
    hidden = [row for row in others if not any(row is each for each in shown)]
    columns = Columns(rows)
    lines = [columns.headings]
    for heading, block, rest in (("fourfold's operators", ours, []), ("torch's and others", shown, hidden)):
        lines.append(columns.cells(heading, added([*block, *rest])))
        lines += [columns.cells(f"  {row.operator}", row) for row in block]
        if rest:
            lines.append(columns.cells(f"  {len(rest)} more", added(rest)))
    lines.append(columns.cells("all", added(rows)))
    return "\n".join([*aligned(lines), "", *sentences(rows, elapsed)])


class Columns:
    """The columns of the table; if everything ran on the CPU, there is one time."""

    def __init__(self, rows: Sequence[Row]):
        self.several = any(row.device not in HOST for row in rows)
        self.headings = ("", *(HEADINGS if self.several else ON_THE_CPU))
        self.totals: dict[str, float] = defaultdict(float)
        for row in rows:
            self.totals[row.device if self.several else ""] += self.time(row) or 0.0

    def time(self, row: Row) -> float | None:
        return row.device_time if self.several else row.host_time

    def cells(self, name: str, row: Row) -> tuple[str, ...]:
        time, total = self.time(row), self.totals[row.device if self.several else ""]
        share = f"{100 * time / total:.1f} %" if time is not None and total else "-"
        host = (f"{row.host_time:.3f}",) if self.several else ()
        milliseconds = "-" if time is None else f"{time:.3f}"
        last = (size(row.copied), str(row.fell_back or "-"))
        return (name, f"{row.calls:,}", row.dtype or "-", row.device or "-", milliseconds, share, *host, *last)


def weight(row: Row) -> float:
    """The sort key: the longest time comes first."""
    return -max(row.device_time or 0.0, row.host_time)


def added(rows: Sequence[Row]) -> Row:
    """The sum of rows, with the device time of the accelerator if there is one, else of the CPU."""
    devices = {row.device for row in rows}
    devices = devices - set(HOST) or devices & {"cpu"}
    sum_of = Row("", "", devices.pop() if len(devices) == 1 else "")
    times = [row.device_time for row in rows if row.device == sum_of.device and row.device_time is not None]
    sum_of.device_time = sum(times) if times and sum_of.device else None
    for row in rows:
        sum_of.calls += row.calls
        sum_of.host_time += row.host_time
        sum_of.copied += row.copied
        sum_of.fell_back += row.fell_back
    return sum_of


def size(count: int) -> str:
    if count == 0:
        return "-"
    number, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """Names and dtypes to the left, numbers to the right."""
    columns = len(lines[0])
    widths = [max(len(line[k]) for line in lines if k < len(line)) for k in range(columns)]
    left = {0, *(k for k in range(columns) if lines[0][k] in ("dtype", "device"))}
    return [
        "  ".join(f"{c:<{widths[k]}}" if k in left else f"{c:>{widths[k]}}" for k, c in enumerate(line)).rstrip()
        for line in lines
    ]


def sentences(rows: Sequence[Row], elapsed: float | None) -> list[str]:
    inside = sum(row.host_time for row in rows)
    took = (
        []
        if elapsed is None
        else [f"The block took {elapsed:.3f} ms; the host spent {inside:.3f} ms in the listed rows."]
    )
    unknown = {row.device: None for row in rows if row.device_time is None and row.device}
    return [
        *took,
        OWN,
        *(NO_KERNEL_TIMES.format(device=device, elsewhere=ELSEWHERE.get(device, "")) for device in unknown),
        *(FELL_BACK.format(**vars(row)) for row in sorted(rows, key=weight) if row.fell_back),
    ]
