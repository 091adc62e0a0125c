"""torch.compile(backend="fourfold") as its users meet it, against eager."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from operator import attrgetter

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

import fourfold
from compiled import CASES, Case, assert_same, compiled, draw, programs_of, results_of
from fourfold.compiler import failures, lowering, runtime
from fourfold.compiler.backend import Compilation, backend
from fourfold.compiler.calling import Program
from fourfold.compiler.fusion import Fusion
from fourfold.compiler.record import Record
from machine import FORK, ROOT

pytestmark = [
    pytest.mark.filterwarnings("ignore:Profiler clears events at the end of each cycle"),
    # torch's own, where it captures what follows a graph break.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
WITH_OURS = fourfold._native.module is not None


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "1")


@pytest.fixture(params=["fourfold", "torch"])
def whose(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who runs forward and backward: our node of autograd, or AOTAutograd's wrappers."""
    if request.param == "torch":
        monkeypatch.setattr(runtime, "obstacle", lambda *_: "a test asks for torch's runtime")
    elif not WITH_OURS:
        pytest.skip("this build has no calls compiled for this torch")
    return request.param


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_eager(case: Case, whose: str) -> None:
    record = case.check()
    if case.programs is not None:
        assert programs_of(record) == case.programs
    if whose == "fourfold":
        reasons = [captured.runtime for captured in record.captured]
        assert all(
            case.runtime in reason if case.runtime else not reason or "number" in reason for reason in reasons
        ), reasons


@pytest.mark.parametrize("case", [case for case in CASES if case.dynamic], ids=lambda case: case.name)
def test_for_any_sizes(case: Case) -> None:
    case.check(dynamic=True)


def test_one_compilation_serves_all_sizes() -> None:
    record = Record()
    call = compiled(lambda x, w: torch.softmax(x * w, -1).sum(0), record, dynamic=True)
    for rows, columns in ((3, 5), (8, 100), (40, 3000)):
        x, w = draw(rows, columns), draw(columns)
        torch.testing.assert_close(call(x, w), torch.softmax(x * w, -1).sum(0))
    assert len(record.captured) == 1


def test_a_dimension_that_is_marked_dynamic() -> None:
    record = Record()
    call = compiled(lambda x: x.sin() * x.shape[0], record, fullgraph=True)
    for rows in (3, 4, 50):
        x = draw(rows, 4, gradient=False)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(call(x), x.sin() * rows)
    assert len(record.captured) == 1


def test_the_second_derivative_is_refused(whose: str) -> None:
    x = draw(5)
    (grad,) = torch.autograd.grad(compiled(torch.sin)(x).sum(), x, create_graph=True)
    assert grad.requires_grad
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        grad.sum().backward()


def test_a_graph_that_is_kept_is_differentiated_again(whose: str) -> None:
    x = draw(5)
    y = compiled(lambda x: x.sin().exp())(x)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    second = torch.autograd.grad(y.sum(), x)
    assert_same(list(first), list(second))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y.sum(), x)


def test_a_result_that_is_changed_is_not_differentiated_wrongly(whose: str) -> None:
    x = draw(5)
    y = compiled(torch.exp)(x)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_of_some_results(whose: str) -> None:
    x, y = draw(5), draw(5, seed=1)

    def pair(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() * y, y.exp()

    call = compiled(pair)
    for chosen in (0, 1):
        got = torch.autograd.grad(call(x, y)[chosen].sum(), (x, y), allow_unused=True)
        expected = torch.autograd.grad(pair(x, y)[chosen].sum(), (x, y), allow_unused=True)
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, torch.zeros(5) if theirs is None else theirs)


def test_an_expanded_gradient_and_one_that_is_transposed(whose: str) -> None:
    x = draw(4, 6)
    call = compiled(lambda x: (x.sin() @ x.t()).exp() + 1)
    for upstream in (torch.ones(()).expand(4, 4), draw(4, 4, gradient=False).t()):
        (got,) = torch.autograd.grad(call(x), x, upstream)
        (expected,) = torch.autograd.grad((x.sin() @ x.t()).exp() + 1, x, upstream)
        torch.testing.assert_close(got, expected)


def test_nothing_is_kept_past_its_use(whose: str) -> None:
    """A result that the backward needs is not kept by a circle through its own node."""
    x = draw(1000)
    call = compiled(torch.exp)
    call(x)
    gc.collect()
    gc.disable()
    try:
        y = call(x)
        ref = weakref.ref(y)
        del y
        assert ref() is None
    finally:
        gc.enable()


