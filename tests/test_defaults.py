"""The default device and dtype affect what a user's constructors make, and nothing that fourfold computes."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import fourfold
from defaults import DEFAULTS
from forked import Forks
from op_cases import Case, by_dtype, case_id, differentiable, flatten, tolerance
from test_gradients import FEWEST, expect_same, gradients, raw, scalar_of

PACKAGE = Path(fourfold.__file__).parent
EACH_DEFAULT = pytest.mark.parametrize("default", DEFAULTS)
EXACT = {"rtol": 0, "atol": 0, "equal_nan": True}


@EACH_DEFAULT
@pytest.mark.parametrize(
    ("case", "dtype"), [pair for pair in by_dtype() if pair[0].op == "axpby" or pair[1] == torch.float32], ids=case_id
)
def test_values(case: Case, dtype: torch.dtype, default: str) -> None:
    args = case.arguments(dtype)
    wanted = flatten(case.function(*args))
    with DEFAULTS[default]():
        results = flatten(case.function(*args))
        dtypes = [o.dtype for o in flatten(case.reference(*args))]  # axpby's type promotion reads the default
    for result, expected, promoted in zip(results, wanted, dtypes, strict=True):
        assert result.dtype == promoted
        allowed = EXACT if promoted == expected.dtype else tolerance(expected, expected.dtype)
        torch.testing.assert_close(result.to(expected.dtype), expected, **EXACT | allowed)


def forward_mode(function: Any, args: tuple) -> list[Tensor]:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(args[0], torch.ones_like(args[0]))
        return [torch.autograd.forward_ad.unpack_dual(o).tangent for o in flatten(function(dual, *args[1:]))]


def second(function: Any, args: tuple) -> list[Tensor]:
    args, leaves = differentiable(args)
    grads = torch.autograd.grad(scalar_of(function)(*args).square(), leaves, create_graph=True)
    return list(torch.autograd.grad(sum(g.square().sum() for g in grads), leaves, materialize_grads=True))


def mapped(function: Any, args: tuple) -> list[Tensor]:
    stacked = torch.stack([args[0], 2 * args[0]])
    return list(torch.vmap(torch.func.grad(lambda x: scalar_of(function)(x, *args[1:])))(stacked))


def compiled(function: Any, args: tuple) -> list[Tensor]:
    torch._dynamo.reset()
    return gradients(torch.compile(function, backend="aot_eager", fullgraph=True), args)


PATHS = [("function", way) for way in (gradients, second, forward_mode, mapped, compiled)] + [("raw", gradients)]


@EACH_DEFAULT
@pytest.mark.parametrize(("path", "way"), PATHS)
@pytest.mark.parametrize("case", FEWEST, ids=case_id)
def test_paths(case: Case, path: str, way: Any, default: str) -> None:
    args = case.arguments(torch.float64)
    function = case.function if path == "function" else raw(case)
    wanted = (gradients if way is compiled else way)(case.reference, args)
    with DEFAULTS[default]():
        expect_same(way(function, args), wanted)


def results_of(result: Any) -> list[Tensor]:
    if isinstance(result, PackedSequence):
        return [result.data]
    return [result] if isinstance(result, Tensor) else [t for part in result for t in results_of(part)]


@EACH_DEFAULT
@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("layout", ["batched", "unbatched", "packed"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "LLTM"])
def test_layers(name: str, options: dict, layout: str, with_reset: bool, default: str) -> None:
    layer = getattr(fourfold.nn, name)(3, 5, **options)
    x, reset = torch.randn(6, 4, 3), torch.rand(6, 4) < 0.3
    if layout == "unbatched":
        x, reset = x[:, 0], reset[:, 0]
    if layout == "packed":
        x, reset = (pack_padded_sequence(t, torch.tensor([2, 6, 1, 3]), enforce_sorted=False) for t in (x, reset))
    reset = reset if with_reset else None
    for module in (layer, layer.eval()):
        with torch.set_grad_enabled(module.training):
            wanted = results_of(module(x, None, reset))
            with DEFAULTS[default]():
                results = results_of(module(x, None, reset))
            for result, expected in zip(results, wanted, strict=True):
                torch.testing.assert_close(result, expected, **EXACT)


@EACH_DEFAULT
@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "LLTMCell", "MLP"])
def test_cells_and_networks(name: str, default: str) -> None:
    module = getattr(fourfold.nn, name)(*((3, 5) if name != "MLP" else (3, 5, 2)))
    x = torch.randn(4, 3)
    wanted = results_of(module(x))
    with DEFAULTS[default]():
        for result, expected in zip(results_of(module(x)), wanted, strict=True):
            torch.testing.assert_close(result, expected, **EXACT)


@EACH_DEFAULT
def test_parameters_are_made_where_torchs_are(default: str) -> None:
    with DEFAULTS[default]():
        like = nn.Linear(2, 2).weight
        sizes = {"MLP": (3, 5, 2)}
        for name in ("LSTM", "GRU", "LLTM", "LSTMCell", "GRUCell", "LLTMCell", "MLP"):
            for parameter in getattr(fourfold.nn, name)(*sizes.get(name, (3, 5))).parameters():
                assert (parameter.device, parameter.dtype) == (like.device, like.dtype), name


def test_imported_under_other_defaults(after_torch: Forks) -> None:
    """Objects created at import don't use the user's defaults either."""
    program = """
import torch
torch.set_default_device("meta")
torch.set_default_dtype(torch.float64)
import fourfold
torch.set_default_device(None)
torch.set_default_dtype(torch.float32)
x = torch.ones(2, 3, dtype=torch.int32)
print(fourfold.axpby(x, x, 0.5).tolist(), torch.vmap(fourfold.axpby)(x, x).tolist())
from fourfold.operators.axpby import _PROBES
print({str(probe.device) for probe in _PROBES.values()})
"""
    lines = after_torch.output_of("-c", program).splitlines()
    assert lines == ["[[1.5, 1.5, 1.5], [1.5, 1.5, 1.5]] [[3, 3, 3], [3, 3, 3]]", "{'cpu'}"]


CONSTRUCTORS = (
    "arange",
    "empty",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randn",
    "scalar_tensor",
    "tensor",
    "zeros",
)


def test_each_tensor_that_the_library_makes_names_its_device_and_dtype() -> None:
    """The command line's programs set no defaults, and the reference's modules construct tensors as torch.nn's do."""
    for path in sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("operators/*.py")]):
        if path.name == "reference.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"torch.{name}" for name in CONSTRUCTORS}:
                named = {keyword.arg for keyword in node.keywords}
                assert None in named or {"device", "dtype"} <= named, f"{path.name}:{node.lineno}: {ast.unparse(node)}"
