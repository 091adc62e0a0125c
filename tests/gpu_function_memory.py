"""Kernels that load and store each kind of element, exchange values between lanes and use shared memory, for CUDA and
for Metal."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch

from gpu_functions import DTYPES, THREADS, TYPES
from guarded_memory import before_a_wall

# The dtype in memory, and the type of its values.
KINDS = {
    "boolean": "bool",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
}
LANES = (1, 2, 4, 8, 16)
# at: index of the first of n consecutive elements; x and out: byte pointers; S: address space; K: kind; V: type of its
# values.
CASES = {
    "narrow": "store((S K*)out + at, load<n>((S const V*)x + at));",
    "widen": "store((S V*)out + at, load<n>((S const K*)x + at));",
    "valid": "store((S V*)out + at, load<n>((S const K*)x + at, at < limit));",
    "strided": "store((S V*)out + at, load_strided<n>((S const K*)x + at * stride, stride));",
    "strided64": "store((S V*)out + at, load_strided<n>((S const K*)x + at * stride, int64(stride), at < limit));",
    "scatter": "store_strided((S K*)out + at * stride, int64(stride), load<n>((S const V*)x + at));",
    "scatter32": "store_strided((S K*)out + at * stride, stride, load<n>((S const V*)x + at));",
    "numbers": "for (int k = 0; k < n; ++k) store((S K*)out + at + k, load((S const V*)x + at + k));",
    "widen_numbers": "for (int k = 0; k < n; ++k) "
    "store((S V*)out + at + k, load((S const K*)x + at + k, at + k < limit));",
}
GROUP = {
    "exchange": "store((S K*)out + at, exchange(load((S const K*)x + at), limit));",
    "number": "store((S K*)out + at, number<B>(load((S const int64*)x + at)));",
    "exchange_lanes": "store((S K*)out + 2 * at, exchange(load<2>((S const K*)x + 2 * at), limit));",
    "reverse": "store((T K*)shared + place, load((S const K*)x + at)); barrier(); "
    f"store((S K*)out + at, load((T const K*)shared + ({THREADS - 1} - place)));",
    "reverse_lanes": "store((T K*)shared + 2 * place, load<2>((S const K*)x + 2 * at)); barrier(); "
    f"store((S K*)out + 2 * at, load<2>((T const K*)shared + 2 * ({THREADS - 1} - place)));",
}


def spelled(code: str, kind: str, lanes: int, metal: bool) -> str:
    for symbol, word in (("K", kind), ("V", TYPES[KINDS[kind]]), ("B", KINDS[kind]), ("n", str(lanes))):
        code = code.replace(f"<{symbol}>", f"<{word}>").replace(f" {symbol}*", f" {word}*")
    code = code.replace("k < n;", f"k < {lanes};")
    return code.replace("S ", "device " if metal else "").replace("T ", "threadgroup " if metal else "")


def switch(cases: dict[str, str], kind: str, lanes: int, metal: bool) -> str:
    lines = (f"    case {k}: {{ {spelled(code, kind, lanes, metal)} break; }}" for k, code in enumerate(cases.values()))
    return "switch (which) {\n" + "\n".join(lines) + "\n  }"


CUDA = """
extern "C" __global__ void {name}(
    int which, const void* x, void* out, int stride, int limit, int count) {{
  const int place = thread_index(), at = (block_index() * {threads} + place) * {lanes};
  uint8* shared = shared_memory();
  if (at >= count) return;
  {switch}
}}
"""
METAL = """
template <int lanes>
[[kernel, max_total_threads_per_threadgroup({threads})]] void {name}(
    constant int& which [[buffer(0)]], device const uint8* x [[buffer(1)]], device uint8* out [[buffer(2)]],
    constant int& stride [[buffer(3)]], constant int& limit [[buffer(4)]], constant int& count [[buffer(5)]],
    threadgroup uint8* shared [[threadgroup(0)]], uint index [[thread_position_in_grid]],
    uint position [[thread_index_in_threadgroup]]) {{
  const int place = int(position), at = int(index) * {lanes};
  if (at >= count) return;
  {switch}
}}
template [[host_name("{name}")]] [[kernel]] decltype({name}<{lanes}>) {name}<{lanes}>;
"""


def memory_kernel(kind: str, lanes: int, metal: bool = False) -> str:
    name, template = f"memory_{kind}_{lanes}", METAL if metal else CUDA
    return template.format(name=name, lanes=lanes, threads=THREADS, switch=switch(CASES, kind, lanes, metal))


def group_kernel(kind: str, metal: bool = False) -> str:
    code = switch(GROUP, kind, 1, metal)
    return (METAL if metal else CUDA).format(name=f"group_{kind}", lanes=1, threads=THREADS, switch=code)


def dtype_of(kind: str) -> torch.dtype:
    return torch.bool if kind == "boolean" else getattr(torch, kind)


def is_half(kind: str) -> bool:
    return kind in ("float16", "bfloat16")


def random_bits(dtype: numpy.dtype, count: int) -> numpy.ndarray:
    return numpy.random.default_rng(1).integers(0, 256, count * numpy.dtype(dtype).itemsize, numpy.uint8).view(dtype)


def stored(kind: str) -> numpy.ndarray:
    """Elements as memory holds them: all patterns of 8 or 16 bits, random ones of wider kinds."""
    if kind in ("boolean", "int8", "uint8"):
        return numpy.resize(numpy.arange(256, dtype=numpy.uint8), 4096)
    if kind == "int16" or is_half(kind):
        return numpy.arange(65536, dtype=numpy.uint16)
    return random_bits(DTYPES[kind], 4096)


def values_of(kind: str, elements: numpy.ndarray) -> numpy.ndarray:
    """The elements' values, by torch."""
    if kind == "boolean":
        return elements != 0
    tensor = torch.from_numpy(elements).view(dtype_of(kind))
    return (tensor.float() if is_half(kind) else tensor).numpy().astype(DTYPES[KINDS[kind]])


