"""From calls and work to rows: whose time, whose bytes, who fell back to the CPU. Knows nothing of torch's profiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fourfold.profiler._records import ENGINE, Call, Operand, Work

AUTOGRAD = "autograd"
NO_OPERATOR = "no operator"
# What copies from one device to another, by which of its tensors is written; the inner ones are some backends' way.
COPIES = {"aten::copy_": 0, "aten::_copy_from": 1, "aten::_copy_from_and_resize": 1}
READS_ONE_NUMBER = "aten::_local_scalar_dense"  # item()
TO_CPU = "aten::_to_cpu"  # what torch's fallback begins with, for every backend


@dataclass
class Row:
    """What an operator did in one dtype on one kind of device.

    A fourfold operator's figures include everything that it calls, such as torch's products, and those of an operator
    that fell back to the CPU its copies and what the CPU did for it. Another operator's are its own: rows add up.

    operator: its name in torch's dispatcher, fourfold::lltm; or a name for other work.
    dtype: of the floating-point tensors that it was given, else of the others, "float32" or "float32, int64"; "" where
        it was given none.
    device: cpu, cuda, mps; "" where no tensor and no kernel tells.
    calls: how many.
    device_time: ms that the device worked for it; on the CPU the host's. None where torch can't tell, as on mps, and
        where device is "".
    host_time: ms that the host spent in it.
    copied: bytes that it copied from one device to another.
    fell_back: how many of the calls the CPU did, because there is no kernel for the device.
    """

    operator: str
    dtype: str = ""
    device: str = ""
    calls: int = 0
    device_time: float | None = None
    host_time: float = 0.0
    copied: int = 0
    fell_back: int = 0

    @property
    def is_fourfolds(self) -> bool:
        """Whether it is one of fourfold's operators."""
        return self.operator.startswith("fourfold::")


@dataclass
class Owner:
    """Whose what a call calls is. row: the call's, None in a region. keeps: whether all that is within is the row's
    too; but what falls back within a fourfold operator has its own."""

    caller: Call | None = None
    row: Row | None = None
    keeps: bool = False
    fell_back: bool = False
    copying: bool = False  # whether the bytes of what is within are counted already

    def owns(self, call: Call, fell_back: bool) -> bool:
        if self.row is None:
            return False
        if self.keeps:
            return self.fell_back or not fell_back
        return call.kind == "part" or call.name == self.caller.name


@dataclass
class Ledger:
    work: dict[int, list[Work]]
    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)

    def row(self, *key: str) -> Row:
        return self.rows.setdefault((key + ("", ""))[:3], Row(*key))

    def enter(self, call: Call, owner: Owner) -> Owner:
        """Count one call; gives the owner of what it calls."""
        fell_back, keeps = falls_back(call), owner.keeps
        if owner.owns(call, fell_back):
            row, fell_back = owner.row, owner.fell_back
        elif call.kind == "region":
            return Owner(call)
        else:
            row = self.row(AUTOGRAD) if call.kind == "autograd" else self.row(call.name, *described(call))
            row.calls += not call.name.startswith(ENGINE)
            row.fell_back += fell_back
            keeps = fell_back or row.is_fourfolds
        row.host_time += 1e-6 * (call.nanoseconds - sum(inner.nanoseconds for inner in call.calls))
        for piece in self.work.pop(call.id, ()):
            row.device = row.device or piece.device
            row.device_time = (row.device_time or 0.0) + 1e-6 * piece.nanoseconds
        copied = 0 if owner.copying else bytes_copied(call)
        row.copied += copied
        return Owner(call, row, keeps, fell_back, owner.copying or copied > 0)


def rows_of(calls: Iterable[Call], work: Sequence[Work]) -> list[Row]:
    """All rows, in the order in which their operators were first called. Work is its caller's row's."""
    ledger = Ledger(defaultdict(list))
    for piece in work:
        ledger.work[piece.call].append(piece)
    pending = [(call, Owner()) for call in reversed(list(calls))]
    while pending:
        call, owner = pending.pop()
        inner = ledger.enter(call, owner)
        pending += [(each, inner) for each in reversed(call.calls)]
    for piece in (piece for left in ledger.work.values() for piece in left):
        row = ledger.row(NO_OPERATOR, "", piece.device)
        row.calls += 1
        row.device_time = (row.device_time or 0.0) + 1e-6 * piece.nanoseconds
    rows = list(ledger.rows.values())
    known = {row.device for row in rows if row.device_time is not None}  # where torch knows the kernels
    for row in rows:
        if row.device in ("cpu", "meta") and row.device_time is None:
            row.device_time = row.host_time
        elif row.device in known and row.device:
            row.device_time = row.device_time or 0.0
    return rows


def falls_back(call: Call) -> bool:
    """Whether the CPU did it, its tensors copied there and back."""
    return any(inner.name == TO_CPU or (inner.name == call.name and falls_back(inner)) for inner in call.calls)


def bytes_copied(call: Call) -> int:
    """From one device to another, reckoned from the tensors: torch converts before it copies, so in the type of what is
    written."""
    operands = call.operands
    if call.name in COPIES and len(operands) > 1 and operands[0].device != operands[1].device:
        written = operands[COPIES[call.name]]
        between = all(operand.device.type != "meta" for operand in operands[:2])
        return written.elements * written.dtype.itemsize * between
    if call.name == READS_ONE_NUMBER and operands and operands[0].device.type not in ("cpu", "meta"):
        return operands[0].dtype.itemsize
    return 0


def described(call: Call) -> tuple[str, str]:
    """The dtype and the kind of device of a row."""
    operands = operands_of(call)
    floating = [o.dtype for o in operands if o.dtype.is_floating_point or o.dtype.is_complex]
    dtypes = dict.fromkeys(floating or [o.dtype for o in operands])
    kinds = dict.fromkeys(o.device.type for o in operands)
    devices = [kind for kind in kinds if kind != "cpu"] or list(kinds)
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes), ", ".join(devices)


def operands_of(call: Call) -> tuple[Operand, ...]:
    """Those that it was given; an operator that makes a tensor gives it to itself, to be filled."""
    inner = (each.operands for each in call.calls if each.name == call.name)
    return call.operands or next(inner, ())
