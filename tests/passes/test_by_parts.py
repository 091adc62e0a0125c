"""The pass that computes the consumers of a concatenation by parts, and slices of computed values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from compiled import compiled, draw, results_of
from fourfold.compiler.analysis.parts import MOST_STACKED
from fourfold.compiler.passes.by_parts import MOST_COMPUTED, by_parts
from fourfold.compiler.passes.canonicalize import canonicalize
from fourfold.compiler.passes.cse import cse
from fourfold.compiler.passes.epilogues import epilogues
from fourfold.compiler.passes.flatten import flatten
from fourfold.compiler.passes.fuse import fuse
from fourfold.compiler.pipeline.record import Record
from graphs import assert_alike, operators, traced

pytestmark = pytest.mark.filterwarnings("ignore:fourfold could not compute")
ROWS, HEADS, SIZE = 6, 3, 16
x, y = draw(2, ROWS, SIZE), draw(2, ROWS, SIZE, seed=1)
wide = draw(2, ROWS, HEADS * SIZE)
cos, sin = draw(ROWS, SIZE, gradient=False), draw(ROWS, SIZE, gradient=False, seed=3)
half = draw(ROWS, SIZE // 2, gradient=False), draw(ROWS, SIZE // 2, gradient=False, seed=4)


def turned(x: Tensor) -> Tensor:
    """As in Llama and GPT-NeoX."""
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)


def turned_pairs(x: Tensor) -> Tensor:
    """As in GPT-J."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def of_heads(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q = q.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
    return q * cos + turned(q) * sin


