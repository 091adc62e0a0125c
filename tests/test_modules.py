"""The modules: torch.nn's shapes and semantics, states, packed input, checkpoints, copying."""

from __future__ import annotations

import copy
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import fourfold
from fourfold import reference

OPTIONS = [
    {},
    {"num_layers": 2},
    {"bidirectional": True},
    {"num_layers": 3, "bidirectional": True, "batch_first": True},
    {"bias": False, "num_layers": 2, "batch_first": True},
]


def by_reference(lltm: fourfold.nn.LLTM, x: Tensor, h_0: Tensor, c_0: Tensor, batch_sizes: Tensor | None = None) -> Any:
    """Layers and directions composed of the plain torch definition of one."""
    h_n, c_n, k = [], [], 0
    for layer in range(lltm.num_layers):
        outputs = []
        for direction in range(lltm.num_directions):
            suffix = f"_l{layer}" + "_reverse" * direction
            output, (h, c) = reference.lltm(
                x,
                h_0[k],
                c_0[k],
                getattr(lltm, f"weights{suffix}"),
                getattr(lltm, f"bias{suffix}"),
                bool(direction),
                batch_sizes,
            )
            outputs.append(output)
            h_n.append(h)
            c_n.append(c)
            k += 1
        x = torch.cat(outputs, -1)
    return x, torch.stack(h_n), torch.stack(c_n)


def states(lltm: fourfold.nn.LLTM, batch: int) -> tuple[Tensor, Tensor]:
    shape = (lltm.num_layers * lltm.num_directions, batch, lltm.hidden_size)
    return torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_lltm_composes_layers_and_directions(options: dict) -> None:
    lltm = fourfold.nn.LLTM(5, 7, **options, dtype=torch.float64)
    x, (h_0, c_0) = torch.randn(6, 3, 5, dtype=torch.float64), states(lltm, 3)
    wanted, h_n, c_n = by_reference(lltm, x, h_0, c_0)
    output, state = lltm(x.transpose(0, 1) if lltm.batch_first else x, (h_0, c_0))
    torch.testing.assert_close(output.transpose(0, 1) if lltm.batch_first else output, wanted)
    torch.testing.assert_close(state, (h_n, c_n))
    zeros = torch.zeros_like(h_0)
    without = lltm(x.transpose(0, 1) if lltm.batch_first else x)[1]
    torch.testing.assert_close(without, by_reference(lltm, x, zeros, zeros)[1:])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_lltm_has_nn_lstms_shapes(options: dict) -> None:
    lltm, lstm = fourfold.nn.LLTM(5, 7, **options), nn.LSTM(5, 7, **options)
    for x in (torch.randn(6, 3, 5), torch.randn(6, 5), torch.randn(6, 1, 5), torch.randn(1, 4, 5)):
        (output, state), (like, like_state) = lltm(x), lstm(x)
        assert output.shape == like.shape
        assert [s.shape for s in state] == [s.shape for s in like_state]
        assert lltm(x, state)[0].shape == like.shape


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_packed_sequences(options: dict, enforce_sorted: bool) -> None:
    lltm = fourfold.nn.LLTM(5, 7, **options, dtype=torch.float64)
    lengths = torch.tensor([6, 4, 4, 1]) if enforce_sorted else torch.tensor([4, 1, 6, 4])
    x, (h_0, c_0) = torch.randn(6, 4, 5, dtype=torch.float64), states(lltm, 4)
    packed = pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted)
    output, (h_n, c_n) = lltm(packed, (h_0, c_0))
    assert isinstance(output, PackedSequence)
    padded, out_lengths = pad_packed_sequence(output)
    assert torch.equal(out_lengths, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, h, c = by_reference(lltm, x[:length, row : row + 1], h_0[:, row : row + 1], c_0[:, row : row + 1])
        torch.testing.assert_close(padded[:length, row], alone[:, 0])
        torch.testing.assert_close(h_n[:, row], h[:, 0])
        torch.testing.assert_close(c_n[:, row], c[:, 0])
        assert not padded[length:, row].any()


def test_packed_gradients() -> None:
    lltm = fourfold.nn.LLTM(3, 4, bidirectional=True, dtype=torch.float64)
    sequences = [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 5, 3)]
    output, _ = lltm(pack_sequence(sequences, enforce_sorted=False))
    grads = torch.autograd.grad(output.data.square().sum(), sequences)
    for sequence, grad in zip(sequences, grads, strict=True):
        alone, _ = lltm(sequence.unsqueeze(1))
        torch.testing.assert_close(grad, torch.autograd.grad(alone.square().sum(), sequence)[0])


