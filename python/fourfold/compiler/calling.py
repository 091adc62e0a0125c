"""How Python calls a program: by the module that was compiled for this torch, or else by the tensors' addresses."""

from __future__ import annotations

import ctypes

import torch

from fourfold import _C, _native
from fourfold.compiler.fallback import is_traced

_NUMBERS = {6: ctypes.c_float, 7: ctypes.c_double, 3: ctypes.c_int32, 4: ctypes.c_int64, 11: ctypes.c_bool}
_DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
}
_BY_NUMBER = {number: dtype for dtype, number in _DTYPES.items()}


class ProgramByAddress:
    """Program(text, name): called with a tensor or a number for each input, gives its outputs: a tensor, or a tuple of
    them where there are several. Profilers show the name. Raises ValueError where the text is no program, or a tensor
    not what the program takes."""

    def __init__(self, text: str, name: str = "fourfold_program"):
        self._program = _C.Program(text)
        self._name = name
        self._numbers = self._program.numbers()

    def source(self, name: str) -> str:
        """The program as C++, whose stages' functions are an array of that name."""
        return self._program.source(name)

    def use(self, address: int) -> None:
        """From now on computes by these functions, given by the array's address."""
        self._program.use(address)

    def __call__(self, *arguments: torch.Tensor | bool | int | float) -> torch.Tensor | tuple[torch.Tensor, ...]:
        if len(arguments) != len(self._numbers):
            raise TypeError(f"program: expected {len(self._numbers)} inputs, but got {len(arguments)}")
        held, given = [], []
        for argument, number in zip(arguments, self._numbers, strict=True):
            if number >= 0:
                if isinstance(argument, int) and not -(2**63) <= argument < 2**63:
                    raise OverflowError(f"program: expected an integer of 64 bits, but got {argument}")
                memory = (ctypes.c_int64 * 1)()
                _NUMBERS[number].from_buffer(memory).value = argument
                held.append(memory)
                given.append((ctypes.addressof(memory), number, [], []))
                continue
            is_plain = argument.device.type == "cpu" and argument.layout == torch.strided and not is_traced(argument)
            if not is_plain or argument.dtype not in _DTYPES:
                got = f"{type(argument).__name__} of {argument.dtype} on {argument.device}"
                raise ValueError(f"program: expected a plain strided tensor on the CPU, but got {got}")
            tensor = argument.detach().resolve_neg()
            held.append(tensor)
            given.append((tensor.data_ptr(), _DTYPES[tensor.dtype], list(tensor.shape), list(tensor.stride())))
        outputs: list[torch.Tensor] = []

        def allocate(dtype: int, sizes: list[int], strides: list[int]) -> int:
            outputs.append(torch.empty_strided(sizes, strides, dtype=_BY_NUMBER[dtype], device="cpu"))
            return outputs[-1].data_ptr()

        with torch.profiler.record_function(self._name):
            self._program.run(given, allocate)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


Program = ProgramByAddress if _native.module is None else _native.module.Program
