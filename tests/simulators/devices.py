"""Operators on the second of two simulated devices, with the first one current: pytest tests/simulators/devices.py,
which check-backends runs with the case table. In a checked build, a kernel on the wrong device is an error."""

from __future__ import annotations

import os
import subprocess
import sys

import fourfold
import simulated

SCRIPT = """
import ctypes, sys
import torch
import simulated

simulated.serve(sys.argv[1])
from op_cases import CASES, differentiable, flatten, tolerance

simulator = ctypes.CDLL(sys.argv[1])
simulator.gpusim_choose_device(1)
names = ("vectors", "vector", "short", "tutorial", "relu")
for case in [case for case in CASES if case.gradient and case.name in names]:
    args, leaves = differentiable(case.arguments(torch.float32))
    with torch.autograd.set_multithreading_enabled(False):  # the current device is each thread's own
        outputs = flatten(case.function(*args))
        grads = torch.autograd.grad(sum(o.sum() for o in outputs), leaves)
    assert simulator.gpusim_current_device() == 0, "the call left another device current than it found"
    wanted = flatten(case.reference(*args))
    expected = [*wanted, *torch.autograd.grad(sum(o.sum() for o in wanted), leaves)]
    for result, other in zip((*outputs, *grads), expected, strict=True):
        torch.testing.assert_close(result, other, **tolerance(other, torch.float32, gradient=True))
    print(case.op)
"""


def test_a_call_runs_where_its_tensors_are_and_leaves_the_device_as_it_was() -> None:
    library = str(simulated.build(sanitizer="checked"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, library],
        env=os.environ | {"PYTHONPATH": str(simulated.ROOT / "tests"), "FOURFOLD_SIMULATED": library},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(fourfold.operator_names())
