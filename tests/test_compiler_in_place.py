"""In-place updates: programs write an input's new value into the input."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile

import fourfold
from fourfold import _native
from nests import GENERATORS
from operator_events import events

pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.skipif(_native.module is None, reason="Python runs the graphs, and copies"),
]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def compiled(function: Callable, generator: str = "interpreter", **settings: object) -> Callable:
    torch._dynamo.reset()
    return torch.compile(function, backend="fourfold", options={"generator": generator}, **settings)


def update(p: Tensor, q: Tensor) -> None:
    p.mul_(0.5).add_(q, alpha=0.25)


@pytest.mark.parametrize("generator", GENERATORS)
def test_no_copy_and_no_new_memory(generator: str) -> None:
    p, q = draw(100, 30), draw(100, 30)
    assert events(compiled(update, generator), p, q, memory=True) == []


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("view", [lambda p: p[:, ::2], lambda p: p.t(), lambda p: p[3:, 5:], lambda p: p[:, 1]])
def test_views_are_written_where_they_are(view: Callable, generator: str) -> None:
    """Every second column, a transposed tensor, a block, a column."""
    own, expected = draw(50, 60), draw(50, 60)
    q = torch.ones(view(own).shape)
    assert events(compiled(update, generator), view(own), q, memory=True) == []
    for _ in range(2):
        update(view(expected), q)
    torch.testing.assert_close(own, expected)


def test_an_input_that_overlaps_itself_is_copied_into() -> None:
    """Its rows share elements: torch leaves their value undefined, and both generators give the same."""
    results = []
    for generator in ("interpreter", "llvm"):
        p = draw(40).as_strided((10, 5), (3, 1))
        call = compiled(update, generator)
        for _ in range(2):
            call(p, torch.ones(10, 5))
        results.append(p)
    assert torch.equal(*results)


def test_one_operator_alone_is_a_program() -> None:
    assert events(compiled(lambda p, q: p.lerp_(q, 0.25)), draw(100, 30), draw(100, 30), memory=True) == []


def read_before(p: Tensor, q: Tensor) -> Tensor:
    r = p @ q.mT
    update(p, q)
    return r


def read_after(p: Tensor, q: Tensor) -> Tensor:
    update(p, q)
    return (p @ q.mT).exp()


def old_read_after(p: Tensor, q: Tensor) -> Tensor:
    old = p.mT
    product = (q.sin() @ old.clone()).softmax(-1)
    r = product @ old.mT
    update(p, q)
    return r


def both_values(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    old = p.clone()
    update(p, q)
    return old, p.clone(), p * 1


def swapped(p: Tensor, q: Tensor) -> None:
    old = p.clone()
    p.copy_(q * 2)
    q.copy_(old * 3)


def several(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    results = p.sin(), p.cos()
    p.add_(q).sin_()
    q.mul_(2).sub_(p)
    return results


def normalized(p: Tensor, q: Tensor) -> Tensor:
    centered = p - p.mean(-1, keepdim=True)
    p.copy_(centered * centered.square().mean(-1, keepdim=True).add(1).rsqrt() * q)
    return centered


def by_its_transpose(p: Tensor, q: Tensor) -> None:
    p.copy_(p[:, : p.shape[0]].mT @ q * 2 if p.shape[0] != p.shape[1] else p.mT * 2 + q)


def by_its_sums(p: Tensor, q: Tensor) -> None:
    p.sub_(p.sum(0)).add_(q)


def by_its_row(p: Tensor, q: Tensor) -> None:
    q.add_(p[0])
    p.mul_(p[0].clone())


def returned(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    update(p, q)
    return p, p.view(-1)


def a_part(p: Tensor, q: Tensor) -> None:
    p[1:3].mul_(2)
    p.view(-1)[5:].add_(q.view(-1)[5:])


FUNCTIONS = [
    update, read_before, read_after, old_read_after, both_values, swapped, several, normalized, by_its_transpose,
    by_its_sums, by_its_row, returned, a_part,
]  # fmt: skip
LAYOUTS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "square": lambda: (draw(40, 40), draw(40, 40) + 1),
    "of_short_rows": lambda: (draw(300, 4), draw(300, 4) + 1),
    "transposed": lambda: (draw(64, 48).t(), draw(48, 64)),
    "both_transposed": lambda: (draw(64, 48).t(), draw(65, 48)[1:].t()),
    "strided": lambda: (draw(40, 80)[:, ::2], draw(40, 40)),
    "one_row": lambda: (draw(1, 40), draw(1, 40)),
    "empty": lambda: (draw(0, 40), draw(0, 40)),
    "bfloat16": lambda: (draw(40, 40, dtype=torch.bfloat16), draw(40, 40, dtype=torch.bfloat16)),
    "float64": lambda: (draw(40, 40, dtype=torch.float64), draw(40, 40, dtype=torch.float64)),
    "one_memory": lambda: (lambda base: (base[:20], base[20:]))(draw(40, 20)),
    "the_same": lambda: (lambda base: (base, base))(draw(40, 20)),
    "view_of_the_other": lambda: (lambda base: (base, base.view(40, 20)))(draw(40, 20)),
}


def outcome(function: Callable, make: Callable[[], tuple[Tensor, ...]]) -> object:
    arguments = make()
    results = function(*arguments)
    return results, *arguments, *(a._base for a in arguments if a._base is not None)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values(function: Callable, layout: str, generator: str) -> None:
    make = LAYOUTS[layout]
    try:
        expected = outcome(function, make)
    except (RuntimeError, IndexError):
        pytest.skip("an error in eager mode")
    call = compiled(function, generator)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if layout == "bfloat16" else {}
    for _ in range(2):
        torch.testing.assert_close(outcome(call, make), expected, **tolerance)


@pytest.mark.parametrize("generator", GENERATORS)
def test_long_rows_that_threads_share(generator: str) -> None:
    p, q = draw(2, 70_000), draw(70_000)
    expected = p.softmax(-1) * q
    compiled(lambda p, q: p.copy_(p.softmax(-1) * q), generator)(p, q)
    torch.testing.assert_close(p, expected)


@pytest.mark.parametrize("generator", GENERATORS)
def test_memory_that_overlaps_only_at_a_later_call(generator: str) -> None:
    """torch compiles for tensors that don't overlap, without a guard: the result is as if everything was read first."""
    call = compiled(update, generator)
    call(draw(30, 20), draw(30, 20))
    base = draw(31, 20)
    expected = base[:-1] * 0.5 + base[1:] * 0.25
    call(base[:-1], base[1:])
    torch.testing.assert_close(base[:-1], expected)


