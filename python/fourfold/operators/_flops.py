"""Formulas for torch.utils.flop_counter: the number that it counts for an operator's definition in plain torch, which
is that of its matrix products. Elementwise operators have none, like torch's."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fourfold._when_imported import when_imported
from fourfold.operators._schema import Schema, schema_of

COUNTER = "torch.utils.flop_counter"
Wanted = dict[str, bool]  # for each argument, whether its gradient is needed


def _rows(x: Tensor) -> int:
    return math.prod(x.shape[:-1])


def _first_rows(a: SimpleNamespace) -> int:
    """The rows of a sequence's first step."""
    known = a.batch_sizes is not None and a.reverse and not isinstance(a.batch_sizes, torch._subclasses.FakeTensor)
    batch = int(a.batch_sizes[-1]) if known and len(a.batch_sizes) else a.h_0.shape[0]
    return min(batch, _rows(a.input))


def _separate(a: SimpleNamespace) -> int:
    """lstm and gru: x W_ih and h W_hh."""
    return 2 * _rows(a.input) * (a.weight_ih.numel() + a.weight_hh.numel())


def _separate_backward(a: SimpleNamespace, wanted: Wanted) -> int:
    """Only the first step's h is an argument; later ones are computed, and always need their gradients."""
    rows = _rows(a.input)
    by_x, by_h = 2 * a.weight_ih.numel(), 2 * a.weight_hh.numel()
    later = rows - _first_rows(a) * (not wanted["h_0"])
    return rows * (by_x * (wanted["input"] + wanted["weight_ih"]) + by_h * wanted["weight_hh"]) + later * by_h


def _joined(a: SimpleNamespace) -> int:
    """lltm: [h, x] W."""
    return 2 * _rows(a.input) * a.weights.numel()


def _joined_backward(a: SimpleNamespace, wanted: Wanted) -> int:
    rows = _rows(a.input)
    later = rows - _first_rows(a) * (not (wanted["input"] or wanted["h_0"]))
    return 2 * a.weights.numel() * (rows * wanted["weights"] + later)


def _cell(a: SimpleNamespace) -> int:
    return 2 * _rows(a.x) * a.weights.numel()


def _cell_backward(a: SimpleNamespace, wanted: Wanted) -> int:
    return _cell(a) * (wanted["weights"] + (wanted["x"] or wanted["h"]))


def _network(x: Tensor, weights: Sequence[Tensor]) -> int:
    return 2 * _rows(x) * sum(w.numel() for w in weights)


def _network_backward(x: Tensor, weights: Sequence[Tensor], mask: Sequence[bool]) -> int:
    """mask: for x, all weights, all biases. A layer's input needs its gradient if anything before it does."""
    count, below, products = len(weights), mask[0], 0
    for k, w in enumerate(weights):
        of_weight, of_bias = mask[1 + k], mask[1 + count + k]
        products += w.numel() * (of_weight + below)
        below = below or of_weight or of_bias
    return 2 * _rows(x) * products


def _mlp_backward(a: SimpleNamespace, wanted: Wanted) -> int:
    names = ("x", "hidden_weights", "output_weights", "hidden_bias", "output_bias")
    return _network_backward(a.x, (a.hidden_weights, a.output_weights), [wanted[name] for name in names])


FORWARD: dict[str, Callable[[SimpleNamespace], int]] = {
    "gru": _separate,
    "lstm": _separate,
    "lltm": _joined,
    "lltm_cell": _cell,
    "mlp": lambda a: _network(a.x, (a.hidden_weights, a.output_weights)),
    "mlp_layers": lambda a: _network(a.x, a.weights),
}
BACKWARD: dict[str, Callable[[SimpleNamespace, Wanted], int]] = {
    "gru": _separate_backward,
    "lstm": _separate_backward,
    "lltm": _joined_backward,
    "lltm_cell": _cell_backward,
    "mlp": _mlp_backward,
    "mlp_layers": lambda a, wanted: _network_backward(a.x, a.weights, a.output_mask),
}


def _forward(schema: Schema, name: str, *args: Any, **kwargs: Any) -> int:
    return int(FORWARD[name](_given(schema, args, kwargs)))


def _backward(schema: Schema, name: str, *args: Any, **kwargs: Any) -> int:
    a = _given(schema, args, kwargs)
    # For lists the mask has an entry per element, so that the names don't match.
    names = [result.removeprefix("grad_") for result in schema.results]
    return int(BACKWARD[name](a, dict(zip(names, a.output_mask, strict=False))))


def _given(schema: Schema, args: Sequence[Any], kwargs: dict[str, Any]) -> SimpleNamespace:
    kwargs.pop("out_val", None)
    return SimpleNamespace(**vars(schema.named(args)) | kwargs)


def _register(counter: ModuleType) -> None:
    for name in FORWARD:
        for which, formula in ((name, _forward), (f"{name}_backward", _backward)):
            operator = getattr(torch.ops.fourfold, which)
            if operator not in counter.flop_registry:  # importlib.reload runs this again
                of_tensors = counter.register_flop_formula(operator, get_raw=True)
                of_tensors(partial(formula, schema_of(which), name))


def enable() -> None:
    """Registers when torch's counter is imported: on a machine with Triton that import takes tenths of a second."""
    when_imported(COUNTER, _register)
