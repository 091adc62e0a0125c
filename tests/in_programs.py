"""For tests of what programs compute: each operator becomes a program, even if torch's kernel is faster alone."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from fourfold.compiler.analysis import profitability

# The package exports the pass function under this name.
decompose = importlib.import_module("fourfold.compiler.passes.decompose")


@contextmanager
def everything_in_programs() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(profitability, "slow", lambda node: None))
        stack.enter_context(mock.patch.object(profitability, "reason", lambda *given: None))
        stack.enter_context(mock.patch.object(decompose, "has_fused_neighbour", lambda node: True))
        yield