def test_dropout_between_layers_in_training_only() -> None:
    lltm = fourfold.nn.LLTM(5, 7, num_layers=2, dropout=0.5)
    x = torch.randn(6, 3, 5)
    assert not torch.equal(lltm(x)[0], lltm(x)[0])
    lltm.eval()
    assert torch.equal(lltm(x)[0], lltm(x)[0])
    with pytest.warns(UserWarning, match="has no effect with num_layers=1"):
        single = fourfold.nn.LLTM(5, 7, dropout=0.5)
    assert torch.equal(single(x)[0], single(x)[0])


@pytest.mark.parametrize("shape", [(0, 3, 5), (4, 0, 5)])
def test_nothing_in_nothing_out(shape: tuple) -> None:
    lltm = fourfold.nn.LLTM(5, 7, num_layers=2, bidirectional=True)
    h_0, c_0 = torch.randn(4, shape[1], 7), torch.randn(4, shape[1], 7)
    output, (h_n, c_n) = lltm(torch.randn(shape), (h_0, c_0))
    assert output.shape == (*shape[:2], 14)
    if shape[0] == 0:
        assert torch.equal(h_n, h_0) and torch.equal(c_n, c_0)
    output.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in lltm.parameters())


def test_cell_takes_a_batch_one_row_or_no_state() -> None:
    cell = fourfold.nn.LLTMCell(3, 4)
    x, h, c = torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)
    h_1, c_1 = cell(x, (h, c))
    alone = cell(x[0], (h[0], c[0]))
    torch.testing.assert_close(alone, (h_1[0], c_1[0]))
    torch.testing.assert_close(cell(x), cell(x, (torch.zeros(2, 4), torch.zeros(2, 4))))


def test_sequence_is_its_cell_step_by_step() -> None:
    lltm, cell = fourfold.nn.LLTM(3, 4), fourfold.nn.LLTMCell(3, 4)
    cell.load_state_dict({"weights": lltm.weights_l0, "bias": lltm.bias_l0})
    x, state = torch.randn(5, 2, 3), (torch.zeros(2, 4), torch.zeros(2, 4))
    for t, output in enumerate(lltm(x)[0]):
        state = cell(x[t], state)
        torch.testing.assert_close(output, state[0])


MODULES = {
    "Axpby": lambda: fourfold.nn.Axpby(3, 0.5),
    "Softshrink": lambda: fourfold.nn.Softshrink(0.25),
    "LLTMCell": lambda: fourfold.nn.LLTMCell(3, 4, bias=False),
    "LLTM": lambda: fourfold.nn.LLTM(3, 4, num_layers=2, bidirectional=True),
    "MLP": lambda: fourfold.nn.MLP(3, 4, 2),
    "MLP of a list": lambda: fourfold.nn.MLP([3, 4, 2], activation="gelu", bias=False),
}


def run(module: nn.Module) -> Tensor:
    x = torch.ones(2, 2, 3)
    if isinstance(module, fourfold.nn.Axpby):
        return module(x, x)
    result = module(x[0] if isinstance(module, fourfold.nn.LLTMCell) else x)
    return result if isinstance(result, Tensor) else result[0]


@pytest.mark.parametrize("name", MODULES)
def test_copies_and_pickles(name: str) -> None:
    module = MODULES[name]()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(run(twin), run(module))


PUBLIC = {
    **MODULES,
    "LSTM": lambda: fourfold.nn.LSTM(3, 4),
    "GRU": lambda: fourfold.nn.GRU(3, 4),
    "LSTMCell": lambda: fourfold.nn.LSTMCell(3, 4),
    "GRUCell": lambda: fourfold.nn.GRUCell(3, 4),
    "Recurrent": lambda: fourfold.nn.Recurrent(torch.nn.GRUCell(3, 4)),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_class_says_where_people_import_it_from(name: str) -> None:
    module = PUBLIC[name]()
    assert str(type(module)) == f"<class 'fourfold.nn.{name.split()[0]}'>"
    written = [value for _, value, _ in pickletools.genops(pickle.dumps(module, protocol=2)) if isinstance(value, str)]
    assert {word for word in written if word.startswith("fourfold")} == {f"fourfold.nn {name.split()[0]}"}
    assert type(pickle.loads(pickle.dumps(module))) is type(module)


def test_every_public_class_is_pickled_here() -> None:
    assert {name.split()[0] for name in PUBLIC} == set(fourfold.nn.__all__)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "LSTMCell", "GRUCell", "Sequential"])
