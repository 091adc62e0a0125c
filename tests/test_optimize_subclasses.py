"""fourfold.optimize on subclasses of torch.nn's layers, and on stacks with dropout, Identity or a Sequential."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from test_optimize import operators_of, stack, why_left


class Encoder(nn.LSTM):
    """A typical user subclass: its own arguments, a method, state."""

    def __init__(self, size: int) -> None:
        super().__init__(size, 2 * size, batch_first=True)
        self.calls = 0

    def last(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self(x)[0][:, -1]


class Smaller(Encoder):
    pass


class Memory(nn.GRU):
    pass


class Step(nn.LSTMCell):
    pass


class GatedStep(nn.GRUCell):
    pass


class Head(nn.Sequential):
    def __init__(self, size: int = 4) -> None:
        super().__init__(nn.Linear(size, 6), nn.ReLU(), nn.Linear(6, 3))

    def scaled(self, x: Tensor) -> Tensor:
        return 2 * self(x)


class Initialised(nn.Linear):
    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)


MAKE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Encoder": (lambda: Encoder(4), (2, 3, 4)),
    "Smaller": (lambda: Smaller(4), (2, 3, 4)),
    "Memory": (lambda: Memory(4, 5), (3, 2, 4)),
    "Step": (lambda: Step(4, 5), (3, 4)),
    "GatedStep": (lambda: GatedStep(4, 5), (3, 4)),
    "Head": (Head, (3, 4)),
    "Initialised": (lambda: nn.Sequential(Initialised(4, 5), nn.Tanh(), nn.Linear(5, 2)), (3, 4)),
}


@pytest.mark.parametrize("name", MAKE)
def test_a_subclass_without_a_forward_of_its_own_is_optimised(name: str) -> None:
    make, shape = MAKE[name]
    layer, x = make(), torch.randn(shape)
    kind, wanted = type(layer), layer(x)
    report = fourfold.optimize(layer)
    assert len(report.changed) == 1 and not report.left
    assert isinstance(layer, kind) and type(layer) is not kind
    assert operators_of(lambda: layer(x))
    torch.testing.assert_close(layer(x), wanted)
    again = fourfold.optimize(make())  # one class, however many modules
    assert len(again.changed) == 1
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    copies = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(buffer, weights_only=False)
    for twin in (layer, *copies):
        assert type(twin) is type(layer) or twin is layer
        assert operators_of(lambda twin=twin: twin(x))
        torch.testing.assert_close(twin(x), wanted)
    for twin in (*copies, layer):
        fourfold.restore(twin)
        assert type(twin) is kind
        torch.testing.assert_close(twin(x), wanted, rtol=0, atol=0)


def test_a_users_methods_run_on_the_optimised_layer() -> None:
    encoder, head, x = Encoder(4), Head(), torch.randn(2, 3, 4)
    wanted = encoder.last(x), head.scaled(x)
    assert str(fourfold.optimize(encoder)).splitlines()[1] == "(the model)  Encoder  fourfold.nn.LSTM"
    fourfold.optimize(head)
    assert operators_of(lambda: encoder.last(x)) == {"lstm"} and operators_of(lambda: head.scaled(x)) == {"mlp"}
    torch.testing.assert_close((encoder.last(x), head.scaled(x)), wanted)
    assert encoder.calls == 3


def test_a_forward_that_a_subclass_gets_later_is_called() -> None:
    class Late(nn.GRU):
        pass

    layer, x = Late(3, 4), torch.randn(5, 2, 3)
    assert fourfold.optimize(layer).changed and operators_of(lambda: layer(x))
    Late.forward = lambda self, x, hx=None: "theirs"
    assert layer(x) == "theirs"


def test_a_forward_that_a_container_gets_later_is_called() -> None:
    class Head(nn.Sequential):
        pass

    head, x = Head(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4)
    assert fourfold.optimize(head).changed and operators_of(lambda: head(x))
    Head.forward = lambda self, x: "theirs"
    assert head(x) == "theirs"


class Registered(nn.LSTM):
    seen: list[type] = []

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Registered.seen.append(cls)


class Checking(nn.LSTM):
    def check_forward_args(self, *args: Any) -> None:
        raise ValueError("checked")


class Named(nn.GRU):
    def _check(self) -> str:
        return "mine"


class Doubling(nn.Linear):
    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return 2 * value if name == "weight" else value


def test_subclasses_that_are_left() -> None:
    """Their code would observe the replaced class, or fourfold's code would use their attributes."""
    assert "__init_subclass__" in why_left(Registered(3, 4))
    assert not Registered.seen
    assert "forward may differ" in why_left(Checking(3, 4))
    assert "an attribute _check, as fourfold's class has" in why_left(Named(3, 4))
    named = nn.LSTM(3, 4)
    named._name = "encoder"
    assert "an attribute _name, as fourfold's class has" in why_left(named)
    assert "a subclass of Linear" in why_left(nn.Sequential(Doubling(3, 4), nn.ReLU(), nn.Linear(4, 2)))


