"""torch.compile, torch.export, AOTInductor, opcheck and autocast: what a compiled or exported program does with the
operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold.operators._operator import declared
from once import made_once
from op_cases import CASES, Case, case_id, differentiable, flatten
from test_gradients import FEW, FEWEST, backward_arguments, expect_same, gradients, raw, weights_for
from test_schemas import registered

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
# The sequences share their fake kernels and rules: everything that a sequence may have is tested on the LLTM.
OPCHECK = [c for c in CASES if c.every_path and c.op not in ("lstm", "gru")]
OPCHECK += [c for c in CASES if c.id in ("axpby-fractions", "lstm-packed", "gru-reset")]


def checked() -> list[tuple[str, Case]]:
    """Each operator that the library registers, with the cases of the public operator that it belongs to."""
    owners = {name: name.removesuffix("_backward").removesuffix("_prepack") for name in registered()}
    return [(name, case) for name, owner in owners.items() for case in OPCHECK if case.op == owner]


def arguments_of(name: str, case: Case, args: tuple) -> tuple:
    """The arguments of the operator of that name, for a case whose function has these."""
    if name == case.op:
        return case.by_schema(args)
    if name.endswith("_backward"):
        return backward_arguments(case, args)
    named = dict(zip(case.schema, case.by_schema(args), strict=False))
    return tuple(named[argument.name] for argument in getattr(torch.ops.fourfold, name).default._schema.arguments)


def test_every_registered_operator_is_checked() -> None:
    assert {name for name, _ in checked()} == set(registered())


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from opcheck, since torch 2.15
@pytest.mark.parametrize(("name", "case"), checked(), ids=case_id)
def test_opcheck(name: str, case: Case) -> None:
    """Schema, registration of gradients, fake kernels with symbolic shapes, and ahead-of-time tracing."""
    op = getattr(torch.ops.fourfold, name).default
    args = case.arguments(torch.float32)
    torch.library.opcheck(op, arguments_of(name, case, args))
    if name == case.op:
        torch.library.opcheck(op, arguments_of(name, case, differentiable(args)[0]))


@pytest.mark.parametrize(
    ("case", "path"), [*((case, "function") for case in FEW), *((case, "raw") for case in FEWEST)], ids=case_id
)
def test_compiled_without_a_graph_break(case: Case, path: str) -> None:
    args = case.arguments(torch.float64)
    function = torch.compile(case.function if path == "function" else raw(case), backend="aot_eager", fullgraph=True)
    expect_same(gradients(function, args), gradients(case.reference, args))
    with torch.no_grad():
        expect_same(flatten(function(*args)), flatten(case.reference(*args)))


@pytest.mark.slow
def test_inductor() -> None:
    """A program with all operators through Inductor, forward and backward."""

    def program(x: Tensor, h: Tensor, c: Tensor, weights: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        h, c = fourfold.lltm_cell(x, h, c, weights)
        output, _ = fourfold.lltm(h.reshape(2, 2, -1) * 2, c[:2], c[2:], weights[:, : 2 * c.size(1)])
        return fourfold.mlp(fourfold.softshrink(fourfold.axpby(output, h.reshape(2, 2, -1))), w1, None, w2, None)

    args = (torch.randn(4, 6), *torch.randn(2, 4, 5), torch.randn(15, 11), torch.randn(7, 5), torch.randn(3, 7))
    compiled = torch.compile(program, fullgraph=True)
    expect_same(gradients(compiled, args), gradients(program, args), torch.float32)


def test_dynamic_shapes_compile_once() -> None:
    compiles = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Any:
        compiles.append(graph)
        return graph.forward

    cell = fourfold.nn.LLTM(6, 8)
    compiled = torch.compile(cell, backend=backend, fullgraph=True, dynamic=True)
    for time, batch in ((4, 3), (7, 5), (11, 2)):
        x = torch.randn(time, batch, 6)
        torch.testing.assert_close(compiled(x)[0], cell(x)[0])
    assert len(compiles) == 1


def test_compile_time_does_not_grow_with_the_sequence() -> None:
    """The whole sequence is one node."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Any:
        graphs.append(graph)
        return graph.forward

    lltm = fourfold.nn.LLTM(6, 8)
    torch.compile(lltm, backend=backend)(torch.randn(4096, 1, 6))
    calls = [node for node in graphs[0].graph.nodes if "fourfold" in str(node.target)]
    assert len(graphs) == 1
    assert len(calls) == 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lltm = fourfold.nn.LLTM(6, 8, bidirectional=True, num_layers=2)
        self.cell = fourfold.nn.LLTMCell(16, 9)
        self.mlp = fourfold.nn.MLP(9, 12, 3)
        self.layers = fourfold.nn.MLP([9, 12, 5, 3], activation="gelu")
        self.shrink = fourfold.nn.Softshrink(0.1)
        self.axpby = fourfold.nn.Axpby()

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.lltm(x)
        h, _ = self.cell(output[-1])
        y = self.mlp(self.shrink(h)) + self.layers(h)
        return self.axpby(y, y.detach())


def parameter_gradients(model: nn.Module, x: Tensor, parameters: dict[str, Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).square().sum(), list(parameters.values())))


