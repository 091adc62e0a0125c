"""The GPU simulator: it accepts correct kernels and detects each kind of error in the right way.

The kernels are in simulators/kernels. simulators/README.md describes the builds.
"""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import simulated
from machine import linux_only, missing, tool
from once import made_once

SIMULATORS = simulated.SIMULATORS
KERNELS = SIMULATORS / "kernels"
SOURCES = (SIMULATORS / "gpusim", KERNELS)
INCLUDES = [word for folder in SOURCES for word in ("-I", folder)]

BUILDS = {
    "warp32": ("-O1",),
    # Also with swapcontext, which other processors use to switch between GPU threads.
    "warp64": ("-O0", "-DGPUSIM_UCONTEXT"),
    "address": ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-O1", "-g1", "-fsanitize=thread"),
    "checked": ("-O1", "-g1", *simulated.CHECKED),
}
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}
ORDERS = {"forward": {}, "reverse": {"GPUSIM_REVERSE": "1"}, "seeded": {"GPUSIM_SEED": "7"}}
# Their checks don't depend on the order.
BUILDS_IN_ORDER = [(b, o) for b in BUILDS for o in ORDERS if o == "forward" or b not in ("address", "checked")]

pytestmark = [linux_only, pytest.mark.slow]


def compiler(build):
    """g++ with the runtime that the build needs."""
    found = tool("g++", "g++")
    library = RUNTIMES.get(build)
    if library is not None and not Path(runtime(found, library)).is_absolute():
        missing(f"this test needs {library}; install GCC's sanitizers")
    return found


def runtime(found, library):
    return subprocess.run([found, f"-print-file-name={library}"], capture_output=True, text=True).stdout.strip()


def call(command, **environment):
    """Exit code and output; the environment's own settings of the simulator and the sanitizers are removed."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("GPUSIM_") and not k.endswith("SAN_OPTIONS")}
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=inherited | environment,
        timeout=300,
    )
    if "unexpected memory mapping" in done.stdout:
        missing("ThreadSanitizer cannot run here: set vm.mmap_rnd_bits to 28 with sysctl")
    return done.returncode, done.stdout


def compile_one(build, source, to, *options, flags=None):
    code, said = call(
        [compiler(build), "-std=c++20", "-pthread", *(BUILDS[build] if flags is None else flags), *INCLUDES, *options]
        + (["-x", "c++", source] if source is not None else [])
        + ["-o", to]
    )
    assert code == 0, said


@pytest.fixture(scope="module")
def selftest():
    """Runs cases of the self-test in one of the builds, which are compiled at first use."""

    def compile_all(build, folder, program):
        objects, flags = [folder / "selftest.o"], None
        compile_one(build, KERNELS / "selftest.hip", objects[0], "-c")
        if build == "checked":
            # The checks are not instrumented, and are linked first: see simulated.py.
            checks = folder / "checks.o"
            compile_one(
                build, SIMULATORS / "gpusim" / "checks.cpp", checks, "-c", flags=("-O1", "-g1", "-DGPUSIM_CHECKED")
            )
            objects.insert(0, checks)
            flags = ("-fsanitize=undefined",)
        compile_one(build, None, program, *objects, flags=flags)

    def run(build, *cases, **environment):
        compile = partial(compile_all, build)
        program = simulated.built(f"selftest-{build}", "selftest", compile, SOURCES, BUILDS[build])
        width = {"GPUSIM_WARP": "64"} if build == "warp64" else {}
        return call([program, *cases], **width, **environment)

    return run


@pytest.fixture(scope="module")
def in_python():
    """Runs simulators/kernels/load_library.py on a build's simulated library, under its sanitizer."""

    def compile_library(build, _, library):
        include = Path(torch.__file__).parent / "include"
        compile_one(build, KERNELS / "library.hip", library, "-fPIC", "-shared", "-I", include)

    def run(build, *names, **environment):
        compile = partial(compile_library, build)
        library = simulated.built(f"library-{build}", "library.so", compile, SOURCES, BUILDS[build], torch.__version__)
        if build in RUNTIMES:
            found = compiler(build)
            preloaded = [runtime(found, RUNTIMES[build]), runtime(found, "libstdc++.so")]
            environment["LD_PRELOAD"] = " ".join(preloaded)
        environment["ASAN_OPTIONS"] = "detect_leaks=0"
        environment["TSAN_OPTIONS"] = "ignore_noninstrumented_modules=1"
        return call([sys.executable, KERNELS / "load_library.py", library, *names], **environment)

    return run


