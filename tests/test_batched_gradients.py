"""Batched gradients: torch's two vmaps over the operators' backwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._vmap_internals import _vmap as older_vmap  # used by is_grads_batched and by functional.jacobian's vectorize

from fourfold.operators._operator import declared
from op_cases import Case, case_id, differentiable, flatten
from test_gradients import FEW, backward_arguments, expect_same, raw, weights_for

PATHS = pytest.mark.parametrize("path", ["function", "raw"])
EACH = pytest.mark.parametrize("case", FEW, ids=case_id)


def of_path(case: Case, path: str) -> Any:
    return case.function if path == "function" else raw(case)


def few_sums(function: Any, args: tuple) -> tuple[Any, tuple]:
    """The function's outputs, which may have hundreds of elements, reduced to three sums with different factors, as a
    function of its tensors only; and these tensors."""
    places = [k for k, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]

    of_tensors = of_places(function, args, places)

    def sums(*tensors: Tensor) -> Tensor:
        outputs = of_tensors(*tensors)
        pairs = list(zip(outputs, weights_for(outputs), strict=True))
        return torch.stack([sum((o * (w + k).cos()).sum() for o, w in pairs) for k in range(3)])

    return sums, tuple(args[k] for k in places)


def of_columns(function: Any, tensors: tuple) -> Any:
    """The function of each tensor's first column."""
    return lambda *columns: function(*(torch.cat([c, t[..., 1:]], -1) for c, t in zip(columns, tensors, strict=True)))


@PATHS
@EACH
def test_is_grads_batched(case: Case, path: str) -> None:
    args, leaves = differentiable(case.arguments(torch.float64))
    outputs = flatten(of_path(case, path)(*args))
    grads = [torch.randn(3, *o.shape, dtype=o.dtype) for o in outputs]
    together = torch.autograd.grad(outputs, leaves, grads, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(outputs, leaves, [g[k] for g in grads], retain_graph=True) for k in range(3)]
    expect_same(list(together), [torch.stack(column) for column in zip(*alone, strict=True)])


WAYS = [("jacrev", "function"), ("jacrev", "raw"), ("reverse-mode", "function"), ("reverse-mode", "raw")]
WAYS += [("jacfwd", "function"), ("forward-mode", "function")]


@pytest.mark.parametrize(("way", "path"), WAYS)
@EACH
def test_jacobian(case: Case, way: str, path: str) -> None:
    args = case.arguments(torch.float64)
    wanted_of, tensors = few_sums(case.reference, args)
    function, _ = few_sums(of_path(case, path), args)
    if way in ("jacfwd", "forward-mode"):  # these make a call per element: of one column of each
        points = [t[..., :1].clone() for t in tensors]
        function, wanted_of = (of_columns(f, tensors) for f in (function, wanted_of))
        tensors = tuple(points)
    argnums = tuple(range(len(tensors)))
    wanted = torch.func.jacrev(wanted_of, argnums)(*tensors)
    if way.startswith("jac"):
        result = getattr(torch.func, way)(function, argnums)(*tensors)
    else:
        result = torch.autograd.functional.jacobian(function, tensors, vectorize=True, strategy=way)
    expect_same(list(result), list(wanted))


@EACH
def test_gradcheck_of_batched_gradients(case: Case) -> None:
    args, _ = differentiable(case.arguments(torch.float64))

    def outputs(*leaves: Any) -> tuple[Tensor, ...]:
        return tuple(flatten(case.function(*leaves)))

    assert torch.autograd.gradcheck(outputs, args, check_batched_grad=True, fast_mode=True)
    if case.has_lists:  # fourfold supports it, torch's older vmap doesn't
        assert torch.autograd.gradgradcheck(outputs, args, check_batched_grad=True, fast_mode=True)


@pytest.mark.parametrize("vmap", [torch.vmap, older_vmap], ids=["vmap", "older_vmap"])
@pytest.mark.parametrize("case", [c for c in FEW if f"{c.op}_backward" in declared], ids=case_id)
def test_vmap_of_the_backward_operator(case: Case, vmap: Any) -> None:
    """Over the output's gradient alone, and over all of its tensors."""
    backward = declared[f"{case.op}_backward"]
    calls = [backward_arguments(case, case.arguments(torch.float64, seed)) for seed in range(3)]
    lengths = backward.schema.flatten(calls[0])[0]
    calls = [backward.schema.flatten(call)[1] for call in calls]

    def op(*flat: Any) -> tuple[Tensor, ...]:
        return backward.call_flat(lengths, flat)

    tensors = [k for k, a in enumerate(calls[0]) if isinstance(a, Tensor) and a.is_floating_point()]
    for mapped in (tensors[:1], tensors):
        each = [tuple(a if k in mapped else b for k, (a, b) in enumerate(zip(c, calls[0], strict=True))) for c in calls]
        results = vmap(of_places(op, calls[0], mapped))(*(torch.stack([c[k] for c in each]) for k in mapped))
        alone = [flatten(op(*call)) for call in each]
        expect_same(list(results), [torch.stack(column) for column in zip(*alone, strict=True)])


def of_places(function: Any, args: tuple, places: list[int]) -> Any:
    """The function's outputs, as a function of the arguments in these places only."""

    def of(*given: Any) -> tuple[Tensor, ...]:
        full = list(args)
        for place, value in zip(places, given, strict=True):
            full[place] = value
        return tuple(flatten(function(*full)))

    return of


def test_the_older_vmap_inside_itself() -> None:
    case = next(c for c in FEW if c.id == "mlp_layers-odd")
    args, leaves = differentiable(case.arguments(torch.float64))
    output = case.function(*args)
    grads = torch.randn(2, 3, *output.shape, dtype=output.dtype)

    def gradients(grad: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, leaves, grad, retain_graph=True)

    alone = [[torch.stack(c) for c in zip(*map(gradients, row), strict=True)] for row in grads]
    results = older_vmap(older_vmap(gradients))(grads)
    expect_same(list(results), [torch.stack(column) for column in zip(*alone, strict=True)])


@EACH
def test_the_older_vmap_of_the_operator(case: Case) -> None:
    calls = [case.arguments(torch.float64, seed) for seed in range(3)]
    tensors = [k for k, a in enumerate(calls[0]) if isinstance(a, Tensor) and a.is_floating_point()]
    function = of_places(raw(case), calls[0], tensors)
    with torch.no_grad():
        results = older_vmap(function)(*(torch.stack([call[k] for call in calls]) for k in tensors))
    alone = [flatten(case.reference(*(c[k] if k in tensors else a for k, a in enumerate(calls[0])))) for c in calls]
    expect_same(list(results), [torch.stack(column) for column in zip(*alone, strict=True)])
