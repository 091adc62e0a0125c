"""Every operator, dtype and layout against its definition in float64. Run once per CPU level by test_levels.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fourfold
from fourfold import reference
from fourfold.operators._operator import declared
from layouts import LAYOUTS, SHIFTED_NAMES, far_apart, laid_out, shifted_one_by_one
from machine import devices
from op_cases import (
    CASES,
    FLOATING,
    SIMULATED,
    SIMULATED_METAL,
    WIDE_LAYERS,
    Case,
    by_dtype,
    case_id,
    differentiable,
    flatten,
    has_dtype,
    on_its_path,
    tolerance,
    wider,
    widest,
)
from special_values import ABSOLUTE, FORMULAS, RELATIVE, Formula, special


def reference_of(case: Case, dtype: torch.dtype, args: tuple) -> list[torch.Tensor]:
    exact = (
        map(wider, args) if dtype.is_floating_point else [a.cpu() if isinstance(a, torch.Tensor) else a for a in args]
    )
    return flatten(case.reference(*exact))


def expect_close(
    case: Case, dtype: torch.dtype, device: str, args: tuple, expected: list[torch.Tensor] | None = None
) -> None:
    results = flatten(case.function(*args))
    expected = reference_of(case, dtype, args) if expected is None else expected
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        assert result.dtype == (dtype if dtype.is_floating_point else wanted.dtype)
        assert result.device.type == device
        result = result.cpu()
        if result.dtype.is_floating_point:
            # Values beyond the dtype's range become infinite, as in the result.
            wanted = wanted.to(result.dtype).double()
            allowed = tolerance(wanted, result.dtype, device, sequence=case.is_sequence)
            torch.testing.assert_close(result.double(), wanted, equal_nan=True, **allowed)
        else:
            assert torch.equal(result, wanted)


@pytest.mark.parametrize(("case", "dtype", "layout", "device"), laid_out(by_dtype()), ids=case_id)
def test_values(case: Case, dtype: torch.dtype, layout: str, device: str) -> None:
    args = case.arguments(dtype, device=device)
    expect_close(case, dtype, device, tuple(map(LAYOUTS[layout], args)))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=case_id)
@pytest.mark.parametrize("case", [c for c in CASES if c.name in SHIFTED_NAMES], ids=case_id)
def test_any_argument_may_be_shifted(case: Case, dtype: torch.dtype, device: str) -> None:
    args = case.arguments(dtype, device=device)
    expected = reference_of(case, dtype, args)
    for moved in shifted_one_by_one(args):
        expect_close(case, dtype, device, moved, expected)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("op", ["lltm", "lstm", "gru", "lltm_cell", "mlp", "mlp_layers"])
def test_the_same_call_gives_the_same_bits(op: str, device: str) -> None:
    for case in (c for c in CASES if c.op == op and c.gradient):
        runs = []
        for _ in range(2):
            args, leaves = differentiable(case.arguments(torch.float32, device=device))
            with on_its_path(case, torch.float32, device):
                outputs = flatten(case.function(*args))
                grads = torch.autograd.grad(sum(o.sum() for o in outputs), leaves, materialize_grads=True)
            runs.append([*outputs, *grads])
        for first, second in zip(*runs, strict=True):
            assert torch.equal(first, second), case.id


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("case", [c for c in CASES if c.op in ("lltm", "lstm", "gru")], ids=case_id)
def test_tf32_is_as_exact_as_it_says(case: Case, device: str) -> None:
    """If products may round to TF32, with 10 bits of mantissa, results and gradients change by no more than that."""
    with on_its_path(case, torch.float32, device):
        exact, rounded = (tf32_results(case, device, allow_tf32) for allow_tf32 in (False, True))
    for one, other in zip(exact, rounded, strict=True):
        torch.testing.assert_close(
            one, other, rtol=2**-8, atol=2**-8 * max(1.0, one.abs().max().item() if one.numel() else 0)
        )
    if device == "mps" or device == "cpu" and (not SIMULATED or SIMULATED_METAL):  # no TF32 here
        assert all(torch.equal(one, other) for one, other in zip(exact, rounded, strict=True))
    elif case.name == "row-tiles":
        assert not torch.equal(exact[0], rounded[0])


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    ("dtype", "allow_tf32"),
    [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False), (torch.float16, False)],
    ids=["float32", "tf32", "bfloat16", "float16"],
)
@pytest.mark.parametrize("case", WIDE_LAYERS, ids=case_id)
def test_wide_layers(case: Case, dtype: torch.dtype, allow_tf32: bool, device: str) -> None:
    results = tf32_results(case, device, allow_tf32, dtype)
    args, leaves = differentiable(tuple(map(wider, case.arguments(dtype, device=device))))
    outputs = flatten(case.reference(*args))
    expected = [*outputs, *torch.autograd.grad(sum(o.sum() for o in outputs), leaves)]
    for result, wanted in zip(results, expected, strict=True):
        allowed = {"rtol": 2**-8, "atol": 2**-8} if allow_tf32 else tolerance(wanted, dtype, device, True, True)
        atol = allowed["atol"] * max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(result.cpu().double(), wanted, rtol=allowed["rtol"], atol=atol)


def tf32_results(case: Case, device: str, allow_tf32: bool, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    args, leaves = differentiable(case.arguments(dtype, device=device))
    operator, given = declared[case.op], case.by_schema(args)
    named = dict(zip(case.schema, given, strict=False)) | {"save_for_backward": True, "allow_tf32": allow_tf32}
    outputs = operator.op(**named)
    outputs = outputs[: len(outputs) - operator.kept]
    return [*outputs, *torch.autograd.grad(sum(o.sum() for o in outputs), leaves, materialize_grads=True)]


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name in ("large", "wide", "packed-many", "long-batch")], ids=case_id
)
def test_threads_do_not_change_the_result(case: Case) -> None:
    """Cases with work for several threads; of the gradients, those without a product of torch's."""
    results = []
    for threads in (1, 4):
        torch.set_num_threads(threads)
        args, leaves = differentiable(case.arguments(torch.float32))
        outputs = flatten(case.function(*args))
        grads = torch.autograd.grad(sum(o.sum() for o in outputs), leaves)
        results.append([*outputs, *(grads[1:3] if case.op == "lltm" else [])])
    for one, four in zip(*results, strict=True):
        assert torch.equal(one, four)


