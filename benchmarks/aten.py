"""The tutorials' C++ and CUDA extensions, compiled once by the user's own compilers, and modules that call them."""

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

from fourfold import reference


class Unavailable(Exception):
    """A contender can't run here; ``str()`` says why, for its row in the table."""


@functools.cache
def extension() -> ModuleType:
    """Compile the C++ extension, or load it from torch's cache directory for extensions (TORCH_EXTENSIONS_DIR).

    Raises Unavailable with the reason where it can't be built: it needs a C++ compiler and ninja.
    """
    return load("aten_extension.cpp")


@functools.cache
def cuda_extension() -> ModuleType:
    """The LLTM's CUDA kernels, in the same way; they need the CUDA toolkit's nvcc as well."""
    return load("lltm_cuda_baseline.cu", extra_cuda_cflags=["-O2"])


def load(source: str, **flags: list[str]) -> ModuleType:
    from torch.utils import cpp_extension

    # The cache directory doesn't tell torches apart.
    name = f"fourfold_{Path(source).stem}_" + re.sub(r"\W", "_", torch.__version__)
    lock = Path(cpp_extension._get_build_directory(name, verbose=False), "lock")
    if lock.exists():  # torch says nothing, and waits for good where that process was killed
        print(f"Waiting for another process that builds it; if there is none, remove {lock}", file=sys.stderr)
    try:
        path = str(Path(__file__).with_name(source))
        return cpp_extension.load(name, [path], extra_cflags=["-O2"], **flags)
    except (RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"can't be built: {first_sentence(error)}") from error


def first_sentence(error: BaseException) -> str:
    """The line of an error that says what is wrong: compilers print much around it, torch a heading before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Error building extension")] or ["no message"]
    telling = [line for line in lines if re.search(r"\berror\b|not found|cannot find", line, re.IGNORECASE)]
    return f"{type(error).__name__}: {(telling or lines)[0]}"


class LLTMFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: ModuleType, x: Tensor, h: Tensor, c: Tensor, weights: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        new_h, new_c, *saved = kernels.lltm_forward(x, h, c, weights, bias)
        ctx.kernels = kernels
        ctx.save_for_backward(weights, *saved)
        return new_h, new_c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        grads = ctx.kernels.lltm_backward(grad_h.contiguous(), grad_c.contiguous(), *ctx.saved_tensors)
        return (None, *grads)


class MLPFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, hidden_weights: Tensor, hidden_bias: Tensor, output_weights: Tensor, output_bias: Tensor
    ) -> Tensor:
        output, hidden = extension().mlp_forward(x, hidden_weights, hidden_bias, output_weights, output_bias)
        ctx.save_for_backward(x, hidden, hidden_weights, output_weights)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, ...]:
        return tuple(extension().mlp_backward(grad_output.contiguous(), *ctx.saved_tensors))


class LLTMCell(reference.LLTMCell):
    def __init__(self, input_size: int, hidden_size: int, kernels: ModuleType):
        super().__init__(input_size, hidden_size)
        self.kernels = kernels

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return LLTMFunction.apply(self.kernels, x, *state, self.weights, self.bias)


class PlainMLP(nn.Module):
    """One hidden layer of relu, with the ROCm tutorial's parameters and their shapes: biases are rows."""

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
    def forward(self, x: Tensor) -> Tensor:
        return MLPFunction.apply(x, self.hidden_weights, self.hidden_bias, self.output_weights, self.output_bias)