@pytest.mark.parametrize("grad_mode", [True, False])
def test_exported_then_trained(grad_mode: bool) -> None:
    """Export keeps only the operators; when the program is trained, their gradients are those of the module."""
    model, x = Model().double(), torch.randn(4, 3, 6, dtype=torch.float64)
    with torch.set_grad_enabled(grad_mode):
        dims = {0: torch.export.Dim("time", min=2), 1: torch.export.Dim("batch", min=2)}
        program = torch.export.export(model, (x,), dynamic_shapes=(dims,))
    exported = program.module()
    longer = torch.randn(7, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(exported(longer), model(longer))
    if not grad_mode:
        with pytest.raises(ValueError, match="save_for_backward=True"):
            parameter_gradients(exported, longer, dict(exported.named_parameters()))
        return
    parameters = dict(exported.named_parameters())
    expect_same(
        parameter_gradients(exported, longer, parameters),
        parameter_gradients(model, longer, {name: model.get_parameter(name) for name in parameters}),
    )


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.10's own
def test_saved_program_loads(tmp_path: Any) -> None:
    model, x = Model(), torch.randn(4, 3, 6)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(loaded(x), model(x))


def packaged(shared: Path) -> tuple[Path, Model, Tensor]:
    """The model compiled by AOTInductor, once for all tests, which takes fifteen seconds; and its input."""
    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(4, 3, 6)

    def package(folder: Path) -> None:
        with torch.no_grad():
            program = torch.export.export(model, (x,))
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))

    return made_once(shared / "aotinductor", package) / "model.pt2", model, x


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's packaging uses functions that torch deprecates
def test_aot_inductor(shared: Path) -> None:
    package, model, x = packaged(shared)
    with torch.no_grad():
        loaded = torch._inductor.aoti_load_package(str(package))
        torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.parametrize("path", ["function", "raw"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", [c for c in FEW if declared[c.op].casts], ids=case_id)
def test_autocast(case: Case, dtype: torch.dtype, path: str) -> None:
    """Products run and return in low precision; gradients have their parameters' dtype."""
    args = case.arguments(torch.float32)
    function = case.function if path == "function" else raw(case)

    def in_autocast(*leaves: Any) -> list[Tensor]:
        with torch.autocast("cpu", dtype):
            outputs = flatten(function(*leaves))
        assert all(o.dtype == dtype for o in outputs)
        return outputs

    expect_same(
        gradients(in_autocast, args), gradients(case.reference, args), torch.bfloat16, sequence=case.is_sequence
    )


@pytest.mark.parametrize("case", [c for c in FEW if declared[c.op].casts], ids=case_id)
def test_backward_inside_autocast(case: Case) -> None:
    """Autocast would return an inner float32 product as bfloat16, which would be read as float32."""
    args, leaves = differentiable(case.arguments(torch.float32))
    expected = gradients(case.function, args)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [o.float() for o in flatten(case.function(*args))]
        loss = sum((o * w).sum() for o, w in zip(outputs, weights_for(outputs), strict=True))
        expect_same(list(torch.autograd.grad(loss, leaves)), expected, torch.bfloat16)


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_in_a_model(compiled: bool) -> None:
    """One layer's low precision output meets the next one's float32 parameters, and trains them."""
    model = nn.ModuleDict(
        {"linear": nn.Linear(4, 6), "lltm": fourfold.nn.LLTM(6, 8, 2), "mlp": fourfold.nn.MLP(8, 9, 2)}
    )

    def run(x: Tensor) -> Tensor:
        return model["mlp"](model["lltm"](model["linear"](x))[0])

    x = torch.randn(5, 3, 4)
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(run(x).square().sum(), parameters)
    with torch.autocast("cpu", torch.bfloat16):
        y = (torch.compile(run, backend="aot_eager") if compiled else run)(x)
    assert y.dtype == torch.bfloat16
    grads = torch.autograd.grad(y.float().square().sum(), parameters)
    assert all(g.dtype == torch.float32 for g in grads)
    expect_same(list(grads), list(wanted), torch.bfloat16)


@pytest.mark.parametrize(
    "dtypes", [(torch.int64, torch.int64), (torch.float32, torch.float64), (torch.int8, torch.half)]
)
def test_axpby_promotes_in_a_captured_graph(dtypes: tuple) -> None:
    x, y = (torch.ones(3, dtype=dtype) for dtype in dtypes)
    result = torch.compile(fourfold.axpby, backend="eager", fullgraph=True)(x, y, 2, 0.5)
    torch.testing.assert_close(result, fourfold.axpby(x, y, 2, 0.5))


def test_traced_module_trains() -> None:
    """During symbolic_trace no tensor requires a gradient."""
    module, x = fourfold.nn.MLP(3, 4, 2), torch.randn(5, 3)
    traced = torch.fx.symbolic_trace(module)
    traced(x).sum().backward()
    grads = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    module(x).sum().backward()
    expect_same(list(grads.values()), [p.grad for p in module.parameters()])


def test_elementwise_operators_keep_their_dtype_in_autocast() -> None:
    x = torch.randn(5)
    with torch.autocast("cpu", torch.bfloat16):
        assert fourfold.softshrink(x).dtype == torch.float32
        assert fourfold.axpby(x, x.bfloat16()).dtype == torch.float32


def test_func_grad_inside_compile() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: fourfold.softshrink(y * 2).square().sum())(x)

    x = torch.randn(9)
    torch.testing.assert_close(torch.compile(program, backend="aot_eager")(x), program(x))