@pytest.mark.parametrize(("build", "order"), BUILDS_IN_ORDER)
def test_kernels_that_are_right_are_right(selftest, build, order):
    # ThreadSanitizer needs half a millisecond for each GPU thread of a cooperative grid. Of these blocks of 64 threads,
    # four fit a multiprocessor's registers, and eight wait for each other.
    small = {"GPUSIM_MULTIPROCESSORS": "2"} if build == "thread" else {}
    code, said = selftest(build, "right", "ordered_message", **ORDERS[order], **small)
    assert code == 0, said
    assert said.count(": right\n") == 26
    assert "Sanitizer" not in said


@pytest.mark.parametrize("build", ["warp32", "warp64"])
def test_a_missing_barrier_shows_in_one_order_of_threads(selftest, build):
    assert selftest(build, "missing_barrier")[0] == 0
    code, said = selftest(build, "missing_barrier", **ORDERS["reverse"])
    assert code == 1
    assert "the neighbour is -842150451 instead of 0" in said  # the initial contents of shared memory
    assert selftest(build, "missing_barrier", **ORDERS["seeded"])[0] == 1


@pytest.mark.parametrize(
    ("case", "kernel", "what"),
    [
        ("shared_out_of_range", "write_shared", "0 bytes to the right of 64-byte region|0 bytes after 64-byte region"),
        ("global_out_of_range", "write_global", "0 bytes to the right of 400-byte|0 bytes after 400-byte"),
    ],
)
def test_address_sanitizer_sees_an_index_out_of_range(selftest, case, kernel, what):
    code, said = selftest("address", case)
    assert code != 0
    assert "AddressSanitizer: heap-buffer-overflow" in said
    assert f" in {kernel}" in said.partition("SUMMARY")[2]
    assert any(words in said for words in what.split("|")), said


def test_undefined_behaviour_sanitizer_sees_a_misaligned_vector(selftest):
    code, said = selftest("address", "misaligned_vector")
    assert code != 0
    assert "faulty.hip" in said
    assert "misaligned address" in said
    assert "which requires 16 byte alignment" in said


@pytest.fixture(scope="module")
def tensor_cores(shared):
    """Runs a case of kernels/tensor_cores.hip, which includes the scalar version as the operators' kernels do."""

    def compile(folder):
        simulated.translate(folder / "hip")
        include = Path(torch.__file__).parent / "include"
        folders = [option for path in (folder / "hip", simulated.ROOT / "cpp", include) for option in ("-I", path)]
        program = folder / "tensor_cores"
        compile_one("warp32", KERNELS / "tensor_cores.hip", program, "-DFOURFOLD_SIMULATION", *folders)

    program = made_once(shared / "tensor_cores", compile) / "tensor_cores"
    return lambda case: call([program, case])


@pytest.mark.parametrize("case", ["cuts_off", "by_multiprocessor", "as_a_tile"])
def test_sums_that_keep_their_digits_do_so_on_tensor_cores_that_cut_off(tensor_cores, case):
    assert tensor_cores(case) == (0, "")


def test_a_long_sum_in_the_tensor_cores_own_registers_loses_digits(tensor_cores):
    code, said = tensor_cores("by_tensor_cores")
    assert code == 1
    assert said.startswith("the sum is off by ")


