"""Prints a nest as readable C++; the same nest runs as LLVM IR.

``prelude.h`` defines what the functions call. A ``Dialect`` has the syntax of types, numbers, loads, stores and loops;
those of other languages override what differs."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from fourfold.compiler.ir.dtypes import BOOLEAN, FLOATING, INT64
from fourfold.compiler.nest.ir.loops import (
    POINTER,
    SCRATCH,
    Assign,
    Constant,
    Function,
    Let,
    Loop,
    Nest,
    Operand,
    Prefetch,
    Ref,
    Statement,
    Store,
    StoreRows,
    Transpose,
    Variable,
    When,
    assigned,
    chooses,
    operands,
)
from fourfold.compiler.nest.print.dialect import (
    ATOM,
    BINARY,
    CHOICE,
    COMPARISONS,
    RANGES,
    UNARY,
    Address,
    Dialect,
    Expression,
    Scope,
    call,
    elementary,
    reads,
)

LONGEST = 90  # of an expression without a name
# Operations whose results always get a variable.
NAMED = frozenset({"load", "load_strided", "load_column", "fold_rows", "argument", "mask", "splat"})


def print_nest(nest: Nest, dialect: Dialect | None = None) -> str:
    """The functions of a nest."""
    return "\n".join(printer.text() for printer in printers(nest, dialect or Dialect(nest.lanes)))


def print_file(nests: dict[str, Nest]) -> str:
    """A whole file: each nest, all of one number of lanes, in a namespace of that name. The variables through which the
    library's elementary functions are called are exported, so that their addresses can be filled in."""
    lanes = next(iter(nests.values())).lanes
    dialect = Dialect(lanes)
    texts, called = [], set()
    for name, nest in nests.items():
        for printer in printers(nest, dialect):
            texts += [f"namespace {name} {{", printer.text(), f"}}  // namespace {name}\n"]
            called |= printer.called
    declared = "\n".join(dialect.declaration(*function) for function in sorted(called))
    exported = f'extern "C" {{\n{declared}\n}}\n'
    return "\n".join([dialect.prelude(), "namespace fourfold {\n", exported, *texts, "}  // namespace fourfold\n"])


def printers(nest: Nest, dialect: Dialect) -> Iterator[Printer]:
    for function in nest.functions:
        if function is not None:
            printer = Printer(function, dialect)
            printer.print_all()
            yield printer


