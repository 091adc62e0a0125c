"""torch's control flow operators in compiled functions: cond, while_loop, scan, associative_scan and map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import map as torchs_map
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import fourfold
from fourfold.compiler.nodes import control_flow

B, H = 3, 4
WEIGHT = torch.nn.Parameter(torch.linspace(-1, 1, H * H, dtype=torch.float64).sin().reshape(H, H))
TORCHS = SimpleNamespace(
    cond=torch.cond, while_loop=while_loop, scan=scan, map=torchs_map, associative_scan=associative_scan
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain_cond(condition: Any, yes: Any, no: Any, operands: Any) -> Any:
    return (yes if condition else no)(*operands)


def plain_while(condition: Any, step: Any, carry: Any) -> Any:
    while condition(*carry):
        carry = step(*carry)
    return carry


def plain_scan(step: Any, carry: Tensor, xs: Tensor) -> Any:
    rows = []
    for x in xs:
        carry, y = step(carry, x)
        rows.append(y)
    return carry, torch.stack(rows)


def plain_associative(combine: Any, xs: Any, dim: int, combine_mode: str) -> Any:
    rows = [tuple(x[0] for x in xs)]
    for t in range(1, len(xs[0])):
        rows.append(combine(rows[-1], tuple(x[t] for x in xs)))
    return tuple(map(torch.stack, zip(*rows, strict=True)))


def plain_map(step: Any, xs: Tensor, *others: Tensor) -> Tensor:
    return torch.stack([step(x, *others) for x in xs])


PLAIN = SimpleNamespace(
    cond=plain_cond, while_loop=plain_while, scan=plain_scan, map=plain_map, associative_scan=plain_associative
)
Operators = SimpleNamespace


def branches(use: Operators, h: Tensor, x: Tensor) -> Tensor:
    return use.cond(x.sum() > 0, lambda h, x: torch.tanh(h @ WEIGHT + x) * 2, lambda h, x: h.cos() * x.exp(), (h, x))


def cell(use: Operators, h: Tensor, x: Tensor) -> Any:
    h = torch.tanh(h @ WEIGHT + x)
    return h, h * 2


def count() -> Tensor:
    return torch.zeros((), dtype=torch.int64)


def two_branches(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    return branches(use, branches(use, h, xs[0].sin()) * 0.5, -xs[1]).cos()


def branch_in_branch(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    inner = lambda h, x: branches(use, h, x).sin() + h  # noqa: E731
    return use.cond(xs.sum() > 100, lambda h, x: h * x, inner, (h, xs[0]))


def repeated(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    start = xs.sin().sum(0)
    k, h = use.while_loop(
        lambda k, h: k < 3, lambda k, h: (k + 1, torch.tanh(h @ WEIGHT) + h * 0.5), (count(), h + start)
    )
    return h.cos() + k


def repeated_twice(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    inner = lambda j, h: (j + 1, torch.tanh(h @ WEIGHT) + h * 0.5)  # noqa: E731

    def step(k: Tensor, h: Tensor) -> Any:
        return k + 1, use.while_loop(lambda j, h: j < 2, inner, (count(), h))[1].clone()

    return use.while_loop(lambda k, h: k < 2, step, (count(), h + xs[0]))[1]


def scan_of_branches(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    def step(h: Tensor, x: Tensor) -> Any:
        h = branches(use, h, x)
        return h, h * 2

    last, ys = use.scan(step, h, xs.sin())
    return last + ys.sum(0)


def scan_in_branch(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    scanned = lambda h, xs: use.scan(lambda h, x: cell(use, h, x), h, xs)[1].sum(0)  # noqa: E731
    return use.cond(h.sum() > -100, scanned, lambda h, xs: h * 2, (h, xs)).sin()


def scan_in_loop(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    def step(k: Tensor, h: Tensor) -> Any:
        return k + 1, use.scan(lambda h, x: cell(use, h, x), h, xs)[0]

    return use.while_loop(lambda k, h: k < 2, step, (count(), h))[1]


def scan_in_scan(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    def step(h: Tensor, x: Tensor) -> Any:
        last, ys = use.scan(lambda row, each: (row * 0.5 + each, row.sin()), h[0], x)
        return torch.tanh(h @ WEIGHT + x) + last, ys * 1.0

    last, ys = use.scan(step, h, xs)
    return last + ys.sum(0)


def scan_beside_branch(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    last, ys = use.scan(lambda h, x: cell(use, h, x), h, xs)
    return branches(use, last, ys[1]).sin()


def mapped(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    return use.map(lambda x, h: torch.tanh(x @ WEIGHT + h).sin() * 2, xs.sin(), h).sum(0)


def associated(use: Operators, h: Tensor, xs: Tensor) -> Tensor:
    gates = torch.sigmoid(xs @ WEIGHT)
    combine = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])  # noqa: E731
    return use.associative_scan(combine, (gates, xs), 0, combine_mode="generic")[1].sum(0) + h


CASES: dict[Callable[..., Tensor], set[str]] = {  # with the operators whose bodies are compiled
    two_branches: {"cond"},
    branch_in_branch: {"cond"},
    repeated: {"while_loop"},
    repeated_twice: {"while_loop"},
    scan_of_branches: {"scan", "cond"},
    scan_in_branch: {"cond"},
    scan_in_loop: {"while_loop"},
    scan_in_scan: {"scan"},
    scan_beside_branch: {"cond"},
    mapped: {"map_impl"},
    associated: set(),
}
UNTRAINED = (scan_in_scan, repeated_twice, scan_in_loop)  # torch has no gradient, or the same as for one loop


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the operators that run with compiled bodies."""
    names: set[str] = set()

    def counted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            names.add(name)
            return run(*given)

        return call

    for operator, run in list(control_flow.RUN.items()):
        monkeypatch.setitem(control_flow.RUN, operator, counted(str(operator), run))
    return names


