"""Calls read the weights as they are, whoever wrote them; what is declared constant stays packed until it changes."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parameters_to_vector, parametrize, prune, vector_to_parameters
from torch.optim.sgd import sgd as functional_sgd

import fourfold
from fourfold import freezing
from machine import output_of

KINDS = {
    "LSTM": lambda **options: fourfold.nn.LSTM(3, 20, num_layers=2, bidirectional=True, **options),
    "GRU": lambda **options: fourfold.nn.GRU(3, 20, **options),
    "LLTM": lambda **options: fourfold.nn.LLTM(3, 20, num_layers=2, **options),
    "LSTMCell": lambda **options: fourfold.nn.LSTMCell(3, 20, bias=False, **options),
    "GRUCell": lambda **options: fourfold.nn.GRUCell(3, 20, **options),
}


def input_of(module: nn.Module) -> Tensor:
    like = next(module.parameters())
    x = torch.linspace(-1, 1, 6, dtype=torch.float64, device=like.device).to(like.dtype)
    return x.reshape(2, 3) if isinstance(module, nn.RNNCellBase) else x.reshape(1, 2, 3)


def first(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else first(result[0])


def stream(module: nn.Module) -> Tensor:
    """One call without gradient, which a frozen module answers from its packed weights."""
    with torch.no_grad():
        return first(module(input_of(module)))


def current(module: nn.Module) -> Tensor:
    """What a module of the same kind gives that never saw other weights than these."""
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for own, given in zip(twin.parameters(), module.parameters(), strict=True):
            own.set_(given.detach().clone())
    return stream(twin)


def is_frozen(module: nn.Module) -> bool:
    return module in freezing._frozen


def step(make: Callable[[list], torch.optim.Optimizer]) -> Callable[[nn.Module], None]:
    def change(module: nn.Module) -> None:
        optimizer = make(list(module.parameters()))
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        optimizer.zero_grad()

    return change


def compiled_step(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, fused=True)
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    torch.compile(optimizer.step, backend="eager")()


def load(assign: bool) -> Callable[[nn.Module], None]:
    def change(module: nn.Module) -> None:
        module.load_state_dict({k: v + 0.25 for k, v in module.state_dict().items()}, assign=assign)

    return change


def in_place(module: nn.Module) -> None:
    with torch.no_grad():
        next(module.parameters()).mul_(0.5)


def in_place_in_inference_mode(module: nn.Module) -> None:
    with torch.inference_mode():
        next(module.parameters()).mul_(0.5)


def through_a_view(module: nn.Module) -> None:
    next(module.parameters()).detach()[0].fill_(0.3)


def initialised(module: nn.Module) -> None:
    nn.init.constant_(next(module.parameters()), 0.1)


def exchanged(module: nn.Module) -> None:
    name, p = next(module.named_parameters())
    setattr(module, name, nn.Parameter(p.detach() * 0.5))


def back_and_forth(module: nn.Module) -> None:
    """Memory is freed, and may be given again, at the same address with other values."""
    for p in module.parameters():
        p.data = p.data.bfloat16()
        p.data = p.data.float()


def pruned(module: nn.Module) -> None:
    prune.random_unstructured(module, next(iter(module._parameters)), 0.5)


def fused_functional(module: nn.Module) -> None:
    """torch's functional optimisers: no version is counted and no hook is called."""
    parameters = list(module.parameters())
    with torch.no_grad():
        functional_sgd(
            parameters, [torch.ones_like(p) for p in parameters], [None] * len(parameters), fused=True,
            weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip


def polyak(module: nn.Module) -> None:
    """How a target network follows another."""
    for p in module.parameters():
        p.data.mul_(0.9)
        torch.add(p.data, torch.ones_like(p), alpha=0.1, out=p.data)


def through_a_vector(module: nn.Module) -> None:
    vector = parameters_to_vector(module.parameters()).detach().clone()
    vector_to_parameters(vector, module.parameters())
    vector.mul_(0.5)


# What torch counts, or an optimiser tells of: a frozen module refuses to go on.
SEEN = {
    "sgd": step(lambda p: torch.optim.SGD(p, lr=0.1, foreach=False)),
    "sgd-foreach": step(lambda p: torch.optim.SGD(p, lr=0.1, foreach=True)),
    "sgd-fused": step(lambda p: torch.optim.SGD(p, lr=0.1, fused=True)),
    "adam-foreach": step(lambda p: torch.optim.Adam(p, lr=0.1, foreach=True)),
    "adam-fused": step(lambda p: torch.optim.Adam(p, lr=0.1, fused=True)),
    "adamw-fused": step(lambda p: torch.optim.AdamW(p, lr=0.1, fused=True)),
    "adagrad-fused": step(lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True)),
    "compiled-step": compiled_step,
    "load_state_dict": load(False),
    "load_state_dict-assign": load(True),
    "in-place": in_place,
    "in-place-in-inference-mode": in_place_in_inference_mode,
    "through-a-view": through_a_view,
    "init": initialised,
    "exchanged": exchanged,
    "to-bfloat16-and-back": lambda module: module.to(torch.bfloat16).to(torch.float32),
    "data-to-bfloat16-and-back": back_and_forth,
    "to-double": lambda module: module.to(torch.float64),
    "share_memory": lambda module: (module.share_memory(), in_place(module)),
    "pruned": pruned,
    "vector": through_a_vector,
}
# What nothing tells of.
UNSEEN = {
    "data": lambda module: next(module.parameters()).data.sub_(0.1),
    "polyak": polyak,
    "numpy": lambda module: next(module.parameters()).detach().numpy().__imul__(0.5),
    "sgd-fused-functional": fused_functional,
}


