"""Loads the simulated library given as the first argument and uses it from Python; the second selects the test."""

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

torch.ops.load_library(sys.argv[1])
library = ctypes.CDLL(sys.argv[1])
SCALE = {torch.half: library.scale_half, torch.bfloat16: library.scale_bfloat16}
NO_BINARY_FOR_GPU = 209


def scale(x, out, factor):
    pointers = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(out.data_ptr())
    return SCALE[x.dtype](*pointers, ctypes.c_float(factor), ctypes.c_int64(out.numel()))


def right_kernel():
    for dtype in SCALE:
        x = torch.randn(1000).to(dtype)
        # Special values of the conversions: a tie, the largest, a denormal, infinity and NaN.
        x[:6] = torch.tensor([1.0009765625, torch.finfo(dtype).max, 3e-8, torch.inf, -torch.inf, torch.nan]).to(dtype)
        out = torch.empty_like(x)
        assert scale(x, out, 1.7) == 0
        expected = (x.float() * torch.tensor(1.7)).to(dtype)
        assert torch.equal(out.isnan(), expected.isnan())
        assert torch.equal(out.nan_to_num(7), expected.nan_to_num(7)), dtype


def failing_launch():
    x = torch.ones(10, dtype=torch.half)
    out = torch.zeros_like(x)
    library.gpusim_fail_next_launch(NO_BINARY_FOR_GPU)
    assert scale(x, out, 2) == NO_BINARY_FOR_GPU
    assert out.sum() == 0
    assert scale(x, out, 2) == 0
    assert out.sum() == 20


def several_threads():
    """Launches follow one another on the stream, whichever threads they come from: backward runs in its own thread."""
    a = torch.ones(1000).half()
    b, c = torch.empty_like(a), torch.empty_like(a)
    with ThreadPoolExecutor(max_workers=1) as other:
        for _ in range(5):
            assert other.submit(scale, a, b, 0.5).result() == 0
            assert scale(b, c, 2) == 0
            assert other.submit(scale, c, a, 0.5).result() == 0
    assert a.min() == a.max() == 0.5**5


def racy_kernel():
    x, total = torch.ones(100), torch.zeros(1)
    pointers = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(total.data_ptr())
    assert library.racy_sum(*pointers, ctypes.c_int64(x.numel())) == 0


def out_of_range():
    scale(torch.ones(500).half(), torch.empty(501).half(), 1)


for name in sys.argv[2:]:
    globals()[name]()
    print(f"{name}: done", flush=True)
