"""The benchmark of functions under torch.compile's backends: that each is what it says, and what is compared."""

import dataclasses
import json
import resource

import pytest
import torch

from benchmarks import allocation, comparison, large, pointwise, tables
from benchmarks.__main__ import main
from benchmarks.backends import AOT_EAGER, BACKENDS, INDUCTOR, PLAIN
from benchmarks.functions import FUNCTIONS, adam, black_scholes, mandelbrot, rms_norm
from benchmarks.problem import BOTH, NO_GRAD, OURS, Candidate
from benchmarks.request import Request

SKIP = {"inductor"}


def check(problem):
    """Every row but Inductor's is right."""
    for contender in pointwise.contenders(problem, SKIP):
        row, candidate = comparison.prepare(problem, contender, problem.exact())
        assert (candidate is None) == (row.name == INDUCTOR), (row.name, row.reason)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_row_of_a_function_is_right(function):
    problem = pointwise.problem(function, 200)
    assert problem.trains == (function.gradients > 0) and len(problem.parameters) == function.gradients
    assert [x.dtype for x in problem.parameters] == [torch.float32] * function.gradients
    check(problem)


@pytest.mark.parametrize("layout", pointwise.LAYOUTS, ids=lambda layout: f"{layout.function}, {layout.words}")
def test_every_row_of_strided_arguments_is_right(layout, monkeypatch):
    monkeypatch.setattr(pointwise, "LAYOUT_ELEMENTS", pointwise.MANY)
    problem = pointwise.strided_problem(layout)
    given = (*problem.parameters, *problem.inputs)
    assert not all(x.is_contiguous() for x in given) and layout.words in problem.title
    candidate = pointwise.candidate(problem, "")
    assert [p.stride() for p in candidate.parameters] == [p.stride() for p in problem.parameters]
    assert {target.work for target in problem.targets} == {"strided arguments"}
    check(problem)


@pytest.mark.parametrize("name", large.FUNCTIONS)
def test_every_row_of_large_activations_is_right(name, monkeypatch):
    monkeypatch.setattr(large, "ELEMENTS", 2000)
    problem = pointwise.large_problem(name)
    assert {target.rival for target in problem.targets} == {PLAIN, large.ORDINARY}
    assert [row.name for row in pointwise.contenders(problem, ())] == [*BACKENDS, large.ORDINARY]
    ordinary = pointwise.contenders(problem, ())[-1].problem
    spread = torch.cat([x.flatten() for x in (*problem.parameters, *problem.inputs)]).float()
    same = torch.cat([x.flatten() for x in (*ordinary.parameters, *ordinary.inputs)]).float()
    assert same.abs().max() < 6 and (spread.abs().max() > 15 or 0.35 < spread[2000:].mean() < 0.45)
    check(problem)


def test_a_row_of_other_gradients_is_wrong():
    problem = pointwise.problem(FUNCTIONS["sin2_cos2"], 100)
    right = pointwise.candidate(problem, "")
    off = Candidate(lambda: (right.call()[0] + 1e-4 * right.parameters[0],), right.parameters)
    assert comparison.prepare(problem, comparison.Contender(OURS, lambda: off), problem.exact())[0].wrong
    # sin² + cos² has no gradient but what rounding leaves of it, in float64 too
    assert problem.exact()[1].abs().max() < pointwise.CANCELLED


def test_what_the_functions_are():
    p, g, m, v = (torch.randn(5, dtype=torch.float64) for _ in range(4))
    parameter = p.clone().requires_grad_()
    optimizer = torch.optim.Adam([parameter], lr=1e-3)
    state = {"step": torch.tensor(9.0), "exp_avg": m.clone(), "exp_avg_sq": v.abs()}
    optimizer.state[parameter], parameter.grad = state, g
    optimizer.step()
    for ours, theirs in zip(adam(p, g, m, v.abs()), (parameter, state["exp_avg"], state["exp_avg_sq"]), strict=True):
        torch.testing.assert_close(ours, theirs.detach())
    call, put = black_scholes(*(torch.tensor(x) for x in (100.0, 100.0, 1.0, 0.2)))
    assert (round(call.item(), 2), round(put.item(), 2)) == (8.92, 6.94)
    weight = torch.randn(6)
    x = torch.randn(4, 6)
    torch.testing.assert_close(rms_norm(x, weight), torch.nn.functional.rms_norm(x, (6,), weight, 1e-6))
    z, c, steps = torch.tensor([1 + 1j, 2 + 1j]), torch.tensor([0.25j, 0.25j]), torch.zeros(2, dtype=torch.int64)
    x, y, steps = mandelbrot(z.real, z.imag, c.real, c.imag, steps)
    assert torch.complex(x, y).tolist() == [2.25j, 2 + 1j] and steps.tolist() == [1, 0]


def test_a_mandelbrot_steps_numbers_are_exact_in_float32():
    drawn = FUNCTIONS["mandelbrot"].draw(10_000, torch.Generator().manual_seed(1))
    wide = [x.double() if x.is_floating_point() else x for x in drawn]
    for single, double in zip(mandelbrot(*drawn), mandelbrot(*wide), strict=True):
        assert torch.equal(single, double.to(single.dtype))


