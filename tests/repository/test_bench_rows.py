"""The rows of the suites: every row computes its problem, and a row that computes something else is not timed."""

import dataclasses
import itertools
import math
from functools import partial

import pytest
import torch

import fourfold
from benchmarks import aten, elementwise, layers, measure, mlp, pointwise, recurrent, sweep
from benchmarks.functions import FUNCTIONS
from benchmarks.other_functions import OTHERS
from benchmarks.problem import PRECISIONS, Candidate, Contender, Unavailable, bytes_kept, largest_norm
from benchmarks.results import Comparison
from benchmarks.targets import OURS
from machine import missing

SIZES = {"batch_size": 3, "input_size": 4, "hidden_size": 16, "time": 12}
CELL_SIZES = {"batch_size": 4, "input_size": 3, "hidden_size": 5}
MLP_SIZES = {"batch_size": 8, "input_size": 3, "hidden_size": 6, "output_size": 2}
# torch's nn.LSTM in bfloat16 is oneDNN's, which needs AVX-512; otherwise the row reports this.
WITHOUT_BFLOAT16 = "failed: RuntimeError: could not create a primitive descriptor for the LSTM"


def prepare(problem, contender, skip=()):
    own = contender.own(problem)
    return measure.prepare(own, contender, own.exact(), skip)


GATED = ("LSTM", "GRU")
PROBLEMS = {
    **{
        f"{kind} {name}": partial(recurrent.whole, kind, SIZES, PRECISIONS[name])
        for kind, name in itertools.product(layers.GATES, ("float32", "bfloat16", "float16", "autocast"))
    },
    **{f"packed {kind}": partial(recurrent.packed, kind, {**SIZES, "batch_size": 12}) for kind in GATED},
    **{f"rollout {kind}": partial(recurrent.rollout, kind, {**SIZES, "time": 40}) for kind in GATED},
    **{
        f"{time} steps {kind}": partial(recurrent.few_steps, kind, {**SIZES, "time": time})
        for kind, time in itertools.product(GATED, (1, 3))
    },
    **{f"perceptron {name}": partial(mlp.problem, MLP_SIZES, activation=name) for name in ("relu", "tanh")},
    **{
        f"{op} {name}": partial(elementwise.problem, op, 1000, PRECISIONS[name])
        for op, name in itertools.product(elementwise.TENSORS, ("float32", "bfloat16", "float16"))
    },
    **{f"few {op}": partial(elementwise.call_problem, op) for op in elementwise.TENSORS},
    **{f"{layout[1]} {layout[0]}": partial(elementwise.view_problem, *layout) for layout in elementwise.LAYOUTS},
    **{name: partial(pointwise.problem, function, 200) for name, function in (FUNCTIONS | OTHERS).items()},
    **{f"{layout[1]} {layout[0]}": partial(pointwise.strided_problem, *layout) for layout in pointwise.LAYOUTS},
    **{f"large {each.name}": partial(pointwise.large_problem, each) for each in pointwise.LARGE_FUNCTIONS},
}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_every_row_is_right(problem, monkeypatch):
    """Or says why it is left out. Rows of compilers have tests of their own."""
    monkeypatch.setattr(pointwise, "LAYOUT_ELEMENTS", pointwise.MANY)
    monkeypatch.setattr(pointwise, "SPREAD_ELEMENTS", 2000)
    task, checked = problem(), []
    for contender in task.rows:
        row, candidate = prepare(task, contender, {"aten", "inductor"})
        allowed = ("left out", "not installed")
        if not row.own and task.precision.products == torch.bfloat16:
            allowed += (WITHOUT_BFLOAT16,)
        assert candidate is not None or row.reason.startswith(allowed), (row.name, row.reason)
        checked += [row.name] * (candidate is not None)
    assert any(name.split(",")[0] == OURS for name in checked) and len(checked) > 1


def test_a_rollout_with_its_restarts_forgotten_is_wrong():
    rollout = recurrent.rollout("LSTM", {**SIZES, "time": 40})
    forgetful = Contender(OURS, lambda problem: layers.ours(dataclasses.replace(problem, reset=None)))
    assert prepare(rollout, forgetful)[0].wrong


def test_bytes_are_those_that_move_and_those_that_are_kept():
    axpby = elementwise.problem("axpby", 1000, PRECISIONS["bfloat16"])
    assert axpby.rate.of(1.0) == 3 * 1000 * 2 / 1e9
    assert 2 * axpby.rows[0].own(axpby).inputs[0].nbytes == 6000  # copying reads and writes
    problem = mlp.problem(MLP_SIZES)
    assert bytes_kept(problem, mlp.sequential(problem)) == 8 * 6 * 4  # relu's result, which the last layer saves too


def off_in_one_unit(problem):
    right = problem.rows[-1].build(problem)

    def call(*inputs):
        output, h, c = right.call(*inputs)
        return output, h, torch.cat([c[:, :-1], torch.zeros_like(c[:, -1:])], dim=1)

    return Candidate(call, right.parameters)


def off_in_the_gradient(problem):
    right = pointwise.candidate(problem, FUNCTIONS["sin2_cos2"], "")
    return Candidate(lambda: (right.call()[0] + 1e-4 * right.parameters[0],), right.parameters)


@pytest.mark.parametrize(
    ("problem", "off"),
    [
        (lambda: recurrent.whole("LLTM", {**SIZES, "hidden_size": 64}, PRECISIONS["bfloat16"]), off_in_one_unit),
        (lambda: pointwise.problem(FUNCTIONS["sin2_cos2"], 100), off_in_the_gradient),
    ],
    ids=["sequence", "function"],
)
def test_a_row_that_computes_something_else_is_not_timed(problem, off):
    task = problem()
    (ours,) = measure.compare(task, [Contender(OURS, off)], repeats=1)
    assert ours.wrong and not ours.samples and ours.reason.startswith("WRONG: relative error")
    assert Comparison(task, 1, [ours]).losses() == [f"fourfold was not measured: {ours.reason}"]


def test_nan_is_never_close():
    exact = [torch.ones(3, dtype=torch.float64)]
    assert largest_norm([torch.tensor([1.0, math.nan, 1.0])], exact) == math.inf
    assert largest_norm([torch.tensor([1.0, 1.0, 2.0])], exact) == pytest.approx(3**-0.5)


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


def test_wrong_numbers_of_the_sweep_are_not_timed(monkeypatch):
    forward = fourfold.nn.LSTM.forward
    monkeypatch.setattr(fourfold.nn.LSTM, "forward", lambda self, x: (forward(self, x)[0] * 1.01, None))
    (found,) = sweep.measure(POINT, 1)
    assert found.wrong and math.isnan(found.ratio)
    report = sweep.report("some points", [found])
    assert report.wrong and "WRONG" in report.plain() and POINT.words in report.plain()