@pytest.mark.parametrize("function", [update, read_after, returned, by_its_sums])
def test_versions_increase(function: Callable) -> None:
    p, q = draw(30, 30), draw(30, 30)
    call = compiled(function)
    for _ in range(2):
        before = p._version, q._version
        call(p, q)
        assert p._version > before[0] and q._version == before[1]


def test_autograd_finds_a_saved_tensor_that_was_changed() -> None:
    x, p = draw(30, 20).requires_grad_(), draw(30, 20)
    result = (x * p).sum()
    compiled(update)(p, draw(30, 20))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_a_parameter_under_no_grad() -> None:
    p, q = nn.Parameter(draw(30, 20)), draw(30, 20)
    expected = p.detach() * 0.5 + q * 0.25

    def f(p: Tensor, q: Tensor) -> None:
        with torch.no_grad():
            update(p, q)

    assert events(compiled(f), p.detach().clone().requires_grad_(), q, memory=True) == []
    compiled(f)(p, q)
    assert p.requires_grad and p.is_leaf
    torch.testing.assert_close(p.detach(), expected)


def foreach(p: Tensor) -> None:
    torch._foreach_mul_([p], 3)


def of_a_view(p: Tensor) -> None:
    p.view(1)[0] = 7


def read_by_item(p: Tensor) -> float:
    before = p.item()
    return before + p.add_(1).item()


def scaled(p: Tensor) -> None:
    p.mul_(3)


def added_and_filled(p: Tensor) -> None:
    p.add_(1)
    p.fill_(5)


def into(p: Tensor) -> None:
    torch.add(p, 3, out=p)


NUMBERS: list[Callable] = [scaled, added_and_filled, into, foreach, of_a_view, read_by_item]


@pytest.mark.filterwarnings("ignore:Graph break from")
@pytest.mark.parametrize("function", NUMBERS)
def test_a_float64_tensor_without_dimensions(function: Callable) -> None:
    """Dynamo takes it for a number, and with other backends drops its changes."""
    call, own = compiled(function), torch.tensor(1.0, dtype=torch.float64)
    for k in range(2):
        expected = own.clone() if k else torch.tensor(1.0, dtype=torch.float64)
        result = function(expected)
        got = call(own)
        assert own.equal(expected) and got == result


