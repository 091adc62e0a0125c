"""fourfold.profiler.profile: real runs on the CPU, and what it starts and stops on GPUs, against stand-ins."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fourfold
from forked import Forks
from fourfold import profiler
from machine import devices


def train(device: str = "cpu") -> None:
    model = nn.Sequential(
        nn.Linear(8, 16), fourfold.nn.Softshrink(), fourfold.nn.MLP([16, 16, 4], activation="tanh")
    ).to(device)
    model(torch.randn(32, 8, device=device)).sum().backward()


@pytest.fixture(scope="module")
def trained() -> profiler.profile:
    with profiler.profile() as prof:
        for _ in range(3):
            train()
    return prof


@pytest.mark.parametrize("device", devices())
def test_fourfolds_operators_are_in_it_by_name(device: str) -> None:
    with profiler.profile() as prof:
        train(device)
    ours = {row.operator: row for row in prof.rows() if row.is_fourfolds}
    assert set(ours) == {
        "fourfold::softshrink",
        "fourfold::softshrink_backward",
        "fourfold::mlp_layers",
        "fourfold::mlp_layers_backward",
    }
    for row in ours.values():
        assert (row.calls, row.dtype, row.device, row.fell_back) == (1, "float32", device, 0)
        assert row.host_time > 0
        assert row.device_time is None if device == "mps" else row.device_time > 0  # torch doesn't time Metal


def test_the_rows_add_up_to_what_torchs_profiler_says(trained: profiler.profile) -> None:
    """Host time in ms, without the driver's calls and the regions' own time, which is time in Python."""
    averages = [row for row in trained._torchs.key_averages() if not row.key.startswith(("cuda", "hip", "Activity"))]
    own = sum(row.self_cpu_time_total for row in averages if not row.is_user_annotation) * 1e-3
    assert sum(row.host_time for row in trained.rows()) == pytest.approx(own, rel=1e-6)
    calls = {row.key: row.count for row in averages}
    for row in trained.rows():
        if row.is_fourfolds:
            assert row.calls == calls[row.operator] == 3
    assert 0 < sum(row.host_time for row in trained.rows()) < trained.elapsed_time


def test_it_prints_a_table(trained: profiler.profile) -> None:
    text = str(trained)
    assert text == trained.table() == trained.table(torch_rows=10)
    heading = text.splitlines()[0].split()
    assert heading == ["calls", "dtype", "device", "ms", "share", "copied", "fell", "back"]
    assert re.search(r"^  fourfold::softshrink_backward +3  float32  cpu ", text, re.MULTILINE)
    assert text.count("\n  aten::") + text.count("\n  autograd") == 10 and re.search(
        r"^  \d+ more ", text, re.MULTILINE
    )
    assert re.search(r"The block took \d+\.\d{3} ms; the host spent \d+\.\d{3} ms in the listed rows\.", text)
    everything = trained.table(torch_rows=None)
    assert " more " not in everything and "aten::as_strided" in everything
    assert "aten::" not in trained.table(torch_rows=0)


def test_the_trace_is_valid_and_has_the_operators_by_name(trained: profiler.profile, tmp_path: Path) -> None:
    for name in ("trace.json", "again.json", "trace.json.gz"):
        trained.export_chrome_trace(tmp_path / name)
    text = (tmp_path / "trace.json").read_text(encoding="utf-8")
    assert (tmp_path / "again.json").read_text(encoding="utf-8") == text
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()).decode() == text
    events = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and {"ts", "pid", "tid", "name"} <= set(event) for event in events)
    names = [event["name"] for event in events]
    assert names.count("fourfold::softshrink") == names.count("fourfold::mlp_layers_backward") == 3


def test_with_stack_the_rows_are_the_same_and_the_trace_has_lines(trained: profiler.profile, tmp_path: Path) -> None:
    with profiler.profile(with_stack=True) as prof:
        train()
    assert {(row.operator, row.calls) for row in prof.rows() if row.is_fourfolds} == {
        (row.operator, row.calls // 3) for row in trained.rows() if row.is_fourfolds
    }
    prof.export_chrome_trace(tmp_path / "trace.json")
    assert "test_profiler.py" in (tmp_path / "trace.json").read_text()
    trained.export_chrome_trace(tmp_path / "trace.json")
    assert "test_profiler.py" not in (tmp_path / "trace.json").read_text()


FALLBACK = """
import torch, torch._lazy, torch._lazy.ts_backend
from fourfold import profiler
torch._lazy.ts_backend.init()
x = torch.randn(3, 4).to("lazy")
with profiler.profile() as prof:
    torch.special.i0e(x)
    torch.special.i0e(x)
    x + x
    torch.special.i0e(torch.ones(3))
