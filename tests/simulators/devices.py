"""Operators and compiled functions on the second of two simulated devices, with the first one current: pytest
tests/simulators/devices.py, which check-backends runs with the case table. In a checked build, a kernel on the wrong
device is an error."""

from __future__ import annotations

import subprocess

import fourfold
import simulated
from simulation import run_python

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
PROGRAMS = """
import ctypes, sys
import torch
import fourfold, simulated_programs

simulator = ctypes.CDLL(sys.argv[1])
simulator.gpusim_choose_device(int(sys.argv[2]))
simulated_programs.serve(sys.argv[1])
simulator.gpusim_choose_device(1)

def function(x, w):
    return (torch.softmax(x * w, -1) + w).sum(0), torch.tanh(x) * w

compiled = torch.compile(function, backend="fourfold")
x, w = torch.randn(9, 40, requires_grad=True), torch.randn(40, requires_grad=True)
with torch.autograd.set_multithreading_enabled(False):
    found, wanted = (
        [*results, *torch.autograd.grad(sum(result.square().sum() for result in results), (x, w))]
        for results in (compiled(x, w), function(x, w))
    )
assert simulator.gpusim_current_device() == 0, "the call left another device current than it found"
for result, other in zip(found, wanted, strict=True):
    torch.testing.assert_close(result, other, rtol=1e-4, atol=1e-5)
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    library = str(simulated.build())
    return run_python("-c", script, library, *arguments, FOURFOLD_SIMULATED=library)


def test_a_call_runs_where_its_tensors_are_and_leaves_the_device_as_it_was() -> None:
    done = run(SCRIPT)
    assert done.returncode == 0, done.stdout
    assert set(done.stdout.split()) == set(fourfold.operator_names())


def test_a_program_runs_on_its_device_and_leaves_the_current_one_as_it_was() -> None:
    done = run(PROGRAMS, "1")
    assert done.returncode == 0, done.stdout


def test_a_program_on_another_device_is_seen() -> None:
    done = run(PROGRAMS, "0")
    assert done.returncode != 0 and "memory of device 1" in done.stdout, done.stdout
