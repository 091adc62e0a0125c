"""Calls of an optimised model that fall back to torch: with tensor subclasses, hooks or modes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations, parametrize, prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fourfold
from test_optimize import operators_of, stack, why_left


class Telling(Tensor):
    """Redefines F.linear, as torchao's tensors do, and records the functions called on it."""

    met: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.met.append(getattr(func, "__name__", ""))
        result = super().__torch_function__(func, types, args, kwargs or {})
        return 2 * result if func is nn.functional.linear else result


class Scaled(Tensor):
    """A matrix that is stored as integers and a scale, below torch's dispatcher."""

    @staticmethod
    def __new__(cls, values: Tensor) -> Scaled:
        like = {"dtype": values.dtype, "strides": values.stride()}
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, **like)

    def __init__(self, values: Tensor) -> None:
        self.scale = values.detach().abs().amax() / 127
        self.integers = (values.detach() / self.scale).round().to(torch.int8)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].integers * args[0].scale)
        plain = torch.utils._pytree.tree_map_only(cls, lambda t: t.integers * t.scale, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "stack": lambda: stack(4, 6, 5),
    "lstm": lambda: nn.LSTM(4, 5, num_layers=2),
    "gru": lambda: nn.GRU(4, 5, bidirectional=True),
    "lstm_cell": lambda: nn.LSTMCell(4, 5),
    "gru_cell": lambda: nn.GRUCell(4, 5),
}
INPUTS = {name: (3, 2, 4) if name in ("lstm", "gru") else (3, 4) for name in LAYERS}


@pytest.fixture(params=LAYERS)
def pair(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module, Tensor]:
    """A layer, an optimised copy, and an input."""
    layer = LAYERS[request.param]()
    twin = copy.deepcopy(layer)
    assert fourfold.optimize(twin).changed
    return layer, twin, torch.randn(INPUTS[request.param])


def weight_of(layer: nn.Module) -> tuple[nn.Module, str]:
    """The module that holds the first weight, and the weight's name."""
    name, _ = next(layer.named_parameters())
    path, _, last = name.rpartition(".")
    return layer.get_submodule(path), last


def first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else first(output[0])


def agree(layer: nn.Module, twin: nn.Module, x: Tensor, fused: bool = False) -> None:
    assert bool(operators_of(lambda: twin(x))) == fused
    torch.testing.assert_close(twin(x), layer(x))


@pytest.mark.parametrize("make", [lambda w: w.as_subclass(Telling), Scaled], ids=["function", "dispatch"])
def test_a_weight_of_a_subclass(pair: tuple, make: Callable[[Tensor], Tensor]) -> None:
    layer, twin, x = pair
    agree(layer, twin, x, fused=True)
    values = {m: dict(m._parameters) for m in twin.modules()}
    for module in (layer, twin):
        holder, name = weight_of(module)
        setattr(holder, name, nn.Parameter(make(getattr(holder, name).detach())))
    with torch.no_grad():
        agree(layer, twin, x)
        kind = type(getattr(*weight_of(layer))).__name__
        assert f"is a {kind}, not a plain torch.Tensor" in why_left(layer)
    for module, own in values.items():
        module._parameters.update(own)
    assert operators_of(lambda: twin(x))


def test_what_a_subclass_meets_is_what_it_met(pair: tuple) -> None:
    layer, twin, x = pair
    met = []
    for module in (layer, twin):
        Telling.met = []
        y = module(x.as_subclass(Telling))
        assert type(first(y)) is Telling
        met.append([name for name in Telling.met if not name.startswith("__")])
    assert met[0] == met[1] != []


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_list_of_weights_that_a_program_changed(kind: type[nn.RNNBase]) -> None:
    """torch.nn's call reads the list until a parameter is replaced."""
    layer, x = kind(3, 4), torch.randn(5, 2, 3)
    twin = copy.deepcopy(layer)
    fourfold.optimize(twin)
    for module in (layer, twin):
        module._flat_weights[1] = module._flat_weights[1].detach() / 2
    agree(layer, twin, x)
    for module in (layer, twin):
        module.weight_hh_l0 = nn.Parameter(module.weight_hh_l0.detach() * 3)
    agree(layer, twin, x, fused=True)
    values = {name: p.detach() / 2 for name, p in layer.named_parameters()}
    wanted = torch.func.functional_call(layer, values, (x,))
    torch.testing.assert_close(torch.func.functional_call(twin, values, (x,)), wanted)
    assert operators_of(lambda: torch.func.functional_call(twin, values, (x,)))
    agree(layer, twin, x, fused=True)


