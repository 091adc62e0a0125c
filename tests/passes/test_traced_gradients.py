"""Autograd's formulas look at the data and write in place, but not while they are traced. A compiled function's
gradients do so again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fourfold
from compiled import assert_same, compiled, draw, results_of
from fourfold.compiler.lowering.product_gradients import CUMPROD
from fourfold.compiler.pipeline.record import CapturedGraph, Record
from nests import needs_nests

aten = torch.ops.aten
NESTS, INTERPRETER = ({"options": {"generator": name}} for name in ("llvm", "interpreter"))


def trained(function: Callable[..., Tensor], *arguments: Tensor, **settings: object) -> CapturedGraph:
    """Compares values, gradients and layouts with eager's; returns the captured graph."""
    record = Record()
    assert_same(results_of(compiled(function, record, **settings), arguments), results_of(function, arguments))
    return record.captured[0]


def steps(captured: CapturedGraph) -> list[str]:
    """The names of the operators that torch runs in the backward."""
    return [step[1][0] for step in captured.backward.compiled.plan.steps if step[0] == "operator"]


WITHIN_ROWS = torch.tensor([[0, 3, 1], [5, 5, 2], [4, 0, 0], [1, 2, 3]])
SELECTIONS = {
    "cummax": (lambda x: x.cummax(-1)[0], "scatter_add_"),
    "max": (lambda x: x.max(-1)[0], "scatter_"),
    "gather": (lambda x: x.gather(1, WITHIN_ROWS), "scatter_add_"),
    "index": (lambda x: x[WITHIN_ROWS[:, 1] % 4], "index_put_"),
    "index_select": (lambda x: x.index_select(0, torch.tensor([2, 0, 2])), "index_add_"),
}


@pytest.mark.parametrize(("function", "name"), SELECTIONS.values(), ids=SELECTIONS)
def test_gradients_are_written_into_new_zeros(function: Callable[[Tensor], Tensor], name: str) -> None:
    assert f"aten::{name}" in steps(trained(function, draw(4, 6)))


def test_only_new_tensors_that_are_read_last_are_written_to() -> None:
    index, value = torch.tensor([1, 1]), torch.ones(2)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        zeros = torch.zeros(3)
        viewed = torch.full((3,), 2.0)
        return (
            zeros.index_add(0, index, value),
            zeros.index_add(0, index, 2 * x[:2]),
            x.index_add(0, index, value),
            viewed.index_add(0, index, value),
            viewed.expand(2, 3),
        )

    record = Record()
    x = torch.randn(3)
    torch.testing.assert_close(compiled(function, record)(x), function(x))
    plan = record.captured[0].forward.compiled.plan
    names = [step[1][0] for step in plan.steps if step[0] == "operator" and "index_add" in step[1][0]]
    assert sorted(names) == ["aten::index_add"] * 3 + ["aten::index_add_"]


def test_an_operator_that_reads_the_new_tensor_twice_copies_it() -> None:
    """Equal zeros are one tensor."""
    assert "aten::scatter_add" in steps(trained(lambda x: x.gather(1, x.argsort(1)).round(), draw(4, 6)))


def test_an_operator_whose_result_has_another_layout_copies_too() -> None:
    assert_same(*((f(draw(6, 4).t().detach()),) for f in (compiled(scattered), scattered)))


