"""The table of cases that every test calls the operators with, on every backend.

A case makes an operator's positional arguments for a dtype. Values are drawn from a fixed seed, so a case is always the
same; its strided twin has the same values in memory that is not contiguous.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import fourfold
from fourfold import reference
from fourfold.operators._operator import declared
from machine import has_tensor_cores
from network_cases import mlp, mlp_layers_cases
from op_arguments import (
    GATES,
    Draw,
    lltm,
    lltm_cell,
    lltm_packed,
    torch_layer,
    with_reset,
)

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGRAL = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

# float32 differs from the float64 reference by the order of sums and some units in the last place of exp. The CPU
# computes low precision in float32 and rounds the result once: half a unit in the last place, doubled for the saved c'.
TOLERANCE = {
    torch.float64: {"rtol": 1e-11, "atol": 1e-12},
    torch.float32: {"rtol": 2e-5, "atol": 2e-6},
    torch.bfloat16: {"rtol": 2**-7, "atol": 2**-8},
    torch.float16: {"rtol": 2**-10, "atol": 2**-11},
}
# Gradients are sums over batch and time, and in low precision their summands were rounded too.
GRADIENT_TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.bfloat16: {"rtol": 2**-5, "atol": 2**-4},
    torch.float16: {"rtol": 2**-7, "atol": 2**-7},
}
# On a GPU, and in a bfloat16 sequence on a CPU, the factors of products are rounded to 16 bits, so that values passed
# between the parts of an operator, such as h from step to step, are rounded on the way. Relative to the largest value,
# because a sum has large terms.
ROUNDING_ON_THE_WAY = {torch.bfloat16: 2**-6, torch.float16: 2**-9}
SMALL = (torch.float32, torch.bfloat16, torch.float16)  # dtypes of persistent kernels
SIMULATED = "FOURFOLD_SIMULATED" in os.environ  # simulated GPU kernels run on CPU tensors
SIMULATED_METAL = Path(os.environ.get("FOURFOLD_SIMULATED", "")).parent.name.startswith("metal")


def tolerance(
    wanted: Tensor, dtype: torch.dtype, device: str = "cpu", gradient: bool = False, sequence: bool = False
) -> dict[str, float]:
    """The tolerance of a result in `dtype`; `sequence`: whether it is a recurrent layer's."""
    allowed = (GRADIENT_TOLERANCE if gradient else TOLERANCE)[dtype]
    if gradient and dtype == torch.float32 and device != "cpu":
        # A GPU's sums run in a different order at each size, torch's too: the rounding error of large terms remains in
        # a small sum.
        return {"rtol": allowed["rtol"], "atol": allowed["atol"] * largest(wanted)}
    exact_on_cpu = dtype == torch.float16 or not sequence
    if dtype not in ROUNDING_ON_THE_WAY or (device == "cpu" and not SIMULATED and exact_on_cpu):
        return allowed
    return {"rtol": allowed["rtol"], "atol": max(allowed["atol"], largest(wanted) * ROUNDING_ON_THE_WAY[dtype])}


def largest(wanted: Tensor) -> float:
    """The largest finite magnitude, but at least 1."""
    finite = wanted[wanted.isfinite()].abs()
    return max(1.0, finite.max().item() if finite.numel() else 0.0)