def dropouts(kind: type[nn.Module] = nn.Dropout, p: float = 0.5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), kind(p), nn.Linear(8, 8), nn.ReLU(), kind(p), nn.Linear(8, 2))


@pytest.mark.parametrize("kind", [nn.Dropout, nn.AlphaDropout])
@pytest.mark.parametrize("training", [True, False], ids=["optimised in training", "optimised in eval"])
def test_dropout_in_a_stack(kind: type[nn.Module], training: bool) -> None:
    """One operator while dropout is off; in training it uses torch's random numbers, however often the mode changes."""
    model = dropouts(kind).train(training)
    twin, x = copy.deepcopy(model), torch.randn(5, 4)
    (entry,) = fourfold.optimize(twin).changed
    assert entry.name == "(the model)[0:6]"
    assert entry.what == "one operator where dropout is off, as in eval mode"
    for mode in (training, not training, training):
        model.train(mode), twin.train(mode)
        results = []
        for module in (model, twin):
            torch.manual_seed(3)
            y = module(x)
            gradients = torch.autograd.grad(y.sum(), list(module.parameters()))
            results.append((y, gradients, torch.rand(1)))  # the same number of random numbers was drawn
        torch.testing.assert_close(*results)
        assert operators_of(lambda: twin(x)) == (set() if mode else {"mlp_layers"})
    twin.train()
    twin[2].eval()
    twin[5].p = 0
    assert operators_of(lambda: twin(x)) == {"mlp_layers"}
    twin[5].p = 1.0
    torch.testing.assert_close(twin(x), twin[6](torch.zeros(5, 8)))
    seen = []
    twin.eval()[2].register_forward_hook(lambda *_: seen.append(1))
    twin(x)
    assert seen


def test_dropout_of_zero_in_training() -> None:
    model, x = dropouts(p=0.0), torch.randn(5, 4)
    wanted = model(x)
    (entry,) = fourfold.optimize(model).changed
    assert entry.what == "one operator"
    assert operators_of(lambda: model(x)) == {"mlp_layers"}
    torch.testing.assert_close(model(x), wanted)


def blocks(*sizes: int) -> nn.Sequential:
    """As torchvision and others build them: a block per layer."""
    made = [nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Identity()) for a, b in zip(sizes, sizes[1:], strict=False)]
    return nn.Sequential(nn.Flatten(), *made[:-1], made[-1][0])


def test_a_sequential_in_a_stack() -> None:
    model, x = blocks(4, 8, 8, 2), torch.randn(5, 2, 2)
    keys, wanted = list(model.state_dict()), model(x)
    (entry,) = fourfold.optimize(model).changed
    assert (entry.name, entry.kind) == ("(the model)[1.0:3]", "Linear-relu 4-8-8-2")
    assert operators_of(lambda: model(x)) == {"mlp_layers"}
    torch.testing.assert_close(model(x), wanted)
    assert list(model.state_dict()) == keys
    seen = []
    hook = model[1].register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(model(x), wanted)
    assert seen and operators_of(lambda: model(x)) == {"mlp"}  # from the layers after it
    hook.remove()
    model[2] = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())
    torch.testing.assert_close(model(x), nn.Sequential(*model)(x))


def test_a_whole_stack_in_a_sequential_is_its_own() -> None:
    model = nn.Sequential(nn.Flatten(), stack(4, 5, 2))
    (entry,) = fourfold.optimize(model).changed
    assert entry.name == "1[0:2]" and type(model) is nn.Sequential


def test_dynamo_guards_on_the_mode() -> None:
    torch._dynamo.reset()
    model, x = dropouts(), torch.randn(5, 4)
    fourfold.optimize(model)
    compiled = torch.compile(model, backend="aot_eager")
    model.eval()
    torch.testing.assert_close(compiled(x), model(x))
    model.train()
    assert not torch.equal(compiled(x), compiled(x))
