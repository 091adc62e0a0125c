"""``real``: published models with the weights of their packages, restated in examples/models: Silero VAD, frame by
frame and a whole sound at once, against the package's own files."""

from __future__ import annotations

import copy
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.measure import ThreadTime, interleave, median_ratio, summarise
from benchmarks.processes import ROOT
from benchmarks.request import Request
from benchmarks.results import Report
from benchmarks.speech import speech
from benchmarks.suites import target
from benchmarks.targets import PLAIN, Outcome
from fourfold.cli.timing import pinned_threads
from fourfold.cli.usage import UsageError

SCRIPT, ONNX = "the package's TorchScript", "the package's ONNX file, ONNX Runtime"
OPTIMIZED, COMPILED = "fourfold.optimize", 'torch.compile(backend="fourfold")'
LOADED = "fourfold.load"
PACKAGES = ("silero_vad", "onnxruntime")
RATE, SAMPLES, FRAMES = 16000, 512, 600
STREAMS = (1, 8, 64)
DIFFERENCE = 1e-5  # of probabilities
Way = Callable[[], Tensor]


class Whole(nn.Module):
    """The probabilities of all frames of a sound, (frames, context + samples) -> (frames)."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.lstm = model, nn.LSTM(128, 128)
        with torch.no_grad():
            for name, weight in model.cell.named_parameters():
                getattr(self.lstm, f"{name}_l0").copy_(weight)

    def forward(self, frames: Tensor) -> Tensor:
        h, _ = self.lstm(self.model.features(frames))
        return self.model.out(h.relu().unsqueeze(-1)).sigmoid().flatten()


def example(name: str) -> ModuleType:
    """The module of examples/models of that name."""
    spec = importlib.util.spec_from_file_location(f"model_{name}", ROOT / "examples/models" / name / "model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where Dynamo looks for a function's globals
    spec.loader.exec_module(module)
    return module


def data(name: str) -> str:
    (folder,) = importlib.util.find_spec("silero_vad").submodule_search_locations
    return str(Path(folder, "data", name))


def tables(request: Request) -> Iterator[Report]:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"real: expected {', '.join(missing)}: pip install --no-deps {' '.join(PACKAGES)}")
    silero = example("silero_vad")
    with pinned_threads(1), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vad.ff"
        silero.save(str(path))
        model, onnx = silero.pretrained(), session("silero_vad.onnx")
        sound = speech(RATE, seconds=20)[: FRAMES * SAMPLES].view(FRAMES, 1, SAMPLES)
        of_one: dict[str, list[float]] = {}
        for streams in STREAMS[:1] if request.quick else STREAMS:
            ways = frame_by_frame(model, path, onnx, sound.expand(-1, streams, -1))
            title = "Silero VAD, a frame" + (f" of {streams} streams" if streams > 1 else "")
            apart, times = differences(ways), times_of(ways, request)
            of_one = of_one or times
            yield report(title, apart, times, per=streams, of_one=of_one)
        ways = at_once(model, sound, folder)
        apart, times = differences(ways), times_of(ways, request)
        yield report(f"Silero VAD, {FRAMES} frames at once", apart, times, per=FRAMES)


def session(name: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(data(name), options, providers=["CPUExecutionProvider"])


def frame_by_frame(model: nn.Module, path: Path, onnx: Any, sound: Tensor) -> dict[str, Way]:
    """Each call takes the next frame of every stream."""
    streams = sound.shape[1]
    script = torch.jit.load(data("silero_vad.jit"))

    def with_state(call: Callable[..., tuple[Tensor, ...]]) -> Callable[[Tensor], Tensor]:
        state = [torch.zeros(streams, size) for size in (model.context, 128, 128)]

        def step(frame: Tensor) -> Tensor:
            probability, *state[:] = call(frame, *state)
            return probability

        return step

    of_onnx: dict[str, Any] = {
        "state": torch.zeros(2, streams, 128).numpy(), "context": torch.zeros(streams, model.context)
    }  # fmt: skip

    def of_runtime(frame: Tensor) -> Tensor:
        x = torch.cat([of_onnx["context"], frame], 1)
        rate = torch.tensor(RATE).numpy()
        found, of_onnx["state"] = onnx.run(None, {"input": x.numpy(), "state": of_onnx["state"], "sr": rate})
        of_onnx["context"] = x[:, -model.context :]
        return torch.from_numpy(found).flatten()

    optimized = copy.deepcopy(model)
    fourfold.optimize(optimized)
    torch.compiler.reset()
    steps = {
        SCRIPT: lambda frame: script(frame, RATE).flatten(),
        ONNX: of_runtime,
        PLAIN: with_state(model),
        OPTIMIZED: with_state(optimized),
        COMPILED: with_state(torch.compile(model, backend="fourfold", dynamic=False)),
        LOADED: fourfold.load(path).stream(),
    }
    return {name: over(step, sound) for name, step in steps.items()}


def over(step: Callable[[Tensor], Tensor], sound: Tensor) -> Way:
    """Calls the step with one frame of the sound after the other, again and again."""
    place = -1

    def call() -> Tensor:
        nonlocal place
        place = (place + 1) % len(sound)
        return step(sound[place])

    return call


def at_once(model: nn.Module, sound: Tensor, folder: str) -> dict[str, Way]:
    frames = sound.squeeze(1)
    context = torch.cat([torch.zeros(1, model.context), frames[:-1, -model.context :]])
    x, onnx = torch.cat([context, frames], 1), session("silero_vad_16k_sequence.onnx")
    zeros = torch.zeros(1, 1, 128).numpy()
    whole = Whole(model).eval().requires_grad_(False)
    optimized = copy.deepcopy(whole)
    fourfold.optimize(optimized)
    path = Path(folder, "whole.ff")
    fourfold.save(torch.export.export(optimized, (x,)), path)
    loaded = fourfold.load(path)
    torch.compiler.reset()
    compiled = torch.compile(whole, backend="fourfold")
    given = {"input": x.numpy(), "h": zeros, "c": zeros}
    return {
        ONNX: lambda: torch.from_numpy(onnx.run(None, given)[0]).flatten(),
        PLAIN: lambda: whole(x),
        OPTIMIZED: lambda: optimized(x),
        COMPILED: lambda: compiled(x),
        LOADED: lambda: loaded(x),
    }


def times_of(ways: Mapping[str, Way], request: Request) -> dict[str, list[float]]:
    """Seconds of CPU time a call, in turns."""

    def sample(way: Way) -> Callable[[int], dict[str, float]]:
        def run(iterations: int) -> dict[str, float]:
            begin, end = ThreadTime(), ThreadTime()
            begin.record()
            for _ in range(iterations):
                way()
            end.record()
            return {"": begin.elapsed_time(end) / 1e3 / iterations}

        return run

    return {
        name: each[""] for name, each in interleave({n: sample(w) for n, w in ways.items()}, request.repeats).items()
    }


def differences(ways: Mapping[str, Way]) -> dict[str, float]:
    """From plain PyTorch, in the first call."""
    first = {name: way() for name, way in ways.items()}
    return {name: (each - first[PLAIN]).abs().max().item() for name, each in first.items()}


def report(
    title: str,
    apart: Mapping[str, float],
    times: Mapping[str, list[float]],
    per: int,
    of_one: Mapping[str, list[float]] | None = None,
) -> Report:
    """per: the frames of a call. of_one: the times of one stream; a batch's target is in frames of these."""
    medians = {name: summarise(each).median / per for name, each in times.items()}
    ratios = {name: median_ratio(times[ONNX], each) for name, each in times.items()}
    cells = [(name, f"{1e6 * medians[name]:.1f}", f"{ratios[name]:.2f}×") for name in times]
    aim = target(title)
    rival, frames = (times, 1) if of_one is None else (of_one, per)
    reached = frames * (median_ratio(rival[aim.against], times[LOADED]) or 0)
    return Report(
        title=title,
        headings=("CPU time on one thread, 16 kHz", "µs a frame", "times ONNX Runtime"),
        cells=cells,
        figures=[{"way": n, "seconds": medians[n], "of_onnx": ratios[n], "difference": apart[n]} for n in times],
        notes=[f"Largest difference from {PLAIN} in the first call: {max(apart.values()):.1g}"],
        outcomes=[Outcome(aim, title, reached)],
        wrong=max(apart.values()) > DIFFERENCE,
    )