def inputs(steps: int, trains: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(steps)
    return tuple(torch.randn(shape, dtype=torch.float64, requires_grad=trains) for shape in ((B, H), (steps, B, H)))


@pytest.mark.filterwarnings("ignore:fourfold could not compute torch's scan:RuntimeWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_values(case: Callable[..., Tensor], ran: set[str]) -> None:
    compiled = torch.compile(lambda *given: case(TORCHS, *given), backend="fourfold", fullgraph=True)
    with torch.no_grad():
        for _ in range(3):  # the third call is steady
            given = inputs(5)
            torch.testing.assert_close(compiled(*given), case(PLAIN, *given), rtol=1e-10, atol=1e-12)
    assert ran == CASES[case]


@pytest.mark.filterwarnings("ignore:fourfold could not compute torch's scan:RuntimeWarning")
@pytest.mark.parametrize("case", [case for case in CASES if case not in UNTRAINED], ids=lambda case: case.__name__)
def test_gradients(case: Callable[..., Tensor]) -> None:
    compiled = torch.compile(lambda *given: case(TORCHS, *given), backend="fourfold", fullgraph=True)
    for steps in (3, 5) if case in (two_branches, repeated) else (3,):
        outcomes = []
        for function in (compiled, lambda *given: case(PLAIN, *given)):
            given = inputs(steps, trains=True)
            torch._dynamo.maybe_mark_dynamic(given[1], 0)
            result = function(*given)
            total = (result * torch.linspace(-1, 1, H)).sum()
            outcomes.append([result.detach(), *torch.autograd.grad(total, (*given, WEIGHT), materialize_grads=True)])
        torch.testing.assert_close(*outcomes, rtol=1e-10, atol=1e-12)


def test_a_loop_of_no_steps() -> None:
    def f(limit: Tensor, x: Tensor) -> Tensor:
        return while_loop(lambda k, x: k < limit, lambda k, x: (k + 1, x.sin()), (count(), x))[1]

    compiled, x = torch.compile(f, backend="fourfold"), torch.randn(4)
    with torch.no_grad():
        found = compiled(torch.tensor(0), x)
    assert torch.equal(found, x) and found.data_ptr() != x.data_ptr()
    x.requires_grad_()
    torch.testing.assert_close(compiled(torch.tensor(1), x), x.sin())
    with pytest.raises(ValueError, match="while_loop: expected at least one step where a gradient is wanted"):
        compiled(torch.tensor(0), x)  # torch's gradient would be that of one step


def test_results_share_no_memory_with_operands() -> None:
    def f(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (x.clone(), x.clone()), lambda x: (x * 2, x.sin()), (x,))

    x = torch.ones(B, H)
    with torch.no_grad():
        first, second = torch.compile(f, backend="fourfold")(x)
    assert len({each.data_ptr() for each in (x, first, second)}) == 3


def test_torch_runs_a_body_that_draws_random_numbers() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: torch.nn.functional.dropout(x) * 2, lambda x: x.sin(), (x,))

    with torch.no_grad():
        (graph,) = fourfold.explain(f, torch.ones(40, 40)).graphs
        found = torch.compile(f, backend="fourfold")(torch.ones(40, 40))
    reasons = {one.operator: one.reason for one in graph.forward.outside}
    assert reasons["cond"] == "a body that draws random numbers, writes to a tensor or has another effect"
    assert set(found.unique().tolist()) == {0, 4}


def test_explain_shows_the_programs_of_bodies() -> None:
    h, xs = inputs(5)
    with torch.no_grad():
        (graph,) = fourfold.explain(lambda h, xs: branches(TORCHS, h, xs[0]), h, xs).graphs
    forward = graph.forward
    assert {one.name: one.operators for one in forward.programs if "cond" in one.name} == {
        "cond_1_0_program_0": ("add", "tanh", "mul"),
        "cond_1_1_program_0": ("cos", "exp", "mul"),
    }
    assert {one.operator: one.reason.partition(";")[0] for one in forward.outside}["cond"] == "control flow"
    assert graph.runtime == "" and forward.operators == forward.fused + forward.left


@pytest.mark.parametrize("transform", ["vmap of cond", "grad of associative_scan"])
def test_transforms(transform: str) -> None:
    h, xs = inputs(5)
    weights = torch.linspace(-1, 1, H)

    def f(use: Operators) -> Any:
        if transform == "vmap of cond":
            return torch.func.vmap(lambda x: branches(use, h, x))(xs)
        return torch.func.grad(lambda xs: (associated(use, h, xs) * weights).sum())(xs[:2])

    expected = torch.stack([branches(PLAIN, h, x) for x in xs]) if transform == "vmap of cond" else f(PLAIN)
    found = torch.compile(lambda: f(TORCHS), backend="fourfold")()
    torch.testing.assert_close(found, expected)


def test_the_default_backend_and_no_precompilation() -> None:
    """PyTorch's ways that came with 2.13."""
    if not hasattr(torch.compiler, "set_default_backend"):
        pytest.skip("this PyTorch has neither")
    torch.compiler.set_default_backend("fourfold")
    try:
        x = torch.randn(4)
        torch.testing.assert_close(torch.compile(lambda x: x.sin() * 2)(x), x.sin() * 2)
    finally:
        torch.compiler.set_default_backend(None)
    compiled = torch.compile(lambda x: x.sin() * 2, backend="fourfold", fullgraph=True)
    with pytest.raises(RuntimeError, match="expected no aot_compile or precompilation.*call fourfold.save"):
        compiled.aot_compile(((x,), {}))
