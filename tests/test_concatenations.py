"""Concatenations of any sizes: operators that read them are computed by parts, and programs write parts directly into
them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fourfold
import seeds
from compiled import assert_same, compiled, draw, programs_of, results_of
from fourfold import _native
from fourfold.compiler.analysis import parts
from fourfold.compiler.pipeline import runtime
from fourfold.compiler.pipeline.record import Record
from nests import GENERATORS
from operator_events import events

pytestmark = pytest.mark.usefixtures("strict")
needs_plans = pytest.mark.skipif(_native.module is None, reason="Python runs the graphs, and concatenates")
x, y = draw(12, 20), draw(12, 20, seed=1)


@pytest.fixture(autouse=True)
def small_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FEWEST_BYTES", 0)


def token_shift(x: Tensor, y: Tensor) -> Tensor:
    """As in RWKV."""
    before = F.pad(x, (0, 0, 1, -1))
    return x * y + before * (1 - y)


def features(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x.relu(), (x * y)[:, :6].sin(), x.sum(1, keepdim=True), y], 1)


def class_token(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([y[:1].tanh(), x * y + 1]).sigmoid()


def differences(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[:1] * y[:1], x[1:] - x[:-1] * y[1:]])


def rolled(x: Tensor, y: Tensor) -> Tensor:
    return torch.roll(x * y, 3, 1) - torch.roll(x, -2, 0).cos()


def second_difference(x: Tensor, y: Tensor) -> Tensor:
    wide = F.pad(x * y, (1, 1), value=0.5)
    return wide[:, 2:] - 2 * wide[:, 1:-1] + wide[:, :-2]


def cropped(x: Tensor, y: Tensor) -> Tensor:
    return F.pad(x.exp(), (-2, -3)) * y[:, :15]


def divided(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a, b = (x * y).split([7, 13], 1)
    return a.sin(), b.cos() * 2


def some_columns(x: Tensor, y: Tensor) -> Tensor:
    return (x.exp() * y)[:, 4:9].sin()


def column_of_many(x: Tensor, y: Tensor) -> Tensor:
    return x * (x.exp() + y)[:, 4:5] + y


def twice(x: Tensor, y: Tensor) -> Tensor:
    part = x.sin() * y
    return torch.cat([part, y[:, :5], part], 1)


def also_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    part = x.sin() * y
    return part, torch.cat([part, (y * 2)[:, :5]], 1)


def read_by_torch(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x.sin() * y, (y.cos() + x)[:, :5]], 1) @ torch.ones(25, 3)


def nested(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([torch.cat([x.sin(), y[:, :3].cos()], 1), x[:, :9].exp()], 1) * 2


def of_two_dtypes(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([(x * 2).double(), y.sin()[:, :7]], 1)


def with_nothing(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([torch.zeros(0), (x * y)[:, :0], x.sin(), y[:, :3].cos()], 1)


def stacked_rows(x: Tensor, y: Tensor) -> Tensor:
    both = torch.cat([x.mT.sin(), (x * y).mT[:, :5]], 1)
    return both.mT.exp() + 1


def sums_beside(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([(x * y).sum(0), x.mean(1), y.amax(1)])


def normalized(x: Tensor, y: Tensor) -> Tensor:
    return F.layer_norm(torch.cat([x[:1], x * y]) + 1, (20,))


CASES = (
    token_shift, features, class_token, differences, rolled, second_difference, cropped, divided, some_columns,
    column_of_many, twice, also_returned, read_by_torch, nested, of_two_dtypes, with_nothing, stacked_rows,
    sums_beside, normalized,
)  # fmt: skip


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("function", CASES)
def test_results_and_gradients_are_eagers(function: Callable, generator: str) -> None:
    call = compiled(function, options={"generator": generator})
    for _ in range(2):
        assert_same(results_of(call, (x, y)), results_of(function, (x, y)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [token_shift, features, differences, rolled])
def test_other_dtypes(function: Callable, dtype: torch.dtype) -> None:
    own = x.detach().to(dtype), y.detach().to(dtype)
    tolerance = {} if dtype is torch.float64 else {"rtol": 2e-2, "atol": 2e-2}
    assert_same(results_of(compiled(function), own), results_of(function, own), **tolerance)


def test_integers() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return torch.roll(a * b, 1, 1) + F.pad(a, (2, -2), value=7)

    own = tuple(torch.randint(-9, 9, (5, 11), generator=torch.Generator().manual_seed(k)) for k in range(2))
    assert_same(results_of(compiled(function), own), results_of(function, own))


@pytest.mark.parametrize("function", [token_shift, features, differences, second_difference])
def test_any_sizes(function: Callable) -> None:
    call = compiled(function, dynamic=True)
    for rows in (12, 9, 1):
        own = draw(rows, 20), draw(rows, 20, seed=1)
        assert_same(results_of(call, own), results_of(function, own))


def test_other_layouts() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a.sin(), b.cos()], 1) * 2

    a = draw(2, 3, 4, 5).to(memory_format=torch.channels_last)
    b = draw(2, 6, 4, 5).to(memory_format=torch.channels_last)
    turned = draw(5, 4, 3, 2).permute(3, 2, 1, 0)
    for own in ((a, b), (turned, b), (a[:, :, ::2], b[:, :, ::2])):
        assert_same(results_of(compiled(function), own), results_of(function, own))


@needs_plans
@pytest.mark.parametrize("generator", GENERATORS)
def test_parts_are_written_where_they_belong(generator: str) -> None:
    """By programs into one new tensor; parts that no program computes are copied."""
    own = x.detach(), y.detach()
    options = {"generator": generator}
    ran = events(compiled(differences, options=options), *own, memory=True)
    assert set(ran) == {"aten::as_strided", "[memory]"} and ran.count("[memory]") == 1
    assert events(compiled(features, options=options), *own).count("aten::copy_") == 1
    assert "aten::cat" not in events(compiled(token_shift, options=options), *own)


@needs_plans
def test_results_do_not_share_memory() -> None:
    call = compiled(differences)
    a, b = call(x.detach(), y.detach()), call(y.detach(), x.detach())
    torch.testing.assert_close(a, differences(x, y).detach())
    torch.testing.assert_close(b, differences(y, x).detach())
    assert a._version == 0
    a.add_(1).mul_(b)  # a result supports in-place changes


def test_what_nobody_reads_is_not_computed() -> None:
    record = Record()
    compiled(some_columns, record)(x.detach(), y.detach())
    (program,) = record.captured[0].forward.compiled.programs
    assert "b=5" in program.text


@pytest.mark.parametrize(("function", "most"), [(token_shift, 5), (differences, 7), (features, 4)])
def test_programs_are_few(function: Callable, most: int) -> None:
    record = Record()
    call = compiled(function, record)
    torch.autograd.backward(call(x, y), torch.ones_like(function(x, y)))
    assert 2 <= programs_of(record) <= most


def test_small_ones_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    record = Record()
    compiled(class_token, record)(x.detach(), y.detach())
    assert len(record.captured[0].forward.compiled.programs) == 3  # two parts in one concatenation, and its sigmoid


def some_function(choose: random.Random) -> Callable[[Tensor, Tensor], Tensor]:
    """A sequence of elementwise operators, concatenations, slices, pads and rolls."""
    steps = [choose.choice(("join", "slice", "pad", "roll", "compute", "compute", "swap")) for _ in range(5)]
    numbers = [choose.random() for _ in steps]
    dims = [choose.randrange(2) for _ in steps]

    def function(x: Tensor, y: Tensor) -> Tensor:
        value, other = x * y, y
        for step, number, dim in zip(steps, numbers, dims, strict=True):
            size = value.shape[dim]
            cut = max(1, int(number * size))
            if step == "join":
                piece = other.narrow(dim, 0, max(1, int(number * other.shape[dim]))).sin()
                beside = value.narrow(1 - dim, 0, min(value.shape[1 - dim], piece.shape[1 - dim]))
                piece = piece.narrow(1 - dim, 0, beside.shape[1 - dim])
                value = torch.cat([piece, beside, piece * 2] if number > 0.5 else [beside, piece], dim)
            elif step == "slice":
                value = value.narrow(dim, size - cut, cut)
            elif step == "pad":
                widths = [0, 0, 0, 0]
                widths[2 * dim : 2 * dim + 2] = [int(4 * number) - 1, 1] if value.shape[1 - dim] > 4 else [0, 2]
                value = F.pad(value, widths, value=number)
            elif step == "roll":
                value = torch.roll(value, cut, dim)
            elif step == "swap":
                value = torch.cat([value.narrow(dim, cut, size - cut), value.narrow(dim, 0, cut)], dim)
            else:
                value = value.sin() * number + value
        return value

    return function


def test_random_functions() -> None:
    for seed in seeds.of_this_run(least=10):
        function = some_function(random.Random(seed))
        assert_same(results_of(compiled(function), (x, y)), results_of(function, (x, y)))


def ring_buffer(state: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    moved = torch.cat([state[:, 1:], new[:, :1]], 1)
    shown, old = moved.tanh() * 2, moved[:, :-1]
    state.copy_(moved)
    return shown, old


def padded_and_cropped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    wide = F.pad(x, (1, 2))
    shown = wide.sin()
    x.add_(1)
    return shown, wide[:, 1:-2]


def halves(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    both = torch.cat([x, y], 1)
    shown = both.sin()
    x.add_(1)
    return shown, both[:, :20], both[:, 20:].mT


def pieces_of_rolled(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    turned = torch.roll(x, 7, 1)
    x.mul_(0)
    return (turned.exp() * y, *turned.split([7, 13], 1))


@pytest.mark.parametrize("function", [ring_buffer, padded_and_cropped, halves, pieces_of_rolled])
def test_a_slice_that_is_returned_is_of_the_whole(function: Callable) -> None:
    """It has the whole's strides and shares no memory with an input."""
    own, expected = (tuple(t.detach().clone() for t in (x, y)) for _ in range(2))
    got, given = compiled(function)(*own), function(*expected)
    assert_same([*got, *own], [*given, *expected])
    memory = [t.untyped_storage().data_ptr() for t in (*got, *own)]
    expected_memory = [t.untyped_storage().data_ptr() for t in (*given, *expected)]
    assert [memory.index(each) for each in memory] == [expected_memory.index(each) for each in expected_memory]


