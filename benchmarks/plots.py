"""Plots of a saved measurement: fourfold's speed-up against batch size, hidden size and sequence length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.recurrent import CENTRE, LSTM, NAMES
from benchmarks.targets import BOTH, NO_GRAD, OURS

AXES = {"batch_size": "batch size", "hidden_size": "hidden size", "time": "sequence length, steps"}
HELD = {"batch_size": "batch {}", "input_size": "input {}", "hidden_size": "hidden {}", "time": "{} steps"}
PHASES = {NO_GRAD: "forward", BOTH: "forward and backward"}
COLORS = {"LLTM": "#0072b2", "LSTM": "#d55e00", "GRU": "#009e73"}  # distinguishable by colour-blind readers
MARKERS = {"LLTM": "o", "LSTM": "s", "GRU": "^"}
RIVALS = {"LLTM": LSTM, "LSTM": "nn.LSTM", "GRU": "nn.GRU"}
SIZE, DPI = (9.5, 4.2), 150

Points = dict[tuple[str, str], dict[int, Mapping[str, float]]]  # by kind and phase: a ratio for each size


def draw(contents: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws a PNG file for each size that the measurement varies; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in AXES:
        points = speedups(contents["results"], name)
        if any(len(values) > 1 for values in points.values()):
            files.append(folder / f"speedup-{name.replace('_', '-')}.png")
            picture(points, name, contents["environment"], files[-1])
    return files


def speedups(results: list[Mapping[str, Any]], varied: str) -> Points:
    """fourfold's speed-up over torch.nn's layer in the float32 tables on one thread that differ from the centre in one
    size."""
    points: Points = {}
    held = {name: value for name, value in zip(NAMES, CENTRE, strict=True) if name != varied}
    for result in (result for result in results if result.get("suite") == "sequence"):
        alike = result["threads"] == 1 and result["precision"] == "float32" and "packed" not in result["title"]
        if alike and held.items() <= result["sizes"].items():
            rows = {row["name"]: row["phases"] for row in result["rows"]}
            ours, rival = rows.get(OURS, {}), rows.get(RIVALS[result["kind"]], {})
            for phase in (phase for phase in PHASES if phase in ours and phase in rival):
                at = points.setdefault((result["kind"], phase), {})
                at[result["sizes"][varied]] = ratio(rival[phase], ours[phase])
    return points


def ratio(rival: Mapping[str, float], ours: Mapping[str, float]) -> Mapping[str, float]:
    return {
        "median": rival["median"] / ours["median"],
        "lower": rival["lower_quartile"] / ours["upper_quartile"],
        "upper": rival["upper_quartile"] / ours["lower_quartile"],
    }


def picture(points: Points, varied: str, facts: Mapping[str, Any], file: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2, sharey=True)
    ticks = sorted({size for values in points.values() for size in values})
    for panel, (phase, words) in zip(panels, PHASES.items(), strict=True):
        for kind, color in COLORS.items():
            if values := points.get((kind, phase)):
                sizes = sorted(values)
                middle, lower, upper = ([values[size][key] for size in sizes] for key in ("median", "lower", "upper"))
                label = "LLTM (3 gates) against nn.LSTM (4)" if kind == "LLTM" else f"{kind} against nn.{kind}"
                panel.plot(sizes, middle, color=color, marker=MARKERS[kind], markersize=5, linewidth=1.8, label=label)
                panel.fill_between(sizes, lower, upper, color=color, alpha=0.15, linewidth=0)
        panel.axhline(1, color="#444444", linewidth=1)
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_locator(FixedLocator(ticks))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xticklabels([str(size) for size in ticks])
        panel.set(title=words, xlabel=AXES[varied])
        panel.grid(axis="y", color="#dddddd", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    # A logarithmic axis: half as fast is as far below 1 as twice as fast is above it.
    shown = [ratio for values in points.values() for ratio in values.values()]
    panels[0].set_yscale("log", base=2)
    panels[0].set_ylim(min(0.9, *(ratio["lower"] for ratio in shown)) / 1.08, 1.15 * max(r["upper"] for r in shown))
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    panels[0].set_ylabel("speed-up over torch.nn; below 1× is slower")
    panels[0].legend(frameon=False)
    held = ", ".join(HELD[name].format(value) for name, value in zip(NAMES, CENTRE, strict=True) if name != varied)
    figure.suptitle(f"fourfold's speed-up, one thread, float32; {held}", fontsize=11)
    figure.supxlabel(
        f"{facts['processor']}; torch {facts['torch']}, fourfold {facts['fourfold']}; "
        f"load average {facts['load_average'] or 0:.2f}; bands: quartiles",
        fontsize=7.5,
        color="#555555",
    )
    figure.savefig(file)
