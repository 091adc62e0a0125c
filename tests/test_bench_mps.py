"""What the benchmarks take and refuse on Apple's GPUs, on machines without one."""

import dataclasses

import torch

import fourfold
from benchmarks import cell, run, sequence
from benchmarks.__main__ import main
from benchmarks.precision import FLOAT32, ON_GPU

CELL_SIZES = {"batch_size": 4, "input_size": 3, "hidden_size": 5}


def test_a_missing_apple_gpu_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert main(["cell", "--device", "mps"]) == 2
    assert "sees no GPU" in (said := capsys.readouterr().err) and said.count("\n") == 1
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    state = {"built": False, "usable": False, "reason": "not built: switched off"}
    monkeypatch.setattr(fourfold, "backends", lambda: {"metal": state})
    assert main(["cell", "--device", "mps"]) == 2
    assert "expected a fourfold with Metal kernels, but of them: not built: switched off" in capsys.readouterr().err
    state["usable"] = True
    for arguments, complaint in (
        (("cell", "--threads", "1"), "expected --threads only with --device cpu, but got mps:0"),
        (("sequence", "--dtype", "tf32"), "expected --dtype tf32 only with --device cuda, but got mps:0"),
    ):
        assert main([*arguments, "--device", "mps"]) == 2
        assert complaint in capsys.readouterr().err


def test_on_mps_a_request_takes_what_apples_gpus_have(monkeypatch):
    asked = []
    state = {"built": True, "usable": True, "reason": ""}
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.mps, "set_per_process_memory_fraction", lambda fraction: asked.append(fraction))
    monkeypatch.setattr(fourfold, "backends", lambda: {"metal": state})
    monkeypatch.setattr(run, "run", lambda request: asked.append(request) or 0)
    assert main(["sequence", "--device", "mps", "--memory-fraction", "1.5"]) == 0
    fraction, request = asked
    assert fraction == 1.5 and request.device == torch.device("mps", 0) and request.threads == [1]
    assert [p.name for p in request.precisions_or(ON_GPU, on_cpu=())] == ["float32", "bfloat16", "float16"]
    sizes = sequence.chosen_sizes(request)
    assert sizes == [sequence.named(values) for values in sequence.SIZES["mps"]]
    assert sequence.targets(sequence.LLTM, sizes[0], FLOAT32, "mps") == ()


def test_what_is_checked_is_computed_where_float64_is(monkeypatch):
    """Of tensors that are said to be Apple's: to the CPU first, then to float64."""
    moves = []

    class Tensor(torch.Tensor):
        device = torch.device("mps")

        def cpu(self):
            moves.append("cpu")
            return self.as_subclass(torch.Tensor)

        def double(self):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    problem = cell.problem(CELL_SIZES)
    there = dataclasses.replace(
        problem,
        inputs=tuple(x.as_subclass(Tensor) for x in problem.inputs),
        parameters=tuple(p.as_subclass(Tensor) for p in problem.parameters),
    )
    exact = there.exact()
    assert moves == ["cpu"] * 5
    for mine, expected in zip(exact, problem.exact(), strict=True):
        assert mine.dtype == torch.float64 and torch.equal(mine, expected)
    results = [result.float() for result in exact]
    assert problem.distance([result.as_subclass(Tensor) for result in results], exact) < 1e-6
    assert len(moves) == 5 + len(exact)