def test_gradients_share_nothing_with_the_upstream_gradient() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.roll(torch.cat([x, y[:6]]) + torch.cat([y, x[:6]]).sin(), 6, 0)

    own = [t.detach().clone().requires_grad_() for t in (x, y)]
    upstream = torch.ones(18, 20)
    compiled(function)(*own).backward(upstream)
    assert all(t.grad.untyped_storage().data_ptr() != upstream.untyped_storage().data_ptr() for t in own)


def test_programs_write_concatenations() -> None:
    """Of concatenations that they write only partly, just the copied bytes are counted; of two parts that overlap, the
    whole tensor they are parts of."""
    x = draw(100, 200, gradient=False)

    def outside(function: Callable) -> tuple[dict[str, str], int]:
        half = fourfold.explain(function, x).graphs[0].forward
        return {one.operator: one.reason for one in half.outside}, half.bytes_after

    reasons, moved = outside(lambda x: torch.cat([x[:1].exp(), x[1:] - x[:-1]]))
    assert reasons == {} and moved == 4 * 200 * (1 + 100 + 100)
    reasons, moved = outside(lambda x: torch.cat([x[:1].exp(), x]))
    assert reasons["cat"].startswith("programs write some") and moved == 4 * 200 * (1 + 1 + 100 * 2)


