"""Two processes that run every kind of call in the case table on DTensors: ``python sharded.py FOLDER fork``. Each case
must give the results of unsharded tensors; FOLDER/found.json lists the errors."""

from __future__ import annotations

import gc
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # takes seconds; imported once for both, before the fork
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.testing import assert_close

from machine import LOOPBACK
from op_cases import CASES, GRADIENT_TOLERANCE, TOLERANCE, Case, differentiable, flatten
from simulated import elementwise_operators

DTYPES = {"axpby": (torch.float64, torch.bfloat16, torch.int64, torch.bool)}
# The batch dimension of the tensors of sequences and cells.
BATCH = {"input": 1, "reset": 1, "h_0": 0, "c_0": 0, "x": 0, "h": 0, "c": 0}
ELEMENTWISE = elementwise_operators()
Placements = list[Placement | None]  # of each argument; None for an argument that is not a tensor


def kinds_of_calls() -> Iterator[tuple[Case, torch.dtype]]:
    """Cases with their dtypes. Of those that differ only in sizes that no rule reads, the first one. What may be split
    counts as empty, one, even or odd; other dimensions, as empty or not."""
    seen = set()
    for case in CASES:
        for dtype in DTYPES.get(case.op, (torch.float64,)):
            if dtype not in case.dtypes:
                continue
            args = case.arguments(dtype)
            named = zip((*names_of(case, args), *[""] * len(args)), args, strict=False)
            kind = (case.op, dtype, case.gradient, *(kind_of(case, name, a) for name, a in named))
            if kind not in seen:
                seen.add(kind)
                yield case, dtype


