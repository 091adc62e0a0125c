"""A frozen layer's calls in C++: the bits, shapes and types of the same call through Python, which handles everything
except plain calls without gradient."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import fourfold
from fourfold import _native, freezing
from weight_changes import KINDS, input_of

pytestmark = pytest.mark.skipif(_native.module is None, reason="calls go through Python")
LAYERS = {"LSTM": fourfold.nn.LSTM, "GRU": fourfold.nn.GRU, "LLTM": fourfold.nn.LLTM}
CELLS = {"LSTMCell": fourfold.nn.LSTMCell, "GRUCell": fourfold.nn.GRUCell}
OPTIONS = (
    {},
    {"num_layers": 2, "dropout": 0.5},
    {"bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bidirectional": True, "bias": False},
    {"batch_first": True, "dtype": torch.float64},
    {"dtype": torch.bfloat16},
)


def tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    else:
        assert type(result) is tuple
        for part in result:
            yield from tensors(part)


def through_python(module: nn.Module, *given: Any) -> Any:
    with patch.object(freezing._frozen[module], "run", None):
        return module(*given)


def in_cpp(module: nn.Module, input: Any, hx: Any = None, *reset: Any) -> bool:
    cell = isinstance(module, nn.GRUCell)
    return freezing.run_frozen(module, input, (hx,) if cell and hx is not None else hx, *reset) is not None


def expect_the_same(module: nn.Module, x: Tensor, hx: Any, *reset: Tensor) -> None:
    for grad in (torch.no_grad, torch.inference_mode):
        with grad():
            assert in_cpp(module, x, hx, *reset)
            got, wanted = module(x, hx, *reset), through_python(module, x, hx, *reset)
        assert len(got) == len(wanted)
        for a, b in zip(tensors(got), tensors(wanted), strict=True):
            assert torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()
            assert not a.requires_grad and a.is_inference() == b.is_inference()


def test_a_step_before_the_freezing_is_none_of_its() -> None:
    earlier = fourfold.freeze(fourfold.nn.GRU(5, 18))
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.SGD([weight], 0.1).step()
    layer, x = fourfold.freeze(fourfold.nn.GRU(5, 18)), torch.zeros(1, 1, 5)
    with torch.no_grad():
        assert in_cpp(layer, x) and not in_cpp(earlier, x)
        earlier(x)  # compares its weights
        assert in_cpp(earlier, x)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_give_the_same_bits(name: str, options: dict) -> None:
    torch.manual_seed(0)
    module = fourfold.freeze(LAYERS[name](5, 18, **options).eval())
    like = {"dtype": options.get("dtype", torch.float32)}
    count = module.num_layers * (2 if module.bidirectional else 1)
    for batch, time in ((1, 1), (3, 1), (2, 7), (None, 4)):
        sizes = (time,) if batch is None else (batch, time) if module.batch_first else (time, batch)
        state_sizes = (count, 18) if batch is None else (count, batch, 18)
        states = tuple(torch.randn(state_sizes, **like) for _ in range(1 if name == "GRU" else 2))
        x = torch.randn(*sizes, 5, **like)
        strided = torch.randn(*sizes, 2, 10, **like)[..., 1, ::2]
        strided_states = tuple(torch.cat([s, s], -1)[..., ::2] for s in states)
        for input, given in ((x, states), (strided, strided_states), (x, None)):
            expect_the_same(module, input, given[0] if given and name == "GRU" else given)
        if not module.bidirectional:
            for reset in (torch.rand(sizes) < 0.4, (torch.rand(*sizes, 2) < 0.4)[..., 1]):
                expect_the_same(module, x, states[0] if name == "GRU" else states, reset)


@pytest.mark.parametrize("options", [{}, {"bias": False, "dtype": torch.float64}], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_cells_give_the_same_bits(name: str, options: dict) -> None:
    torch.manual_seed(0)
    cell = fourfold.freeze(CELLS[name](5, 18, **options))
    like = {"dtype": options.get("dtype", torch.float32)}
    for sizes in ((), (1,), (3,)):
        states = tuple(torch.randn(*sizes, 18, **like) for _ in range(1 if name == "GRUCell" else 2))
        x = torch.randn(*sizes, 5, **like)
        for input, given in ((x, states), (torch.randn(*sizes, 10, **like)[..., ::2], states), (x, None)):
            expect_the_same(cell, input, given[0] if given and name == "GRUCell" else given)


def test_an_optimized_model_is_answered_too() -> None:
    model = nn.ModuleDict({"a": nn.GRU(3, 20), "b": nn.LSTMCell(3, 20)})
    fourfold.optimize(model)
    fourfold.freeze(model)
    for module, x in ((model["a"], torch.ones(1, 2, 3)), (model["b"], torch.ones(2, 3))):
        run = freezing._frozen[module].run
        with patch.object(freezing._frozen[module], "run", wraps=run) as called, torch.no_grad():
            module(x)
        assert called.call_count == 1
        expect_the_same(module, x, None)


class Followed(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Own(Tensor):
    pass


@pytest.mark.parametrize(
    "context",
    [
        torch.enable_grad(),
        torch.autocast("cpu", torch.bfloat16),
        FlopCounterMode(display=False),
        torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
        Followed(),
    ],
    ids=lambda context: type(context).__name__,
)
@pytest.mark.parametrize("name", KINDS)
def test_other_kinds_of_calls_are_pythons(name: str, context: AbstractContextManager) -> None:
    module = fourfold.freeze(KINDS[name]().eval())
    with torch.no_grad():
        assert in_cpp(module, input_of(module))
        with context:
            assert not in_cpp(module, input_of(module))
            module(input_of(module))
        assert in_cpp(module, input_of(module))


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_is_no_plain_input_or_state_is_pythons() -> None:
    lstm, cell = fourfold.freeze(fourfold.nn.LSTM(3, 20)), fourfold.freeze(fourfold.nn.GRUCell(3, 20))
    x, h = torch.ones(1, 2, 3), torch.zeros(1, 2, 20)
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 3)])
    wrong_states = (h, [h, h], (h, h, h), (h, h.double()), (h, h[:, :1]), (h.expand(2, 2, 20), h), (h[0], h[0]), (h, 3))
    with torch.no_grad():
        for wrong in (x.double(), x.as_subclass(Own), x[..., :2], x[:0], x[:, :0], x[0, 0], x.to("meta"), packed, None):
            assert not in_cpp(lstm, wrong)
        for states in wrong_states:
            assert not in_cpp(lstm, x, states)
        for state in (h, h[0, :1], h[0, 0], h[0].double(), (h[0],)):
            assert not in_cpp(cell, x[0], state)
        assert in_cpp(lstm, x, (h, h)) and in_cpp(cell, x[0], h[0])
        for reset in (torch.ones(1, 2), [True], torch.ones(2, dtype=torch.bool), torch.ones(2, 1, dtype=torch.bool)):
            assert not in_cpp(lstm, x, None, reset)
            with pytest.raises((TypeError, ValueError), match="LSTM: expected reset to "):
                lstm(x, None, reset)
        both = fourfold.freeze(fourfold.nn.LSTM(3, 20, bidirectional=True))
        reset = torch.tensor([[True, False]])
        assert not in_cpp(both, x, None, reset) and both(x, None, reset)[0].shape == (1, 2, 40)
        lstm(packed), lstm(x, [h, h])
        with pytest.raises(RuntimeError, match=r"Expected hidden\[0\] size \(1, 2, 20\), got \[1, 1, 20\]"):
            lstm(x, (h[:, :1], h))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            assert not in_cpp(lstm, dual) and not in_cpp(lstm, x, (h, forward_ad.make_dual(h, h)))
        seen = []
        torch.vmap(lambda one: (seen.append(in_cpp(lstm, one)), lstm(one)[0])[1])(x.expand(2, 1, 2, 3))
        torch.jit.trace(lambda one: (seen.append(in_cpp(lstm, one)), one + 1)[1], (x,), check_trace=False)
        assert seen == [False, False]


@pytest.mark.parametrize("name", ["LSTM", "GRU", "LLTM"])
def test_what_an_operator_refuses_has_pythons_words(name: str) -> None:
    module = KINDS[name]().eval()
    count, batch = len(module._all_weights), 2**45
    x, h = torch.ones(1, 1, 3).expand(1, batch, 3), torch.zeros(count, 1, 20).expand(count, batch, 20)
    sentences = []
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^{name.lower()}: expected ") as raised, torch.no_grad():
            module(x, h if name == "GRU" else (h, h))
        sentences.append(str(raised.value))
        fourfold.freeze(module)
    assert sentences[0] == sentences[1]


def test_tensors_of_inference_mode_are_plain() -> None:
    lstm = fourfold.freeze(fourfold.nn.LSTM(3, 20, num_layers=2, batch_first=True))
    with torch.inference_mode():
        x, state = torch.ones(2, 1, 3), (torch.ones(2, 2, 20), torch.ones(2, 2, 20))
    with torch.no_grad():
        assert in_cpp(lstm, x, state)
        output, (h, c) = lstm(x, state)
        for made, wanted in zip(tensors((output, (h, c))), tensors(through_python(lstm, x, state)), strict=True):
            assert torch.equal(made, wanted) and not made.is_inference()
            made.add_(1)


def test_attributes_that_change_are_read() -> None:
    gru = fourfold.freeze(fourfold.nn.GRU(3, 20, num_layers=2, dropout=0.5).eval())
    x = torch.ones(1, 2, 3)
    with torch.no_grad():
        assert in_cpp(gru, x)
        assert not in_cpp(gru.train(), x) and not torch.equal(gru(x)[0], gru(x)[0])
        assert in_cpp(gru.eval(), x)
        gru.batch_first = True
        assert not in_cpp(gru, x) and gru(x)[1].shape == (2, 1, 20)
        gru.batch_first = False
        gru.dropout = 0.25
        assert not in_cpp(gru, x) and torch.equal(gru(x)[0], gru(x)[0])


def test_another_models_step_costs_one_call_through_python() -> None:
    gru, other = fourfold.freeze(fourfold.nn.GRU(3, 20)), nn.Linear(2, 2)
    other(torch.ones(2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    x = torch.ones(1, 2, 3)
    with torch.no_grad():
        assert not in_cpp(gru, x)
        gru(x)
        assert in_cpp(gru, x)


@pytest.mark.parametrize("name", KINDS)
def test_calls_hold_nothing(name: str) -> None:
    module = fourfold.freeze(KINDS[name]().eval())
    x = input_of(module)
    states = [torch.zeros(2, 20) if name.endswith("Cell") else torch.zeros(len(module._all_weights), 2, 20)]
    states *= 1 if name.startswith("GRU") else 2
    hx = states[0] if len(states) == 1 else tuple(states)
    with torch.no_grad():
        module(x, hx)
        held = [sys.getrefcount(one) for one in (x, hx, *states, *module.parameters(), module.__dict__)]
        results = [module(x, hx) for _ in range(100)]
        del results
        wrong = [module(x, hx) for _ in range(100) if freezing.run_frozen(module, x.double(), hx) is None]
        del wrong
    now = [sys.getrefcount(one) for one in (x, hx, *states, *module.parameters(), module.__dict__)]
    assert all(abs(a - b) < 50 for a, b in zip(held, now, strict=True))
    parameter, gone = weakref.ref(next(module.parameters())), weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None and parameter() is None


def test_what_is_wrong_with_the_object_itself() -> None:
    made = _native.module.Frozen.__new__(_native.module.Frozen)
    with pytest.raises(TypeError):
        made({}, torch.ones(1), None)
    gru = fourfold.freeze(fourfold.nn.GRU(3, 20))
    for given in ((), (gru, torch.ones(1, 1, 3), None, None), (gru.__dict__, torch.ones(1, 1, 3), None)):
        with pytest.raises(TypeError, match="expected a module's __dict__, its input, state and reset"):
            freezing._frozen[gru].run(*given)
