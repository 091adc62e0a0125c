"""The chains of a reduction: vectors in registers to which a block's vectors are added in turn."""

from __future__ import annotations

from fourfold.compiler.ir.dtypes import BOOLEAN, INT64
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.cpu.builder import CHAINS, Builder
from fourfold.compiler.nest.cpu.vectors import Sum
from fourfold.compiler.nest.ir.loops import Constant, Ref
from fourfold.compiler.nest.ir.schedule import identity


class Chains(Builder):
    def new_chains(self, value: Value) -> list[Ref]:
        first = Constant(identity(value.op, value.type), value.type, self.lanes)
        name = f"{self.schedule.name(value)}_lanes"
        count = 1 if value.op == "sum_float64" else CHAINS
        return [self.writer.variable(value.type, first, self.lanes, name) for _ in range(count)]

    def accumulate(self, each: Sum, vector: Ref, mask: Ref | None, copy: int, chain: Ref | None) -> None:
        writer, op = self.writer, each.value.op
        if mask is not None:
            first = Constant(identity(op, vector.type), vector.type, self.lanes)
            vector = writer.let("where", vector.type, mask, vector, first, lanes=self.lanes)
        if op == "sum_float64":
            self.accumulate_wide(each, vector, chain)
            return
        if chain is None or isinstance(chain, Constant):
            variable = each.chains[copy if chain is None else chain.value]
            writer.assign(variable, self.combined(op, writer.get(variable), vector))
            return
        for k, variable in enumerate(each.chains):
            old = writer.get(variable)
            is_this = writer.let("equal", BOOLEAN, chain, Constant(k, INT64))
            new = self.combined(op, old, vector)
            writer.assign(variable, writer.let("select", vector.type, is_this, new, old, lanes=self.lanes))

    def accumulate_wide(self, each: Sum, vector: Ref, chain: Ref | None) -> None:
        """chain: of a remaining vector, which is added alone."""
        part = self.quarter(vector)
        if chain is None:
            each.four.append(part)
            if len(each.four) < CHAINS:
                return
            part, each.four = self.four(each.four), []
        (variable,) = each.chains
        self.writer.assign(variable, self.combined("sum", self.writer.get(variable), self.wide(part)))