class Doubles(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return 2 * result if func in (nn.functional.linear, torch.tanh) else result


class Records(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_see_torchs_operations(pair: tuple) -> None:
    layer, twin, x = pair
    with Doubles():
        agree(layer, twin, x)
    records = Records(), Records()
    for module, record in zip((layer, twin), records, strict=True):
        with record:
            module(x)
    assert records[0].names == records[1].names != []


def test_a_default_device_changes_nothing(pair: tuple) -> None:
    layer, twin, x = pair
    with torch.device("cpu"):
        agree(layer, twin, x, fused=True)


def test_torchs_own_modes_know_the_operators(pair: tuple) -> None:
    _, twin, x = pair
    graph = make_fx(twin, tracing_mode="fake", _allow_non_fake_inputs=True)(x).graph
    assert any(str(node.target).startswith("fourfold.") for node in graph.nodes)


def test_full_hooks_are_called_around_the_operator(pair: tuple) -> None:
    layer, twin, x = pair
    seen: tuple[list, list] = ([], [])
    for module, calls in zip((layer, twin), seen, strict=True):
        module.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        module.register_forward_hook(lambda m, args, output, calls=calls: calls.append(first(output)))
        module.register_full_backward_hook(lambda m, ins, outs, calls=calls: calls.extend(ins))
        first(module(x.clone().requires_grad_())).sum().backward()
    torch.testing.assert_close(*seen)
    assert operators_of(lambda: twin(x))


# torch warns that the hook behaves differently from what users expect.
@pytest.mark.filterwarnings("ignore:Using.*non-full backward hook")
@pytest.mark.parametrize("everywhere", [False, True])
def test_the_old_backward_hook_sees_torchs_nodes(pair: tuple, everywhere: bool) -> None:
    layer, twin, x = pair
    seen: tuple[list, list] = ([], [])
    for module, calls in zip((layer, twin), seen, strict=True):

        def hook(m: nn.Module, ins: tuple, outs: tuple, calls: list = calls) -> None:
            calls.append([g for g in ins if g is not None])

        register = nn.modules.module.register_module_backward_hook if everywhere else module.register_backward_hook
        handle = register(hook)
        try:
            first(module(x)).sum().backward()
        finally:
            handle.remove()
    torch.testing.assert_close(*seen)
    assert seen[0]
    if not everywhere:
        layer.register_backward_hook(lambda *_: None)
        assert "register_full_backward_hook" in why_left(layer)


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def _weight_norm(module: nn.Module, name: str) -> None:
    nn.utils.weight_norm(module, name)


REWRITES: dict[str, Callable[[nn.Module, str], Any]] = {
    "parametrize": lambda m, n: parametrize.register_parametrization(m, n, Doubled()),
    "spectral_norm": lambda m, n: parametrizations.spectral_norm(m, n),
    "weight_norm": lambda m, n: parametrizations.weight_norm(m, n),
    "old weight_norm": _weight_norm,
    "old spectral_norm": lambda m, n: nn.utils.spectral_norm(m, n),
    "prune": lambda m, n: prune.l1_unstructured(m, n, amount=0.5),
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("rewrite", REWRITES)
def test_weights_made_of_others(pair: tuple, rewrite: str) -> None:
    layer, twin, x = pair
    for module in (layer, twin):
        torch.manual_seed(1)
        REWRITES[rewrite](*weight_of(module))
        module.eval()
    agree(layer, twin, x)
    assert any(word in why_left(layer) for word in ("parametrized", "computed from other parameters", "has hooks"))
    fourfold.restore(twin)
    assert not any(isinstance(m, fourfold._optimize.Fused) for m in twin.modules())
    torch.testing.assert_close(twin(x), layer(x))


def test_a_parametrized_layer_is_restored(pair: tuple) -> None:
    layer, twin, _ = pair
    place = weight_of(twin)
    parametrize.register_parametrization(*place, Doubled())
    fourfold.restore(twin)
    parametrize.remove_parametrizations(*place)
    assert [type(m) for m in twin.modules()] == [type(m) for m in layer.modules()]


def test_an_exchanged_forward_is_called(pair: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, twin, x = pair
    kind = type(weight_of(layer)[0])
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *args: torch.zeros_like(first(forward(self, *args))))
    agree(layer, twin, x)
    assert not first(twin(x)).any()
    assert "forward" in why_left(layer)


def test_an_exchanged_linear_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = stack(4, 6, 5), torch.randn(3, 4)
    fourfold.optimize(layer)
    monkeypatch.setattr(nn.functional, "linear", lambda x, w, b: x.new_zeros(*x.shape[:-1], w.shape[0]))
    assert not layer(x).any()


# torch warns that both layouts are experimental.
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested tensors")
def test_layouts_that_the_operator_does_not_know() -> None:
    layer = stack(4, 6, 5)
    twin = copy.deepcopy(layer)
    fourfold.optimize(twin)
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    for got, wanted in zip(twin(nested).unbind(), layer(nested).unbind(), strict=True):
        torch.testing.assert_close(got, wanted)
    for module in (layer, twin):
        module[0].weight = nn.Parameter(module[0].weight.detach().to_sparse_csr())
    with torch.no_grad():
        agree(layer, twin, torch.randn(3, 4))
    assert "a layer's weight is not a dense tensor" in why_left(layer)


def test_restarts_are_refused_where_torch_runs_the_layer() -> None:
    layer, x, reset = nn.GRU(4, 5), torch.randn(3, 2, 4), torch.zeros(3, 2, dtype=torch.bool)
    fourfold.optimize(layer)
    layer(x, reset=reset)
    with pytest.raises(TypeError, match="GRU: expected no reset in a call that torch.nn.GRU runs, .* leave reset out"):
        layer(x.as_subclass(Telling), reset=reset)


@pytest.fixture
def mesh(process_group: None) -> DeviceMesh:
    return init_device_mesh("cpu", (1,))


def test_with_fully_shard(pair: tuple, mesh: DeviceMesh) -> None:
    layer, twin, x = pair
    wanted = first(layer(x))
    grads = torch.autograd.grad(wanted.sum(), list(layer.parameters()))
    fully_shard(twin, mesh=mesh)
    got = first(twin(x))
    got.sum().backward()
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close([p.grad.full_tensor() for p in twin.parameters()], list(grads))
    assert operators_of(lambda: twin(x))
    fourfold.restore(twin)
    assert isinstance(twin, FSDPModule) and isinstance(twin, type(layer))
    torch.testing.assert_close(first(twin(x)), wanted)
    outer = nn.Sequential(layer)
    fully_shard(outer, mesh=mesh)
    assert "is a DTensor, not a plain torch.Tensor" in why_left(outer)