HOST = "which is the host's memory, in thread (0,0,0) of block (0,0,0)"
FAULTS = {
    "host_pointer": ("add_one(int*)", "reads 4 bytes at", HOST),
    "host_heap": ("add_one(int*)", "reads 4 bytes at", HOST),
    "host_pointer_within": ("read_lengths(", "reads 4 bytes at", HOST),
    "read_on_host": ("host code", "reads 4 bytes at", "which is memory of device 0; copy it, or launch a kernel"),
    "freed_memory": ("add_one(int*)", "reads 4 bytes at", "which has been freed: byte 0 of an allocation of 4 bytes"),
    "freed_too_early": ("add_one(int*)", "which has been freed: byte 0 of an allocation of 4 bytes"),
    "wrong_device": ("add_one(int*)", "which is memory of device 1, but it runs on device 0"),
    "global_out_of_range": ("write_global", "writes 4 bytes at", "which is byte 400 of an allocation of 400 bytes"),
    "shared_out_of_range": ("write_shared", "which is byte 64 of a block's shared memory of 64 bytes"),
    "misaligned_vector": (
        "copy_four",
        "reads a 'const struct GpusimVector4' at",
        "which is no multiple of 16 (",
        "faulty.hip:",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_checked_build_names_the_kernel_and_what_it_touched(selftest, case):
    code, said = selftest("checked", case, GPUSIM_THREADS="1")
    assert code < 0, said
    sentences = [line for line in said.splitlines() if line.startswith("gpusim: ")]
    assert len(sentences) == 1, said
    for words in FAULTS[case]:
        assert words in sentences[0]


@pytest.mark.parametrize("case", ["wrong_copy", "copy_beyond"])
def test_a_copy_of_what_is_not_there_is_refused(selftest, case):
    assert selftest("checked", case) == (1, f"{case}: wrong\n")


@pytest.mark.parametrize("build", ["warp32", "checked"])
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("changed_too_early", "the copy is 2 instead of 1"),
        ("read_too_early", "the result is 0 instead of 16843009"),
        ("unordered_streams", "the value is 1 instead of 0"),
        ("stream_of_another_device", "launch: invalid resource handle"),
        ("cooperative_beyond_registers", "launch: too many blocks in cooperative launch"),
        ("grid_beyond_limits", "launch: invalid configuration argument"),
    ],
)
def test_a_device_is_not_waited_for_and_has_its_limits(selftest, case, words, build):
    assert selftest(build, case) == (1, f"{words}\n{case}: wrong\n")


@pytest.mark.parametrize(("capability", "fits"), [("7.5", False), ("8.6", True), ("9.0", True)])
def test_limits_go_by_the_compute_capability(selftest, capability, fits):
    code, said = selftest("warp32", "capability", GPUSIM_CAPABILITY=capability)
    assert code == 0, said
    code, said = selftest("warp32", "shared_memory_of_larger_devices", GPUSIM_CAPABILITY=capability)
    assert (code == 0) == fits
    assert ("launch: invalid argument" in said) != fits


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("GPUSIM_CAPABILITY", "9.9", "which is none of 7.5, 8.0, 8.6, 8.9, 9.0, 12.0"),
        ("GPUSIM_WARP", "48", "which is neither 32 nor 64"),
    ],
)
def test_an_unknown_device_is_refused(selftest, name, value, why):
    code, said = selftest("warp32", "capability", **{name: value})
    assert code < 0
    assert said == f"gpusim: {name} is {value}, {why}\n"


def test_registers_are_taken_as_counted(selftest, tmp_path):
    counted = tmp_path / "registers"
    counted.write_text("64 _ZN12_GLOBAL__N_17nothingEv\n80 _ZN12_GLOBAL__N_17add_oneEPi\n")
    assert selftest("warp32", "registers")[0] == 0
    code, said = selftest("warp32", "registers", GPUSIM_REGISTERS=str(counted))
    assert code == 0, said
    counted.write_text("no figures\n")
    code, said = selftest("warp32", "registers", GPUSIM_REGISTERS=str(counted))
    assert code < 0
    assert f"gpusim: GPUSIM_REGISTERS is {counted}, which has no lines of registers and symbol\n" in said


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize(
    ("case", "kernel"),
    [
        ("missing_barrier", "read_neighbour_unordered"),
        ("missing_second_barrier", "reuse_unordered"),
        ("missing_warp_barrier", "warp_unordered"),
        ("missing_barrier_of_halves", "halves_unordered"),
        ("racy_write", "sum_without_atomics"),
        ("racy_blocks", "sum_without_atomics"),
        ("relaxed_message", "pass_message"),
        ("message_of_narrow_scope", "pass_message"),
    ],
)
def test_thread_sanitizer_sees_a_race_in_any_order(selftest, case, kernel, order):
    code, said = selftest("thread", case, **ORDERS[order])
    assert code == 66, said
    assert "WARNING: ThreadSanitizer: data race" in said
    assert f" in {kernel}" in said.partition("SUMMARY")[2]
    assert "of block (" in said


