"""Names the dimensions of an operator's tensors, and those of them that may be split between devices, for DTensor's
rules (``sharding.py``)."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from fourfold._when_imported import when_imported

# Names of each tensor's dimensions, and the independent ones among them.
Dimensions = tuple[Mapping[str, tuple[str, ...]], frozenset[str]]


@dataclass(frozen=True)
class Axes:
    """How parts of an operator's arguments determine parts of its results.

    of(a): the dimensions of the arguments and results that have independent ones, by the schema's names; a result
        without a name has the name "". A part of the arguments along an independent dimension gives that part of the
        results. "time*batch" is a dimension that merges both, "1" a broadcast one. ``a`` has the forward's arguments by
        name, and an object with a shape for each tensor.
    linear, linear_backward: the arguments in which the operator, or that of its gradient, is jointly linear.
    """

    of: Callable[[SimpleNamespace], Dimensions]
    linear: tuple[str, ...] = ()
    linear_backward: tuple[str, ...] = ()


def of_elements(a: SimpleNamespace) -> Dimensions:
    """All dimensions are independent; shapes broadcast."""
    shapes = {name: tuple(t.shape) for name, t in vars(a).items() if name != "grad" and hasattr(t, "shape")}
    whole = torch.broadcast_shapes(*shapes.values())

    def names(shape: tuple[Any, ...]) -> tuple[str, ...]:
        first = len(whole) - len(shape)
        return tuple(f"d{first + k}" if size == whole[first + k] else "1" for k, size in enumerate(shape))

    given = {name: names(shape) for name, shape in shapes.items()}
    return given | {"": names(whole)}, frozenset(names(whole))


ELEMENTWISE = Axes(of_elements, linear_backward=("grad",))


def of_rows(a: SimpleNamespace, kept: str) -> Dimensions:
    """Of a network: all dimensions of x but the last are independent. kept: the result that has a row for each of
    x's."""
    leading = tuple(f"d{k}" for k in range(len(a.x.shape) - 1))
    rows = ("*".join(leading) or "1", "hidden_size")
    return {"x": (*leading, "input_size"), "output": (*leading, "output_size"), kept: rows}, frozenset(leading)


def enable() -> None:
    """Registers the rules when DTensor is imported."""
    when_imported("torch.distributed.tensor", _register)


def _register(_: ModuleType) -> None:
    try:
        from fourfold.operators import sharding

        sharding.register()
    except (ImportError, AttributeError) as error:  # the rules need more than torch's public interface
        warnings.warn(
            f"fourfold has no sharding rules for the DTensors of torch {torch.__version__}, which its operators then "
            f"refuse: {error}",
            stacklevel=2,
        )
