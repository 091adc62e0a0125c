"""A sum of tensors that each cover a range of one dimension. It is stored as pieces; no summand is padded to the
whole."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_APART = 4  # pieces to which a summand is added one by one; more are concatenated first, to limit the operators
END = (1 << 63) - 1  # of a slice without an end


@dataclass(frozen=True)
class Piece:
    start: int
    stop: int
    value: Tensor
    is_selected: bool = False  # the value lacks the dimension, along which it has one element


class Ranges:
    """like: a tensor with the shape, dtype and device of the whole. Calls torch operators."""

    def __init__(self, like: Tensor, dim: int):
        self.like = like
        self.dim = dim
        self.pieces: list[Piece] = []  # in order, without overlaps

    def add(self, new: Piece) -> None:
        """Adds a piece. The summands of an element are added in the order of these calls."""
        self.split(new.start)
        self.split(new.stop)
        first, last = (bisect.bisect_left(self.pieces, place, key=start_of) for place in (new.start, new.stop))
        self.pieces[first:last] = self.added(self.pieces[first:last], new)

    def added(self, within: Sequence[Piece], new: Piece) -> list[Piece]:
        if not within:
            return [new]
        if len(within) > MOST_APART:
            within = [self.joined(within, new.start, new.stop)]
        found = []
        for start, stop, old in self.covered(within, new.start, new.stop):
            part = self.narrowed(new, start, stop)
            if old is not None and old.is_selected and part.is_selected:
                part = Piece(start, stop, old.value + part.value, is_selected=True)
            elif old is not None:
                part = Piece(start, stop, self.with_dim(old) + self.with_dim(part))
            found.append(part)
        return found

    def split(self, place: int) -> None:
        """Divides the piece that covers the place and the one before."""
        index = bisect.bisect_left(self.pieces, place, key=start_of) - 1
        if index >= 0 and self.pieces[index].stop > place:
            piece = self.pieces[index]
            self.pieces[index : index + 1] = [
                self.narrowed(piece, piece.start, place),
                self.narrowed(piece, place, piece.stop),
            ]

    def narrowed(self, piece: Piece, start: int, stop: int) -> Piece:
        if (start, stop) == (piece.start, piece.stop):
            return piece
        return Piece(start, stop, piece.value.narrow(self.dim, start - piece.start, stop - start))

    def with_dim(self, piece: Piece) -> Tensor:
        return piece.value.unsqueeze(self.dim) if piece.is_selected else piece.value

    @staticmethod
    def covered(pieces: Sequence[Piece], start: int, stop: int) -> list[tuple[int, int, Piece | None]]:
        """The pieces and the gaps of a range."""
        bounds = sorted({start, stop, *(bound for piece in pieces for bound in (piece.start, piece.stop))})
        known = {piece.start: piece for piece in pieces}
        return [(start, stop, known.get(start)) for start, stop in itertools.pairwise(bounds)]

    def joined(self, pieces: Sequence[Piece], start: int, stop: int) -> Piece:
        """One piece for a range, with zeros in the gaps."""
        if all(piece.is_selected for piece in pieces) and len(pieces) == stop - start:
            return Piece(start, stop, torch.stack([piece.value for piece in pieces], self.dim))
        found = self.covered(pieces, start, stop)
        values = [self.zeros(b - a) if piece is None else self.with_dim(piece) for a, b, piece in found]
        return Piece(start, stop, torch.cat(values, self.dim) if len(values) > 1 else values[0])

    def zeros(self, count: int) -> Tensor:
        sizes = [*self.like.shape[: self.dim], count, *self.like.shape[self.dim + 1 :]]
        return torch.zeros(sizes, dtype=self.like.dtype, device=self.like.device)

    def whole(self) -> Tensor:
        size = self.like.shape[self.dim]
        if isinstance(size, int):
            return self.joined(self.pieces, 0, size).value
        start, stop = self.pieces[0].start, self.pieces[-1].stop
        known = self.joined(self.pieces, start, stop).value
        bounds = start, stop or END  # with negative indices, the last piece stops at 0
        return torch.ops.aten.slice_backward.default(known, self.like.shape, self.dim, *bounds, 1)

    def interleaved(self, step: int) -> Tensor:
        """The whole, if each piece covers one element out of ``step``, from its start."""
        known = {piece.start: piece.value for piece in self.pieces}
        zeros = functools.cache(lambda: torch.zeros_like(self.pieces[0].value))
        values = [known[k] if k in known else zeros() for k in range(step)]
        return torch.stack(values, self.dim + 1).reshape(self.like.shape)


def start_of(piece: Piece) -> int:
    return piece.start