@needs_plans
def test_a_program_writes_into_tensors_of_any_strides() -> None:
    """Called without Dynamo's guards: prepared calls for one layout are not used for another."""
    record = Record()
    p, q = torch.ones(12, 20), torch.full((12, 20), 2.0)
    compiled(lambda p, q: p.mul_(q).add_(1), record)(p.clone(), q)
    graph = runtime.graph_of(record.captured[0].forward.compiled)
    wide = torch.ones(12, 60)
    for target in (p.clone(), wide[:, 40:], wide[:, 0:40:2], torch.ones(20, 12).t()):
        graph([target, q])
        assert torch.equal(target, torch.full((12, 20), 3.0))
    assert torch.equal(wide[:, 1:40:2], torch.ones(12, 20))


def backward_of(function: Callable) -> Record:
    record = Record()
    compiled(function, record)(x, y).sum().backward()
    return record


def test_the_backward_computes_concatenations_again() -> None:
    """Only the inputs are saved, no padded tensor."""
    forward = backward_of(token_shift).captured[0].forward.compiled
    kept = forward.module.graph.output_node().args[0][1:]
    assert [node.op for node in kept] == ["placeholder"] * 2


def test_a_slices_gradient_is_no_tensor_of_zeros() -> None:
    backward = backward_of(features).captured[0].backward.compiled
    ran = {str(node.target) for node in backward.nodes}
    assert not ran & {"aten.slice_backward.default", "aten.add.Tensor"}
    assert backward.concatenations or _native.module is None