@pytest.mark.parametrize("change", [*SEEN, *UNSEEN])
@pytest.mark.parametrize("name", KINDS)
def test_calls_read_the_weights_as_they_are(name: str, change: str) -> None:
    module = KINDS[name]().eval()
    before = [stream(module) for _ in range(3)][-1]
    (SEEN | UNSEEN)[change](module)
    after = stream(module)
    assert torch.equal(after, current(module))
    assert not torch.equal(after.double(), before.double())


def test_a_write_to_the_vector_that_the_parameters_are_views_of() -> None:
    module = KINDS["GRU"]().eval()
    vector = parameters_to_vector(module.parameters()).detach().clone()
    vector_to_parameters(vector, module.parameters())
    before = stream(module)
    vector.mul_(0.5)
    assert torch.equal(stream(module), current(module)) and not torch.equal(stream(module), before)


COLLECTIVES = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp, fourfold
from torch.distributed.fsdp import fully_shard

def write(module, rank):
    yield lambda: dist.broadcast(module.weight_ih_l0.data, src=0)
    yield lambda: dist.all_reduce(module.weight_hh_l0.detach())
    parts = [torch.full((12,), r + 1.0) for r in range(2)] if rank == 0 else None
    yield lambda: dist.scatter(module.bias_ih_l0.data, parts)
    yield lambda: dist.send(module.bias_hh_l0.data + 1, 1) if rank == 0 else dist.recv(module.bias_hh_l0.data, 0)