def test_hooks_see_what_is_kept() -> None:
    seen = []
    call = compiled(lambda x: x.sin() * x)
    x = draw(4)
    call(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.shape) or t, lambda t: t):
        y = call(x)
    y.sum().backward()
    assert seen
    torch.testing.assert_close(x.grad, x.cos() * x + x.sin())


def test_compiled_autograd() -> None:
    call = compiled(lambda x: x.sin().exp())
    x = draw(10)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        for _ in range(2):
            x.grad = None
            call(x).sum().backward()
            torch.testing.assert_close(x.grad, x.cos() * x.sin().exp())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("has_run", [False, True], ids=["first", "later"])
def test_compiled_autograd_by_this_backend(dynamic: bool, has_run: bool) -> None:
    call = compiled(lambda x: F.gelu(x).sum(0), dynamic=dynamic)
    x = draw(3, 4)
    expected = torch.autograd.grad(F.gelu(x).sum(), x)
    if has_run:
        call(x).sum().backward()
    x.grad = None
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="fourfold", dynamic=dynamic)):
        call(x).sum().backward()
    torch.testing.assert_close((x.grad,), expected)
    x.grad = None
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda x: call(x).sum().backward(), backend="fourfold")(x)
    torch.testing.assert_close((x.grad,), expected)


def test_a_backward_within_a_compiled_function(whose: str) -> None:
    """Without a warning of Dynamo's, which would trace the compiler."""
    linear = nn.Linear(5, 3)

    def step(x: torch.Tensor) -> torch.Tensor:
        linear(x).tanh().sum().backward()
        return x.sin()

    x = draw(6, 5, gradient=False)
    step(x)
    expected, linear.weight.grad = linear.weight.grad, None
    torch.testing.assert_close(compiled(step)(x), x.sin())
    torch.testing.assert_close(linear.weight.grad, expected)


def euler(x: torch.Tensor) -> torch.Tensor:
    for _ in range(40):
        x = x + 0.1 * torch.sin(x)
    return x


def spikes(x: torch.Tensor) -> torch.Tensor:
    voltage, count = torch.zeros_like(x), 0
    for _ in range(30):
        voltage = 0.9 * voltage + x * 0.3
        spike = (voltage > 1).float()
        voltage, count = voltage * (1 - spike), count + spike * voltage
    return count


def squares(x: torch.Tensor) -> torch.Tensor:
    z = x
    for _ in range(300):
        z = 0.3 * z * z + x
    return z


@pytest.mark.parametrize("function", [euler, spikes, squares])
def test_loops_that_are_longer_than_what_is_computed_again(function: Callable, whose: str) -> None:
    x = draw(50) if function is spikes else (draw(50).sigmoid() / 2).detach().requires_grad_()
    assert_same(results_of(compiled(function), (x,)), results_of(function, (x,)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "change", [lambda x, b: b.add_(1), lambda x, b: b.zero_(), lambda x, b: b.copy_(0.9 * b + 0.1 * x.detach())]
)
def test_an_input_that_is_used_and_then_changed_is_not_computed_with_again(change: Callable, dynamic: bool) -> None:
    def f(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = x / (b.sin().abs() + 1).sqrt()
        change(x, b)
        return y.exp() * x

    arguments = draw(5, 6), draw(5, 6, gradient=False, seed=3)
    assert_same(results_of(compiled(f, dynamic=dynamic), arguments), results_of(f, arguments))


LOW = [-1.0, 1.0, 2.0, 3.0, 0.1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(x < 0, 0.4, x).eq(0.4),
        lambda x: x.masked_fill(x < 0, 0.1) >= 0.1,
        lambda x: x.mul(0).add(0.3) == 0.3,
        lambda x: x.clamp(min=0.1) > 0.1,
        lambda x: x.clamp(max=0.7) >= 0.7,
        lambda x: (x + 0.001).lt(1.0),
        lambda x: x.exp() > x.exp().float(),
    ],
)
def test_what_is_compared_in_low_precision_is_rounded(function: Callable, dtype: torch.dtype) -> None:
    x = torch.tensor(LOW, dtype=dtype)
    assert torch.equal(compiled(function)(x), function(x))


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "SGD"])
@pytest.mark.filterwarnings("ignore:.*Profiler record function.*")
def test_optimizers(name: str) -> None:
    """Dynamo writes addcmul_ with a value as an operator of Inductor's."""

    def trained(compile: Callable) -> torch.Tensor:
        parameter = nn.Parameter(draw(3, 5, gradient=False))
        optimizer = getattr(torch.optim, name)([parameter], lr=0.01, foreach=False)
        step = compile(optimizer.step)
        for k in range(3):
            parameter.grad = draw(3, 5, gradient=False, seed=k)
            step()
        return parameter.detach()

    torch.testing.assert_close(trained(compiled), trained(lambda step: step))


