"""torch.compile(backend="fourfold") from the user's side: results against eager."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from compiled import CASES, Case, assert_same, compiled, draw, programs_of, results_of
from fourfold.compiler.pipeline import runtime
from fourfold.compiler.pipeline.record import Record
from machine import FORK

pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore:Profiler clears events at the end of each cycle"),
    # torch warns when it captures what follows a graph break.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


# Both runtimes run the same graph, so torch's runs only a sample of the cases.
RUNS = [*((case, "fourfold") for case in CASES), *((case, "torch") for case in CASES[::3])]


@pytest.mark.parametrize(("case", "whose"), RUNS, indirect=["whose"], ids=lambda of: getattr(of, "name", of))
def test_as_eager(case: Case, whose: str) -> None:
    record = case.check()
    if case.programs is not None:
        assert programs_of(record) == case.programs
    if whose == "fourfold":
        reasons = [captured.runtime for captured in record.captured]
        assert all(
            case.runtime in reason if case.runtime else not reason or "number" in reason for reason in reasons
        ), reasons


@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)
def test_in_the_interpreter(case: Case) -> None:
    """What runs until nests are compiled, and where none are."""
    case.check(options={"generator": "interpreter"})


@pytest.mark.parametrize("case", [case for case in CASES if case.dynamic], ids=lambda case: case.name)
def test_for_any_sizes(case: Case) -> None:
    case.check(dynamic=True)


def parts_without_elements() -> list[Callable]:
    """As in a language model's cache before its first token."""
    none = torch.tensor([])
    return [
        lambda x: torch.cat([none, (x * 2).sin()], -2).exp(),
        lambda x: torch.cat([(x * 2).sin(), none, x.cos()], -2),
        lambda x: torch.cat([x.narrow(1, 0, 0), (x * 2).sin()], 1) + 1,
        lambda x: torch.cat([torch.tensor([]), x.bfloat16() * 2]).sin(),
        lambda x: torch.cat([none.double(), x.sin()]) * 2,
        lambda x: torch.cat([none, x.sin().contiguous(memory_format=torch.channels_last)], 1) * 2,
        lambda x: torch.cat([none, none * 2]),
        lambda x: torch.cat([none.sin(), x.narrow(0, 0, 0).sin()], -1),
        lambda x: torch.cat([none, x.mT.sin()], -1) * 3,
    ]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_reductions_of_equal_rows_are_equal(dynamic: bool | None, keepdim: bool) -> None:
    """One program computes both: another would round its result to bfloat16 in memory."""
    x = torch.randn(64, 100, generator=torch.Generator().manual_seed(0)).bfloat16()

    def differences(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.mean(-1, keepdim) - y.mean(-1, keepdim),
            (x.var(-1, keepdim=keepdim) - y.var(-1, keepdim=keepdim)).sign(),
            x.norm(dim=-1, keepdim=keepdim) / y.norm(dim=-1, keepdim=keepdim) - 1,
            x.logsumexp(-1, keepdim) > y.logsumexp(-1, keepdim),
        )

    record = Record()
    for difference in compiled(differences, record, dynamic=dynamic)(x, x.clone()):
        assert not difference.any()
    assert programs_of(record) == 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("place", range(9))
def test_a_concatenation_with_parts_without_elements(place: int, dynamic: bool | None) -> None:
    x = draw(2, 3, 4, 5)
    function = parts_without_elements()[place]
    record = Record()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        got = results_of(compiled(function, record, dynamic=dynamic), (x,))
    assert_same(got, results_of(function, (x,)), **({"rtol": 2e-2, "atol": 2e-2} if place == 3 else {}))
    assert programs_of(record) == (2, 2, 2, 2, 2, 2, 1, 3, 2)[place]


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


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x, w: F.silu((x @ w).chunk(2, -1)[0]) + 1, (draw(4, 6), draw(6, 8))),
        (lambda x: torch.stack([x.sin(), x.cos()]).unbind(1)[2], (draw(5, 6),)),
        (lambda x, i: x.sin()[i] * 2, (draw(50, 6), torch.tensor([3, 1, 3]))),
        (lambda x: torch.cat([x[:2], x[3:].exp()]).sort(-1)[0], (draw(5, 6),)),
        (lambda x, w: F.linear(F.gelu(x), w).softmax(-1), (draw(5, 6), draw(3, 6))),
        (lambda x, w: F.dropout(F.softmax(x, -1) * 2, 0.3) @ w, (draw(5, 6), draw(6, 3))),
        (lambda x: F.max_pool1d(x.sin(), 3, stride=2, padding=1), (draw(2, 3, 9),)),
    ],
)
def test_torchs_operators_run_without_python(function: Callable, arguments: tuple) -> None:
    """Products, slices, operators with several results or a list, lists of indices, numbers, and omitted arguments."""
    record = Record()
    call = compiled(function, record)
    assert_same(results_of(call, arguments), results_of(function, arguments), rtol=1e-5, atol=1e-6)
    for captured in record.captured:
        assert captured.runtime == ""
        for half in (captured.forward, captured.backward):
            assert half.compiled.plan is not None
            needed = [step for step in half.compiled.plan.steps if step[0] == "operator"]
            assert needed or not half.compiled.refusals


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
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
            assert half.compiled.plan is not None
            given = [object()]
            with pytest.raises(TypeError, match="expected a list of the graph's inputs"):
                runtime.for_torch(half.compiled)(*given, *given)


def test_dropout_ends_in_the_program_around_it() -> None:
    """torch draws the mask, and no more random numbers than in eager code."""
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
    """With the message of the call from Python."""
    call = compiled(lambda x, i: x.sin()[i] * 2)
    x = torch.randn(5)
    torch.testing.assert_close(call(x, torch.tensor([1, 4])), x.sin()[[1, 4]] * 2)
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        call(x, torch.tensor([1, 7]))


def test_a_cross_entropy_writes_no_probabilities() -> None:
    """Neither for its value nor for the backward; targets out of range raise torch's own error."""
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


def test_more_elements_than_an_int() -> None:
    count = 2**31 + 5
    x = torch.zeros(count, dtype=torch.uint8)
    x[-3:] = torch.tensor([1, 2, 3])
    y = compiled(lambda x: x * 2 + 1)(x)
    assert y[-4:].tolist() == [1, 3, 5, 7]
    assert y[: 2**31].max().item() == 1
