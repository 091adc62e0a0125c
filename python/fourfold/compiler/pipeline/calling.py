"""Calls programs from Python: through the module compiled for this torch, or else through torch's dispatcher."""

from __future__ import annotations

import torch

from fourfold import _C, _native
from fourfold.compiler.pipeline.fallback import is_traced
from fourfold.devices import programs

CPU = torch.device("cpu")
_FLOATING = {number for name, _, _, number, _ in _C.dtypes() if getattr(torch, name).is_floating_point}


class ProgramByDispatcher:
    """Program(text, name, generator, device): called with a tensor or a number for each input, returns its outputs: a
    tensor, or a tuple of several. Profilers show the name. generator: the index of one of ``options.GENERATORS``.
    device: of all tensors. Raises ValueError for an invalid program and for tensors that don't fit it."""

    def __init__(self, text: str, name: str = "fourfold_program", generator: int = 1, device: torch.device = CPU):
        self._text, self._generator = text, generator
        self._name = name
        self._device = device
        # For each input, the dtype of a number, or -1 for a tensor.
        self._numbers = _C.program_numbers(text, *programs.place_of(device))

    def __call__(self, *arguments: torch.Tensor | bool | int | float) -> torch.Tensor | tuple[torch.Tensor, ...]:
        if len(arguments) != len(self._numbers):
            raise TypeError(f"program: expected {len(self._numbers)} inputs, but got {len(arguments)}")
        tensors: list[torch.Tensor] = []
        floats: list[float] = []
        integers: list[int] = []
        for k, (given, number) in enumerate(zip(arguments, self._numbers, strict=True)):
            is_one_element = isinstance(given, torch.Tensor) and given.is_cpu and given.dim() == 0
            argument = given.item() if number >= 0 and is_one_element else given
            if number < 0:
                tensors.append(_expect_plain(k, argument, self._device))
            elif not isinstance(argument, (bool, int, float)):
                raise TypeError(f"program: expected a number as input {k}, but got {type(argument).__name__}")
            elif number in _FLOATING:
                floats.append(float(argument))
            elif isinstance(argument, float):
                raise TypeError(f"program: expected an integer as input {k}, but got {argument}")
            elif -(2**63) <= argument < 2**63:
                integers.append(int(argument))
            else:
                raise OverflowError(f"program: expected an integer of 64 bits, but got {argument}")
        with torch._C._profiler._RecordFunctionFast(self._name), torch._C._AutoDispatchBelowAutograd():
            try:
                outputs = torch.ops.fourfold._run_program(self._text, tensors, floats, integers, self._generator)
            except RuntimeError as error:
                if str(error).startswith("program: "):
                    raise ValueError(str(error)) from None
                raise
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _expect_plain(k: int, argument: object, device: torch.device) -> torch.Tensor:
    if not isinstance(argument, torch.Tensor):
        raise TypeError(f"program: expected a tensor as input {k}, but got {type(argument).__name__}")
    if argument.device != device or argument.layout != torch.strided or is_traced(argument):
        got = f"{type(argument).__name__} of {argument.dtype} on {argument.device}"
        raise ValueError(f"program: expected a plain strided tensor on {device}, but got {got}")
    return argument


Program = ProgramByDispatcher if _native.module is None else _native.module.Program
