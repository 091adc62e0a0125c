"""Weights declared constant stay packed until a change is detected."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parametrize

import fourfold
from fourfold import freezing
from weight_changes import KINDS, SEEN, UNSEEN, Scaled, current, first, input_of, stream


def is_frozen(module: nn.Module) -> bool:
    return module in freezing._frozen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_frozen_gives_the_same(name: str, dtype: torch.dtype) -> None:
    module = KINDS[name](dtype=dtype)
    wanted = stream(module)
    with fourfold.frozen(module) as same:
        assert same is module and is_frozen(module)
        got = stream(module)
        assert torch.equal(got, stream(module))
        x = input_of(module)
        with torch.enable_grad():
            assert torch.equal(first(module(x)), wanted)  # reads the weights themselves
    assert not is_frozen(module)
    # Sums in another order: some roundings of the dtype in which they are computed.
    torch.testing.assert_close(got, wanted, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
    assert torch.equal(stream(module), wanted)


@pytest.mark.parametrize("change", SEEN)
@pytest.mark.parametrize("name", ["LSTM", "GRUCell"])
def test_frozen_refuses_changed_weights(name: str, change: str) -> None:
    module = fourfold.freeze(KINDS[name]().eval())
    stream(module)
    SEEN[change](module)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=rf"{name}: expected the weights to stay as fourfold.freeze packed them"):
            stream(module)
    assert torch.equal(stream(fourfold.unfreeze(module)), current(module))
    if change != "pruned":
        fourfold.freeze(module)
        torch.testing.assert_close(stream(module), current(module))


@pytest.mark.parametrize("name", ["LLTM", "LSTMCell", "GRUCell"])
def test_frozen_allows_swapped_tensors_and_refuses_them(name: str) -> None:
    """As conversions do under torch.__future__.set_swap_module_params_on_conversion."""
    module = fourfold.freeze(KINDS[name]())
    stream(module)
    p = next(module.parameters())
    torch.utils.swap_tensors(p, nn.Parameter(p.detach() * 0.5))
    assert next(module.parameters()) is p
    with pytest.raises(RuntimeError, match=rf"{name}: expected the weights to stay as fourfold.freeze packed them"):
        stream(module)
    assert torch.equal(stream(fourfold.unfreeze(module)), current(module))


def test_what_is_refused_names_the_weights() -> None:
    gru = fourfold.freeze(KINDS["GRU"]())
    with torch.no_grad():
        gru.bias_hh_l0.mul_(2)
    message = (
        r"GRU: expected the weights to stay as fourfold.freeze packed them, but bias_hh_l0 changed; "
        r"call fourfold.unfreeze\(model\) before they do, fourfold.freeze\(model\) after it"
    )
    with pytest.raises(RuntimeError, match=message):
        stream(gru)


@pytest.mark.parametrize("change", UNSEEN)
def test_nothing_is_stale_after_unfreezing(change: str) -> None:
    module = KINDS["LSTM"]()
    with fourfold.frozen(module):
        before = stream(module)
        UNSEEN[change](module)
    assert torch.equal(stream(module), current(module)) and not torch.equal(stream(module), before)


def test_another_models_training_goes_on() -> None:
    """A frozen teacher: an optimizer's step only triggers another check."""
    teacher, student = fourfold.freeze(KINDS["GRU"]()), KINDS["GRU"]()
    wanted = stream(teacher)
    for change in (SEEN["adam-fused"], SEEN["compiled-step"], SEEN["sgd"]):
        change(student)
        assert torch.equal(stream(teacher), wanted)


def test_changes_through_another_module_are_seen() -> None:
    """Shared weights: the frozen module is not the one that is trained, moved or loaded."""
    for name, change in SEEN.items():
        streams, other = KINDS["GRU"]().eval(), KINDS["GRU"]()
        for key, p in streams.named_parameters():
            setattr(other, key, p)
        fourfold.freeze(streams)
        before = stream(streams)
        change(other)
        try:
            assert torch.equal(stream(streams), before), name
        except RuntimeError:
            fourfold.unfreeze(streams)
        assert torch.equal(stream(fourfold.unfreeze(streams)), current(streams)), name


def test_an_address_is_nobody_elses_while_its_copy_lives() -> None:
    """Freed memory may be allocated again, with other values and the same version."""
    cell = fourfold.freeze(KINDS["GRUCell"]())
    memory = StorageWeakRef(cell.weight_ih.untyped_storage())
    cell.weight_ih.data = cell.weight_ih.data.clone()
    assert not memory.expired()
    fourfold.unfreeze(cell)
    assert memory.expired()