def test_torch_func(whose: str) -> None:
    x = draw(6, gradient=False)
    inside = compiled(lambda x: torch.func.grad(lambda z: (z.sin() ** 2).sum())(x))
    torch.testing.assert_close(inside(x), torch.sin(2 * x))
    mapped = compiled(lambda x: torch.func.vmap(lambda z: torch.softmax(z, -1))(x.view(2, 3)))
    torch.testing.assert_close(mapped(x), torch.softmax(x.view(2, 3), -1))


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_transforms_of_a_compiled_function_are_as_other_backends(transform) -> None:
    def outcome(name: str) -> object:
        torch._dynamo.reset()
        call = torch.compile(lambda x: x.sin().sum(), backend=name)
        x = draw(2, 3, gradient=False) if transform is torch.func.vmap else draw(3, gradient=False)
        try:
            return transform(call)(x)
        except RuntimeError as error:
            return type(error)

    ours, theirs = outcome("fourfold"), outcome("aot_eager")
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x, w: F.silu((x @ w).chunk(2, -1)[0]) + 1, (draw(4, 6), draw(6, 8))),
        (lambda x: torch.stack([x.sin(), x.cos()]).unbind(1)[2], (draw(5, 6),)),
        (lambda x, i: x.sin()[i] * 2, (draw(50, 6), torch.tensor([3, 1, 3]))),
        (lambda x: torch.cat([x[:2], x[3:].exp()]).sort(-1)[0], (draw(5, 6),)),
        (lambda x, w: F.linear(F.gelu(x), w).softmax(-1), (draw(5, 6), draw(3, 6))),
        (lambda x: F.max_pool1d(x.sin(), 3, stride=2, padding=1), (draw(2, 3, 9),)),
    ],
)
def test_torchs_operators_run_without_python(function: Callable, arguments: tuple) -> None:
    """Products, slices, what gives several results or a list, indices in a list, numbers, and what is left out."""
    record = Record()
    call = compiled(function, record)
    assert_same(results_of(call, arguments), results_of(function, arguments), rtol=1e-5, atol=1e-6)
    for captured in record.captured:
        assert captured.runtime == ""
        for half in (captured.forward, captured.backward):
            assert half.compiled.straight is not None, half.compiled.source
            needed = [step for step in half.compiled.straight.steps if step[0] == "operator"]
            assert needed or not half.compiled.left


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x, w: F.dropout(F.softmax(x, -1) * 2, 0.3) @ w, (draw(5, 6), draw(6, 3))),
        (lambda x, m: F.batch_norm(x.sin() @ x.mT, m, m.exp(), training=True), (draw(5, 5), draw(5, gradient=False))),
        (lambda x, n: (n.add_(1), x.sin() * n)[1] @ x, (draw(5, 5), draw(5, gradient=False))),
    ],
)
def test_graphs_that_torch_sees_to_run_without_python_too(function: Callable, arguments: tuple) -> None:
    record = Record()
    call = compiled(function, record)
    assert_same(results_of(call, arguments), results_of(function, arguments), rtol=1e-5, atol=1e-5)
    for captured in record.captured:
        assert captured.runtime
        for half in (captured.forward, captured.backward):
            assert half.compiled.straight is not None, half.compiled.source
            given = [object()]
            with pytest.raises(TypeError, match="expected a list of the graph's inputs"):
                runtime.for_torch(half.compiled)(*given, *given)


