"""Random programs in loop nests give the interpreter's bits."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import torch

import seeds
from fourfold.compiler.ir.values import Program
from fourfold.compiler.nest.cpu import build
from fourfold.compiler.nest.ir.layout import ELEMENTS, ROWS, SHORT_ROWS, SIDE_BY_SIDE, Layout
from fourfold.compiler.nest.ir.loops import Nest
from nests import expect_the_interpreters_bits, needs_nests
from random_programs import Generator

pytestmark = needs_nests


def test_random_programs_have_the_interpreters_bits() -> None:
    """Of five two of any kind, and three whose rows lie side by side in memory."""
    built, own = Counter[str](), build.build

    def recorded(program: Program, layout: Layout, lanes: int) -> Nest:
        built[layout.split] += 1
        return own(program, layout, lanes)

    with mock.patch.object(build, "build", recorded):
        for seed in seeds.of_this_run(least=200):
            torch.set_num_threads(1 + seed % 3)
            program = Generator(seed, normalises=seed % 2 == 1, reverses=seed % 5 > 1).program()
            for given in program.arguments:
                if isinstance(given, torch.Tensor) and given.is_floating_point():
                    given.copy_(torch.randn(given.shape))  # sums of which depend on the order
            expect_the_interpreters_bits(program.text, program.arguments, compiles=False)
    fewest = {ELEMENTS: 3, ROWS: 20, SHORT_ROWS: 5, SIDE_BY_SIDE: 5}  # of 17, 130, 28 and 22 that are expected
    assert all(built[split] >= count for split, count in fewest.items()), built
