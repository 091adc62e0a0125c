"""fourfold.optimize and restore: what is replaced, what isn't and why, and that nothing else changes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.profiler import profile

import fourfold
from fourfold import _optimize
from fourfold._optimize import stacks


class Model(nn.Module):
    """One of each layer that can be replaced."""

    def __init__(self, **like: Any) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 8, **like), nn.ReLU(), nn.Linear(8, 6, **like), nn.Dropout(0.0))
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, **like)
        self.gru = nn.GRU(10, 7, **like)
        self.lstm_cell = nn.LSTMCell(7, 3, **like)
        self.gru_cell = nn.GRUCell(3, 3, **like)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.lstm(self.head(x))
        h, _ = self.lstm_cell(self.gru(x)[0][-1])
        return self.gru_cell(h)


LAYERS = ["lstm", "gru", "lstm_cell", "gru_cell"]


def operators_of(call: Any) -> set[str]:
    """fourfold's operators that a call runs."""
    with profile(acc_events=True) as profiler:
        call()
    return {e.key.removeprefix("fourfold::") for e in profiler.key_averages() if e.key.startswith("fourfold::")}


def why_left(model: nn.Module) -> str:
    before = [type(m) for m in model.modules()]
    report = fourfold.optimize(model)
    assert not report.changed
    assert [type(m) for m in model.modules()] == before
    (entry,) = report.left
    return entry.what


def test_same_numbers_and_same_objects() -> None:
    model, x = Model(), torch.randn(5, 2, 4, requires_grad=True)
    objects, parameters = list(model.modules()), list(model.parameters())
    keys, classes = list(model.state_dict()), [type(m) for m in model.modules()]
    wanted = model(x)
    grads = torch.autograd.grad(wanted.sum(), [x, *parameters])
    report = fourfold.optimize(model)
    assert {e.name for e in report.changed} == {*LAYERS, "head[0:2]"} and not report.left
    assert operators_of(lambda: model(x)) >= {"lstm", "gru", "mlp"}
    got = model(x)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), [x, *parameters]), grads)
    for _ in range(2):
        assert all(a is b for a, b in zip(model.modules(), objects, strict=True))
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
        assert list(model.state_dict()) == keys
        fourfold.restore(model)
    assert [type(m) for m in model.modules()] == classes
    assert torch.equal(model(x), wanted)
    assert not operators_of(lambda: model(x))
    assert all("fourfold" not in key for m in model.modules() for key in m.__dict__)


def test_a_second_call_changes_nothing() -> None:
    model = Model()
    fourfold.optimize(model)
    again = fourfold.optimize(model)
    assert not again.changed and not again.left
    own = nn.ModuleList([fourfold.nn.LSTM(3, 4)])
    fourfold.restore(own)
    assert type(own[0]) is fourfold.nn.LSTM


def test_a_layer_itself() -> None:
    for layer in (nn.LSTM(3, 4), nn.GRU(3, 4)):
        report = fourfold.optimize(layer)
        assert report.changed[0].name == "(the model)"
        assert isinstance(layer, getattr(fourfold.nn, report.changed[0].kind))


def test_copies_can_be_restored() -> None:
    model, x = Model(), torch.randn(5, 2, 4)
    wanted = model(x)
    fourfold.optimize(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(x), wanted)
        fourfold.restore(twin)
        assert type(twin.lstm) is nn.LSTM and type(twin.head) is nn.Sequential
        assert torch.equal(twin(x), wanted)


