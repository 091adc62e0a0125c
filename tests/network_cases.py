"""Networks of dense layers for the case table: functions that draw an operator's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Make = Callable[[Any], tuple]


def mlp(*leading: int, sizes: tuple[int, int, int], bias: int = 2) -> Make:
    def make(draw: Any) -> tuple:
        input_size, hidden_size, output_size = sizes
        shape = {0: lambda n: None, 1: lambda n: draw(n), 2: lambda n: draw(1, n)}[bias]
        return (
            draw(*leading, input_size),
            draw(hidden_size, input_size, scale=max(input_size, 1) ** -0.5),
            shape(hidden_size),
            draw(output_size, hidden_size, scale=max(hidden_size, 1) ** -0.5),
            shape(output_size),
        )

    return make


def _mlp_layers(
    *leading: int, sizes: list[int], activation: str = "relu", bias: Callable[[int], bool] = lambda layer: True
) -> Make:
    """`bias`: which layers have one. Returns the arguments with the lists flattened."""

    def make(draw: Any) -> tuple:
        layers = list(enumerate(zip(sizes, sizes[1:], strict=False)))
        weights = [draw(outputs, inputs, scale=max(inputs, 1) ** -0.5) for _, (inputs, outputs) in layers]
        biases = [draw(outputs) if bias(layer) else None for layer, (_, outputs) in layers]
        return (draw(*leading, sizes[0]), *weights, *biases, activation)

    return make


def mlp_layers_cases() -> list[tuple[str, Make, bool]]:
    """Name, arguments, and whether it also runs the slow tests."""

    def case(name: str, *leading: int, every_path: bool = False, **options: Any) -> tuple[str, Make, bool]:
        return name, _mlp_layers(*leading, **options), every_path

    each = [case(f"{f}", 9, sizes=[6, 21, 18, 5], activation=f) for f in ("relu", "tanh", "gelu", "silu")]
    # Layers with more weights than the CPU fuses, before, between and after small ones.
    mixed = [
        case(f"mixed-{f}", 6, sizes=[270, 250, 1, 250, 270, 9], activation=f) for f in ("relu", "tanh", "gelu", "silu")
    ]
    return [
        *each,
        *mixed,
        case("one-layer", 4, sizes=[5, 3], activation="tanh"),
        case("one-hidden", 9, sizes=[12, 40, 5]),
        case("one", 1, sizes=[1, 1, 1], activation="gelu"),
        case("deep", 3, sizes=[4, 17, 16, 1, 7], bias=lambda layer: layer != 1, every_path=True),
        case("odd", 2, 3, sizes=[3, 17, 5], activation="silu", every_path=True),
        case("no-bias", 9, sizes=[64, 40, 33, 10], activation="gelu", bias=lambda layer: False),
        case("unbatched", sizes=[64, 64, 2], activation="tanh"),
        case("zero-batch", 0, sizes=[270, 250, 15, 1], activation="silu"),
        case("no-units", 3, sizes=[4, 0, 2]),
        case("no-features", 3, sizes=[0, 6, 5, 2], activation="gelu"),
        case("long-batch", 3000, sizes=[20, 40, 4], activation="tanh"),
        case("many-rows", 5000, sizes=[5, 7, 3], activation="gelu"),
    ]
