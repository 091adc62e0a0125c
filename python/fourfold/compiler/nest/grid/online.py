"""Online sums, which a pass over a row computes together with the reduction that their shift needs: a thread keeps its
part relative to a shift of its own, and converts it to the row's shift when that is known."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

from fourfold.compiler.ir.dtypes import BOOLEAN
from fourfold.compiler.ir.values import Value
from fourfold.compiler.nest.grid.builder import ThreadVector
from fourfold.compiler.nest.ir.loops import Constant, Operand, Ref, Writer


class OnlinePart(abc.ABC):
    """A thread's part of the online sums of a first reduction. operand: the vector of a value at a place."""

    def __init__(self, first: Value, writer: Writer, lanes: int, operand: Callable[[Value, ThreadVector], Operand]):
        (self.x,), self.type = first.operands, first.type
        self.writer, self.lanes, self.operand = writer, lanes, operand

    @abc.abstractmethod
    def begin(self) -> None:
        """Declares the variables."""

    @abc.abstractmethod
    def add(self, places: Sequence[ThreadVector], first: Operand) -> None:
        """Adds vectors. first: the first total so far, with them, of each lane."""

    @abc.abstractmethod
    def relative_to(self, shift: Operand) -> Operand:
        """The sum of what was added, relative to this shift."""

    @abc.abstractmethod
    def shift_of(self, first: Operand, count: Operand) -> Operand:
        """A shift for a chunk of a row by its first total and number of elements; it is finite if these are."""

    @abc.abstractmethod
    def moved(self, sum: Operand, first: Operand, count: Operand, shift: Operand) -> Operand:
        """A chunk's sum, relative to its own shift, converted to another shift."""

    # Operations. A result has as many lanes as the last operand.

    def let(self, op: str, *operands: Operand, name: str = "t") -> Ref:
        return self.writer.let(op, self.type, *operands, lanes=operands[-1].lanes, name=name)

    def equal(self, a: Operand, value: float) -> Ref:
        return self.writer.let("eq", BOOLEAN, a, self.number(value))

    def where(self, condition: Ref | None, yes: Operand, no: Operand) -> Operand:
        return yes if condition is None else self.let("select", condition, yes, no)

    def number(self, value: float, lanes: int = 0) -> Constant:
        return Constant(value, self.type, lanes)

    def splat(self, number: Operand) -> Operand:
        return self.writer.let("splat", self.type, number, lanes=self.lanes)

    def variable(self, value: float, name: str, lanes: int = 0) -> Ref:
        return self.writer.variable(self.type, self.number(value, lanes), lanes, name)

    def fold(self, op: str, vector: Operand) -> Operand:
        return self.writer.let("fold", self.type, vector, attribute=op)


class Exponentials(OnlinePart):
    """The sum of exp(x - shift), relative to the largest element so far, and rescaled where that grows: Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018. Relative to 0 while the largest is infinite."""

    def begin(self) -> None:
        self.largest = self.variable(float("-inf"), "largest")
        self.sum = self.variable(0.0, "scaled", self.lanes)

    def add(self, places: Sequence[ThreadVector], first: Operand) -> None:
        largest = self.fold("amax", first)
        shift = self.finite(largest)
        # At most 1, also where an infinite element replaces the shift by 0.
        growth = self.let("minimum", self.let("sub", self.writer.get(self.largest), shift), self.number(0.0))
        scale = self.let("exp", growth)
        total = self.let("mul", self.splat(scale), self.writer.get(self.sum))
        shifts = self.splat(shift)
        for place in places:
            term = self.exp(self.operand(self.x, place), shifts)
            total = self.let("add", total, self.where(place.valid, term, self.number(0.0, self.lanes)))
        self.writer.assign(self.sum, total)
        self.writer.assign(self.largest, largest)

    def relative_to(self, shift: Operand) -> Operand:
        return self.converted(self.fold("sum", self.writer.get(self.sum)), self.writer.get(self.largest), shift)

    def shift_of(self, first: Operand, count: Operand) -> Operand:
        return self.finite(first)

    def moved(self, sum: Operand, first: Operand, count: Operand, shift: Operand) -> Operand:
        return self.converted(sum, first, shift)

    def converted(self, sum: Operand, largest: Operand, shift: Operand) -> Ref:
        """Right for an infinite largest element too, since the sum is then infinite, or 0 if all are -inf."""
        return self.let("mul", sum, self.exp(largest, shift))

    def exp(self, x: Operand, shift: Operand) -> Ref:
        return self.let("exp", self.let("sub", x, shift))

    def finite(self, largest: Operand) -> Operand:
        return self.where(self.equal(self.let("abs", largest), float("inf")), self.number(0.0), largest)


class Deviations(OnlinePart):
    """The sum of (x - shift)², from each lane's mean and sum of squared deviations from it: Welford, "Note on a method
    for calculating corrected sums of squares and products", 1962. The mean is relative to the lane's first element: the
    rounding error of a mean that is much larger than the deviations would be added to each of them."""

    def begin(self) -> None:
        self.count = self.variable(0.0, "count")  # of the elements of a lane
        self.pivot = self.variable(0.0, "pivot", self.lanes)
        self.mean = self.variable(0.0, "mean", self.lanes)
        self.squares = self.variable(0.0, "squares", self.lanes)

    def add(self, places: Sequence[ThreadVector], first: Operand) -> None:
        count, pivot, mean, squares = map(self.writer.get, self.variables())
        pivot = self.where(self.equal(count, 0.0), self.operand(self.x, places[0]), pivot)
        for place in places:
            x = self.let("sub", self.operand(self.x, place), pivot)
            more = self.let("add", count, self.number(1.0))
            difference = self.let("sub", x, mean)
            weight = self.splat(self.let("div", self.number(1.0), more))
            nearer = self.let("add", mean, self.let("mul", difference, weight))
            larger = self.let("add", squares, self.let("mul", difference, self.let("sub", x, nearer)))
            count = self.where(place.valid, more, count)
            mean, squares = self.where(place.valid, nearer, mean), self.where(place.valid, larger, squares)
        for variable, value in zip(self.variables(), (count, pivot, mean, squares), strict=True):
            self.writer.assign(variable, value)

    def relative_to(self, shift: Operand) -> Operand:
        count, pivot, mean, squares = map(self.writer.get, self.variables())
        distance = self.let("add", mean, self.let("sub", pivot, self.splat(shift)))
        squares = self.with_distance(squares, distance, self.splat(count))
        return self.where(self.equal(count, 0.0), self.number(0.0), self.fold("sum", squares))

    def variables(self) -> tuple[Ref, ...]:
        return self.count, self.pivot, self.mean, self.squares

    def shift_of(self, first: Operand, count: Operand) -> Operand:
        return self.let("div", first, count)

    def moved(self, sum: Operand, first: Operand, count: Operand, shift: Operand) -> Operand:
        return self.with_distance(sum, self.let("sub", self.shift_of(first, count), shift), count)

    def with_distance(self, squares: Operand, distance: Operand, count: Operand) -> Ref:
        """The sum of squared deviations from a shift, by those from the mean and the mean's distance from the shift."""
        return self.let("add", squares, self.let("mul", count, self.let("mul", distance, distance)))


KINDS: dict[str, type[OnlinePart]] = {"amax": Exponentials, "sum": Deviations}  # by the first reduction
