"""Loops over steps as one nest give the interpreter's bits, for steps whose states stay in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from explained_scans import biquad, counting, spiking, twice
from fourfold.compiler.nest.jit.service import obstacle
from fourfold.scanning import capture
from scans import Generators, loop

T = 9
pytestmark = [
    pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "nests"),
    pytest.mark.usefixtures("fresh_steps"),
]


def advantages(a: Tensor, xs: Any) -> Any:
    reward, value, following, runs = xs
    a = reward + 0.99 * following * runs - value + 0.99 * 0.95 * runs * a
    return a, a


def of(step: Callable[..., Any], *states: torch.dtype, series: int = 1) -> Any:
    return step, states, series


F32, F64, I64 = torch.float32, torch.float64, torch.int64
CASES = {
    "spiking": of(spiking, F32, F32),
    "spiking in float64": of(spiking, F64, F64),
    "advantages": of(advantages, F32, series=4),
    "counting": of(counting, F32, F32, I64),
    "biquad": of(biquad, F32, F32, F32, F32),
    "twice": of(twice, F32),
}
SHAPES = [(5,), (16,), (100,), (2, 130), (3, 7), (2, 3, 5)]


def results(case: Any, shape: Any, reverse: bool, laid_out: Any, plain: bool) -> Any:
    """Results and gradients, and whether a nest ran the steps. plain: also the results without gradients."""
    step, states, series = case
    torch.manual_seed(0)
    init = tuple(torch.randn(shape).to(dtype) for dtype in states)
    xs = tuple(laid_out(torch.randn(T, *shape, dtype=states[0])).requires_grad_() for _ in range(series))
    init = tuple(each.requires_grad_(each.is_floating_point()) for each in init)
    given = step, init if len(init) > 1 else init[0], xs if series > 1 else xs[0]

    def run() -> Any:
        carry, ys = fourfold.scan(*given, reverse=reverse)
        outputs = [each for each in torch.utils._pytree.tree_leaves((carry, ys)) if each.requires_grad]
        weights = [torch.linspace(-1, 1, each.numel(), dtype=each.dtype).view(each.shape) for each in outputs]
        wanted = [each for each in (*init, *xs) if each.requires_grad]
        gradients = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
        return carry, ys, [torch.zeros(()) if g is None else g for g in gradients]

    run()  # compiles it, which takes several times as long in a profile
    with torch.profiler.profile() as profile:
        found = run()
    events = {event.key: event.count for event in profile.key_averages() if event.key.startswith("fourfold_")}
    is_nest = "fourfold_loop_in_stages" not in events and sum(events.values()) < T
    with torch.no_grad():
        return (*found, fourfold.scan(*given, reverse=reverse) if plain else None), is_nest


def check(
    monkeypatch: pytest.MonkeyPatch,
    case: Any,
    shape: Any,
    reverse: bool = False,
    laid_out: Any = lambda x: x,
    is_nest: bool = True,
    plain: bool = True,
) -> None:
    generators = Generators(monkeypatch)
    capture._compiled.clear()
    generators.use("llvm")
    found, by_nest = results(case, shape, reverse, laid_out, plain)
    generators.use("interpreter")
    expected, by_steps = results(case, shape, reverse, laid_out, plain)
    assert len(generators.recurrences) == (2 if plain else 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert (by_steps, by_nest) == (False, is_nest)


LAYOUTS = {
    "time last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "every other": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "the same in every step": lambda x: x[:1].expand(x.shape),
}


def alternating(*choices: Iterable[Any]) -> list[tuple]:
    """Half of the combinations, as on a chessboard. Of three lists and more, any two choices still meet."""
    numbered = product(*map(enumerate, choices))
    return [tuple(choice for _, choice in each) for each in numbered if sum(k for k, _ in each) % 2 == 0]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("index", range(len(CASES)), ids=CASES)
def test_the_interpreters_bits(monkeypatch: pytest.MonkeyPatch, index: int, reverse: bool) -> None:
    """Each case forward and reversed, each shape with two cases of other dtypes."""
    check(monkeypatch, [*CASES.values()][index], SHAPES[index if not reverse else index - 3], reverse)


@pytest.mark.parametrize(("name", "layout"), alternating(CASES, LAYOUTS))
def test_any_layout(monkeypatch: pytest.MonkeyPatch, name: str, layout: str) -> None:
    check(monkeypatch, CASES[name], (6, 40), laid_out=LAYOUTS[layout], plain=False)


def test_threads_share_the_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_GENERATOR", "llvm")
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(results(CASES["spiking"], (64, 1000), reverse=False, laid_out=torch.Tensor.clone, plain=True))
    torch.set_num_threads(before)
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_of_16_bits_are_rounded_in_every_step(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    check(monkeypatch, of(twice, dtype), (33,), is_nest=False)


@pytest.mark.parametrize("has_dimensions", [False, True])
@pytest.mark.parametrize("index", range(len(CASES)), ids=CASES)
def test_numbers(monkeypatch: pytest.MonkeyPatch, index: int, has_dimensions: bool) -> None:
    shape = [(1,), (1, 1)][index % 2] if has_dimensions else ()
    reverse = (index % 4 < 2) == has_dimensions
    check(monkeypatch, [*CASES.values()][index], shape, reverse, plain=not has_dimensions)


def driven(v: Tensor, xs: Any) -> Any:
    """By numbers: one of each step, and a tensor."""
    number, x = xs
    v = v + torch.exp(-number.square()) * (x - v)
    return v, torch.tanh(v) * (number - 0.5)


@pytest.mark.parametrize(
    ("shape", "number", "grad"),
    alternating([(5,), (64,), (100,), (2, 130), (3, 7)], [(), (1,)], [False, True]),
)
def test_a_step_with_one_number_beside_larger_states(
    monkeypatch: pytest.MonkeyPatch, shape: Any, number: Any, grad: bool
) -> None:
    reverse = shape in [(64,), (100,)]
    init = torch.randn(shape, requires_grad=True)
    numbers, xs = torch.randn(T, *number, requires_grad=grad), torch.randn(T, *shape)
    found, generators = {}, Generators(monkeypatch)
    for generator in ("llvm", "interpreter"):
        generators.use(generator)
        fourfold.scan(driven, init, (numbers, xs), reverse=reverse)  # compiles it, outside the profile
        with torch.profiler.profile() as profile:
            last, ys = fourfold.scan(driven, init, (numbers, xs), reverse=reverse)
        is_nest = "fourfold_loop_in_stages" not in {event.key for event in profile.key_averages()}
        assert is_nest == (generator == "llvm")
        wanted = (init, numbers) if grad else (init,)
        found[generator] = last, ys, *torch.autograd.grad((last.sum(), ys.square().sum()), wanted)
    torch.testing.assert_close(found["llvm"][:2], found["interpreter"][:2], rtol=0, atol=0)
    torch.testing.assert_close(found["llvm"], found["interpreter"])
    torch.testing.assert_close(found["llvm"][:2], loop(driven, init, (numbers, xs), reverse=reverse))


@pytest.mark.parametrize("expanded", [False, True])
def test_a_state_of_one_number_beside_larger_ones_needs_their_shape(
    monkeypatch: pytest.MonkeyPatch, expanded: bool
) -> None:
    def step(carry: Any, x: Tensor) -> Any:
        total, mean = carry
        return (total * mean + x, 0.9 * mean + 0.1), total

    monkeypatch.setenv("FOURFOLD_GENERATOR", "llvm")
    number = torch.zeros(()).expand(3) if expanded else torch.zeros(())
    init, xs = (torch.zeros(3), number), torch.randn(T, 3)
    with torch.profiler.profile() as profile:
        found = fourfold.scan(step, init, xs)
    assert ("fourfold_loop_in_stages" in {event.key for event in profile.key_averages()}) != expanded
    torch.testing.assert_close(found, loop(step, init, xs))
    (scan,) = fourfold.explain(lambda: fourfold.scan(step, init, xs)).scans
    reason = "a state of one number beside larger ones needs their shape"
    assert scan.forward.loop.reasons.get("nest", "").endswith(reason) != expanded


def test_sizes_are_numbers_of_a_nest(monkeypatch: pytest.MonkeyPatch) -> None:
    def scale(h: Tensor, xs: Tensor) -> Any:
        n = xs.shape[2]
        return fourfold.scan(lambda h, x: (torch.tanh(h) * 0.5 + x / n, h * n), h, xs)

    monkeypatch.setenv("FOURFOLD_GENERATOR", "llvm")
    torch._dynamo.reset()
    compiled = torch.compile(scale, backend="fourfold", dynamic=True)
    for size in (7, 40):
        init, xs = torch.randn(3, size), torch.randn(T, 3, size)
        with torch.profiler.profile() as profile:
            found = compiled(init, xs)
        assert "fourfold_loop_in_stages" not in {event.key for event in profile.key_averages()}
        torch.testing.assert_close(found, loop(lambda h, x, n=size: (torch.tanh(h) * 0.5 + x / n, h * n), init, xs))


def test_another_generator_after_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a nest for which the first call only counted a use."""
    for generator in ("auto", "llvm"):
        monkeypatch.setenv("FOURFOLD_GENERATOR", generator)
        last, _ = fourfold.scan(lambda h, x: (h.abs() + x, h), torch.zeros(3, 5), torch.ones(7, 3, 5))
    assert last.eq(7).all()


@pytest.mark.parametrize("turned", ["init", "xs"])
def test_tensors_that_lie_transposed_within_a_step(monkeypatch: pytest.MonkeyPatch, turned: str) -> None:
    """They run in stages: a nest over steps has no panels for transposing."""
    monkeypatch.setenv("FOURFOLD_GENERATOR", "llvm")
    init, xs = torch.randn(8, 3, dtype=F64), torch.randn(9, 8, 3, dtype=F64)
    if turned == "init":
        init = init.T.contiguous().T
    else:
        xs = xs.transpose(1, 2).contiguous().transpose(1, 2)
    expected = [init]
    for x in xs:
        expected.append(torch.tanh(expected[-1]) + x)
    for _ in range(3):
        last, (ys, _) = fourfold.scan(twice, init, xs)
        torch.testing.assert_close(ys, torch.stack(expected[1:]))
        torch.testing.assert_close(last, expected[-1])
