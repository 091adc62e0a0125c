"""The Metal backend with injected errors: pytest tests/simulators/broken_metal.py. The case table, a sanitizer or the
compiler must find each of them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import simulated_metal
from simulation import run_python


@dataclass(frozen=True)
class Mistake:
    file: str
    right: str
    wrong: str
    selection: str = ""
    seen_as: str = "Tensor-likes are not close"
    sanitizer: str = "checked"
    count: int = 1


BARRIER = "      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);\n"
MISTAKES = {
    "a missing barrier": Mistake(
        "recurrent.metal",
        f"{BARRIER}      for (int k = 0; k < tile_depth; k += 8) {{",
        "      for (int k = 0; k < tile_depth; k += 8) {",
        "lstm-row-tiles-float32-contiguous",
        "data race",
        sanitizer="thread",
        count=2,
    ),
    "a barrier that not all threads reach": Mistake(
        "mlp.metal",
        "  if ((job.has & has_grad_x) == 0) return;",
        "  if (at >= 128) return;\n  if ((job.has & has_grad_x) == 0) return;",
        "mlp-odd-float32-contiguous",
        "a barrier that threads which have ended do not reach",
    ),
    "two buffers exchanged": Mistake(
        "mlp.mm",
        "job.hidden_bias, job.output_weights, job.output_bias, job.hidden",
        "job.output_bias, job.output_weights, job.hidden_bias, job.hidden",
        "mlp-odd-float32-contiguous",
        "of an allocation of",
    ),
    "an offset left out": Mistake(
        "encoder.mm",
        "static_cast<NSUInteger>(data.offset)",
        "static_cast<NSUInteger>(data.offset * 0)",
        "softshrink-vector-float32-shifted",
    ),
    "a grid rounded down": Mistake(
        "map.mm",
        "(left + per_thread - 1) / per_thread",
        "std::max<int64_t>(left / per_thread, 1)",
        "softshrink and float32-contiguous",
    ),
    "an index out of range": Mistake(
        "recurrent.metal",
        "if (element >= job.rows * size) return;",
        "if (element > job.rows * size) return;",
        "lltm_cell-odd-float32-contiguous",
        "of an allocation of",
    ),
    "a selector misspelled": Mistake(
        "encoder.mm",
        "setBytes:value length:",
        "setByte:value length:",
        seen_as="method '-setByte:length:atIndex:' not found",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(mistake: str, tmp_path: Path) -> None:
    given = MISTAKES[mistake]
    metal = tmp_path / "metal"
    shutil.copytree(simulated_metal.METAL, metal)
    text = (metal / given.file).read_text()
    assert text.count(given.right) == given.count
    (metal / given.file).write_text(text.replace(given.right, given.wrong))
    if not given.selection:
        with pytest.raises(RuntimeError, match=given.seen_as):
            simulated_metal.build(given.sanitizer, metal)
        return
    library = simulated_metal.build(given.sanitizer, metal)
    environment = {"FOURFOLD_SIMULATED": str(library)}
    environment |= {"FOURFOLD_GPU_PATH": "vendor"} if mistake == "an index out of range" else {}
    command = ("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-k", given.selection)
    done = run_python(*command, "test_values.py", "test_gradients.py", sanitizer=given.sanitizer, **environment)
    assert done.returncode not in (0, 5), "no test saw it"
    assert given.seen_as in done.stdout, done.stdout[-4000:]


CALLS = """
import os, threading
import torch, fourfold, simulated
simulated.serve(os.environ["FOURFOLD_SIMULATED"])
x = torch.randn(3, 6, 8)
"""
COMPILES_NOT = """
layer = fourfold.nn.LSTM(8, 16)
for _ in range(2):
    try:
        layer(x)
    except RuntimeError as refusal:
        print(refusal)
torch.testing.assert_close(fourfold.softshrink(x), torch.nn.functional.softshrink(x))
"""
AT_ONCE = """
layers = [fourfold.nn.LSTM(8, 16), fourfold.nn.GRU(8, 16), fourfold.nn.LLTM(8, 16), fourfold.nn.Softshrink()]
results = {}
def call(k):
    results[k] = layers[k % len(layers)](x)
threads = [threading.Thread(target=call, args=(k,)) for k in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
for k in range(8):
    torch.testing.assert_close(results[k], layers[k % len(layers)](x), rtol=0, atol=0)
print("the same")
"""


def said_by(library: Path, calls: str) -> str:
    done = run_python("-c", CALLS + calls, FOURFOLD_SIMULATED=str(library))
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_what_the_systems_compiler_says_reaches_the_user(tmp_path: Path) -> None:
    metal = tmp_path / "metal"
    shutil.copytree(simulated_metal.METAL, metal)
    text = (metal / "recurrent.metal").read_text()
    (metal / "recurrent.metal").write_text(text.replace("Product<Cell> sums[", "Produkt<Cell> sums["))
    said = said_by(simulated_metal.build(metal=metal), COMPILES_NOT)
    sentence = "fourfold: Metal does not compile forward_step<Lstm, float, Tiles> of recurrent.metal: recurrent.metal:"
    assert said.count(sentence) == 2, said
    assert "Produkt" in said


FLOAT64 = """
try:
    torch.ops.fourfold.axpby(x, x, dtype=torch.float64)
except RuntimeError as refusal:
    print(refusal)
"""


def test_float64_is_refused_in_a_sentence() -> None:
    sentence = "fourfold: Apple's GPUs do not compute in torch.float64; convert to torch.float32, or move to the CPU\n"
    assert said_by(simulated_metal.build(), FLOAT64) == sentence


def test_kernels_are_compiled_and_called_by_several_threads(tmp_path: Path) -> None:
    # A folder of its own, in which nothing is compiled yet.
    metal = tmp_path / "metal"
    shutil.copytree(simulated_metal.METAL, metal)
    (metal / "recurrent.metal").write_text((metal / "recurrent.metal").read_text() + "\n// nothing\n")
    assert said_by(simulated_metal.build(metal=metal), AT_ONCE) == "the same\n"
