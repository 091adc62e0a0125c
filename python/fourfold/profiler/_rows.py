"""Attributes the time, bytes and CPU fallbacks of calls and work to rows. Independent of torch's profiler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fourfold.profiler._records import ENGINE, HostCall, Operand, Work

AUTOGRAD = "autograd"
NO_OPERATOR = "no operator"
# Operators that copy between devices, with the index of the tensor that they write; some backends use the last two.
COPIES = {"aten::copy_": 0, "aten::_copy_from": 1, "aten::_copy_from_and_resize": 1}
READS_ONE_NUMBER = "aten::_local_scalar_dense"  # item()
TO_CPU = "aten::_to_cpu"  # the first call of torch's CPU fallback, on every backend


@dataclass
class Row:
    """The figures of an operator in one dtype on one type of device.

    A fourfold operator's figures include everything that it calls, such as torch's products. Those of an operator that
    fell back to the CPU include its copies and the CPU's work. All other figures are self time, so rows add up.

    operator: its name in torch's dispatcher, such as fourfold::lltm; or a name for other work.
    dtype: of its floating-point arguments, else of its other tensors, "float32" or "float32, int64"; "" if it has none.
    device: cpu, cuda, mps; "" if neither tensors nor kernels show it.
    calls: the number of calls.
    device_time: ms of work on the device; on the CPU the host's. None if torch can't measure it, as on mps, and if
        device is "".
    host_time: ms that the host spent in it.
    copied: bytes that it copied between devices.
    fell_back: the number of calls that ran on the CPU because there is no kernel for the device.
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
    """The row that a call's inner calls belong to. row: the call's, None in a region. keeps: whether all inner calls
    belong to the row, except those that fall back within a fourfold operator, which have their own."""

    caller: HostCall | None = None
    row: Row | None = None
    keeps: bool = False
    fell_back: bool = False
    copying: bool = False  # whether the bytes of inner calls are counted already

    def owns(self, call: HostCall, fell_back: bool) -> bool:
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

    def enter(self, call: HostCall, owner: Owner) -> Owner:
        """Counts one call; returns the owner of its inner calls."""
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


def rows_of(calls: Iterable[HostCall], work: Sequence[Work]) -> list[Row]:
    """All rows, in the order in which their operators were first called. Work counts for its caller's row."""
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
    known = {row.device for row in rows if row.device_time is not None}  # whose kernels torch records
    for row in rows:
        if row.device in ("cpu", "meta") and row.device_time is None:
            row.device_time = row.host_time
        elif row.device in known and row.device:
            row.device_time = row.device_time or 0.0
    return rows


def falls_back(call: HostCall) -> bool:
    """Whether the call ran on the CPU, with its tensors copied there and back."""
    return any(inner.name == TO_CPU or (inner.name == call.name and falls_back(inner)) for inner in call.calls)


def bytes_copied(call: HostCall) -> int:
    """The bytes that a call copies between devices, computed from its tensors: in the dtype that is written, since
    torch converts before it copies."""
    operands = call.operands
    if call.name in COPIES and len(operands) > 1 and operands[0].device != operands[1].device:
        written = operands[COPIES[call.name]]
        between = all(operand.device.type != "meta" for operand in operands[:2])
        return written.elements * written.dtype.itemsize * between
    if call.name == READS_ONE_NUMBER and operands and operands[0].device.type not in ("cpu", "meta"):
        return operands[0].dtype.itemsize
    return 0


def described(call: HostCall) -> tuple[str, str]:
    """The dtype and the kind of device of a row."""
    operands = operands_of(call)
    floating = [o.dtype for o in operands if o.dtype.is_floating_point or o.dtype.is_complex]
    dtypes = dict.fromkeys(floating or [o.dtype for o in operands])
    kinds = dict.fromkeys(o.device.type for o in operands)
    devices = [kind for kind in kinds if kind != "cpu"] or list(kinds)
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes), ", ".join(devices)


def operands_of(call: HostCall) -> tuple[Operand, ...]:
    """A call's operands; an operator that creates a tensor passes it to an inner call of the same name, to fill it."""
    inner = (each.operands for each in call.calls if each.name == call.name)
    return call.operands or next(inner, ())
