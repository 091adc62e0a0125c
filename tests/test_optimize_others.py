"""An optimised model in other tools: each works, or an error says what to do first."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold._optimize import Fused
from test_optimize import Model, operators_of

PAGE = Path(__file__).parents[1] / "docs" / "recurrent.md"
X = torch.linspace(-2, 2, 40).view(5, 2, 4)


def optimized() -> tuple[nn.Module, Tensor]:
    """An optimised model, and its earlier results."""
    model = Model().eval()
    wanted = model(X).detach()
    fourfold.optimize(model)
    return model, wanted


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "copy.deepcopy": copy.deepcopy,
    "copy.copy": copy.copy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved,
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_optimised_and_can_be_restored(way: str) -> None:
    model, wanted = optimized()
    twin = COPIES[way](model)
    assert operators_of(lambda: twin(X)) >= {"lstm", "gru"}
    torch.testing.assert_close(twin(X), wanted)
    fourfold.restore(twin)
    assert [type(m) for m in twin.modules()] == [type(m) for m in Model().modules()]
    torch.testing.assert_close(twin(X), wanted)


def test_a_part_of_a_sequential_can_be_restored() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2))
    wanted = model[:3](X)
    fourfold.optimize(model)
    part = model[:3]
    assert operators_of(lambda: part(X))
    fourfold.restore(part)
    assert type(part) is nn.Sequential and not operators_of(lambda: part(X))
    torch.testing.assert_close(part(X), wanted)
    fourfold.restore(model)
    assert type(model) is nn.Sequential


def test_script() -> None:
    model, wanted = optimized()
    sentence = "torch.jit.script: expected a model of torch.nn's own layers, but one is optimized; call fourfold"
    for part in (model, *model.children()):
        with (
            pytest.warns(DeprecationWarning),
            pytest.raises(TypeError, match=sentence),
        ):
            torch.jit.script(part)
    fourfold.restore(model)
    with pytest.warns(DeprecationWarning):
        torch.testing.assert_close(torch.jit.script(model)(X), wanted)
    assert not any(isinstance(m, Fused) for m in model.modules())
    torch.testing.assert_close(model(X), wanted)


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")
def test_trace() -> None:
    model, wanted = optimized()
    traced = torch.jit.trace(model, (X,))
    torch.testing.assert_close(traced(X), wanted)
    assert not any(node.kind().startswith("fourfold") for node in traced.inlined_graph.nodes())
    with pytest.raises(TypeError, match="optimise the model, then capture it"):
        fourfold.optimize(traced)


# torch warns, about its own layers, that the export assigns their list of weights.
@pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export")
def test_onnx(exporting: Callable[[bool], None]) -> None:
    """The exporter, a separate package, captures the program first; the older exporter uses torch.jit.trace."""
    model, _ = optimized()
    for on in (False, True):
        exporting(on)
        graph = torch.export.export(model, (X,)).graph
        assert any(str(node.target).startswith("fourfold") for node in graph.nodes) != on


def test_symbolic_trace() -> None:
    model, wanted = optimized()
    traced = torch.fx.symbolic_trace(model)
    fourfold.restore(model)
    plain = torch.fx.symbolic_trace(model)
    assert [str(n.target) for n in traced.graph.nodes] == [str(n.target) for n in plain.graph.nodes]
    assert fourfold.optimize(plain).changed
    for graph in (traced, plain):
        torch.testing.assert_close(graph(X), wanted)


@pytest.mark.filterwarnings("ignore:torch.*deprecated", "ignore:TypedStorage is deprecated")
def test_quantization() -> None:
    model, wanted = optimized()
    with pytest.raises(TypeError, match=re.escape("torch.ao.quantization: expected a model of torch.nn's own layers")):
        torch.ao.quantization.quantize_dynamic(model)
    assert not hasattr(model.lstm, "qconfig")
    torch.testing.assert_close(model(X), wanted)
    fourfold.restore(model)
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    twin = copy.deepcopy(quantized)
    assert {e.name for e in fourfold.optimize(twin).changed} == {"lstm", "gru", "lstm_cell", "gru_cell"}
    torch.testing.assert_close(twin(X), quantized(X))
    # Layers of a stack that are quantized later are called individually.
    head = model.head
    fourfold.optimize(head)
    torch.testing.assert_close(torch.ao.quantization.quantize_dynamic(head)(X), quantized.head(X))


def rows_of(text: str, row: str) -> dict[str, str]:
    found = re.findall(row, text, re.MULTILINE | re.DOTALL)
    return {name.replace("`", ""): " ".join(what.replace("`", "").split()) for name, what in found}


def test_the_page_and_the_docstring_say_the_same() -> None:
    page = rows_of(PAGE.read_text(), r"^\| ([^|]+) \| ([^|]+\.) \|$")
    docstring = rows_of(fourfold.optimize.__doc__, r"^    - ([^:]+): (.*?\.)\n(?=    - |\n)")
    assert page == docstring and len(page) == 10


def test_layers_of_other_kinds_are_left() -> None:
    class Mine(torch.nn.RNNBase):
        def __init__(self) -> None:
            super().__init__("LSTM", 3, 4)

    model = torch.nn.Sequential(Mine())
    fourfold.optimize(model)
    assert type(model[0]) is Mine
