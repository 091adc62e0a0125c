"""How operators are mapped: by torch.vmap, and by torch's older one, behind ``is_grads_batched`` and
``torch.autograd.functional``'s ``vectorize``."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

_add_batch_dim = torch._add_batch_dim
_remove_batch_dim = torch._remove_batch_dim
_dispatch_keys = torch._C._dispatch_keys
_BATCHED = torch._C._parse_dispatch_key("Batched")


def map_each(name: str, op: Callable[..., tuple], info: Any, in_dims: tuple, *args: Any) -> tuple[tuple, tuple]:
    """One call per element: right for every operator, and as fast as a loop. ``op`` takes and gives flat tuples."""
    if info.batch_size == 0:
        raise ValueError(f"{name}: cannot vmap over a dimension of size 0 here; skip the empty batch instead")
    results = []
    for k in range(info.batch_size):
        # functorch gives a list that holds no tensors a list of dimensions.
        mapped = (isinstance(a, Tensor) and d is not None for a, d in zip(args, in_dims, strict=True))
        results.append(op(*(a.select(d, k) if m else a for a, d, m in zip(args, in_dims, mapped, strict=True))))
    return tuple(torch.stack(column) for column in zip(*results, strict=True)), (0,) * len(results[0])


def older_map_each(name: str, op: Callable[..., tuple], *args: Any) -> tuple:
    """torch's older vmap maps an operator by a loop of its own, but none that takes lists."""
    # The last level first: torch wants a tensor's levels to be added in their order.
    level = max(_last_level(a) for a in args if isinstance(a, Tensor))
    in_dims = tuple(0 if isinstance(a, Tensor) and _is_mapped(a, level) else None for a in args)
    whole = [a if d is None else _remove_batch_dim(a, level, 1, d) for a, d in zip(args, in_dims, strict=True)]
    size = next(a.shape[0] for a, d in zip(whole, in_dims, strict=True) if d is not None)
    outputs, _ = map_each(name, op, SimpleNamespace(batch_size=size), in_dims, *whole)
    return tuple(_add_batch_dim(o, 0, level) for o in outputs)


def _is_mapped(tensor: Tensor, level: int) -> bool:
    """Whether torch's older vmap maps the tensor at that level. One that it doesn't map is expanded to any size."""
    return _remove_batch_dim(tensor, level, 2, 0).shape[0] == _remove_batch_dim(tensor, level, 3, 0).shape[0]


def _last_level(tensor: Tensor) -> int:
    """The last of the levels at which torch's older vmap maps the tensor; 0 for none."""
    level = 0
    while _dispatch_keys(tensor).has(_BATCHED):
        level += 1
        if _is_mapped(tensor, level):
            tensor = _remove_batch_dim(tensor, level, 1, 0)
    return level
