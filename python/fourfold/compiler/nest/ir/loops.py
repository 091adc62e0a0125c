"""A loop nest as data: functions of statements over numbers, vectors and addresses, independent of the target.

Every value is assigned once, except variables. Vectors have as many lanes as a float32 vector of the target, whatever
their type."""

from __future__ import annotations

from dataclasses import dataclass, field

from fourfold.compiler.ir.dtypes import INT64

POINTER = "pointer"
INDEX = "index"  # the type of indices in grids: as wide as the layout needs


@dataclass(frozen=True, slots=True)
class Ref:
    """A value by its name. lanes: 0 for a number or an address."""

    name: str
    type: str
    lanes: int = 0


@dataclass(frozen=True, slots=True)
class Constant:
    value: bool | int | float
    type: str
    lanes: int = 0


Operand = Ref | Constant


@dataclass(frozen=True, slots=True)
class Let:
    """One operation, a program's (cpp/program/operations.h) or one of these:

    argument: the call's argument of that index (attribute), an integer or an address
    + - * / % min <: on indices, int64
    advance: an address moved by a number of elements of a kind (attribute)
    load: a number or a vector of a kind (attribute) at an address and an offset; a third operand is a mask of the lanes
        to load
    load_strided: likewise; the last operand is the distance between lanes, in elements
    load_column: one column of as many rows as there are lanes, at the address of the first row's first column, the
        row's index, the distance between rows, and perhaps a mask; the attribute is (kind, column, columns)
    splat: a vector of one number
    mask: the first lanes, as many as the operand
    select: the whole second or third operand, by a scalar boolean
    fold: a reduction (attribute) of a vector's lanes, by halves, in the result's type
    fold_rows: that of as many vectors as there are lanes, one after another at an address; the attribute is the
        reduction and the vectors' type
    get: a variable's value

    and, in grids, whose threads run the same function:

    thread, block, blocks: the thread's index in its block, the block's index, and the number of blocks
    exchange: the value of another of 32 lanes, whose index differs in one bit (attribute)
    both: the conjunction of two conditions
    number: the call's argument of that index (attribute), in the result's type
    shared: the address in the block's shared memory at an offset in bytes (attribute)"""

    result: Ref
    op: str
    operands: tuple[Operand, ...] = ()
    attribute: object = None


@dataclass(frozen=True, slots=True)
class Store:
    """Stores a number or a vector at an address and an offset, converted to a kind; with a mask, only its lanes.
    is_streamed: a non-temporal store; the address is a multiple of the vector's bytes, or of 64 if it has more."""

    value: Operand
    pointer: Ref
    offset: Operand
    kind: str
    mask: Ref | None = None
    stride: Operand | None = None
    is_streamed: bool = False


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Stores rows, each with one element of every column's vector, at the address of the first row's first column, the
    row's index, and the distance between rows; with a mask, as many rows as it has set lanes."""

    columns: tuple[Operand, ...]
    pointer: Ref
    row: Operand
    stride: Operand
    kind: str
    mask: Ref | None = None

    @property
    def is_dense(self) -> bool:
        return self.stride == Constant(len(self.columns), INT64)


@dataclass(frozen=True, slots=True)
class Transpose:
    """Writes the transpose of a matrix of a kind: to[r * to_step + c] = source[c * source_step + r]."""

    to: Ref
    to_step: Operand
    source: Ref
    source_step: Operand
    rows: Operand
    columns: Operand
    kind: str


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Loads the cache line of an address and an offset, which may lie behind the tensor, ahead of its use."""

    pointer: Ref
    offset: Operand
    kind: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable and its initial value."""

    result: Ref
    initial: Operand


@dataclass(frozen=True, slots=True)
class Assign:
    variable: Ref
    value: Operand


@dataclass(frozen=True, slots=True)
class Loop:
    """index from begin up to end. The step may be a value of the body."""

    index: Ref
    begin: Operand
    end: Operand
    step: Operand
    body: list


@dataclass(frozen=True, slots=True)
class When:
    condition: Ref
    body: list


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier of a block's threads, after which all of them see what each wrote to shared memory."""


Statement = Let | Store | StoreRows | Transpose | Prefetch | Variable | Assign | Loop | When | Barrier


def operands(statement: Statement) -> tuple[Operand | None, ...]:
    """The operands that a statement reads."""
    if isinstance(statement, Let):
        return statement.operands
    if isinstance(statement, Store):
        return statement.value, statement.pointer, statement.offset, statement.mask, statement.stride
    if isinstance(statement, StoreRows):
        return *statement.columns, statement.pointer, statement.row, statement.stride, statement.mask
    if isinstance(statement, Transpose):
        to, source = (statement.to, statement.to_step), (statement.source, statement.source_step)
        return *to, *source, statement.rows, statement.columns
    if isinstance(statement, Prefetch):
        return statement.pointer, statement.offset
    if isinstance(statement, Variable):
        return (statement.initial,)
    if isinstance(statement, Barrier):
        return ()
    if isinstance(statement, Assign):
        return (statement.value,)
    return (statement.begin, statement.end) if isinstance(statement, Loop) else (statement.condition,)


