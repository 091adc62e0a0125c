"""The arguments of an exported program in a file: dtypes, shapes, and the bounds of symbolic sizes."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, SymFloatArgument, SymIntArgument, TensorArgument
from torch.fx import Node
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from fourfold.compiler.analysis.views import memory_order
from fourfold.saving.steps import Unsaved, constant

OPERATIONS = {FloorDiv: "/", Mod: "%", PythonMod: "%"}


class Signature:
    def __init__(self, program: ExportedProgram):
        self.program = program
        self.symbols: dict[str, dict[str, int | None]] = {}

    def arguments(self, inputs: Sequence[Node], relies_on_layout: set[Node]) -> list[dict[str, object]]:
        """inputs: the graph's. relies_on_layout: those whose memory layout matters to torch's operators."""
        specs = self.program.graph_signature.input_specs
        return [
            self.argument(spec.arg, node, node in relies_on_layout)
            for spec, node in zip(specs, inputs, strict=True)
            if spec.kind == InputKind.USER_INPUT
        ]

    def argument(self, argument: object, node: Node, relies_on_layout: bool) -> dict[str, object]:
        name, value = {"name": argument.name}, node.meta.get("val")
        if isinstance(argument, ConstantArgument):
            return name | {"constant": constant(argument.value)}
        if isinstance(argument, SymIntArgument):
            return name | {"number": "integer", "size": self.size(value)}
        if isinstance(argument, SymFloatArgument):
            return name | {"number": "float"}
        if not isinstance(argument, TensorArgument):
            raise Unsaved(f"the argument {argument.name}, which is neither a tensor nor a number")
        found = name | self.described(value)
        return found | {"order": memory_order(value)} if relies_on_layout and value.dim() else found

    def described(self, value: Tensor) -> dict[str, object]:
        dtype = str(value.dtype).removeprefix("torch.")
        return {"dtype": dtype, "shape": [self.size(size) for size in value.shape]}

    def size(self, size: int | torch.SymInt) -> object:
        """A number, a symbol's name, or [operation, size, size]."""
        return size if isinstance(size, int) else self.expression(size.node.expr)

    def expression(self, expression: sympy.Expr) -> object:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            self.add_symbol(expression)
            return str(expression)
        operation = OPERATIONS.get(type(expression))
        if expression.is_Add or expression.is_Mul:
            operation = "+" if expression.is_Add else "*"
        if operation is None or not all(part.is_integer for part in expression.args):
            raise Unsaved(f"the size {expression}, which is not integer arithmetic")
        first, *rest = map(self.expression, expression.args)
        for part in rest:
            first = [operation, first, part]
        return first

    def add_symbol(self, symbol: sympy.Symbol) -> None:
        known = self.program.range_constraints.get(symbol)
        lower, upper = (0, None) if known is None else (known.lower, known.upper)
        bounds = [
            None if bound is None or not sympy.sympify(bound).is_Integer else int(bound) for bound in (lower, upper)
        ]
        maximum = bounds[1] if bounds[1] is None or bounds[1] < 2**63 else None
        self.symbols[str(symbol)] = {"minimum": bounds[0] or 0, "maximum": maximum}