def run(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(rank)
    x = torch.randn(1, 2, 3)
    module, plain = fourfold.nn.GRU(3, 4).eval(), torch.nn.GRU(3, 4)
    with torch.no_grad():
        for change in write(module, rank):
            module(x)
            change()
            plain.load_state_dict(module.state_dict())
            torch.testing.assert_close(module(x)[0], plain(x)[0])
    sharded = fourfold.nn.GRU(3, 4)
    whole = fourfold.nn.GRU(3, 4)
    for model in (sharded, whole):
        torch.manual_seed(7)
        for p in model.parameters():
            torch.nn.init.normal_(p)
    fully_shard(sharded, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (sharded, whole)]
    for _ in range(3):
        results = []
        for model, optimizer in zip((sharded, whole), optimizers):
            with torch.no_grad():
                results.append(model(x := torch.ones(1, 2, 3))[0])
            model(x)[0].sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(*results)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(run, (port,), nprocs=2)
    print("same")
"""


def test_collectives_and_sharded_parameters(tmp_path: Path) -> None:
    script = tmp_path / "collectives.py"
    script.write_text(COLLECTIVES)
    assert output_of(sys.executable, script).splitlines()[-1] == "same"


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
    # Sums in another order: some roundings of what is summed in.
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
    if change not in ("pruned",):
        fourfold.freeze(module)
        torch.testing.assert_close(stream(module), current(module))


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
    """A frozen teacher: an optimiser's step makes it look once more, and no more."""
    teacher, student = fourfold.freeze(KINDS["GRU"]()), KINDS["GRU"]()
    wanted = stream(teacher)
    for change in (SEEN["adam-fused"], SEEN["compiled-step"], SEEN["sgd"]):
        change(student)
        assert torch.equal(stream(teacher), wanted)


def test_changes_through_another_module_are_seen() -> None:
    """Shared weights: the one that is frozen is not the one that is trained, moved or loaded."""
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
    """Memory that was freed may be given again, with other values and the same marks."""
    cell = fourfold.freeze(KINDS["GRUCell"]())
    memory = StorageWeakRef(cell.weight_ih.untyped_storage())
    cell.weight_ih.data = cell.weight_ih.data.clone()
    assert not memory.expired()
    fourfold.unfreeze(cell)
    assert memory.expired()


def test_what_does_not_read_packed_weights() -> None:
    torch._dynamo.reset()  # which remembers what it could not capture without allow_rnn
    lstm = KINDS["LSTM"]()
    wanted = lstm(torch.ones(1, 2, 3))[0].detach()
    fourfold.freeze(lstm)
    for p in lstm.parameters():
        p.data.mul_(0.5)  # which shows who reads what
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
    fourfold.unfreeze(fourfold.unfreeze(model))
    assert not any(is_frozen(module) for module in model.modules())


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


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale


class Own(Tensor):
    pass


def test_what_cannot_be_frozen() -> None:
    with pytest.raises(TypeError, match="freeze: expected model to be a torch.nn.Module, but got list"):
        fourfold.freeze([])
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


def test_weights_of_inference_mode_and_shared_memory() -> None:
    with torch.inference_mode():
        made = KINDS["GRU"]()
    shared = KINDS["GRU"]().share_memory()
    for module in (made, shared):
        wanted = stream(module)
        torch.testing.assert_close(stream(fourfold.freeze(module)), wanted)


def test_functional_call_and_parametrized_weights_are_read() -> None:
    gru = KINDS["GRU"]().eval()
    for scale in (0.5, 2.0):
        given = {name: (p * scale).detach() for name, p in gru.named_parameters()}
        with torch.no_grad():
            got = torch.func.functional_call(gru, given, (input_of(gru),))[0]
        assert torch.equal(got, torch.func.functional_call(gru, given, (input_of(gru),))[0])
    parametrize.register_parametrization(gru, "weight_ih_l0", Scaled())
    before = stream(gru)
    with torch.no_grad():
        gru.parametrizations.weight_ih_l0[0].scale.fill_(4.0)
    assert not torch.equal(stream(gru), before)


def test_copies_have_no_packed_weights() -> None:
    for make in KINDS.values():
        module = fourfold.freeze(make().eval())
        wanted = stream(module)
        size = len(pickle.dumps(make().eval()))
        for twin in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert not is_frozen(twin)
            torch.testing.assert_close(stream(twin), wanted)
        packed = sum(kept.nbytes for kept in freezing._frozen[module].packed)
        # torch's archive of the same parameters differs by some hundred bytes from one to the next.
        assert abs(len(pickle.dumps(module)) - size) < packed / 4


def test_packed_bytes_of_other_weights_are_refused() -> None:
    lstm = fourfold.nn.LSTM(3, 20)
    parameters = list(lstm.parameters())
    packed = torch.ops.fourfold.lstm_pack(*parameters)
    arguments = torch.randn(4, 2, 3), torch.randn(2, 20), torch.randn(2, 20), *parameters
    wanted = fourfold.lstm(*arguments)
    torch.testing.assert_close(fourfold.lstm(*arguments, packed=packed), wanted)
    with pytest.raises(ValueError, match="lstm: expected packed to be what fourfold::lstm_pack gives"):
        fourfold.lstm(*arguments, packed=packed[:-1])
    with pytest.raises(RuntimeError, match=r"lstm_pack: expected weight_ih to have shape \(4 \* hidden_size"):
        torch.ops.fourfold.lstm_pack(parameters[0][1:], parameters[1])
    with pytest.raises(RuntimeError, match=r"lltm_pack: expected weights to have shape \(3 \* hidden_size"):
        torch.ops.fourfold.lltm_pack(torch.randn(13, 7))
