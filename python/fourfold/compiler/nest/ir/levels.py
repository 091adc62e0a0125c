"""The CPU levels that loop nests are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from fourfold import _C


@dataclass(frozen=True, slots=True)
class Level:
    """name: of its archive of bitcode. lanes: of a vector of float32. has_byte_masks: whether it has masked loads and
    stores of 8-bit and 16-bit elements. processor, features: LLVM's names of what nests may use."""

    name: str
    lanes: int
    has_byte_masks: bool
    processor: str
    features: str


AVX2 = Level("avx2", 8, False, "haswell", "+avx2,+fma,+f16c,+bmi,+bmi2")
AVX512 = Level(
    "avx512",
    16,
    True,
    "skylake-avx512",
    "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx2,+fma,+f16c,+bmi,+bmi2,-prefer-256-bit",
)
NEON = Level("neon", 4, False, "generic", "+neon")

# By the library's names of its levels. Those that add products of bfloat16 have the nests of AVX-512. The default level
# is NEON on Arm; on x86-64 it has no vectors.
LEVELS = {"default": NEON, "avx2": AVX2, "avx512": AVX512, "avx512_bf16": AVX512, "amx": AVX512}


def level() -> Level | None:
    """The level of the CPU in use; None if it has no vectors."""
    return LEVELS[_C.cpu_capability()] if _C.vector_functions() else None