def test_the_optimiser_keeps_training_the_same_parameters() -> None:
    torch.manual_seed(1)
    model, twin = Model(), Model()
    twin.load_state_dict(model.state_dict())
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, twin)]
    fourfold.optimize(twin)
    for _ in range(3):
        x = torch.randn(5, 2, 4)
        for m, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            m(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(twin.state_dict(), model.state_dict())


def test_hooks_are_kept() -> None:
    model, seen = Model(), []
    model.lstm.register_forward_hook(lambda *_: seen.append("lstm"))
    model.head.register_forward_pre_hook(lambda *_: seen.append("head"))
    fourfold.optimize(model)
    model(torch.randn(5, 2, 4))
    assert seen == ["head", "lstm"]


def test_children_of_a_stack_are_looked_at_in_each_call() -> None:
    head = Model().head
    fourfold.optimize(head)
    x, seen = torch.randn(3, 4), []
    assert operators_of(lambda: head(x)) == {"mlp"}
    hook = head[1].register_forward_hook(lambda *_: seen.append(1))
    head(x)
    assert seen
    hook.remove()
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not operators_of(lambda: head(x))
    everywhere.remove()
    assert operators_of(lambda: head(x)) == {"mlp"}
    head[1] = nn.Sigmoid()
    torch.testing.assert_close(head(x), head[2](torch.sigmoid(head[0](x))))
    assert type(head[:2]) is stacks.FusedSequential
    torch.testing.assert_close(head[:2](x), torch.sigmoid(head[0](x)))


class OwnForward(nn.LSTM):
    def forward(self, x: Tensor, hx: Any = None) -> Any:
        return super().forward(2 * x, hx)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def test_layers_that_are_left() -> None:
    assert "a subclass, whose forward may differ" in why_left(OwnForward(3, 4))
    assert "proj_size" in why_left(nn.LSTM(3, 4, proj_size=2))
    assert "no operator" in why_left(nn.RNN(3, 4))
    assert "no operator" in why_left(nn.RNNCell(3, 4))
    assert "no faster in torch.float16" in why_left(nn.GRU(3, 4, dtype=torch.float16))
    assert "hidden_size 1025 is above 1024" in why_left(nn.LSTM(1, 1025))
    parametrized = nn.GRU(3, 4)
    parametrize.register_parametrization(parametrized, "weight_hh_l0", Doubled())
    assert "parametrized" in why_left(parametrized)
    exchanged = nn.GRU(3, 4)
    exchanged.forward = lambda x: x
    assert "forward was replaced" in why_left(exchanged)


def stack(*sizes: int, activation: type = nn.ReLU, container: type = nn.Sequential, **like: Any) -> nn.Sequential:
    children: list[nn.Module] = []
    for rows, columns in zip(sizes, sizes[1:], strict=False):
        children += [nn.Linear(rows, columns, **like), activation()]
    return container(*children[:-1])


class Container(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU])
@pytest.mark.parametrize("sizes", [(3, 2), (5, 7, 2), (5, 7, 8, 9, 2)])
def test_stacks_of_any_depth(activation: type[nn.Module], sizes: tuple[int, ...]) -> None:
    model, x = stack(*sizes, activation=activation), torch.randn(4, sizes[0])
    wanted = model(x)
    changed = fourfold.optimize(model).changed
    assert len(changed) == (len(sizes) > 2)
    assert bool(operators_of(lambda: model(x))) == (len(sizes) > 2)
    torch.testing.assert_close(model(x), wanted)


def test_stacks_that_are_left() -> None:
    assert "its number of weights 406528 is above 65536" in why_left(stack(784, 512, 10))
    assert why_left(stack(3, 4, 2, container=Container)) == "the container: a subclass, whose forward may differ"
    assert "no faster in torch.float16" in why_left(stack(3, 4, 2, dtype=torch.float16))
    hooked = stack(3, 4, 2)
    hooked[0].register_forward_hook(lambda *_: None)
    assert "has hooks" in why_left(hooked)
    for none in (nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Sequential(*[nn.Linear(3, 3)] * 2), nn.Conv1d(1, 1, 1)):
        assert str(fourfold.optimize(none)) == "fourfold.optimize found no LSTM, GRU or stack of Linear layers"


def left_of(*children: nn.Module) -> list[tuple[str, ...]]:
    return [(e.name, e.kind, e.what) for e in fourfold.optimize(nn.Sequential(*children)).left]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_layers_that_look_like_a_stack() -> None:
    """Each with the reason why it isn't replaced."""
    a, b, c = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(3, 3)
    stands = "is between its layers, and the operator supports ReLU, Tanh, GELU and SiLU"
    place = "(the model)[0:2]"
    for between in (nn.LeakyReLU(), nn.Sigmoid(), nn.Dropout(0.1), nn.BatchNorm1d(4), nn.Identity(), Doubled()):
        name = type(between).__name__
        assert left_of(a, between, b) == [(place, f"Linear-{name} 5-4-3", f"{name} {stands}")]
    dropout = ("(the model)[0:3]", "Linear-ELU-Dropout 5-4-3", f"ELU {stands}")
    assert left_of(a, nn.ELU(), nn.Dropout(), b) == [dropout]
    ((*_, gelu),) = left_of(a, nn.GELU(approximate="tanh"), b)
    assert gelu == "its GELU is approximate='tanh', and the operator's is exact"
    ((_, kind, lazy),) = left_of(a, nn.ReLU(), nn.LazyLinear(3))
    assert kind == "Linear-ReLU-LazyLinear 5-4-3"
    assert lazy == "a LazyLinear has no weights before its first call; optimize the model after it"
    ((*_, own),) = left_of(a, nn.ReLU(), OwnLinear(4, 3))
    assert own == "its OwnLinear is a subclass of Linear, whose forward may differ"
    ((*_, two),) = left_of(a, nn.ReLU(), nn.Tanh(), b)
    assert two == "there is more than one activation between two of its layers"
    ((name, _, another),) = left_of(a, nn.ReLU(), b, nn.Tanh(), c)
    assert name == "(the model)[2:4]"
    assert another == "its activation differs from that of the stack before; an operator has only one"
    ((name, kind, _),) = left_of(a, nn.ELU(), b, nn.ELU(), c, nn.Flatten(), nn.Conv1d(1, 1, 1), nn.Linear(3, 3))
    assert (name, kind) == ("(the model)[0:4]", "Linear-ELU 5-4-3-3")
    assert not left_of(a, nn.Sequential(nn.ReLU()), b) and not left_of(a, b)
    assert left_of(nn.Sequential(a, nn.ELU(), b)) == [("0[0:2]", "Linear-ELU 5-4-3", f"ELU {stands}")]


