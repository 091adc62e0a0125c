"""Non-temporal stores of large results: the interpreter's bits, with any number of threads and any alignment."""

from __future__ import annotations

import itertools

import pytest
import torch

from fourfold.compiler.nest.jit import service
from nests import expect_the_interpreters_bits, needs_nests
from programs import HEAD

pytestmark = needs_nests
COUNT = itertools.count(1)

ELEMENTS = (
    f"{HEAD}axes a=x.0\nx: float32 = input float32 [a]\ny: float32 = exp x\nz: float64 = to_float64 y\n"
    "output y float32 [a]\noutput y bfloat16 [a]\noutput z float64 [a]\n"
)
BROADCAST = (
    f"{HEAD}axes a=x.0 b=y.0\nx: float32 = input float32 [a]\ny: float32 = input float32 [b]\n"
    "z: float32 = mul x y\noutput z float32 [a b]\n"
)
ROWS = (
    f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\ns: float32 = amax x\ny: float32 = sub x s\n"
    "e: float32 = exp y\nt: float32 = sum e\nz: float32 = div e t\noutput z float32 [a b]\noutput y float32 [a b]\n"
)


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The layouts whose nests are compiled."""
    found: list[str] = []
    compile = service.service.compile

    def recorded(text: str, layout: str) -> None:
        found.append(layout)
        compile(text, layout)

    monkeypatch.setattr(service.service, "compile", recorded)
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("text", "shapes", "is_streamed"),
    [
        (ELEMENTS, [(2_000_003,)], True),
        (ELEMENTS, [(20_003,)], False),
        (BROADCAST, [(40,), (160_000,)], True),
        (BROADCAST, [(40,), (160_001,)], False),  # rows begin at any alignment
        (BROADCAST, [(1200,), (4816,)], True),
        (ROWS, [(400, 6400)], True),
        (ROWS, [(400, 6401)], False),
        (ROWS, [(2, 1_500_003)], False),
    ],
)
def test_large_results(
    text: str, shapes: list[tuple[int, ...]], is_streamed: bool, threads: int, layouts: list[str]
) -> None:
    torch.set_num_threads(threads)
    text += "\n" * next(COUNT)  # a unique text, so that its nest is compiled
    expect_the_interpreters_bits(text, [torch.randn(shape) for shape in shapes])
    assert any("=" in layout for layout in layouts) == is_streamed
