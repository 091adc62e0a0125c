"""Scans in compiled functions, and torch's own scan operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan as torchs_scan

import fourfold
from fourfold.scanning import capture, function, record
from fourfold.scanning.step_graphs import Refused
from scans import loop as loop_along

B, H = 3, 4


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    torch._dynamo.reset()
    yield
    capture._compiled.clear()
    torch._dynamo.reset()


class Model(nn.Module):
    """Operators before, between and after two recurrences, the second of which reads the first one's results."""

    def __init__(self, scan: Any) -> None:
        super().__init__()
        self.scan = scan
        self.cell = nn.LSTMCell(H, H, dtype=torch.float64)
        self.weight = nn.Parameter(torch.randn(H, H, dtype=torch.float64))

    def forward(self, xs: Tensor, h: Tensor) -> Any:
        def step(carry: Any, x: Tensor) -> Any:
            h, c = self.cell(x, carry)
            return (h, c), (h.clone(), x.sum(-1))

        def second(carry: Tensor, x: Any) -> Any:
            carry = torch.tanh(carry @ self.weight + x[0]) + x[1].unsqueeze(-1)
            return carry, carry.clone()

        (last, c), (ys, sums) = self.scan(step, (h, h + 1), xs * 2, reverse=True)
        halves = ys.relu().split(2, -1)
        carry, zs = self.scan(second, last * c, (torch.cat(halves, -1), sums.sin()))
        return zs.sum(0) + carry, sums, halves[1]


def loop(step: Any, carry: Any, xs: Any, dim: int = 0, reverse: bool = False) -> Any:
    leaves, spec = torch.utils._pytree.tree_flatten(xs)
    rows = []
    for t in reversed(range(len(leaves[0]))) if reverse else range(len(leaves[0])):
        carry, y = step(carry, torch.utils._pytree.tree_unflatten([leaf[t] for leaf in leaves], spec))
        rows.append(y)
    rows.reverse() if reverse else None
    return carry, torch.utils._pytree.tree_map(lambda *each: torch.stack(each), *rows)


def outcome(model: Any, parameters: Any, steps: int, is_dynamic: bool = False) -> list[Tensor]:
    torch.manual_seed(steps)
    xs = torch.randn(steps, B, H, dtype=torch.float64, requires_grad=True)
    if is_dynamic:
        torch._dynamo.mark_dynamic(xs, 0)
    results = model(xs, torch.randn(B, H, dtype=torch.float64))
    total = sum(each.sin().sum() for each in results)
    return [*(each.detach() for each in results), *torch.autograd.grad(total, (xs, *parameters))]


def check(scan: Any, is_dynamic: bool = True, **settings: Any) -> set[str]:
    """Compares values and gradients for several lengths. Returns the names of the events at the last one. is_dynamic:
    whether Dynamo knows from the start that there are several, or finds it out."""
    torch.manual_seed(0)
    model = Model(scan)
    compiled = torch.compile(model, **settings)
    for steps in (6, 9, 12)[is_dynamic:]:
        with torch.profiler.profile() if steps == 12 else nullcontext() as profile:
            found = outcome(compiled, list(model.parameters()), steps, is_dynamic)
        model.scan = loop
        expected = outcome(model, list(model.parameters()), steps)
        model.scan = scan
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    return {event.key for event in profile.key_averages()}


def test_torchs_operator_runs_as_one_loop() -> None:
    names = check(torchs_scan, is_dynamic=False, backend="fourfold", fullgraph=True)
    assert "fourfold_loop_in_stages" in names and not {"aten::stack", "aten::flip"} & names


def test_torchs_operator_without_gradients() -> None:
    model = Model(torchs_scan)
    xs, h = torch.randn(5, B, H, dtype=torch.float64), torch.randn(B, H, dtype=torch.float64)
    with torch.no_grad():
        found = torch.compile(model, backend="fourfold")(xs, h)
        model.scan = loop
        torch.testing.assert_close(found, model(xs, h), rtol=1e-10, atol=1e-12)


def test_scan_is_part_of_a_whole_graph() -> None:
    assert "fourfold_loop_in_stages" in check(fourfold.scan, backend="fourfold", fullgraph=True)


