"""Rows in LLVM IR: the columns of rows that lie across the lanes, loaded and stored by shuffles in registers, and the
reductions of many rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fourfold.compiler.ir.dtypes import BOOLEAN, INT32, INT64
from fourfold.compiler.nest.ir.loops import Constant, Let, Operand, Ref, StoreRows
from fourfold.compiler.nest.ir.schedule import COMBINED, SIZES
from fourfold.compiler.nest.print.llvm_lines import MEMORY, vector, vector_of
from fourfold.compiler.nest.print.llvm_memory import Memory

QUARTER = 4  # elements of 32 bits that one instruction shuffles freely
Shuffle = Callable[[str, str, "list[int]"], str]
WIDE = 4  # columns of dense rows up to which shuffles of all their vectors together are fast
WIDE_BYTES = 8  # likewise of stored bytes, which tiles would widen


class Rows(Memory):
    def let_load_column(self, let: Let) -> str:
        pointer, row, stride, *mask = let.operands
        kind, column, columns = let.attribute
        key = (pointer, row, stride, kind, let.result.type)
        if key not in self.rows_loaded:
            is_wide = columns <= WIDE and stride == Constant(columns, INT64)
            load = self.load_wide if is_wide else self.load_tiles
            self.rows_loaded[key] = load(let, mask)
        return self.rows_loaded[key][column]

    def load_wide(self, let: Let, mask: Sequence[Operand]) -> list[str]:
        """All rows at once, of which shuffles pick each column."""
        pointer, row, stride, *_ = let.operands
        kind, _, columns = let.attribute
        lanes = let.result.lanes
        place, type = self.row_at(pointer, self.value(row), stride, kind), vector_of(MEMORY[kind], lanes * columns)
        if mask:
            memory = self.alloca(type, 64)
            self.copy(memory, place, mask[0], kind, columns)
            place = memory
        wide = self.temporary(f"load {type}, ptr {place}, align {SIZES[kind]}")
        found = []
        for column in range(columns):
            chosen = ", ".join(f"i32 {lane * columns + column}" for lane in range(lanes))
            loaded = self.temporary(f"shufflevector {type} {wide}, {type} poison, <{lanes} x i32> <{chosen}>")
            found.append(self.widened(loaded, kind, lanes))
        return found

    def load_tiles(self, let: Let, mask: Sequence[Operand]) -> list[str]:
        """As many columns as there are lanes at a time, which are transposed. Rows behind the mask are its last one.
        Whole vectors are read where those behind a row lie in the next rows: masked loads take twice as long on some
        processors."""
        pointer, row, stride, *_ = let.operands
        kind, _, columns = let.attribute
        lanes, places = let.result.lanes, []
        of_group = lanes * columns if not mask and stride == Constant(columns, INT64) else 0
        for k in range(lanes):
            offset = str(k)
            if mask:
                last = self.index("-", self.value(self.left[mask[0].name]), "1")
                offset = self.index("min", offset, last)
            places.append(self.row_at(pointer, self.index("+", self.value(row), offset), stride, kind))
        found: list[str] = []
        for first in range(0, columns, lanes):
            count, rows = min(lanes, columns - first), []
            for k, place in enumerate(places):
                at = self.temporary(f"getelementptr inbounds {MEMORY[kind]}, ptr {place}, i64 {first}")
                if count == lanes or k * columns + first + lanes <= of_group:
                    loaded = self.temporary(f"load {vector_of(MEMORY[kind], lanes)}, ptr {at}, align {SIZES[kind]}")
                else:
                    loaded = self.load_part(at, kind, count, lanes)
                rows.append(self.widened(loaded, kind, lanes))
            found += self.transposed(rows, let.result.type)[:count]
        return found

    def row_at(self, pointer: Operand, row: str, stride: Operand, kind: str) -> str:
        offset = self.index("*", row, self.value(stride))
        return self.temporary(f"getelementptr inbounds {MEMORY[kind]}, ptr {self.value(pointer)}, i64 {offset}")

    def transposed(self, rows: list[str], type: str) -> list[str]:
        lanes = len(rows)
        if type != BOOLEAN:
            return self.transpose(rows, vector(type, lanes))
        bits, one = vector(INT32, lanes), vector(BOOLEAN, lanes)
        wide = [row if row == "poison" else self.temporary(f"zext {one} {row} to {bits}") for row in rows]
        return [self.temporary(f"trunc {bits} {column} to {one}") for column in self.transpose(wide, bits)]

    def transpose(self, rows: list[str], own: str) -> list[str]:
        """The transpose of a square of vectors, by as many shuffles of two of them for each as it has powers of two:
        of elements and pairs within quarters of 128 bits, then of quarters."""
        lanes = len(rows)

        def shuffled(a: str, b: str, order: list[int]) -> str:
            chosen = ", ".join(f"i32 {k}" for k in order)
            return self.temporary(f"shufflevector {own} {a}, {own} {b}, <{lanes} x i32> <{chosen}>")

        def halves(unit: int, half: int) -> list[int]:
            """Of each quarter of both, the lower or upper half, taking turns by this many elements."""
            order = []
            for quarter in range(0, lanes, QUARTER):
                for k in range(half * QUARTER // 2, (half + 1) * QUARTER // 2, unit):
                    order += [base + quarter + k + n for base in (0, lanes) for n in range(unit)]
            return order

        for unit in (1, 2):
            made = list(rows)
            for first in range(0, lanes, 2 * unit):
                for k in range(first, first + unit):
                    place = first + 2 * (k - first)
                    for half in (0, 1):
                        made[place + half] = shuffled(rows[k], rows[k + unit], halves(unit, half))
            rows = made
        # rows[4 g + j] has column 4 q + j of rows 4 g to 4 g + 3 in its quarter q.
        groups = lanes // QUARTER
        columns = [""] * lanes
        for j in range(QUARTER):
            made = self.quarters([rows[QUARTER * g + j] for g in range(groups)], groups, shuffled)
            columns[j::QUARTER] = made
        return columns

    def quarters(self, held: list[str], groups: int, shuffled: Shuffle) -> list[str]:
        """The transpose of a square whose elements are quarters: of the even quarters, and of the odd ones."""
        if len(held) == 1:
            return held
        parts = []
        for odd in (0, 1):
            order = [q * QUARTER + n for q in range(odd, 2 * groups, 2) for n in range(QUARTER)]
            pairs = zip(held[::2], held[1::2], strict=True)
            parts.append(self.quarters([shuffled(a, b, order) for a, b in pairs], groups, shuffled))
        return [column for both in zip(*parts, strict=True) for column in both]

    def print_storerows(self, store: StoreRows) -> None:
        kind, lanes = store.kind, store.columns[0].lanes
        most = WIDE_BYTES if SIZES[kind] == 1 else WIDE
        if store.is_dense and len(store.columns) <= most:
            return self.store_wide(store)
        values = [self.value(column) for column in store.columns]
        tiles = []
        for first in range(0, len(values), lanes):
            some = values[first : first + lanes]
            tiles.append(
                (first, len(some), self.transposed([*some, *["poison"] * (lanes - len(some))], store.columns[0].type))
            )
        left = None if store.mask is None else self.value(self.left[store.mask.name])
        for row in range(lanes):
            behind = self.label()
            if left is not None:
                inner = self.label()
                self.emit(f"br i1 {self.index('<', str(row), left)}, label %{inner}, label %{behind}")
                self.begin(inner)
            at = self.row_at(store.pointer, self.index("+", self.value(store.row), str(row)), store.stride, kind)
            for first, count, rows in tiles:
                place = self.temporary(f"getelementptr inbounds {MEMORY[kind]}, ptr {at}, i64 {first}")
                value = self.narrowed(rows[row], kind, lanes)
                if count == lanes:
                    self.emit(f"store {vector_of(MEMORY[kind], lanes)} {value}, ptr {place}, align {SIZES[kind]}")
                else:
                    self.store_part(value, place, kind, count, lanes)
            if left is not None:
                self.emit(f"br label %{behind}")
                self.begin(behind)
        return None

    def store_wide(self, store: StoreRows) -> None:
        columns, kind = len(store.columns), store.kind
        lanes = store.columns[0].lanes
        parts = [self.narrowed(self.value(column), kind, lanes) for column in store.columns]
        own, all_lanes = vector_of(MEMORY[kind], lanes), lanes
        while len(parts) > 1 or all_lanes < lanes * columns:  # in pairs, an odd last one with itself
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
        place = self.row_at(store.pointer, self.value(store.row), store.stride, kind)
        if store.mask is None:
            self.emit(f"store {type} {wide}, ptr {place}, align {SIZES[kind]}")
            return
        memory = self.alloca(type, 64)
        self.emit(f"store {type} {wide}, ptr {memory}, align 64")
        self.copy(place, memory, store.mask, kind, columns)

    def let_fold_rows(self, let: Let) -> str:
        """By halves, in each row's own order: a step combines the lower and upper halves of what two vectors hold of
        their rows."""
        (pointer,) = let.operands
        op, kind = let.attribute
        lanes, type = let.result.lanes, let.result.type
        own, memory = vector(type, lanes), vector_of(MEMORY[kind], lanes)
        held = []
        for row in range(lanes):
            place = self.temporary(f"getelementptr {memory}, ptr {self.value(pointer)}, i64 {row}")
            value = self.widened(self.temporary(f"load {memory}, ptr {place}, align {SIZES[kind]}"), kind, lanes)
            wide = value if type == kind else self.temporary(f"fpext {memory} {value} to {own}")
            held.append(([(row, lane) for lane in range(lanes)], wide))
        width = lanes
        while width > 1:
            width //= 2
            pairs = zip(held[::2], held[1::2], strict=True)
            held = [self.folded_pair(op, type, a, b, width) for a, b in pairs]
        ((places, value),) = held
        order = ", ".join(f"i32 {[row for row, _ in places].index(row)}" for row in range(lanes))
        return self.temporary(f"shufflevector {own} {value}, {own} poison, <{lanes} x i32> <{order}>")

    def folded_pair(self, op: str, type: str, a: tuple, b: tuple, half: int) -> tuple[list[tuple[int, int]], str]:
        """Each is the row and lane of every element, and a vector."""
        (of_a, first), (of_b, second) = a, b
        both, lanes = of_a + of_b, len(of_a)
        own = vector(type, lanes)
        low = [k for k, (_, lane) in enumerate(both) if lane < half]
        high = [both.index((both[k][0], both[k][1] + half)) for k in low]
        parts = []
        for chosen in (low, high):
            order = ", ".join(f"i32 {k}" for k in chosen)
            made = self.temporary(f"shufflevector {own} {first}, {own} {second}, <{lanes} x i32> <{order}>")
            parts.append(Ref(made[1:], type, lanes))
        return [both[k] for k in low], self.operation(COMBINED[op], parts[0], tuple(parts))
