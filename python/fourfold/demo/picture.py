"""The demo's picture: both loss curves, how far they are apart, and the speed of both beside torch's own LSTM."""

import statistics
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fourfold.demo.report import Result
from fourfold.demo.training import Agreement, windowed

PLAIN, FUSED, LSTM, INK, PALE = "#f08c00", "#3b5bdb", "#868e96", "#212529", "#adb5bd"


def save(result: Result, path: Path) -> None:
    figure = Figure(figsize=(12, 5.8), dpi=150, facecolor="white")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.7, 1), height_ratios=(2.6, 1), hspace=0.12, wspace=0.16)
    grid.update(left=0.06, right=0.97, top=0.82, bottom=0.12)
    loss = figure.add_subplot(grid[0, 0])
    draw_losses(loss, result)
    draw_differences(figure.add_subplot(grid[1, 0], sharex=loss), result)
    figure.align_ylabels()
    draw_speeds(figure.add_subplot(grid[:, 1]), result)
    same = "The same losses" if result.agreement.holds else "Losses that disagree"
    title = f"{same}, {statistics.median(result.speedups):.1f}× the speed"
    figure.text(0.06, 0.93, title, fontsize=20, weight="bold", color=INK)
    subtitle = "a character-level LLTM learns Python from its standard library"
    figure.text(0.06, 0.885, subtitle, fontsize=11.5, color="#495057")
    figure.savefig(path)


def draw_losses(axes: Axes, result: Result) -> None:
    steps = range(1, len(result.plain.losses) + 1)
    axes.plot(steps, result.plain.losses, color=PALE, linewidth=0.5, alpha=0.6)
    centres, plain = windowed(steps), windowed(result.plain.losses)
    axes.plot(centres, plain, color=PLAIN, linewidth=6, alpha=0.45, solid_capstyle="round", label=result.plain.name)
    axes.plot(centres, windowed(result.fused.losses), color=FUSED, linewidth=1.6, label=result.fused.name)
    axes.set_ylabel("loss (nats per character)")
    axes.legend(frameon=False, fontsize=11)
    axes.tick_params(labelbottom=False)
    clean(axes)


def draw_differences(axes: Axes, result: Result) -> None:
    pairs = zip(result.plain.losses, result.fused.losses, strict=True)
    differences = [max(abs(a - b), 1e-8) for a, b in pairs]  # equal losses have no place on a logarithmic scale
    steps = range(1, len(differences) + 1)
    axes.plot(steps, differences, ".", color=PALE, markersize=2)
    pairs = zip(windowed(result.plain.losses), windowed(result.fused.losses), strict=True)
    axes.plot(windowed(steps), [max(abs(a - b), 1e-8) for a, b in pairs], color=INK, linewidth=1.2)
    axes.axhline(Agreement.WINDOW_TOLERANCE, color="#e03131", linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yscale("log")
    axes.set_ylim(5e-9, 1)
    axes.set_xlabel(f"step (dots: each step; line: means over {Agreement.WINDOW} steps; dashed: their tolerance)")
    axes.set_ylabel("difference")
    clean(axes)


def draw_speeds(axes: Axes, result: Result) -> None:
    runs = ((result.fused, FUSED), (result.lstm, LSTM), (result.plain, PLAIN))
    for place, (run, color) in enumerate(runs):
        speeds = [speed / 1000 for speed in result.speeds(run)]
        median = statistics.median(speeds)
        axes.barh(place, median, height=0.3, color=color, alpha=0.9)
        heights = [place - 0.26 - 0.05 * (number % 3) for number in range(len(speeds))]
        axes.plot(speeds, heights, "o", color=color, markersize=4, alpha=0.5, markeredgewidth=0)
        label = f"{run.name}, another cell" if run is result.lstm else run.name
        axes.text(0, place + 0.21, label, fontsize=13, weight="bold", color=INK)
        axes.text(median, place, f" {median:,.0f}", fontsize=14, weight="bold", color=color, va="center")
    axes.set_ylim(-0.5, len(runs) - 0.5)
    axes.set_xlim(0, 1.18 * axes.dataLim.xmax)  # room for the longest bar's number
    axes.set_yticks([])
    axes.set_xlabel("thousand characters a second, whole training step\n(bar: median; dots: blocks of steps)")
    clean(axes)
    axes.spines["left"].set_visible(False)


def clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    axes.tick_params(color=PALE, labelcolor="#495057")
    axes.grid(axis="x", color="#e9ecef", linewidth=0.8)
    axes.set_axisbelow(True)
