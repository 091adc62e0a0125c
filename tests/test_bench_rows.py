"""The rows of the suites: every row computes its problem, and wrong rows are detected."""

import dataclasses
import itertools
import math
import sys

import pytest
import torch

import fourfold
from benchmarks import allocation, aten, elementwise, layers, measure, mlp, onnx_runtime, pointwise, recurrent, sweep
from benchmarks.functions import FUNCTIONS, adam, black_scholes, mandelbrot, rms_norm
from benchmarks.mlp import OUR_FUNCTION, SEQUENTIAL
from benchmarks.other_functions import OTHERS
from benchmarks.problem import FLOAT32, PRECISIONS, Candidate, Contender, Unavailable, bytes_kept, largest_norm
from benchmarks.recurrent import LSTM
from benchmarks.results import Comparison
from benchmarks.targets import BACKENDS, COLD, INDUCTOR, NO_GRAD, OURS, PLAIN
from fourfold import reference
from machine import ROOT, missing, output_of

SIZES = {"batch_size": 3, "input_size": 4, "hidden_size": 16, "time": 12}
CELL_SIZES = {"batch_size": 4, "input_size": 3, "hidden_size": 5}
MLP_SIZES = {"batch_size": 8, "input_size": 3, "hidden_size": 6, "output_size": 2}
SKIP = {"aten", "inductor"}
# torch's nn.LSTM in bfloat16 is oneDNN's, which needs AVX-512; otherwise the row reports this.
WITHOUT_BFLOAT16 = "failed: RuntimeError: could not create a primitive descriptor for the LSTM"


def prepare(problem, contender, skip=()):
    own = contender.own(problem)
    return measure.prepare(own, contender, own.exact(), skip)


def check(problem):
    """Every row is correct or left out; returns the names of those that were checked."""
    checked = []
    for contender in problem.rows:
        row, candidate = prepare(problem, contender, SKIP)
        allowed = ("left out", "not installed") + (WITHOUT_BFLOAT16,) * (
            not row.own and problem.precision.products == torch.bfloat16
        )
        assert candidate is not None or row.reason.startswith(allowed), (row.name, row.reason)
        checked += [row.name] * (candidate is not None)
    return checked


def test_precisions_set_tf32_and_put_it_back():
    units = {"float32": 2**-24, "tf32": 2**-11, "bfloat16": 2**-8, "float16": 2**-11, "float64": 2**-53}
    assert {name: p.unit for name, p in PRECISIONS.items()} == {**units, "autocast": 2**-8}
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    for precision in PRECISIONS.values():
        with precision.allowed():
            assert matmul.allow_tf32 == cudnn.allow_tf32 == (precision.name == "tf32")
            assert (matmul.fp32_precision == "tf32") == (precision.name == "tf32")  # the operators read this
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before


@pytest.mark.parametrize("kind", layers.GATES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "autocast"])
def test_every_row_of_a_sequence_is_right(kind, precision):
    names = check(recurrent.whole(kind, SIZES, PRECISIONS[precision]))
    assert names[0] == PLAIN and names[-1] == OURS
    if kind == "GRU" or precision == "float32" or torch.cpu._is_avx512_supported():
        assert (LSTM if kind == "LLTM" else f"nn.{kind}") in names


