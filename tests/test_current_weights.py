"""Calls read the current weights, however they were changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.utils import parameters_to_vector, parametrize, vector_to_parameters

from forked import Forks
from machine import FORK, LOOPBACK
from weight_changes import KINDS, SEEN, UNSEEN, Scaled, current, input_of, stream


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
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp, fourfold
from torch.distributed.fsdp import fully_shard

def write(module, rank):
    yield lambda: dist.broadcast(module.weight_ih_l0.data, src=0)
    yield lambda: dist.all_reduce(module.weight_hh_l0.detach())
    parts = [torch.full((12,), r + 1.0) for r in range(2)] if rank == 0 else None
    yield lambda: dist.scatter(module.bias_ih_l0.data, parts)
    yield lambda: dist.send(module.bias_hh_l0.data + 1, 1) if rank == 0 else dist.recv(module.bias_hh_l0.data, 0)

def run(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
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
    os.environ["GLOO_SOCKET_IFNAME"] = sys.argv[1]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.start_processes(run, (port,), nprocs=2, start_method=sys.argv[2])
    print("same")
"""


def test_collectives_and_sharded_parameters(tmp_path: Path, after_dynamo: Forks) -> None:
    script = tmp_path / "collectives.py"
    script.write_text(COLLECTIVES)
    assert after_dynamo.output_of(script, LOOPBACK, FORK).splitlines()[-1] == "same"


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
