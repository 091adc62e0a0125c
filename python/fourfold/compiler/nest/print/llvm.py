"""Prints a nest as LLVM IR with explicit vectors. It has LLVM 22's syntax."""

from __future__ import annotations

from fourfold.compiler.nest.ir.levels import Level
from fourfold.compiler.nest.ir.loops import Assign, Let, Loop, Nest, Ref, Statement, Variable, When
from fourfold.compiler.nest.ir.schedule import COMBINED
from fourfold.compiler.nest.print.llvm_lines import INDEX, MEMORY, TYPES, vector
from fourfold.compiler.nest.print.llvm_rows import Rows


def print_nest(nest: Nest, target: Level) -> str:
    printers = [Printer(function, target) for function in nest.functions if function is not None]
    texts = [printer.text() for printer in printers]
    declared = sorted(set().union(*(printer.declared for printer in printers)))
    return "\n".join([*declared, *texts, ""])


class Printer(Rows):
    def text(self) -> str:
        self.print(self.function.body)
        head = f"define void @{self.function.name}(i64 %begin, i64 %end, ptr %arguments, ptr %scratch) nounwind {{"
        fence = ["  fence seq_cst"] * self.streams  # makes non-temporal stores visible to other threads
        start = ["  br label %start", "start:"]
        return "\n".join([head, "entry:", *self.allocas, *start, *self.lines, *fence, "  ret void", "}"])

    def print(self, body: list[Statement]) -> None:
        for statement in body:
            getattr(self, f"print_{type(statement).__name__.lower()}")(statement)

    def print_variable(self, statement: Variable) -> None:
        ref = statement.result
        self.allocas.append(f"  %{ref.name} = alloca {vector(ref.type, ref.lanes)}, align 64")
        self.print_assign(Assign(ref, statement.initial))

    def print_assign(self, statement: Assign) -> None:
        ref = statement.variable
        self.emit(f"store {vector(ref.type, ref.lanes)} {self.value(statement.value)}, ptr %{ref.name}")

    def print_loop(self, statement: Loop) -> None:
        index = self.alloca("i64", 8)
        head, inner, behind = self.label(), self.label(), self.label()
        self.emit(f"store i64 {self.value(statement.begin)}, ptr {index}")
        self.emit(f"br label %{head}")
        self.begin(head)
        name = statement.index.name
        self.emit(f"%{name} = load i64, ptr {index}")
        condition = self.temporary(f"icmp slt i64 %{name}, {self.value(statement.end)}")
        self.emit(f"br i1 {condition}, label %{inner}, label %{behind}")
        self.begin(inner)
        self.print(statement.body)
        following = self.temporary(f"add nsw i64 %{name}, {self.value(statement.step)}")
        self.emit(f"store i64 {following}, ptr {index}")
        self.emit(f"br label %{head}")
        self.begin(behind)

    def print_when(self, statement: When) -> None:
        inner, behind = self.label(), self.label()
        self.emit(f"br i1 {self.value(statement.condition)}, label %{inner}, label %{behind}")
        self.begin(inner)
        self.print(statement.body)
        self.emit(f"br label %{behind}")
        self.begin(behind)

    def print_let(self, statement: Let) -> None:
        result, op, operands = statement.result, statement.op, statement.operands
        special = getattr(self, f"let_{op}", None)
        if special is not None:
            text = special(statement)
        elif op in INDEX or op in ("min", "<", "equal"):
            text = self.index(op, *map(self.value, operands))
        else:
            text = self.operation(op, result, operands)
        # Every value keeps its name in the nest.
        self.rename(text, result.name, vector(result.type, result.lanes))

    def rename(self, made: str, name: str, type: str) -> None:
        last = self.lines[-1]
        if last.startswith(f"  {made} = "):
            self.lines[-1] = f"  %{name} = {last.split(' = ', 1)[1]}"
        elif type == "ptr":
            self.emit(f"%{name} = getelementptr i8, ptr {made}, i64 0")
        else:
            self.emit(f"%{name} = bitcast {type} {made} to {type}")

    def let_argument(self, let: Let) -> str:
        index, _ = let.attribute
        place = self.temporary(f"getelementptr i64, ptr %arguments, i64 {index}")
        return self.temporary(f"load {TYPES[let.result.type]}, ptr {place}, align 8")

    def let_advance(self, let: Let) -> str:
        pointer, offset = map(self.value, let.operands)
        return self.temporary(f"getelementptr inbounds {MEMORY[let.attribute]}, ptr {pointer}, i64 {offset}")

    def let_get(self, let: Let) -> str:
        ref = let.operands[0]
        return self.temporary(f"load {vector(ref.type, ref.lanes)}, ptr %{ref.name}")

    def let_splat(self, let: Let) -> str:
        return self.splat(TYPES[let.result.type], self.value(let.operands[0]), let.result.lanes)

    def let_mask(self, let: Let) -> str:
        lanes = let.result.lanes
        self.left[let.result.name] = let.operands[0]
        most = self.index("min", self.value(let.operands[0]), str(lanes))
        left = self.splat("i32", self.temporary(f"trunc i64 {most} to i32"), lanes)
        return self.temporary(f"icmp slt <{lanes} x i32> <{', '.join(f'i32 {k}' for k in range(lanes))}>, {left}")

    def let_select(self, let: Let) -> str:
        return self.select(let.operands)

    let_where = let_select

    def let_fold(self, let: Let) -> str:
        (operand,) = let.operands
        lanes, value, type = operand.lanes, self.value(operand), operand.type
        if let.result.type != type:
            value = self.temporary(f"fpext {vector(type, lanes)} {value} to {vector(let.result.type, lanes)}")
            type = let.result.type
        while lanes > 1:
            half, own = lanes // 2, vector(type, lanes)
            low, high = (
                self.temporary(
                    f"shufflevector {own} {value}, {own} poison, <{half} x i32> "
                    f"<{', '.join(f'i32 {k}' for k in range(first, first + half))}>"
                )
                for first in (0, half)
            )
            lanes = half
            parts = tuple(Ref(part[1:], type, lanes) for part in (low, high))
            value = self.operation(COMBINED[let.attribute], parts[0], parts)
        return self.temporary(f"extractelement {vector(type, 1)} {value}, i64 0")
