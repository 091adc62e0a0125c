"""fourfold.Event: on the CPU, against stand-ins for torch's events, and on a GPU if there is one."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fourfold
from fourfold._event import MPSMark
from machine import devices


@pytest.mark.parametrize("device", devices())
def test_it_measures_what_lies_between(device: str) -> None:
    start, end = fourfold.Event(device), fourfold.Event(device)
    begin = time.perf_counter()
    start.record()
    x = torch.randn(500, 500, device=device)
    for _ in range(5):
        x = x @ x
    time.sleep(0.02)
    end.record()
    end.synchronize()
    wall = 1e3 * (time.perf_counter() - begin)
    assert end.query()
    assert 20 <= start.elapsed_time(end) <= wall
    assert end.elapsed_time(start) == pytest.approx(-start.elapsed_time(end))
    middle = start.elapsed_time(end)
    end.record()  # the last record counts
    end.synchronize()
    assert start.elapsed_time(end) > middle


def test_on_the_cpu_nothing_is_waited_for() -> None:
    event = fourfold.Event("cpu")
    assert fourfold.Event.__module__ == "fourfold"
    assert event.device == torch.device("cpu") and repr(event) == "<fourfold.Event('cpu'), not recorded>"
    for _ in range(2):
        assert event.query()
        event.wait()
        event.synchronize()
        event.record()
    assert repr(fourfold.Event("cpu", enable_timing=False)) == (
        "<fourfold.Event('cpu', enable_timing=False), not recorded>"
    )


@pytest.mark.parametrize(("accelerator", "device"), [(None, "cpu"), ("xpu", "cpu"), ("mps", "mps:0")])
def test_the_default_is_torchs_accelerator(accelerator: str | None, device: str, monkeypatch: Any) -> None:
    found = accelerator and torch.device(accelerator)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: found)
    stand_in_for_mps(monkeypatch)
    assert fourfold.Event().device == torch.device(device)


def recorded(*args: Any, **keywords: Any) -> fourfold.Event:
    event = fourfold.Event(*args, **keywords)
    event.record()
    return event


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (
            lambda: fourfold.Event("meta"),
            ValueError,
            "Event: expected device to be cpu, cuda, cuda:1 or mps, but got 'meta'",
        ),
        (lambda: fourfold.Event("abacus"), ValueError, "Event: expected device to be .*, but got 'abacus'"),
        (lambda: fourfold.Event(True), ValueError, "but got True; enable_timing is given by name"),
        (lambda: fourfold.Event(1), ValueError, "but got 1$"),
        (
            lambda: recorded("cpu").record(object()),
            ValueError,
            "Event.record: expected stream to be None on cpu, but got <",
        ),
        (
            lambda: recorded("cpu").wait(object()),
            ValueError,
            "Event.wait: expected stream to be None on cpu, but got <",
        ),
        (
            lambda: recorded("cpu").elapsed_time(torch.cuda.Event),
            TypeError,
            "Event.elapsed_time: expected end to be a fourfold.Event, but got type",
        ),
        (
            lambda: fourfold.Event("cpu").elapsed_time(recorded("cpu")),
            RuntimeError,
            r"expected both events to be recorded, but the first was not; call its record\(\) first",
        ),
        (lambda: recorded("cpu").elapsed_time(fourfold.Event("cpu")), RuntimeError, "but the last was not"),
        (
            lambda: recorded("cpu").elapsed_time(recorded("cpu", enable_timing=False)),
            RuntimeError,
            "expected both events to measure time, but the last was made with enable_timing=False; leave that out",
        ),
    ],
)
def test_a_mistake_is_a_sentence(call: Any, kind: type, sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        call()


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "mps"])
def test_a_device_that_is_not_there_is_a_sentence(device: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(
        RuntimeError, match=f"expected a device that torch can use here, but got '{device}': torch .* none"
    ):
        fourfold.Event(device)


class CUDAEvent:
    """torch.cuda.Event on a device that does its work only when something waits for it."""

    asked: list[Any] = []

    def __init__(self, enable_timing: bool):
        self.enable_timing, self.at, self.done = enable_timing, None, True

    def record(self, stream: Any) -> None:
        self.asked.append(("record", stream.device))
        self.at, self.done = len(self.asked), False

    def wait(self, stream: Any) -> None:
        self.asked.append(("wait", stream))

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.asked.append("synchronize")
        self.done = True

    def elapsed_time(self, end: CUDAEvent) -> float:
        assert self.enable_timing and end.enable_timing and self.done and end.done
        return float(end.at - self.at)


@pytest.fixture
def cuda(monkeypatch: Any) -> list[Any]:
    """Two GPUs, of which the second is current; returns the calls of torch's events."""
    CUDAEvent.asked = []
    monkeypatch.setattr(torch.cuda, "Event", CUDAEvent)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(device=device))
    return CUDAEvent.asked


