"""``models``: training and inference of small models of the package transformers under torch.compile's backends, each
in a process of its own, because a first step is measured in a fresh process."""

from __future__ import annotations

import contextlib
import copy
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

import fourfold
from benchmarks import suites
from benchmarks.measure import beaten, in_turn, median_ratio, summarise, wall_seconds
from benchmarks.problem import compiled
from benchmarks.processes import Ended, environment_in, worker
from benchmarks.request import Request
from benchmarks.results import Report, count
from benchmarks.targets import BACKENDS, INDUCTOR, OURS, PLAIN, Outcome

STEPS = 3  # steps whose losses are compared
TOLERANCE = 1e-5  # of a loss: twenty times Inductor's error after three steps
BATCH, LENGTH, VOCABULARY = 8, 64, 1000
HIDDEN, LAYERS, HEADS = 128, 4, 4
STAGES = [32, 64, 128, 256]  # channels
IMAGES = ("ViT", "ResNet", "ConvNeXt")
WARM = 3  # untimed calls of inference; the first one compiles

QUESTIONS = {"step": "training", "inference": "inference"}  # and what a target calls it
Answer = Callable[[str, str], Any]  # (way, question) -> answer


def model(name: str) -> nn.Module:
    """Without dropout: Inductor draws other random numbers than eager code."""
    import transformers as t

    tokens = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    heads = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    if name == "ViT":
        image = {"image_size": 64, "patch_size": 8, "num_labels": 10}
        kept = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        config = t.ViTConfig(hidden_size=HIDDEN, intermediate_size=4 * HIDDEN, **heads, **image, **kept)
        return t.ViTForImageClassification(config)
    if name == "ResNet":
        stages = {"embedding_size": 32, "hidden_sizes": STAGES, "depths": [2, 2, 2, 2]}
        return t.ResNetForImageClassification(t.ResNetConfig(layer_type="basic", num_labels=10, **stages))
    if name == "ConvNeXt":
        stages = {"hidden_sizes": STAGES, "depths": [1, 1, 3, 1]}
        return t.ConvNextForImageClassification(t.ConvNextConfig(image_size=64, num_labels=10, **stages))
    if name == "GPT-2":
        sizes = {"n_positions": LENGTH, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}
        return t.GPT2LMHeadModel(t.GPT2Config(**tokens, **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 3 * HIDDEN, "max_position_embeddings": LENGTH}
    return t.LlamaForCausalLM(t.LlamaConfig(**tokens, **sizes, **heads, num_key_value_heads=HEADS // 2))


def batch(name: str) -> dict[str, torch.Tensor]:
    if name in IMAGES:
        return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": torch.randint(10, (BATCH,))}
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": tokens, "labels": tokens}


def training(name: str, backend: str, threads: int) -> Callable[[str], Any]:
    """Runs in a process of its own. "first" returns the seconds of the first step and STEPS losses, "step" the seconds
    of one more step, and "inference" those of a copy's forward without gradients. The model trains on the same batch
    again and again."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    untrained, inputs = model(name), batch(name)
    trained = copy.deepcopy(untrained).train()
    # With torch's 1e-8 a parameter's first step has the sign of its gradient, however small, which rounding decides.
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3, eps=1e-3)
    losses, calls = [], []

    def step() -> None:
        if not calls:
            calls.append(compiled(trained, backend))
        optimizer.zero_grad()
        loss = calls[0](**inputs).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    inferring = []

    def infer() -> None:
        if not inferring:
            inferring.append(compiled(copy.deepcopy(untrained).eval(), backend))
        with torch.no_grad():
            inferring[0](**inputs)

    def answer(question: str) -> Any:
        if question == "inference":
            if not inferring:
                for _ in range(WARM):
                    infer()
                fourfold.wait_for_nests()
            return wall_seconds(infer)
        seconds = wall_seconds(step)
        if question == "step":
            return seconds
        for _ in range(STEPS - 1):
            step()
        fourfold.wait_for_nests()
        return {"seconds": seconds, "losses": losses}

    return answer


@dataclass
class Way:
    """The result for a backend. losses: of the first steps. seconds: of warm steps and of warm inference."""

    name: str
    reason: str = ""
    first: float = 0.0
    losses: list[float] = field(default_factory=list)
    error: float = math.nan  # the largest relative difference between its losses and plain PyTorch's
    seconds: dict[str, list[float]] = field(default_factory=lambda: {question: [] for question in QUESTIONS})


def tables(request: Request) -> Iterator[Report]:
    if importlib.util.find_spec("transformers") is None:
        note = "Not measured: this benchmark needs the package transformers: pip install transformers"
        yield Report("Training and inference of small models", ("model",), notes=(note,))
        return
    threads = max(request.threads)
    names = [name for name, backend in BACKENDS.items() if backend not in request.skip]
    for name in request.kinds or (("GPT-2",) if request.quick else suites.MODELS):
        with contextlib.ExitStack() as stack:
            ask = {}
            for way in names:  # a process with empty caches for each
                folder = environment_in(stack.enter_context(tempfile.TemporaryDirectory()))
                started = worker("models", "training", name, BACKENDS[way], threads, environment=folder)
                ask[way] = stack.enter_context(started)
            answer = partial(lambda ask, way, question: ask[way](question), ask)
            yield report(name, threads, measure([Way(way) for way in names], request.repeats, answer))


def measure(ways: list[Way], repeats: int, answer: Answer) -> list[Way]:
    """First steps one after the other, then warm steps in turns, for the ways with correct losses."""
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
                for question in QUESTIONS if not way.reason else ():
                    way.seconds[question].append(answer(way.name, question))
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
    for question, words in QUESTIONS.items():
        others = {way.name: way.seconds[question] for way in ways if way is not ours}
        if lost := beaten(others, ours.seconds[question]):
            notes.append(f"{OURS} loses, {words}: {', '.join(lost)}.")
    cells, figures = [], []
    for way in (way for way in ways if all(way.seconds.values())):
        found = {question: summarise(seconds) for question, seconds in way.seconds.items()}
        ratios = {question: median_ratio(plain.seconds[question], way.seconds[question]) for question in QUESTIONS}
        times = [
            cell
            for question in QUESTIONS
            for cell in (
                *(f"{1e3 * seconds:.1f}" for seconds in (found[question].median, found[question].spread)),
                "-" if ratios[question] is None else f"{ratios[question]:.2f}×",
            )
        ]
        cells.append((way.name, f"{way.first:.2f}", *times, f"{way.error:.1e}"))
        figures.append(
            {"way": way.name, "model": model, "threads": threads, "first_step": way.first}
            | {"relative_error": way.error, "repeats": found["step"].repeats}
            | {
                words: {"median": each.median, "minimum": each.minimum, "ratio": ratios[question]}
                for (question, words), each in zip(QUESTIONS.items(), found.values(), strict=True)
            }
        )
    losses_target = suites.target(f"losses of {STEPS} steps of training")
    outcomes = [Outcome(losses_target, where, ours.error / TOLERANCE if ours.losses else None)]
    inductor = by_name.get(INDUCTOR, Way(INDUCTOR))
    for question, words in QUESTIONS.items():
        ratio = median_ratio(inductor.seconds[question], ours.seconds[question])
        outcomes.append(Outcome(suites.target(f"{words} of a model"), where, ratio))
    return Report(
        title=f"A small {where}, batch {BATCH}: seconds of a fresh process's first step; ms of a warm step of training "
        "and of inference",
        headings=(
            *("", "first step, s", "training, ms", "spread", "ratio", "inference, ms", "spread", "ratio"),
            "largest error of a loss",
        ),
        cells=cells,
        figures=figures,
        notes=notes,
        outcomes=outcomes,
        wrong=bool(ours.reason),
    )
