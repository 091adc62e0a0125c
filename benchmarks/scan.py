"""``scan``: recurrences written in Python, run by ``fourfold.scan``, against Python loops over the same step and
against the packages of each field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import fourfold
from benchmarks import cold, first_scan, layers, recurrent, scan_memory, scan_rivals
from benchmarks.measure import summarise
from benchmarks.other_recurrences import OTHERS, draw_selective_scan
from benchmarks.problem import Candidate, Contender, Problem, Rate, forward_only, functional, largest_norm
from benchmarks.recurrences import RECURRENCES, Recurrence, loop
from benchmarks.request import Request
from benchmarks.results import Report
from benchmarks.targets import AOT_EAGER, BOTH, NO_GRAD, OURS, PLAIN
from fourfold.cli.timing import pinned_threads

EVERY = RECURRENCES | OTHERS
WORK = "recurrences in Python"
CENTRE = (100, 16, 32, 128)  # steps, batch, inputs, hidden
LAYERS = ("LLTM", "LSTM", "GRU")
LAYER_SIZES = ((16, 32, 128, 100), (1, 512, 512, 100))  # as in the suite sequence
ON_THEIR_OWN = (*LAYERS, "spiking neuron", "advantages", "biquad", "selective scan")
CHAOTIC = ("adaptive LIF",)  # rounding moves a spike, and thereby all later ones: no float32 loop is correct
TRAINED = ("sLSTM", "liGRU")
ENVIRONMENTS, ROLLOUT = (8, 1024), 2048
SAMPLES, CHANNELS, FEW_SAMPLES = 160_000, 16, 1_600
RESPONSE = 1024  # samples after which an impulse has decayed to nothing in float64
MAMBA = (512, 1, 1, 1536)  # Mamba 130M's d_inner, here the hidden size
MAMBA_STATES = 16
SUMMED = 2.0**-18  # error of a hundred dependent steps, relative to a tensor's norm

Scan = Callable[..., tuple[Any, Any]]
INDEXED = "a Python loop over x[t]"
TORCHS = f"torch's scan, compiled by {OURS}"
MOST_STEPS = 256  # of one process: each is a graph of its own
compiled = torch.compile(scan_rivals.torchs_scan, backend="fourfold", fullgraph=True, recompile_limit=MOST_STEPS)
WAYS: Mapping[str, Scan] = {PLAIN: loop, OURS: fourfold.scan, TORCHS: compiled}
CAPTURE = f"{AOT_EAGER} of one step"
CHECKPOINTED = f"{OURS}, checkpoint_every=10"


def tables(request: Request) -> Iterator[Problem | Report]:
    yield from problems(request)
    yield memory_report()
    yield first_report(request)


def problems(request: Request) -> Iterator[Problem]:
    yield neuron()
    for environments in ENVIRONMENTS[:1] if request.quick else ENVIRONMENTS:
        yield advantages(environments)
    yield biquad(SAMPLES)
    yield biquad(FEW_SAMPLES)
    yield mamba()
    for kind in LAYERS:
        for sizes in LAYER_SIZES[:1] if request.quick else LAYER_SIZES:
            yield layer(kind, recurrent.named(sizes))
    for name in TRAINED:
        yield problem_of(EVERY[name], CENTRE, works=(WORK, "sLSTM and liGRU, trained"))
    for name in () if request.quick else EVERY:
        if name not in (*ON_THEIR_OWN, *TRAINED, *CHAOTIC):
            yield problem_of(EVERY[name], CENTRE)


def problem_of(
    recurrence: Recurrence,
    sizes: tuple[int, int, int, int],
    sequence: bool = False,
    zero: bool = False,
    rivals: Sequence[Contender] = (),
    ways: Mapping[str, Scan] = WAYS,
    works: tuple[str, ...] = (WORK,),
) -> Problem:
    """Gradients are for the weights, and for the sequence if ``sequence`` is set or there are no weights. zero: whether
    the first carry is zero. ways: rows with the same step."""
    steps, batch, inputs, hidden = sizes
    made = recurrence.make(*sizes)
    init = pytree.tree_map(torch.zeros_like, made.init) if zero else made.init
    leaves, spec = pytree.tree_flatten((init, made.weights, made.xs))
    states, weights = (len(pytree.tree_leaves(part)) for part in (init, made.weights))
    first = states if weights else states + weights
    last = len(leaves) if sequence or not weights else states + weights
    taking = range(first, last)
    reached = differentiable(recurrence, sequence or not weights)

    def call(scan: Scan, *given: Tensor) -> tuple[Tensor, ...]:
        others = len(leaves) - len(taking)
        placed = [*given[:first], *given[others:], *given[first:others]]
        carry, weights, xs = pytree.tree_unflatten(placed, spec)
        carry, ys = scan(recurrence.of(weights), carry, xs, reverse=recurrence.reverse)
        return tuple(pytree.tree_leaves((ys, carry))[k] for k in reached)

    rows = [Contender(way, partial(functional, call=partial(call, scan))) for way, scan in ways.items()]
    found = Problem(
        title=f"{recurrence.name}, {steps:,} steps, batch {batch}, input {inputs}, hidden {hidden}, float32",
        parameters=tuple(leaves[k] for k in taking),
        inputs=tuple(leaf for k, leaf in enumerate(leaves) if k not in taking),
        definition=partial(call, loop),
        longest_sum=max(steps * batch, hidden),
        rows=[*rows[:1], *rivals, *rows[1:]],
        sizes=dict(zip(("time", "batch_size", "input_size", "hidden_size"), sizes, strict=True)),
        rounding=SUMMED,
        distance=largest_norm,
        phases=(NO_GRAD, BOTH),
        rate=Rate("µs/step", lambda seconds: 1e6 * seconds / steps),
        works=works,
        kind=recurrence.name,
        source=recurrence.source,
    )
    return with_gradients(found)


def differentiable(recurrence: Recurrence, sequence: bool) -> list[int]:
    """The results that depend differentiably on the inputs: a threshold that only spikes change doesn't."""
    made = recurrence.make(2, 2, 2, 4)
    given = (made.weights, made.xs) if sequence else made.weights
    for leaf in pytree.tree_leaves(given):
        leaf.requires_grad_()
    carry, ys = loop(made.step, made.init, made.xs)
    return [k for k, leaf in enumerate(pytree.tree_leaves((ys, carry))) if leaf.requires_grad]


