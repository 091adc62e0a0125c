"""Operators with lists among their arguments, as the weights and biases of a network of any depth."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fourfold.operators import _operator
from fourfold.operators._operator import Operator, Outputs, map_each

_add_batch_dim = torch._add_batch_dim
_remove_batch_dim = torch._remove_batch_dim
_dispatch_keys = torch._C._dispatch_keys
_BATCHED = torch._C._parse_dispatch_key("Batched")


@dataclass(eq=False)
class ListedOperator(Operator):
    """An operator that takes two lists of equal length, side by side.

    torch's Functions see tensors only among their own arguments, so to all of :class:`Operator` the arguments are one
    flat tuple, the lists' elements in their places; ``op`` takes that tuple too. Only the dispatcher sees lists.

    lists_at: the place of the first list among the operator's arguments. names: what the lists are called.
    """

    lists_at: int = 0
    names: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.listed_op = self.op
        self.listed_kernel = self.listed_op._op  # what op calls, and nothing before it
        self.op = self._call_flat
        self.returns_list = len(self.listed_op._schema.returns) == 1
        # torch's older vmap, behind is_grads_batched and functional.jacobian's vectorize, maps an operator by a loop of
        # its own, but none that takes lists.
        _operator._library.impl(self.name, self._batched, "Batched")

    def flatten(self, args: tuple) -> tuple:
        """The arguments of the schema, those left out at their defaults, as one tuple."""
        args = super()._full(args)
        k = self.lists_at
        first, second = args[k], args[k + 1]
        if len(first) != len(second):
            raise ValueError(
                f"{self.name}: expected {self.names[1]} to have one for each of the {len(first)} {self.names[0]}, None "
                f"for a layer without, but got {len(second)}"
            )
        return (*args[:k], *first, *second, *args[k + 2 :])

    def nest(self, flat: tuple) -> tuple:
        k = self.lists_at
        count = (len(flat) - len(self.defaults) + 2) // 2
        return (*flat[:k], flat[k : k + count], flat[k + count : k + 2 * count], *flat[k + 2 * count :])

    @staticmethod
    def is_plain() -> bool:
        """Whether nothing looks on that would see a call of the kernel as something else than the operator."""
        return not (
            _operator._is_compiling()
            or _operator._is_tracing()
            or _operator._transforms_active()
            or _operator._any_autocast_enabled()
            or forward_ad._current_level >= 0
        )

    def kernel(self, *args: Any) -> Outputs:
        """The kernel's outputs for the arguments of the schema: for a plain call that wants no gradient."""
        with _operator._below_autograd():
            return self.listed_kernel(*args)

    def _full(self, args: tuple) -> tuple:
        return args

    def _inference(self, args: tuple) -> tuple:
        if self.saves_at is None:
            return args
        k = self.saves_at - len(self.defaults)  # from the end, where a flat tuple's places are the schema's
        return (*args[:k], False, *args[len(args) + k + 1 :])

    def _call_flat(self, *flat: Any) -> Outputs:
        outputs = self.listed_op(*self.nest(flat))
        return tuple(outputs) if self.returns_list else outputs

    def _as_returned(self, outputs: Outputs) -> Outputs:
        return list(outputs) if self.returns_list else outputs

    def _autograd(self, *args: Any) -> Outputs:
        return self._as_returned(super()._autograd(*self.flatten(args)))

    def _transformed(self, *args: Any) -> Outputs:
        return self._as_returned(super()._transformed(*self.flatten(args)))

    def _below_autocast(self, keys: torch._C.DispatchKeySet, *args: Any) -> Outputs:
        return self._as_returned(super()._below_autocast(keys, *self.flatten(args)))

    def _fake(self, *args: Any) -> Outputs:
        return self._as_returned(super()._fake(*self.flatten(args)))

    def _batched(self, *args: Any) -> Outputs:
        flat = self.flatten(args)
        # The last level first: torch wants a tensor's levels to be added in their order.
        level = max(_last_level(a) for a in flat if isinstance(a, Tensor))
        in_dims = tuple(0 if isinstance(a, Tensor) and _is_mapped(a, level) else None for a in flat)
        whole = [a if d is None else _remove_batch_dim(a, level, 1, d) for a, d in zip(flat, in_dims, strict=True)]
        size = next(a.shape[0] for a, d in zip(whole, in_dims, strict=True) if d is not None)
        outputs, _ = map_each(self, SimpleNamespace(batch_size=size), in_dims, *whole)
        return self._as_returned(tuple(_add_batch_dim(o, 0, level) for o in outputs))


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
