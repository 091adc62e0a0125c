"""Profiles of torch's and fourfold's operators, on every backend."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import tempfile
import threading
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from fourfold._event import Event
from fourfold.profiler import _records, _rows, _table
from fourfold.profiler._rows import Row

__all__ = ["Row", "profile"]

Row.__module__ = __name__  # its public module
NSIGHT = "NSYS_PROFILING_SESSION_ID"  # set by Nsight Systems for the processes that it runs
RANGES = (
    "No table: the operators were emitted as NVTX or roctx ranges, and the tool that recorded them shows their times. "
    "Use nvtx=False for a table."
)
INTERRUPTED = (
    "No table: another torch.profiler profile started within this one and ended it, because torch runs one at a time. "
    "Run only one of them."
)

_lock = threading.Lock()
_running: profile | None = None


class profile:
    """Profiles a block: which operators ran, how often, in which dtype and for how long, what was copied between
    devices, and what fell back to the CPU.

        with fourfold.profiler.profile() as prof:
            model(x).sum().backward()
        print(prof)  # the table
        prof.export_chrome_trace("trace.json")

    It is torch.profiler.profile of the CPU and of torch's accelerator, with recorded shapes. On MPS it also starts
    torch.mps.profiler, whose signposts name torch's operators in Metal System Trace; fourfold's operators appear there
    as the names of its encoders. A profile covers one block. An exception in the block ends the profile and propagates.
    If the block starts another profile by torch.profiler, torch ends this one, and it has no rows.

    Args:
        with_stack: also record Python source lines for the trace; slower.
        nvtx: emit the operators as NVTX ranges (roctx on AMD GPUs), which Nsight Systems or rocprof shows, instead of a
            table and a trace: torch supports one of the two at a time. None: True if Nsight Systems runs this process
            and torch has a GPU.

    Raises:
        ValueError: with_stack with NVTX ranges.
        RuntimeError: on entering, if another profile runs, or nvtx=True and there is no GPU.
    """

    _end_first = "one is; end its block first"  # the reason in the error that a second profile raises

    def __init__(self, *, with_stack: bool = False, nvtx: bool | None = None):
        if nvtx is None:
            nvtx = NSIGHT in os.environ and torch.cuda.is_available()
        if nvtx and with_stack:
            raise ValueError(
                "profile: expected with_stack=False with NVTX ranges, which can't contain stacks, but got True"
            )
        self._with_stack, self._nvtx = with_stack, nvtx
        self._torchs: Any = None
        self._started = contextlib.ExitStack()
        self._start: Event | None = None
        self._elapsed: float | None = None
        self._done = False
        self._interrupted = False
        self._rows: list[Row] | None = None
        self._trace: bytes | None = None  # compressed

    def __enter__(self) -> profile:
        global _running
        if self._start is not None:
            again = "make another one: with fourfold.profiler.profile() as prof"
            raise RuntimeError(f"profile: expected one that was not used yet, but this one was; {again}")
        if self._nvtx and not torch.cuda.is_available():
            sees = f"torch {torch.__version__} sees none; leave nvtx out"
            raise RuntimeError(f"profile: expected a GPU of NVIDIA or AMD for nvtx=True, but {sees}")
        with _lock:
            if _running is not None or torch.autograd._profiler_enabled():
                reason = (_running or profile)._end_first
                raise RuntimeError(f"profile: expected no other profile to be running, but {reason}")
            _running = self
        with contextlib.ExitStack() as started:  # if a step fails, the earlier ones are undone
            started.callback(_end)
            if self._nvtx:
                started.enter_context(torch.autograd.profiler.emit_nvtx())
            else:
                self._torchs = _torchs_profiler(self._with_stack)
                with warnings.catch_warnings():  # torch 2.10 warns of a second use, at the first
                    warnings.filterwarnings("ignore", "Warning: Profiler clears events")
                    started.enter_context(self._torchs)
            if torch.backends.mps.is_available():
                torch.mps.profiler.start("interval")
                started.callback(torch.mps.profiler.stop)
            self._start = Event()
            self._start.record()
            self._start.synchronize()  # torch's events on MPS take the host's time at notification
            self._started = started.pop_all()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with self._started:
            self._done = True
            self._interrupted = self._torchs is not None and not torch.autograd._profiler_enabled()
            try:
                end = Event(self._start.device)
                end.record()
                end.synchronize()  # signposts and kernels that end later would be lost
                self._elapsed = self._start.elapsed_time(end)
            except RuntimeError:  # a device that failed in the block fails here again; the block's error is more useful
                if error is None:
                    raise

    @property
    def elapsed_time(self) -> float | None:
        """The milliseconds from the block's start until its work was done; None if the device failed. Raises
        RuntimeError before the block has ended.
        """
        self._expect_end("elapsed_time")
        return self._elapsed

    def rows(self) -> list[Row]:
        """The table's rows, in the order in which the operators were first called; empty with NVTX ranges. Raises
        RuntimeError before the block has ended, and if another profile ended this one.
        """
        self._expect_end("rows")
        self._expect_whole("rows")
        if self._rows is None:
            result = None if self._nvtx else self._torchs.profiler.kineto_results
            self._rows = [] if self._nvtx else _rows.rows_of(_records.calls_of(result), _records.work_of(result))
        return self._rows

    def table(self, torch_rows: int | None = 10) -> str:
        """The rows as text: fourfold's operators, then torch's and other work, each in order of time.

        Args:
            torch_rows: the number of torch's operators in rows of their own; the others are added up in one row. None:
                all, and 0: none. Operators that fell back to the CPU always have a row.

        Raises:
            ValueError: a negative number.
            RuntimeError: the block has not ended.
        """
        self._expect_end("table")
        if torch_rows is not None and torch_rows < 0:
            raise ValueError(f"profile.table: expected torch_rows to be None or from 0 on, but got {torch_rows}")
        if self._interrupted:
            return INTERRUPTED
        return RANGES if self._nvtx else _table.table(self.rows(), self._elapsed, torch_rows)

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the recording as a Chrome trace, which https://ui.perfetto.dev shows; compressed if the name ends in
        .gz. Raises RuntimeError before the block has ended, with NVTX ranges, and if another profile ended this one;
        and OSError."""
        self._expect_end("export_chrome_trace")
        self._expect_whole("export_chrome_trace")
        if self._nvtx:
            why = "the operators were emitted as NVTX or roctx ranges; profile with nvtx=False"
            raise RuntimeError(f"profile.export_chrome_trace: expected a profile that recorded, but {why}")
        if self._trace is None:  # torch writes it once
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "trace.json.gz"
                self._torchs.export_chrome_trace(str(file))
                self._trace = file.read_bytes()
        compressed = io.BytesIO(self._trace)
        source = compressed if str(path).endswith(".gz") else gzip.GzipFile(fileobj=compressed)
        with Path(path).open("wb") as target:
            shutil.copyfileobj(source, target)

    def _expect_end(self, what: str) -> None:
        if not self._done:
            said = "is still running" if self._start is not None else "was not begun"
            raise RuntimeError(
                f"profile.{what}: expected a block that has ended, but it {said}; read it after the block"
            )

    def _expect_whole(self, what: str) -> None:
        if self._interrupted:
            why = "a torch.profiler profile started within this one and ended it; run one of the two"
            raise RuntimeError(f"profile.{what}: expected one profile at a time, but {why}")


def _end() -> None:
    global _running
    _running = None


def _torchs_profiler(with_stack: bool) -> torch.profiler.profile:
    """A profiler of the CPU, and of the accelerator if torch's profiler supports it."""
    known = {torch.profiler.ProfilerActivity.CPU}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    activity = getattr(torch.profiler.ProfilerActivity, accelerator.type.upper(), None) if accelerator else None
    if activity in torch.profiler.supported_activities():
        known.add(activity)
    return torch.profiler.profile(activities=known, record_shapes=True, with_stack=with_stack)
