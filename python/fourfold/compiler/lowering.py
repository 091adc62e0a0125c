"""What torch's elementwise operators and reductions are as operations of a program.

A lowering is called with a ``Call`` and with the node's arguments, tensors as ``Operand``; it gives the value of the result,
or a tuple of values. ``POINTWISE`` has those whose arguments broadcast to the result; ``ROWS`` those that reduce along
some dimensions, beside which dimensions these are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from fourfold.compiler.program import FLOAT32, FLOAT64, NARROW, ROUNDED, TYPES, Program, Value


class NotFusable(Exception):
    """This call can't be part of a program; ``str()`` of it says why."""


@dataclass(frozen=True)
class Operand:
    """A tensor among a call's arguments, or a number that comes with each call: ``fake`` is what torch traced it with."""

    value: Value
    fake: object

    @property
    def dtype(self) -> torch.dtype:
        if isinstance(self.fake, torch.Tensor):
            return self.fake.dtype
        return torch.int64 if isinstance(self.fake, (int, torch.SymInt)) else torch.float64


Number = bool | int | float
Argument = Operand | Number


@dataclass
class Call:
    """One call of an operator that is lowered: its program, and the dtype of its result."""

    program: Program
    dtype: torch.dtype

    @property
    def type(self) -> str:
        return TYPES[self.dtype]

    def __call__(self, argument: Argument | Value, type: str | None = None) -> Value:
        """The argument in the type that the result is computed in, or in another."""
        type = type or self.type
        if isinstance(argument, Value):
            return self.program.cast(argument, type)
        if isinstance(argument, Operand):
            return self.program.cast(argument.value, type)
        return self.program.constant(type, argument)

    def op(self, name: str, *arguments: Argument | Value) -> Value:
        """An operation on arguments of one type: that of those that are values already, or else the result's."""
        types = [a.type for a in arguments if isinstance(a, Value)]
        return self.program.apply(name, *(self(a, types[0] if types else None) for a in arguments))

    def common(self, *arguments: Argument) -> str:
        """The type that torch compares these in."""
        fakes = [a.fake if isinstance(a, Operand) else a for a in arguments]
        dtype, _ = elementwise_dtypes(*fakes, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
        if dtype not in TYPES:
            raise NotFusable(f"programs know no {dtype}")
        return TYPES[dtype]

    def where(self, mask: Value, yes: Argument | Value, no: Argument | Value) -> Value:
        return self.program.apply("where", mask, self(yes), self(no))

    def compare(self, name: str, a: Argument | Value, b: Argument | Value) -> Value:
        """Of values; an argument that is none is taken in their type."""
        return self.op(name, a, b)

    def finished(self, value: Value) -> Value:
        """As the result's dtype holds it, where integers wrap around."""
        narrow = NARROW.get(self.dtype)
        return self.program.apply(narrow, value) if narrow else value


Lowering = Callable[..., Value | tuple[Value, ...]]
POINTWISE: dict[object, Lowering] = {}
aten, prims = torch.ops.aten, torch.ops.prims


def pointwise(*targets: object) -> Callable[[Lowering], Lowering]:
    def register(lowering: Lowering) -> Lowering:
        for target in targets:
            POINTWISE[target] = lowering
        return lowering

    return register


def overloads(packet: object) -> list[object]:
    """Those that give a new tensor."""
    names = [name for name in packet.overloads() if "out" not in name.split("_")]
    return [getattr(packet, name) for name in names if name not in ("complex", "int", "float", "Scalar_Scalar")]


def _direct(operation: str) -> Lowering:
    return lambda call, *arguments: call.op(operation, *map(call, arguments))


# By torch's name, where the operation does just what the operator does.
DIRECT = {
    "neg": "neg",
    "sign": "sign",
    "sgn": "sign",
    "minimum": "minimum",
    "maximum": "maximum",
    "atan2": "atan2",
    "copysign": "copysign",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log10": "log10",
    "log1p": "log1p",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "sinh": "sinh",
    "cosh": "cosh",
    "tanh": "tanh",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "sigmoid": "sigmoid",
    "erf": "erf",
    "erfc": "erfc",
}
for _name, _operation in DIRECT.items():
    pointwise(*overloads(getattr(aten, _name)))(_direct(_operation))

BITWISE = {"bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor"}
for _name, _operation in BITWISE.items():
    pointwise(*overloads(getattr(aten, _name)))(_direct(_operation))
pointwise(aten.bitwise_not.default)(_direct("bitwise_not"))


def _unless_integer(operation: str) -> Lowering:
    return lambda call, x: call.op(operation, call(x)) if call.dtype.is_floating_point else call(x)


for _name in ("floor", "ceil", "trunc"):
    pointwise(getattr(aten, _name).default)(_unless_integer(_name))
pointwise(aten.round.default)(_unless_integer("round"))


def _comparison(operation: str) -> Lowering:
    def lower(call: Call, a: Argument, b: Argument) -> Value:
        type = call.common(a, b)
        return call.op(operation, call(a, type), call(b, type))

    return lower


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    pointwise(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(_name))


def truth(call: Call, x: Argument) -> Value:
    return call(x, "boolean")


@pointwise(aten.logical_not.default)
def logical_not(call: Call, x: Argument) -> Value:
    return call.op("bitwise_not", truth(call, x))


for _name, _operation in (("and", "bitwise_and"), ("or", "bitwise_or"), ("xor", "bitwise_xor")):

    @pointwise(getattr(aten, f"logical_{_name}").default)
    def logical(call: Call, a: Argument, b: Argument, operation: str = _operation) -> Value:
        return call.op(operation, truth(call, a), truth(call, b))


@pointwise(aten.abs.default)
def abs_(call: Call, x: Argument) -> Value:
    return call(x) if call.dtype in (torch.uint8, torch.bool) else call.op("abs", call(x))


def scaled(call: Call, x: Argument, alpha: Number) -> Value:
    return call(x) if alpha == 1 else call.op("mul", call(x), call(alpha))


@pointwise(aten.add.Tensor, aten.add.Scalar)
def add(call: Call, x: Argument, y: Argument, alpha: Number = 1) -> Value:
    if call.dtype == torch.bool:
        return call.op("bitwise_or", call(x), call.op("bitwise_and", call(y), bool(alpha)))
    return call.op("add", call(x), scaled(call, y, alpha))


@pointwise(aten.sub.Tensor, aten.sub.Scalar)
def sub(call: Call, x: Argument, y: Argument, alpha: Number = 1) -> Value:
    return call.op("sub", call(x), scaled(call, y, alpha))


@pointwise(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(call: Call, x: Argument, y: Argument, alpha: Number = 1) -> Value:
    return sub(call, y, x, alpha)


@pointwise(aten.mul.Tensor, aten.mul.Scalar)
def mul(call: Call, x: Argument, y: Argument) -> Value:
    return call.op("bitwise_and" if call.dtype == torch.bool else "mul", call(x), call(y))


def nonzero_divisor(y: Argument) -> None:
    """torch raises an error where an integer is divided by zero: left to it, unless that can't be."""
    if isinstance(y, Operand) or y == 0:
        raise NotFusable("a division of integers may meet a zero")


@pointwise(aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode)
def div(call: Call, x: Argument, y: Argument, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return call.op("div", call(x), call(y))
    floors = rounding_mode == "floor"
    if not call.dtype.is_floating_point:
        nonzero_divisor(y)
        return call.op("integer_floor_divide" if floors else "integer_trunc_divide", call(x), call(y))
    if floors:
        return call.op("floor_divide", call(x), call(y))
    return call.op("trunc", call.op("div", call(x), call(y)))


@pointwise(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(call: Call, x: Argument, y: Argument) -> Value:
    return div(call, x, y, "floor")


@pointwise(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(call: Call, x: Argument, y: Argument) -> Value:
    if call.dtype.is_floating_point:
        return call.op("fmod", call(x), call(y))
    nonzero_divisor(y)
    return call.op("integer_fmod", call(x), call(y))


@pointwise(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(call: Call, x: Argument, y: Argument) -> Value:
    if call.dtype.is_floating_point:
        return call.op("remainder", call(x), call(y))
    nonzero_divisor(y)
    return call.op("integer_remainder", call(x), call(y))


@pointwise(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_(call: Call, x: Argument, y: Argument) -> Value:
    if call.dtype.is_floating_point:
        return call.op("pow", call(x), call(y))
    if isinstance(y, Operand) or y not in (0, 1, 2, 3):
        raise NotFusable("a power of integers")
    value = call(x)
    return call(1) if y == 0 else call.op("pow", value, call(y))


for _name, _operation in (("left", "shift_left"), ("right", "shift_right")):

    @pointwise(*overloads(getattr(aten, f"bitwise_{_name}_shift")), *overloads(getattr(aten, f"__{_name[0]}shift__")))
    def shift(call: Call, x: Argument, y: Argument, operation: str = _operation) -> Value:
        if call.dtype not in (torch.int32, torch.int64):
            raise NotFusable("a shift of small integers")
        return call.op(operation, call(x), call(y))


@pointwise(aten.fmin.default)
def fmin(call: Call, a: Argument, b: Argument) -> Value:
    a, b = call(a), call(b)
    if not call.dtype.is_floating_point:
        return call.op("minimum", a, b)
    return call.where(is_nan(call, a), b, call.where(is_nan(call, b), a, call.op("minimum", a, b)))


@pointwise(aten.fmax.default)
def fmax(call: Call, a: Argument, b: Argument) -> Value:
    a, b = call(a), call(b)
    if not call.dtype.is_floating_point:
        return call.op("maximum", a, b)
    return call.where(is_nan(call, a), b, call.where(is_nan(call, b), a, call.op("maximum", a, b)))


def is_nan(call: Call, value: Value) -> Value:
    return call.op("ne", value, value)


@pointwise(aten.isnan.default)
def isnan(call: Call, x: Operand) -> Value:
    return is_nan(call, x.value) if x.dtype.is_floating_point else call(False)


@pointwise(aten.isinf.default)
def isinf(call: Call, x: Operand) -> Value:
    return call.op("eq", call.op("abs", x.value), math.inf) if x.dtype.is_floating_point else call(False)


@pointwise(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(call: Call, mask: Argument, yes: Argument, no: Argument) -> Value:
    return call.where(truth(call, mask), yes, no)


@pointwise(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(call: Call, x: Argument, mask: Argument, value: Argument) -> Value:
    return call.where(truth(call, mask), value, x)


@pointwise(aten.clamp.default, aten.clamp.Tensor)
def clamp(call: Call, x: Argument, min: Argument | None = None, max: Argument | None = None) -> Value:
    value = call(x)
    if min is not None:
        value = call.op("maximum", value, call(min))
    return value if max is None else call.op("minimum", value, call(max))


@pointwise(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(call: Call, x: Argument, min: Argument) -> Value:
    return clamp(call, x, min)


@pointwise(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(call: Call, x: Argument, max: Argument) -> Value:
    return clamp(call, x, None, max)


@pointwise(aten.hardtanh.default)
def hardtanh(call: Call, x: Argument, min_val: Number = -1, max_val: Number = 1) -> Value:
    return clamp(call, x, min_val, max_val)


@pointwise(aten.addcmul.default)
def addcmul(call: Call, x: Argument, a: Argument, b: Argument, value: Number = 1) -> Value:
    return call.op("add", call(x), call.op("mul", scaled(call, a, value), call(b)))


@pointwise(aten.addcdiv.default)
def addcdiv(call: Call, x: Argument, a: Argument, b: Argument, value: Number = 1) -> Value:
    return call.op("add", call(x), call.op("div", scaled(call, a, value), call(b)))


@pointwise(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(call: Call, a: Argument, b: Argument, weight: Argument) -> Value:
    a, b, weight = call(a), call(b), call(weight)
    distance = call.op("sub", b, a)
    near = call.op("add", a, call.op("mul", weight, distance))
    far = call.op("sub", b, call.op("mul", distance, call.op("sub", 1, weight)))
    return call.where(call.op("lt", call.op("abs", weight), 0.5), near, far)


@pointwise(aten.hypot.default)
def hypot(call: Call, a: Argument, b: Argument) -> Value:
    if call.type == FLOAT64:
        raise NotFusable("hypot of float64, whose squares may overflow")
    a, b = call(a, FLOAT64), call(b, FLOAT64)
    return call(call.op("sqrt", call.op("add", call.op("mul", a, a), call.op("mul", b, b))))


# Conversions and copies.


def converted(call: Call, x: Argument) -> Value:
    """A user's conversion rounds, even within a program."""
    value = call(x)
    rounded = ROUNDED.get(call.dtype)
    given = x.dtype if isinstance(x, Operand) else None
    return call.op(rounded, value) if rounded and given != call.dtype else value


@pointwise(prims.convert_element_type.default)
def convert_element_type(call: Call, x: Argument, dtype: torch.dtype) -> Value:
    if call.dtype == torch.uint8 and isinstance(x, Operand) and x.dtype.is_floating_point:
        return call(call(x, "int64"))
    return converted(call, x)


@pointwise(aten._to_copy.default)
def to_copy(call: Call, x: Argument, **settings: object) -> Value:
    return convert_element_type(call, x, call.dtype)


@pointwise(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def copied(call: Call, x: Argument, memory_format: object = None) -> Value:
    return call(x)


# Tensors that hold one number, which a program writes where it is needed.


def _second(like: object, value: Number, **settings: object) -> Number:
    return value


CONSTANT: dict[object, Callable[..., Number]] = {
    aten.full.default: _second,
    aten.full_like.default: _second,
    aten.zeros.default: lambda *_, **settings: 0,
    aten.zeros_like.default: lambda *_, **settings: 0,
    aten.ones.default: lambda *_, **settings: 1,
    aten.ones_like.default: lambda *_, **settings: 1,
    aten.scalar_tensor.default: lambda value, **settings: value,
}


# Activations of torch.nn and their gradients.


@pointwise(aten.relu.default)
def relu(call: Call, x: Argument) -> Value:
    value = call(x)
    return call.where(call.op("le", value, 0), 0, value)  # NaN passes


@pointwise(aten.threshold_backward.default)
def threshold_backward(call: Call, grad: Argument, x: Argument, threshold: Number) -> Value:
    return call.where(call.op("le", call(x), threshold), 0, grad)


@pointwise(aten.leaky_relu.default)
def leaky_relu(call: Call, x: Argument, negative_slope: Number = 0.01) -> Value:
    value = call(x)
    return call.where(call.op("gt", value, 0), value, call.op("mul", value, negative_slope))


@pointwise(aten.leaky_relu_backward.default)
def leaky_relu_backward(call: Call, grad: Argument, x: Argument, slope: Number, is_result: bool) -> Value:
    return call.where(call.op("gt", call(x), 0), grad, call.op("mul", call(grad), slope))


@pointwise(aten.silu.default)
def silu(call: Call, x: Argument) -> Value:
    value = call(x)
    return call.op("mul", value, call.op("sigmoid", value))


@pointwise(aten.silu_backward.default)
def silu_backward(call: Call, grad: Argument, x: Argument) -> Value:
    value = call(x)
    s = call.op("sigmoid", value)
    slope = call.op("mul", s, call.op("add", call.op("mul", value, call.op("sub", 1, s)), 1))
    return call.op("mul", call(grad), slope)


@pointwise(aten.sigmoid_backward.default)
def sigmoid_backward(call: Call, grad: Argument, result: Argument) -> Value:
    y = call(result)
    return call.op("mul", call(grad), call.op("mul", call.op("sub", 1, y), y))


@pointwise(aten.tanh_backward.default)
def tanh_backward(call: Call, grad: Argument, result: Argument) -> Value:
    y = call(result)
    return call.op("mul", call(grad), call.op("sub", 1, call.op("mul", y, y)))


SQRT_HALF = math.sqrt(0.5)
SQRT_2_BY_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715  # of gelu's approximation by tanh


@pointwise(aten.gelu.default)
def gelu(call: Call, x: Argument, approximate: str = "none") -> Value:
    value = call(x)
    if approximate == "tanh":
        return call.op("mul", call.op("mul", value, 0.5), call.op("add", call.op("tanh", gelu_inner(call, value)), 1))
    twice = call.op("add", call.op("erf", call.op("mul", value, SQRT_HALF)), 1)
    return call.op("mul", call.op("mul", value, 0.5), twice)


def gelu_inner(call: Call, value: Value) -> Value:
    cube = call.op("mul", call.op("mul", value, value), value)
    return call.op("mul", call.op("add", value, call.op("mul", cube, CUBIC)), SQRT_2_BY_PI)


@pointwise(aten.gelu_backward.default)
def gelu_backward(call: Call, grad: Argument, x: Argument, approximate: str = "none") -> Value:
    value, square = call(x), call.op("mul", call(x), call(x))
    if approximate == "tanh":
        t = call.op("tanh", gelu_inner(call, value))
        inner = call.op("mul", call.op("add", call.op("mul", square, 3 * CUBIC), 1), SQRT_2_BY_PI)
        left = call.op("mul", call.op("add", t, 1), 0.5)
        right = call.op("mul", call.op("mul", value, 0.5), call.op("mul", call.op("sub", 1, call.op("mul", t, t)), inner))
        return call.op("mul", call(grad), call.op("add", left, right))
    normal = call.op("mul", call.op("add", call.op("erf", call.op("mul", value, SQRT_HALF)), 1), 0.5)
    density = call.op("mul", call.op("exp", call.op("mul", square, -0.5)), 1 / math.sqrt(2 * math.pi))
    return call.op("mul", call(grad), call.op("add", normal, call.op("mul", value, density)))


@pointwise(aten.elu.default)
def elu(call: Call, x: Argument, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    value = call(x)
    negative = call.op("mul", call.op("expm1", call.op("mul", value, input_scale)), alpha * scale)
    return call.where(call.op("le", value, 0), negative, call.op("mul", value, scale))


@pointwise(aten.softplus.default)
def softplus(call: Call, x: Argument, beta: Number = 1, threshold: Number = 20) -> Value:
    value = call(x)
    scaled = call.op("mul", value, beta)
    soft = call.op("div", call.op("log1p", call.op("exp", scaled)), beta)
    return call.where(call.op("gt", scaled, threshold), value, soft)


@pointwise(aten.softplus_backward.default)
def softplus_backward(call: Call, grad: Argument, x: Argument, beta: Number, threshold: Number) -> Value:
    scaled = call.op("mul", call(x), beta)
    slope = call.op("sigmoid", scaled)
    return call.where(call.op("gt", scaled, threshold), grad, call.op("mul", call(grad), slope))


# Reductions along dimensions.


@dataclass(frozen=True)
class Rows:
    """A lowering that reduces: which argument it goes over, along which dimensions, and what its results are like."""

    lower: Lowering
    dims: Callable[..., Iterable[int] | None]  # of the node's arguments; None for all
    # Of each result: "row", one for each row; "keep", the same with the reduced dimensions, of size 1; "element".
    results: tuple[str, ...] | Callable[..., tuple[str, ...]]


ROWS: dict[object, Rows] = {}


def kept(keepdim: bool) -> tuple[str, ...]:
    return ("keep",) if keepdim else ("row",)


def rows(*targets: object, dims: Callable[..., object], results: object) -> Callable[[Lowering], Lowering]:
    def register(lowering: Lowering) -> Lowering:
        for target in targets:
            ROWS[target] = Rows(lowering, dims, results)
        return lowering

    return register


def _of_dims(x: object, dim: object = None, keepdim: bool = False, **settings: object) -> object:
    return dim


def _kept(x: object, dim: object = None, keepdim: bool = False, **settings: object) -> tuple[str, ...]:
    return kept(keepdim)


@rows(aten.sum.default, aten.sum.dim_IntList, dims=_of_dims, results=_kept)
def sum_(call: Call, x: Operand, dim: object = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    return call.op("sum", call(x))


def mean_of(call: Call, value: Value) -> Value:
    return call.op("div", call.op("sum", value), call.program.columns(value.type))


@rows(aten.mean.default, aten.mean.dim, dims=_of_dims, results=_kept)
def mean(call: Call, x: Operand, dim: object = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    return mean_of(call, call(x))


@rows(aten.amax.default, dims=_of_dims, results=_kept)
def amax(call: Call, x: Operand, dim: object = (), keepdim: bool = False) -> Value:
    return call.op("amax", call(x))


@rows(aten.amin.default, dims=_of_dims, results=_kept)
def amin(call: Call, x: Operand, dim: object = (), keepdim: bool = False) -> Value:
    return call.op("amin", call(x))


@rows(aten.prod.default, aten.prod.dim_int, dims=_of_dims, results=_kept)
def prod(call: Call, x: Operand, dim: object = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Value:
    return call.op("prod", call(x))


@rows(aten.any.default, aten.any.dim, aten.any.dims, dims=_of_dims, results=_kept)
def any_(call: Call, x: Operand, dim: object = None, keepdim: bool = False) -> Value:
    return call(call.op("any", truth(call, x)))


@rows(aten.all.default, aten.all.dim, aten.all.dims, dims=_of_dims, results=_kept)
def all_(call: Call, x: Operand, dim: object = None, keepdim: bool = False) -> Value:
    return call(call.op("all", truth(call, x)))


def moments(call: Call, value: Value, correction: Number) -> tuple[Value, Value]:
    """Variance and mean, the deviations summed in a second pass."""
    mean = mean_of(call, value)
    deviation = call.op("sub", value, mean)
    squares = call.op("sum", call.op("mul", deviation, deviation))
    count = call.program.columns(value.type)
    left = call.op("maximum", call.op("sub", count, correction), 0) if correction else count
    return call.op("div", squares, left), mean


def _var_dims(x: object, dim: object = None, **settings: object) -> object:
    return dim


def _var_kept(x: object, dim: object = None, correction: object = None, keepdim: bool = False) -> tuple[str, ...]:
    return kept(keepdim)


@rows(aten.var.correction, dims=_var_dims, results=_var_kept)
def var(call: Call, x: Operand, dim: object = None, correction: Number | None = None, keepdim: bool = False) -> Value:
    return moments(call, call(x), 1 if correction is None else correction)[0]


@rows(aten.std.correction, dims=_var_dims, results=_var_kept)
def std(call: Call, x: Operand, dim: object = None, correction: Number | None = None, keepdim: bool = False) -> Value:
    return call.op("sqrt", var(call, x, dim, correction))


@rows(aten.var_mean.correction, dims=_var_dims, results=lambda *a, **k: _var_kept(*a, **k) * 2)
def var_mean(
    call: Call, x: Operand, dim: object = None, correction: Number | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return moments(call, call(x), 1 if correction is None else correction)


def _last(x: object, dim: int, *rest: object) -> list[int]:
    return [dim]


ELEMENT = ("element",)


@rows(aten._softmax.default, dims=_last, results=ELEMENT)
def softmax(call: Call, x: Operand, dim: int, half_to_float: bool) -> Value:
    value = call(x)
    e = call.op("exp", call.op("sub", value, call.op("amax", value)))
    return call.op("div", e, call.op("sum", e))


@rows(aten._log_softmax.default, dims=_last, results=ELEMENT)
def log_softmax(call: Call, x: Operand, dim: int, half_to_float: bool) -> Value:
    value = call(x)
    below = call.op("sub", value, call.op("amax", value))
    return call.op("sub", below, call.op("log", call.op("sum", call.op("exp", below))))


def _backward_dims(grad: object, result: object, dim: int, dtype: object) -> list[int]:
    return [dim]


@rows(aten._softmax_backward_data.default, dims=_backward_dims, results=ELEMENT)
def softmax_backward(call: Call, grad: Operand, result: Operand, dim: int, dtype: torch.dtype) -> Value:
    g, y = call(grad, FLOAT32 if call.type == FLOAT32 else None), call(result)
    product = call.op("mul", g, y)
    return call.op("sub", product, call.op("mul", y, call.op("sum", product)))


@rows(aten._log_softmax_backward_data.default, dims=_backward_dims, results=ELEMENT)
def log_softmax_backward(call: Call, grad: Operand, result: Operand, dim: int, dtype: torch.dtype) -> Value:
    g, y = call(grad), call(result)
    return call.op("sub", g, call.op("mul", call.op("exp", y), call.op("sum", g)))


def _normalized(x: object, shape: list[int], *rest: object) -> list[int]:
    return list(range(-len(shape), 0))


@rows(aten.native_layer_norm.default, dims=_normalized, results=("element", "keep", "keep"))
def layer_norm(
    call: Call, x: Operand, shape: list[int], weight: Operand | None, bias: Operand | None, eps: float
) -> tuple[Value, Value, Value]:
    value = call(x)
    variance, mean = moments(call, value, 0)
    rstd = call.op("rsqrt", call.op("add", variance, eps))
    result = call.op("mul", call.op("sub", value, mean), rstd)
    if weight is not None:
        result = call.op("mul", result, call(weight))
    return (result if bias is None else call.op("add", result, call(bias))), mean, rstd