def with_gradients(problem: Problem) -> Problem:
    """With random gradients of every result."""
    with torch.no_grad():
        outputs = problem.definition(*problem.inputs, *problem.parameters)
    generator = torch.Generator().manual_seed(1)
    gradients = tuple(torch.randn(y.shape, generator=generator) / 8 for y in outputs)
    return dataclasses.replace(problem, gradients=gradients)


def neuron() -> Problem:
    in_jax = Contender("jax.lax.scan", scan_rivals.jax_scan(scan_rivals.jax_neuron, 2), forward_only)
    ways = {PLAIN: loop, INDEXED: partial(loop, by_index=True), OURS: fourfold.scan}
    return problem_of(EVERY["spiking neuron"], CENTRE, rivals=[in_jax], ways=ways, works=(WORK, "spiking neuron"))


def advantages(environments: int) -> Problem:
    """Advantages are computed without gradients."""
    rivals = [
        Contender("stable-baselines3's loop in NumPy, restated", scan_rivals.numpy_advantages),
        Contender("TorchRL's vectorised form", scan_rivals.torchrl_advantages),
        Contender("jax.lax.scan", scan_rivals.jax_scan(scan_rivals.jax_advantages, 1, reverse=True)),
    ]
    found = problem_of(EVERY["advantages"], (ROLLOUT, environments, 1, 1), zero=True, rivals=rivals)
    return dataclasses.replace(
        forward_only(found),
        title=f"generalised advantage estimates, {ROLLOUT:,} steps, {environments:,} environments, float32",
        inputs=(*found.inputs, *found.parameters),
        parameters=(),
        gradients=(),
        baseline=rivals[0].name,
        works=(WORK, "advantages of 2,048 steps"),
    )


def biquad(samples: int) -> Problem:
    """Each channel's samples are contiguous. The definition is a convolution with the impulse response."""
    recurrence = EVERY["biquad"]
    x = torch.randn(CHANNELS, samples, generator=torch.Generator().manual_seed(0))
    weights = recurrence.make(1, 1, 1, 1).weights

    def definition(*given: Tensor) -> tuple[Tensor, ...]:
        *weights, x = given
        impulse = x.new_zeros(RESPONSE)
        impulse[0] = 1
        _, response = loop(recurrence.of(tuple(weights)), (x.new_zeros(()),) * 4, impulse)
        size = samples + RESPONSE
        return (torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(response, size), size)[:, :samples],)

    def call(scan: Scan, *given: Tensor) -> tuple[Tensor, ...]:
        *weights, x = given
        _, y = scan(recurrence.of(tuple(weights)), (x.new_zeros(CHANNELS),) * 4, x)
        return (y,)

    def plain(*given: Tensor) -> tuple[Tensor, ...]:
        *weights, x = given
        return (call(loop, *weights, x.t())[0].t(),)

    rows = [
        Contender("torchaudio.functional.lfilter", scan_rivals.torchaudio_biquad),
        Contender(OURS, partial(functional, call=partial(call, partial(fourfold.scan, dim=1)))),
    ]
    few = samples <= FEW_SAMPLES
    found = Problem(
        title=f"biquad, {samples:,} samples, {CHANNELS} channels, float32",
        parameters=(*weights, x),
        inputs=(),
        definition=definition,
        longest_sum=samples * CHANNELS,
        rows=[*[Contender(PLAIN, partial(functional, call=plain))] * few, *rows],
        sizes={"time": samples, "batch_size": CHANNELS},
        distance=largest_norm,
        phases=(NO_GRAD, BOTH),
        rate=Rate("ns/step", lambda seconds: 1e9 * seconds / samples),
        works=(WORK,) if few else ("biquad of 160,000 samples",),
        kind="biquad",
        source=recurrence.source,
    )
    return with_gradients(found)