def values_for(kind: str) -> numpy.ndarray:
    """Values to store. For 16-bit floats: all their own values, the midpoints of neighbours, the float32 numbers next
    to these, and random ones."""
    if kind == "boolean":
        return random_bits(numpy.dtype("uint8"), 4096) > 127
    if not is_half(kind):
        return random_bits(DTYPES[KINDS[kind]], 4096)
    with numpy.errstate(invalid="ignore"):  # signalling NaNs
        own = values_of(kind, stored(kind)).astype(numpy.float64)
    finite = numpy.unique(own[numpy.isfinite(own)])
    middle = ((finite[1:] + finite[:-1]) / 2).astype(numpy.float32)
    sides = [numpy.nextafter(middle, numpy.float32(to)) for to in (numpy.inf, -numpy.inf)]
    special = numpy.array([numpy.inf, -numpy.inf, numpy.nan, -0.0, 65519, 65520, 3.4e38], numpy.float32)
    found = numpy.concatenate([finite.astype(numpy.float32), middle, *sides, special])
    return numpy.concatenate([found, random_bits(numpy.dtype("float32"), 66560 - len(found) % 1024)])


def elements_of(kind: str, values: numpy.ndarray) -> numpy.ndarray:
    """The elements that memory should hold for these values, by torch."""
    if kind == "boolean":
        return values.astype(numpy.uint8)
    tensor = torch.from_numpy(values).to(dtype_of(kind))
    return tensor.view(torch.uint16).numpy() if is_half(kind) else tensor.numpy()


Run = Callable[[int, numpy.ndarray, numpy.ndarray, int, int, int], None]  # which, x, out, stride, limit, count