def test_stacks_are_found() -> None:
    def found(*children: nn.Module) -> list[tuple]:
        return [(s.begin, s.end, s.activation, len(s.layers)) for s in stacks.find_stacks(children)]

    relu, tanh = stack(3, 4, 4, 2), stack(2, 2, 1, activation=nn.Tanh)
    assert found(nn.Flatten(), *relu, *tanh) == [(1, 6, "relu", 3), (6, 9, "tanh", 2)]
    assert found(*relu, nn.Tanh(), *tanh) == [(0, 5, "relu", 3), (6, 9, "tanh", 2)]
    assert found(*relu, nn.ReLU(), *tanh) == [(0, 7, "relu", 4)]
    assert found(nn.Linear(2, 2), nn.GELU("tanh"), nn.Linear(2, 2)) == []
    assert found(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2), nn.GELU()) == [(0, 3, "gelu", 2)]


def test_the_report_is_a_table() -> None:
    model = nn.ModuleDict({"memory": nn.LSTM(3, 4), "wide": nn.GRU(3, 2000)})
    report = fourfold.optimize(model)
    assert str(report).splitlines() == [
        "layer   was   now",
        "memory  LSTM  fourfold.nn.LSTM",
        "wide    GRU   left: hidden_size 2000 is above 1024, the largest that is faster in torch.float32",
    ]
    assert all(entry.kind in str(report) for entry in report.changed + report.left)


# At a graph break, Dynamo reads .grad of non-leaf tensors, and torch's warning about that is hidden.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("first", ["optimize", "compile"])
def test_with_torch_compile(first: str) -> None:
    torch._dynamo.reset()
    model, x = Model(), torch.randn(5, 2, 4)
    wanted = model(x)
    compiled = torch.compile(model, backend="aot_eager")
    if first == "compile":
        compiled(x)
        fourfold.optimize(compiled)
    else:
        fourfold.optimize(model)
    compiled(x)
    assert operators_of(lambda: compiled(x)) >= {"lstm", "gru", "mlp_layers"}
    torch.testing.assert_close(compiled(x), wanted)
    fourfold.restore(compiled)
    torch.testing.assert_close(compiled(x), wanted)
    assert not operators_of(lambda: compiled(x))


def test_one_graph_where_dynamo_is_told_to_take_layers() -> None:
    """Dynamo breaks its graph at every nn.LSTM and GRU, including subclasses, unless its configuration says
    otherwise."""
    torch._dynamo.reset()
    model, x = Model(), torch.randn(5, 2, 4)
    fourfold.optimize(model)
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        got = compiled(x)
        got.sum().backward()
    torch.testing.assert_close(got, model(x))
    grads = [p.grad.clone() for p in model.parameters()]
    torch.testing.assert_close(grads, list(torch.autograd.grad(model(x).sum(), list(model.parameters()))))


def test_with_export() -> None:
    model, x = Model(), torch.randn(5, 2, 4)
    wanted = model(x)
    fourfold.optimize(model)
    program = torch.export.export(model, (x,))
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"fourfold.lstm.default", "fourfold.gru.default", "fourfold.mlp_layers.default"} <= targets
    torch.testing.assert_close(program.module()(x), wanted)
    with pytest.raises(
        TypeError, match="optimize: expected model to be a torch.nn.Module, but got ExportedProgram; it"
    ):
        fourfold.optimize(program)
    plain = torch.export.export(Model().head, (x,)).module()
    with pytest.raises(TypeError, match="optimize: .* an exported graph, .* optimise the model, then export it"):
        fourfold.optimize(plain)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_is_no_model_is_refused() -> None:
    for wrong in (torch.jit.script(nn.Linear(2, 2)), [nn.LSTM(2, 2)]):
        for function in (fourfold.optimize, fourfold.restore):
            with pytest.raises(TypeError, match=f"{function.__name__}: expected model to be a torch.nn.Module, but"):
                function(wrong)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("first", ["optimize", "wrap"])
def test_with_distributed_data_parallel(first: str) -> None:
    model, x = Model(), torch.randn(5, 2, 4)
    wanted = model(x)
    grads = torch.autograd.grad(wanted.sum(), list(model.parameters()))
    if first == "optimize":
        fourfold.optimize(model)
    wrapped = nn.parallel.DistributedDataParallel(model)
    if first == "wrap":
        assert fourfold.optimize(wrapped).changed
    got = wrapped(x)
    got.sum().backward()
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close([p.grad for p in model.parameters()], list(grads))
    fourfold.restore(wrapped)
    assert type(model.lstm) is nn.LSTM


def test_every_replacement_is_a_subclass() -> None:
    assert set(_optimize._CLASSES) == {nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, nn.Sequential}
    for former, ours in _optimize._CLASSES.items():
        assert issubclass(ours, former)