@pytest.mark.parametrize("dim", [1, 2, -1])  # 0 in the other tests
def test_a_whole_graph_scans_any_dimension_and_layout(dim: int) -> None:
    def step(carry: Tensor, x: Tensor) -> Any:
        return (carry.T * 0.5 + x.T).T, (carry * x, x[0])

    def f(init: Tensor, xs: Tensor) -> Any:
        return fourfold.scan(step, init, xs, dim=dim)

    xs = torch.randn(3, 4, 5, dtype=torch.float64)
    init = torch.randn_like(xs.select(dim, 0)).T.contiguous().T
    found = torch.compile(f, backend="fourfold", fullgraph=True)(init, xs)
    torch.testing.assert_close(found, loop_along(step, init, xs, dim))


def test_a_whole_graph_copies_nothing_in_its_loop() -> None:
    """Copies of what the step takes and returns, which torch's operator needs, would keep the loop from one nest."""

    def f(init: Any, xs: Tensor) -> Any:
        return fourfold.scan(lambda carry, x: ((x, carry[0] * 0.5 + x), carry[1].sin()), init, xs)

    with torch.no_grad(), record.recording() as found:
        torch.compile(f, backend="fourfold", fullgraph=True)((torch.zeros(B), torch.zeros(B)), torch.randn(5, B))
    (whole, _) = found[0].recurrence.wholes["inference", False]
    assert not any("clone" in str(node.target) for node in whole.loop.body.module.graph.nodes)


def scans(init: Tensor, xs: Tensor) -> Any:
    scan = fourfold.scan if torch.compiler.is_compiling() else loop
    return scan(lambda carry, x: ((carry * x).tanh(), carry * 2), init, xs)


def changes_what_is_computed_from_results(init: Tensor, xs: Tensor) -> Tensor:
    last, ys = scans(init, xs)
    doubled = ys * 2
    doubled.add_(last)
    return doubled * doubled


def changes_results(init: Tensor, xs: Tensor) -> Tensor:
    last, ys = scans(init, xs.sin())
    ys.mul_(2)
    return ys * last


def changes_what_it_scans(init: Tensor, xs: Tensor) -> Tensor:
    xs = xs * 2
    xs[0] = 0
    last, ys = scans(init, xs)
    return last + ys.sum(0)


def scans_without_gradients(init: Tensor, xs: Tensor) -> Tensor:
    with torch.no_grad():
        last, ys = scans(init, xs)
    again, those = scans(init, xs)
    return (last * again + ys * those).sum(0)


def scans_behind_autocast(init: Tensor, xs: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = xs @ xs.mT
    last, ys = scans(init, xs)
    return last + (product.float() @ ys).sum(0)


def test_a_whole_graph_in_inference_mode() -> None:
    def f(init: Tensor, xs: Tensor) -> Tensor:
        with torch.inference_mode():
            last, ys = scans(init, xs)
            return last + ys.sum(0)

    given = torch.randn(B, H), torch.randn(6, B, H)
    torch.testing.assert_close(torch.compile(f, backend="fourfold", fullgraph=True)(*given), f(*given))


@pytest.mark.parametrize(
    "function",
    [
        changes_what_is_computed_from_results,
        changes_results,
        changes_what_it_scans,
        scans_without_gradients,
        scans_behind_autocast,
    ],
)
def test_whole_graphs_with_changes_in_place_and_modes(function: Callable[..., Tensor]) -> None:
    """They aren't split at a scan: later operators may change what its backward reads."""
    outcomes = []
    for each in (torch.compile(function, backend="fourfold", fullgraph=True), function):
        torch.manual_seed(0)
        given = torch.randn(B, H, requires_grad=True), torch.randn(6, B, H, requires_grad=True)
        result = each(*given)
        outcomes.append([result.detach(), *torch.autograd.grad((result * torch.linspace(-1, 1, H)).sum(), given)])
    torch.testing.assert_close(*outcomes)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # from Dynamo, after a break
def test_graphs_of_any_backend_break_at_a_scan() -> None:
    for backend in ("fourfold", "aot_eager", "eager"):  # they share the captured steps
        assert "fourfold_loop_in_stages" in check(fourfold.scan, backend=backend), backend


@pytest.mark.parametrize("settings", [{"backend": "eager"}, {"backend": "fourfold", "checkpoint_every": 2}], ids=str)
def test_a_whole_graph_that_a_scan_cannot_be_part_of_says_what_to_change(settings: dict[str, Any]) -> None:
    every = settings.pop("checkpoint_every", None)

    def f(xs: Tensor) -> Any:
        return fourfold.scan(lambda carry, x: (carry + x, carry), xs[0], xs, checkpoint_every=every)

    with pytest.raises(torch._dynamo.exc.Unsupported, match='needs backend="fourfold" and no checkpoint_every'):
        torch.compile(f, fullgraph=True, **settings)(torch.randn(4, B))


def test_a_step_of_torchs_operator_that_cannot_be_one_loop_runs_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any) -> Any:
        raise Refused("a reason")

    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    monkeypatch.setattr(function, "step_graphs_of", refused)

    def f(xs: Tensor) -> Any:
        return torchs_scan(lambda carry, x: (carry + x, carry * 2), xs[0], xs)

    xs = torch.randn(4, B, B, dtype=torch.float64)
    with pytest.warns(RuntimeWarning, match="torch's scan.*test_scan_compiled.py.*a reason"):
        found = torch.compile(f, backend="fourfold")(xs)
    torch.testing.assert_close(found, f(xs))


