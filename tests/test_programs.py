"""The operators inside larger programs: processes, threads, distributed training."""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import fourfold
from forked import Forks
from machine import FORK, LOOPBACK, output_of


class Shrunk(Dataset):
    """Runs operators, also parallel ones, in the loading worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        x = torch.full((300, 257), float(index))
        h, _ = fourfold.nn.LLTM(4, 4)(torch.ones(3, 2, 4))
        return fourfold.softshrink(x) + 0 * h.detach().sum()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(FORK != "fork", reason="this system does not bear a fork after torch is loaded")
def test_forked_dataloader_worker() -> None:
    fourfold.softshrink(torch.zeros(300, 257))  # creates the parent's threads before the fork
    loader = DataLoader(Shrunk(), batch_size=2, num_workers=1, multiprocessing_context="fork", timeout=60)
    loaded = torch.cat(list(loader))
    assert torch.equal(loaded[:, 0, 0], torch.tensor([0.0, 0.5, 1.5, 2.5]))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lltm = fourfold.nn.LLTM(4, 8)
        self.mlp = fourfold.nn.MLP(8, 16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.lltm(x)[0])


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(6, 8, 4, generator=generator), torch.randn(6, 8, 2, generator=generator)


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def ddp_worker(rank: int, world: int, directory: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    store = f"file://{directory}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    model = nn.parallel.DistributedDataParallel(Model())
    x, y = data()
    half = slice(4 * rank, 4 * rank + 4)
    train(model, x[:, half], y[:, half])
    if rank == 0:
        torch.save(model.module.state_dict(), f"{directory}/state.pt")
    # Before the group is destroyed: the model's last reference to it would wait, holding the GIL, for one of its
    # threads, which needs the GIL.
    del model
    gc.collect()
    dist.destroy_process_group()


# Slow imports happen once for both, in a process without other threads.
DDP = """
import sys, torch._dynamo, torch.multiprocessing as mp
from test_programs import ddp_worker
mp.start_processes(ddp_worker, (2, sys.argv[1]), nprocs=2, start_method=sys.argv[2])
"""


def test_ddp_on_two_processes_equals_one(tmp_path: Path, after_dynamo: Forks) -> None:
    after_dynamo.output_of("-c", DDP, tmp_path, FORK, cwd=Path(__file__).parent)
    torch.manual_seed(0)
    model = Model()
    train(model, *data())
    for name, value in torch.load(tmp_path / "state.pt").items():
        torch.testing.assert_close(value, model.state_dict()[name])


def test_activation_checkpointing() -> None:
    model = Model()
    x, _ = data()
    x.requires_grad_()
    plain = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    kept = torch.autograd.grad(checkpoint(model, x, use_reentrant=False).square().sum(), [x, *model.parameters()])
    for a, b in zip(plain, kept, strict=True):
        torch.testing.assert_close(a, b)


def test_a_free_threaded_python_stays_free() -> None:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("needs a free-threaded Python")
    program = "import sys, torch, fourfold; fourfold.softshrink(torch.zeros(2)); print(sys._is_gil_enabled())"
    assert output_of(sys.executable, "-W", "error::RuntimeWarning", "-c", program) == "False\n"


def test_threads_that_call_at_once_get_what_one_gets() -> None:
    """With gradients, each from its own graph; the modules and weights are shared."""
    torch.set_num_threads(1)
    mlp, cell, lstm = fourfold.nn.MLP([8, 16, 4]), fourfold.nn.LLTMCell(4, 8), fourfold.nn.LSTM(5, 7)
    parameters = [p for module in (mlp, cell, lstm) for p in module.parameters()]
    x, h, sequence = torch.randn(32, 8), torch.randn(3, 8), torch.randn(6, 3, 5)

    def call() -> list[Tensor]:
        outputs = [fourfold.axpby(x, fourfold.softshrink(x)), mlp(x), *cell(h[:, :4], (h, h)), lstm(sequence)[0]]
        return [*outputs, *torch.autograd.grad([o.sum() for o in outputs[1:]], parameters)]

    expected, found = call(), []
    threads = [threading.Thread(target=lambda: found.extend(call() for _ in range(20))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160
    assert all(torch.equal(a, b) for results in found for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("op", ["lltm", "mlp", "softshrink"])
def test_kernels_hold_no_gil(op: str) -> None:
    """Another Python thread keeps counting during one long call."""
    calls: dict[str, Any] = {
        "lltm": lambda: fourfold.lltm(torch.randn(3000, 8, 8), *torch.zeros(2, 8, 128), torch.zeros(384, 136)),
        "mlp": lambda: fourfold.mlp(torch.zeros(400_000, 30), torch.zeros(64, 30), None, torch.zeros(20, 64), None),
        "softshrink": lambda: fourfold.softshrink(torch.zeros(40_000_000)),
    }
    torch.set_num_threads(1)
    call = calls[op]
    call()
    stop, ticks = threading.Event(), []

    def count() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    with torch.no_grad():
        begin = time.perf_counter()
        call()
        end = time.perf_counter()
    stop.set()
    thread.join()
    during = sum(begin < t < end for t in ticks)
    assert during > 5, f"another thread counted to {during} in the {end - begin:.3f} s of the call"


def test_inference_mode() -> None:
    model, (x, _) = Model(), data()
    wanted = model(x)
    with torch.inference_mode():
        result = model(x)
    assert result.is_inference()
    torch.testing.assert_close(result, wanted)


def test_functional_call_and_ensembles() -> None:
    """A stack of models, by vmap over their parameters, as in torch.func's tutorials."""
    models, (x, _) = [Model() for _ in range(3)], data()
    parameters, buffers = torch.func.stack_module_state(models)

    def one(parameters: dict, buffers: dict, x: Tensor) -> Tensor:
        return torch.func.functional_call(models[0], (parameters, buffers), (x,))

    results = torch.vmap(one, (0, 0, None))(parameters, buffers, x)
    torch.testing.assert_close(results, torch.stack([m(x) for m in models]))