def assigned(body: list[Statement]) -> set[str]:
    """The names of the variables that a body's statements assign."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, Assign):
            found.add(statement.variable.name)
        elif isinstance(statement, (Loop, When)):
            found |= assigned(statement.body)
    return found


def chooses(ref: Ref, body: list[Statement]) -> bool:
    """Whether a value's only use in a body is to choose between two vectors."""
    lets = (statement for statement in body if isinstance(statement, Let))
    return any(let.op == "where" and let.operands[0] == ref and ref not in let.operands[1:] for let in lets)


@dataclass(slots=True)
class Function:
    """Called with begin and end, the thread's range of the work that threads split; the call's arguments; and the
    thread's scratch memory."""

    name: str
    body: list[Statement] = field(default_factory=list)


@dataclass(slots=True)
class Kernel(Function):
    """A function that every thread of a grid runs. threads: of a block; shared: bytes of the block's shared memory."""

    threads: int = 256
    shared: int = 0


BEGIN, END = Ref("begin", INT64), Ref("end", INT64)
SCRATCH = Ref("scratch", POINTER)


@dataclass(slots=True)
class Nest:
    """functions: None for those with nothing to do. bytes, bytes_of_column, bytes_of_panel: of scratch memory;
    sums: how many reductions have partial results, if threads split rows. cpp/cpu/program/loops.cpp calls them."""

    functions: list[Function | None]
    lanes: int
    bytes: int = 0
    bytes_of_column: int = 0
    bytes_of_panel: int = 0
    sums: int = 0


@dataclass(slots=True)
class Grid:
    """The kernels of a call, launched one after the other. numbers: how many integers a call passes; tensors: the kind
    of each tensor that it passes, inputs first, then outputs, then memory for results that kernels pass to the next
    one."""

    kernels: list[Kernel]
    lanes: int
    is_wide: bool
    numbers: int
    tensors: tuple[str, ...]


class Writer:
    """Appends statements to the body that is being written."""

    def __init__(self, lanes: int, index_type: str = INT64):
        self.lanes = lanes
        self.index_type = index_type
        self.body: list[Statement] = []
        self.count = 0

    def name(self, base: str) -> str:
        """A unique name; readable printers omit the number if they can."""
        self.count += 1
        return f"{base}.{self.count}"

    def let(
        self, op: str, type: str, *operands: Operand, lanes: int = 0, attribute: object = None, name: str = "t"
    ) -> Ref:
        result = Ref(self.name(name), type, lanes)
        self.body.append(Let(result, op, operands, attribute))
        return result

    def index(self, op: str, a: Operand | int, b: Operand | int, name: str = "i") -> Operand:
        """An operation on indices; folds constants."""
        type = self.index_type
        a, b = (Constant(x, type) if isinstance(x, int) else x for x in (a, b))
        if isinstance(a, Constant) and isinstance(b, Constant) and op in "+-*":
            return Constant({"+": a.value + b.value, "-": a.value - b.value, "*": a.value * b.value}[op], type)
        zero, one = Constant(0, type), Constant(1, type)
        if op == "+" and zero in (a, b):
            return b if a == zero else a
        if op == "-" and b == zero:
            return a
        if op == "*" and zero in (a, b):
            return zero
        if op == "*" and one in (a, b):
            return b if a == one else a
        return self.let(op, type, a, b, name=name)

    def variable(self, type: str, initial: Operand, lanes: int = 0, name: str = "sum") -> Ref:
        result = Ref(self.name(name), type, lanes)
        self.body.append(Variable(result, initial))
        return result

    def get(self, variable: Ref) -> Ref:
        return self.let("get", variable.type, variable, lanes=variable.lanes)

    def assign(self, variable: Ref, value: Operand) -> None:
        self.body.append(Assign(variable, value))

    def loop(self, begin: Operand | int, end: Operand, step: Operand | int, name: str = "k") -> Body:
        begin, step = (Constant(x, self.index_type) if isinstance(x, int) else x for x in (begin, step))
        return Body(self, Loop(Ref(self.name(name), self.index_type), begin, end, step, []))

    def when(self, condition: Ref) -> Body:
        return Body(self, When(condition, []))


class Body:
    """The body of a statement, written within a with block."""

    def __init__(self, writer: Writer, statement: Loop | When):
        self.writer, self.statement = writer, statement

    def __enter__(self) -> Ref:
        self.outer = self.writer.body
        self.outer.append(self.statement)
        self.writer.body = self.statement.body
        return self.statement.index if isinstance(self.statement, Loop) else self.statement.condition

    def __exit__(self, *error: object) -> None:
        self.writer.body = self.outer

    def step(self, step: Operand) -> None:
        """Sets a step that the body computes."""
        index = next(k for k, statement in enumerate(self.outer) if statement is self.statement)
        old = self.statement
        self.outer[index] = self.statement = Loop(old.index, old.begin, old.end, step, old.body)