NOBODY_COMES = "no GPU thread can move: a barrier or a warp operation waits for threads that do not come"
NOBODY_WRITES = "the GPU threads that can move only poll memory that nobody changes"


@pytest.mark.parametrize(
    ("case", "title", "lines"),
    [
        (
            "divergent_barrier",
            "a divergent barrier: threads of a block wait at different places",
            ("threads (0,0,0) to (15,0,0): waiting in __syncthreads at ", "thread (16,0,0): waiting in __syncthreads"),
        ),
        (
            "barrier_not_reached",
            NOBODY_COMES,
            (
                "threads (0,0,0) to (15,0,0): waiting in __syncthreads",
                "threads (16,0,0) to (31,0,0): waiting in __shfl",
            ),
        ),
        (
            "divergent_shuffle",
            NOBODY_COMES,
            ("threads (0,0,0) to (7,0,0): waiting in __shfl_down_sync at ", "threads (8,0,0) to (31,0,0): waiting in "),
        ),
        (
            "grid_barrier_not_reached",
            NOBODY_WRITES,
            ("grid (4,1,1) and block (64,1,1), cooperative", "thread (0,0,0): can go on from a pause at ", ": ended"),
        ),
        (
            "waiting_for_later_blocks",
            NOBODY_WRITES,
            ("block (0,0,0):", "threads (1,0,0) to (63,0,0): waiting in __syncthreads at "),
        ),
    ],
)
def test_a_kernel_that_cannot_go_on_says_where_its_threads_are(selftest, case, title, lines):
    code, said = selftest("warp32", case, GPUSIM_THREADS="1")
    assert code < 0
    assert f"gpusim: {title}\n" in said
    for line in lines:
        assert line in said
    assert "faulty.hip:" in said


def test_too_many_threads_for_thread_sanitizer_is_said(selftest):
    code, said = selftest("thread", "cooperative_limit", GPUSIM_MULTIPROCESSORS="32")
    assert code < 0
    assert (
        "gpusim: ThreadSanitizer can tell 7000 GPU threads apart, and a block or a cooperative grid here has " in said
    )


REFUSED = {
    "__shared__ float row[32];": "static __shared__ variables are not modelled; use HIP_DYNAMIC_SHARED",
    "__shfl_sync(0xffffffffu, 1, 0);": "no matching function for call to .__shfl_sync.unsigned int",
    "__shfl_sync(~0ull, short(1), 0);": "no matching function for call to .*long long unsigned int, short int",
    "float row[warpSize]; static_assert(sizeof(row) > 0);": "not a constant|not usable in a constant",
}


def test_what_a_gpu_compiler_refuses_does_not_compile(tmp_path):
    source = tmp_path / "kernel.hip"
    kernels = [f"__global__ void kernel{k}() {{ {body} }}\n" for k, body in enumerate(REFUSED)]
    source.write_text("#include <hip/hip_runtime.h>\n" + "".join(kernels))
    command = [compiler("warp32"), "-std=c++20", "-fsyntax-only", "-Werror=vla", *INCLUDES, "-x", "c++", source]
    code, said = call(command)
    assert code == 1
    errors = "".join(line for line in said.splitlines(keepends=True) if " error: " in line)
    for words in REFUSED.values():
        assert re.search(words, errors), said


@pytest.mark.parametrize(
    ("build", "fault", "report"),
    [
        ("address", "out_of_range", "AddressSanitizer: heap-buffer-overflow"),
        ("thread", "racy_kernel", "ThreadSanitizer: data race"),
    ],
)
def test_python_uses_a_simulated_library(in_python, build, fault, report):
    """First without a fault, then with one. Without a sanitizer, the simulated tests of all operators do."""
    code, said = in_python(build, "right_kernel", "failing_launch", "several_threads", fault)
    before, found, after = said.partition("several_threads: done\n")
    assert (before, found) == ("right_kernel: done\nfailing_launch: done\n", "several_threads: done\n"), said
    assert code != 0
    assert report in after
    assert "library.hip" in after.partition("SUMMARY")[2]