def test_sizes_layouts_and_kept_memory(monkeypatch):
    monkeypatch.setattr(pointwise, "ELEMENTS", (10, 20))
    monkeypatch.setattr(pointwise, "LARGE", 20)
    monkeypatch.setattr(pointwise, "LAYOUT_ELEMENTS", 1000)
    monkeypatch.setattr(pointwise.allocation, "can_be_kept", lambda: True)
    found = list(pointwise.problems(Request("pointwise", kinds=["gelu_erf", "adam"])))
    assert [(p.kind, p.sizes["elements"], p.threads, "malloc" in p.title) for p in found] == [
        ("gelu_erf", 10, None, False),
        ("adam", 10, None, False),
        ("adam", 20, (1,), False),
        ("adam", 1000, (1,), False),
        ("gelu_erf", 20, None, True),
        ("adam", 20, None, True),
    ]
    assert [p.around is allocation.kept for p in found] == [False] * 4 + [True] * 2
    asked = Request("pointwise", {"elements": [30]}, kinds=["adam"])
    assert [p.sizes["elements"] for p in pointwise.problems(asked)] == [30]
    monkeypatch.setattr(pointwise.allocation, "can_be_kept", lambda: False)
    every = [problem.kind for problem in pointwise.problems(Request("pointwise"))]
    assert [kind for kind in every if kind in large.FUNCTIONS] == list(large.FUNCTIONS)
    elsewhere = list(pointwise.problems(Request("pointwise", kinds=["gelu_erf"])))
    assert [(p.sizes["elements"], "malloc" in p.title) for p in elsewhere] == [(10, False), (20, False)]
    assert [p.threads for p in pointwise.problems(Request("pointwise", {"elements": [20]}, kinds=["adam"]))] == [None]
    quick = list(pointwise.problems(Request("pointwise", quick=True)))
    counts = [p.sizes["elements"] for p in quick]
    assert counts == [10**3] * len(FUNCTIONS) + [10**5] * len(FUNCTIONS) + [1000]


def test_the_targets_of_functions_are_the_issues():
    def limits(name, count):
        return [(t.phase, t.limit, t.rival, t.threads) for t in pointwise.targets(FUNCTIONS[name], count)]

    training = [(BOTH, 2.5, INDUCTOR, None), (BOTH, 1.3, PLAIN, None)]
    assert limits("rms_norm", 10**3) == [(NO_GRAD, 1.3, INDUCTOR, None), *training]
    assert limits("adam", 10**3) == [(NO_GRAD, 1.3, INDUCTOR, None)]
    assert limits("rms_norm", 10**6) == [(NO_GRAD, 1.0, INDUCTOR, None), (BOTH, 1.0, INDUCTOR, None)]
    assert limits("sin2_cos2", 10**5) == [(NO_GRAD, 1.5, INDUCTOR, None), (BOTH, 1.5, INDUCTOR, None)]
    assert limits("sin2_cos2", 10**4) == []


def test_the_rows_of_a_function_and_which_are_left_out():
    problem = pointwise.problem(FUNCTIONS["adam"], 100)
    assert [row.name for row in pointwise.contenders(problem, ())] == [PLAIN, INDUCTOR, AOT_EAGER, OURS]
    large = dataclasses.replace(problem, sizes={"elements": pointwise.LARGE})
    rows = [comparison.prepare(large, row, large.exact())[0] for row in pointwise.contenders(large, SKIP)]
    assert [row.reason.split(":")[0].split(" by")[0] for row in rows] == ["", "left out", "left out", ""]
    assert tables.Comparison(large, 1, rows).ours.name == OURS and set(BACKENDS) == {row.name for row in rows}


@pytest.mark.skipif(not allocation.can_be_kept(), reason="glibc's malloc is what is set")
def test_kept_memory_is_handed_out_again():
    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(10**7)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with allocation.kept():
        assert min(faults() for _ in range(10)) < 10  # first, what malloc has in one piece may be just too small
    assert faults() >= 10**7 * 4 / 2**21  # pages of 2 MB at the most


def test_pointwise_from_end_to_end(capsys, tmp_path):
    file = tmp_path / "result.json"
    command = ["pointwise", "--function", "gelu_tanh", "mandelbrot", "--elements", "1000", "--skip", "inductor"]
    assert main([*command, "--repeats", "2", "--threads", "1", "2", "--json", str(file)]) == 0
    output, contents = capsys.readouterr().out, json.loads(file.read_text())
    assert "gelu_tanh of 1,000 elements, float32: 2 threads" in output
    assert [(result["kind"], result["threads"]) for result in contents["results"]] == [
        ("gelu_tanh", 1),
        ("gelu_tanh", 2),
        ("mandelbrot", 1),
        ("mandelbrot", 2),
    ]
    for result in contents["results"]:
        assert [row["name"] for row in result["rows"]] == list(BACKENDS)
        assert all(row["phases"] for row in result["rows"] if row["name"] != INDUCTOR)
    assert [target["rival" if "rival" in target else "against"] for target in contents["targets"]] == [
        INDUCTOR,
        INDUCTOR,
        PLAIN,
    ]
