"""torch.utils.flop_counter counts the same for fourfold's operators as for their definitions, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

import fourfold
from forked import Forks
from fourfold import reference

H, IN, B, T = 6, 4, 3, 4
SIZES = torch.tensor([3, 3, 2, 1])  # of a packed batch
STEPS, ROWS, STATE = (T, B, IN), (int(SIZES.sum()), IN), (B, H)
# The shapes of each operator's tensors.
LAYERS: dict[str, list[Any]] = {
    "lstm": [STATE, STATE, (4 * H, IN), (4 * H, H), (4 * H,), (4 * H,)],
    "gru": [STATE, (3 * H, IN), (3 * H, H), (3 * H,), None],
    "lltm": [STATE, STATE, (3 * H, H + IN), (3 * H,)],
}
NETWORKS: dict[str, list[Any]] = {
    "lltm_cell": [(B, IN), STATE, STATE, (3 * H, H + IN), (3 * H,)],
    "mlp": [(2, B, IN), (H, IN), (1, H), (5, H), None],
    "mlp_layers": [(B, IN), [(H, IN), (H, H), (5, H)], [(H,), None, (5,)]],
    "softshrink": [(B, IN)],
    "axpby": [(B, IN), (B, IN)],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reverse": {"reverse": True},
    "reset": {"reset": torch.rand(T, B) < 0.3},
    "packed": {"batch_sizes": SIZES},
    "packed, reverse": {"batch_sizes": SIZES, "reverse": True},
}


def counted(f: Callable[..., Any], given: Any, **options: Any) -> tuple[int, int]:
    """FLOPs of the forward and of the backward."""
    with FlopCounterMode(display=False) as forward:
        results = tree_leaves(f(*given, **options))
    with FlopCounterMode(display=False) as backward:
        if any(one.requires_grad for one in results):
            sum(one.sum() for one in results).backward()
    return forward.get_total_flops(), backward.get_total_flops()


def tensors_of(shapes: list[Any], wanted: frozenset[int]) -> list[Any]:
    """Random tensors; wanted: the numbers of those that require a gradient."""
    numbers = itertools.count()

    def made(shape: Any) -> Any:
        if isinstance(shape, list):
            return [made(one) for one in shape]
        return None if shape is None else torch.randn(shape).requires_grad_(next(numbers) in wanted)

    return [made(shape) for shape in shapes]


def number_of(shapes: list[Any]) -> int:
    return sum(one is not None for one in tree_leaves(shapes, is_leaf=lambda one: isinstance(one, tuple)))


def expect_the_reference(name: str, shapes: list[Any], wanted: frozenset[int], **options: Any) -> tuple[int, int]:
    counts = [counted(getattr(of, name), tensors_of(shapes, wanted), **options) for of in (fourfold, reference)]
    assert counts[0] == counts[1], (name, wanted, options)
    return counts[0]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_sequence(name: str, option: str) -> None:
    options = OPTIONS[option]
    shapes = [ROWS if "batch_sizes" in options else STEPS, *LAYERS[name]]
    tensors = number_of(shapes)
    for count in (0, 1, tensors):
        for wanted in itertools.combinations(range(tensors), count):
            forward, backward = expect_the_reference(name, shapes, frozenset(wanted), **options)
            assert forward > 0 and (backward > 0) == (count > 0)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("steps", [0, 1])
def test_a_short_sequence(name: str, steps: int) -> None:
    shapes = [(steps, B, IN), *LAYERS[name]]
    for wanted in (set(), {0}, {1}, {2}, {3}, {0, 1, 2, 3}):
        expect_the_reference(name, shapes, frozenset(wanted))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network(name: str) -> None:
    shapes = NETWORKS[name]
    tensors = number_of(shapes)
    for count in range(tensors + 1):
        for wanted in itertools.combinations(range(tensors), count):
            forward, _ = expect_the_reference(name, shapes, frozenset(wanted))
            assert (forward > 0) == (name not in ("softshrink", "axpby"))


def test_layers_and_the_names_that_are_shown() -> None:
    layer, network = fourfold.nn.LSTM(IN, H, 2, bidirectional=True), fourfold.nn.MLP([2 * H, 8, 3])
    with FlopCounterMode(display=False) as counter:
        network(layer(torch.randn(T, B, IN))[0]).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    names = {str(packet) for packet in counts}
    assert names >= {"fourfold.lstm", "fourfold.lstm_backward", "fourfold.mlp", "fourfold.mlp_backward"}
    assert counts[torch.ops.fourfold.lstm] == 2 * 2 * T * B * 4 * H * ((IN + H) + (2 * H + H))


def test_fake_tensors_are_counted() -> None:
    shapes = [STEPS, *LAYERS["gru"]]
    with torch._subclasses.FakeTensorMode() as mode:
        given = tree_map_only(Tensor, mode.from_tensor, tensors_of(shapes, frozenset({0, 2, 3})))
        counts = counted(fourfold.gru, given)
    assert counts == counted(fourfold.gru, tensors_of(shapes, frozenset({0, 2, 3})))


@pytest.mark.parametrize("first", ["fourfold", "torch.utils.flop_counter"])
def test_whichever_is_imported_first(first: str, after_torch: Forks) -> None:
    """Reloading registers nothing again."""
    code = f"""
import importlib, sys, torch, {first}
if {first!r} == "fourfold":
    assert "torch.utils.flop_counter" not in sys.modules
import fourfold
importlib.reload(fourfold)
from torch.utils.flop_counter import FlopCounterMode
importlib.reload(fourfold)
with FlopCounterMode(display=False) as counter:
    fourfold.nn.MLP(3, 4, 5)(torch.ones(2, 3))
assert counter.get_total_flops() == 2 * 2 * (3 * 4 + 4 * 5), counter.get_total_flops()
"""
    after_torch.output_of("-c", code)
