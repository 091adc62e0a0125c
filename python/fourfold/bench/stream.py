"""``bench stream``: one step a call at batch 1, as a program calls that gets its input one piece at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from functools import partial

from torch import Tensor, nn

from fourfold import reference
from fourfold.bench import layers, sequence
from fourfold.bench.comparison import inductor, left_out
from fourfold.bench.layers import KINDS, LLTM, Kind
from fourfold.bench.precision import FLOAT32
from fourfold.bench.problem import NO_GRAD, OURS, Candidate, Contender, Problem, Target
from fourfold.bench.request import Request

SIZES = ((32, 128), (512, 512))  # input and hidden size
PLAIN = "plain PyTorch"


def problems(request: Request) -> Iterator[Problem]:
    sizes = [tuple({"input_size": SIZES[0][0], "hidden_size": SIZES[0][1], **request.sizes}.values())]
    for kind in [KINDS[name] for name in request.kinds or KINDS]:
        for input_size, hidden_size in sizes if request.sizes or request.quick else SIZES:
            yield problem(kind, input_size, hidden_size)


def problem(kind: Kind, input_size: int, hidden_size: int) -> Problem:
    sizes = {"batch_size": 1, "input_size": input_size, "hidden_size": hidden_size, "time": 1}
    whole = sequence.problem(sizes, FLOAT32, kind=kind)
    targets = [] if kind is LLTM else [Target(NO_GRAD, 1.0, f"nn.{kind.name}", work=sequence.NO_LOSS)]
    return dataclasses.replace(
        whole,
        title=f"{kind.name}, one step a call, batch 1, input {input_size}, hidden {hidden_size}, float32",
        phases=(NO_GRAD,),
        rate=None,
        targets=tuple(targets),
    )


def contenders(problem: Problem, skip: Collection[str]) -> list[Contender]:
    kind = KINDS[problem.kind]
    shape = (problem.sizes["input_size"], problem.sizes["hidden_size"])
    like = sequence.lstm_problem(problem) if kind is LLTM else problem
    one_step, one_step_like = as_cells(problem), as_cells(like)
    rows = []
    if kind is LLTM:
        plain = partial(cell, kind, reference.LLTMCell, shape)
        rows.append(Contender(PLAIN, plain, one_step))
        rows.append(
            Contender(
                "torch.compile (Inductor)",
                left_out if "inductor" in skip else partial(compiled, one_step, plain),
                one_step,
            )
        )
    name = kind.torch_name
    words = sequence.LSTM if kind is LLTM else f"nn.{name}"
    rows.append(Contender(words, partial(layers.torchs, kind, *shape), like))
    rows.append(
        Contender(f"nn.{name}Cell", partial(cell, KINDS[name], getattr(nn, f"{name}Cell"), shape), one_step_like)
    )
    rows.append(Contender(OURS, partial(evaluated, kind, shape)))
    return rows


def as_cells(problem: Problem) -> Problem:
    """The same step with the shapes of a cell's input, without a dimension of time."""
    return dataclasses.replace(
        problem,
        inputs=tuple(x.flatten(0, -2) for x in problem.inputs),
        definition=lambda x, *rest: problem.definition(x.unsqueeze(0), *rest),
    )


def evaluated(kind: Kind, shape: tuple[int, int]) -> Candidate:
    """fourfold's module in eval mode, in which it may keep what it makes of its weights from call to call."""
    return layers.ours(kind, *shape, {}, training=False)


def cell(
    kind: Kind, module: type, shape: tuple[int, int], wrap: Callable[[nn.Module], nn.Module] = lambda cell: cell
) -> Candidate:
    layer = module(*shape).eval()
    call = wrap(layer)

    def step(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        new = call(x, states if kind.states > 1 else states[0])
        new = new if isinstance(new, tuple) else (new,)
        return new[0], *new

    return Candidate(step, tuple(layer.parameters()))


def compiled(problem: Problem, plain: Callable[..., Candidate]) -> Candidate:
    return inductor(lambda compile: plain(wrap=compile), problem)