def test_what_does_not_read_prepacked_weights() -> None:
    torch._dynamo.reset()  # it remembers what it could not capture without allow_rnn
    lstm = KINDS["LSTM"]()
    wanted = lstm(torch.ones(1, 2, 3))[0].detach()
    fourfold.freeze(lstm)
    for p in lstm.parameters():
        p.data.mul_(0.5)  # shows which calls read the weights themselves
    fresh = current(lstm)
    x = input_of(lstm)
    with torch.no_grad():
        torch.testing.assert_close(lstm(torch.ones(1, 2, 3))[0], wanted)
        with torch._dynamo.config.patch(allow_rnn=True):
            torch.testing.assert_close(torch.compile(lstm, backend="eager", fullgraph=True)(x)[0], fresh)
        torch.testing.assert_close(torch.func.vmap(lstm)(x.expand(2, 1, 2, 3))[0][1], fresh)
        torch.testing.assert_close(torch.export.export(lstm, (x,)).module()(x)[0], fresh)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(lstm(x)[0].float(), fresh, rtol=0.05, atol=0.01)
    torch.testing.assert_close(lstm(x)[0], fresh)


def test_nested_and_repeated() -> None:
    model = nn.ModuleDict({"a": KINDS["GRU"](), "b": KINDS["LSTM"](), "c": nn.Linear(3, 3)})
    fourfold.freeze(model["a"])
    with fourfold.frozen(model), fourfold.frozen(model):
        assert is_frozen(model["a"]) and is_frozen(model["b"])
    assert is_frozen(model["a"]) and not is_frozen(model["b"])
    with pytest.raises(ZeroDivisionError), fourfold.frozen(model["b"]):
        _ = 1 / 0
    assert not is_frozen(model["b"])
    with fourfold.frozen(model):
        fourfold.unfreeze(model)
        assert not is_frozen(model["a"])
    assert not any(is_frozen(module) for module in model.modules())  # including those that were frozen before the block
    fourfold.unfreeze(fourfold.unfreeze(model))


def test_blocks_that_end_in_the_order_of_their_beginning() -> None:
    gru = KINDS["GRU"]()
    first_block, second_block = fourfold.frozen(gru), fourfold.frozen(gru)
    first_block.__enter__()
    second_block.__enter__()
    first_block.__exit__(None, None, None)
    assert is_frozen(gru)
    second_block.__exit__(None, None, None)
    assert not is_frozen(gru)
    before = stream(gru)
    UNSEEN["data"](gru)
    assert torch.equal(stream(gru), current(gru)) and not torch.equal(stream(gru), before)


def test_blocks_on_a_model_and_on_a_part_of_it() -> None:
    model = nn.ModuleDict({"a": KINDS["GRU"](), "b": KINDS["LSTM"]()})
    whole, part = fourfold.frozen(model), fourfold.frozen(model["a"])
    whole.__enter__()
    part.__enter__()
    whole.__exit__(None, None, None)
    assert is_frozen(model["a"]) and not is_frozen(model["b"])
    part.__exit__(None, None, None)
    assert not is_frozen(model["a"])


def test_a_block_frees_what_it_froze_although_the_model_changed() -> None:
    model = nn.ModuleDict({"a": KINDS["GRU"]()})
    with fourfold.frozen(model):
        replaced, model["a"] = model["a"], KINDS["GRU"]()
    assert not is_frozen(replaced) and not is_frozen(model["a"])


def test_freeze_and_unfreeze_inside_blocks() -> None:
    gru = KINDS["GRU"]()
    with fourfold.frozen(gru):
        fourfold.freeze(gru)
    assert is_frozen(gru)
    with fourfold.frozen(gru):
        with fourfold.frozen(gru):
            fourfold.unfreeze(gru)
            assert not is_frozen(gru)
        assert not is_frozen(gru)
        fourfold.freeze(gru)  # its block has ended and doesn't affect this
    assert is_frozen(gru)
    fourfold.unfreeze(gru)
    with fourfold.frozen(gru):
        with torch.no_grad():
            gru.weight_hh_l0.mul_(0.5)
        with fourfold.frozen(gru):  # packs again
            torch.testing.assert_close(stream(gru), current(gru))
        torch.testing.assert_close(stream(gru), current(gru))
    assert not is_frozen(gru)