def values_and_gradients(
    function: Callable[..., Any], leaves: tuple, constants: tuple, device: str
) -> list[torch.Tensor]:
    leaves = tuple(leaf.to(device).requires_grad_() for leaf in leaves)
    outputs = flatten(function(*leaves, *(c.to(device) for c in constants)))
    gradients = torch.autograd.grad([o.sum() for o in outputs], leaves)
    return [t.detach().cpu() for t in (*outputs, *gradients)]


@pytest.mark.parametrize(
    ("dtype", "device"), [(t, d) for d in devices() for t in FLOATING if has_dtype(t, d)], ids=case_id
)
@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.id)
def test_special_values(formula: Formula, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the ends of ranges values and gradients equal torch's, in the same dtype or in float32 and rounded."""
    # On Intel CPUs it would use oneDNN's gelu, which is NaN for an infinity.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    for leaves, constants in formula.calls(special(dtype)):
        results = values_and_gradients(formula.function, leaves, constants, device)
        given = [tuple(t.to(computed) for t in tensors) for tensors in (leaves, constants)]
        owns = values_and_gradients(formula.own, *given, "cpu")
        if device == "mps" or SIMULATED_METAL:  # flushes subnormal numbers to zero, in some places
            torch.set_flush_denormal(True)
            try:
                flushed = values_and_gradients(formula.own, *given, "cpu")
            finally:
                torch.set_flush_denormal(False)
            owns = [
                torch.where(torch.isclose(r.double(), f.double(), RELATIVE[dtype], ABSOLUTE[dtype], True), f, own)
                for r, f, own in zip(results, flushed, owns, strict=True)
            ]
        for result, own in zip(results, owns, strict=True):
            wanted = own.to(dtype).double()
            if dtype.itemsize == 2 and (SIMULATED or device != "cpu"):
                # A GPU keeps gates in 16 bits: 1e-38 becomes zero, and zero times an infinite state is NaN.
                wanted = wanted.where(~(result.isnan() & wanted.isinf()), torch.nan)
            torch.testing.assert_close(
                result.double(), wanted, rtol=RELATIVE[dtype], atol=ABSOLUTE[dtype], equal_nan=True
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transcendental_functions_keep_their_error_bounds(dtype: torch.dtype) -> None:
    """Errors of σ, tanh and elu in units in the last place, each isolated from h' = σ(o) tanh(c + σ(i) elu(g))."""
    values = torch.cat([torch.linspace(-80, 80, 200001, dtype=torch.float64), torch.logspace(-30, 0, 1001).double()])
    values = torch.cat([values, -values]).to(dtype)
    n = values.numel()

    def run(i: torch.Tensor, o: torch.Tensor, g: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A cell with hidden_size 1 whose weights pass x = (i, o, g) to its gates unchanged."""
        weights = torch.cat([torch.zeros(3, 1, dtype=dtype), torch.eye(3, dtype=dtype)], dim=1)
        x = torch.stack([i, o, g], dim=1)
        h, c = fourfold.lltm_cell(x, torch.zeros(n, 1, dtype=dtype), c.reshape(n, 1), weights)
        return h.flatten().double(), c.flatten().double()

    def ulps(result: torch.Tensor, exact: torch.Tensor) -> float:
        info = torch.finfo(dtype)
        unit = (exact.abs().log2().floor().exp2() * info.eps).clamp_min(info.tiny)
        return ((result - exact).abs() / unit)[exact.abs() > 4 * info.tiny].max().item()

    wide, zero, large = values.double(), torch.zeros_like(values), torch.full_like(values, 200.0)
    exact = {
        "elu": (run(large, zero, values, zero)[1], torch.nn.functional.elu(wide), 3.0),
        "tanh": (run(zero, large, zero, values)[0], torch.tanh(wide), 4.0),
        "sigmoid": (run(zero, values, zero, large)[0], torch.sigmoid(wide), 4.0),
    }
    for name, (result, wanted, bound) in exact.items():
        # float64 is compared with torch's float64, whose error is up to one unit.
        assert ulps(result, wanted) <= bound + (1 if dtype == torch.float64 else 0), name
    # c' is -0 if c is and i is zero: elu(-1) gives the zero product its sign.
    h, c = run(torch.full_like(values, -1000.0), large, torch.full_like(values, -1.0), -zero)
    assert not c.any() and c.signbit().all() and not h.any() and h.signbit().all()


def test_gelu_keeps_its_error_bound() -> None:
    """z Φ(z), where Φ is a sum of 1 and erf: within two units in the last place of z."""
    z = torch.cat([torch.linspace(-12, 12, 100001), torch.logspace(-30, 0, 1001), -torch.logspace(-30, 0, 1001)])
    one = torch.ones(1, 1)
    result = fourfold.mlp_layers(z.unsqueeze(1), [one, one], None, "gelu").squeeze(1)
    error = (result.double() - torch.nn.functional.gelu(z.double())).abs()
    assert (error <= 2 * torch.finfo(torch.float32).eps * z.double().abs()).all()


def test_64_bit_indices() -> None:
    """More than 2^31 elements, of which only the output uses memory."""
    n = 2**31 + 77
    x = torch.ones(1, dtype=torch.uint8).expand(n)
    y = torch.arange(2, dtype=torch.uint8)[1:].expand(n)
    z = fourfold.axpby(x, y)
    assert z.shape == (n,)
    assert z[0] == z[-1] == z[2**31 + 1] == 3


OF_TWO_ROWS = {
    "softshrink": fourfold.nn.Softshrink,
    "axpby": lambda: fourfold.nn.Axpby(2, 1),
    "lltm_cell": lambda: fourfold.nn.LLTMCell(6, 5),
    "lltm": lambda: fourfold.nn.LLTM(6, 5),
    "lstm": lambda: fourfold.nn.LSTM(6, 5),
    "gru": lambda: fourfold.nn.GRU(6, 5),
    "mlp": lambda: fourfold.nn.MLP(6, 5, 4),
    "mlp_layers": lambda: fourfold.nn.MLP([6, 5, 5, 4], activation="tanh"),
}


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("op", OF_TWO_ROWS)
def test_rows_may_lie_far_apart(op: str, device: str) -> None:
    if device == "cuda" and torch.cuda.mem_get_info()[0] < 10 * 2**30:
        pytest.skip("needs 10 GiB of the GPU's memory")
    if device == "mps" and torch.mps.recommended_max_memory() < 10 * 2**30:
        pytest.skip("needs 10 GiB of the GPU's memory")
    torch.manual_seed(0)
    module = OF_TWO_ROWS[op]().to(device, torch.float16)
    x = torch.randn(2, 6, device=device, dtype=torch.float16)
    second = (x.flip(0),) if op == "axpby" else ()
    results = []
    for rows in (x.clone(), far_apart(x)):
        output = flatten(module(rows.requires_grad_(), *second))[0]
        results.append((output, *torch.autograd.grad(output.square().sum(), (rows, *module.parameters()))))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("op", ["softshrink", "axpby"])
def test_memory_layout_is_preserved(op: str) -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    result = fourfold.softshrink(x) if op == "softshrink" else fourfold.axpby(x, x)
    assert result.stride() == x.stride()


def test_integers_promote_as_torch_promotes() -> None:
    factors = [(2, 1), (2.0, 1), (True, False), (1, 0.5)]
    tensors = [
        torch.tensor(3),
        torch.tensor([3]),
        torch.tensor([True]),
        torch.tensor(2.5),
        torch.ones(2, dtype=torch.int8),
    ]
    tensors += [torch.ones(2, dtype=torch.float16), torch.tensor([1.5], dtype=widest())]
    for alpha, beta in factors:
        for x in tensors:
            for y in tensors:
                wanted = reference.axpby(x, y, alpha, beta)
                result = fourfold.axpby(x, y, alpha, beta)
                assert result.dtype == wanted.dtype, (x, y, alpha, beta)
                torch.testing.assert_close(result, wanted)


def test_integers_wrap_around() -> None:
    x = torch.tensor([100, -128], dtype=torch.int8)
    assert torch.equal(fourfold.axpby(x, x, 2, 1), reference.axpby(x, x, 2, 1))
    big = torch.tensor([2**62])
    assert torch.equal(fourfold.axpby(big, big, 3, 1), reference.axpby(big, big, 3, 1))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3.4e38])
def test_a_state_that_is_not_finite(value: float, device: str) -> None:
    """As in torch; the other rows are not affected."""
    layer = torch.nn.GRU(8, 16)
    x, h = torch.randn(3, 4, 8), torch.randn(1, 4, 16)
    h[0, 1, 3] = value
    ours = fourfold.nn.GRU(8, 16)
    ours.load_state_dict(layer.state_dict())
    with torch.no_grad():
        wanted, got = layer(x, h)[0], ours.to(device)(x.to(device), h.to(device))[0].cpu()
    torch.testing.assert_close(got, wanted, equal_nan=True, rtol=1e-5, atol=1e-5)
    assert torch.isfinite(got[:, [0, 2, 3]]).all()