def check_memory(kind: str, lanes: int, run: Run, subnormal_is_zero: bool = False) -> None:
    """Tests the loads and stores of a kind with a memory_kernel."""
    elements, values = stored(kind), values_for(kind)
    want, narrow = values_of(kind, elements), elements_of(kind, values)
    size = len(elements)

    def given(name: str, x: numpy.ndarray, like: numpy.ndarray, stride: int = 1, limit: int = 0) -> numpy.ndarray:
        out = numpy.zeros(len(like), like.dtype)
        run(list(CASES).index(name), x, out, stride, limit, len(like) // stride)
        return out

    for name in ("narrow", "numbers"):
        assert_same(name, values_of(kind, given(name, values, narrow)), values_of(kind, narrow), subnormal_is_zero)
    assert_same("widen", given("widen", elements, want), want)
    limit = size // 2
    zeros = numpy.concatenate([want[:limit], numpy.zeros(size - limit, want.dtype)])
    for name in ("valid", "widen_numbers"):
        readable = before_a_wall(elements[:limit])
        assert_same(name, given(name, readable, want, limit=limit), zeros)
    # Element k of a vector of n is read at k strides; vectors begin at every third element, so with stride 3 they
    # overlap.
    each = numpy.arange(1024)
    source = each // lanes * lanes * 3 + each % lanes * 3
    for name in ("strided", "strided64"):
        got = numpy.zeros(len(each), want.dtype)
        run(list(CASES).index(name), elements, got, 3, size, len(each))
        assert_same(name, got, want[source])
    some = values[-len(each) :]
    for name in ("scatter", "scatter32"):
        got = numpy.zeros(3 * len(each), narrow.dtype)
        run(list(CASES).index(name), some, got, 3, 0, len(each))
        scattered = numpy.zeros_like(got)
        scattered[source] = elements_of(kind, some)
        assert_same(name, values_of(kind, got), values_of(kind, scattered), subnormal_is_zero)


def check_group(kind: str, run: Run) -> None:
    """Tests exchanges between lanes and shared memory with a group_kernel."""
    elements = stored(kind)[: 4 * THREADS]
    if kind == "boolean":
        elements = (elements * 7 % 5 > 2).astype(numpy.uint8)
    want = values_of(kind, elements)
    lane = numpy.arange(len(elements))

    def given(name: str, distance: int, wide: int) -> numpy.ndarray:
        out = numpy.zeros_like(elements)
        run(list(GROUP).index(name), elements, out, 1, distance, len(elements) // wide)
        return values_of(kind, out)

    assert_same("number", number_of(kind, run), want)
    for distance in (1, 2, 4, 8, 16):
        assert_same(f"exchange {distance}", given("exchange", distance, 1), want[lane ^ distance])
        assert_same(f"exchange of two {distance}", given("exchange_lanes", distance, 2), want[lane ^ 2 * distance])
    opposite = lane // THREADS * THREADS + THREADS - 1 - lane % THREADS
    assert_same("shared memory", given("reverse", 0, 1), want[opposite])
    pair = lane // 2
    opposite = (pair // THREADS * THREADS + THREADS - 1 - pair % THREADS) * 2 + lane % 2
    assert_same("vectors in shared memory", given("reverse_lanes", 0, 2), want[opposite])


def number_of(kind: str, run: Run) -> numpy.ndarray:
    """The values of elements whose bits are the low bytes of int64s."""
    elements = stored(kind)[: 4 * THREADS]
    if kind == "boolean":
        elements = (elements * 7 % 5 > 2).astype(numpy.uint8)
    bits = numpy.full(len(elements), -1, numpy.int64)
    bits.view(elements.dtype)[:: 8 // elements.itemsize] = elements
    out = numpy.zeros_like(elements)
    run(list(GROUP).index("number"), bits, out, 1, 0, len(elements))
    return values_of(kind, out)


def assert_same(what: str, got: numpy.ndarray, want: numpy.ndarray, subnormal_is_zero: bool = False) -> None:
    """All NaNs are equal, whatever their bits."""
    right = got == want
    if got.dtype.kind == "f":
        right |= numpy.isnan(got) & numpy.isnan(want)
        right &= numpy.isnan(want) | (numpy.signbit(got) == numpy.signbit(want))
        if subnormal_is_zero:
            right |= (numpy.abs(want) < 2.0**-126) & (numpy.abs(got) < 2.0**-126)
    wrong = numpy.nonzero(~right)[0]
    assert len(wrong) == 0, f"{what}: {len(wrong)} wrong, first {got[wrong[0]]} for {want[wrong[0]]} at {wrong[0]}"