def scattered(x: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter(0, torch.arange(24).view(4, 6) % 4, x.exp().sin())


def test_a_saved_model_writes_to_no_operand(tmp_path: object) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(4, 6).scatter_add(1, torch.zeros(4, 6, dtype=torch.long), x)

    x = torch.randn(4, 6)
    fourfold.save(torch.export.export(Model(), (x,)), tmp_path / "model.ff")
    torch.testing.assert_close(fourfold.load(tmp_path / "model.ff")(x), Model()(x))


def with_zeros(dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows with 0, 1, 2 and only zeros, and one that begins and one that ends with a zero."""
    x = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)).to(dtype) + 0.5
    x[1, 2] = x[2, 1] = x[2, 4] = x[4, 0] = x[5, -1] = 0
    x[3] = 0
    return x.requires_grad_()


PRODUCTS = {
    "rows": lambda x: x.prod(-1),
    "kept": lambda x: x.prod(1, keepdim=True),
    "columns": lambda x: x.prod(0),
    "all": lambda x: x.prod(),
    "one row": lambda x: x[1].prod() + x[0].prod() + x[2].prod(),
    "another dtype": lambda x: x.prod(-1, dtype=torch.float64),
    "beside others": lambda x: (x * 2).prod(-1).exp() * x[:, 0],
    "cumprod": lambda x: x.cumprod(-1),
    "cumprod of columns": lambda x: x.cumprod(0),
    "functions": lambda x: torch.prod(x, dim=1, keepdim=True) * torch.cumprod(x, dim=0)[:1],
    "checkpoint": lambda x: checkpoint(lambda t: t.sin().prod(-1), x, use_reentrant=False),
    "cumprod beside others": lambda x: (x + 1).cumprod(-1).sin(),
}


@pytest.mark.parametrize("settings", [NESTS, INTERPRETER], ids=["nests", "interpreter"])
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("function", PRODUCTS.values(), ids=PRODUCTS)
def test_products(function: Callable[[Tensor], Tensor], zeros: bool, settings: dict[str, object]) -> None:
    x = with_zeros() if zeros else draw(6, 5, dtype=torch.float64)
    trained(function, x, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["rows", "cumprod"])
def test_products_of_other_dtypes(name: str, dtype: torch.dtype) -> None:
    record = Record()
    x, function = with_zeros(dtype), PRODUCTS[name]
    tolerance = 2 * torch.finfo(dtype).eps  # factors and products are rounded in another order
    ours = results_of(compiled(function, record), (x,))
    assert_same(ours, results_of(function, (x,)), rtol=tolerance, atol=0)


def test_products_with_any_sizes() -> None:
    record = Record()
    ours = compiled(lambda x: x.prod(-1) * x.cumprod(0)[0, 0], record, dynamic=True)
    for shape in ((4, 7), (5, 3)):
        x = draw(*shape, dtype=torch.float64)
        ours(x).sum().backward()
        got, x.grad = x.grad, None
        (x.prod(-1) * x.cumprod(0)[0, 0]).sum().backward()
        torch.testing.assert_close(got, x.grad)
    assert len(record.captured) == 1


@needs_nests
def test_the_gradient_of_a_product_is_a_program() -> None:
    found = trained(lambda x: x.prod(-1), draw(6, 50), **NESTS)
    assert len(found.backward.compiled.programs) == 1 and not steps(found)


def test_the_gradient_of_a_cumulative_product_is_one_operator() -> None:
    assert steps(trained(lambda x: x.cumprod(-1), draw(6, 50))) == [CUMPROD._schema.name]


@torch.compiler.allow_in_graph
def opaque(x: Tensor) -> Tensor:
    return torch.func.grad(lambda t: t.prod(-1).sum() + t.cumprod(-1).sum())(x)


TRANSFORMS = {
    "opaque to Dynamo": lambda x: opaque(x) * 2,
    "hessian": lambda x: torch.func.hessian(torch.prod)(x[0]),
    "grad": lambda x: torch.func.grad(lambda t: t.prod() + t.cumprod(0).sum())(x),
    "vmap": lambda x: torch.vmap(torch.prod)(x),
    "jvp": lambda x: torch.func.jvp(lambda t: t.prod(-1), (x,), (x,))[1],
    "no gradient": lambda x: x.detach().prod(-1),
    "integers": lambda x: x.long().prod(-1),
    "a number": lambda x: x.sum().prod(0) + x.sum().cumprod(0),
}


@pytest.mark.parametrize("function", TRANSFORMS.values(), ids=TRANSFORMS)
def test_products_under_transforms(function: Callable[[Tensor], Tensor]) -> None:
    x = draw(3, 4, gradient=False)
    torch.testing.assert_close(compiled(function)(x), function(x))


ELEMENTWISE = {
    "relu": torch.relu,
    "neg": torch.neg,
    "mul": lambda x: x * x.detach(),
    "hardtanh": nn.functional.hardtanh,
    "cumsum": lambda x: x.cumsum(-1),
    "cummax": lambda x: x.cummax(-1)[0],
    "product": lambda x: x @ torch.ones(6, 6),
    "softmax": lambda x: x.softmax(0),
    "of the transpose": lambda x: x.t().contiguous().relu().t(),
    "viewed": lambda x: x.view(12, 2, 6).relu().view(24, 6),
}
GRADIENTS = {
    "a number": lambda: torch.tensor(2.0).expand(24, 6),
    "a column": lambda: torch.arange(24.0)[:, None].expand(24, 6),
    "a row": lambda: torch.arange(6.0).expand(24, 6),
    "gaps": lambda: torch.arange(24.0 * 12).view(24, 12)[:, :6],
    "across": lambda: torch.arange(24.0 * 6).view(6, 24).t(),
    "dense": lambda: torch.arange(24.0 * 6).view(24, 6),
}


@pytest.mark.parametrize("given", GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.parametrize("function", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_gradients_in_any_layout(function: Callable[[Tensor], Tensor], given: Callable[[], Tensor]) -> None:
    x = draw(24, 6)
    ours = compiled(function)
    expected = torch.autograd.grad(function(x), x, given())
    torch.testing.assert_close(torch.autograd.grad(ours(x), x, given()), expected)


@pytest.mark.parametrize(
    ("name", "is_dense"), [("relu", False), ("cumsum", False), ("cummax", False), ("softmax", True)]
)
def test_which_operators_need_a_dense_gradient(name: str, is_dense: bool) -> None:
    found = trained(ELEMENTWISE[name], draw(24, 6), **INTERPRETER).backward.compiled
    assert found.layouts == [(len(found.module.graph.find_nodes(op="placeholder")) - 1, [0, 1], is_dense)]


def test_random_numbers_need_no_wrappers() -> None:
    """The same numbers are drawn, and as many, as in eager mode."""
    record = Record()
    function = nn.functional.dropout
    ours = compiled(function, record)
    for call in (ours, ours):
        results = []
        for each in (call, function):
            torch.manual_seed(1)
            x = draw(50)
            y = each(x)
            results.append((y, torch.autograd.grad(y.sum(), x)[0], torch.rand(1)))
        torch.testing.assert_close(*results)
    assert record.captured[0].runtime == ""