def test_dropout_ends_in_the_program_around_it() -> None:
    """torch draws what is kept, and no more than for eager code."""
    for p in (0.0, 0.3, 1.0):
        record = Record()
        x, y = draw(40, 6, gradient=False), draw(40, 6, gradient=False)

        def function(x: torch.Tensor, y: torch.Tensor, p: float = p) -> torch.Tensor:
            return F.layer_norm(y + F.dropout(x * 2, p), (6,))

        call = compiled(function, record)
        call(x, y)
        torch.manual_seed(1)
        expected, number = function(x, y), torch.rand(1)
        torch.manual_seed(1)
        torch.testing.assert_close(call(x, y), expected)
        assert torch.equal(torch.rand(1), number)
        assert programs_of(record) == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("function", "use"),
    [
        (lambda x: x.sin().view(4, 5).t(), lambda y: (y * torch.ones(5, 4)).sum()),
        (lambda x: x.sin().view(4, 5).t(), lambda y: y.reshape(-1).cos().sum()),
        (lambda x: x.sin().view(2, 2, 5).transpose(0, 1), lambda y: (y.reshape(2, -1).cos() ** 2).sum()),
        (lambda x: (x.sin().view(4, 5).t(), x.cos()), lambda y: y[1].sum()),
        (lambda x: torch.view_as_complex(x.sin().view(2, 5, 2)).t(), lambda y: (y.contiguous() ** 2).abs().sum()),
        (lambda x: x.sin().view(4, 5).t(), lambda y: (y.t().cos() ** 2).sum()),
        (lambda x: x.view(x.shape[0] // 4, 4).exp().t().cumsum(0), lambda y: (y.t().contiguous() ** 2).sum()),
    ],
)
def test_a_gradient_that_lies_otherwise_in_memory(function: Callable, use: Callable, dynamic: bool) -> None:
    call = compiled(function, dynamic=dynamic)
    x = draw(20)
    (expected,) = torch.autograd.grad(use(function(x)), x)
    (got,) = torch.autograd.grad(use(call(x)), x)
    torch.testing.assert_close(got, expected)


def test_a_program_given_a_batch_of_gradients_is_done_by_torch() -> None:
    call, x = compiled(lambda x: x.sin().view(4, 5).t()), draw(20)
    upstream = torch.eye(20).view(20, 5, 4)
    (got,) = torch.autograd.grad(call(x), x, upstream, is_grads_batched=True)
    (expected,) = torch.autograd.grad(x.sin().view(4, 5).t(), x, upstream, is_grads_batched=True)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("function", [lambda x: x.sin() * 2, lambda x: F.dropout(x.sin(), 0.0) + torch.rand(3) * 0])
def test_tangents(function: Callable) -> None:
    """Without gradients torch's operators carry them; with, they are refused."""
    with forward_ad.dual_level():
        x = forward_ad.make_dual(draw(3, gradient=False), torch.ones(3))
        expected = forward_ad.unpack_dual(function(x)).tangent
        torch.testing.assert_close(forward_ad.unpack_dual(compiled(function)(x)).tangent, expected)
        with pytest.raises(NotImplementedError, match="forward"):
            compiled(function)(forward_ad.make_dual(draw(3), torch.ones(3)))


def test_a_mean_over_more_rows_than_float16_counts() -> None:
    x = torch.tensor([0.0, 2.0]).expand(66000, 2)
    target = torch.zeros(66000, dtype=torch.long)
    loss = compiled(F.cross_entropy)(x.half(), target)
    torch.testing.assert_close(loss.float(), F.cross_entropy(x, target), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - True,
        lambda x: (x > 2) - x,
        lambda x: torch.add(x, x, alpha=300),
        lambda x: x.clamp(min=300),
        lambda x: torch.where(x > 2, x, 300),
        lambda x: x.masked_fill(x > 2, 300),
    ],
)
def test_what_torch_refuses_of_integers(function: Callable) -> None:
    x = torch.tensor([1, 2, 3], dtype=torch.uint8)
    with pytest.raises(RuntimeError) as expected:
        function(x)
    with pytest.raises(RuntimeError) as got:
        compiled(function)(x)
    assert str(got.value) == str(expected.value)


def test_two_dtypes_where_torch_takes_one() -> None:
    with pytest.raises(RuntimeError, match="heaviside is not yet implemented for tensors with different dtypes"):
        compiled(lambda x, y: torch.heaviside(x, y) + 1)(torch.ones(2).double(), torch.tensor(0.5))


def test_an_integer_beyond_64_bits() -> None:
    with pytest.raises(OverflowError):
        compiled(lambda x, n: x * n, dynamic=True)(torch.ones(3), 2**64)