def kind_of(case: Case, name: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if case.op in ELEMENTWISE:
        split = range(value.dim())
    elif case.op in ("mlp", "mlp_layers"):
        split = range(value.dim() - 1) if name == "x" else ()
    else:
        split = (BATCH[name],) if name in BATCH and value.dim() > BATCH[name] else ()
    return tuple(
        (min(size, 1), min(size, 2 + size % 2) if dim in split else None) for dim, size in enumerate(value.shape)
    )


def names_of(case: Case, args: tuple) -> list[str]:
    """Names of the function's arguments; a network has x and its parameters."""
    if case.has_lists:
        return ["x", *["parameter"] * (len(args) - 2), "activation"]
    return list(inspect.signature(case.function).parameters)[: len(args)]


def ways(case: Case, args: tuple) -> Iterator[tuple[str, Placements, Placement]]:
    """Placements of the arguments, and the resulting placement of the first result."""
    names, whole = names_of(case, args), [Replicate() if isinstance(a, Tensor) else None for a in args]
    yield "replicated", whole, Replicate()
    if case.op in ELEMENTWISE:
        yield from elementwise_ways(args, whole)
    elif case.op in ("mlp", "mlp_layers"):
        for dim in range(args[0].dim() - 1):
            yield f"rows {dim}", [Shard(dim), *whole[1:]], Shard(dim)
    elif "packed" not in case.name:
        triples = zip(names, args, whole, strict=True)
        batch = [Shard(BATCH[n]) if isinstance(a, Tensor) and n in BATCH else w for n, a, w in triples]
        given = Shard(BATCH[names[0]])
        yield "batch", batch, given
        yield "batch of the input alone", [given, *whole[1:]], given
        yield "batch of the states alone", [whole[0], *batch[1:]], given


def elementwise_ways(args: tuple, whole: Placements) -> Iterator[tuple[str, Placements, Placement]]:
    tensors = [a for a in args if isinstance(a, Tensor)]
    shape = torch.broadcast_shapes(*(a.shape for a in tensors))

    def part(a: Any, dim: int) -> Placement | None:
        place = dim - len(shape) + a.dim() if isinstance(a, Tensor) else -1
        return Shard(place) if place >= 0 and a.shape[place] == shape[dim] else None

    for dim in range(len(shape)):
        parts = [part(a, dim) for a in args]
        yield f"dimension {dim}", [p or w for p, w in zip(parts, whole, strict=True)], Shard(dim)
        if sum(p is not None for p in parts) > 1:
            yield f"dimension {dim} of the first alone", [parts[0], *whole[1:]], Shard(dim)
            crossed = [parts[0], next(Shard(k) for k in range(args[1].dim()) if k != dim or args[1].dim() == 1)]
            yield f"dimension {dim} of the first, another", [*crossed, *whole[2:]], Shard(dim)
    if tensors[0].dtype == torch.float64:  # exact enough for partial sums to add up to the whole
        sums = [Partial() if w is not None else None for w in whole]
        linear = len(tensors) == 2
        yield "sums", sums, Partial() if linear else Replicate()
        if linear:
            yield "a sum and a whole", [sums[0], *whole[1:]], Replicate()


def distributed(value: Any, placement: Placement | None, mesh: Any) -> Any:
    if placement is None:
        return value
    if placement.is_partial():  # unequal parts that add up to the value
        part = value * (0.25 if dist.get_rank() == 0 else 0.75)
        return DTensor.from_local(part, mesh, [placement])
    return distribute_tensor(value, mesh, [placement])


def run(case: Case, dtype: torch.dtype, mesh: Any) -> dict[str, str]:
    """The error of each way, "" if there is none."""
    found = {}
    args = case.arguments(dtype)
    for way, placements, result in ways(case, args):
        try:
            compare(case, args, placements, result, mesh, dtype)
            found[way] = ""
        except Exception as error:  # reported by the test
            found[way] = f"{type(error).__name__}: {error}"
    return found


def compare(case: Case, args: tuple, placements: Placements, result: Placement, mesh: Any, dtype: torch.dtype) -> None:
    trains = case.gradient and dtype.is_floating_point
    whole, leaves = differentiable(args) if trains else (args, [])
    wanted = flatten(case.function(*whole))
    parts = [distributed(a, p, mesh) for a, p in zip(args, placements, strict=True)]
    own = [p.detach().requires_grad_() if isinstance(p, DTensor) and p.is_floating_point() else p for p in parts]
    own = own if trains else parts
    with torch.no_grad():  # saves nothing for a backward; same arguments
        unkept = flatten(case.function(*own))
    got = flatten(case.function(*own))
    assert got[0].placements == (result,), f"expected the result in {result}, but got {got[0].placements}"
    for a, b in zip((*got, *unkept), (*wanted, *wanted), strict=True):
        assert_close(a.full_tensor(), b, equal_nan=True, **(TOLERANCE.get(dtype) or {}))
    if not trains:
        return
    outputs = [torch.randn(w.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) for w in wanted]
    outputs = [o.to(dtype) for o in outputs]
    exact = torch.autograd.grad(wanted, leaves, outputs)
    given = [distribute_tensor(o, mesh, [Replicate()]) for o in outputs]
    inputs = [o for o in own if isinstance(o, DTensor) and o.requires_grad]
    (alone,) = torch.autograd.grad(got, inputs[-1], given, retain_graph=True)  # the others are not computed
    gradients = torch.autograd.grad(got, inputs, given)
    for a, b in zip((*gradients, alone), (*exact, exact[-1]), strict=True):
        assert_close(a.full_tensor(), b, **GRADIENT_TOLERANCE[dtype])
    if result.is_shard() and case.op not in ELEMENTWISE:
        kinds = {
            type(g.placements[0]) for g, n in zip(gradients, float_names(case, args), strict=True) if n not in BATCH
        }
        assert kinds <= {Partial}, f"expected sums of the parameters' gradients, but got {kinds}"


def float_names(case: Case, args: tuple) -> list[str]:
    pairs = zip(names_of(case, args), args, strict=True)
    return [name for name, a in pairs if isinstance(a, Tensor) and a.is_floating_point()]


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    warnings.filterwarnings("ignore", message="Found a non-scalar tensor with numel=1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for case, dtype in kinds_of_calls():
        found[f"{case.id}-{str(dtype).removeprefix('torch.')}"] = run(case, dtype, mesh)
    found["two dimensions"] = two_dimensions()
    everything: list[Any] = [None, None]
    dist.all_gather_object(everything, found)
    if rank == 0:
        merged = {key: {way: everything[0][key][way] or everything[1][key][way] for way in found[key]} for key in found}
        Path(folder, "found.json").write_text(json.dumps(merged))
    del mesh
    gc.collect()
    dist.destroy_process_group()


def two_dimensions() -> dict[str, str]:
    """On a (2, 1) mesh: its first dimension shards the input's rows, its second the columns."""
    import fourfold

    mesh = init_device_mesh("cpu", (2, 1))
    x, w1, w2 = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0)), torch.ones(5, 3), torch.ones(2, 5)
    given = [distribute_tensor(t, mesh, [Replicate(), Replicate()]).requires_grad_() for t in (w1, w2)]
    split = distribute_tensor(x, mesh, [Shard(0), Shard(1)])
    output = fourfold.mlp(split, given[0], None, given[1], None)
    output.sum().backward()
    leaves = [w.clone().requires_grad_() for w in (w1, w2)]
    wanted = fourfold.mlp(x, leaves[0], None, leaves[1], None)
    wanted.sum().backward()
    checks: Sequence[tuple[str, Callable[[], Any]]] = [
        ("values", lambda: assert_close(output.full_tensor(), wanted)),
        ("gradients", lambda: [assert_close(g.grad.full_tensor(), w.grad) for g, w in zip(given, leaves, strict=True)]),
        ("placements", lambda: assert_equal(output.placements, (Shard(0), Shard(1)))),
        ("sums", lambda: assert_equal(given[0].grad.placements, (Partial(), Partial()))),
    ]
    found = {}
    for name, check in checks:
        try:
            check()
            found[name] = ""
        except AssertionError as error:
            found[name] = str(error)
    return found


def assert_equal(got: Any, wanted: Any) -> None:
    assert got == wanted, f"expected {wanted}, but got {got}"


if __name__ == "__main__":
    torch.multiprocessing.start_processes(worker, (sys.argv[1],), nprocs=2, start_method=sys.argv[2])
