"""fourfold's compiled library: how it was built, its backends, the CPU level in use.

Written by scripts/stubs.py."""

from collections.abc import Sequence
from typing import Any, SupportsIndex, SupportsInt

def attach_code(
    arg0: str,
    arg1: str,
    arg2: str,
    arg3: bytes,
    arg4: Sequence[tuple[str, SupportsInt | SupportsIndex, SupportsInt | SupportsIndex]],
    /,
) -> None:
    """attach_code(text, layout, target, code, [(kernel, threads, shared bytes)]): answers a request with code for a
    device."""

def attach_nest(
    arg0: str,
    arg1: str,
    arg2: Sequence[SupportsInt | SupportsIndex],
    arg3: SupportsInt | SupportsIndex,
    arg4: SupportsInt | SupportsIndex,
    arg5: SupportsInt | SupportsIndex,
    arg6: SupportsInt | SupportsIndex,
    /,
) -> None:
    """attach_nest(text, layout, addresses, bytes, bytes_of_column, bytes_of_panel, sums): answers a request with
    code for this CPU."""

def backends() -> dict[str, tuple[bool, str]]:
    """Each backend's name with (built, reason)."""

def build_info() -> dict[str, Any]:
    """How libfourfold was built: versions, compiler, operators, CPU levels."""

def check_json(arg0: str, /) -> None:
    """Raises ValueError for text that is not strict JSON, as in model files."""

def cpu_capability() -> str:
    """The CPU level whose kernels run: default, avx2, avx512, avx512_bf16 or amx."""

def dtypes() -> list[tuple[str, str, str, int, int]]:
    """Each dtype of programs: (torch's name, name in programs, computed type, ScalarType, bytes)."""

def generators() -> list[str]:
    """What runs programs, by number."""

def grid_arguments() -> list[str]:
    """The first arguments of a grid's kernels."""

def grid_limits() -> dict[str, int]:
    """Likewise for the kernels of grids of threads."""

def is_permitted(arg0: str, /) -> bool:
    """Whether a model file may call the operator of torch with this name, without namespace and overload."""

def may_write(arg0: str, /) -> bool:
    """Whether a model file's operator may change its first argument in place."""

def nest_arguments() -> list[str]:
    """The first arguments of a nest's functions."""

def nest_limits() -> dict[str, int]:
    """Numbers that the library and the nests it calls agree on."""

def next_nest(arg0: SupportsInt | SupportsIndex, /) -> tuple[str, str, str] | None:
    """next_nest(milliseconds): the (text, layout, target) of the next nest to compile, or None."""

def operations() -> list[tuple[str, int, str, int]]:
    """Each operation of programs: (name, number of operands, rule, cost)."""

def prepacked_bytes(
    arg0: str, arg1: str, arg2: SupportsInt | SupportsIndex, arg3: SupportsInt | SupportsIndex, /
) -> int:
    """prepacked_bytes(op, dtype, input_size, hidden_size): the size in bytes of the result of <op>_prepack."""

def program_backends() -> list[int]:
    """The numbers of the device types that programs run on."""

def program_layout(
    arg0: str,
    arg1: SupportsInt | SupportsIndex,
    arg2: SupportsInt | SupportsIndex,
    arg3: Sequence[
        tuple[
            SupportsInt | SupportsIndex,
            Sequence[SupportsInt | SupportsIndex],
            Sequence[SupportsInt | SupportsIndex],
            SupportsInt | SupportsIndex,
        ]
    ],
    /,
) -> str:
    """program_layout(text, device_type, device_index, [(ScalarType, sizes, strides, offset)]): the layout of such a
    call, for which its loop nest is compiled."""

def program_numbers(arg0: str, arg1: SupportsInt | SupportsIndex, arg2: SupportsInt | SupportsIndex, /) -> list[int]:
    """program_numbers(text, device_type, device_index): for each input its ScalarType if it is a number, -1 if it is
    a tensor."""

def refuse_nest(arg0: str, arg1: str, arg2: str, arg3: str, /) -> None:
    """refuse_nest(text, layout, target, reason): answers that the nest can't be compiled."""

def serve_nests(arg0: bool, /) -> None:
    """Whether this process compiles loop nests."""

def transpose_tile() -> int:
    """The address of the function that nests call to transpose."""

def vector_functions() -> dict[str, int]:
    """Addresses of the elementary functions on vectors of the CPU level in use: fourfold_exp_float32 and so on."""

def wait_for_nests(arg0: SupportsInt | SupportsIndex, /) -> int:
    """wait_for_nests(milliseconds): 1 once all requests are answered, 0 if time is up, -1 if nothing serves them."""