def test_a_parameter_without_dimensions_learns() -> None:
    p = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimizer = torch.optim.SGD([p], lr=0.25, momentum=0.5)
    step = compiled(optimizer.step)
    for expected in (0.5, -0.25):
        p.grad = torch.tensor(2.0, dtype=torch.float64)
        step()
        assert p == expected


def test_inference_mode() -> None:
    with torch.inference_mode():
        p, q = draw(30, 20), draw(30, 20)
        expected = p * 0.5 + q * 0.25
        compiled(update)(p, q)
        torch.testing.assert_close(p, expected)
    with pytest.raises(RuntimeError, match="nference"):
        update(p, q)
    with pytest.raises(RuntimeError, match="nference"):
        compiled(update)(p, q)


@pytest.mark.parametrize("retain", [False, True])
def test_a_buffer_that_the_backward_depends_on(retain: bool) -> None:
    def f(x: Tensor, b: Tensor) -> Tensor:
        y = x * b.sin()
        with torch.no_grad():
            b.mul_(0.5).add_(x)
        return (y * b).exp()

    def gradients(function: Callable) -> tuple[Tensor, ...]:
        x, b = draw(30, 20).requires_grad_(), draw(30, 20)
        y = function(x, b).sum()
        first = torch.autograd.grad(y, x, retain_graph=retain)
        return (*first, *(torch.autograd.grad(y, x) if retain else ()), b)

    torch.testing.assert_close(gradients(compiled(f)), gradients(f))


def test_symbolic_sizes() -> None:
    call = compiled(update, dynamic=True)
    for n in (3, 17, 64):
        p, q = draw(n, n + 1), draw(n, n + 1)
        expected = p * 0.5 + q * 0.25
        call(p, q)
        torch.testing.assert_close(p, expected)
    assert events(call, draw(9, 10), draw(9, 10)) == []


def test_threads() -> None:
    call, q = compiled(update), draw(300, 200)
    all_of_them = [draw(300, 200) for _ in range(8)]
    expected = all_of_them[0] * 0.5 + q * 0.25
    call(draw(300, 200), q)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda p: call(p, q), all_of_them))
    for p in all_of_them:
        torch.testing.assert_close(p, expected)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "NAdam", "Adagrad"])
@pytest.mark.filterwarnings("ignore:.*Profiler record function.*")
def test_optimizers(name: str, foreach: bool) -> None:
    settings = {"momentum": 0.9} if name == "SGD" else {}

    def trained(compile: Callable) -> list[Tensor]:
        parameters = [nn.Parameter(draw(60, n)) for n in (5, 40, 16)]
        optimizer = getattr(torch.optim, name)(parameters, lr=0.01, foreach=foreach, **settings)
        step = compile(optimizer.step)
        for k in range(3):
            for parameter in parameters:
                parameter.grad = draw(60, parameter.shape[1]) * (k + 1)
            step()
        return [parameter.detach() for parameter in parameters]

    torch.testing.assert_close(trained(compiled), trained(lambda step: step))


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.filterwarnings("ignore:.*Profiler record function.*")
def test_a_step_of_adamw_copies_nothing_but_counts_of_steps(foreach: bool) -> None:
    parameters = [nn.Parameter(draw(60, n)) for n in (5, 40, 16)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(parameters, foreach=foreach)
    step = compiled(optimizer.step)
    step()
    with profile(record_shapes=True) as profiled:
        step()
    copies = [event.input_shapes[0] for event in profiled.events() if event.name == "aten::copy_"]
    assert copies == [[]] * len(parameters)


def test_explain_counts_the_copies_that_are_left() -> None:
    half = fourfold.explain(update, draw(30, 20), draw(30, 20)).graphs[0].forward
    assert not half.outside and half.boxes[-1].lines[0] == "p, in place"


@pytest.mark.parametrize("columns", [7, 30, 33, 62])
def test_rows_that_end_within_a_vector(columns: int) -> None:
    """Elements that two vectors have are computed from the old values in both."""

    def function(x: Tensor) -> None:
        x.mul_(2).add_(1)

    call = torch.compile(function, backend="fourfold", options={"generator": "llvm"})
    room = torch.randn(50, columns + 3)
    expected = room.clone()
    for _ in range(4):
        call(room[:, :columns])
        function(expected[:, :columns])
        torch.testing.assert_close(room, expected)