class Printer:
    def __init__(self, function: Function, dialect: Dialect):
        self.function, self.dialect = function, dialect
        self.lines: list[str] = []
        self.names: dict[str, str] = {}  # by the name in the nest
        self.kinds: dict[str, str] = {SCRATCH.name: "uint8"}  # the kind of the elements at an address
        self.left: Counter[str] = Counter()  # remaining uses of waiting expressions
        self.inlined: dict[str, Expression] = {}  # written wherever they are used: k + 8
        self.scopes = [Scope(set(dialect.reserved))]
        self.called: set[tuple[str, str]] = set()
        self.uses: Counter[str] = Counter()
        self.places: dict[str, set[int]] = {}  # the bodies that use it
        self.live: set[str] = set()  # variables that are read
        self.count_all()

    def text(self) -> str:
        about = RANGES[self.function.name.partition("_")[0]]
        return "\n".join([f"// {about}", self.dialect.head(self.function), *self.lines, "}", ""])

    def print_all(self) -> None:
        self.print(self.function.body)

    def count_all(self) -> None:
        """Counts the uses of each value by live statements."""
        before = None
        while before != self.live:
            before = set(self.live)
            self.uses.clear()
            self.places.clear()
            self.count(self.function.body)

    def count(self, body: list[Statement]) -> None:
        for statement in reversed(body):
            if not self.is_live(statement):
                continue
            given = operands(statement)
            if isinstance(statement, Loop) and isinstance(statement.step, Ref):
                given += (statement.step, statement.step)  # it has a name: the loop's last statement
            if isinstance(statement, (Loop, When)):
                self.count(statement.body)
            if isinstance(statement, Let) and statement.op == "get":
                self.live.add(given[0].name)
            for operand in given:
                if isinstance(operand, Ref):
                    self.uses[operand.name] += 1
                    self.places.setdefault(operand.name, set()).add(id(body))

    def is_live(self, statement: Statement) -> bool:
        if isinstance(statement, Let):
            return self.uses[statement.result.name] > 0
        if isinstance(statement, (Assign, Variable)):
            variable = statement.variable if isinstance(statement, Assign) else statement.result
            return variable.name in self.live
        return True

    # Lines and names.

    def emit(self, text: str) -> None:
        self.lines.append(f"{'  ' * len(self.scopes)}{text}")

    def name(self, ref: Ref) -> str:
        base = re.sub(r"\W", "_", ref.name.rpartition(".")[0] or ref.name)
        known = set().union(*(scope.names for scope in self.scopes))
        reserved = base in self.dialect.reserved
        tried = (base if k == 1 and not reserved else f"{base}_{k}" for k in itertools.count(1))
        name = self.names[ref.name] = next(name for name in tried if name not in known)
        self.scopes[-1].names.add(name)
        return name

    def declare(self, ref: Ref, value: Expression) -> None:
        is_pointer = ref.type == POINTER
        type = self.dialect.pointer(self.kinds[ref.name]) if is_pointer else self.dialect.type(ref.type, ref.lanes)
        self.emit(f"{type} {self.name(ref)} = {value.code};")

    def settle(self, variables: set[str]) -> None:
        """Declares waiting expressions that read variables about to change."""
        for scope in self.scopes:
            for name, (ref, value) in list(scope.waiting.items()):
                if value.reads & variables:
                    del scope.waiting[name]
                    self.declare(ref, value)

    # Operands.

    def value(self, operand: Operand) -> Expression:
        if isinstance(operand, Constant):
            text = self.dialect.number(operand)
            if operand.lanes:
                return Expression(self.dialect.splat(text))
            return Expression(text, UNARY if text.startswith("-") else ATOM)
        if operand.name in self.inlined:
            return self.inlined[operand.name]
        waiting = self.scopes[-1].waiting.get(operand.name)
        if waiting is None:
            return Expression(self.names.get(operand.name, operand.name))
        self.left[operand.name] -= 1
        if self.left[operand.name] == 0:
            del self.scopes[-1].waiting[operand.name]
        return waiting[1]

    def index(self, operand: Operand) -> Expression:
        """An index; its constants have no type."""
        return Expression(str(operand.value)) if isinstance(operand, Constant) else self.value(operand)

    def beside(self, operand: Operand, other: Operand) -> Expression:
        """An operand of an operator, which takes a number instead of a splat."""
        if isinstance(operand, Constant) and operand.lanes and isinstance(other, Ref):
            return self.value(Constant(operand.value, operand.type))
        return self.value(operand)

    def place(self, pointer: Ref, offset: Operand, kind: str, stride: Expression | None = None) -> Address:
        base = self.value(pointer)
        if self.kinds[pointer.name] != kind:
            base = Expression(f"({self.dialect.pointer(kind)}){base.within(UNARY)}", UNARY, base.reads)
        if isinstance(offset, Constant) and offset.value == 0:
            return Address(base, None)
        index = self.index(offset)
        if stride is not None:
            index = Expression(f"{index.within(13)} * {stride.within(14)}", 13, index.reads | stride.reads)
        return Address(base, index)

    # Statements.

    def print(self, body: list[Statement]) -> None:
        for statement in filter(self.is_live, body):
            getattr(self, f"print_{type(statement).__name__.lower()}")(statement, body)

    def print_variable(self, statement: Variable, body: list[Statement]) -> None:
        self.declare(statement.result, self.value(statement.initial))

    def print_assign(self, statement: Assign, body: list[Statement]) -> None:
        value, variable = self.value(statement.value), self.names[statement.variable.name]
        self.settle({variable})
        self.emit(f"{variable} = {value.code};")

    def print_loop(self, loop: Loop, body: list[Statement]) -> None:
        self.settle({self.names.get(name, "") for name in assigned(loop.body)})
        begin, end = self.index(loop.begin).code, self.index(loop.end)
        own = {statement.result.name for statement in loop.body if isinstance(statement, Let)}
        is_own = isinstance(loop.step, Ref) and loop.step.name in own
        step = None if is_own else self.index(loop.step).code
        self.scopes.append(Scope(set()))
        index = self.name(loop.index)
        head = self.dialect.loop(index, begin, end.within(10), step)
        self.lines.append(f"{'  ' * (len(self.scopes) - 1)}{head}")
        self.print(loop.body)
        if is_own:
            self.emit(f"{index} += {self.index(loop.step).code};")
        self.close()

    def print_when(self, when: When, body: list[Statement]) -> None:
        self.settle({self.names.get(name, "") for name in assigned(when.body)})
        self.emit(f"if ({self.value(when.condition).code}) {{")
        self.scopes.append(Scope(set()))
        self.print(when.body)
        self.close()

    def close(self) -> None:
        self.scopes.pop()
        self.emit("}")

    def print_store(self, store: Store, body: list[Statement]) -> None:
        value, lanes = self.value(store.value).code, store.value.lanes
        mask = None if store.mask is None else self.value(store.mask).code
        stride = None if store.stride is None else self.index(store.stride)
        place = self.place(store.pointer, store.offset, store.kind, stride)
        if store.is_streamed:
            return self.emit(self.dialect.stream(place, value))
        return self.emit(self.dialect.store(place, value, lanes, mask, stride and stride.code))

    def print_storerows(self, store: StoreRows, body: list[Statement]) -> None:
        mask = None if store.mask is None else self.value(store.mask).code
        columns = [(self.value(vector).code, vector.lanes) for vector in store.columns]
        stride = self.index(store.stride)
        first = self.place(store.pointer, store.row, store.kind, stride)
        for column, (value, lanes) in enumerate(columns):
            self.emit(self.dialect.store(first.moved(column), value, lanes, mask, stride.code))

    def print_prefetch(self, ahead: Prefetch, body: list[Statement]) -> None:
        self.emit(f"{call('prefetch', self.place(ahead.pointer, ahead.offset, ahead.kind).address.code)};")

    def print_transpose(self, statement: Transpose, body: list[Statement]) -> None:
        zero, kind = Constant(0, INT64), statement.kind
        to, source = (self.place(at, zero, kind).base.code for at in (statement.to, statement.source))
        steps = (statement.to_step, statement.source_step, statement.rows, statement.columns)
        to_step, source_step, rows, columns = (self.index(operand).code for operand in steps)
        self.emit(self.dialect.transpose(to, to_step, source, source_step, rows, columns))

    def print_let(self, let: Let, body: list[Statement]) -> None:
        ref, op = let.result, let.op
        if op == "argument" and self.is_known(let):
            return
        special = getattr(self, f"let_{op}", None)
        value = special(let) if special is not None else self.operation(op, let.operands)
        if op == "+" and isinstance(let.operands[1], Constant) and not value.reads:
            self.inlined[ref.name] = value
            return
        is_within = self.places[ref.name] == {id(body)} and (self.uses[ref.name] == 1 or op == "get")
        is_comparison = op in COMPARISONS and ref.lanes > 0 and not chooses(ref, body)
        if is_within and op not in NAMED and not is_comparison and len(value.code) <= LONGEST:
            self.scopes[-1].waiting[ref.name] = ref, value
            self.left[ref.name] = self.uses[ref.name]
        else:
            self.declare(ref, value)
        if op == "argument":
            self.scopes[-1].arguments.append((let.attribute, self.names[ref.name]))

    def is_known(self, let: Let) -> bool:
        """Whether the same argument already has a name in this scope."""
        found = next((name for scope in self.scopes for a, name in scope.arguments if a == let.attribute), None)
        if found is not None:
            self.names[let.result.name], self.kinds[let.result.name] = found, let.attribute[1]
        return found is not None

    # Operations that only nests have.

    def let_argument(self, let: Let) -> Expression:
        index, kind = let.attribute
        if let.result.type != POINTER:
            return Expression(f"arguments[{index}]")
        self.kinds[let.result.name] = kind
        return Expression(f"({self.dialect.pointer(kind)})arguments[{index}]", UNARY)

    def let_advance(self, let: Let) -> Expression:
        self.kinds[let.result.name] = let.attribute
        return self.place(*let.operands, let.attribute).address

    def let_get(self, let: Let) -> Expression:
        name = self.names[let.operands[0].name]
        return Expression(name, ATOM, frozenset({name}))

    def let_splat(self, let: Let) -> Expression:
        value = self.value(let.operands[0])
        return Expression(self.dialect.splat(value.code), ATOM, value.reads)

    def let_mask(self, let: Let) -> Expression:
        return self.call("first", let.operands)

    def let_load(self, let: Let) -> Expression:
        pointer, offset, *mask = let.operands
        given = self.value(mask[0]).code if mask else None
        return self.dialect.load(self.place(pointer, offset, let.attribute), let.result.lanes, given, None)

    def let_load_strided(self, let: Let) -> Expression:
        pointer, offset, *mask, by = let.operands
        given, stride = self.value(mask[0]).code if mask else None, self.index(by)
        place = self.place(pointer, offset, let.attribute, stride)
        return self.dialect.load(place, let.result.lanes, given, stride.code)

    def let_load_column(self, let: Let) -> Expression:
        pointer, row, by, *mask = let.operands
        kind, column, _ = let.attribute
        given, stride = self.value(mask[0]).code if mask else None, self.index(by)
        place = self.place(pointer, row, kind, stride)
        return self.dialect.load(place.moved(column), let.result.lanes, given, stride.code)

    def let_fold_rows(self, let: Let) -> Expression:
        op, type = let.attribute
        pointer = self.value(let.operands[0])
        return Expression(
            f"fold_rows<{type}>({pointer.code}, [](auto v) {{ return fold_{op}(v); }})", ATOM, pointer.reads
        )

    def let_fold(self, let: Let) -> Expression:
        return self.call(f"fold_{let.attribute}", let.operands)

    def let_select(self, let: Let) -> Expression:
        condition, *chosen = map(self.value, let.operands)
        return self.choice(condition, *chosen)

    def let_where(self, let: Let) -> Expression:
        condition, *chosen = let.operands
        if condition.lanes:
            return self.call("where", let.operands)
        return self.choice(self.value(condition), *map(self.index if let.result.type == INT64 else self.value, chosen))

    def choice(self, condition: Expression, yes: Expression, no: Expression) -> Expression:
        code = f"{condition.within(CHOICE + 1)} ? {yes.within(CHOICE + 1)} : {no.within(CHOICE)}"
        return Expression(code, CHOICE, condition.reads | yes.reads | no.reads)

    # A program's operations.

    def operation(self, op: str, given: Sequence[Operand]) -> Expression:
        if op in BINARY:
            return self.binary(op, *given)
        if op == "min":
            parts = [self.index(operand) for operand in given]
            return Expression(call("min", *(part.code for part in parts)), ATOM, reads(parts))
        if op in ("neg", "bitwise_not"):
            value = self.value(given[0])
            sign = "-" if op == "neg" else "!" if given[0].type == BOOLEAN and not given[0].lanes else "~"
            return Expression(f"{sign}{value.within(ATOM)}", UNARY, value.reads)
        if op == "reciprocal":
            one, value = Constant(1.0, given[0].type), self.value(given[0])
            return Expression(f"{self.dialect.number(one)} / {value.within(14)}", 13, value.reads)
        if op in elementary() and given[0].type in FLOATING:
            self.called.add((op, given[0].type))
            return self.call(self.dialect.called(op, given[0].type), given)
        return self.call(op, given)

    def binary(self, op: str, a: Operand, b: Operand) -> Expression:
        sign, binding = BINARY[op]
        if op in ("+", "-", "*", "/", "%", "<", "equal"):
            left, right = self.index(a), self.index(b)
        else:
            left, right = self.beside(a, b), self.beside(b, a)
        # An operator on the right that binds as tightly needs parentheses, as sums of a program are not associative.
        code = f"{left.within(binding)} {sign} {right.within(binding if op == '+' else binding + 1)}"
        return Expression(code, binding, left.reads | right.reads)

    def call(self, name: str, given: Sequence[Operand]) -> Expression:
        parts = [self.value(operand) for operand in given]
        return Expression(call(name, *(part.code for part in parts)), ATOM, reads(parts))
