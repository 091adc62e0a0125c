"""Records the arithmetic of symbolic sizes, such as the number of steps times the batch."""

from __future__ import annotations

import operator

import sympy
import torch
from torch.fx import Node
from torch.utils._sympy import functions

from fourfold.compiler.nodes.recorder import NotRecorded, Recorder

OPERATORS = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    functions.FloorDiv: operator.floordiv,
    functions.FloatTrueDiv: operator.truediv,
    functions.IntTrueDiv: operator.truediv,
    functions.ToFloat: torch.sym_float,
}


class SizeRecorder(Recorder):
    """Writes nodes for sizes that no node has."""

    def size(self, wanted: torch.SymInt | torch.SymFloat) -> Node | int | float:
        try:
            return super().size(wanted)
        except NotRecorded:
            return self.expression(wanted.node.expr, wanted)[1]

    def expression(self, expression: sympy.Expr, wanted: torch.SymInt | torch.SymFloat) -> tuple[object, object]:
        """The value of an expression, and its node or number."""
        if expression.is_Integer:
            return int(expression), int(expression)
        if expression.is_Float:
            return float(expression), float(expression)
        if expression.is_Symbol:
            value = wanted.node.shape_env.create_symintnode(expression, hint=None, source=None)
            return value, super().size(value)
        if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
            power = sympy.Mul(*[expression.base] * int(expression.exp), evaluate=False)
            return self.expression(power, wanted)
        if expression.func not in OPERATORS:
            raise NotRecorded(f"no node has the size {wanted}")
        apply = OPERATORS[expression.func]
        value, node = self.expression(expression.args[0], wanted)
        if len(expression.args) == 1:
            return apply(value), self.write(apply(value), apply, (node,))
        for argument in expression.args[1:]:
            other, its_node = self.expression(argument, wanted)
            value = apply(value, other)
            node = self.write(value, apply, (node, its_node))
        return value, node