told = [row for row in prof.rows() if row.operator in ("aten::special_i0e", "aten::add")]
print([(row.operator, row.device, row.calls, row.fell_back) for row in told])
print(prof)
"""


def test_an_operator_without_a_kernel_for_its_device_is_found(after_dynamo: Forks) -> None:
    """torch's lazy device is an accelerator in every build; its fallback to the CPU is the one that MPS uses."""
    said = after_dynamo.output_of("-c", FALLBACK)
    rows = [("aten::special_i0e", "lazy", 2, 2), ("aten::add", "lazy", 1, 0), ("aten::special_i0e", "cpu", 1, 0)]
    assert str(rows) in said
    assert "aten::special_i0e fell back to the CPU in 2 of 2 calls: it has no kernel for lazy" in said


def sentence(call: Callable[[], object], kind: type = RuntimeError) -> str:
    with pytest.raises(kind) as raised:
        call()
    return str(raised.value)


def enter(prof: profiler.profile) -> None:
    with prof:
        pytest.fail("entered")


READS = {
    "table": str,
    "rows": profiler.profile.rows,
    "elapsed_time": lambda prof: prof.elapsed_time,
    "export_chrome_trace": lambda prof: prof.export_chrome_trace("nowhere/to/be.json"),
}


@pytest.mark.parametrize("what", READS)
def test_it_is_read_after_its_block(what: str) -> None:
    prof = profiler.profile()
    expected = f"profile.{what}: expected a block that has ended, but it"
    assert sentence(lambda: READS[what](prof)) == f"{expected} was not begun; read it after the block"
    with prof:
        assert sentence(lambda: READS[what](prof)) == f"{expected} is still running; read it after the block"


def test_one_at_a_time(trained: profiler.profile) -> None:
    other = "profile: expected no other profile to be running, but one is; end its block first"
    with profiler.profile() as outer:
        assert sentence(lambda: enter(profiler.profile())) == other
        assert "expected one that was not used yet, but this one was; make another one" in sentence(
            lambda: enter(outer)
        )
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert sentence(lambda: enter(profiler.profile())) == other
    assert "expected one that was not used yet" in sentence(lambda: enter(trained))
    with profiler.profile():  # none of the rejected ones keeps running
        pass
    said = sentence(lambda: trained.table(torch_rows=-1), ValueError)
    assert said == "profile.table: expected torch_rows to be None or from 0 on, but got -1"


def test_an_exception_passes_and_nothing_stays_started() -> None:
    prof = profiler.profile()
    with pytest.raises(KeyError, match="mine"), prof:
        train()
        raise KeyError("mine")
    assert not torch.autograd._profiler_enabled() and profiler._running is None
    assert "fourfold::softshrink" in str(prof)
    with profiler.profile() as after:
        pass
    assert after.rows() == []


def test_a_device_that_failed_does_not_hide_the_blocks_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(event: fourfold.Event) -> None:
        raise RuntimeError("the device is lost")

    for error in (KeyError("mine"), None):
        prof = profiler.profile()
        failing = pytest.raises(KeyError if error else RuntimeError, match="mine" if error else "the device is lost")
        with monkeypatch.context() as inside, failing, prof:
            inside.setattr(fourfold.Event, "synchronize", broken)
            if error:
                raise error
        assert not torch.autograd._profiler_enabled() and prof.elapsed_time is None
        assert "The block took" not in str(prof)