def test_autocast_is_entered_by_each_call():
    problem = recurrent.whole("LSTM", SIZES, PRECISIONS["autocast"])
    assert {tensor.dtype for tensor in (*problem.inputs, *problem.parameters)} == {torch.float32}
    seen = []

    def call(*inputs):
        seen.append(torch.is_autocast_enabled("cpu"))
        return inputs

    problem.prepared(Candidate(call, ())).call(*problem.inputs)
    assert seen == [True] and not torch.is_autocast_enabled("cpu")
    assert problem.rounding == pytest.approx(4 * 2**-8 * math.sqrt(12))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_every_row_of_packed_sequences_rollouts_and_steps_is_right(kind):
    rival = f"nn.{kind}"
    packed = recurrent.packed(kind, {**SIZES, "batch_size": 12})
    assert packed.batch_sizes.tolist() == list(range(12, 0, -1))  # the mean length is half the longest
    assert packed.inputs[0].shape == (78, 4) and check(packed) == [PLAIN, rival, OURS]
    for time in (1, 3):
        names = check(recurrent.few_steps(kind, {**SIZES, "time": time}))
        assert names == [rival, *[f"{rival}Cell"] * (time == 1), OURS, f"{OURS}, frozen"]
    rollout = recurrent.rollout(kind, {**SIZES, "time": 40})
    assert 0 < rollout.reset.sum() < rollout.reset.numel()
    assert check(rollout) == [f"{rival} called step by step", OURS]
    forgetful = Contender(OURS, lambda problem: layers.ours(dataclasses.replace(problem, reset=None)))
    assert prepare(rollout, forgetful)[0].wrong  # restarts change the result


def test_a_frozen_row_is_frozen_with_the_problems_weights():
    problem = recurrent.few_steps("LSTM", {**SIZES, "time": 1})
    row, candidate = prepare(problem, problem.rows[-1])
    assert not row.wrong
    with torch.no_grad():
        candidate.parameters[0].zero_()
    with pytest.raises(RuntimeError, match="freeze"), torch.no_grad():
        candidate.call(*problem.inputs)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_every_row_of_a_perceptron_is_right(activation):
    names = check(mlp.problem(MLP_SIZES, activation=activation))
    assert names[:2] == [SEQUENTIAL, f"{PLAIN}, functional"] and names[-1] == OURS
    assert (OUR_FUNCTION in names) is (activation == "relu")


def test_what_is_kept_for_the_backward_is_counted_once():
    problem = mlp.problem(MLP_SIZES)
    assert bytes_kept(problem, mlp.sequential(problem)) == 8 * 6 * 4  # relu's result, which the last layer saves too
    row, _ = prepare(problem, Contender("x", mlp.sequential))
    assert row.kept == 192


def off_in_the_output(problem):
    right = problem.rows[0].build(problem)

    def call(*inputs):
        first, *others = right.call(*inputs)
        return first * 1.001, *others

    return Candidate(call, right.parameters)


def off_in_one_unit(problem):
    right = problem.rows[-1].build(problem)

    def call(*inputs):
        output, h, c = right.call(*inputs)
        return output, h, torch.cat([c[:, :-1], torch.zeros_like(c[:, -1:])], dim=1)

    return Candidate(call, right.parameters)


def off_in_the_gradient(problem):
    right = pointwise.candidate(problem, FUNCTIONS["sin2_cos2"], "")
    return Candidate(lambda: (right.call()[0] + 1e-4 * right.parameters[0],), right.parameters)


def off_by_little(problem):
    return Candidate(lambda x, y: (reference.axpby(x, y) * (1 + 1e-5),), ())


@pytest.mark.parametrize(
    ("problem", "off"),
    [
        (lambda: recurrent.one_cell(CELL_SIZES), off_in_the_output),
        (lambda: recurrent.whole("LLTM", {**SIZES, "hidden_size": 64}, PRECISIONS["bfloat16"]), off_in_one_unit),
        (lambda: pointwise.problem(FUNCTIONS["sin2_cos2"], 100), off_in_the_gradient),
        (lambda: elementwise.problem("axpby", 100), off_by_little),
    ],
    ids=["cell", "sequence", "function", "elementwise"],
)
def test_a_row_that_computes_something_else_is_not_timed(problem, off):
    task = problem()
    (ours,) = measure.compare(task, [Contender(OURS, off)], repeats=1)
    assert ours.wrong and not ours.samples and ours.reason.startswith("WRONG: relative error")
    assert Comparison(task, 1, [ours]).losses() == [f"fourfold was not measured: {ours.reason}"]


def test_nan_is_never_close():
    exact = [torch.ones(3, dtype=torch.float64)]
    assert largest_norm([torch.tensor([1.0, math.nan, 1.0])], exact) == math.inf
    assert largest_norm([torch.tensor([1.0, 1.0, 1.0])], exact) == 0
    assert largest_norm([torch.tensor([1.0, 1.0, 2.0])], exact) == pytest.approx(3**-0.5)


