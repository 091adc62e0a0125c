"""A program's operations in LLVM IR."""

from __future__ import annotations

from fourfold.compiler.ir.dtypes import BOOLEAN, FLOAT32, FLOAT64, FLOATING, INT32
from fourfold.compiler.nest.ir.loops import Operand, Ref
from fourfold.compiler.nest.print.llvm_lines import (
    MEMORY,
    TYPES,
    Lines,
    mangled,
    splatted,
    splatted_number,
    vector,
    vector_of,
)

ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "div": "div"}
BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
COMPARISONS = {
    "eq": ("oeq", "eq"), "ne": ("une", "ne"), "lt": ("olt", "slt"),
    "le": ("ole", "sle"), "gt": ("ogt", "sgt"), "ge": ("oge", "sge"),
}  # fmt: skip
INTRINSICS = {
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven", "copysign": "copysign",
}  # fmt: skip
# After a fence: otherwise LLVM rounds in float16, which processors without float16 arithmetic do one number at a time.
ROUNDINGS = ("floor", "ceil", "trunc", "round")


def called(op: str, type: str) -> str:
    """The name of a vector function of cpp/cpu/kernels."""
    return f"fourfold_{op}_{type}"


class Operations(Lines):
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
            if op in ROUNDINGS:
                values = [self.intrinsic("arithmetic.fence", like, values)]
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
        """NaN if either is NaN; of two zeros the second. The last selection is x86's instruction, which returns its
        second operand if one is NaN. Without the fence the store of an accumulator would become a masked one, which is
        slow on some processors."""
        type, mask = vector(like.type, like.lanes), vector(BOOLEAN, like.lanes)
        nan = self.temporary(f"fcmp uno {type} {a}, {a}")
        second = self.temporary(f"select {mask} {nan}, {type} {a}, {type} {b}")
        first = self.temporary(f"fcmp {'olt' if op == 'minimum' else 'ogt'} {type} {a}, {second}")
        chosen = self.temporary(f"select {mask} {first}, {type} {a}, {type} {second}")
        return self.intrinsic("arithmetic.fence", like, [chosen])

    def function_call(self, op: str, type: str, lanes: int, values: list[str]) -> str:
        """Calls a vector function, which takes a register; a number is passed in its first lane."""
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
        """As in formulas/pointwise.h: a quotient by 0 is 0, one by -1 wraps around."""
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
        """A quotient; vectors of int32 use float64, which is exact and has vector instructions."""
        type = vector(like.type, like.lanes)
        if like.type != INT32 or not like.lanes:
            return self.temporary(f"sdiv {type} {a}, {b}")
        wide = vector(FLOAT64, like.lanes)
        a, b = (self.temporary(f"sitofp {type} {value} to {wide}") for value in (a, b))
        return self.temporary(f"fptosi {wide} {self.temporary(f'fdiv {wide} {a}, {b}')} to {type}")

    def conversion(self, to: str, operand: Operand) -> str:
        """Converts to a type, or to the values that a narrower kind can hold."""
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

    # Kinds, and the types that they are computed in.

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

    def single_of_bits(self, bits: str, lanes: int) -> str:
        return self.temporary(f"bitcast {vector_of('i32', lanes)} {bits} to {vector_of('float', lanes)}")

    def rounded_bits(self, value: str, lanes: int) -> str:
        """A bfloat16's bits, by integer arithmetic: the processors' instruction treats subnormal numbers as zero."""
        bits, constant = vector_of("i32", lanes), lambda n: splatted(f"i32 {n}", lanes)
        own = self.temporary(f"bitcast {vector_of('float', lanes)} {value} to {bits}")
        high = self.temporary(f"lshr {bits} {own}, {constant(16)}")
        odd = self.temporary(f"and {bits} {high}, {constant(1)}")
        half = self.temporary(f"add {bits} {odd}, {constant(32767)}")
        rounded = self.temporary(f"lshr {bits} {self.temporary(f'add {bits} {own}, {half}')}, {constant(16)}")
        nan = self.temporary(f"fcmp uno {vector_of('float', lanes)} {value}, {value}")
        return self.temporary(f"select {vector_of('i1', lanes)} {nan}, {bits} {constant(32704)}, {bits} {rounded}")


def cast(own: str, to: str) -> str:
    if own == BOOLEAN:
        return "uitofp" if to in FLOATING else "zext"
    if own in FLOATING:
        return ("fpext" if own == FLOAT32 else "fptrunc") if to in FLOATING else "fptosi"
    return "sitofp" if to in FLOATING else "sext" if own == INT32 else "trunc"
