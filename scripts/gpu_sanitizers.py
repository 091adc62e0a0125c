"""Sanitizers for the case table on a GPU: compute-sanitizer on NVIDIA's, Metal's validation on Apple's."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence

from gpu_context import FAILED, NOT_RUN, PASSED, TESTED, Context, Done, Outcome, stopped
from gpu_device import Apple, Nvidia, find_tool

SANITIZER_ERRORS = 99  # compute-sanitizer's exit code for errors that it found
CASES = " and not far_apart and not large and not many and not long and not float64"
# macOS's own checks of Metal's API calls and of shaders' memory accesses (man MetalValidation).
METAL_VALIDATION = {
    "MTL_DEBUG_LAYER": "1",
    "MTL_DEBUG_LAYER_ERROR_MODE": "assert",
    "MTL_SHADER_VALIDATION": "1",
    "MTL_SHADER_VALIDATION_REPORT_TO_STDERR": "1",
}


def sanitized(context: Context, pytest: Sequence[str], variables: dict[str, str]) -> Iterator[Outcome]:
    selection = context.arguments.sanitizer_cases or context.device.where + CASES
    tests = (*pytest, "tests/test_values.py", "tests/test_gradients.py", "-k", selection)
    if isinstance(context.device, Nvidia):
        yield from compute_sanitizer(context, tests, variables)
    elif isinstance(context.device, Apple):
        yield metal_validation(context, tests, variables)
    else:
        yield Outcome("sanitizer", NOT_RUN, "no tool for this GPU is known here")


def compute_sanitizer(context: Context, tests: Sequence[str], variables: dict[str, str]) -> Iterator[Outcome]:
    tool = find_tool("compute-sanitizer")
    if tool is None:
        yield Outcome("sanitizer", NOT_RUN, "no compute-sanitizer on PATH or in the CUDA toolkit")
        return
    flags = ("--error-exitcode", str(SANITIZER_ERRORS), "--target-processes", "all")
    probe = "import torch; print(int(torch.ones(3, device='cuda').sum().item()))"
    done = context.run(tool, *flags, sys.executable, "-c", probe)
    if done.code != 0 or "3" not in done.lines:
        why = stopped(done) or done.telling("(?i)not supported|error", f"exit code {done.code}")
        yield Outcome("sanitizer", NOT_RUN, f"compute-sanitizer does not work on this machine: {why}")
        return
    # Each tensor gets its own allocation: otherwise an out-of-bounds access could hit its neighbour undetected.
    variables = variables | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    for check in ("memcheck", "racecheck"):
        if context.no_time():
            yield Outcome(check, NOT_RUN, "no time left")
            continue
        done = context.run(tool, "--tool", check, *flags, "--kernel-name", "kns=fourfold", *tests, **variables)
        yield Outcome(check, *verdict(done))


def verdict(done: Done) -> tuple[str, str]:
    if done.code is None:
        return NOT_RUN, stopped(done)
    summary = done.telling(r"SUMMARY:").lstrip("= ")
    tested = done.telling(TESTED)
    return (PASSED if done.code == 0 else FAILED), f"{summary}; {tested}"


def metal_validation(context: Context, tests: Sequence[str], variables: dict[str, str]) -> Outcome:
    """A wrong call ends the process. A wrong access is a line on stderr, so pytest must not capture it."""
    done = context.run(*tests, "--capture=no", **variables, **METAL_VALIDATION)
    if done.code is None:
        return Outcome("validation", NOT_RUN, stopped(done))
    faults = [line for line in done.lines if re.search(r"(?i)invalid \w+ (load|store)|validation error", line)]
    if faults or done.code:
        return Outcome("validation", FAILED, "; ".join([*faults[:1], done.telling(TESTED)]))
    silent = [what for what in ("API", "GPU") if not any(f"Metal {what} Validation Enabled" in s for s in done.lines)]
    if silent:
        why = f"this system does not say that it validates ({', '.join(silent)}); {done.telling(TESTED)}"
        return Outcome("validation", NOT_RUN, why)
    return Outcome("validation", PASSED, done.telling(TESTED))
