"""The figures of README and of the site's start page: one number for each, from the targets in docs/benchmarks.
scripts/readme_tables.py writes them."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# README's rows: the text, and the file, work and rival of the target that has the number.
XEON, EPYC = "docs/benchmarks/xeon_amx.json", "docs/benchmarks/recurrences/zen5.json"
REAL = "docs/benchmarks/real/zen5.json"
FIGURES = (
    (
        "Silero VAD, a frame of 32 ms, saved and loaded",
        REAL,
        "Silero VAD, a frame",
        "ONNX Runtime",
    ),
    (
        "LLTM, 100 steps, batch 16, 128 units, trained",
        XEON,
        "LLTM T100 B16 I32 H128, forward+backward",
        "plain PyTorch",
    ),
    ("LSTM, 100 steps, batch 16, 128 units, trained", XEON, "LSTM T100 B16 I32 H128, forward+backward", "nn.LSTM"),
    (
        "LSTM, rollout of 128 steps with restarts, trained",
        XEON,
        "RL rollout B8 T128, resets by done, forward+backward",
        "nn.LSTM called step by step",
    ),
    ("MLP 784-512-10, batch 256, trained", XEON, "MLP 256x784-512-10, forward+backward", "nn.Sequential"),
    ("softshrink of 64 elements, forward", XEON, "softshrink of 64 elements, forward, no grad", "F.softshrink"),
    (
        "compiled functions, 100,000 elements and more, forward",
        XEON,
        "other functions from 100,000 elements on, forward, no grad",
        "torch.compile (Inductor)",
    ),
    (
        "compiled functions, 1,000 elements, trained",
        XEON,
        "every function of 1,000 elements, forward+backward",
        "plain PyTorch",
    ),
    (
        "ViT, GPT-2, Llama, ConvNeXt, a training step",
        XEON,
        "training of a model",
        "torch.compile (Inductor)",
    ),
    ("recurrences in Python, trained", EPYC, "recurrences in Python, forward+backward", "plain PyTorch"),
)

# The start page's rows: what for, with what, and the row of README with the figure.
AIMS = (
    (
        "Recurrent layers and policies of up to some hundred units",
        "[`fourfold.nn`](recurrent.md), or `fourfold.optimize(model)`",
        "LSTM, rollout of 128 steps with restarts, trained",
    ),
    (
        "Models that run on every frame of a stream",
        "[`fourfold.save`](files.md) and `load`, in Python and C++",
        "Silero VAD, a frame of 32 ms, saved and loaded",
    ),
    (
        "Time steps, activations, norms and losses written in Python",
        "[`fourfold.scan`](scan.md) and the backend of [`torch.compile`](compiler.md)",
        "recurrences in Python, trained",
    ),
)
# The models of docs/models.md, and the target with the figure of each.
GALLERY = (
    ("Silero VAD", "Silero VAD, a frame"),
    ("DeepFilterNet3", "DeepFilterNet3, a frame"),
    ("english_g2", "english_g2, a short line"),
    ("Resemblyzer", "Resemblyzer, 160 frames"),
    ("blla", "blla, a page of 428 by 600 pixels"),
    ("g2p-en", "g2p-en, a word"),
    ("Kokoro's text side", "Kokoro's text side, 60 phonemes"),
    ("a causal transformer", "causal transformer, a step"),
)


def figure(contents: dict[str, Any], work: str, rival: str) -> str:
    """The ratio of a target; for several tables the median and the worst."""
    (target,) = (each for each in contents["targets"] if (each["work"], each["against"]) == (work, rival))
    worst = ratio_words(target["measured"], target["shown"])
    if target["tables"] == 1:
        return worst
    found = [each["measured"] for result in contents["results"] for each in result["targets"] if of(each, target)]
    if len(found) != target["tables"]:
        raise ValueError(f"{work}: expected {target['tables']} tables against {rival}, but found {len(found)}")
    measured = [each for each in found if each is not None]
    median = statistics.median(measured)
    return f"median {ratio_words(median, f'{median:.2f}×')}, worst {worst} of {len(measured)}"


def ratio_words(ratio: float, shown: str) -> str:
    return shown if ratio >= 1 else f"**{shown}**"


def of(judged: dict[str, Any], target: dict[str, Any]) -> bool:
    """Whether a table's target belongs to the summary's: a report names the work, any other table has the same
    limit."""
    if "work" in judged:
        return (judged["work"], judged["against"]) == (target["work"], target["against"])
    same = (judged["limit"], judged["rival"]) == (target["limit"], target["against"])
    return same and target["work"].endswith(judged["phase"])


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def aims() -> str:
    """Three rows with a figure each."""
    rows = {label: (file, work, rival) for label, file, work, rival in FIGURES}
    lines = ["| for | times as fast |", "|---|---|"]
    for what, way, label in AIMS:
        file, work, rival = rows[label]
        shown = figure(read(ROOT / file), work, rival)
        lines.append(f"| {what}: {way} | {shown}, against {rival} ({label}) |")
    return "\n".join([*lines, ""])


def gallery() -> str:
    """The models of docs/models.md as a list, which the site shows as cards."""
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\)[^|]*\|[^|]*\| ([^|]+) \|", page, re.MULTILINE)
    if [name for name, _, _ in rows] != [name for name, _ in GALLERY]:
        raise ValueError(f"GALLERY: expected the models of docs/models.md, {', '.join(name for name, _, _ in rows)}")
    contents = read(ROOT / REAL)
    works = {each["work"]: each for each in contents["targets"]}
    lines = []
    for (name, link, what), (_, work) in zip(rows, GALLERY, strict=True):
        target = works[work]
        shown = ratio_words(target["measured"], target["shown"])
        measured = f"{shown} as fast as {target['against']} ({work.partition(', ')[2]})"
        lines += [f"- **[{name}]({link})**\n", f"  {what[0].upper()}{what[1:]}. {measured}."]
    return "\n".join(['<div class="cards">\n', *lines, "\n</div>\n"])