def test_what_an_operator_refuses_is_its_own_error() -> None:
    """As Python's call of it says."""
    call = compiled(lambda x, i: x.sin()[i] * 2)
    x = torch.randn(5)
    torch.testing.assert_close(call(x, torch.tensor([1, 4])), x.sin()[[1, 4]] * 2)
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        call(x, torch.tensor([1, 7]))


def test_a_cross_entropy_writes_no_probabilities() -> None:
    """Neither for its value nor for the backward to read; targets that there are not are torch's own error."""
    record = Record()
    call = compiled(F.cross_entropy, record)
    x, target = torch.randn(50, 7, requires_grad=True), torch.arange(50) % 7
    call(x, target).backward()
    (captured,) = record.captured
    written = [node.meta["val"].numel() for built in captured.forward.compiled.programs for node in built.outputs]
    assert written and max(written) <= 50
    assert [tuple(node.meta["val"].shape) for node in captured.backward.compiled.programs[-1].outputs] == [(50, 7)]
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        call(x, target + 1)


def test_intermediate_results_go_when_they_were_read() -> None:
    """A chain of products in one graph holds two of its results at a time."""
    size = 1 << 20

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = x.cumsum(0)
        return x

    call = compiled(chain)
    x = torch.ones(size)
    with torch.no_grad():
        call(x)
        with torch.profiler.profile(profile_memory=True) as seen:
            call(x)
    live = most = 0
    memory = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    assert 4 * size <= most <= 3 * 4 * size


def test_two_threads_at_once() -> None:
    call = compiled(lambda x: torch.softmax(x.sin(), -1).exp(), dynamic=True)
    call(draw(4, 6)).sum().backward()
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for k in range(30):
                x = draw(3 + k % 5, 7, seed=seed)
                y = call(x)
                (got,) = torch.autograd.grad(y.square().sum(), x)
                exact = torch.softmax(x.sin(), -1).exp()
                torch.testing.assert_close(y, exact)
                torch.testing.assert_close(got, torch.autograd.grad(exact.square().sum(), x)[0])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_threads_that_meet_at_the_first_backward_compile_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []
    half = Compilation.half

    def counted(self: Compilation, graph: torch.fx.GraphModule, stage: str) -> object:
        stages.append(stage)
        return half(self, graph, stage)

    monkeypatch.setattr(Compilation, "half", counted)
    call = compiled(lambda x: torch.softmax(x.sin(), -1).exp())
    results = [call(draw(4, 6, seed=k)).sum() for k in range(6)]
    threads = [threading.Thread(target=result.backward) for result in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stages == ["forward", "backward"]


def _in_a_child(call, queue) -> None:
    torch.set_num_threads(1)
    queue.put(call(torch.ones(5)).tolist())


@pytest.mark.skipif(FORK == "spawn", reason="macOS does not bear a fork after torch is loaded")
def test_after_a_fork() -> None:
    torch.set_num_threads(1)
    call = compiled(lambda x: x.sin() + 1)
    expected = call(torch.ones(5)).tolist()
    context = multiprocessing.get_context(FORK)
    queue = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = context.Process(target=_in_a_child, args=(call, queue))
        child.start()
    assert queue.get(timeout=60) == expected
    child.join()


@pytest.mark.usefixtures("process_group")
def test_data_parallel_training() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 1))
    x = draw(6, 4, gradient=False)
    expected = results_of(model, (x,), tuple(model.parameters()))
    model.zero_grad()
    torch._dynamo.reset()
    parallel = torch.compile(nn.parallel.DistributedDataParallel(model), backend="fourfold")
    got = results_of(parallel, (x,), tuple(model.parameters()))
    assert_same(got, expected)
    del parallel
    torch._dynamo.reset()


def test_more_elements_than_an_int() -> None:
    count = 2**31 + 5
    x = torch.zeros(count, dtype=torch.uint8)
    x[-3:] = torch.tensor([1, 2, 3])
    y = compiled(lambda x: x * 2 + 1)(x)
    assert y[-4:].tolist() == [1, 3, 5, 7]
    assert y[: 2**31].max().item() == 1


