"""``models``: training of small models of the package transformers under torch.compile's backends, each in a process of
its own: a first step is a fresh process's."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks import suites
from benchmarks.measure import beaten, in_turn, median_ratio, summarise, wall_seconds
from benchmarks.problem import compiled
from benchmarks.processes import Ended, environment_in, worker
from benchmarks.request import Request
from benchmarks.results import Report, count
from benchmarks.targets import BACKENDS, OURS, PLAIN, Outcome

STEPS = 3  # whose losses are compared
TOLERANCE = 1e-5  # of a loss: what Inductor's is off after three steps is a twentieth of it
BATCH, LENGTH, VOCABULARY = 8, 64, 1000
HIDDEN, LAYERS, HEADS = 128, 4, 4

Answer = Callable[[str, str], Any]  # of a way, to a question


def model(name: str) -> nn.Module:
    """Without dropout, whose random numbers Inductor draws otherwise than eager code."""
    import transformers as t

    tokens = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    heads = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    if name == "ViT":
        image = {"image_size": 64, "patch_size": 8, "num_labels": 10}
        kept = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = t.ViTConfig(hidden_size=HIDDEN, intermediate_size=4 * HIDDEN, **heads, **image, **kept)
        return t.ViTForImageClassification(config)
    if name == "GPT-2":
        sizes = {"n_positions": LENGTH, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}
        return t.GPT2LMHeadModel(t.GPT2Config(**tokens, **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 3 * HIDDEN, "max_position_embeddings": LENGTH}
    return t.LlamaForCausalLM(t.LlamaConfig(**tokens, **sizes, **heads, num_key_value_heads=HEADS // 2))


def batch(name: str) -> dict[str, torch.Tensor]:
    if name == "ViT":
        return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": torch.randint(10, (BATCH,))}
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": tokens, "labels": tokens}


def training(name: str, backend: str, threads: int) -> Callable[[str], Any]:
    """In a process of its own: "first" gives the seconds of the first step and STEPS losses, "step" the seconds of one
    more. The model learns one batch again and again."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    trained, inputs = model(name).train(), batch(name)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    losses, calls = [], []

    def step() -> None:
        if not calls:
            calls.append(compiled(trained, backend))
        optimizer.zero_grad()
        loss = calls[0](**inputs).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    def answer(question: str) -> Any:
        seconds = wall_seconds(step)
        if question == "step":
            return seconds
        for _ in range(STEPS - 1):
            step()
        return {"seconds": seconds, "losses": losses}

    return answer


@dataclass
class Way:
    """What became of a backend. losses: of the first steps. seconds: of warm ones."""

    name: str
    reason: str = ""
    first: float = 0.0
    losses: list[float] = field(default_factory=list)
    error: float = math.nan  # the largest relative difference between its losses and plain PyTorch's
    seconds: list[float] = field(default_factory=list)


def tables(request: Request) -> Iterator[Report]:
    if importlib.util.find_spec("transformers") is None:
        note = "Not measured: this benchmark needs the package transformers: pip install transformers"
        yield Report("Training of small models", ("model",), notes=(note,))
        return
    threads = max(request.threads)
    names = [name for name, backend in BACKENDS.items() if backend not in request.skip]
    for name in request.kinds or (("GPT-2",) if request.quick else suites.MODELS):
        with contextlib.ExitStack() as stack:
            ask = {}
            for way in names:  # a process for each, its caches empty
                folder = environment_in(stack.enter_context(tempfile.TemporaryDirectory()))
                started = worker("models", "training", name, BACKENDS[way], threads, environment=folder)
                ask[way] = stack.enter_context(started)
            answer = partial(lambda ask, way, question: ask[way](question), ask)
            yield report(name, threads, measure([Way(way) for way in names], request.repeats, answer))


def measure(ways: list[Way], repeats: int, answer: Answer) -> list[Way]:
    """First steps one after the other, then warm ones in turns of those ways whose losses are right."""
    for way in ways:
        try:
            found = answer(way.name, "first")
            way.first, way.losses = found["seconds"], found["losses"]
        except Ended as ended:
            way.reason = str(ended)
    exact = next(way.losses for way in ways if way.name == PLAIN)
    for way in (way for way in ways if way.losses):
        way.error = max((abs(a - b) / abs(b) for a, b in zip(way.losses, exact, strict=False)), default=math.nan)
        if not way.error <= TOLERANCE:
            way.reason = f"WRONG: a loss is off by {way.error:.1e} of it, tolerance {TOLERANCE:.0e}; not timed"
    right = {way.name: way for way in ways if not way.reason}
    for repeat in range(repeats):
        for way in (right[name] for name in in_turn(list(right), repeat)):
            try:
                if not way.reason:
                    way.seconds.append(answer(way.name, "step"))
            except Ended as ended:
                way.reason = str(ended)
    return ways


def report(model: str, threads: int, ways: list[Way]) -> Report:
    by_name = {way.name: way for way in ways}
    plain, ours = by_name[PLAIN], by_name[OURS]
    where = f"{model}, {count(threads)}"
    losses = ", ".join(f"{loss:.4f}" for loss in plain.losses)
    notes = [f"Losses of {STEPS} steps of {PLAIN}: {losses}; the others' may be off by {TOLERANCE:.0e} of them."]
    notes += [f"{way.name}: {way.reason}" for way in ways if way.reason]
    if lost := beaten({way.name: way.seconds for way in ways if way is not ours}, ours.seconds):
        notes.append(f"{OURS} loses: {', '.join(lost)}.")
    cells, figures = [], []
    for way in (way for way in ways if way.seconds):
        found, ratio = summarise(way.seconds), median_ratio(plain.seconds, way.seconds)
        times = (f"{1e3 * seconds:.1f}" for seconds in (found.median, found.minimum, found.spread))
        cells.append(
            (way.name, f"{way.first:.2f}", *times, "-" if ratio is None else f"{ratio:.2f}×", f"{way.error:.1e}")
        )
        figures.append(
            {"way": way.name, "model": model, "threads": threads, "first_step": way.first, "median": found.median}
            | {"minimum": found.minimum, "ratio": ratio, "relative_error": way.error, "repeats": found.repeats}
        )
    target = suites.target(f"losses of {STEPS} steps of training")
    return Report(
        title=f"Training of a small {where}, batch {BATCH}: seconds of a fresh process's first step; ms of a warm step",
        headings=("", "first step, s", "median, ms", "minimum", "spread", "ratio", "largest error of a loss"),
        cells=cells,
        figures=figures,
        notes=notes,
        outcomes=[Outcome(target, where, ours.error / TOLERANCE if ours.losses else None)],
        wrong=bool(ours.reason),
    )
