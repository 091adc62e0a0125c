"""The tutorials' C++ and CUDA extensions, compiled once by the local compilers, and modules that call them."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from benchmarks.measure import first_sentence
from benchmarks.problem import Unavailable
from fourfold import reference


@functools.cache
def extension(source: str = "aten_extension.cpp") -> ModuleType:
    """Compile an extension, or load it from torch's cache directory for extensions (TORCH_EXTENSIONS_DIR).

    Raises Unavailable with the reason where it can't be built: it needs a C++ compiler and ninja, and for .cu nvcc.
    """
    from torch.utils import cpp_extension

    # The cache directory is not separate for each version of torch.
    name = f"fourfold_{Path(source).stem}_" + re.sub(r"\W", "_", torch.__version__)
    lock = Path(cpp_extension._get_build_directory(name, verbose=False), "lock")
    if lock.exists():  # torch waits forever, without a message, if the process that held the lock was killed
        print(f"Waiting for another process that builds it; if there is none, remove {lock}", file=sys.stderr)
    flags = {"extra_cflags": ["-O2"], **({"extra_cuda_cflags": ["-O2"]} if source.endswith(".cu") else {})}
    try:
        return cpp_extension.load(name, [str(Path(__file__).with_name(source))], **flags)
    except (RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"can't be built: {first_sentence(error)}") from error


class LLTMFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: ModuleType, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        new_h, new_c, *saved = kernels.lltm_forward(*inputs)
        ctx.kernels = kernels
        ctx.save_for_backward(inputs[3], *saved)
        return new_h, new_c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.kernels.lltm_backward(grad_h.contiguous(), grad_c.contiguous(), *ctx.saved_tensors)


class MLPFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        output, hidden = extension().mlp_forward(x, *parameters)
        ctx.save_for_backward(x, hidden, parameters[0], parameters[2])
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, ...]:
        return tuple(extension().mlp_backward(grad_output.contiguous(), *ctx.saved_tensors))


class LLTMCell(reference.LLTMCell):
    def __init__(self, input_size: int, hidden_size: int, source: str = "aten_extension.cpp"):
        super().__init__(input_size, hidden_size)
        self.kernels = extension(source)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return LLTMFunction.apply(self.kernels, x, *state, self.weights, self.bias)


class PlainMLP(nn.Module):
    """One hidden layer with relu, with the names and shapes of the ROCm tutorial's parameters: biases are rows."""

    def __init__(self, input_size: int, hidden_size: int, output_size: int):
        super().__init__()
        self.hidden_weights = nn.Parameter(torch.empty(hidden_size, input_size))
        self.hidden_bias = nn.Parameter(torch.empty(1, hidden_size))
        self.output_weights = nn.Parameter(torch.empty(output_size, hidden_size))
        self.output_bias = nn.Parameter(torch.empty(1, output_size))
        for p, fan_in in zip(self.parameters(), (input_size, input_size, hidden_size, hidden_size), strict=True):
            nn.init.uniform_(p, -1.0 / math.sqrt(fan_in), 1.0 / math.sqrt(fan_in))

    def forward(self, x: Tensor) -> Tensor:
        return reference.mlp(x, self.hidden_weights, self.hidden_bias, self.output_weights, self.output_bias)


class MLP(PlainMLP):
    def __init__(self, *sizes: int):
        super().__init__(*sizes)
        extension()

    def forward(self, x: Tensor) -> Tensor:
        return MLPFunction.apply(x, self.hidden_weights, self.hidden_bias, self.output_weights, self.output_bias)
