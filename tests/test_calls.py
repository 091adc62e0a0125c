"""A call of a function is the operator's call to profilers, tracers and modes, on both paths, C++ and Python; and both
paths give the same results."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import fourfold
import spared
from fourfold import _native
from fourfold.operators._operator import declared
from machine import output_of
from op_cases import Case, case_id, differentiable, flatten
from test_gradients import FEWEST, expect_same, weights_for

EACH = pytest.mark.parametrize("case", FEWEST, ids=case_id)
PATHS = pytest.mark.parametrize("path", ["call", "call_by_python"])


def on(case: Case, path: str) -> Any:
    """The operator's path, as a function of the case's arguments."""
    operator = declared[case.op]
    return lambda *args: getattr(operator, path)(*case.by_schema(args))


def names_of(events: Any) -> list[str]:
    return [e.name for e in events if e.name.startswith("fourfold::")]


def test_this_torch_has_its_own_gradients() -> None:
    """A build has gradients for the torch that it was built with, unless FOURFOLD_GRADIENTS disables them."""
    built = fourfold._C.build_info()["torch_version"]
    if torch.__version__.split(".")[:2] == built.split(".")[:2] and not os.environ.get("FOURFOLD_GRADIENTS"):
        assert _native.path == f"C++, compiled for torch {'.'.join(built.split('.')[:2])}"
        assert type(declared["softshrink"].call).__name__ == "Call"


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # torch 2.10's own
@EACH
@PATHS
def test_the_profiler_names_each_operator_once(case: Case, path: str) -> None:
    args, leaves = differentiable(case.arguments(torch.float32))
    function = on(case, path)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        outputs = flatten(function(*args))
    # Python's kernel for the Autograd key calls the operator once more, below it.
    times = 1 if _native.module is not None else 2
    assert names_of(profiled.events()) == [f"fourfold::{case.op}"] * times
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        torch.autograd.grad(sum(o.sum() for o in outputs), leaves)
    assert set(names_of(profiled.events())) == (
        {f"fourfold::{case.op}_backward"} if declared[case.op].backward else set()
    )


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), keywords: Any = None) -> Any:
        if function.namespace == "fourfold":
            self.calls.append((function, args))
        return function(*args, **(keywords or {}))


class Called(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), keywords: Any = None) -> Any:
        self.functions.append(function)
        return function(*args, **(keywords or {}))


@EACH
@PATHS
def test_modes_see_the_operator(case: Case, path: str) -> None:
    args, function = case.arguments(torch.float32), on(case, path)
    expected = flatten(function(*args))
    with Dispatched() as dispatched:
        expect_same(flatten(function(*args)), expected)
    assert [f for f, _ in dispatched.calls] == [declared[case.op].op]
    with Called() as called:
        expect_same(flatten(function(*args)), expected)
    assert declared[case.op].op in called.functions


@pytest.mark.parametrize("case", [c for c in FEWEST if declared[c.op].kept], ids=case_id)
@PATHS
def test_a_call_keeps_what_a_backward_will_need(case: Case, path: str) -> None:
    operator, args = declared[case.op], case.arguments(torch.float32)

    def asked_for(arguments: tuple) -> bool:
        with Dispatched() as dispatched:
            on(case, path)(*arguments)
        ((_, given),) = dispatched.calls
        return operator.schema.named(given).save_for_backward

    assert not asked_for(args)
    needing, _ = differentiable(args)
    assert asked_for(needing)
    with torch.no_grad():
        assert not asked_for(needing)


@PATHS
def test_a_network_keeps_bits_where_only_its_input_needs_a_gradient(path: str) -> None:
    operator, x = declared["mlp_layers"], torch.randn(3, 4)
    weights, biases = [torch.randn(4, 4) for _ in range(3)], [None] * 3
    for of_x, of_weights in ((True, False), (True, True), (False, True)):
        leaves = [w.clone().requires_grad_(of_weights) for w in weights]
        with Dispatched() as dispatched:
            getattr(operator, path)(x.clone().requires_grad_(of_x), leaves, biases, "relu")
        assert operator.schema.named(dispatched.calls[0][1]).need_weights == of_weights


class Tagged(Tensor):
    seen: list = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), keywords: Any = None) -> Any:
        cls.seen.append(function)
        return super().__torch_function__(function, types, args, keywords or {})


@EACH
@PATHS
def test_subclasses_are_asked(case: Case, path: str) -> None:
    args, function = case.arguments(torch.float32), on(case, path)
    expected = flatten(function(*args))
    Tagged.seen.clear()
    results = flatten(function(args[0].as_subclass(Tagged), *args[1:]))
    assert all(type(r) is Tagged for r in results) and declared[case.op].op in Tagged.seen
    expect_same([r.as_subclass(Tensor) for r in results], expected)

    floating = [isinstance(a, Tensor) and a.is_floating_point() for a in args]
    both = tuple(TwoTensor(a, 2 * a) if f else a for a, f in zip(args, floating, strict=True))
    twice = tuple(2 * a if f else a for a, f in zip(args, floating, strict=True))
    results = flatten(function(*both))
    assert all(type(r) is TwoTensor for r in results)
    expect_same([r.a for r in results], expected)
    expect_same([r.b for r in results], flatten(function(*twice)))


@EACH
@PATHS
def test_functorch_transforms_the_call(case: Case, path: str) -> None:
    """Under grad's wrapper no tensor requires a gradient, and under vmap's each has one example's shape."""
    args, function = case.arguments(torch.float64), on(case, path)

    def loss(x: Tensor) -> Tensor:
        outputs = flatten(function(x, *args[1:]))
        return sum((o * w).sum() for o, w in zip(outputs, weights_for(outputs), strict=True))

    leaf = args[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    expect_same([torch.func.grad(loss)(args[0])], [expected])
    stacked = torch.stack([args[0], 2 * args[0]]).requires_grad_()
    mapped, alone = torch.vmap(loss)(stacked), torch.stack([loss(x) for x in stacked])
    expect_same([mapped], [alone])
    # A mapped tensor doesn't report that it requires a gradient, but its call has to save what the backward reads.
    expect_same(list(torch.autograd.grad(mapped.sum(), stacked)), list(torch.autograd.grad(alone.sum(), stacked)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("case", [c for c in FEWEST if c.op not in ("mlp_layers", "axpby")], ids=case_id)
@PATHS
def test_a_tracer_records_the_operator(case: Case, path: str) -> None:
    args, function = case.arguments(torch.float32), on(case, path)
    traced = torch.jit.trace(lambda x: flatten(function(x, *args[1:]))[0], (args[0],), check_trace=False)
    assert f"fourfold::{case.op}" in str(traced.graph)


@pytest.mark.parametrize("case", [c for c in FEWEST if declared[c.op].casts], ids=case_id)
@PATHS
def test_autocast_casts_the_call(case: Case, path: str) -> None:
    args = case.arguments(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(o.dtype == torch.bfloat16 for o in flatten(on(case, path)(*args)))


def error_of(function: Any, args: tuple) -> Exception:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as raised:
        function(*args)
    return raised.value


@EACH
def test_both_paths_refuse_alike(case: Case) -> None:
    args = case.arguments(torch.float32)
    for k, a in enumerate(args):
        wrong = [None if k == 0 else "text", 1j, [a]]
        wrong += [a.new_zeros(2, 3, 5, 7), a.to("meta")] if isinstance(a, Tensor) else []
        for value in wrong:
            given = (*args[:k], value, *args[k + 1 :])
            try:
                case.by_schema(given)
            except (TypeError, ValueError):
                continue  # where the table itself has to unflatten a list
            try:
                on(case, "call_by_python")(*given)
            except (TypeError, ValueError, RuntimeError) as expected:
                found = error_of(on(case, "call"), given)
                assert (type(found), str(found)) == (type(expected), str(expected))


def test_numbers_that_are_no_floats() -> None:
    x = torch.randn(3)
    for number in (1, True, 0.5):
        assert torch.equal(fourfold.softshrink(x, number), torch.nn.functional.softshrink(x, number))
    with pytest.raises(TypeError, match="softshrink: expected lambd to be a real number, but got Tensor"):
        fourfold.softshrink(x, torch.tensor(0.5))
    with pytest.raises((RuntimeError, OverflowError, ValueError)):
        fourfold.softshrink(x, 10**400)


def tensors_alive() -> int:
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


@EACH
def test_a_graph_keeps_nothing_alive(case: Case) -> None:
    """A call and its backward leave no reference cycle, and a graph without references frees what it saved."""
    spared.spare_the_collector()  # excludes existing objects from the count
    gc.disable()
    try:
        for _ in range(2):
            args, leaves = differentiable(case.arguments(torch.float32))
            outputs = flatten(on(case, "call")(*args))
            torch.autograd.grad(sum(o.sum() for o in outputs), leaves)
            del args, leaves, outputs
        before = tensors_alive()
        args, leaves = differentiable(case.arguments(torch.float32))
        outputs = flatten(on(case, "call")(*args))
        del args, leaves, outputs
        assert tensors_alive() == before
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@EACH
def test_anomaly_mode_shows_the_forward(case: Case) -> None:
    args, leaves = differentiable(case.arguments(torch.float64))
    with pytest.warns(UserWarning, match="Error detected in .*"), torch.autograd.detect_anomaly(check_nan=True):
        outputs = flatten(case.function(*args))
        with pytest.raises(RuntimeError, match="returned nan values"):
            torch.autograd.grad(outputs[0], leaves, torch.full_like(outputs[0], torch.nan))


def test_a_backward_twice_is_refused_as_torch_refuses_it() -> None:
    x = torch.randn(5, requires_grad=True)
    y = fourfold.softshrink(x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.backward()


def test_changing_what_a_backward_reads_is_refused() -> None:
    x = torch.randn(5, requires_grad=True)
    z = x * 1
    y = fourfold.softshrink(z)
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# Tests for the other path: every case of the table, and every way to compute a gradient. Where derivatives are computed
# numerically, only through the function, not through the operator.
OTHER_PATH = {
    "test_calls.py": "chosen_path",
    "test_gradients.py": "not autograd and not any_layout and not shifted and not every_element and not captured "
    "and not (test_gradcheck and raw)",
    "test_batched_gradients.py": "not the_operator",
    "test_in_place.py": "test_operator and relu",
    "test_compile.py": "autocast or export",
    "test_errors.py": "refuse and not compiled",
}


@pytest.mark.slow
@pytest.mark.skipif(_native.module is None, reason="this is the other path")
def test_the_path_in_python() -> None:
    """Without gradients compiled for this torch, Python implements the same rule. In one process, which takes longer to
    start than most of these tests."""
    chosen = " or ".join(f"({file} and ({tests}))" for file, tests in OTHER_PATH.items())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *OTHER_PATH]
    here = Path(__file__).parent
    said = output_of(*command, env=os.environ | {"FOURFOLD_GRADIENTS": "python"}, cwd=here)
    assert " passed" in said


def test_the_chosen_path_is_taken() -> None:
    if os.environ.get("FOURFOLD_GRADIENTS") == "python":
        assert _native.path == "Python (FOURFOLD_GRADIENTS=python)"
        assert type(declared["softshrink"].call).__name__ == "method"


def test_an_unknown_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_GRADIENTS", "fast")
    with pytest.raises(ImportError, match="FOURFOLD_GRADIENTS is fast; set it to python, or unset it"):
        _native._load()
