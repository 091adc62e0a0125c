"""What compiled functions and loaded models compute reuses memory of earlier calls; nothing is kept for long or beyond
a limit."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fourfold
from forked import Forks
from fourfold import _native
from programs import HEAD

pytestmark = pytest.mark.skipif(_native.module is None, reason="no C++ module for this torch")

LARGE, SMALL = 2**23, 2**14  # elements of float32: 32 MiB and 64 KiB


@pytest.fixture
def double() -> object:
    torch._dynamo.reset()
    function = torch.compile(lambda x: x * 2 + 1, backend="fourfold")
    fourfold.empty_cache()
    yield function
    fourfold.empty_cache()


def test_large_results_reuse_memory(double) -> None:
    x = torch.ones(LARGE)
    first = double(x)
    place = first.data_ptr()
    assert fourfold.empty_cache() == 0
    del first
    second = double(x)
    assert second.data_ptr() == place and bool((second == 3).all())
    third = double(x)  # the memory is in use
    assert third.data_ptr() != place and bool((second == 3).all())
    del second, third
    assert fourfold.empty_cache() == 2 * 4 * LARGE and fourfold.empty_cache() == 0


def test_small_results_are_not_kept(double) -> None:
    double(torch.ones(SMALL))
    assert fourfold.empty_cache() == 0


def test_a_block_serves_results_that_are_a_little_smaller(double) -> None:
    place = double(torch.ones(LARGE * 9 // 8)).data_ptr()
    assert double(torch.ones(LARGE)).data_ptr() == place
    double(torch.ones(LARGE * 2))
    assert fourfold.empty_cache() == 4 * (LARGE * 9 // 8 + LARGE * 2)


def test_results_can_be_resized_and_shared(double) -> None:
    result = double(torch.ones(LARGE))
    view = result[:4]
    result.resize_(2 * LARGE)
    assert result.untyped_storage().nbytes() == 8 * LARGE and view.tolist() == [3] * 4
    assert result.untyped_storage().resizable()
    result.share_memory_()
    assert result[:4].tolist() == [3] * 4


def test_threads(double) -> None:
    x, wrong = torch.ones(LARGE), []

    def run(number: int) -> None:
        for _ in range(5):
            result: Tensor = double(x * number)
            if not bool((result == 2 * number + 1).all()):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and fourfold.empty_cache() > 0


def test_operators_of_loaded_models_reuse_memory(tmp_path: Path) -> None:
    """Convolutions, and torch's kernels without given results."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = torch.nn.ModuleList([torch.nn.Conv2d(3, 16, 3), torch.nn.Conv2d(16, 16, 3)])

        def forward(self, x: Tensor) -> Tensor:
            return self.convs[1](self.convs[0](x)).cumsum(-1)

    model, x = Model().eval(), torch.randn(2, 3, 200, 200)
    with torch.no_grad():
        fourfold.save(torch.export.export(model, (x,)), tmp_path / "model.ff")
        loaded, expected = fourfold.load(tmp_path / "model.ff"), model(x)
        fourfold.empty_cache()
        for _ in range(5):
            assert torch.allclose(loaded(x), expected, atol=1e-5)
            kept = fourfold.empty_cache()
            assert kept >= expected.numel() * 4
        first = loaded(x)
        other = model(x)  # outside of the loaded model torch's allocator serves
        del other
        fourfold.empty_cache()
        del first
        assert expected.numel() * 4 <= fourfold.empty_cache() < kept


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a torch without oneDNN")
def test_scratch_memory_of_onednn_is_kept(tmp_path: Path) -> None:
    """oneDNN frees by address alone. The tensors have 400 KiB, the weights in oneDNN's order 2.25 MiB."""
    model, x = torch.nn.Conv2d(256, 256, 3).eval(), torch.randn(1, 256, 20, 20)
    with torch.no_grad():
        fourfold.save(torch.export.export(model, (x,)), tmp_path / "model.ff")
        loaded, expected = fourfold.load(tmp_path / "model.ff"), model(x)
        fourfold.empty_cache()
        assert torch.allclose(loaded(x), expected, atol=1e-5)
        assert fourfold.empty_cache() >= 256 * 256 * 9 * 4


# As compiled functions call it, without the compilation.
PROGRAM = f"""
import torch, fourfold
from fourfold.compiler.pipeline.calling import Program
text = {HEAD!r} + "axes a=x.0\\nx: float32 = input float32 [a]\\ny: float32 = exp x\\noutput y float32 [a]\\n"
function = Program(text, "", 0)
for _ in range(2):
    results = [function(torch.ones({LARGE})) for _ in range(3)]
    del results
print(fourfold.empty_cache() >> 20)
"""


@pytest.mark.parametrize(("limit", "kept"), [("0", 0), ("64", 64), ("", 96)])
def test_the_limit(limit: str, kept: int, after_torch: Forks) -> None:
    done = after_torch.run("-c", PROGRAM, env=os.environ | {"FOURFOLD_KEPT_MEMORY": limit})
    assert done.stdout.split() == [str(kept)], done.stderr


@pytest.mark.parametrize("limit", ["1 GB", "-1", "9" * 20])
def test_another_limit_is_refused(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_KEPT_MEMORY", limit)
    with pytest.raises(ValueError, match=f"KEPT_MEMORY to be a number of mebibytes, but got '{limit}'"):
        _native._kept_memory()


def test_a_containers_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of it is kept; a group without a limit, or none, has the machine's memory."""
    for name, text in (("limited", "536870912\n"), ("unlimited", "max\n")):
        (tmp_path / name).write_text(text)
    machine = _native._memory(())
    assert machine > 1 << 30
    assert _native._memory([tmp_path / "unlimited", tmp_path / "missing"]) == machine
    assert _native._memory([tmp_path / "unlimited", tmp_path / "limited"]) == 512 << 20
    monkeypatch.delenv("FOURFOLD_KEPT_MEMORY", raising=False)
    monkeypatch.setattr(_native, "_memory", lambda: 512 << 20)
    assert _native._kept_memory() == 64 << 20


def test_blocks_that_fit_nothing_are_returned(double) -> None:
    """Of a function whose sizes grow in each call: the last 256 stay."""
    sizes = [(1 << 17) + (k << 9) for k in range(300)]
    for size in sizes:
        double(torch.ones(size))
    assert fourfold.empty_cache() == 4 * sum(sizes[-256:])


def test_a_forked_process(double) -> None:
    x = torch.ones(LARGE)
    double(x)
    child = os.fork()
    if child == 0:
        is_right = False
        try:
            torch.set_num_threads(1)  # a forked child has no OpenMP threads
            is_right = bool((double(x) == 3).all()) and fourfold.empty_cache() == 4 * LARGE
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_profiler_sees_what_is_allocated_and_freed(double) -> None:
    x = torch.ones(LARGE)
    double(x)
    with torch.profiler.profile(profile_memory=True) as profile:
        double(x)
    sizes = [event.cpu_memory_usage for event in profile.events() if event.name == "[memory]"]
    assert sizes.count(-4 * LARGE) >= 1