def test_compiling_a_long_loop_is_left_out():
    rows = [recurrent.rows_of("LLTM", {**SIZES, "time": time}, FLOAT32, "cuda")[1] for time in (128, 129)]
    assert [row.name for row in rows] == [INDUCTOR] * 2
    assert [row.left_out.partition(":")[0] for row in rows] == ["", "left out above 128 steps"]


@pytest.mark.parametrize("op", ["softshrink", "axpby"])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_every_elementwise_row_is_right_and_moves_as_many_bytes(op, name):
    problem = elementwise.problem(op, 1000, PRECISIONS[name])
    moved = (len(problem.inputs) + 1) * 1000 * PRECISIONS[name].dtype.itemsize
    first = problem.rows[0]
    assert problem.rate.of(1.0) == moved / 1e9
    assert first.name == elementwise.COPY and 2 * first.own(problem).inputs[0].nbytes == moved
    assert len(check(problem)) == len(problem.rows) == 3 + (op == "axpby")


@pytest.mark.parametrize("k", range(len(elementwise.TENSORS) + len(elementwise.LAYOUTS)))
def test_every_row_of_few_elements_and_of_views_is_right(k):
    made = [*map(elementwise.call_problem, elementwise.TENSORS)]
    problem = made[k] if k < len(made) else elementwise.view_problem(*elementwise.LAYOUTS[k - len(made)])
    assert problem.trains == (problem.sizes["elements"] == elementwise.FEW)
    assert problem.trains or not all(x.is_contiguous() and x.shape == problem.inputs[0].shape for x in problem.inputs)
    assert check(problem) == [{"softshrink": "F.softshrink", "axpby": "torch.add(alpha=)"}[problem.kind], OURS]


def test_cold_rows_are_the_gpus(monkeypatch):
    monkeypatch.setattr(elementwise, "draw", lambda shape, precision, device, seed: torch.ones(4))
    large, small = (elementwise.problem("axpby", count, FLOAT32, "cuda") for count in (10**7, 10**6))
    assert large.phases == (COLD, NO_GRAD) and large.works == ("axpby, 10 million elements or more",)
    assert small.works == () and elementwise.problem("axpby", 10**7).phases == (NO_GRAD,)


@pytest.mark.parametrize("function", (FUNCTIONS | OTHERS).values(), ids=FUNCTIONS | OTHERS)
@pytest.mark.sweep
def test_every_row_of_a_function_is_right(function):
    problem = pointwise.problem(function, 200)
    assert problem.trains == (function.gradients > 0) and len(problem.parameters) == function.gradients
    assert check(problem) == [name for name in BACKENDS if name != INDUCTOR]


@pytest.mark.parametrize("layout", pointwise.LAYOUTS, ids=lambda layout: f"{layout[1]}, {layout[0]}")
def test_every_row_of_strided_arguments_is_right(layout, monkeypatch):
    monkeypatch.setattr(pointwise, "LAYOUT_ELEMENTS", pointwise.MANY)
    problem = pointwise.strided_problem(*layout)
    assert not all(x.is_contiguous() for x in (*problem.parameters, *problem.inputs)) and layout[0] in problem.title
    candidate = pointwise.candidate(problem, FUNCTIONS[layout[1]], "")
    assert [p.stride() for p in candidate.parameters] == [p.stride() for p in problem.parameters]
    check(problem)


@pytest.mark.parametrize("function", pointwise.LARGE_FUNCTIONS, ids=lambda function: function.name)
def test_every_row_of_large_activations_is_right(function, monkeypatch):
    monkeypatch.setattr(pointwise, "SPREAD_ELEMENTS", 2000)
    problem = pointwise.large_problem(function)
    assert [row.name for row in problem.rows] == [*BACKENDS, pointwise.ORDINARY]
    drawn = [(*p.parameters, *p.inputs) for p in (problem, problem.rows[-1].own(problem))]
    spread, same = (torch.cat([x.flatten() for x in tensors]).float() for tensors in drawn)
    assert same.abs().max() < 6 and (spread.abs().max() > 15 or 0.35 < spread[2000:].mean() < 0.45)
    check(problem)


