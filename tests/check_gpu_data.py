"""Devices, and the results of tests on one, for the tests of scripts/check_gpu.py and its modules."""

from gpu_device import Amd, Apple, Nvidia

DEVICE = Nvidia("NVIDIA H100 80GB HBM3", "2.11.0", "9.0", "580.1", "13.0", "13.0")
MI = Amd("AMD Instinct MI250X", "2.11.0", "gfx90a", "7.0")
MAC = Apple("Apple M3 Max", "2.13.0", "15.1", "40")
RESULTS = """\
{"test": "tests/test_values.py::test_values[cuda-lltm_cell-odd-float32-strided]", "outcome": "passed"}
{"test": "tests/test_values.py::test_values[cuda-softshrink-one-float32-contiguous]", "outcome": "passed"}
{"test": "tests/test_values.py::test_values[cpu-lltm-odd-float32-contiguous]", "outcome": "passed"}
{"test": "tests/test_values.py::test_values[cuda-lltm-odd-float16-contiguous]", "outcome": "failed"}
{"test": "tests/test_values.py::test_values[cuda-lltm-odd-float32-contiguous]", "outcome": "passed"}
{"test": "tests/test_values.py::test_values[cuda-mlp-odd-float32-contiguous]", "outcome": "skipped"}
{"test": "tests/test_errors.py::test_cuda", "outcome": "passed"}
{"test": "tests/test_values.py::test_values[cuda-axpby-odd-float32-conti"""
