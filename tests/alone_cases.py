"""Single operators on tensors of any size, which scripts/operators_alone.py times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import make_tensor

from compiler_operators import ENTRIES, LEFT, BinaryUfuncInfo, OpInfo, ReductionOpInfo, UnaryUfuncInfo

SIZES = (1_000, 100_000, 1_000_000)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int64, torch.uint8, torch.bool)
WIDTH = 1000  # row width for large sizes
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift", "ldexp")

Draw = Callable[[int, torch.dtype, bool], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """call: takes the tensors that ``draw(size, dtype, requires_grad)`` returns; its result is a list of tensors."""

    call: Callable[..., list[Tensor]]
    draw: Draw
    dtypes: tuple[torch.dtype, ...] = FLOATS
    trained: tuple[torch.dtype, ...] = FLOATS


def listed(call: Callable[..., object]) -> Callable[..., list[Tensor]]:
    def run(*tensors: Tensor) -> list[Tensor]:
        result = call(*tensors)
        return [result] if isinstance(result, Tensor) else list(result)

    return run


def first(call: Callable[..., Sequence[Tensor]]) -> Callable[..., Tensor]:
    return lambda *tensors: call(*tensors)[0]


def drawn(shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool = False, **limits: object) -> Tensor:
    x = make_tensor(shape, dtype=dtype, device="cpu", **limits)
    return x.requires_grad_(requires_grad and dtype.is_floating_point)


def elements(count: int, *limits: dict[str, object]) -> Draw:
    """Draws a tensor for each of the limits."""
    return lambda size, dtype, grad: tuple(drawn((size,), dtype, grad, **each) for each in limits)


def width(size: int) -> int:
    return min(WIDTH, size // 10)


def rows(size: int) -> tuple[int, int]:
    return size // width(size), width(size)


def image(size: int, channels: int = 10) -> tuple[int, int, int, int]:
    side = int((size / channels) ** 0.5)
    return 1, channels, side, side


def dtypes_of(entry: OpInfo) -> tuple[tuple[torch.dtype, ...], tuple[torch.dtype, ...]]:
    supported, backward = entry.supported_dtypes("cpu"), entry.supported_backward_dtypes("cpu")
    own = tuple(dtype for dtype in DTYPES if dtype in supported)
    return own, tuple(d for d in own if d.is_floating_point and d in backward and entry.supports_autograd)


def of_unary(entry: UnaryUfuncInfo) -> Case:
    low, high = entry.domain

    def draw(size: int, dtype: torch.dtype, grad: bool) -> tuple[Tensor, ...]:
        limits = {} if dtype == torch.bool else {"low": low, "high": high}
        return (drawn((size,), dtype, grad, **limits),)

    return Case(listed(entry.op), draw, *dtypes_of(entry))


def of_binary(entry: BinaryUfuncInfo) -> Case:
    def draw(size: int, dtype: torch.dtype, grad: bool) -> tuple[Tensor, ...]:
        first, second = dict(entry.lhs_make_tensor_kwargs or {}), dict(entry.rhs_make_tensor_kwargs or {})
        if entry.name in SHIFTS or "pow" in entry.name and not dtype.is_floating_point:
            second |= {"low": 0, "high": 4}
        return drawn((size,), dtype, grad, **first), drawn((size,), dtype, grad, **second)

    return Case(listed(entry.op), draw, *dtypes_of(entry))


def of_reduction(entry: ReductionOpInfo) -> Case:
    def draw(size: int, dtype: torch.dtype, grad: bool) -> tuple[Tensor, ...]:
        return (drawn(rows(size), dtype, grad),)

    return Case(listed(lambda x: entry.op(x, dim=-1)), draw, *dtypes_of(entry))


def of_rows(call: Callable[..., object], parameters: int = 0) -> Case:
    """A function of rows, and of parameters with the length of a row."""

    def draw(size: int, dtype: torch.dtype, grad: bool) -> tuple[Tensor, ...]:
        own = [drawn((width(size),), dtype, grad) for _ in range(parameters)]
        return drawn(rows(size), dtype, grad), *own

    return Case(listed(call), draw)


def of_images(call: Callable[..., object], parameters: int = 0, times: int = 1, statistics: bool = False) -> Case:
    """A function of an image, whose result has ``times`` times its elements, and of parameters with the length of its
    channels."""

    def draw(size: int, dtype: torch.dtype, grad: bool) -> tuple[Tensor, ...]:
        shape = image(size // times)
        own = [drawn(shape[1:2], dtype, grad) for _ in range(parameters)]
        known = [drawn(shape[1:2], dtype, low=0.5, high=2) for _ in range(2 if statistics else 0)]
        return drawn(shape, dtype, grad), *own, *known

    return Case(listed(call), draw)


def of_pair(call: Callable[..., object], first: dict[str, float] | None = None, **second: float) -> Case:
    """A function of two tensors, of which the first requires a gradient."""

    def draw(size: int, dtype: torch.dtype, grad: bool) -> tuple[Tensor, ...]:
        return drawn((size,), dtype, grad, **first or {"low": -2, "high": 2}), drawn((size,), dtype, **second)

    return Case(listed(call), draw)


def of_one(call: Callable[..., object], **limits: object) -> Case:
    return Case(listed(call), lambda size, dtype, grad: (drawn((size,), dtype, grad, **limits),))


def resized(mode: str, dtypes: tuple[torch.dtype, ...] = FLOATS, **settings: object) -> Case:
    case = of_images(lambda x: F.interpolate(x, scale_factor=2, mode=mode, **settings), times=4)
    return replace(case, dtypes=dtypes, trained=dtypes)


def of_labels(call: Callable[..., object]) -> Case:
    def draw(size: int, dtype: torch.dtype, grad: bool) -> tuple[Tensor, ...]:
        shape = rows(size)
        return drawn(shape, dtype, grad, low=-2, high=2), torch.randint(shape[1], shape[:1])

    return Case(listed(call), draw)


def of_places(call: Callable[..., object]) -> Case:
    """A function of rows, and of as many rows of four indices, which are both places in a row and rows."""

    def draw(size: int, dtype: torch.dtype, grad: bool) -> tuple[Tensor, ...]:
        shape = rows(size)
        return drawn(shape, dtype, grad), torch.randint(min(shape), (shape[0], 4))

    return Case(listed(call), draw)


NORMS = {
    "layer_norm": of_rows(lambda x, w, b: F.layer_norm(x, w.shape, w, b), 2),
    "layer_norm (no parameters)": of_rows(lambda x: F.layer_norm(x, x.shape[-1:])),
    "rms_norm": of_rows(lambda x, w: F.rms_norm(x, w.shape, w), 1),
    "group_norm": of_images(lambda x, w, b: F.group_norm(x, 5, w, b), 2),
    "instance_norm": of_images(lambda x, w, b: F.instance_norm(x, None, None, w, b), 2),
    "batch_norm (training)": of_images(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), 2),
    "batch_norm (eval)": of_images(lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b), 2, statistics=True),
    "softmax": of_rows(lambda x: F.softmax(x, -1)),
    "softmax (columns)": of_rows(lambda x: F.softmax(x, 0)),
    "log_softmax": of_rows(lambda x: F.log_softmax(x, -1)),
    "safe_softmax": of_rows(lambda x: torch.ops.aten._safe_softmax(x, -1)),
    "normalize": of_rows(lambda x: F.normalize(x, dim=-1)),
    "cosine_similarity": of_rows(lambda x, y: F.cosine_similarity(x, y, dim=-1), 1),
    "glu": of_rows(lambda x: F.glu(x, -1)),
    "sum over rows": of_rows(lambda x: x.sum(0)),
}
LOSSES = {
    "mse_loss": of_pair(F.mse_loss),
    "l1_loss": of_pair(F.l1_loss),
    "huber_loss": of_pair(F.huber_loss),
    "smooth_l1_loss": of_pair(F.smooth_l1_loss),
    "soft_margin_loss": of_pair(F.soft_margin_loss, low=-1, high=1),
    "kl_div": of_pair(lambda x, y: F.kl_div(x, y, reduction="batchmean"), low=0.1, high=1),
    "poisson_nll_loss": of_pair(F.poisson_nll_loss, low=0, high=3),
    "binary_cross_entropy": of_pair(F.binary_cross_entropy, first={"low": 0.1, "high": 0.9}, low=0, high=1),
    "binary_cross_entropy_with_logits": of_pair(F.binary_cross_entropy_with_logits, low=0, high=1),
    "cross_entropy": of_labels(F.cross_entropy),
    "nll_loss": of_labels(F.nll_loss),
}
OTHERS = {
    "dropout": of_one(F.dropout),
    "gelu (tanh)": of_one(lambda x: F.gelu(x, approximate="tanh")),
    "gelu": of_one(F.gelu),
    "prelu": of_images(F.prelu, 1),
    "threshold": of_one(lambda x: F.threshold(x, 0.1, 20)),
    "leaky_relu": of_one(F.leaky_relu),
    "hardswish": of_one(F.hardswish),
    "softshrink": of_one(F.softshrink),
    "clamp": of_one(lambda x: x.clamp(-1, 1)),
    "x ** 2": of_one(lambda x: x**2),
    "x ** 3": of_one(lambda x: x**3),
    "x + 1": of_one(lambda x: x + 1),
    "x % 3": of_one(lambda x: x % 3),
    "lerp": of_pair(lambda x, y: torch.lerp(x, y, 0.3)),
    "addcmul": of_pair(lambda x, y: torch.addcmul(x, x, y, value=0.5)),
    "where": of_pair(lambda x, y: torch.where(y > 0, x, y)),
    "masked_fill": of_pair(lambda x, y: x.masked_fill(y > 0, 0.0)),
    "to float32": of_one(lambda x: x.to(torch.float32)),
    "to float64": of_one(lambda x: x.to(torch.float64)),
    "to bfloat16": of_one(lambda x: x.to(torch.bfloat16)),
    "to int64": Case(listed(lambda x: x.to(torch.int64)), elements(1, {}), DTYPES, ()),
    "clone": Case(listed(lambda x: x.clone()), elements(1, {}), DTYPES, FLOATS),
    "transposed copy": of_rows(lambda x: x.t().contiguous()),
    "interpolate (nearest)": resized("nearest"),
    "interpolate (nearest-exact)": resized("nearest-exact"),
    "interpolate (bilinear)": resized("bilinear"),
    "interpolate (bilinear, align_corners)": resized("bilinear", align_corners=True),
    "interpolate (bilinear, antialias)": resized("bilinear", FLOATS[:2], antialias=True),
    "interpolate (bicubic)": resized("bicubic"),
    "interpolate (area)": resized("area"),
    "pad (reflect)": of_images(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "pad (constant)": of_images(lambda x: F.pad(x, (1, 1, 1, 1))),
    "cat": of_pair(lambda x, y: torch.cat([x, y])),
}

SCANS = {
    **{f.__name__: of_rows(partial(f, dim=-1)) for f in (torch.cumsum, torch.cumprod, torch.logcumsumexp)},
    **{f.__name__: of_rows(first(partial(f, dim=-1))) for f in (torch.cummax, torch.cummin)},
    "cumsum (columns)": of_rows(lambda x: x.cumsum(0)),
    "cumprod (columns)": of_rows(lambda x: x.cumprod(0)),
}
# Their gradients write some places of zeros.
SELECTIONS = {
    **{f.__name__: of_rows(first(partial(f, dim=-1))) for f in (torch.max, torch.min, torch.median, torch.sort)},
    "topk": of_rows(first(lambda x: x.topk(10, -1))),
    "gather": of_places(lambda x, index: x.gather(-1, index)),
    "index_select": of_places(lambda x, index: x.index_select(0, index[:, 0])),
    "x[index]": of_places(lambda x, index: x[index[:, 0]]),
    "embedding": of_places(lambda x, index: F.embedding(index[:, 0], x)),
    "x[:, 1:]": of_rows(lambda x: x[:, 1:].clone()),
    "diagonal": of_rows(lambda x: x.diagonal().clone()),
    "trace": of_rows(lambda x: x.trace()),
}


def gradient(name: str, *rest: object, rows_too: bool = False) -> Case:
    """An operator's gradient, called by its own name, as a backward may have it alone."""
    operator = getattr(torch.ops.aten, name).default

    def draw(size: int, dtype: torch.dtype, grad: bool) -> tuple[Tensor, ...]:
        shape = rows(size) if rows_too else (size,)
        return drawn(shape, dtype, low=-2, high=2), drawn(shape, dtype, low=0.01, high=0.99)

    def call(g: Tensor, kept: Tensor) -> Tensor:
        return operator(g, kept, *(g.dtype if value is torch.dtype else value for value in rest))

    return Case(listed(call), draw, FLOATS, ())


