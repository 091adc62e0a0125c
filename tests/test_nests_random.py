"""Random programs in loop nests give the interpreter's bits."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import torch

from fourfold.compiler.ir.values import Program
from fourfold.compiler.nest.cpu import build
from fourfold.compiler.nest.ir.layout import ELEMENTS, ROWS, SHORT_ROWS, SIDE_BY_SIDE, Layout
from fourfold.compiler.nest.ir.loops import Nest
from nests import expect_the_interpreters_bits, needs_nests
from random_programs import Generator

pytestmark = needs_nests


def test_random_programs_have_the_interpreters_bits() -> None:
    """80 of any kind, then only those whose rows lie side by side."""
    built, own = Counter[str](), build.build

    def recorded(program: Program, layout: Layout, lanes: int) -> Nest:
        built[layout.split] += 1
        return own(program, layout, lanes)

    with mock.patch.object(build, "build", recorded):
        for seed in range(500):
            torch.set_num_threads(1 + seed % 3)
            generator = Generator(seed, normalises=seed % 2 == 1)
            program = generator.program()
            if seed < 80 or generator.is_reversed:
                for given in program.arguments:
                    if isinstance(given, torch.Tensor) and given.is_floating_point():
                        given.copy_(torch.randn(given.shape))  # sums of which depend on the order
                expect_the_interpreters_bits(program.text, program.arguments, compiles=False)
    fewest = {ELEMENTS: 10, ROWS: 20, SHORT_ROWS: 5, SIDE_BY_SIDE: 10}
    assert all(built[split] >= count for split, count in fewest.items()), built
