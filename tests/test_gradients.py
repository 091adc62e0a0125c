"""Every way to compute a gradient gives the correct one, or the call raises; never None, never zeros."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold.operators._operator import declared
from layouts import LAYOUTS, SHIFTED_NAMES, laid_out, shifted_one_by_one
from machine import devices
from op_cases import (
    CASES,
    SIMULATED,
    Case,
    by_dtype,
    case_id,
    differentiable,
    flatten,
    has_dtype,
    tolerance,
    wider,
    widest,
)

GRADIENT_CASES = [case for case in CASES if case.gradient]
FEW = [case for case in GRADIENT_CASES if case.every_path]  # for tests that take seconds each
FEWEST = list({case.op: case for case in reversed(FEW)}.values()) + [case for case in FEW if case.id == "lstm-packed"]


def test_every_operator_takes_every_path() -> None:
    assert {case.op for case in FEW} == {case.op for case in FEWEST} == set(fourfold.operator_names())
    assert len(FEWEST) == len(fourfold.operator_names()) + 1


def floating(case_and_dtype: tuple[Case, torch.dtype]) -> bool:
    return case_and_dtype[1].is_floating_point


def weights_for(outputs: list[Tensor]) -> list[Tensor]:
    """Factors that differ between elements and are exact in every dtype; not random, because vmap rejects random
    operators."""
    return [((torch.arange(o.numel(), device=o.device) * 5 % 13 - 5) / 8).to(o.dtype).reshape(o.shape) for o in outputs]


def gradients(function: Any, args: tuple, unused: bool = False) -> list[Tensor]:
    """``unused``: whether an argument may be missing from the function's graph, as in the reference with no steps."""
    args, leaves = differentiable(args)
    outputs = flatten(function(*args))
    loss = sum((o * w.to(o.dtype)).sum() for o, w in zip(outputs, weights_for(outputs), strict=True))
    return list(torch.autograd.grad(loss, leaves, materialize_grads=unused))


def expect_same(
    results: list[Tensor],
    expected: list[Tensor],
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    sequence: bool = False,
) -> None:
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        allowed = tolerance(wanted, dtype, device, gradient=True, sequence=sequence)
        torch.testing.assert_close(result.cpu().double(), wanted.cpu().double(), **allowed)


def raw(case: Case) -> Any:
    """The operator itself, as exported and C++ programs call it, without the tensors that it saves for its backward."""
    op = getattr(torch.ops.fourfold, case.op)
    saved = declared[case.op].kept
    has_lists, places = case.has_lists, [] if case.has_lists else case.placed(len(case.arguments(torch.float32)))

    def call(*args: Any) -> Any:
        out = op(*(case.nested(args) if has_lists else (default if k is None else args[k] for k, default in places)))
        return out[: len(out) - saved] if saved else out

    return call


@pytest.mark.parametrize(
    ("case", "dtype", "layout", "device"), laid_out(list(filter(floating, by_dtype(GRADIENT_CASES)))), ids=case_id
)
def test_autograd(case: Case, dtype: torch.dtype, layout: str, device: str) -> None:
    args = case.arguments(dtype, device=device)
    expected = gradients(case.reference, tuple(map(wider, args)), unused=True)
    results = gradients(lambda *leaves: case.function(*map(LAYOUTS[layout], leaves)), args)
    assert all(r.dtype == dtype for r in results)
    expect_same(results, expected, dtype, device, case.is_sequence)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("case", GRADIENT_CASES, ids=case_id)
def test_raw_operator(case: Case, device: str) -> None:
    dtype = widest(device)
    args = case.arguments(dtype, device=device)
    expected = gradients(case.reference, tuple(map(wider, args)), unused=True)
    expect_same(gradients(raw(case), args), expected, dtype, device)