@pytest.mark.parametrize("options", [None, {}, {"reductions": False}, {"min_elements": 10**6}, {"trace": True}])
def test_options(options: dict | None, caplog: pytest.LogCaptureFixture) -> None:
    record = Record()
    torch._dynamo.reset()
    call = torch.compile(
        lambda x: torch.softmax(x * 2, -1), backend=lambda *a: backend(*a, options=options, record=record)
    )
    x = draw(4, 6, gradient=False)
    with caplog.at_level(logging.INFO, logger="fourfold.compiler"):
        torch.testing.assert_close(call(x), torch.softmax(x * 2, -1))
    graph = record.captured[0].forward.compiled
    reasons = set(graph.left.values())
    assert len(graph.programs) == (0 if options == {"min_elements": 10**6} else 1)
    assert reasons == ({"fewer than 1000000 elements"} if options == {"min_elements": 10**6} else set())
    assert ("aten._softmax" in graph.source) == (options in ({"reductions": False}, {"min_elements": 10**6}))
    assert ("fourfold program 1" in caplog.text) == (options == {"trace": True})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"fuse": True}, "fourfold: expected an option of min_elements, reductions, .*, but got 'fuse'"),
        ({"reductions": 1}, "fourfold: expected option reductions to be True or False, but got 1"),
        ("fast", "fourfold: expected options to be a dict, but got 'fast'"),
        ({"min_elements": -1}, "fourfold: expected option min_elements to be a number of at least 0, but got -1"),
        ({"min_elements": True}, "fourfold: expected option min_elements to be a number of at least 0, but got True"),
    ],
)
def test_options_that_there_are_not(options: dict, sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        compiled(torch.sin, options=options)(torch.ones(3))


def test_modes_are_inductors() -> None:
    with pytest.raises(Exception, match="fourfold: expected no mode, which other backends have; see options"):
        compiled(torch.sin, mode="reduce-overhead")(torch.ones(3))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering with a fault."""

    def fault(call: object, x: object) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setitem(lowering.POINTWISE, torch.ops.aten.sin.default, fault)
    monkeypatch.setattr(failures, "_reported", set())


@pytest.mark.usefixtures("failing")
def test_an_internal_failure_leaves_the_group_to_torch_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    x = draw(4, gradient=False)
    with pytest.warns(
        RuntimeWarning, match="could not compute aten.sin.default in a program, and leaves it to torch"
    ) as seen:
        torch.testing.assert_close(compiled(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(lambda x: x.sin() * 2)(x), x.sin() * 2)


def test_a_graph_that_can_not_be_fused_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    monkeypatch.setattr(Fusion, "merge_neighbours", lambda self, graph: ()[7])
    monkeypatch.setattr(failures, "_reported", set())
    record = Record()
    x = draw(4, 18)
    with pytest.warns(RuntimeWarning, match="fourfold could not compute .* leaves it to torch: IndexError"):
        got = results_of(compiled(lambda x: x.sin().sum(0), record), (x,))
    assert_same(got, results_of(lambda x: x.sin().sum(0), (x,)))
    assert programs_of(record) == 0
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    with pytest.raises(Exception, match="tuple index out of range"):
        compiled(lambda x: x.sin().sum(0))(x)


def test_sums_of_what_has_no_dimensions() -> None:
    x = draw()
    for dims in (0, -1, ()):
        got = compiled(lambda x, dims=dims: x.sin().sum(dims))(x)
        torch.testing.assert_close(got, x.sin())


@pytest.mark.usefixtures("failing")
def test_an_internal_failure_is_an_error_where_that_is_asked_for() -> None:
    with pytest.raises(Exception, match="a fault of ours"):
        compiled(lambda x: x.sin() + 1)(torch.ones(3))


@pytest.mark.parametrize("road", [attrgetter("run"), runtime.for_torch], ids=["python", "steps"])
def test_a_program_that_fails_when_it_runs_is_done_by_torch(road: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    monkeypatch.setattr(failures, "_reported", set())
    record = Record()
    call = compiled(lambda x: torch.cat([x.sin() + 1, x.view(-1)]), record)
    x = draw(4, gradient=False)
    call(x)
    run = road(record.captured[0].forward.compiled)
    given = [x.double()]
    with pytest.warns(RuntimeWarning, match="leaves it to torch: ValueError: program: expected"):
        (got,) = run(given)
    assert given == []
    torch.testing.assert_close(got, torch.cat([x.double().sin() + 1, x.double()]))
    monkeypatch.setenv("FOURFOLD_STRICT", "1")
    with pytest.raises(ValueError, match="program: expected another dtype"):
        run([x.double()])


@pytest.mark.parametrize("road", [attrgetter("run"), runtime.for_torch], ids=["python", "steps"])
def test_where_a_program_fails_nothing_happens_twice(road: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what is drawn nor what is changed in place."""
    monkeypatch.setenv("FOURFOLD_STRICT", "0")
    monkeypatch.setattr(failures, "_reported", set())
    record = Record()

    def function(n: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        n.bernoulli_(0.5)
        return (n @ n) + x.sin()

    x, n = draw(4, gradient=False), draw(4, gradient=False)
    with torch.no_grad():
        compiled(function, record)(n, x)
    run = road(record.captured[0].forward.compiled)
    torch.manual_seed(1)
    expected = torch.empty(4).bernoulli_(0.5)
    number = torch.rand(1)
    torch.manual_seed(1)
    with pytest.warns(RuntimeWarning, match="leaves it to torch"):
        results = run([n, x.double()])
    assert torch.equal(torch.rand(1), number)
    torch.testing.assert_close(results[-1], expected @ expected + x.double().sin())
    torch.testing.assert_close(n if len(results) == 1 else results[0], expected)


def test_strictness_is_1_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_STRICT", "yes")
    with pytest.raises(Exception, match="FOURFOLD_STRICT is yes; set it to 1"):
        compiled(torch.sin)(torch.ones(3))


def run_python(code: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd=ROOT,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def test_the_name_works_without_importing_fourfold_and_loads_nothing_of_inductor() -> None:
    """Beyond what aot_eager loads."""
    code = (
        "import sys, torch\n"
        "assert 'fourfold' in torch._dynamo.list_backends()\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "torch.compile(lambda x: x.sin() + 1, backend='{}')(x).sum().backward()\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('torch._inductor', 'sympy.', 'networkx'))))\n"
    )
    ours, theirs = (set(run_python(code.format(name)).split()) for name in ("fourfold", "aot_eager"))
    assert ours <= theirs