def test_a_whole_graph_has_none_where_the_step_has_it() -> None:
    def step(carry: Any, x: Any) -> Any:
        (a, nothing, b), (u, none) = carry, x
        assert nothing is None and none is None
        return (a * 0.5 + u, None, b + 1), (None, {"product": a * u, "none": None})

    def f(init: Tensor, xs: Tensor) -> Any:
        return fourfold.scan(step, (init, None, init * 2), (xs, None), dim=1)

    given = torch.randn(3, 4), torch.randn(3, 5, 4)
    expected = f(*given)
    assert expected[1][0] is None and expected[0][1] is None
    program = torch.export.export(Function(f), given)
    for found in (torch.compile(f, backend="fourfold", fullgraph=True)(*given), program.module()(*given)):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("returned", ["no pair", "another structure"])
def test_a_whole_graph_refuses_what_the_step_must_not_return(returned: str) -> None:
    step = {"no pair": lambda h, x: h[0] + x, "another structure": lambda h, x: ([h[0] + x, h[1]], x)}[returned]

    def f(init: Tensor, xs: Tensor) -> Any:
        return fourfold.scan(step, (init, init), xs)

    given = torch.zeros(4), torch.randn(5, 4)
    reason = "scan: expected the step to return a (pair|carry like init)"
    with pytest.raises(TypeError, match=reason):
        f(*given)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match=reason):
        torch.compile(f, backend="fourfold", fullgraph=True)(*given)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Any:
        return self.function(*given)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (v,) = ctx.saved_tensors
        return grad / (1 + v.abs()) ** 2


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from torch.cond in eager mode
@pytest.mark.parametrize("where", ["graph", "branch", "step with a branch"])
def test_a_function_of_a_carry_that_weights_reach_later(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first carry needs no gradient, so that Dynamo could trace the function's forward without its derivative."""
    weight, xs = torch.randn(B, H, requires_grad=True), torch.randn(6, H, B)
    if where == "step with a branch":
        monkeypatch.delenv("FOURFOLD_STRICT")  # PyTorch differentiates the scan

    def step(v: Tensor, x: Tensor) -> Any:
        spike = Spike.apply(v - 0.5)
        v = 0.9 * v + x @ weight - spike
        if where == "step with a branch":
            v = torch.cond(x.sum() > 0, lambda v: v * 0.5, lambda v: v.sin(), (v,))
        return v, spike

    def f(scan: Any, xs: Tensor) -> Any:
        if where == "branch":
            zeros, ones = torch.zeros(H, H), torch.ones(H, H)
            return torch.cond(xs.sum() < 1e9, lambda x: scan(step, zeros, x), lambda x: scan(step, ones, x), (xs,))
        return scan(step, torch.zeros(H, H), xs)

    def gradient(f: Any, scan: Any) -> Tensor:
        v, spikes = f(scan, xs)
        return torch.autograd.grad(v.square().sum() + spikes.sum(), weight)[0]

    with pytest.warns(RuntimeWarning, match="part of a loop") if where.startswith("step") else nullcontext():
        got = gradient(torch.compile(f, backend="fourfold", fullgraph=True), fourfold.scan)
    torch.testing.assert_close(got, gradient(f, loop), rtol=1e-5, atol=1e-5)