def backward_arguments(case: Case, args: tuple) -> tuple:
    """The arguments of the raw operator's backward if all gradients of outputs are one."""
    operator, args = declared[case.op], case.by_schema(args)
    outputs = getattr(torch.ops.fourfold, case.op)(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    named = vars(operator.schema.named(args))
    results = [returned.name for returned in getattr(torch.ops.fourfold, case.op).default._schema.returns]
    named |= dict(zip(results, outputs, strict=True))
    named |= {f"grad_{name}": torch.ones_like(output) for name, output in zip(results, outputs, strict=True)}
    named |= {"grad": torch.ones_like(outputs[0])}
    if operator.backward:
        named["output_mask"] = [True] * len(differentiated(case, args))
    wanted = getattr(torch.ops.fourfold, f"{case.op}_backward").default._schema.arguments
    return tuple(named[argument.name] for argument in wanted)


def differentiated(case: Case, args: tuple) -> list[str]:
    """The name of each gradient that a backward returns, repeated for each element of a list."""
    schema, backward = declared[case.op].schema, declared[f"{case.op}_backward"].schema
    lengths, _ = schema.flatten(args)
    sizes = {name: len(span) for name, span in zip(schema.arguments, schema.spans(lengths), strict=True)}
    return [name for name in backward.results for _ in range(sizes[name.removeprefix("grad_")])]


@pytest.mark.parametrize(
    ("case", "dtype", "layout", "device"),
    laid_out(by_dtype([c for c in CASES if declared[c.op].kept]), ["strided", "shifted"]),
    ids=case_id,
)
def test_raw_backward_takes_any_layout(case: Case, dtype: torch.dtype, layout: str, device: str) -> None:
    backward = getattr(torch.ops.fourfold, f"{case.op}_backward")
    args = backward_arguments(case, case.arguments(dtype, device=device))
    # Not bit by bit: a vendor's product may sum in another order for another layout.
    results, expected = backward(*map(LAYOUTS[layout], args)), backward(*args)
    expect_same(flatten(results), flatten(expected), dtype, device, case.is_sequence)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=case_id)
@pytest.mark.parametrize("case", [c for c in CASES if declared[c.op].kept and c.name in SHIFTED_NAMES], ids=case_id)
def test_any_argument_of_the_backward_may_be_shifted(case: Case, dtype: torch.dtype, device: str) -> None:
    backward = getattr(torch.ops.fourfold, f"{case.op}_backward")
    args = backward_arguments(case, case.arguments(dtype, device=device))
    expected = flatten(backward(*args))
    for moved in shifted_one_by_one(args):
        expect_same(flatten(backward(*moved)), expected, dtype, device, case.is_sequence)


@pytest.mark.parametrize("case", FEW, ids=case_id)
def test_each_input_alone(case: Case) -> None:
    """Gradients that are not requested are not computed, without affecting the others."""
    args = case.arguments(widest())
    expected = gradients(case.reference, args)
    places = [k for k, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]
    for place, wanted in zip(places, expected, strict=True):
        leaf = args[place].clone().requires_grad_()
        outputs = flatten(case.function(*args[:place], leaf, *args[place + 1 :]))
        loss = sum((o * w).sum() for o, w in zip(outputs, weights_for(outputs), strict=True))
        expect_same(list(torch.autograd.grad(loss, leaf)), [wanted], widest())


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("case", [c for c in FEW if declared[c.op].kept], ids=case_id)
def test_a_backward_leaves_out_what_is_not_needed(case: Case, device: str) -> None:
    """Their results are empty, and the others keep their bits: each gradient alone, all but one, and none."""
    backward = getattr(torch.ops.fourfold, f"{case.op}_backward")
    args = backward_arguments(case, case.arguments(torch.float32, device=device))
    expected, count = flatten(backward(*args)), len(args[-1])
    alone = [[k == one for k in range(count)] for one in range(count)]
    for mask in (*alone, *([not wanted for wanted in mask] for mask in alone), [False] * count):
        for wanted, result, full in zip(mask, flatten(backward(*args[:-1], mask)), expected, strict=True):
            if wanted:
                torch.testing.assert_close(result, full, rtol=0, atol=0)
            else:
                assert result.shape == (0,), mask
    with pytest.raises((RuntimeError, ValueError), match=f"have one for each of the {count} gradients, but got 0"):
        backward(*args[:-1], [])


@pytest.mark.parametrize("case", [c for c in FEW if c.op in ("lltm_cell", "lltm", "lstm", "gru")], ids=case_id)
def test_each_output_alone(case: Case) -> None:
    args = case.arguments(widest())
    for k in range(len(flatten(case.function(*args)))):
        expect_same(
            gradients(lambda *a, k=k: flatten(case.function(*a))[k], args),
            gradients(lambda *a, k=k: flatten(case.reference(*a))[k], args),
            widest(),
        )


@pytest.mark.parametrize("device", [device for device in devices() if has_dtype(torch.float64, device)])
@pytest.mark.parametrize(
    ("case", "path"), [*((case, "function") for case in FEW), *((case, "raw") for case in FEWEST)], ids=case_id
)
def test_gradcheck(case: Case, path: str, device: str) -> None:
    """First and second derivatives against finite differences; the fast mode checks random projections."""
    args, _ = differentiable(case.arguments(torch.float64, device=device))
    chosen = case.function if path == "function" else raw(case)

    def function(*leaves: Any) -> tuple[Tensor, ...]:
        return tuple(flatten(chosen(*leaves)))

    assert torch.autograd.gradcheck(function, args, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, args, fast_mode=True)