def test_blocks_of_two_threads() -> None:
    model = nn.ModuleDict({"a": KINDS["GRU"](), "b": KINDS["LSTM"]()})
    wanted = stream(model["a"])
    errors: list[Exception] = []
    entered = threading.Barrier(2)

    def work(ends_first: bool, ended: threading.Event) -> None:
        try:
            with fourfold.frozen(model):
                entered.wait(60)
                if not ends_first:
                    assert ended.wait(60) and is_frozen(model["a"])
                torch.testing.assert_close(stream(model["a"]), wanted)
            ended.set()
            for _ in range(200):
                with fourfold.frozen(model["a"]):
                    assert is_frozen(model["a"])
        except Exception as error:
            errors.append(error)

    ended = threading.Event()
    threads = [threading.Thread(target=work, args=(ends_first, ended)) for ends_first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and not any(is_frozen(module) for module in model.modules())


def test_optimize_keeps_nothing_and_restore_forgets() -> None:
    model = nn.ModuleDict({"memory": nn.GRU(3, 20)}).eval()
    fourfold.optimize(model)
    memory = model["memory"]
    stream(memory)
    assert not is_frozen(memory)
    fourfold.freeze(model)
    fourfold.restore(model)
    assert not is_frozen(memory)


def test_threads_share_what_is_frozen() -> None:
    gru = fourfold.freeze(KINDS["GRU"]())
    wanted = stream(gru)
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(torch.equal(stream(gru), wanted))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


class Own(Tensor):
    pass


def test_what_cannot_be_frozen() -> None:
    for function in (fourfold.freeze, fourfold.frozen):
        with pytest.raises(
            TypeError, match=f"^{function.__name__}: expected model to be a torch.nn.Module, but got list$"
        ):
            function([])
    with pytest.raises(ValueError, match="freeze: expected a model with recurrent layers of fourfold.nn, but"):
        fourfold.freeze(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="freeze: expected weights on the CPU.*these are on meta"):
        fourfold.freeze(KINDS["GRU"](device="meta"))
    gru = KINDS["GRU"]()
    parametrize.register_parametrization(gru, "weight_ih_l0", Scaled())
    model = nn.Sequential(KINDS["GRU"](), gru)
    with pytest.raises(ValueError, match=r"to be plain parameters, but weight_ih_l0 is computed in each call"):
        fourfold.freeze(model)
    assert not is_frozen(model[0])
    gru = KINDS["GRU"]()
    gru.bias_ih_l0 = nn.Parameter(gru.bias_ih_l0.detach().as_subclass(Own))
    with pytest.raises(ValueError, match=r"to be plain parameters, but bias_ih_l0 is a (Own|Parameter)"):
        fourfold.freeze(gru)
    for wrong in (3, None, [gru]):
        with pytest.raises(
            TypeError, match=f"unfreeze: expected model to be a torch.nn.Module, but got {type(wrong).__name__}"
        ):
            fourfold.unfreeze(wrong)


def test_weights_made_in_inference_mode_are_refused() -> None:
    """torch counts no writes to them."""
    with torch.inference_mode():
        made = KINDS["GRU"]()
    model = nn.Sequential(KINDS["GRU"](), made)
    pointed = KINDS["GRU"]()
    pointed.weight_ih_l0.data = made.weight_ih_l0
    for module in (made, model, pointed):
        with pytest.raises(
            ValueError, match="but weight_ih_l0 was made in inference mode, where torch counts no writes"
        ):
            fourfold.freeze(module)
    assert not is_frozen(model[0])
    assigned = fourfold.freeze(KINDS["GRU"]().requires_grad_(False))
    assigned.load_state_dict(made.state_dict(), assign=True)
    with pytest.raises(RuntimeError, match="but weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0 changed"):
        stream(assigned)


def test_weights_in_shared_memory() -> None:
    shared = KINDS["GRU"]().share_memory()
    wanted = stream(shared)
    torch.testing.assert_close(stream(fourfold.freeze(shared)), wanted)


def test_copies_have_no_prepacked_weights() -> None:
    for make in KINDS.values():
        module = fourfold.freeze(make().eval())
        wanted = stream(module)
        size = len(pickle.dumps(make().eval()))
        for twin in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert not is_frozen(twin)
            torch.testing.assert_close(stream(twin), wanted)
        prepacked = sum(kept.nbytes for kept in freezing._frozen[module].prepacked)
        # The size of torch's archive of the same parameters varies by some hundred bytes.
        assert abs(len(pickle.dumps(module)) - size) < prepacked / 4
