"""torch's own samples with one argument changed to another dtype, shape or number: a compiled function raises an error
wherever eager mode does, and the rest has eager mode's dtypes and shapes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch.utils._pytree import tree_flatten, tree_unflatten

import seeds
from compiler_operators import ENTRIES, OpInfo
from compiler_samples import module_of
from fourfold.compiler.pipeline.entry import backend

DTYPES = (torch.bool, torch.int64, torch.float16, torch.float64, torch.complex64)
INTERNAL = (
    "_softmax_backward_data",
    "native_dropout_backward",
    "native_group_norm",
)  # called by torch's formulas alone
ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)  # the last one is raised by torch's tracing

# The part that is drawn, other ones in each run: all, if sweeps are six times as long.
DRAWN = seeds.SECONDS / seeds.USUAL / 6

Call = Callable[..., list[Tensor]]


def changes(value: object) -> Iterator[object]:
    if isinstance(value, Tensor):
        yield from (value.detach().to(dtype) for dtype in DTYPES if dtype != value.dtype)
        yield value.unsqueeze(0)
        if value.dim():
            yield value.narrow(0, 0, 0)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 7, -value - 5)
    elif isinstance(value, float):
        yield from (1e40, -value)


def changed_calls(entry: OpInfo) -> Iterator[tuple[Call, list[Tensor]]]:
    *_, sample = entry.sample_inputs("cpu", torch.float32, requires_grad=False)
    flat, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    for k, new in ((k, new) for k, value in enumerate(flat) for new in changes(value)):
        values = [*flat[:k], new, *flat[k + 1 :]]

        def call(*tensors: Tensor, values: list[object] = values) -> list[Tensor]:
            rest = iter(tensors)
            own = [next(rest) if isinstance(value, Tensor) else value for value in values]
            first, args, kwargs = tree_unflatten(own, structure)
            results = tree_flatten(entry.op(first, *args, **kwargs))[0]
            return [x * 1.0 if x.is_floating_point() else x for x in results if isinstance(x, Tensor)]

        yield call, [value for value in values if isinstance(value, Tensor)]


def outcome(call: Call, tensors: list[Tensor]) -> object:
    """The dtypes and shapes of the results, or None for an error."""
    try:
        return [(result.dtype, result.shape) for result in call(*tensors)]
    except ERRORS:
        return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name for name, entry in ENTRIES.items() if torch.float32 in entry.dtypes and name not in INTERNAL]
)
def test_changed_calls(name: str) -> None:
    draw = random.Random(f"{seeds.FIRST} {name}")
    for call, tensors in changed_calls(ENTRIES[name]):
        if draw.random() > DRAWN:
            continue

        def compiled(*given: Tensor, by: Callable = backend, call: Call = call) -> list[Tensor]:
            return by(module_of(call, len(given)), list(given))(*given)

        expected, actual = outcome(call, tensors), outcome(compiled, tensors)
        if actual != expected:  # some calls are other ones once torch has traced them
            traced = outcome(lambda *given, own=compiled: own(*given, by=aot_eager), tensors)
            values = call.__kwdefaults__["values"]
            assert actual == traced, f"{values}: expected {expected or 'an error'}, but got {actual or 'an error'}"