class Calls(list):
    """A list of calls in order."""

    def of(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **keywords: self.append((name, *arguments, *keywords.items()))


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The parts of a machine with an Apple GPU that a profile uses."""
    calls = Calls()

    class Event:
        def __init__(self, device: Any = None):
            self.device = "mps"

        record, synchronize = calls.of("record"), calls.of("synchronize")
        elapsed_time = staticmethod(lambda end: 5.0)

    monkeypatch.setattr(profiler, "Event", Event)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    monkeypatch.setattr(torch.mps.profiler, "start", calls.of("start"))
    monkeypatch.setattr(torch.mps.profiler, "stop", calls.of("stop"))
    return calls


def test_on_mps_signposts_are_traced_until_the_device_is_done(mps: Calls) -> None:
    with profiler.profile() as prof:
        mps.append("block")
    assert [call[0] if isinstance(call, tuple) else call for call in mps] == [
        "start",
        "record",
        "synchronize",
        "block",
        "record",
        "synchronize",
        "stop",
    ]
    assert mps[0] == ("start", "interval") and prof.elapsed_time == 5.0
    del mps[:]
    with pytest.raises(KeyError), profiler.profile():
        raise KeyError
    assert [call[0] for call in mps] == ["start", "record", "synchronize", "record", "synchronize", "stop"]


def test_what_was_started_is_stopped_where_the_next_cannot_be(mps: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(mode: str) -> None:
        raise RuntimeError("Tracing Signposts is already enabled")

    with monkeypatch.context() as patch:
        patch.setattr(torch.mps.profiler, "start", taken)
        assert sentence(lambda: enter(profiler.profile())) == "Tracing Signposts is already enabled"
    assert mps == []  # the trace continues
    with monkeypatch.context() as patch:
        patch.setattr(profiler, "Event", calls_fail := lambda: calls_fail.missing)
        sentence(lambda: enter(profiler.profile()), AttributeError)
    assert [call[0] for call in mps] == ["start", "stop"]
    assert not torch.autograd._profiler_enabled()
    with profiler.profile():
        pass


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The parts of a machine with a GPU that NVTX ranges need."""
    calls = Calls()

    @contextlib.contextmanager
    def emit_nvtx() -> Iterator[None]:
        calls.append("emit")
        yield
        calls.append("end")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.autograd.profiler, "emit_nvtx", emit_nvtx)
    monkeypatch.delenv(profiler.NSIGHT, raising=False)
    return calls


def test_nvtx_ranges_take_the_place_of_a_table(nvidia: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profiler.NSIGHT, "1234")
    for nvtx in (True, None):
        with profiler.profile(nvtx=nvtx) as prof:
            assert not torch.autograd._profiler_enabled()
            nvidia.append("block")
        assert nvidia == ["emit", "block", "end"]
        assert str(prof).startswith("No table: the operators were emitted as NVTX or roctx ranges")
        assert prof.rows() == [] and prof.elapsed_time > 0
        assert sentence(lambda prof=prof: prof.export_chrome_trace("x.json")) == (
            "profile.export_chrome_trace: expected a profile that recorded, but the operators were emitted as NVTX or "
            "roctx ranges; profile with nvtx=False"
        )
        del nvidia[:]
    with pytest.raises(KeyError), profiler.profile():
        raise KeyError
    assert nvidia == ["emit", "end"]
    assert sentence(lambda: profiler.profile(with_stack=True), ValueError).startswith(
        "profile: expected with_stack=False"
    )


@pytest.mark.parametrize(("nvtx", "nsight"), [(False, True), (None, False)])
def test_elsewhere_it_records(nvtx: bool | None, nsight: bool, nvidia: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    if nsight:
        monkeypatch.setenv(profiler.NSIGHT, "1234")
    with profiler.profile(nvtx=nvtx) as prof:
        train()
    assert nvidia == [] and "fourfold::softshrink" in str(prof)


def test_nvtx_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    monkeypatch.setenv(profiler.NSIGHT, "1234")
    said = sentence(lambda: enter(profiler.profile(nvtx=True)))
    assert said.startswith("profile: expected a GPU of NVIDIA or AMD for nvtx=True, but torch ")
    with profiler.profile() as prof:
        train()
    assert "fourfold::softshrink" in str(prof)


@pytest.mark.parametrize("accelerator", [None, "cuda", "xpu", "mps"])
def test_torchs_profiler_is_asked_for_the_accelerator_that_it_knows(
    accelerator: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    activity, asked = torch.profiler.ProfilerActivity, []
    found = accelerator and torch.device(accelerator)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: found)
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {activity.CPU, activity.CUDA})
    monkeypatch.setattr(torch.profiler, "profile", lambda **keywords: asked.append(keywords) or SimpleNamespace())
    profiler._torchs_profiler(with_stack=True)
    known = {activity.CPU} | ({activity.CUDA} if accelerator == "cuda" else set())
    assert asked == [{"activities": known, "record_shapes": True, "with_stack": True}]


def test_a_profile_of_torchs_own_within_the_block_is_told() -> None:
    with profiler.profile() as prof:
        fourfold.softshrink(torch.ones(3))
        with torch.profiler.profile() as inner:
            torch.ones(3).sum()
        fourfold.softshrink(torch.ones(3))
    assert any(event.key == "aten::sum" for event in inner.key_averages())
    assert str(prof) == prof.table() == profiler.INTERRUPTED and prof.elapsed_time > 0
    for read in (prof.rows, lambda: prof.export_chrome_trace("trace.json")):
        with pytest.raises(
            RuntimeError, match="expected one profile at a time, but a torch.profiler profile started within this one"
        ):
            read()
    with profiler.profile() as after:
        fourfold.softshrink(torch.ones(3))
    assert [row.operator for row in after.rows() if row.is_fourfolds] == ["fourfold::softshrink"]
