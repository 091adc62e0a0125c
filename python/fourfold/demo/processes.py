"""The processes that torchrun starts: each trains on its part of every batch, and the first one prints for all."""

import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fourfold.cli.usage import UsageError

T = TypeVar("T")
TORCHRUN = "torchrun --nproc-per-node 2 -m fourfold demo"


@dataclass(frozen=True)
class Processes:
    """This process among ``count``. launched: by torchrun, even if alone. sharded: by FSDP2 instead of DDP."""

    rank: int = 0
    count: int = 1
    launched: bool = False
    sharded: bool = False

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def say(self, text: str) -> None:
        if self.is_first:
            print(text, flush=True)

    def device(self, name: str) -> str:
        """This process's device: the GPU with its number. Raises UsageError for devices that processes can't share."""
        if not self.launched or name == "cpu":
            return name
        if name == "cuda":
            return f"cuda:{os.environ['LOCAL_RANK']}"
        raise UsageError(f"demo: expected --device to be cpu or cuda under torchrun, but got {name!r}")

    def expect_equal_parts(self, batch_size: int) -> None:
        if batch_size % self.count:
            raise UsageError(
                f"demo: expected --batch-size to be a multiple of the {self.count} processes, but got {batch_size}"
            )

    def part(self, batch: Tensor) -> Tensor:
        """This process's part of (time, batch): parts are equal, so that the mean over processes is the batch's."""
        return batch.chunk(self.count, dim=1)[self.rank]

    def parallel(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model as training calls it: its gradients are the mean over all processes."""
        if not self.launched:
            return model
        if not self.sharded:
            return nn.parallel.DistributedDataParallel(model, [device] if device.type == "cuda" else None)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # This warning is about changing a module's output in place, which nothing here does.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        mesh = init_device_mesh(device.type, (self.count,))
        for part in (*model.children(), model):
            fully_shard(part, mesh=mesh)
        return model

    def mean(self, losses: Tensor) -> Tensor:
        if self.launched:
            dist.all_reduce(losses)
        return losses / self.count

    def agreed(self, work: Callable[[], T]) -> T:
        """Each process's result of the work; if one raises UsageError, all of them do."""
        result, sentence = None, ""
        try:
            result = work()
        except UsageError as error:
            sentence = str(error)
        sentences = [sentence]
        if self.launched:
            sentences = [""] * self.count
            dist.all_gather_object(sentences, sentence)
        if any(sentences):
            raise UsageError(next(filter(None, sentences)))
        return result

    def describe(self, batch_size: int) -> str:
        """A line of the opening; nothing for a process alone."""
        if not self.launched:
            return ""
        by = "FSDP2 (fully_shard)" if self.sharded else "DistributedDataParallel"
        part = f"{batch_size // self.count} of each batch's {batch_size} pieces"
        return f"\nparts   {part} in each of {self.count} processes, by {by}"


@contextlib.contextmanager
def joined(device: str, sharded: bool) -> Iterator[Processes]:
    """The processes that torchrun started, as a group of torch.distributed; else this one alone.

    The first prints the sentence of a UsageError, which all raise, before any process ends: torchrun stops the others
    as soon as one has failed. Raises UsageError if ``sharded`` is requested for a single process.
    """
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        if sharded:
            raise UsageError(f"demo: expected --fsdp only under torchrun, but this is one process: {TORCHRUN} --fsdp")
        yield Processes()
        return
    nccl = device.startswith("cuda") and dist.is_nccl_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo")
    processes = Processes(dist.get_rank(), dist.get_world_size(), True, sharded)
    try:
        yield processes
    except UsageError as error:
        if processes.is_first:
            print(f"python -m fourfold {error}", file=sys.stderr, flush=True)
        dist.barrier()
        dist.destroy_process_group()
        raise SystemExit(2) from None
    # First: freeing the models' last reference to the group would wait, with the GIL, for a thread that needs the GIL.
    gc.collect()
    dist.destroy_process_group()
