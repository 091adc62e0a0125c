"""Prints a nest as LLVM IR with explicit vectors. It has LLVM 20's syntax, and later ones'."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from fourfold import _C
from fourfold.compiler.dtypes import BOOLEAN, FLOAT32, FLOAT64, FLOATING, INT32, INT64
from fourfold.compiler.nest.loops import (
    POINTER,
    Assign,
    Constant,
    Function,
    Let,
    Loop,
    Nest,
    Operand,
    Ref,
    Statement,
    Store,
    StoreRows,
    Transpose,
    Variable,
    When,
)
from fourfold.compiler.nest.plan import SIZES

TYPES = {BOOLEAN: "i1", INT32: "i32", INT64: "i64", FLOAT32: "float", FLOAT64: "double", POINTER: "ptr"}
# What memory holds of each kind.
MEMORY = {
    "boolean": "i8", "uint8": "i8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double",
}  # fmt: skip
ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "div": "div"}
BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
COMPARISONS = {
    "eq": ("oeq", "eq"), "ne": ("une", "ne"), "lt": ("olt", "slt"),
    "le": ("ole", "sle"), "gt": ("ogt", "sgt"), "ge": ("oge", "sge"),
}  # fmt: skip
INTRINSICS = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven", "copysign": "copysign",
}  # fmt: skip
INDEX = {"+": "add nsw", "-": "sub nsw", "*": "mul nsw", "/": "sdiv", "%": "srem"}
FOLDED = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum", "all": "bitwise_and", "any": "bitwise_or"}

TRANSPOSE = "fourfold_transpose_tile"

METADATA = """
!1 = distinct !{!1}
!2 = !{!4}
!3 = !{!5}
!4 = distinct !{!4, !1}
!5 = distinct !{!5, !1}
"""


@dataclass(frozen=True, slots=True)
class Target:
    """has_byte_masks: whether it loads and stores vectors of bytes and halves under a mask."""

    lanes: int
    has_byte_masks: bool


TARGETS = {"avx2": Target(8, False), "avx512": Target(16, True)}  # by CPU level


def level() -> str:
    """The CPU level in use, without what it has for products of bfloat16."""
    name = _C.cpu_capability()
    return "avx512" if name in ("avx512_bf16", "amx") else name


def called(op: str, type: str) -> str:
    """The name of a vector function of cpp/cpu/kernels."""
    return f"fourfold_{op}_{type}"


def print_nest(nest: Nest, target: Target) -> str:
    printers = [Printer(function, target) for function in nest.functions if function is not None]
    texts = [printer.text() for printer in printers]
    declared = sorted(set().union(*(printer.declared for printer in printers)))
    return "\n".join([*declared, *texts, METADATA])


class Printer:
    def __init__(self, function: Function, target: Target):
        self.function, self.target = function, target
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.declared: set[str] = set()
        self.left: dict[str, Operand] = {}  # by mask: how many lanes it has
        self.rows_loaded: dict[tuple, str] = {}
        self.count = 0

    def text(self) -> str:
        self.print(self.function.body)
        head = f"define void @{self.function.name}(i64 %begin, i64 %end, ptr %arguments, ptr %scratch) nounwind {{"
        return "\n".join([head, "entry:", *self.allocas, "  br label %start", "start:", *self.lines, "  ret void", "}"])

    # Lines.

    def emit(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def temporary(self, text: str) -> str:
        self.count += 1
        self.emit(f"%u{self.count} = {text}")
        return f"%u{self.count}"

    def label(self) -> str:
        self.count += 1
        return f"l{self.count}"

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def alloca(self, type: str, align: int) -> str:
        self.count += 1
        self.allocas.append(f"  %a{self.count} = alloca {type}, align {align}")
        return f"%a{self.count}"

    def call(self, name: str, result: str, *operands: tuple[str, str], attributes: str = "") -> str:
        types = ", ".join(type.split(" align")[0] for type, _ in operands)
        self.declared.add(f"declare {result} @{name}({types}){attributes}")
        text = f"call {result} @{name}({', '.join(f'{type} {value}' for type, value in operands)})"
        if result != "void":
            return self.temporary(text)
        self.emit(text)
        return ""

    # Operands.

    def value(self, operand: Operand) -> str:
        if isinstance(operand, Ref):
            return f"%{operand.name}"
        text = number(operand)
        return f"splat ({TYPES[operand.type]} {text})" if operand.lanes else text

    def constant(self, value: bool | int | float, like: Operand) -> str:
        return self.value(Constant(value, like.type, like.lanes))

    # Statements.

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
        # Every value has the name that the nest gave it.
        self.rename(text, result.name, vector(result.type, result.lanes))

    def rename(self, made: str, name: str, type: str) -> None:
        last = self.lines[-1]
        if last.startswith(f"  {made} = "):
            self.lines[-1] = f"  %{name} = {last.split(' = ', 1)[1]}"
        elif type == "ptr":
            self.emit(f"%{name} = getelementptr i8, ptr {made}, i64 0")
        else:
            self.emit(f"%{name} = bitcast {type} {made} to {type}")

    def index(self, op: str, a: str, b: str) -> str:
        if op == "min":
            return self.call("llvm.smin.i64", "i64", ("i64", a), ("i64", b))
        if op == "<":
            return self.temporary(f"icmp slt i64 {a}, {b}")
        if op == "equal":
            return self.temporary(f"icmp eq i64 {a}, {b}")
        return self.temporary(f"{INDEX[op]} i64 {a}, {b}")

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

    def splat(self, type: str, value: str, lanes: int) -> str:
        one = self.temporary(f"insertelement <{lanes} x {type}> poison, {type} {value}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.temporary(f"shufflevector <{lanes} x {type}> {one}, <{lanes} x {type}> poison, {zeros}")

    def let_mask(self, let: Let) -> str:
        lanes = let.result.lanes
        self.left[let.result.name] = let.operands[0]
        most = self.index("min", self.value(let.operands[0]), str(lanes))
        left = self.splat("i32", self.temporary(f"trunc i64 {most} to i32"), lanes)
        return self.temporary(f"icmp slt <{lanes} x i32> <{', '.join(f'i32 {k}' for k in range(lanes))}>, {left}")

    def let_select(self, let: Let) -> str:
        return self.select(let.operands)

    def let_where(self, let: Let) -> str:
        return self.select(let.operands)

    def select(self, operands: tuple[Operand, ...]) -> str:
        condition, yes, no = operands
        type = vector(yes.type, yes.lanes)
        mask = vector(BOOLEAN, condition.lanes)
        return self.temporary(
            f"select {mask} {self.value(condition)}, {type} {self.value(yes)}, {type} {self.value(no)}"
        )

    # Memory.

    def place(self, pointer: Operand, offset: Operand, kind: str) -> str:
        if offset == Constant(0, INT64):
            return self.value(pointer)
        return self.temporary(
            f"getelementptr inbounds {MEMORY[kind]}, ptr {self.value(pointer)}, i64 {self.value(offset)}"
        )

    def let_load(self, let: Let) -> str:
        pointer, offset, *mask = let.operands
        kind, lanes = let.attribute, let.result.lanes
        place, type = self.place(pointer, offset, kind), vector_of(MEMORY[kind], lanes)
        if not mask:
            loaded = self.temporary(f"load {type}, ptr {place}, align {SIZES[kind]}")
        elif SIZES[kind] < 4 and not self.target.has_byte_masks:
            memory = self.alloca(type, 64)
            self.copy(memory, place, mask[0], kind)
            loaded = self.temporary(f"load {type}, ptr {memory}, align 64")
        else:
            name = f"llvm.masked.load.v{lanes}{mangled(MEMORY[kind])}.p0"
            loaded = self.call(
                name, type, (f"ptr align {SIZES[kind]}", place), (vector_of("i1", lanes), self.value(mask[0])),
                (type, "zeroinitializer"),
            )  # fmt: skip
        return self.widened(loaded, kind, lanes)

    def let_load_strided(self, let: Let) -> str:
        pointer, offset, *mask, stride = let.operands
        kind, lanes = let.attribute, let.result.lanes
        type = vector_of(MEMORY[kind], lanes)
        pointers = self.pointers(pointer, offset, stride, kind, lanes)
        every = "splat (i1 true)"
        loaded = self.call(
            f"llvm.masked.gather.v{lanes}{mangled(MEMORY[kind])}.v{lanes}p0",
            type,
            (f"<{lanes} x ptr> align {SIZES[kind]}", pointers),
            (vector_of("i1", lanes), self.value(mask[0]) if mask else every),
            (type, "zeroinitializer"),
        )
        return self.widened(loaded, kind, lanes)

    def pointers(self, pointer: Operand, offset: Operand, stride: Operand, kind: str, lanes: int) -> str:
        """The addresses of lanes that lie a stride apart."""
        first = self.temporary(f"mul nsw i64 {self.value(offset)}, {self.value(stride)}")
        place = self.temporary(f"getelementptr inbounds {MEMORY[kind]}, ptr {self.value(pointer)}, i64 {first}")
        strides = self.splat("i64", self.value(stride), lanes)
        numbers = f"<{', '.join(f'i64 {k}' for k in range(lanes))}>"
        offsets = self.temporary(f"mul nsw <{lanes} x i64> {strides}, {numbers}")
        return self.temporary(f"getelementptr inbounds {MEMORY[kind]}, ptr {place}, <{lanes} x i64> {offsets}")

    def copy(self, to: str, source: str, mask: Operand, kind: str, times: int = 1) -> None:
        """Copies as many elements as a mask has lanes, or so many times as many."""
        left = self.index("min", self.value(self.left[mask.name]), str(mask.lanes))
        size = self.temporary(f"mul nsw i64 {left}, {SIZES[kind] * times}")
        operands = (("ptr", to), ("ptr", source), ("i64", size), ("i1", "false"))
        self.call("llvm.memcpy.p0.p0.i64", "void", *operands)

    def widened(self, loaded: str, kind: str, lanes: int) -> str:
        """A kind's values in the type that they are computed in."""
        memory, bits = vector_of(MEMORY[kind], lanes), vector_of("i32", lanes)
        if kind == "boolean":
            return self.temporary(f"icmp ne {memory} {loaded}, {'zeroinitializer' if lanes else '0'}")
        if kind in ("uint8", "int8", "int16"):
            return self.temporary(f"{'zext' if kind == 'uint8' else 'sext'} {memory} {loaded} to {bits}")
        if kind == "float16":
            return self.temporary(f"fpext {memory} {loaded} to {vector_of('float', lanes)}")
        if kind == "bfloat16":
            wide = self.temporary(f"zext {memory} {loaded} to {bits}")
            return self.single_of_bits(self.temporary(f"shl {bits} {wide}, {splatted('i32 16', lanes)}"), lanes)
        return loaded

    def single_of_bits(self, bits: str, lanes: int) -> str:
        return self.temporary(f"bitcast {vector_of('i32', lanes)} {bits} to {vector_of('float', lanes)}")

    def narrowed(self, value: str, kind: str, lanes: int) -> str:
        memory = vector_of(MEMORY[kind], lanes)
        if kind == "boolean":
            return self.temporary(f"zext {vector_of('i1', lanes)} {value} to {memory}")
        if kind in ("uint8", "int8", "int16"):
            return self.temporary(f"trunc {vector_of('i32', lanes)} {value} to {memory}")
        if kind == "float16":
            return self.temporary(f"fptrunc {vector_of('float', lanes)} {value} to {memory}")
        if kind == "bfloat16":
            return self.temporary(f"trunc {vector_of('i32', lanes)} {self.rounded_bits(value, lanes)} to {memory}")
        return value

    def rounded_bits(self, value: str, lanes: int) -> str:
        """A bfloat16's bits, by integers: processors' instruction takes subnormal numbers for zero."""
        bits, constant = vector_of("i32", lanes), lambda n: splatted(f"i32 {n}", lanes)
        own = self.temporary(f"bitcast {vector_of('float', lanes)} {value} to {bits}")
        high = self.temporary(f"lshr {bits} {own}, {constant(16)}")
        odd = self.temporary(f"and {bits} {high}, {constant(1)}")
        half = self.temporary(f"add {bits} {odd}, {constant(32767)}")
        rounded = self.temporary(f"lshr {bits} {self.temporary(f'add {bits} {own}, {half}')}, {constant(16)}")
        nan = self.temporary(f"fcmp uno {vector_of('float', lanes)} {value}, {value}")
        return self.temporary(f"select {vector_of('i1', lanes)} {nan}, {bits} {constant(32704)}, {bits} {rounded}")

    def print_store(self, store: Store) -> None:
        lanes, kind = store.value.lanes, store.kind
        type, size = vector_of(MEMORY[kind], lanes), SIZES[kind]
        value = self.narrowed(self.value(store.value), kind, lanes)
        if store.stride is not None:
            return self.scatter(store, value)
        place = self.place(store.pointer, store.offset, kind)
        if store.mask is None:
            self.emit(f"store {type} {value}, ptr {place}, align {size}")
        elif size < 4 and not self.target.has_byte_masks:
            memory = self.alloca(type, 64)
            self.emit(f"store {type} {value}, ptr {memory}, align 64")
            self.copy(place, memory, store.mask, kind)
        else:
            mask = (vector_of("i1", lanes), self.value(store.mask))
            name = f"llvm.masked.store.v{lanes}{mangled(MEMORY[kind])}.p0"
            self.call(name, "void", (type, value), (f"ptr align {size}", place), mask)
        return None

    # Rows of few columns.

    def let_load_column(self, let: Let) -> str:
        pointer, offset, *mask = let.operands
        kind, column, columns = let.attribute
        lanes = let.result.lanes
        key = (pointer, offset, kind)
        if key not in self.rows_loaded:
            self.rows_loaded[key] = self.load_rows(pointer, offset, kind, lanes, columns, mask)
        wide = self.rows_loaded[key]
        chosen = ", ".join(f"i32 {row * columns + column}" for row in range(lanes))
        type = vector_of(MEMORY[kind], lanes * columns)
        loaded = self.temporary(f"shufflevector {type} {wide}, {type} poison, <{lanes} x i32> <{chosen}>")
        return self.widened(loaded, kind, lanes)

    def load_rows(
        self, pointer: Operand, offset: Operand, kind: str, lanes: int, columns: int, mask: Sequence[Operand]
    ) -> str:
        place, type = self.place(pointer, offset, kind), vector_of(MEMORY[kind], lanes * columns)
        if not mask:
            return self.temporary(f"load {type}, ptr {place}, align {SIZES[kind]}")
        memory = self.alloca(type, 64)
        self.copy(memory, place, mask[0], kind, columns)
        return self.temporary(f"load {type}, ptr {memory}, align 64")

    def print_storerows(self, store: StoreRows) -> None:
        columns, kind = len(store.columns), store.kind
        lanes = store.columns[0].lanes
        parts = [self.narrowed(self.value(column), kind, lanes) for column in store.columns]
        own, all_lanes = vector_of(MEMORY[kind], lanes), lanes
        while len(parts) > 1 or all_lanes < lanes * columns:  # two by two, the last with itself
            pairs = [(parts[k], parts[min(k + 1, len(parts) - 1)]) for k in range(0, len(parts), 2)]
            chosen = ", ".join(f"i32 {k}" for k in range(2 * all_lanes))
            parts = [
                self.temporary(f"shufflevector {own} {a}, {own} {b}, <{2 * all_lanes} x i32> <{chosen}>")
                for a, b in pairs
            ]
            all_lanes *= 2
            own = vector_of(MEMORY[kind], all_lanes)
        type = vector_of(MEMORY[kind], lanes * columns)
        order = ", ".join(f"i32 {column * lanes + row}" for row in range(lanes) for column in range(columns))
        wide = self.temporary(f"shufflevector {own} {parts[0]}, {own} poison, <{lanes * columns} x i32> <{order}>")
        place = self.place(store.pointer, store.offset, kind)
        if store.mask is None:
            self.emit(f"store {type} {wide}, ptr {place}, align {SIZES[kind]}")
            return
        memory = self.alloca(type, 64)
        self.emit(f"store {type} {wide}, ptr {memory}, align 64")
        self.copy(place, memory, store.mask, kind, columns)

    def print_transpose(self, statement: Transpose) -> None:
        operands = (Constant(SIZES[statement.kind], INT64), statement.source, statement.source_step)
        operands += (statement.to, statement.to_step, statement.rows, statement.columns)
        typed = ((TYPES[operand.type], self.value(operand)) for operand in operands)
        self.call(TRANSPOSE, "void", *typed, attributes=" nounwind")

    def scatter(self, store: Store, value: str) -> None:
        lanes, kind = store.value.lanes, store.kind
        pointers = self.pointers(store.pointer, store.offset, store.stride, kind, lanes)
        mask = "splat (i1 true)" if store.mask is None else self.value(store.mask)
        self.call(
            f"llvm.masked.scatter.v{lanes}{mangled(MEMORY[kind])}.v{lanes}p0",
            "void",
            (vector_of(MEMORY[kind], lanes), value),
            (f"<{lanes} x ptr> align {SIZES[kind]}", pointers),
            (vector_of("i1", lanes), mask),
        )

    # Folds.

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
            value = self.operation(FOLDED[let.attribute], parts[0], parts)
        return self.temporary(f"extractelement {vector(type, 1)} {value}, i64 0")

    # A program's operations.

    def operation(self, op: str, result: Ref, operands: tuple[Operand, ...]) -> str:
        first = operands[0]
        type, lanes = first.type, first.lanes
        values = [self.value(operand) for operand in operands]
        if op in COMPARISONS:
            return self.comparison(op, type, lanes, values)
        if op.startswith("to_"):
            return self.conversion(op[3:], first)
        if op in BITWISE:
            return self.temporary(f"{BITWISE[op]} {vector(type, lanes)} {', '.join(values)}")
        if op == "bitwise_not":
            return self.temporary(f"xor {vector(type, lanes)} {values[0]}, {splatted_number(-1, type, lanes)}")
        if type in FLOATING:
            return self.floating(op, first, values)
        return self.integer(op, first, values)

    def comparison(self, op: str, type: str, lanes: int, values: list[str]) -> str:
        of_floats, of_integers = COMPARISONS[op]
        if type in FLOATING:
            return self.temporary(f"fcmp {of_floats} {vector(type, lanes)} {', '.join(values)}")
        code = of_integers if type != BOOLEAN else of_integers.replace("s", "u", 1)
        return self.temporary(f"icmp {code} {vector(type, lanes)} {', '.join(values)}")

    def floating(self, op: str, like: Operand, values: list[str]) -> str:
        type, own = vector(like.type, like.lanes), like.type
        a, b = values[0], values[-1]
        one, zero = self.constant(1.0, like), self.constant(0.0, like)
        if op in ARITHMETIC:
            return self.temporary(f"f{op} {type} {a}, {b}")
        if op == "neg":
            return self.temporary(f"fneg {type} {a}")
        if op == "abs":
            return self.intrinsic("fabs", like, values)
        if op in INTRINSICS:
            return self.intrinsic(INTRINSICS[op], like, values)
        if op in ("minimum", "maximum"):
            return self.extreme(op, like, a, b)
        if op == "reciprocal":
            return self.temporary(f"fdiv {type} {one}, {a}")
        if op == "rsqrt":
            return self.temporary(f"fdiv {type} {one}, {self.intrinsic('sqrt', like, values)}")
        if op == "sign":
            mask = vector(BOOLEAN, like.lanes)
            low = self.temporary(f"fcmp olt {type} {a}, {zero}")
            sign = self.temporary(f"select {mask} {low}, {type} {self.constant(-1.0, like)}, {type} {zero}")
            high = self.temporary(f"fcmp ogt {type} {a}, {zero}")
            return self.temporary(f"select {mask} {high}, {type} {one}, {type} {sign}")
        return self.function_call(op, own, like.lanes, values)

    def intrinsic(self, name: str, like: Operand, values: list[str]) -> str:
        type = vector(like.type, like.lanes)
        suffix = f"v{like.lanes}{mangled(TYPES[like.type])}" if like.lanes else mangled(TYPES[like.type])
        return self.call(f"llvm.{name}.{suffix}", type, *((type, value) for value in values))

    def extreme(self, op: str, like: Operand, a: str, b: str) -> str:
        """NaN where either is; of two zeros the second."""
        type, mask = vector(like.type, like.lanes), vector(BOOLEAN, like.lanes)
        first = self.temporary(f"fcmp {'olt' if op == 'minimum' else 'ogt'} {type} {a}, {b}")
        chosen = self.temporary(f"select {mask} {first}, {type} {a}, {type} {b}")
        nan = self.temporary(f"fcmp uno {type} {a}, {a}")
        return self.temporary(f"select {mask} {nan}, {type} {a}, {type} {chosen}")

    def function_call(self, op: str, type: str, lanes: int, values: list[str]) -> str:
        """A vector function of a vector register; of a number, in its first lane."""
        register = self.target.lanes if type == FLOAT32 else self.target.lanes // 2
        if not lanes:
            given = [self.splat(TYPES[type], value, register) for value in values]
            made = self.function_call(op, type, register, given)
            return self.temporary(f"extractelement {vector(type, register)} {made}, i64 0")
        if lanes > register:
            halves = [
                self.function_call(op, type, register, [self.part(value, type, lanes, k, register) for value in values])
                for k in range(0, lanes, register)
            ]
            own, both = vector(type, register), ", ".join(f"i32 {k}" for k in range(lanes))
            return self.temporary(f"shufflevector {own} {halves[0]}, {own} {halves[1]}, <{lanes} x i32> <{both}>")
        own = vector(type, lanes)
        given = ((own, value) for value in values)
        return self.call(called(op, type), own, *given, attributes=" nounwind willreturn memory(none)")

    def part(self, value: str, type: str, lanes: int, first: int, count: int) -> str:
        own, chosen = vector(type, lanes), ", ".join(f"i32 {k}" for k in range(first, first + count))
        return self.temporary(f"shufflevector {own} {value}, {own} poison, <{count} x i32> <{chosen}>")

    def integer(self, op: str, like: Operand, values: list[str]) -> str:
        type, lanes = vector(like.type, like.lanes), like.lanes
        a, b = values[0], values[-1]
        zero = self.constant(0, like)
        if op in ARITHMETIC:
            return self.temporary(f"{op} {type} {a}, {b}")
        if op == "neg":
            return self.temporary(f"sub {type} {zero}, {a}")
        if op == "abs":
            name = f"llvm.abs.{f'v{lanes}' if lanes else ''}{TYPES[like.type]}"
            return self.call(name, type, (type, a), ("i1", "false"))
        if op in ("minimum", "maximum"):
            name = f"llvm.s{op[:3]}.{f'v{lanes}' if lanes else ''}{TYPES[like.type]}"
            return self.call(name, type, (type, a), (type, b))
        if op == "sign":
            low = self.temporary(f"ashr {type} {a}, {self.constant(31 if like.type == INT32 else 63, like)}")
            high = self.temporary(f"icmp sgt {type} {a}, {zero}")
            one = self.constant(1, like)
            return self.temporary(f"select {vector(BOOLEAN, lanes)} {high}, {type} {one}, {type} {low}")
        if op in ("shift_left", "shift_right"):
            return self.shift(op, like, a, b)
        return self.division(op, like, a, b)

    def choose(self, condition: str, type: str, lanes: int, yes: str, no: str) -> str:
        return self.temporary(f"select {vector(BOOLEAN, lanes)} {condition}, {type} {yes}, {type} {no}")

    def shift(self, op: str, like: Operand, a: str, b: str) -> str:
        type, lanes = vector(like.type, like.lanes), like.lanes
        bits = 32 if like.type == INT32 else 64
        far = self.temporary(f"icmp uge {type} {b}, {self.constant(bits, like)}")  # negative ones too
        if op == "shift_right":
            by = self.choose(far, type, lanes, self.constant(bits - 1, like), b)
            return self.temporary(f"ashr {type} {a}, {by}")
        zero = self.constant(0, like)
        shifted = self.temporary(f"shl {type} {a}, {self.choose(far, type, lanes, zero, b)}")
        return self.choose(far, type, lanes, zero, shifted)

    def division(self, op: str, like: Operand, a: str, b: str) -> str:
        """As formulas/pointwise.h: a quotient by 0 is 0, one by -1 wraps around."""
        type, lanes, mask = vector(like.type, like.lanes), like.lanes, vector(BOOLEAN, like.lanes)
        zero, one = self.constant(0, like), self.constant(1, like)
        by_zero = self.temporary(f"icmp eq {type} {b}, {zero}")
        by_minus = self.temporary(f"icmp eq {type} {b}, {self.constant(-1, like)}")
        special = self.temporary(f"or {mask} {by_zero}, {by_minus}")
        safe = self.choose(special, type, lanes, one, b)
        whole = self.quotient(like, a, safe)
        minus = self.temporary(f"sub {type} {zero}, {a}")
        quotient = self.choose(special, type, lanes, self.choose(by_zero, type, lanes, zero, minus), whole)
        product = self.temporary(f"mul {type} {whole}, {safe}")
        rest = self.choose(special, type, lanes, zero, self.temporary(f"sub {type} {a}, {product}"))
        if op == "integer_trunc_divide":
            return quotient
        if op == "integer_fmod":
            return rest
        is_rest = self.temporary(f"icmp ne {type} {rest}, {zero}")
        signs = self.temporary(f"xor {type} {a}, {b}")
        differ = self.temporary(f"icmp slt {type} {signs}, {zero}")
        off = self.temporary(f"and {mask} {is_rest}, {differ}")
        if op == "integer_remainder":
            return self.temporary(f"add {type} {rest}, {self.choose(off, type, lanes, b, zero)}")
        return self.temporary(f"sub {type} {quotient}, {self.choose(off, type, lanes, one, zero)}")

    def quotient(self, like: Operand, a: str, b: str) -> str:
        """Of int32 by way of float64, which is exact and has vectors."""
        type = vector(like.type, like.lanes)
        if like.type != INT32 or not like.lanes:
            return self.temporary(f"sdiv {type} {a}, {b}")
        wide = vector(FLOAT64, like.lanes)
        a, b = (self.temporary(f"sitofp {type} {value} to {wide}") for value in (a, b))
        return self.temporary(f"fptosi {wide} {self.temporary(f'fdiv {wide} {a}, {b}')} to {type}")

    def conversion(self, to: str, operand: Operand) -> str:
        """To a type, or to the values that a narrower kind can hold."""
        value, lanes, own = self.value(operand), operand.lanes, operand.type
        type = vector(own, lanes)
        if to in ("int8", "uint8", "int16", "float16", "bfloat16"):
            if to == "bfloat16":
                bits = self.rounded_bits(value, lanes)
                shifted = self.temporary(f"shl {vector_of('i32', lanes)} {bits}, {splatted('i32 16', lanes)}")
                return self.single_of_bits(shifted, lanes)
            return self.widened(self.narrowed(value, to, lanes), to, lanes)
        if to == BOOLEAN:
            return self.comparison("ne", own, lanes, [value, self.constant(0.0 if own in FLOATING else 0, operand)])
        if to == own:
            return value
        return self.temporary(f"{cast(own, to)} {type} {value} to {vector(to, lanes)}")


def cast(own: str, to: str) -> str:
    if own == BOOLEAN:
        return "uitofp" if to in FLOATING else "zext"
    if own in FLOATING:
        return ("fpext" if own == FLOAT32 else "fptrunc") if to in FLOATING else "fptosi"
    return "sitofp" if to in FLOATING else "sext" if own == INT32 else "trunc"


def vector_of(type: str, lanes: int) -> str:
    return f"<{lanes} x {type}>" if lanes else type


def vector(type: str, lanes: int) -> str:
    return vector_of(TYPES[type], lanes)


def splatted(typed: str, lanes: int) -> str:
    return f"splat ({typed})" if lanes else typed.split()[1]


def splatted_number(value: int, type: str, lanes: int) -> str:
    own = "true" if type == BOOLEAN else str(value)
    return splatted(f"{TYPES[type]} {own}", lanes)


def mangled(type: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16"}.get(type, type)


def number(constant: Constant) -> str:
    value = constant.value
    if constant.type == BOOLEAN:
        return "true" if value else "false"
    if constant.type in FLOATING:
        if constant.type == FLOAT32 and math.isfinite(value):
            value = struct.unpack("f", struct.pack("f", value))[0]
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    return str(value)
