"""fourfold.Event: a timestamp in the order of a device's work, on every backend."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

DEVICES = "cpu, cuda, cuda:1 or mps"


class Event:
    """A timestamp in the order of a device's work: to wait for, to query, and to measure the time between two.

    It is a torch.cuda.Event on NVIDIA and AMD GPUs, a torch.mps.Event on Apple's, and a monotonic clock on the CPU,
    where calls are synchronous. The methods behave the same on all devices.

        start, end = fourfold.Event(), fourfold.Event()
        start.record()
        y = model(x)
        end.record()
        end.synchronize()
        print(start.elapsed_time(end), "ms")

    Args:
        device: cpu, cuda, cuda:1 or mps, as a string or torch.device. None is the current accelerator if it is one of
            these, and otherwise the CPU.
        enable_timing: whether :meth:`elapsed_time` is available; unlike in torch's classes, the default is True.

    Raises:
        ValueError: another device.
        RuntimeError: a device that torch can't use on this machine.
    """

    __slots__ = ("_device", "_enable_timing", "_mark", "_recorded")

    def __init__(self, device: torch.device | str | None = None, *, enable_timing: bool = True):
        self._device = _usable(device)
        self._enable_timing = enable_timing
        self._mark: Mark = MARKS[self._device.type](self._device, enable_timing)
        self._recorded = False

    @property
    def device(self) -> torch.device:
        """The device whose work the event marks, with the index of a GPU."""
        return self._device

    def record(self, stream: Any = None) -> None:
        """Marks the work submitted to a stream so far; the latest record counts.

        Args:
            stream: a torch.cuda.Stream of the event's device; None is the current stream.

        Raises:
            ValueError: a stream of another device, or any stream on the CPU or mps, which have one order of work.
        """
        if stream is not None and (not self._mark.streams or stream.device != self._device):
            has = f"one of {self._device}" if self._mark.streams else f"None on {self._device}"
            raise ValueError(f"Event.record: expected stream to be {has}, but got {stream}")
        self._mark.record(stream)
        self._recorded = True

    def wait(self, stream: Any = None) -> None:
        """Makes all work submitted to a stream from now on wait for the event. The host does not wait, and an event
        that was never recorded is not waited for.

        Args:
            stream: a torch.cuda.Stream of any device; None is the current stream.

        Raises:
            ValueError: any stream on the CPU or mps.
        """
        if stream is not None and not self._mark.streams:
            raise ValueError(f"Event.wait: expected stream to be None on {self._device}, but got {stream}")
        if self._recorded:
            self._mark.wait(stream)

    def query(self) -> bool:
        """Whether the work marked by the latest record has completed; True if nothing was recorded."""
        return not self._recorded or self._mark.query()

    def synchronize(self) -> None:
        """Blocks the host until the work marked by the latest record has completed; returns at once without one."""
        if self._recorded:
            self._mark.synchronize()

    def elapsed_time(self, end: Event) -> float:
        """The milliseconds from this event to ``end``, on the device's clock; negative if ``end`` came first. torch's
        events on mps take the host's clock at notification, some microseconds later.

        Raises:
            TypeError: end is not a fourfold.Event.
            ValueError: end is on another device.
            RuntimeError: one of the events was never recorded, has enable_timing=False, or has not completed.
        """
        if not isinstance(end, Event):
            raise TypeError(f"Event.elapsed_time: expected end to be a fourfold.Event, but got {type(end).__name__}")
        if self._device != end._device:
            both = f"{self._device} and {end._device}"
            raise ValueError(f"Event.elapsed_time: expected both events to be on one device, but got {both}")
        for name, event in (("the first", self), ("the last", end)):
            if not event._enable_timing:
                made = f"{name} was made with enable_timing=False; leave that out"
                raise RuntimeError(f"Event.elapsed_time: expected both events to measure time, but {made}")
            if not event._recorded:
                call = f"{name} was not; call its record() first"
                raise RuntimeError(f"Event.elapsed_time: expected both events to be recorded, but {call}")
            if not event._mark.query():
                call = f"{name} has not yet; call its synchronize() first"
                raise RuntimeError(f"Event.elapsed_time: expected both events to have happened, but {call}")
        return end._mark.milliseconds_since(self._mark)

    def __repr__(self) -> str:
        timing = "" if self._enable_timing else ", enable_timing=False"
        return f"<fourfold.Event({str(self._device)!r}{timing}), {'' if self._recorded else 'not '}recorded>"


Event.__module__ = "fourfold"  # its public module


class Mark(Protocol):
    """An event on one kind of device. Other methods are called only after record()."""

    streams: bool  # whether the device has streams to choose from

    def record(self, stream: Any) -> None: ...

    def wait(self, stream: Any) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def milliseconds_since(self, start: Any) -> float: ...


class HostMark:
    """On the CPU, where calls are synchronous."""

    __slots__ = ("at",)
    streams = False

    def __init__(self, device: torch.device, enable_timing: bool): ...

    def record(self, stream: None) -> None:
        self.at = time.perf_counter_ns()

    def wait(self, stream: None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def milliseconds_since(self, start: HostMark) -> float:
        return (self.at - start.at) * 1e-6


class CUDAMark:
    """On NVIDIA's and AMD's GPUs."""

    __slots__ = ("device", "event")
    streams = True

    def __init__(self, device: torch.device, enable_timing: bool):
        self.device = device
        self.event = torch.cuda.Event(enable_timing=enable_timing)

    def record(self, stream: torch.cuda.Stream | None) -> None:
        self.event.record(torch.cuda.current_stream(self.device) if stream is None else stream)

    def wait(self, stream: torch.cuda.Stream | None) -> None:
        self.event.wait(stream)

    def query(self) -> bool:
        return self.event.query()

    def synchronize(self) -> None:
        self.event.synchronize()

    def milliseconds_since(self, start: CUDAMark) -> float:
        return start.event.elapsed_time(self.event)


class MPSMark:
    """On Apple's GPUs. A torch.mps.Event loses its signal when it is waited for, or ends a measurement: a second
    measurement that ends there, or one after its synchronize(), may wait forever. So each record creates a new event of
    torch's, each is measured once, against an origin, and torch.mps.synchronize() waits for the device."""

    __slots__ = ("at", "enable_timing", "event")
    streams = False
    origin: Any = None  # a mark that happened before all others that measure time

    def __init__(self, device: torch.device, enable_timing: bool):
        self.enable_timing = enable_timing
        if enable_timing and MPSMark.origin is None:
            MPSMark.origin = torch.mps.Event(enable_timing=True)
            MPSMark.origin.record()
            torch.mps.synchronize()

    def record(self, stream: None) -> None:
        self.event, self.at = torch.mps.Event(enable_timing=self.enable_timing), None
        self.event.record()

    def wait(self, stream: None) -> None:
        self.event.wait()

    def query(self) -> bool:
        return self.event.query()

    def synchronize(self) -> None:
        if not self.event.query():
            torch.mps.synchronize()

    def milliseconds_since(self, start: MPSMark) -> float:
        return self.milliseconds() - start.milliseconds()

    def milliseconds(self) -> float:
        if self.at is None:
            self.at = self.origin.elapsed_time(self.event)
        return self.at


MARKS: dict[str, Any] = {"cpu": HostMark, "cuda": CUDAMark, "mps": MPSMark}


def _usable(asked: torch.device | str | None) -> torch.device:
    """The device, a GPU with its index."""
    if asked is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return _usable(accelerator if accelerator is not None and accelerator.type in MARKS else "cpu")
    try:
        device = torch.device(asked) if isinstance(asked, (str, torch.device)) else None
    except RuntimeError:
        device = None
    if device is None or device.type not in MARKS:
        hint = "; enable_timing is given by name" if isinstance(asked, bool) else ""
        raise ValueError(f"Event: expected device to be {DEVICES}, but got {asked!r}{hint}")
    if device.type == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if device.type == "cuda" else int(torch.backends.mps.is_available())
    if (device.index or 0) >= count:
        sees = f"torch {torch.__version__} sees {count or 'none'} of that kind"
        raise RuntimeError(f"Event: expected a device that torch can use here, but got {asked!r}: {sees}")
    index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else device.index or 0
    return torch.device(device.type, index)
