"""What fourfold.scan rejects, and steps that run in Python."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.scanning import function
from scans import B, H, T, loop, outcome

pytestmark = pytest.mark.usefixtures("strict")


def of_another_shape(h: Tensor, x: Tensor) -> Any:
    wide = torch.cat([h, x], 1)
    return wide, x


def test_errors_name_the_line() -> None:
    init, xs = torch.zeros(B, H), torch.randn(T, B, H)
    with pytest.raises(TypeError, match="^scan: expected dim to be an integer, but got 'time'$"):
        fourfold.scan(lambda h, x: (h, x), init, xs, dim="time")
    with pytest.raises(
        ValueError,
        match=r"leaf 0 of the carry as float32 of shape \(3, 5\).*\(3, 10\) at .*py:\d+, 'wide = torch.cat\(.*\)'$",
    ):
        fourfold.scan(of_another_shape, init, xs)
    with pytest.raises(
        ValueError, match=r"of shape \(\), .* but got .*; to start with zeros, pass torch.zeros\(\(3, 5\)\)"
    ):
        fourfold.scan(lambda h, x: (h + x, x), 0.0, xs)
    with pytest.raises(ValueError, match="leaf 0 of the carry as float32.*float64"):
        fourfold.scan(lambda h, x: (h.double(), x), init, xs)
    with pytest.raises(TypeError, match=r"return a carry like init, tensor, but got \(tensor, tensor\)$"):
        fourfold.scan(lambda h, x: ((h, h), x), init, xs)
    with pytest.raises(TypeError, match=r"return a carry like init, \[tensor, tensor\], but got \[tensor\]$"):
        fourfold.scan(lambda pair, x: ([pair[0]], x), [init, init], xs)

    def branches(h: Tensor, x: Tensor) -> Any:
        if h.sum() > 0:
            h = h + 1
        return h, x

    with pytest.raises(RuntimeError, match=r"can't be traced at .*test_scan_errors.py:\d+, .if h.sum\(\) > 0:"):
        fourfold.scan(branches, init, xs)


HERE = rf" at {re.escape(__file__)}:\d+, "


def on_lines(h: Tensor, x: Tensor) -> Any:
    h = torch.lerp(
        h,
        x,
        0.5,
    )
    return h, x


CELL = torch.nn.GRUCell(H, H)


@pytest.mark.parametrize(
    ("step", "shape", "message"),
    [
        # It hands its input on, so no line of its own computes it.
        (lambda h, x: (x, h), (T, B, H + 1), r"got float32 of shape \(3, 6\) at .*'\(lambda h, x: \(x, h\).*'$"),
        (lambda h, x: (CELL(x, h), h), (T, B + 1, H), r"can't be traced at .*'\(lambda h, x: \(CELL.*batch size"),
        (lambda h, x: (h.unheard_of, h), (T, B, H), "can't be traced at .*'.*unheard_of, h.*': .*unheard_of"),
        (lambda h, x: (h[:, 99], h), (T, B, H), r"can't be traced at .*'.*99.*': index 99 is out of bounds [\w ]+$"),
        (on_lines, (T, B + 1, H), r"'h = torch.lerp\(\.\.\.\)': RuntimeError: .*[^.]$"),
    ],
)
def test_lines_are_the_steps_own(step: Callable[..., Any], shape: tuple[int, ...], message: str) -> None:
    """Not one of this package or of torch."""
    with pytest.raises((RuntimeError, ValueError), match=f"^scan: .*{message}") as raised:
        fourfold.scan(step, torch.zeros(B, H), torch.randn(shape))
    assert len(re.findall(HERE, str(raised.value))) == 1 and "\n" not in str(raised.value)


@pytest.mark.parametrize("step", [lambda h, x: (CELL(x, h), h), lambda h, x: (h + x, h), lambda h, x: (x, h)])
def test_a_batch_first_sequence_has_its_remedy(step: Callable[..., Any]) -> None:
    message = f"; xs has {B} steps, and the carry as many rows: if xs is batch-first, pass dim=1$"
    init, xs = torch.zeros(B, H), torch.randn(B, T, H)
    with pytest.raises((RuntimeError, ValueError), match=message):
        fourfold.scan(step, init, xs)
    fourfold.scan(step, init, xs, dim=1)


def test_the_structure_of_a_carry_is_shown_the_same_in_python() -> None:
    xs = torch.randn(T, H)
    with pytest.raises(TypeError, match=r"return a carry like init, tensor, but got \(tensor, tensor\)$"):
        torch.func.vmap(lambda h: fourfold.scan(lambda h, x: ((h, h), x), h, xs))(torch.zeros(B, H))


def test_a_symbolic_size_is_its_number() -> None:
    def adds(h: Tensor, x: Tensor) -> Any:
        return h + x, x

    fourfold.scan(adds, torch.zeros(B), torch.randn(T, B))
    with pytest.raises(RuntimeError, match=rf"tensor a \({H}\) must match the size of tensor b \({B}\)"):
        fourfold.scan(adds, torch.zeros(H), torch.randn(T, B))


def test_a_step_that_prints_has_its_remedy() -> None:
    def prints(h: Tensor, x: Tensor) -> Any:
        print(h)
        return h + x, x

    with pytest.raises(
        RuntimeError, match=r"'print\(h\)': it runs once .*; return what you want to see as its result$"
    ):
        fourfold.scan(prints, torch.zeros(B), torch.randn(T, B))


def by_item(h: Tensor, x: Tensor) -> Any:
    return (h + 1 if x.sum().item() > 0 else h), x


def by_branch(h: Tensor, x: Tensor) -> Any:
    if x.sum() > 0:
        h = h + 1
    return h, x


def by_range(h: Tensor, x: Tensor) -> Any:
    for _ in range(int(x.sum())):
        h = h + 1
    return h, x


@pytest.mark.parametrize("step", [by_item, by_branch, by_range])
def test_control_flow_by_values_has_its_remedy(step: Callable[..., Any]) -> None:
    message = (
        r"can't be traced at .*test_scan_errors.py:\d+, '.*': its control flow or a size depends on a tensor's value; "
        "choose values with torch.where, or write a Python loop over the steps$"
    )
    with pytest.raises(RuntimeError, match=message):
        fourfold.scan(step, torch.zeros(B), torch.randn(T, B))


def test_a_carry_of_a_size_that_depends_on_data() -> None:
    with pytest.raises(
        function.RunsInPython, match=r"the size of leaf 0 of the new carry depends on data at .*:\d+, .*item"
    ):
        fourfold.scan(lambda h, x: (h[: int(x.sum().item())], h), torch.zeros(B), torch.randn(T, B))


def multiplied(h: Tensor, x: Tensor) -> Any:
    return h @ x, x


def unheard_of(h: Tensor, x: Tensor) -> Any:
    return h.unheard_of(x), x


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (multiplied, r"RuntimeError: .*expected tensor \[3\] and src \[4\]"),
        (unheard_of, "unheard_of"),
    ],
)
def test_errors_of_operators_have_their_reason(step: Callable[..., Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=rf"can't be traced at .*: .*{message}.*[^.]$"):
        fourfold.scan(step, torch.zeros(B), torch.randn(T, B + 1))


def test_a_list_is_a_tree() -> None:
    def step(h: Tensor, pair: Any) -> Any:
        a, b = pair
        return h + a * b, [h, a]

    init, xs = torch.zeros(B), [torch.randn(T, B), torch.randn(T, B)]
    torch.testing.assert_close(fourfold.scan(step, init, xs), loop(step, init, xs))


def test_a_list_of_the_steps_tensors_is_not_the_sequence() -> None:
    message = (
        r"'Tensor' and 'list'; xs is a list of 7 tensors, so x is a list of 7 slices; to scan over the list, pass "
        r"torch.stack\(xs\)$"
    )
    with pytest.raises(RuntimeError, match=message):
        fourfold.scan(lambda h, x: (h + x, h), torch.zeros(B), [torch.randn(B) for _ in range(T)])


def test_warnings_as_errors_leave_tensors_that_are_no_leaves_alone() -> None:
    """Dynamo reads their .grad."""
    weight = torch.randn(B, requires_grad=True)
    scaled = weight * 2
    init, xs = torch.zeros(B), torch.randn(T, B)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, ys = fourfold.scan(lambda h, x: (h * scaled + x, h), init, xs)
        ys.sum().backward()
    assert weight.grad is not None


def test_errors_of_the_graph_say_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("a reason")

    monkeypatch.setattr(function, "step_graphs_of", fails)
    with pytest.raises(RuntimeError, match="scan: the step can't be traced at .*: RuntimeError: a reason"):
        fourfold.scan(lambda h, x: (h + x, x), torch.zeros(B), torch.randn(T, B))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, torch.zeros(2), torch.zeros(3, 2)), "expected step to be callable"),
        ((lambda h, x: (h, x), torch.zeros(2), None), "at least one tensor"),
        ((lambda h, x: (h, x), torch.zeros(2), 3.0), "expected xs to be tensors"),
        ((lambda h, x: (h, x), torch.zeros(2), torch.zeros(3), 1), "with dimension 1"),
        (
            (lambda h, x: (h, x), torch.zeros(2), (torch.zeros(3), torch.zeros(4))),
            r"one size in dimension 0, but got \[3, 4\]",
        ),
        ((lambda h, x: (h, x), "a", torch.zeros(3)), "init to be tensors and numbers"),
        ((lambda h, x: (h, x), torch.zeros(2), torch.zeros(3), 0, False, 0), "checkpoint_every to be a positive"),
    ],
)
def test_arguments_that_do_not_fit(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        fourfold.scan(*given)


@pytest.mark.filterwarnings("ignore:fourfold could not compute scan")
@pytest.mark.filterwarnings("ignore:fourfold could not compute the scan of")
def test_sizes_that_depend_on_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may run in Python."""
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    init, xs = torch.zeros(()), torch.randn(T, B)
    for step in (
        lambda h, x: (h + x[x > 0].sum(), h),
        lambda h, x: (h + 1, x[x > 0].sum()),
        lambda h, x: (h + x.sum().item(), x * 2),
        lambda h, x: (h, torch.nonzero(x > 0).sum()),
    ):
        torch.testing.assert_close(fourfold.scan(step, init, xs), loop(step, init, xs))