def of_some_columns(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    part, rest = q[..., :4], q[..., 4:]
    return torch.cat((part * cos[..., :4] + turned(part) * sin[..., :4], rest), -1)


def of_half_of_the_columns(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q = q.unflatten(-1, (-1, SIZE)).transpose(1, 2)
    part, rest = q[..., :8], q[..., 8:]
    return torch.cat((part * cos[..., :8] + turned(part) * sin[..., :8], rest), -1)


def pairs_joined(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def pairs_unbound(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def product_of_halves(x: Tensor, y: Tensor) -> Tensor:
    (a, b), (c, d) = x.chunk(2, -1), y.chunk(2, -1)
    return torch.cat((a * c - b * d, a * d + b * c), -1)


def normalized_first(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q = F.rms_norm(q, (SIZE,))
    return q * cos + turned(q) * sin


def gates(x: Tensor, y: Tensor) -> Tensor:
    i, f, g, o = (x + y).chunk(4, -1)
    return o.sigmoid() * (f.sigmoid() * i + g.tanh())


def of_columns(state: Tensor) -> Tensor:
    """A step of the Lorenz system."""
    x, y, z = state.unbind(-1)
    return state + 0.01 * torch.stack((10 * (y - x), x * (28 - z) - y, x * y - z), -1)


def of_selections(state: Tensor) -> Tensor:
    x, y = state[..., 0], state[..., 1]
    return torch.stack((y.sin(), x * y), -1) * state


def of_narrow_slices(state: Tensor) -> Tensor:
    x, y, z = state.split(1, -1)
    return state * 2 - torch.cat((y * z, x.exp(), x + z), -1)


def of_leading_parts(state: Tensor) -> Tensor:
    x, y = state.unbind(0)
    return (torch.stack((x * y, x - y)) * state).sigmoid()


def of_chunks(state: Tensor) -> Tensor:
    x, y, z = state.chunk(3, -1)
    return state + torch.stack((x.cos(), x * y, y * z), -1).squeeze(-2)


def stacks_joined(x: Tensor) -> Tensor:
    a, b = x.unbind(1)
    return torch.cat((torch.stack((a.sin(), b)), torch.stack((a, b.cos(), a * b)))) * 2


def stacks_joined_in_columns(x: Tensor) -> Tensor:
    a, b = x.unbind(1)
    return torch.cat((torch.stack((a.sin(), b), -1), torch.stack((a, b.cos(), a * b), -1)), -1) * 2


# A function, its arguments, and the number of programs forward and backward.
CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], tuple[int, int]]] = {
    "rotary": (lambda q, cos, sin: q * cos + turned(q) * sin, (x, cos, sin), (1, 1)),
    "rotary of heads": (of_heads, (wide, cos, sin), (1, 1)),
    "rotary of some columns": (of_some_columns, (x, cos, sin), (1, 1)),
    "rotary of half of the columns": (of_half_of_the_columns, (wide, cos, sin), (1, 1)),
    "rotary of pairs": (lambda q, cos, sin: q * cos + turned_pairs(q) * sin, (x, cos, sin), (1, 1)),
    "pairs joined": (pairs_joined, (x, *half), (1, 1)),
    "pairs unbound": (pairs_unbound, (x, *half), (1, 1)),
    "normalized first": (normalized_first, (x, cos, sin), (2, 2)),
    "swiglu": (lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], (x,), (1, 1)),
    "geglu": (lambda x: x[..., :8] * F.gelu(x[..., 8:]), (x,), (1, 1)),
    "complex numbers": (product_of_halves, (x, y), (1, 1)),
    "stacked": (lambda x: torch.stack((x[..., 0] * 2, x[..., 1].sin()), -1), (draw(4, 5, 2),), (1, 1)),
    "both signs": (lambda x: torch.cat((x, -x), 1).relu() * 2, (x,), (1, 1)),
    "gates": (gates, (x, y), (1, 1)),
    "columns": (of_columns, (draw(4, 50, 3),), (1, 1)),
    "selections": (of_selections, (draw(4, 50, 2),), (1, 1)),
    "narrow slices": (of_narrow_slices, (draw(4, 50, 3),), (1, 1)),
    "stacks joined": (stacks_joined, (draw(4, 2, 6),), (1, 1)),
    "stacks joined in columns": (stacks_joined_in_columns, (draw(4, 2, 6),), (1, 1)),
    "chunks": (of_chunks, (draw(4, 50, 3),), (1, 1)),
}


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_programs_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    function, arguments, programs = CASES[name]
    given = tuple(each.detach().to(dtype).requires_grad_(each.requires_grad) for each in arguments)
    if dtype == torch.float64 and name in ("swiglu", "geglu", "gates", "stacked"):
        programs = None  # torch computes these functions in float64
    record = Record()
    got = results_of(compiled(function, record), given)
    exact = results_of(function, tuple(a.detach().double().requires_grad_(a.requires_grad) for a in given))
    for mine, theirs, eager in zip(got, exact, results_of(function, given), strict=True):
        assert (mine is None) == (eager is None)
        if mine is not None:
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
            assert mine.stride() == eager.stride()
    (captured,) = record.captured
    found = tuple(len(half.compiled.programs) for half in (captured.forward, captured.backward))
    assert programs in (None, found)


@pytest.mark.parametrize("name", CASES)
def test_dynamic_batches(name: str) -> None:
    function, arguments, programs = CASES[name]
    record = Record()
    call = compiled(function, record)
    for batch in (3, 5):
        given = [a.detach().repeat(batch, *[1] * (a.dim() - 1)) if a.dim() == 3 else a for a in arguments]
        for each in given:
            if each.dim() == 3:
                torch._dynamo.mark_dynamic(each, 0)
        own = [a.requires_grad_(b.requires_grad) for a, b in zip(given, arguments, strict=True)]
        got, expected = call(*own), function(*own)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        leaves = [each for each in own if each.requires_grad]
        gradients = [torch.autograd.grad(result.sin().sum(), leaves) for result in (got, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
    (captured,) = record.captured
    found = tuple(len(half.compiled.programs) for half in (captured.forward, captured.backward))
    assert found == programs


@pytest.mark.usefixtures("strict")
def test_a_stack_along_a_leading_dimension() -> None:
    record, given = Record(), (draw(2, 7, 20),)
    got, expected = results_of(compiled(of_leading_parts, record), given), results_of(of_leading_parts, given)
    torch.testing.assert_close(got, expected)
    (captured,) = record.captured
    assert [len(half.compiled.programs) for half in (captured.forward, captured.backward)] == [1, 1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.stack((x[..., 0], y[..., 1]), -1) * 2,  # parts in memory
        lambda x, y: torch.stack([x[..., k].sin() for k in range(MOST_STACKED + 1)], -1) * 2,  # many
    ],
)
def test_stacks_that_stay_whole(function: Callable[..., Tensor]) -> None:
    assert passed(function, x, y)[-1] == "[mul]"


def test_one_slice_of_equal_slices_is_read() -> None:
    assert passed(lambda x, y: x * y + turned(x), x, y).count("slice") == 0
    module = cse(by_parts(canonicalize(traced(lambda x, y: x * y + turned(x), x.detach(), y.detach()))))
    assert operators(module).count("slice") == 4


def passed(function: Callable[..., object], *arguments: Tensor, dynamic: bool = False) -> list[str]:
    arguments = tuple(each.detach() for each in arguments)
    module = epilogues(fuse(flatten(cse(by_parts(cse(canonicalize(traced(function, *arguments, dynamic=dynamic))))))))
    module.graph.lint()
    assert_alike(module, function, *arguments)
    return [name for name in operators(module) if name not in ("slice", "getitem", "permute", "unsqueeze", "select")]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x, y: torch.cat((x[..., :6], x[..., 6:]), -1) * y, ["cat", "[mul]"]),  # unequal
        (lambda x, y: (torch.cat((x, y), -1) * 2).softmax(-1), ["cat", "[mul _softmax]"]),  # a reduction of both
        (lambda x, y: torch.cat((x, y), 1).cumsum(1), ["cat", "cumsum"]),  # no elementwise operator
        (lambda x, y: x.softmax(-1) + turned(y), ["[neg cat]", "[_softmax add]"]),  # halves of a softmax
        (lambda x, y: x.sin().softmax(-1)[..., :8] * y[..., 8:], ["[sin _softmax]", "[mul]"]),
    ],
)
def test_what_stays_whole(function: Callable[..., Tensor], left: list[str]) -> None:
    assert passed(function, x, y) == left


