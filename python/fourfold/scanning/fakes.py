"""Fake values of a whole sequence."""

from __future__ import annotations

import sympy
import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from fourfold.compiler.nodes.recorder import NotRecorded


class Fakes:
    """Converts the fake values of a step to those of a whole sequence. The step's symbolic sizes become symbols of
    another environment, and so does the number of steps; ``count`` is that number in the first call."""

    def __init__(self, count: int):
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.symbols: dict[object, object] = {}
        self.known: set[object] = set()  # equalities of sizes that Dynamo has checked
        self.steps = self.new_symbol("steps", max(count, 2))  # torch treats 0 and 1 as constants

    def new_symbol(self, name: str, hint: int) -> torch.SymInt:
        source = ConstantSource(f"{name}_{len(self.symbols)}")
        # Hints of 0 and 1 are numbers that the step reads: Dynamo makes tensor sizes of 0 and 1 constants.
        general = {"positive": None, "do_not_specialize_zero_one": True} if hint < 2 else {}
        symbol = self.env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC, **general)
        return self.env.create_symintnode(symbol, hint=hint, source=source)

    @property
    def are_general(self) -> bool:
        """Whether no operator has fixed a size, or assumed an equality of sizes that Dynamo hasn't checked."""
        equal = (guard.expr for guard in self.env.guards if isinstance(guard.expr, sympy.Eq))
        return not self.env.replacements and all(each in self.known for each in equal)

    def number(self, given: object) -> object:
        if not isinstance(given, (torch.SymInt, torch.SymFloat)):
            return given
        expression = given.node.expr
        if expression.is_number:
            return int(expression) if isinstance(given, torch.SymInt) else float(expression)
        for symbol in expression.free_symbols - self.symbols.keys():
            known = given.node.shape_env.create_symintnode(symbol, hint=None, source=None)
            hint = known if isinstance(known, int) else known.node.hint
            if hint is None:
                raise NotRecorded(f"the size {given} depends on data")
            self.symbols[symbol] = self.new_symbol("size", hint).node.expr
            self.known = {guard.expr.xreplace(self.symbols) for guard in given.node.shape_env.guards}
        create = self.env.create_symintnode if isinstance(given, torch.SymInt) else self.env.create_symfloatnode
        return create(expression.xreplace(self.symbols), hint=given.node.hint)

    def tensor(self, given: Tensor, leading: object = None) -> Tensor:
        """leading: the size of an additional first dimension, in contiguous memory."""
        sizes = [self.number(size) for size in given.shape]
        with _disable_current_modes(), self.mode:  # a recorder is a mode, and would write nodes
            if leading is not None:
                return torch.empty([leading, *sizes], dtype=given.dtype, device=given.device)
            strides = [self.number(stride) for stride in given.stride()]
            return torch.empty_strided(sizes, strides, dtype=given.dtype, device=given.device)