def test_an_optimized_layers_class_reads_well_too(name: str) -> None:
    sizes = [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)] if name == "Sequential" else (3, 4)
    model = getattr(nn, name)(*sizes)
    fourfold.optimize(model)
    assert str(type(model)) == f"<class 'fourfold._optimize.Fused{name}'>"
    assert f"cfourfold._optimize\nFused{name}\n".encode() in pickle.dumps(model, protocol=2)


def test_extra_repr() -> None:
    assert [repr(make()) for make in MODULES.values()] == [
        "Axpby(alpha=3, beta=0.5)",
        "Softshrink(0.25)",
        "LLTMCell(3, 4, bias=False)",
        "LLTM(3, 4, num_layers=2, bidirectional=True)",
        "MLP(3, 4, 2)",
        "MLP(\n"
        "  (0): Linear(in_features=3, out_features=4, bias=False)\n"
        "  (1): GELU(approximate='none')\n"
        "  (2): Linear(in_features=4, out_features=2, bias=False)\n"
        ")",
    ]


@pytest.mark.parametrize("name", ["LLTMCell", "LLTM", "MLP"])
def test_reset_parameters_follows_the_tutorial(name: str) -> None:
    """Uniform within 1/√hidden_size; the values depend on the seed only."""
    make = {
        "LLTMCell": lambda: fourfold.nn.LLTMCell(8, 64),
        "LLTM": lambda: fourfold.nn.LLTM(8, 64),
        "MLP": lambda: fourfold.nn.MLP(8, 64, 8),
    }[name]
    torch.manual_seed(3)
    module = make()
    values = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert values.abs().max() <= 1 / 8
    assert values.abs().max() > 0.99 / 8
    assert values.mean().abs() < 0.005
    torch.manual_seed(3)
    module.reset_parameters()
    assert torch.equal(values, torch.cat([p.detach().flatten() for p in module.parameters()]))


def test_state_dict_names() -> None:
    assert {k: tuple(v.shape) for k, v in fourfold.nn.LLTM(3, 4, 2, bidirectional=True).state_dict().items()} == {
        "weights_l0": (12, 7),
        "bias_l0": (12,),
        "weights_l0_reverse": (12, 7),
        "bias_l0_reverse": (12,),
        "weights_l1": (12, 12),
        "bias_l1": (12,),
        "weights_l1_reverse": (12, 12),
        "bias_l1_reverse": (12,),
    }
    assert list(fourfold.nn.LLTM(3, 4, bias=False).state_dict()) == ["weights_l0"]


def test_checkpoints_with_either_shape_of_bias_load() -> None:
    cell, lltm, mlp = fourfold.nn.LLTMCell(3, 4), fourfold.nn.LLTM(3, 4), fourfold.nn.MLP(3, 4, 2)
    cell.load_state_dict({"weights": torch.ones(12, 7), "bias": torch.ones(1, 12)})
    lltm.load_state_dict({"weights_l0": torch.ones(12, 7), "bias_l0": torch.ones(1, 12)})
    assert cell.bias.shape == lltm.bias_l0.shape == (12,)
    state = mlp.state_dict() | {"hidden_bias": torch.ones(4), "output_bias": torch.ones(2)}
    mlp.load_state_dict(state)
    assert mlp.hidden_bias.shape == (1, 4)
    assert state["hidden_bias"].shape == (4,)  # the checkpoint itself is unchanged


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_modules_in_other_dtypes(dtype: torch.dtype) -> None:
    for make in (lambda: fourfold.nn.LLTM(3, 4, dtype=dtype), lambda: fourfold.nn.MLP(3, 4, 2).to(dtype)):
        module = make()
        x = torch.randn(5, 2, 3, dtype=dtype)
        result = module(x)
        result = result if isinstance(result, Tensor) else result[0]
        assert result.dtype == dtype
        result.sum().backward()
        assert all(p.grad.dtype == dtype for p in module.parameters())


def test_modules_on_the_meta_device() -> None:
    lltm = fourfold.nn.LLTM(3, 4, device="meta")
    output, _ = lltm(torch.empty(5, 2, 3, device="meta"))
    assert output.shape == (5, 2, 4) and output.is_meta
    lltm = lltm.to_empty(device="cpu")
    lltm.reset_parameters()
    assert lltm(torch.ones(5, 2, 3))[0].isfinite().all()


SEQUENTIAL = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}