def test_a_size_that_need_not_be_even_stays_whole() -> None:
    assert passed(lambda x, y: x * y + turned(x), x, y, dynamic=True)[-2:] == ["cat", "[mul add]"]


def test_a_concatenation_of_a_concatenation_is_one_if_its_parts_are_few() -> None:
    assert passed(of_half_of_the_columns, wide, cos, sin)[-1].endswith("cat]")
    assert passed(of_some_columns, x.repeat(1, 1, 2), cos, sin)[-1] == "cat"


def test_no_more_than_fit_into_a_group() -> None:
    def function(x: Tensor) -> Tensor:
        x = turned(x)
        for _ in range(MOST_COMPUTED):
            x = x.sin()
        return x

    assert passed(function, x)[0] == "[neg cat]"


def test_what_else_reads_the_whole_reads_the_parts_joined() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        whole = x * 2
        result = whole + turned(whole)
        return result, whole, result.cumsum(-1), result[..., :8] @ y[0].t()[:8]

    names = passed(function, x, y)
    assert [name for name in names if name.startswith("[")] == ["[mul mul neg add add cat cat]"]
    assert "slice" not in names and "cat" not in names


def test_slices_of_what_is_computed_are_computed_of_slices() -> None:
    assert passed(lambda x, y: (x * y)[..., :8].sin() + (x * y)[..., 8:].cos(), x, y)[0].count("mul") == 2
    assert passed(lambda x, y: (x.sin() * y).unflatten(-1, (8, 2))[..., 0] * 2, x, y)[-1] == "[sin mul mul]"


def test_parts_of_another_layout() -> None:
    assert (
        passed(lambda x, y: x.t() * y.t() + turned(x.t()), x[0, :, :6], y[0, :, :6])[-1] == "[mul mul neg add add cat]"
    )
