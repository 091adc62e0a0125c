"""The record of scans for ``fourfold.explain``."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from fourfold.compiler.analysis.views import hint
from fourfold.scanning import capture
from fourfold.scanning.structure import Structure

OF_TENSORS = "transforms, forward-mode differentiation, tracers and subclasses of Tensor need PyTorch's operators"


@dataclass
class Scan:
    """A call of scan. step, structure: None for torch's own scan operator. recurrence, inputs: the function that ran
    and its inputs, in the order of the step's graph. has_hooks: whether hooks, such as those of torch.utils.checkpoint,
    receive what is kept for the backward. reason: why the steps run in Python; empty if they don't."""

    call: capture.ScanCall
    step: object = None
    structure: Structure | None = None
    recurrence: Any = None  # a function.Recurrence
    inputs: Sequence[object] = ()
    trains: bool = False
    has_hooks: bool = False
    reason: str = ""

    def complete(self) -> None:
        """Compiles the backward now instead of at its first call."""
        if self.trains and self.is_compiled:
            self.recurrence.make_backward[self.call.reverse]()

    @property
    def is_compiled(self) -> bool:
        """Whether it has a forward: the steps don't run in Python, there are some, and nothing was raised before."""
        key = "forward" if self.trains else "inference", self.call.reverse
        return not self.reason and self.recurrence is not None and key in self.recurrence.wholes


_scans: ContextVar[list[Scan] | None] = ContextVar("scans", default=None)


@contextlib.contextmanager
def recording() -> Iterator[list[Scan]]:
    """Lists the scans that run in the context. Their steps are traced again; earlier traces stay as they are."""
    before, capture._compiled = capture._compiled, weakref.WeakKeyDictionary()
    found: list[Scan] = []
    token = _scans.set(found)
    try:
        yield found
    finally:
        _scans.reset(token)
        capture._compiled = before


def called(step: object, structure: Structure, call: capture.ScanCall, reason: str = "") -> None:
    """reason: why the tensors need Python; they are recorded as stand-ins, which outlive a transform."""
    if (scans := _scans.get()) is not None:
        if reason:
            call = capture.ScanCall([*map(stand_in, call.carries)], [*map(stand_in, call.xs)], call.steps, call.reverse)
        scans.append(Scan(call, step, structure, reason=reason))


def stand_in(tensor: Tensor) -> Tensor:
    with _disable_current_modes():
        return torch.empty([hint(size) for size in tensor.shape], dtype=tensor.dtype, device="meta")


def ran(recurrence: Any, call: capture.ScanCall, inputs: Sequence[object], trains: bool) -> None:
    if (scans := _scans.get()) is not None:
        scan = scan_of(scans, call)
        scan.recurrence, scan.inputs, scan.trains = recurrence, inputs, trains
        scan.has_hooks = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def ran_in_python(call: capture.ScanCall, reason: str) -> None:
    if (scans := _scans.get()) is not None:
        scan_of(scans, call).reason = reason


def scan_of(scans: list[Scan], call: capture.ScanCall) -> Scan:
    """The record of a call; a new one for a call by torch's own operator."""
    found = next((each for each in reversed(scans) if each.call is call), None)
    if found is None:
        scans.append(found := Scan(call))
    return found
