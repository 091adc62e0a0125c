"""The modules of scripts/check_gpu.py without a GPU: how they find devices, count proofs and make an environment; and
the tolerance of the tests that run there."""

import importlib.util
import subprocess
from types import SimpleNamespace

import pytest
import torch

import gpu_device
import gpu_environment
import gpu_proof
from check_gpu_data import DEVICE, MAC, MI, RESULTS
from gpu_device import Amd, Nvidia
from op_cases import tolerance


def test_a_device_is_described_and_named():
    assert (DEVICE.slug, MI.slug, MAC.slug) == ("h100-80gb-hbm3", "amd-instinct-mi250x", "apple-m3-max")
    assert MI.describe() == "AMD Instinct MI250X, gfx90a\ntorch 2.11.0 for ROCm 7.0"
    assert MAC.describe() == "Apple M3 Max, 40 GPU cores, macOS 15.1\ntorch 2.13.0"


def test_devices_are_found_by_what_torch_and_the_system_say(monkeypatch):
    said = {"sysctl": "Apple M3 Max", "ioreg": '  "gpu-core-count" = 40\n', "nvidia-smi": "580.1"}
    monkeypatch.setattr(gpu_device, "output_of", lambda command, *words, all_lines=False: said.get(command))
    monkeypatch.setattr(gpu_device, "find_tool", lambda name: None)
    monkeypatch.setattr(gpu_device.platform, "mac_ver", lambda: ("15.1", (), ""))
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert gpu_device.find_device("mps") == MAC
    properties = SimpleNamespace(name=DEVICE.name, major=9, minor=0, gcnArchName="gfx90a:sramecc+:xnack-")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert gpu_device.find_device("cuda") == Nvidia(DEVICE.name, "2.13.0", "9.0", "580.1", "13.0", None)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert gpu_device.find_device("cuda") == Amd(DEVICE.name, "2.13.0", "gfx90a", "7.0")


def test_operators_are_counted_by_their_tests_on_a_device(tmp_path):
    (tmp_path / "results.jsonl").write_text(RESULTS)  # its truncated last line belongs to a test that had not finished
    named = ["axpby", "softshrink", "lltm_cell", "lltm", "mlp"]
    passed, failed = gpu_proof.count([tmp_path / "results.jsonl"], named, "cuda")
    assert passed == {"lltm_cell": 1, "softshrink": 1, "lltm": 1}
    assert failed == {"lltm": 1}
    assert gpu_proof.count([tmp_path / "results.jsonl"], named, "mps") == ({}, {})
    proof = gpu_proof.of("cuda", {"name": "X", "capability": "9.0"}, passed, failed, "abc", False)
    assert proof["backend"] == "cuda"
    assert proof["operators"] == {"lltm_cell": 1, "softshrink": 1} and proof["failed"] == {"lltm": 1}
    assert (proof["device"], proof["commit"], proof["every_test_passed"]) == ("X", "abc", False)


def test_a_gpus_gradients_are_held_to_the_largest_of_them():
    """In float32, where plain torch's own sums have as large errors relative to float64."""
    wanted = torch.tensor([1e-3, -500.0, float("inf")])
    assert tolerance(wanted, torch.float32, "cuda", gradient=True)["atol"] == pytest.approx(0.05)
    assert tolerance(wanted, torch.float32, "cuda")["atol"] == tolerance(wanted, torch.float32)["atol"]
    assert tolerance(wanted / 1e6, torch.float32, "cuda", gradient=True)["atol"] == pytest.approx(1e-4)


def without(monkeypatch, *names):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in names else find(name))


def test_the_environment_names_what_is_missing_and_installs_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_environment, "FOLDER", tmp_path / "venv")
    monkeypatch.setattr(gpu_environment, "PYTHON", tmp_path / "venv" / "bin" / "python")
    monkeypatch.setattr(gpu_environment, "expect_gpu", lambda where: None)
    with monkeypatch.context() as here:
        without(here, "pybind11", "expecttest", "pytest_randomly")
        with pytest.raises(SystemExit, match=r"needs but pybind11; install it there: .* -m pip install pybind11$"):
            gpu_environment.main()
    assert not gpu_environment.FOLDER.exists()
    without(monkeypatch, "expecttest", "pytest_randomly")
    gpu_environment.main()
    script = "import torch, pip, pytest; print(torch.__version__)"
    done = subprocess.run([str(gpu_environment.PYTHON), "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == torch.__version__, done.stderr
    assert (tmp_path / "venv" / "bin" / "cmake").exists() and (tmp_path / "venv" / "bin" / "ninja").exists()