def elu_backward(g: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.elu_backward.default(g, 1.0, 1, 1, False, x)


GRADIENTS = {
    "elu_backward": replace(of_pair(elu_backward), trained=()),
    **{name: gradient(name) for name in ("sigmoid_backward", "tanh_backward", "gelu_backward", "silu_backward")},
    **{name: gradient(name) for name in ("mish_backward", "hardswish_backward", "hardsigmoid_backward")},
    "leaky_relu_backward": gradient("leaky_relu_backward", 0.01, False),
    "hardtanh_backward": gradient("hardtanh_backward", -1, 1),
    "threshold_backward": gradient("threshold_backward", 0),
    "softplus_backward": gradient("softplus_backward", 1, 20),
    "logit_backward": gradient("logit_backward", None),
    "_softmax_backward_data": gradient("_softmax_backward_data", -1, torch.dtype, rows_too=True),
    "_log_softmax_backward_data": gradient("_log_softmax_backward_data", -1, torch.dtype, rows_too=True),
}
# Entries that are covered under other names, need a mask, or have arguments without a default.
SKIPPED = ("masked.", "__r", "linalg", "special.", "hash_tensor", "float_power")
WITH_ARGUMENTS = ("nn.functional.prelu", "nn.functional.threshold")


def of_entry(entry: OpInfo) -> Case | None:
    if entry.full_name in LEFT or entry.full_name.startswith((*SKIPPED, *WITH_ARGUMENTS)):
        return None
    if isinstance(entry, UnaryUfuncInfo):
        return of_unary(entry)
    if isinstance(entry, BinaryUfuncInfo):
        return of_binary(entry)
    return of_reduction(entry) if isinstance(entry, ReductionOpInfo) else None


FOUND = {name: of_entry(entry) for name, entry in ENTRIES.items()}
CASES = {
    name: case
    for name, case in (FOUND | NORMS | LOSSES | OTHERS | SCANS | SELECTIONS | GRADIENTS).items()
    if case is not None and case.dtypes
}