def test_on_cuda_it_is_torchs_event(cuda: list[Any]) -> None:
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    start, end = fourfold.Event("cuda"), fourfold.Event("cuda:1")
    assert start.device == end.device == second
    start.synchronize()
    start.wait()
    assert start.query() and cuda == []  # without a record, torch is not called
    start.record()
    end.record(SimpleNamespace(device=second))
    assert not end.query()
    with pytest.raises(
        RuntimeError, match=r"expected both events to have happened, but the first has not yet; call its syn"
    ):
        start.elapsed_time(end)
    start.synchronize()
    with pytest.raises(RuntimeError, match="but the last has not yet"):
        start.elapsed_time(end)
    end.wait("another stream")
    end.synchronize()
    assert start.elapsed_time(end) == 1.0
    assert cuda == [("record", second), ("record", second), "synchronize", ("wait", "another stream"), "synchronize"]
    with pytest.raises(ValueError, match="expected stream to be one of cuda:1, but got"):
        start.record(SimpleNamespace(device=first))
    with pytest.raises(ValueError, match="expected both events to be on one device, but got cuda:1 and cuda:0"):
        start.elapsed_time(fourfold.Event("cuda:0"))
    with pytest.raises(RuntimeError, match="but got 'cuda:2': torch .* sees 2 of that kind"):
        fourfold.Event("cuda:2")


class MPSEvent:
    """torch.mps.Event: it signals once per record; waiting a second time for that signal never ends. The device does
    its work only when something waits for it."""

    now = 0
    devices_work: list[MPSEvent] = []

    def __init__(self, enable_timing: bool = False):
        self.enable_timing, self.at, self.signals = enable_timing, None, 0

    def record(self) -> None:
        assert self.at is None, "recorded again, its first time may be read"
        self.devices_work.append(self)

    def query(self) -> bool:
        return self.at is not None

    def wait(self) -> None:
        assert self in self.devices_work

    def synchronize(self) -> None:
        self.take_signal()

    def elapsed_time(self, end: MPSEvent) -> float:
        finish()
        end.take_signal()
        assert self.enable_timing and end.enable_timing and end.at > self.at
        return float(end.at - self.at)

    def take_signal(self) -> None:
        assert self.signals == 1, "waits for ever"
        self.signals = 0


def finish() -> None:
    while MPSEvent.devices_work:
        event = MPSEvent.devices_work.pop(0)
        MPSEvent.now += 1
        event.at, event.signals = MPSEvent.now, 1


def stand_in_for_mps(monkeypatch: Any) -> None:
    MPSEvent.devices_work = []
    monkeypatch.setattr(MPSMark, "origin", None)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "Event", MPSEvent)
    monkeypatch.setattr(torch.mps, "synchronize", finish)


def test_on_mps_any_two_events_are_measured_any_number_of_times(monkeypatch: Any) -> None:
    stand_in_for_mps(monkeypatch)
    first, second, third = (fourfold.Event("mps") for _ in range(3))
    for event in (first, second, third):
        event.synchronize()
        event.record()
    assert not third.query()
    with pytest.raises(RuntimeError, match="expected both events to have happened, but the first has not yet"):
        first.elapsed_time(third)
    third.wait()
    third.synchronize()
    third.synchronize()
    for _ in range(2):
        assert [first.elapsed_time(third), second.elapsed_time(third), second.elapsed_time(first)] == [2.0, 1.0, -1.0]
    first.record()
    first.synchronize()
    assert third.elapsed_time(first) == 1.0
    with pytest.raises(ValueError, match="expected stream to be None on mps:0"):
        first.record("a stream")


def test_on_mps_an_event_without_timing_needs_no_origin(monkeypatch: Any) -> None:
    stand_in_for_mps(monkeypatch)
    event = recorded("mps", enable_timing=False)
    event.synchronize()
    assert event.query() and MPSMark.origin is None