def test_importing_fourfold_loads_no_compiler() -> None:
    run_python("import sys, fourfold; assert not {'torch._dynamo', 'fourfold.compiler'} & set(sys.modules)")


def test_torchs_logs_show_the_graphs() -> None:
    code = "import torch; torch.compile(lambda x: x.sin() + 1, backend='fourfold')(torch.ones(3))"
    assert "torch.ops.aten.sin.default" in run_python(code, TORCH_LOGS="aot_graphs")


def test_profilers_show_programs_by_name() -> None:
    call = compiled(lambda x: x.sin() * 2 + 1)
    x = draw(1000)
    call(x).sum().backward()
    with torch.profiler.profile(record_shapes=True) as profile:
        call(x).sum().backward()
    names = {event.name: event.input_shapes for event in profile.events()}
    assert "fourfold_sin_mul_add" in names
    if WITH_OURS:
        assert names["fourfold_sin_mul_add"] == [[1000]]
    assert any(name.startswith("fourfold_") and "cos" in name for name in names)


def test_stances_and_what_is_disabled() -> None:
    record = Record()

    @torch.compiler.disable
    def left(x: torch.Tensor) -> torch.Tensor:
        assert not torch.compiler.is_compiling()
        return x + 1

    call = compiled(lambda x: left(x.sin()).cos(), record)
    x = draw(4, gradient=False)
    torch.testing.assert_close(call(x), (x.sin() + 1).cos())
    assert len(record.captured) == 2
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(call(draw(5, 5, gradient=False)), (draw(5, 5, gradient=False).sin() + 1).cos())
    assert len(record.captured) == 2


def test_dynamos_own_explanation() -> None:
    torch._dynamo.reset()
    assert torch._dynamo.explain(lambda x: x.sin() + 1)(torch.ones(3)).graph_count == 1


def test_a_compiled_module_is_exported() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()), backend="fourfold")
    x = draw(2, 4, gradient=False)
    expected = model(x)
    exported = torch.export.export(model, (x,), strict=False)
    torch.testing.assert_close(exported.module()(x), expected)


def test_a_named_program_is_a_callable() -> None:
    program = Program("fourfold program 1\naxes\nx: float32 = number\noutput x float32 []\n", "a_name")
    assert program(2.5).item() == 2.5