def test_control_flow_of_torch_runs_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(h: Tensor, x: Tensor) -> Any:
        h = torch.cond(x.sum() > 0, lambda each: each.sin(), lambda each: each.cos(), (h,))
        return h + x, h

    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    init, xs = torch.randn(B), torch.randn(T, B)
    with pytest.warns(RuntimeWarning, match="cond can't be part of a loop"):
        found = fourfold.scan(step, init, xs)
    torch.testing.assert_close(found, loop(step, init, xs))


def strided(h: Tensor, x: Tensor) -> Any:
    found = x.clone().as_strided((2, 2), (1, 2))
    return h + found.sum(), found


def with_diagonal(h: Tensor, x: Tensor) -> Any:
    found = x.clone().fill_diagonal_(0.2)
    return h + found.sum(), found


@pytest.mark.parametrize("step", [strided, with_diagonal])
def test_views_by_address_run_in_python(monkeypatch: pytest.MonkeyPatch, step: Callable[..., Any]) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    init, xs = torch.zeros(()), torch.randn(T, B, B)
    with pytest.warns(RuntimeWarning, match="uses an offset into a tensor's memory"):
        found = outcome(fourfold.scan, step, init, xs, [])
    torch.testing.assert_close(found, outcome(loop, step, init, xs, []))