def sequential(sizes: list[int], activation: str) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(sizes[0], sizes[1])]
    for inputs, outputs in zip(sizes[1:], sizes[2:], strict=False):
        layers += [SEQUENTIAL[activation](), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("activation", SEQUENTIAL)
@pytest.mark.parametrize("sizes", [[5, 3], [5, 7, 3], [270, 250, 8, 3]], ids=str)
def test_mlp_is_the_sequential_whose_checkpoint_it_loads(sizes: list[int], activation: str) -> None:
    torch.manual_seed(5)
    plain = sequential(sizes, activation)
    torch.manual_seed(5)
    mlp = fourfold.nn.MLP(sizes, activation=activation)
    assert all(torch.equal(a, b) for a, b in zip(mlp.parameters(), plain.parameters(), strict=True))
    plain.load_state_dict(mlp.state_dict())
    mlp.load_state_dict(plain.state_dict())
    x = torch.randn(6, 2, sizes[0])
    torch.testing.assert_close(mlp(x), plain(x))
    grads = [torch.autograd.grad(m(x).square().sum(), list(m.parameters())) for m in (mlp, plain)]
    torch.testing.assert_close(*grads)


def test_mlp_takes_weights_that_are_computed() -> None:
    mlp = fourfold.nn.MLP([3, 4, 2], activation="tanh")
    plain = sequential([3, 4, 2], "tanh")
    for m in (mlp, plain):
        for k, layer in enumerate(m.children()):
            if k != 1:
                torch.manual_seed(k)
                layer.reset_parameters()
                nn.utils.parametrizations.weight_norm(layer)
    x = torch.randn(5, 3)
    torch.testing.assert_close(mlp(x), plain(x))
    assert all(p.grad is None for p in mlp.parameters())
    mlp(x).sum().backward()
    assert all(p.grad is not None for p in mlp.parameters())


def test_mlp_with_a_tutorials_parameters_takes_any_activation() -> None:
    mlp = fourfold.nn.MLP(input_size=3, hidden_size=4, output_size=2, activation="silu")
    plain = sequential([3, 4, 2], "silu")
    names = {
        "0.weight": "hidden_weights",
        "0.bias": "hidden_bias",
        "2.weight": "output_weights",
        "2.bias": "output_bias",
    }
    mlp.load_state_dict({names[k]: v for k, v in plain.state_dict().items()})
    x = torch.randn(5, 3)
    torch.testing.assert_close(mlp(x), plain(x))


def test_a_relu_whose_weights_are_frozen_keeps_bits() -> None:
    """A thirty-second of what a Sequential saves; the gradient of x is the same."""
    mlp, plain = fourfold.nn.MLP([6, 24, 40, 3]).requires_grad_(False), sequential([6, 24, 40, 3], "relu")
    plain.load_state_dict(mlp.state_dict())
    x, kept = torch.randn(9, 6, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = mlp(x)
    assert sum(t.numel() for t in kept if t.dtype == torch.uint8) == 9 * (24 + 40) // 8
    assert sum(t.numel() for t in kept if t.dtype != torch.uint8) == sum(t.numel() for t in (x, *mlp.parameters()))
    torch.testing.assert_close(*(torch.autograd.grad(out.sum(), x) for out in (y, plain.requires_grad_(False)(x))))


class Halved(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result / 2 if func is nn.functional.linear else result


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "a hook": lambda m: m.get_submodule("1").register_forward_hook(lambda module, args, output: output + 1),
    "a pre-hook": lambda m: m.get_submodule("2").register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
    "pruned": lambda m: prune.random_unstructured(m.get_submodule("0"), "weight", 0.5),
    "weight_norm": lambda m: nn.utils.weight_norm(m.get_submodule("2")).weight_g.data.mul_(2),
    "a subclass": lambda m: setattr(
        m.get_submodule("0"), "weight", nn.Parameter(m.get_submodule("0").weight.detach().as_subclass(Halved))
    ),
    "another layer": lambda m: m._modules.update({"2": nn.Sequential(m.get_submodule("2"), nn.Sigmoid())}),
    "another activation": lambda m: m._modules.update({"1": nn.Sigmoid()}),
    "one more": lambda m: m.add_module("3", nn.Tanh()),
    "without a bias": lambda m: setattr(m.get_submodule("0"), "bias", None),
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("change", CHANGES)
def test_mlp_whose_layers_were_changed_is_a_sequential(change: str) -> None:
    mlp, plain = fourfold.nn.MLP([3, 4, 2], activation="tanh"), sequential([3, 4, 2], "tanh")
    plain.load_state_dict(mlp.state_dict())
    for m in (mlp, plain):
        torch.manual_seed(2)
        CHANGES[change](m)
    x = torch.randn(5, 3)
    torch.testing.assert_close(mlp(x), plain(x))