def test_what_takes_as_long_as_plain_pytorch_is_left_out():
    problem, large = pointwise.problem(FUNCTIONS["adam"], 100), pointwise.rows_of(FUNCTIONS["adam"], pointwise.LARGE)
    rows = [prepare(problem, row, SKIP)[0] for row in large]
    assert [row.reason.split(":")[0].split(" by")[0] for row in rows] == ["", "left out", "left out", ""]


def test_what_the_functions_are():
    p, g, m, v = (torch.randn(5, dtype=torch.float64) for _ in range(4))
    parameter = p.clone().requires_grad_()
    optimizer = torch.optim.Adam([parameter], lr=1e-3)
    state = {"step": torch.tensor(9.0), "exp_avg": m.clone(), "exp_avg_sq": v.abs()}
    optimizer.state[parameter], parameter.grad = state, g
    optimizer.step()
    expected = (parameter.detach(), state["exp_avg"], state["exp_avg_sq"])
    torch.testing.assert_close(adam(p, g, m, v.abs()), expected)
    call, put = black_scholes(*(torch.tensor(x) for x in (100.0, 100.0, 1.0, 0.2)))
    assert (round(call.item(), 2), round(put.item(), 2)) == (8.92, 6.94)
    x, weight = torch.randn(4, 6), torch.randn(6)
    torch.testing.assert_close(rms_norm(x, weight), torch.nn.functional.rms_norm(x, (6,), weight, 1e-6))
    z, c, steps = torch.tensor([1 + 1j, 2 + 1j]), torch.tensor([0.25j, 0.25j]), torch.zeros(2, dtype=torch.int64)
    x, y, steps = mandelbrot(z.real, z.imag, c.real, c.imag, steps)
    assert torch.complex(x, y).tolist() == [2.25j, 2 + 1j] and steps.tolist() == [1, 0]
    drawn = FUNCTIONS["mandelbrot"].draw(10_000, torch.Generator().manual_seed(1))
    wide = [x.double() if x.is_floating_point() else x for x in drawn]
    for single, double in zip(mandelbrot(*drawn), mandelbrot(*wide), strict=True):
        assert torch.equal(single, double.to(single.dtype))  # exact in float32


@pytest.mark.skipif(not allocation.can_be_kept(), reason="glibc's malloc is what is set")
def test_kept_memory_is_handed_out_again():
    """In a process of its own: malloc may reuse memory that others have freed, without a page fault."""
    code = """
import resource, torch
from benchmarks import allocation

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(10**7)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with allocation.kept():
    assert min(faults() for _ in range(10)) < 10  # first, what malloc has in one piece may be just too small
assert faults() >= 10**7 * 4 / 2**21  # pages of 2 MB at the most
"""
    output_of(sys.executable, "-c", code, cwd=ROOT)


def test_onnx_runtime_that_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Unavailable, match="not installed: onnxruntime; pip install onnx onnxruntime"):
        onnx_runtime.layer(recurrent.whole("LSTM", SIZES))


def test_the_extension_without_a_compiler_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    with pytest.raises(Unavailable, match="can't be built: .*(not found|[Nn]inja|No such file)"):
        aten.extension.__wrapped__()