def covariance(carry: Tensor, x: Tensor) -> Any:
    """The covariance of a Kalman filter."""
    before = carry + torch.eye(H, dtype=carry.dtype)
    gain = torch.linalg.solve(before + torch.outer(x, x), before)
    root = torch.linalg.cholesky(before)
    return before - gain @ before, (gain.sum(0), torch.linalg.inv(root).diagonal())


def test_linear_algebra() -> None:
    init = torch.eye(H, dtype=torch.float64, requires_grad=True)
    xs = torch.randn(T, H, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(*(outcome(scan, covariance, init, xs, []) for scan in (fourfold.scan, loop)))


@pytest.mark.parametrize("grad", [False, True])
def test_errors_of_linear_algebra_name_the_step(grad: bool) -> None:
    xs = torch.eye(H).repeat(T, 1, 1)
    xs[3, 1] = 0
    init = torch.eye(H, requires_grad=grad)
    for step in (lambda carry, x: (carry * 0.5, torch.linalg.inv(x)), lambda c, x: (torch.linalg.inv(c @ x), c)):
        with pytest.raises(torch.linalg.LinAlgError, match=r"linalg.inv: \(Batch element 3\)"):
            fourfold.scan(step, init, xs)


@pytest.mark.parametrize(("count", "got"), [(1, "Tensor"), (3, "tuple of 3")])
@pytest.mark.parametrize("transform", [False, True])
def test_a_step_returns_a_pair(count: int, got: str, transform: bool) -> None:
    def run(h: Tensor, xs: Tensor) -> Tensor:
        return fourfold.scan(lambda h, x: (h, h, x) if count == 3 else h + x, h, xs)[0]

    h, xs = torch.zeros(3), torch.randn(5, 3)
    message = f"^scan: expected the step to return a pair, the new carry and the step's result, but got {got}$"
    with pytest.raises(TypeError, match=message):
        torch.func.vmap(run)(h[None], xs[None]) if transform else run(h, xs)