@pytest.mark.parametrize("case", [c for c in GRADIENT_CASES if c.name in ("one", "0-d")], ids=case_id)
def test_gradcheck_of_every_element(case: Case) -> None:
    args, _ = differentiable(case.arguments(torch.float64))
    assert torch.autograd.gradcheck(lambda *a: tuple(flatten(case.function(*a))), args)
    assert torch.autograd.gradgradcheck(lambda *a: tuple(flatten(case.function(*a))), args)


def scalar_of(function: Any) -> Any:
    def of(*args: Any) -> Tensor:
        outputs = flatten(function(*args))
        return sum((o * w.to(o.dtype)).sum() for o, w in zip(outputs, weights_for(outputs), strict=True))

    return of


@pytest.mark.parametrize("path", ["function", "raw"])
@pytest.mark.parametrize("case", FEW, ids=case_id)
def test_func_transforms(case: Case, path: str) -> None:
    function = scalar_of(case.function if path == "function" else raw(case))
    args = case.arguments(torch.float64)
    places = tuple(k for k, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point())
    wanted = scalar_of(case.reference)
    expect_same(list(torch.func.grad(function, places)(*args)), list(torch.func.grad(wanted, places)(*args)))

    def twice(f: Any) -> Any:
        return torch.func.grad(lambda *a: torch.func.grad(f)(*a).square().sum(), places)

    expect_same(list(twice(function)(*args)), list(twice(wanted)(*args)))

    tangents = tuple(torch.randn_like(args[k]) for k in places)

    def of_places(f: Any) -> Any:
        return lambda *tensors: f(*[tensors[places.index(k)] if k in places else a for k, a in enumerate(args)])

    primals = tuple(args[k] for k in places)
    _, result = torch.func.jvp(of_places(function), primals, tangents)
    _, expected = torch.func.jvp(of_places(wanted), primals, tangents)
    expect_same([result], [expected])


@pytest.mark.parametrize("mapped", ["first", "all"])
@pytest.mark.parametrize("case", FEW, ids=case_id)
def test_vmap_and_its_gradient(case: Case, mapped: str) -> None:
    args = case.arguments(torch.float64)
    others = [case.arguments(torch.float64, seed) for seed in (1, 2)]
    tensors = [k for k, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]
    chosen = tensors[:1] if mapped == "first" else tensors
    in_dims = tuple(0 if k in chosen else None for k in range(len(args)))
    stacked = tuple(torch.stack([a, *(other[k] for other in others)]) if k in chosen else a for k, a in enumerate(args))
    for function in (case.function, raw(case)):
        results = flatten(torch.vmap(function, in_dims)(*stacked))
        singles = [
            flatten(case.reference(*(s[n] if k in chosen else s for k, s in enumerate(stacked)))) for n in range(3)
        ]
        expect_same(results, [torch.stack(column) for column in zip(*singles, strict=True)])

        grads = torch.vmap(torch.func.grad(scalar_of(function), tuple(tensors)), in_dims)(*stacked)
        wanted = [
            torch.func.grad(scalar_of(case.reference), tuple(tensors))(
                *(s[n] if k in chosen else s for k, s in enumerate(stacked))
            )
            for n in range(3)
        ]
        expect_same(list(grads), [torch.stack(column) for column in zip(*wanted, strict=True)])

        def outer(f: Any) -> Tensor:
            return torch.func.grad(lambda *a: scalar_of(torch.vmap(f, in_dims))(*a), chosen[0])(*stacked)

        expect_same([outer(function)], [outer(case.reference)])


@pytest.mark.parametrize("case", FEW, ids=case_id)
def test_forward_mode_of_dual_tensors(case: Case) -> None:
    """Outside functorch: tangents are propagated, not lost, also without requires_grad."""
    args = case.arguments(torch.float64)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(args[0], torch.ones_like(args[0]))
        for function in (case.function, raw(case)):
            results = [torch.autograd.forward_ad.unpack_dual(o).tangent for o in flatten(function(dual, *args[1:]))]
            wanted = [
                torch.autograd.forward_ad.unpack_dual(o).tangent for o in flatten(case.reference(dual, *args[1:]))
            ]
            expect_same(results, wanted)


# Packed input's batch_sizes are unknown while jvp is traced: torch breaks the graph there, with this warning.
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("case", FEWEST, ids=case_id)
def test_forward_mode_in_a_captured_graph(case: Case) -> None:
    """A graph that opens its dual level out of Python's sight, and a traced torch.func.jvp. The graph has the operator
    itself, however it was called."""
    function, args = case.function, case.arguments(torch.float64)
    if case.is_sequence and args[0].dim() == 3:
        args = (args[0][:2].clone(), *args[1:])  # the derivative's graph has a node for each step

    def tangent(x: Tensor, v: Tensor) -> Tensor:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, v)
            return torch.autograd.forward_ad.unpack_dual(flatten(function(dual, *args[1:]))[0]).tangent

    def jvp(x: Tensor, v: Tensor) -> Tensor:
        return torch.func.jvp(lambda y: flatten(function(y, *args[1:]))[0], (x,), (v,))[1]

    x, v = args[0], torch.ones_like(args[0])
    _, wanted = torch.func.jvp(lambda y: flatten(case.reference(y, *args[1:]))[0], (x,), (v,))
    for program in (tangent, jvp):
        torch._dynamo.reset()
        compiled = torch.compile(program, backend="aot_eager")
        expect_same([compiled(x, v)], [wanted])


