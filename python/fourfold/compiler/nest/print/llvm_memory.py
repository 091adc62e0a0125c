"""Loads and stores in LLVM IR."""

from __future__ import annotations

from fourfold.compiler.ir.dtypes import INT64
from fourfold.compiler.nest.ir.loops import Constant, Let, Operand, Prefetch, Store, Transpose
from fourfold.compiler.nest.ir.schedule import SIZES
from fourfold.compiler.nest.print.llvm_lines import MEMORY, TYPES, mangled, vector_of
from fourfold.compiler.nest.print.llvm_operations import Operations

TRANSPOSE = "fourfold_transpose_tile"


class Memory(Operations):
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
        elif isinstance(self.left[mask[0].name], Constant):
            loaded = self.load_part(place, kind, self.left[mask[0].name].value, lanes)
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
        if isinstance(stride, Constant) and not mask:
            return self.widened(self.picked(pointer, offset, stride.value, kind, lanes), kind, lanes)
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

    def picked(self, pointer: Operand, offset: Operand, step: int, kind: str, lanes: int) -> str:
        """Loads lanes that are this many elements apart, by shuffles of contiguous vectors. The last vector ends with
        the last lane, because memory may end there."""
        type, last = vector_of(MEMORY[kind], lanes), step * (lanes - 1) + 1 - lanes
        first = self.temporary(f"mul nsw i64 {self.value(offset)}, {step}")
        begins = [*range(0, (step - 1) * lanes, lanes), last]
        vectors: list[tuple[str, list[int]]] = []  # each with the element that each lane holds, counted from the first
        for begin in begins:
            at = self.temporary(f"add nsw i64 {first}, {begin}")
            place = self.temporary(f"getelementptr inbounds {MEMORY[kind]}, ptr {self.value(pointer)}, i64 {at}")
            loaded = self.temporary(f"load {type}, ptr {place}, align {SIZES[kind]}")
            vectors.append((loaded, list(range(begin, begin + lanes))))
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=False)
            odd = vectors[len(vectors) & ~1 :]
            vectors = [self.picked_of(a, b, step, lanes, type) for a, b in pairs] + odd
        return vectors[0][0]

    def picked_of(
        self, a: tuple[str, list[int]], b: tuple[str, list[int]], step: int, lanes: int, type: str
    ) -> tuple[str, list[int]]:
        """The wanted elements that two vectors hold, each in its lane."""
        held = [*a[1], *b[1]]
        wanted = [step * lane for lane in range(lanes)]
        chosen = [held.index(element) if element in held else -1 for element in wanted]
        mask = ", ".join("i32 poison" if place < 0 else f"i32 {place}" for place in chosen)
        vector = self.temporary(f"shufflevector {type} {a[0]}, {type} {b[0]}, <{lanes} x i32> <{mask}>")
        return vector, [-1 if place < 0 else held[place] for place in chosen]

    def pointers(self, pointer: Operand, offset: Operand, stride: Operand, kind: str, lanes: int) -> str:
        """The addresses of lanes that are a stride apart."""
        first = self.temporary(f"mul nsw i64 {self.value(offset)}, {self.value(stride)}")
        place = self.temporary(f"getelementptr inbounds {MEMORY[kind]}, ptr {self.value(pointer)}, i64 {first}")
        strides = self.splat("i64", self.value(stride), lanes)
        numbers = f"<{', '.join(f'i64 {k}' for k in range(lanes))}>"
        offsets = self.temporary(f"mul nsw <{lanes} x i64> {strides}, {numbers}")
        return self.temporary(f"getelementptr inbounds {MEMORY[kind]}, ptr {place}, <{lanes} x i64> {offsets}")

    def copy(self, to: str, source: str, mask: Operand, kind: str, times: int = 1) -> None:
        """Copies as many elements as a mask has set lanes, or a multiple of them."""
        left = self.index("min", self.value(self.left[mask.name]), str(mask.lanes))
        size = self.temporary(f"mul nsw i64 {left}, {SIZES[kind] * times}")
        operands = (("ptr", to), ("ptr", source), ("i64", size), ("i1", "false"))
        self.call("llvm.memcpy.p0.p0.i64", "void", *operands)

    def print_store(self, store: Store) -> None:
        lanes, kind = store.value.lanes, store.kind
        type, size = vector_of(MEMORY[kind], lanes), SIZES[kind]
        value = self.narrowed(self.value(store.value), kind, lanes)
        if store.stride is not None:
            return self.scatter(store, value)
        place = self.place(store.pointer, store.offset, kind)
        if store.mask is None:
            streamed = (
                f"align {min(lanes * size, 64)}, !nontemporal !{{i32 1}}" if store.is_streamed else f"align {size}"
            )
            self.emit(f"store {type} {value}, ptr {place}, {streamed}")
            self.streams |= store.is_streamed
        elif isinstance(self.left[store.mask.name], Constant):
            self.store_part(value, place, kind, self.left[store.mask.name].value, lanes)
        elif size < 4 and not self.target.has_byte_masks:
            memory = self.alloca(type, 64)
            self.emit(f"store {type} {value}, ptr {memory}, align 64")
            self.copy(place, memory, store.mask, kind)
        else:
            mask = (vector_of("i1", lanes), self.value(store.mask))
            name = f"llvm.masked.store.v{lanes}{mangled(MEMORY[kind])}.p0"
            self.call(name, "void", (type, value), (f"ptr align {size}", place), mask)
        return None

    def load_part(self, place: str, kind: str, count: int, lanes: int) -> str:
        """Loads the first lanes; the others are zero. Without masks, two loads overlap."""
        memory, type = MEMORY[kind], vector_of(MEMORY[kind], lanes)
        if SIZES[kind] >= 4 or self.target.has_byte_masks:
            mask = (vector_of("i1", lanes), first_lanes(count, lanes))
            name = f"llvm.masked.load.v{lanes}{mangled(memory)}.p0"
            return self.call(name, type, (f"ptr align {SIZES[kind]}", place), mask, (type, "zeroinitializer"))
        half = 1 << (count.bit_length() - 1)
        parts = [self.temporary(f"load <{half} x {memory}>, ptr {place}, align {SIZES[kind]}")]
        if count > half:
            at = self.temporary(f"getelementptr inbounds {memory}, ptr {place}, i64 {count - half}")
            parts.append(self.temporary(f"load <{half} x {memory}>, ptr {at}, align {SIZES[kind]}"))
        held = [*range(half), *range(count - half, count)]
        chosen = ", ".join(f"i32 {held.index(k) if k < count else 'poison'}" for k in range(lanes))
        own = f"<{half} x {memory}>"
        loaded = self.temporary(f"shufflevector {own} {parts[0]}, {own} {parts[-1]}, <{lanes} x i32> <{chosen}>")
        own_or_zero = ", ".join(f"i32 {k if k < count else lanes}" for k in range(lanes))
        return self.temporary(f"shufflevector {type} {loaded}, {type} zeroinitializer, <{lanes} x i32> <{own_or_zero}>")

    def store_part(self, value: str, place: str, kind: str, count: int, lanes: int) -> None:
        """Stores the first lanes. Two stores overlap where masks are slow."""
        memory, type = MEMORY[kind], vector_of(MEMORY[kind], lanes)
        if self.target.has_byte_masks:
            mask = (vector_of("i1", lanes), first_lanes(count, lanes))
            name = f"llvm.masked.store.v{lanes}{mangled(memory)}.p0"
            self.call(name, "void", (type, value), (f"ptr align {SIZES[kind]}", place), mask)
            return
        half = 1 << (count.bit_length() - 1)
        for first in dict.fromkeys((0, count - half)):
            chosen = ", ".join(f"i32 {k}" for k in range(first, first + half))
            part = self.temporary(f"shufflevector {type} {value}, {type} poison, <{half} x i32> <{chosen}>")
            at = self.temporary(f"getelementptr inbounds {memory}, ptr {place}, i64 {first}")
            self.emit(f"store <{half} x {memory}> {part}, ptr {at}, align {SIZES[kind]}")

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

    def print_prefetch(self, ahead: Prefetch) -> None:
        offset = self.value(ahead.offset)
        place = self.temporary(f"getelementptr {MEMORY[ahead.kind]}, ptr {self.value(ahead.pointer)}, i64 {offset}")
        read, all_levels, data = ("i32", "0"), ("i32", "3"), ("i32", "1")
        self.call("llvm.prefetch.p0", "void", ("ptr", place), read, all_levels, data)

    def print_transpose(self, statement: Transpose) -> None:
        operands = (Constant(SIZES[statement.kind], INT64), statement.source, statement.source_step)
        operands += (statement.to, statement.to_step, statement.rows, statement.columns)
        typed = ((TYPES[operand.type], self.value(operand)) for operand in operands)
        self.call(TRANSPOSE, "void", *typed, attributes=" nounwind")


def first_lanes(count: int, lanes: int) -> str:
    return f"<{', '.join(f'i1 {str(k < count).lower()}' for k in range(lanes))}>"
