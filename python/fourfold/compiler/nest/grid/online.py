"""Pairs of reductions in one pass over a row. A thread keeps the second total relative to a shift of its own, and
converts it to the row's shift when the first total is known."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

from fourfold.compiler.dtypes import BOOLEAN
from fourfold.compiler.ir import Value
from fourfold.compiler.nest.grid.builder import Place
from fourfold.compiler.nest.loops import Constant, Operand, Ref, Writer
from fourfold.compiler.nest.online import Online


class OnlineTotal(abc.ABC):
    """A thread's part of a second total. operand: the vector of a value at a place."""

    def __init__(self, pair: Online, writer: Writer, lanes: int, operand: Callable[[Value, Place], Operand]):
        self.pair, self.writer, self.lanes, self.operand = pair, writer, lanes, operand
        self.type = pair.total.type

    @abc.abstractmethod
    def begin(self) -> None:
        """Declares the variables."""

    @abc.abstractmethod
    def add(self, places: Sequence[Place], first: Operand) -> None:
        """Adds vectors. first: the first total so far, with them, of each lane."""

    @abc.abstractmethod
    def relative_to(self, shift: Operand) -> Operand:
        """The total of what was added, relative to this shift."""

    @abc.abstractmethod
    def shift_of(self, first: Operand, count: Operand) -> Operand:
        """A shift for a chunk of a row by its first total and number of elements; it is finite if these are."""

    @abc.abstractmethod
    def moved(self, total: Operand, first: Operand, count: Operand, shift: Operand) -> Operand:
        """A chunk's total, relative to its own shift, relative to another one."""

    # Operations. A result has the lanes of the last operand.

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


class Exponentials(OnlineTotal):
    """The sum of exp(x - shift), relative to the largest element so far, and rescaled where that grows: Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018. Relative to 0 while the largest is infinite."""

    def begin(self) -> None:
        self.largest = self.variable(float("-inf"), "largest")
        self.sum = self.variable(0.0, "scaled", self.lanes)

    def add(self, places: Sequence[Place], first: Operand) -> None:
        largest = self.fold("amax", first)
        shift = self.finite(largest)
        # At most 1, also where an infinite element replaces the shift by 0.
        growth = self.let("minimum", self.let("sub", self.writer.get(self.largest), shift), self.number(0.0))
        scale = self.let("exp", growth)
        total = self.let("mul", self.splat(scale), self.writer.get(self.sum))
        shifts = self.splat(shift)
        for place in places:
            term = self.exp(self.operand(self.pair.x, place), shifts)
            total = self.let("add", total, self.where(place.valid, term, self.number(0.0, self.lanes)))
        self.writer.assign(self.sum, total)
        self.writer.assign(self.largest, largest)

    def relative_to(self, shift: Operand) -> Operand:
        total, largest = self.fold("sum", self.writer.get(self.sum)), self.writer.get(self.largest)
        return self.moved(total, largest, None, shift)

    def shift_of(self, first: Operand, count: Operand) -> Operand:
        return self.finite(first)

    def moved(self, total: Operand, first: Operand, count: Operand | None, shift: Operand) -> Operand:
        """A total of 0, of elements that are all -inf, stays 0 whatever the shift, unless that is -inf too."""
        own = self.where(self.equal(first, float("inf")), self.number(0.0), first)
        return self.let("mul", total, self.exp(own, shift))

    def exp(self, x: Operand, shift: Operand) -> Ref:
        return self.let("exp", self.let("sub", x, shift))

    def finite(self, largest: Operand) -> Operand:
        return self.where(self.equal(self.let("abs", largest), float("inf")), self.number(0.0), largest)


class Deviations(OnlineTotal):
    """The sum of (x - shift)², from each lane's mean and sum of squared deviations from it: Welford, "Note on a method
    for calculating corrected sums of squares and products", 1962."""

    def begin(self) -> None:
        self.count = self.variable(0.0, "count")  # of the elements of a lane
        self.mean = self.variable(0.0, "mean", self.lanes)
        self.squares = self.variable(0.0, "squares", self.lanes)

    def add(self, places: Sequence[Place], first: Operand) -> None:
        count, mean, squares = map(self.writer.get, (self.count, self.mean, self.squares))
        for place in places:
            x = self.operand(self.pair.x, place)
            more = self.let("add", count, self.number(1.0))
            difference = self.let("sub", x, mean)
            weight = self.splat(self.let("div", self.number(1.0), more))
            nearer = self.let("add", mean, self.let("mul", difference, weight))
            larger = self.let("add", squares, self.let("mul", difference, self.let("sub", x, nearer)))
            count = self.where(place.valid, more, count)
            mean, squares = self.where(place.valid, nearer, mean), self.where(place.valid, larger, squares)
        for variable, value in ((self.count, count), (self.mean, mean), (self.squares, squares)):
            self.writer.assign(variable, value)

    def relative_to(self, shift: Operand) -> Operand:
        count = self.writer.get(self.count)
        squares = self.about(
            self.writer.get(self.squares), self.writer.get(self.mean), self.splat(count), self.splat(shift)
        )
        return self.where(self.equal(count, 0.0), self.number(0.0), self.fold("sum", squares))

    def shift_of(self, first: Operand, count: Operand) -> Operand:
        return self.let("div", first, count)

    def moved(self, total: Operand, first: Operand, count: Operand, shift: Operand) -> Operand:
        return self.about(total, self.shift_of(first, count), count, shift)

    def about(self, squares: Operand, mean: Operand, count: Operand, shift: Operand) -> Ref:
        """The sum of squared deviations from a shift, by those from the mean."""
        distance = self.let("sub", mean, shift)
        return self.let("add", squares, self.let("mul", count, self.let("mul", distance, distance)))


KINDS: dict[str, type[OnlineTotal]] = {"amax": Exponentials, "sum": Deviations}  # by the first reduction