def test_another_threads_dual_level_changes_nothing() -> None:
    """A level is open, but no argument is a dual tensor: the call takes its usual path and saves what its backward
    needs."""
    args, leaves = differentiable(next(c for c in CASES if c.id == "lltm_cell-odd").arguments(torch.float32))
    with ThreadPoolExecutor(1) as other:
        other.submit(torch.autograd.forward_ad.enter_dual_level).result()
        try:
            h, _ = fourfold.lltm_cell(*args)
            assert h.grad_fn.name() == "fourfold_lltm_cellBackward"
            assert torch.ops.fourfold.lltm_cell(*args)[2].numel() > 0
        finally:
            other.submit(torch.autograd.forward_ad.exit_dual_level).result()


@pytest.mark.parametrize("case", [c for c in FEW if c.op in ("lltm_cell", "mlp") or c.id == "lltm-odd"], ids=case_id)
def test_vmap_over_nothing(case: Case) -> None:
    args = case.arguments(torch.float32)
    in_dims = (0, *[None] * (len(args) - 1))
    empty = torch.vmap(case.function, in_dims)(args[0].new_empty(0, *args[0].shape), *args[1:])
    for result, single in zip(flatten(empty), flatten(case.reference(*args)), strict=True):
        assert result.shape == (0, *single.shape)


@pytest.mark.parametrize("case", [c for c in FEW if declared[c.op].kept], ids=case_id)
def test_saved_tensors_of_another_dtype(case: Case) -> None:
    """Hooks may reduce the precision of saved tensors. The gradient then has that precision."""
    args, leaves = differentiable(case.arguments(torch.float64))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.float() if t.is_floating_point() else t, lambda t: t):
        outputs = flatten(case.function(*args))
    loss = sum((o * w).sum() for o, w in zip(outputs, weights_for(outputs), strict=True))
    grads = torch.autograd.grad(loss, leaves)
    expect_same(list(grads), gradients(case.reference, case.arguments(torch.float64)), torch.float32)


def test_long_sums_of_an_mlps_gradient_keep_their_digits() -> None:
    x = torch.ones(200_000, 1)
    bias = torch.zeros(1, requires_grad=True)
    out = fourfold.mlp(x, torch.ones(1, 1), None, torch.ones(1, 1), bias)
    out.backward(torch.full_like(out, 0.1))
    torch.testing.assert_close(bias.grad, torch.tensor([20_000.0]), rtol=1e-6, atol=0)


def test_kept_outputs_have_no_gradient() -> None:
    """Tensors that an operator saves for its backward are not differentiable, so no gradient through them can be
    lost."""
    args, _ = differentiable(next(c for c in CASES if c.id == "lltm-short").arguments(torch.float32))
    output, h_n, c_n, kept, cells = torch.ops.fourfold.lltm(*args)
    assert output.requires_grad and h_n.requires_grad and c_n.requires_grad
    assert not kept.requires_grad and not cells.requires_grad


def test_a_call_that_kept_nothing_refuses_its_backward() -> None:
    args, leaves = differentiable(next(c for c in CASES if c.id == "lltm_cell-odd").arguments(torch.float32))
    h, _, _ = torch.ops.fourfold.lltm_cell(*args, False)
    # The simulator's kernels are called from Python, so their exceptions are not translated.
    with pytest.raises(RuntimeError if SIMULATED else ValueError, match="call it with save_for_backward=True"):
        torch.autograd.grad(h.sum(), leaves)


def test_inference_keeps_nothing() -> None:
    args = next(c for c in CASES if c.id == "mlp-tutorial").arguments(torch.float32)
    _, hidden = torch.ops.fourfold.mlp(*args, False)
    assert hidden.shape == (0,)


def test_mlp_backward_has_relus_derivative() -> None:
    """The walk-through's own backward omits it; no gradient may pass where the hidden layer is negative."""
    x = torch.tensor([[1.0]], requires_grad=True)
    weights = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    out = fourfold.mlp(x, weights, None, torch.ones(1, 2), None)
    grad_x, grad_weights = torch.autograd.grad(out.sum(), (x, weights))
    assert grad_x.item() == 1.0
    assert grad_weights.flatten().tolist() == [1.0, 0.0]