def test_inductor_that_fails_says_why(monkeypatch):
    def no_compiler(module, backend):
        raise RuntimeError("\nInvalidCxxCompiler: No working C++ compiler found\n\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(torch, "compile", no_compiler)
    task = recurrent.one_cell(CELL_SIZES)
    row, candidate = prepare(task, task.rows[2])
    assert candidate is None and not row.wrong
    assert row.reason == "can't be compiled: RuntimeError: InvalidCxxCompiler: No working C++ compiler found"


@pytest.mark.parametrize(
    ("problem", "sizes"), [(recurrent.one_cell, CELL_SIZES), (mlp.problem, MLP_SIZES)], ids=["cell", "mlp"]
)
@pytest.mark.slow
def test_the_extension_computes_the_definition(problem, sizes):
    try:
        aten.extension()
    except Unavailable as unavailable:
        missing(str(unavailable))
    task = problem(sizes)
    (contender,) = (c for c in task.rows if c.name.startswith("C++"))
    row, candidate = prepare(task, contender)
    assert candidate is not None, row.reason


POINT = sweep.Point("LSTM", 3, 2, 4, 16, "float32", 1, False, True)


def test_a_seed_draws_the_same_points_of_all_kinds():
    points, same, others = (list(itertools.islice(sweep.draw(seed, [1, 2]), 200)) for seed in (1, 1, 2))
    assert points == same != others and all(point.work <= sweep.MOST_WORK for point in points)
    values = {field: {getattr(point, field) for point in points} for field in vars(POINT)}
    assert values["layer"] == {"LSTM", "GRU"} and values["dtype"] == {"float32", "bfloat16", "float64"}
    assert values["threads"] == {1, 2} and values["bidirectional"] == values["training"] == {True, False}
    for field in ("time", "batch_size", "input_size", "hidden_size"):
        assert any(value % 2 for value in values[field])


def test_on_a_gpu_the_points_are_larger_and_have_its_dtypes():
    points = list(itertools.islice(sweep.draw(1, [1], "cuda"), 200))
    assert {point.dtype for point in points} == {"float32", "tf32", "bfloat16", "float16"}
    assert max(point.work for point in points) > sweep.MOST_WORK and {point.device for point in points} == {"cuda"}
    on_gpu = dataclasses.replace(POINT, device="cuda")
    report = sweep.report("some points", [sweep.Measured(on_gpu, 1.0, 2.0, 0.5, 0.0, 1.0, graphed=True)])
    assert report.headings[1] == "CUDA graph" and report.cells[0][1] == "yes"


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("layer", "dtype", "bidirectional"), [("LSTM", "float64", True), ("GRU", "float32", False)])
def test_a_point_of_the_sweep_is_checked_and_timed(layer, dtype, training, bidirectional):
    point = dataclasses.replace(POINT, layer=layer, dtype=dtype, training=training, bidirectional=bidirectional)
    (found,) = sweep.measure(point, 1)
    assert not found.wrong and found.ratio > 0 and found.error <= found.allowed, found


def test_wrong_numbers_of_the_sweep_are_not_timed(monkeypatch):
    forward = fourfold.nn.LSTM.forward
    monkeypatch.setattr(fourfold.nn.LSTM, "forward", lambda self, x: (forward(self, x)[0] * 1.01, None))
    (found,) = sweep.measure(POINT, 1)
    assert found.wrong and math.isnan(found.ratio)
    report = sweep.report("some points", [found])
    assert report.wrong and "WRONG" in report.plain() and POINT.words in report.plain()


def test_what_torch_cannot_run_in_the_sweep_is_left_out_with_its_reason(monkeypatch):
    forward, calls = torch.nn.LSTM.forward, []

    def refuse(self, x):
        calls.append(x)
        if x.dtype == torch.float64:
            return forward(self, x)
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(torch.nn.LSTM, "forward", refuse)
    report = sweep.report("some points", sweep.measure(POINT, 1))
    assert not report.wrong and "could not create a primitive" in report.plain()
    assert [outcome.measured for outcome in report.outcomes] == [None, None]


def test_slower_points_are_listed_worst_first():
    ratios = [2.0, 0.97, 4.0, 0.5, 3.0]
    report = sweep.report("some points", [sweep.Measured(POINT, ratio, 1.0, ratio, 0.0, 1.0) for ratio in ratios])
    assert [row[-1] for row in report.cells] == ["0.50×", "0.97×"]
    assert "median 2.00×; 2 below 1, 1 below 0.95; worst 0.50×" in report.plain()
    assert [(outcome.measured, outcome.met) for outcome in report.outcomes] == [(2.0, False), (0.5, False)]