def mamba() -> Problem:
    draw = partial(draw_selective_scan, states=MAMBA_STATES)
    recurrence = dataclasses.replace(EVERY["selective scan"], draw=draw)
    slow = Contender("transformers' slow path, restated", scan_rivals.slow_selective_scan, forward_only)
    found = problem_of(recurrence, MAMBA, sequence=True, rivals=[slow])
    tokens, batch, _, hidden = MAMBA
    words = f"{tokens} tokens, batch {batch}, {hidden} channels of {MAMBA_STATES} states"
    works = (WORK, "selective scan of Mamba 130M")
    return dataclasses.replace(found, title=f"selective scan, {words}, float32", works=works)


def layer(kind: str, sizes: Mapping[str, int]) -> Problem:
    """A layer of torch.nn or the tutorial, with its step in Python."""
    found = recurrent.whole(kind, sizes)
    rivals = [Contender(f"nn.{kind}", layers.layer)]
    if kind == "LLTM":
        rivals = [Contender("jax.lax.scan", scan_rivals.jax_lltm, forward_only)]
    rows = [
        Contender(PLAIN, partial(stepped, scan=loop)),
        *rivals,
        Contender(f"fourfold.nn.{kind}", layers.ours),
        Contender(OURS, partial(stepped, scan=fourfold.scan)),
    ]
    source, works = RECURRENCES[kind].source, (WORK, f"{kind} in Python")
    title = f"{kind} in Python, {found.title.partition(', ')[2]}"
    return dataclasses.replace(found, title=title, rows=rows, baseline=PLAIN, works=works, source=source)


def stepped(problem: Problem, scan: Scan) -> Candidate:
    recurrence, states = RECURRENCES[problem.kind], layers.STATES[problem.kind]

    def call(input: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        init, weights = given[:states], given[states:]
        carry, ys = scan(recurrence.of(weights), init if states > 1 else init[0], input)
        return ys, *layers.as_tuple(carry)

    return functional(problem, call)


def memory_report() -> Report:
    ways = {**WAYS, CHECKPOINTED: partial(fourfold.scan, checkpoint_every=10)}
    names = ("spiking neuron", "LSTM")
    with pinned_threads(1):
        return scan_memory.report([problem_of(EVERY[name], CENTRE, ways=ways) for name in names])


def first_report(request: Request) -> Report:
    """What a first call costs beyond the capture of one step, which aot_eager's call measures."""
    start = partial(cold.start, module="benchmarks.first_scan")
    samples, reasons = cold.take(cold.USUAL, dataclasses.replace(request, skip=("inductor",)), start)
    parts = (cold.IMPORT, cold.FIRST, cold.SECOND)
    cells, figures = [], []
    for way, found in samples.items():
        medians = {part: summarise([sample[part] for sample in found]).median for part in parts}
        others = samples.get(AOT_EAGER, ())
        beyond = [
            summarise([a[part] - b[part] for a, b in zip(found, others, strict=False)]).median if others else None
            for part in parts[1:]
        ]
        words = ["-" if seconds is None else f"{seconds:+.3f}" for seconds in beyond]
        cells.append((CAPTURE if way == AOT_EAGER else way, *(f"{medians[part]:.3f}" for part in parts), *words))
        figures.append({"way": way, "repeats": len(found), **medians, "beyond capture": beyond})
    return Report(
        title=f"First call of a {first_scan.FIRST} in Python and of a second recurrence ({first_scan.SECOND}), "
        f"{first_scan.STEPS} steps, forward and backward, in a fresh process: seconds; medians",
        headings=("", *parts, "first beyond capture", "second beyond capture"),
        cells=cells,
        figures=figures,
        notes=[f"{way} fails: {reason}" for way, reason in reasons.items()],
        wrong=OURS in reasons,
    )
