"""Nested and sparse tensors: what torch.nn's layers support gives their results here; the rest is rejected with a
one-sentence error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from op_cases import CASES, case_id
from test_torch_layers import EVERY, refusal

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")


def nested(*lengths: int, layout: torch.layout = torch.strided) -> Tensor:
    return torch.nested.nested_tensor([torch.randn(n, 3) for n in lengths], layout=layout)


NOT_DENSE = {
    "nested": lambda: nested(2, 4),
    "jagged": lambda: nested(2, 4, layout=torch.jagged),
    "nested-alike": lambda: nested(2, 2),
    "sparse": lambda: torch.randn(2, 3).to_sparse(),
    "csr": lambda: torch.randn(2, 3).to_sparse_csr(),
    "mkldnn": lambda: torch.randn(2, 3).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", NOT_DENSE)
@pytest.mark.parametrize("name", [*EVERY, "LLTM", "LLTMCell"])
def test_tensors_that_are_not_dense(name: str, kind: str, grad: bool) -> None:
    """What torch.nn supports gives torch.nn's results; the rest is rejected with a one-sentence error, as a state
    too."""
    x = NOT_DENSE[kind]()
    what = "a nested tensor; torch.nested.to_padded_tensor makes" if x.is_nested else f"layout {x.layout}"
    said = rf"{name}: expected the input( and the state)? to be (a )?dense tensors?, but got {what}"
    ours = getattr(fourfold.nn, name)(3, 4)
    with torch.set_grad_enabled(grad):
        if name in EVERY:
            theirs = EVERY[name][1](3, 4)
            theirs.load_state_dict(ours.state_dict())
            if refusal(lambda: theirs(x)) is None:
                torch.testing.assert_close(ours(x), theirs(x))
                return
        with pytest.raises(TypeError, match=said):
            ours(x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_what_else_takes_nested_tensors_takes_them_here(layout: torch.layout) -> None:
    x = nested(2, 4, layout=layout)
    mlp = fourfold.nn.MLP([3, 4, 2])
    children = nn.Sequential(*mlp.children())
    for a, b in zip(mlp(x).unbind(), children(x).unbind(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(TypeError, match="MLP: expected the input to be a dense tensor, but got a nested tensor"):
        fourfold.nn.MLP(3, 4, 2)(x)
    if layout == torch.jagged:
        wanted = nn.Softshrink()(x)
        assert all(
            torch.equal(a, b) for a, b in zip(fourfold.nn.Softshrink()(x).unbind(), wanted.unbind(), strict=True)
        )
    else:
        with pytest.raises(TypeError, match="softshrink: expected x to be a dense tensor, but got a nested tensor"):
            fourfold.nn.Softshrink()(x)


FIRST = list({case.op: case for case in reversed(CASES)}.values())


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("case", FIRST, ids=case_id)
def test_operators_refuse_nested_tensors(case: Any, layout: torch.layout, grad: bool) -> None:
    """As each argument, alone or in a list."""
    args = case.arguments(torch.float32)
    places = [k for k, value in enumerate(args) if isinstance(value, Tensor)]
    assert places
    for k in places:
        changed = [nested(2, 4, layout=layout) if j == k else value for j, value in enumerate(args)]
        changed = [a.requires_grad_(grad) if isinstance(a, Tensor) and a.is_floating_point() else a for a in changed]
        said = rf"^{case.op}: expected .* to be a dense tensor, but got a nested tensor; torch.nested.to_padded_tensor"
        with pytest.raises(TypeError, match=said):
            case.function(*changed)
