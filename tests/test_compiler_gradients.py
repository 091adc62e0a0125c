"""torch.compile(backend="fourfold"): gradients in every way to compute them, against eager."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from compiled import assert_same, compiled, draw, programs_of, results_of
from fourfold.compiler.pipeline.compilation import Compilation
from fourfold.compiler.pipeline.record import Record

pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore:Profiler clears events at the end of each cycle"),
    # torch warns when it captures what follows a graph break.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


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
    """A saved result is not kept alive by a reference cycle through its own node."""
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
    """Without a warning from Dynamo, which would otherwise trace the compiler."""
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
def test_loops_that_are_longer_than_what_is_computed_again(function: Callable) -> None:
    x = draw(50) if function is spikes else (draw(50).sigmoid() / 2).detach().requires_grad_()
    assert_same(results_of(compiled(function), (x,)), results_of(function, (x,)), rtol=1e-4, atol=1e-5)


def neuron(steps: Iterable[torch.Tensor]) -> torch.Tensor:
    i, v, spikes = 0.0, 0.0, []
    for x in steps:
        i = i + 0.2 * (x - i)
        v = v + 0.1 * (i - v)
        spike = torch.sigmoid(10 * (v - 1))
        v = v * (1 - spike)
        spikes.append(spike)
    return torch.stack(spikes)


# Ways in which a loop reads its steps from a tensor of shape (12, batch, 5).
STEPS: dict[str, Callable[[torch.Tensor], Iterable[torch.Tensor]]] = {
    "x[t]": lambda x: (x[t] for t in range(x.shape[0])),
    "x[t] of some": lambda x: (x[t] for t in range(10)),
    "x[-t]": lambda x: (x[-t] for t in range(1, 11)),
    "x[:, t]": lambda x: (x[:, t] for t in range(x.shape[1])),
    "x[..., t]": lambda x: (x[..., t] for t in range(x.shape[2])),
    "x[1:, t]": lambda x: (x[1:, t] for t in range(x.shape[1])),
    "x.mT[:, t]": lambda x: (x.mT[:, t] for t in range(x.shape[2])),
    "x.unbind()": lambda x: x.unbind(0),
    "x.unbind(1)": lambda x: x.unbind(1),
    "x[t : t + 1]": lambda x: (x[t : t + 1] for t in range(10)),
    "x.split(1)": lambda x: x[:10].split(1),
    "reversed": lambda x: (x[t] for t in reversed(range(x.shape[0]))),
    "every other": lambda x: (x[t] for t in range(0, 12, 2)),
    "twice": lambda x: (x[t] * x[t].tanh() for t in range(10)),
    "neighbours": lambda x: (x[t] - x[t - 1] for t in range(1, 12)),
    "windows": lambda x: (x[t : t + 3].sum(0) for t in range(10)),
    "what came before": lambda x: (x[: t + 1].sum(0) for t in range(10)),
    "with the whole": lambda x: (x[t] * x.mean(0) for t in range(10)),
}


OF_ANY_SIZE = ("x[t] of some", "x[-t]", "x[:, t]", "x[1:, t]", "windows")


@pytest.mark.parametrize(("name", "dynamic"), [*((n, False) for n in STEPS), *((n, True) for n in OF_ANY_SIZE)])
def test_a_loop_over_steps(name: str, dynamic: bool) -> None:
    """Over two inputs; Dynamo unrolls it."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return neuron(a * b for a, b in zip(STEPS[name](x), STEPS[name](y), strict=True))

    ours = compiled(f, dynamic=dynamic)
    for batch in (3, 4) if dynamic else (3,):
        x, y = (draw(12, batch, 5, dtype=torch.float64, seed=seed) for seed in (0, 3))
        assert_same(results_of(ours, (x, y)), results_of(f, (x, y)))


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
    """Without gradients torch's operators propagate them; with gradients they are rejected."""
    with forward_ad.dual_level():
        x = forward_ad.make_dual(draw(3, gradient=False), torch.ones(3))
        expected = forward_ad.unpack_dual(function(x)).tangent
        torch.testing.assert_close(forward_ad.unpack_dual(compiled(function)(x)).tangent, expected)
        with pytest.raises(NotImplementedError, match="forward"):
            compiled(function)(forward_ad.make_dual(draw(3), torch.ones(3)))


def test_threads_that_meet_at_the_first_backward_compile_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []
    half = Compilation.half

    def counted(self: Compilation, graph: torch.fx.GraphModule, stage: str) -> object:
        stages.append(stage)
        if stage == "backward":
            time.sleep(0.2)  # until all have arrived
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


@pytest.mark.usefixtures("strict", "in_programs")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_log_sigmoid_of_which_nothing_is_saved(dtype: torch.dtype) -> None:
    """As on a GPU."""
    x, grad = (draw(40, dtype=dtype, gradient=False, seed=seed) * 20 for seed in (0, 1))
    record = Record()
    function = compiled(lambda grad, x: torch.ops.aten.log_sigmoid_backward(grad, x, x.new_zeros(0)) * 2, record)
    expected = 2 * grad.double() * torch.sigmoid(-x.double())
    torch.testing.assert_close(function(grad, x), expected.to(dtype))
    assert programs_of(record)
