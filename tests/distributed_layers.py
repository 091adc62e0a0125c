"""Layers trained by the processes that torchrun starts: ``distributed_layers.py FOLDER``. FOLDER/WAY.pt holds the
parameters after training with each way."""

from __future__ import annotations

import gc
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

import fourfold


class Model(nn.Module):
    """Every layer, with functions between them."""

    def __init__(self) -> None:
        super().__init__()
        self.lltm = fourfold.nn.LLTM(4, 8)
        self.lstm = fourfold.nn.LSTM(8, 6, num_layers=2, bidirectional=True)
        self.gru = fourfold.nn.GRU(12, 7)
        self.lltm_cell, self.lstm_cell = fourfold.nn.LLTMCell(7, 5), fourfold.nn.LSTMCell(5, 6)
        self.gru_cell = fourfold.nn.GRUCell(6, 5)
        self.mlp, self.of_list = fourfold.nn.MLP(5, 16, 6), fourfold.nn.MLP([6, 9, 8, 2], activation="tanh")

    def forward(self, x: Tensor, reset: Tensor) -> Tensor:
        h = self.lltm(x, None, reset)[0]
        h = fourfold.softshrink(self.lstm(h, None, reset)[0], 0.01)
        h = self.gru(h, None, reset)[0]
        five, six = h[-1, :, :5], h[-1, :, 1:]
        h = self.lltm_cell(h[-1], (five, five))[0]
        h = fourfold.axpby(self.gru_cell(self.lstm_cell(h, (six, six))[0], five), h, 0.5, 1)
        return self.of_list(self.mlp(h))


def data() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    reset = torch.rand(6, 8, generator=generator) < 0.2
    return torch.randn(6, 8, 4, generator=generator), reset, torch.randn(8, 2, generator=generator)


def train(model: nn.Module, x: Tensor, reset: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        (model(x, reset) - y).square().mean().backward()  # instead of mse_loss: docs/distributed.md
        optimizer.step()


def fresh() -> Model:
    torch.manual_seed(0)
    return Model()


def by_ddp(rank: int) -> nn.Module:
    model = nn.parallel.DistributedDataParallel(fresh())
    train(model, *part(rank))
    return model.module


def by_fsdp(rank: int) -> nn.Module:
    model, mesh = fresh(), init_device_mesh("cpu", (2,))
    for module in (*model.children(), model):
        fully_shard(module, mesh=mesh)
    train(model, *part(rank))
    return model


def by_dtensor(rank: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    x, reset, y = data()
    model = distribute_module(fresh(), mesh)
    train(model, *(distribute_tensor(t, mesh, [Shard(dim)]) for t, dim in ((x, 1), (reset, 1), (y, 0))))
    assert all(p.placements == (Replicate(),) for p in model.parameters())
    return model


def part(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    x, reset, y = data()
    half = slice(4 * rank, 4 * rank + 4)
    return x[:, half], reset[:, half], y[half]


WAYS = {"ddp": by_ddp, "fsdp": by_fsdp, "dtensor": by_dtensor}


def main(folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name, way in WAYS.items():
        values = {key: whole(value) for key, value in way(rank).state_dict().items()}
        if rank == 0:
            torch.save(values, Path(folder, f"{name}.pt"))
    # Before the group is destroyed: the models' last reference to it would wait, holding the GIL, for one of its
    # threads, which needs the GIL.
    gc.collect()
    dist.destroy_process_group()


def whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


if __name__ == "__main__":
    main(sys.argv[1])