@dataclass(frozen=True)
class Case:
    """One call. ``function`` and ``reference`` take the same arguments.

    gradient: whether it has one. every_path: whether it also runs the tests that take seconds each, such as gradcheck,
    functorch's transforms and compilation; every operator has at least one such case. gpu_path: the FOURFOLD_GPU_PATH
    of kernels that a GPU with tensor cores doesn't choose for such sizes.
    """

    op: str
    name: str
    make: Callable[[Draw], tuple]
    dtypes: tuple[torch.dtype, ...] = FLOATING
    gradient: bool = True
    every_path: bool = False
    gpu_path: str = ""

    @property
    def id(self) -> str:
        return f"{self.op}-{self.name}"

    @property
    def function(self) -> Callable[..., Any]:
        return self.of_flat(getattr(fourfold.functional, self.op))

    @property
    def reference(self) -> Callable[..., Any]:
        # The definition of a simple elementwise operator may be in its declaration.
        return self.of_flat(getattr(reference, self.op, None) or declared[self.op].definition)

    def of_flat(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function with list arguments so that it takes flat arguments, as cases have them."""
        return (lambda *args: function(*self.nested(args))) if self.has_lists else function

    @property
    def has_lists(self) -> bool:
        return bool(declared[self.op].schema.lists)

    def nested(self, args: tuple) -> tuple:
        """Unflattens mlp_layers' arguments: x, the weights, the biases, the activation."""
        count = (len(args) - 2) // 2
        return args[0], list(args[1 : 1 + count]), list(args[1 + count : -1]), args[-1]

    def by_schema(self, args: tuple) -> tuple:
        """The function's arguments in the order of the operator's schema, which has additional arguments."""
        if self.has_lists:
            return self.nested(args)
        return tuple(default if k is None else args[k] for k, default in self.placed(len(args)))

    def placed(self, count: int) -> list[tuple[int | None, Any]]:
        """For each argument of the operator: its position among the function's `count` arguments, or its default."""
        parameters = list(inspect.signature(self.function).parameters)
        schema = [argument.name for argument in getattr(torch.ops.fourfold, self.op).default._schema.arguments]
        if count > len(parameters) or parameters[:count] == schema[:count]:
            return [(k, None) for k in range(count)]
        last = max(schema.index(name) for name in parameters[:count])
        given = {name: k for k, name in enumerate(parameters[:count])}
        return [(given.get(name), declared[self.op].schema.defaults[k]) for k, name in enumerate(schema[: last + 1])]

    @property
    def is_sequence(self) -> bool:
        return self.op in ("lltm", "lstm", "gru")

    @property
    def schema(self) -> list[str]:
        return [argument.name for argument in getattr(torch.ops.fourfold, self.op).default._schema.arguments]

    def arguments(self, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> tuple:
        return self.make(Draw(dtype, seed, device))


def _torch_cases(op: str) -> list[Case]:
    def case(name: str, *sizes: int, every_path: bool = False, gpu_path: str = "", **options: Any) -> Case:
        return Case(op, name, torch_layer(op, *sizes, **options), every_path=every_path, gpu_path=gpu_path)

    lengths = [5, 5, 3, 2, 1, 1]
    return [
        case("short", 5, 4, 6, 16, gpu_path="persistent"),
        case("odd", 7, 3, 5, 19, every_path=True),
        case("one", 1, 1, 1, 1),
        case("wide", 3, 13, 9, 67),
        case("reverse", 6, 5, 4, 18, reverse=True),
        case("no-bias", 4, 2, 3, 33, bias="none"),
        case("bias-ih", 4, 2, 3, 8, bias="ih"),
        case("bias-hh", 4, 2, 3, 8, bias="hh", gpu_path="persistent"),
        case("zero-time", 0, 3, 4, 5),
        case("zero-batch", 4, 0, 3, 5),
        case("no-features", 4, 3, 0, 5),  # some tensors without elements have no address
        case("no-units", 4, 3, 2, 0),
        case("packed", 6, 5, 4, 17, sizes=lengths, every_path=True),
        case("packed-reverse", 6, 5, 4, 17, sizes=lengths, reverse=True),
        case("reset", 7, 4, 3, 18, reset=True, every_path=True),
        case("reset-reverse", 7, 4, 3, 18, reset=True, reverse=True, gpu_path="persistent"),
        case("packed-reset", 6, 5, 4, 17, sizes=lengths, reset=True, gpu_path="persistent"),
        # So few rows that the CPU reads the weights unpacked, in the backward too.
        case("few-reset", 3, 2, 3, 18, reset=True),
        case("few-reverse", 3, 2, 3, 18, reverse=True),
        case("few-packed-reset", 3, 3, 5, 18, sizes=[3, 2, 1], reset=True, reverse=True),
        case("row-tiles", 3, 37, 5, 40, gpu_path="persistent"),
        case("deep", 3, 2, 5, 136),
        case("vendor", 2, 512, 8, 224, reset=True),
        case("row-tiles-reset", 4, 37, 5, 40, reset=True, gpu_path="persistent"),
        case("row-groups-reset", 3, 66, 3, 24, reset=True, gpu_path="persistent"),
        case("packed-row-tiles-reset", 5, 20, 4, 24, sizes=[20, 17, 16, 3, 1], reset=True, gpu_path="persistent"),
        case(
            "packed-row-tiles-reset-reverse",
            5,
            20,
            4,
            24,
            sizes=[20, 17, 16, 3, 1],
            reset=True,
            reverse=True,
            gpu_path="persistent",
        ),
        case("block-pairs", 3, 20, 3, 20),
        case("block-rows", 3, 37, 5, 40),
        case("block-launches-reset", 3, 513, 3, 78, reset=True, reverse=True, gpu_path="block"),
        case("packed-block-rows-reset", 5, 37, 4, 70, sizes=[37, 37, 20, 3, 1], reset=True, reverse=True),
        case("chunks", 24, 13, 3, 200),  # of steps that a CPU computes together
    ]


CASES = [
    Case("softshrink", "vector", lambda d: (d(77),)),
    Case("softshrink", "0-d", lambda d: (d(),)),
    Case("softshrink", "empty", lambda d: (d(0),)),
    Case("softshrink", "one", lambda d: (d(1),)),
    Case("softshrink", "lambd-0", lambda d: (d(3, 5), 0.0)),
    Case("softshrink", "matrix", lambda d: (d(33, 65), 0.7), every_path=True),
    Case("softshrink", "4-d", lambda d: (d(2, 3, 4, 5), 0.25)),
    Case("softshrink", "large", lambda d: (d(300, 257), 1.0)),
    Case("softshrink", "special", lambda d: (d.special(), 0.5), gradient=False),
    Case("axpby", "vectors", lambda d: (d(77), d(77)), FLOATING + INTEGRAL),
    Case("axpby", "factors", lambda d: (d(5, 19), d(5, 19), 3, -2), FLOATING + INTEGRAL[2:]),
    Case("axpby", "fractions", lambda d: (d(5, 19), d(5, 19), 0.3, -1.7), FLOATING + INTEGRAL),
    Case("axpby", "0-d", lambda d: (d(), d()), FLOATING + INTEGRAL),
    Case("axpby", "empty", lambda d: (d(0, 3), d(0, 3)), FLOATING + INTEGRAL),
    Case("axpby", "row-and-column", lambda d: (d(7, 1), d(5), 2, 1), FLOATING + INTEGRAL, every_path=True),
    Case("axpby", "bools", lambda d: (d(7, 1), d(5), True, True), (torch.bool,)),
    Case("axpby", "broadcast-0-d", lambda d: (d(3, 4), d(), 0.5, 2.0), FLOATING + INTEGRAL),
    Case("axpby", "broadcast-inner", lambda d: (d(2, 3, 4), d(3, 1), 1.5, 1.0)),
    Case("axpby", "large", lambda d: (d(300, 257), d(300, 257), -1.0, 0.5)),
    # Larger than the blocks in which operands are expanded: rows that are all the same, short rows and long ones.
    Case("axpby", "broadcast-row", lambda d: (d(40, 257), d(257))),
    Case("axpby", "broadcast-short-rows", lambda d: (d(500, 3), d(500, 1), 2, 1), FLOATING + INTEGRAL),
    Case("axpby", "broadcast-column", lambda d: (d(40, 257), d(40, 1))),
    Case("axpby", "broadcast-middle", lambda d: (d(40, 7, 11), d(40, 1, 11))),
    Case("axpby", "special", lambda d: (d.special(), d.special().flip(0), 0.5, 1.0), gradient=False),
    Case("lltm_cell", "tutorial", lltm_cell(16, 32, 128)),
    Case("lltm_cell", "odd", lltm_cell(3, 5, 7), every_path=True),
    Case("lltm_cell", "one", lltm_cell(1, 1, 1)),
    Case("lltm_cell", "no-bias", lltm_cell(4, 6, 17, bias=0), every_path=True),
    Case("lltm_cell", "bias-row", lltm_cell(4, 6, 16, bias=2)),
    # On a CPU: a remainder of rows smaller than a vector; a last vector that overlaps its predecessor; work for several
    # threads.
    Case("lltm_cell", "left-over", lltm_cell(18, 5, 15)),
    Case("lltm_cell", "overlap", lltm_cell(41, 3, 33)),
    Case("lltm_cell", "wide", lltm_cell(49, 33, 200)),
    Case("lltm_cell", "vendor", lltm_cell(1024, 64, 160)),
    Case("lltm_cell", "zero-batch", lltm_cell(0, 5, 8)),
    Case("lltm_cell", "no-features", lltm_cell(4, 0, 5)),
    Case("lltm_cell", "no-units", lltm_cell(4, 3, 0)),
    Case("lltm", "short", lltm(5, 4, 6, 16), gpu_path="persistent"),
    Case("lltm", "odd", lltm(7, 3, 5, 19), every_path=True),
    Case("lltm", "one", lltm(1, 1, 1, 1)),
    Case("lltm", "wide", lltm(3, 13, 9, 67)),
    Case("lltm", "reverse", lltm(6, 5, 4, 18, reverse=True)),
    Case("lltm", "no-bias", lltm(4, 2, 3, 33, bias=0)),
    Case("lltm", "bias-row", lltm(4, 2, 3, 8, bias=2), gpu_path="persistent"),
    Case("lltm", "zero-time", lltm(0, 3, 4, 5)),
    Case("lltm", "zero-batch", lltm(4, 0, 3, 5)),
    Case("lltm", "no-features", lltm(4, 3, 0, 5)),
    Case("lltm", "no-units", lltm(4, 3, 2, 0)),
    Case("lltm", "packed", lltm_packed([5, 5, 3, 2, 1, 1], 4, 17, False), every_path=True),
    Case("lltm", "packed-reverse", lltm_packed([5, 5, 3, 2, 1, 1], 4, 17, True), every_path=True),
    Case(
        "lltm",
        "packed-many",
        lltm_packed([16] * 9 + [11] * 5 + [5] * 4 + [1] * 3, 8, 64, False),
        gpu_path="persistent",
    ),
    # On a GPU: several row tiles, blocks and launches, a depth split between several warps, steps without all rows, and
    # units that are padded.
    Case("lltm", "row-tiles", lltm(3, 37, 5, 40), gpu_path="persistent"),
    Case("lltm", "deep", lltm(3, 2, 5, 136)),
    Case("lltm", "vendor", lltm(2, 512, 8, 224)),
    Case("lltm", "packed-row-tiles", lltm_packed([20, 17, 16, 3, 1], 4, 24, False), gpu_path="persistent"),
    Case(
        "lltm",
        "packed-row-tiles-reverse",
        lltm_packed([20, 17, 16, 3, 1], 4, 24, True),
        gpu_path="persistent",
    ),
    Case("lltm", "reset", with_reset(lltm(7, 4, 3, 18)), every_path=True),
    Case("lltm", "reset-reverse", with_reset(lltm(7, 4, 3, 18, reverse=True)), gpu_path="persistent"),
    Case(
        "lltm",
        "packed-reset",
        with_reset(lltm_packed([5, 5, 3, 2, 1, 1], 4, 17, False), packed=True),
        gpu_path="persistent",
    ),
    Case("lltm", "few-reset", with_reset(lltm(3, 2, 3, 18, reverse=True))),
    Case("lltm", "few-packed-reset", with_reset(lltm_packed([3, 2, 1], 5, 18, False), packed=True)),
    Case("lltm", "row-tiles-reset", with_reset(lltm(4, 37, 5, 40)), gpu_path="persistent"),
    Case("lltm", "packed-row-groups-reverse", lltm_packed([66, 65, 30], 3, 24, True), gpu_path="persistent"),
    Case("lltm", "launches-reset", with_reset(lltm(3, 513, 3, 8, reverse=True)), gpu_path="persistent"),
    Case(
        "lltm",
        "packed-row-tiles-reset",
        with_reset(lltm_packed([20, 17, 16, 3, 1], 4, 24, True), packed=True),
        gpu_path="persistent",
    ),
    Case("lltm", "launches-padded-reset", with_reset(lltm(3, 513, 3, 13, reverse=True)), gpu_path="persistent"),
    Case("lltm", "block-pairs", lltm(3, 20, 3, 20)),
    Case("lltm", "block-rows", lltm(3, 37, 5, 40)),
    Case("lltm", "block-launches-reset", with_reset(lltm(3, 513, 3, 90)), gpu_path="block"),
    Case("lltm", "packed-block-rows", lltm_packed([37, 37, 20, 3, 1], 4, 70, True)),
    Case("lltm", "chunks", lltm(24, 13, 3, 200)),  # of steps that a CPU computes together
    *_torch_cases("lstm"),
    *_torch_cases("gru"),
    Case("mlp", "tutorial", mlp(32, sizes=(5, 15, 1))),
    Case("mlp", "odd", mlp(7, sizes=(3, 17, 5), bias=1), every_path=True),
    Case("mlp", "no-bias", mlp(9, sizes=(64, 40, 10), bias=0)),
    Case("mlp", "two-vectors", mlp(5, sizes=(20, 30, 18))),
    Case("mlp", "vendor", mlp(6, sizes=(270, 250, 20))),
    Case("mlp", "widest", mlp(20, sizes=(128, 128, 128))),  # the widest that a GPU fuses
    Case("mlp", "vendor-no-bias", mlp(6, sizes=(270, 250, 20), bias=0)),
    Case("mlp", "long-batch", mlp(3000, sizes=(20, 40, 4))),
    Case("mlp", "many-rows", mlp(2**14, sizes=(5, 7, 3))),
    Case("mlp", "unbatched", mlp(sizes=(5, 15, 1))),
    Case("mlp", "leading", mlp(2, 3, sizes=(5, 15, 2)), every_path=True),
    Case("mlp", "empty", mlp(0, sizes=(5, 15, 1))),
    Case("mlp", "no-features", mlp(4, sizes=(0, 15, 2))),
    Case("mlp", "no-units", mlp(4, sizes=(5, 0, 2))),
    *(Case("mlp_layers", name, make, every_path=every_path) for name, make, every_path in mlp_layers_cases()),
]


# A hidden size for each length of the persistent kernels' loops over the depth, for any type.
WIDE_LAYERS = [Case("lltm", f"hidden-{size}", lltm(2, 2, 3, size)) for size in (128, 133, 264, 520, 776)] + [
    Case(op, f"hidden-{size}", torch_layer(op, 2, 2, 3, size)) for op in GATES for size in (128, 261, 520)
]


def has_dtype(dtype: torch.dtype, device: str = "cpu") -> bool:
    """Whether the device's kernels support it: Apple's GPUs have no float64."""
    return dtype != torch.float64 or not (device == "mps" or SIMULATED_METAL)


def widest(device: str = "cpu") -> torch.dtype:
    return torch.float64 if has_dtype(torch.float64, device) else torch.float32


@contextlib.contextmanager
def on_its_path(case: Case, dtype: torch.dtype | None, device: str | None) -> Iterator[None]:
    """Sets the case's FOURFOLD_GPU_PATH where the device has these kernels for the dtype, unless another one is set."""
    name = "FOURFOLD_GPU_PATH"
    if case.gpu_path and dtype in SMALL and has_tensor_cores(device) and name not in os.environ:
        with mock.patch.dict(os.environ, {name: case.gpu_path}):
            yield
    else:
        yield


def by_dtype(cases: list[Case] = CASES) -> list[tuple[Case, torch.dtype]]:
    return [(case, dtype) for case in cases for dtype in case.dtypes if has_dtype(dtype)]


def case_id(value: Any) -> str:
    if isinstance(value, Case):
        return value.id
    return str(value).removeprefix("torch.")


def wider(value: Any) -> Any:
    """The tensor for the reference: on the CPU, in float64 if it is floating point."""
    if not isinstance(value, Tensor):
        return value
    return value.cpu().double() if value.is_floating_point() else value.cpu()


def flatten(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for part in result for t in flatten(part)]


def differentiable(args: tuple) -> tuple[tuple, list[Tensor]]:
    """The arguments with their floating point tensors as leaves that require a gradient, and those leaves."""
    args = tuple(
        a.detach().clone().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args
    )
    return args, [a for a in args if isinstance(a, Tensor) and a.requires_grad]
