"""In-place operations on what a call returned: allowed where torch.nn's layers allow them, with correct gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import fourfold
from op_cases import Case, case_id, differentiable, flatten
from test_gradients import FEW, expect_same, raw

LAYERS = {"LSTM": fourfold.nn.LSTM, "GRU": fourfold.nn.GRU, "LLTM": fourfold.nn.LLTM}
OPTIONS = [{}, {"num_layers": 2}, {"batch_first": True}, {"num_layers": 2, "bidirectional": True}]


def relu(t: Tensor) -> None:
    nn.functional.relu(t, inplace=True)


def mask(t: Tensor) -> None:
    t[t > 0] = 0


def through_a_view(t: Tensor) -> None:
    t[..., 0].mul_(3)


CHANGES = [relu, mask, through_a_view]


def tensors_in(result: Any) -> list[Tensor]:
    if isinstance(result, PackedSequence):
        return [result.data]
    return [result] if isinstance(result, Tensor) else [t for part in result for t in tensors_in(part)]


def gradients_after(change: Callable[[Tensor], None], run: Callable[[], Any], leaves: list[Tensor]) -> list[Tensor]:
    """Gradients of the sum of all outputs' cosines after an in-place change of each output."""
    outputs = tensors_in(run())
    for output in outputs:
        change(output)
    return list(torch.autograd.grad(sum(o.cos().sum() for o in outputs), leaves))


def on_copies(change: Callable[[Tensor], None], run: Callable[[], Any], leaves: list[Tensor]) -> list[Tensor]:
    """The same without an in-place operation on an output."""
    return gradients_after(change, lambda: [t.clone() for t in tensors_in(run())], leaves)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("path", ["function", "raw"])
@pytest.mark.parametrize("case", FEW, ids=case_id)
def test_operator(case: Case, path: str, change: Any) -> None:
    args, leaves = differentiable(case.arguments(torch.float64))
    function = case.function if path == "function" else raw(case)

    def run() -> list[Tensor]:
        return flatten(function(*args))

    expect_same(gradients_after(change, run, leaves), on_copies(change, run, leaves))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layout", ["batched", "unbatched", "packed"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, options: dict, layout: str, change: Any) -> None:
    layer = LAYERS[name](3, 5, **options, dtype=torch.float64)
    x = torch.randn(*((6, 4) if layout != "unbatched" else (6,)), 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 2, 2, 1, 1, 1] if layer.batch_first else [6, 6, 3, 1])

    def run() -> Any:
        packed = layout == "packed"
        return layer(pack_padded_sequence(x, lengths, batch_first=layer.batch_first) if packed else x)

    leaves = [x, *layer.parameters()]
    expect_same(gradients_after(change, run, leaves), on_copies(change, run, leaves))


@pytest.mark.parametrize("leading", [(), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "LLTMCell", "MLP"])
def test_cell_and_network(name: str, leading: tuple) -> None:
    if name != "MLP":
        leading = leading[:1]
    module = getattr(fourfold.nn, name)(*((3, 5) if name != "MLP" else (3, 5, 5))).double()
    x = torch.randn(*leading, 3, dtype=torch.float64, requires_grad=True)
    leaves = [x, *module.parameters()]
    for change in CHANGES:
        results = gradients_after(change, lambda: module(x), leaves)
        expect_same(results, on_copies(change, lambda: module(x), leaves))


@pytest.mark.parametrize("case", FEW, ids=case_id)
def test_gradients_of_gradients_may_be_changed(case: Case) -> None:
    """They are results of a Function too; autograd would reject this for views that it created."""
    args, leaves = differentiable(case.arguments(torch.float64))
    for function in (case.function, raw(case)):
        outputs = flatten(function(*args))
        grads = torch.autograd.grad(sum(o.sum() for o in outputs), leaves, create_graph=True)
        for grad in grads:
            grad.mul_(2)


COMPILED = [("inside", "aot_eager", c) for c in ("lltm-odd", "lstm-odd", "gru-odd", "lltm_cell-odd", "mlp-leading")]
COMPILED += [("outside", "aot_eager", c) for c in ("lltm-odd", "lstm-odd", "gru-odd", "lltm_cell-odd", "mlp-leading")]
COMPILED += [("inside", "inductor", c) for c in ("lstm-odd", "lltm_cell-odd")]


@pytest.mark.parametrize(("where", "backend", "name"), COMPILED)
def test_compiled(where: str, backend: str, name: str) -> None:
    """In the graph, and on what the graph returned."""
    torch._dynamo.reset()
    case = next(c for c in FEW if c.id == name)
    args, leaves = differentiable(case.arguments(torch.float64))

    def program(*args: Any) -> list[Tensor]:
        outputs = flatten(case.function(*args))
        if where == "inside":
            for output in outputs:
                relu(output)
        return outputs

    compiled = torch.compile(program, backend=backend, fullgraph=True)
    after = relu if where == "outside" else lambda t: None
    results = gradients_after(after, lambda: compiled(*args), leaves)
    expect_same(results, on_copies(relu, lambda: case.function(*args), leaves))


def test_second_derivatives_and_transforms() -> None:
    case = next(c for c in FEW if c.id == "lstm-odd")
    args = case.arguments(torch.float64)

    def energy(run: Callable[..., Any], copies: bool) -> Callable[[Tensor], Tensor]:
        def of(x: Tensor) -> Tensor:
            outputs = [o.clone() if copies else o for o in flatten(run(x, *args[1:]))]
            outputs[0].mul_(outputs[0].detach().cos())
            return sum(o.cos().sum() for o in outputs)

        return of

    def second(f: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.func.grad(lambda x: torch.func.grad(f)(x).square().sum())(args[0])

    for derivative in (lambda f: torch.func.grad(f)(args[0]), second):
        expect_same([derivative(energy(case.function, False))], [derivative(energy(case.reference, True))])
    x = args[0].clone().requires_grad_()
    (first,) = torch.autograd.grad(energy(case.function, False)(x), x, create_graph=True)
    expect_same(list(torch.autograd.grad(first.square().sum(), x)), [second(energy(case.reference, True))])
