"""Single operators: those that a program computes as fast as torch's kernel if nothing is fused with them. All others
fall back to torch, whose kernels also make one pass over memory. docs/compiler_alone.md lists those that are slower
than in eager mode nevertheless. On a GPU only layer norms are programs on their own.

``scripts/operators_alone.py`` measured the tables (docs/compiler_alone.md) at 1e5 and 1e6 elements on one thread.
Programs ran as loop nests on a processor with AVX2: an operator is listed if its program is 1.2 times as fast at both
sizes, and as fast with its gradient, unless it was slower with AVX-512; or if it was no slower even in the interpreter,
with AVX2 and with AVX-512. NORMS are up to 7 times as fast with AVX-512, and no slower at 1e6 elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

from fourfold.compiler.analysis.iteration_space import covers_innermost, reduced_dims
from fourfold.compiler.analysis.views import VIEWS, has_hints, have_same_shape, hint, memory_order
from fourfold.compiler.ir import powers
from fourfold.compiler.lowering import POINTWISE, ROWS
from fourfold.devices import programs

LOW = (torch.bfloat16, torch.float16)
NOTHING = VIEWS | {operator.getitem, torch.ops.aten.detach.default, torch.ops.aten.alias.default}


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Functions that torch computes one number at a time, or by other vector code.
OF_NUMBERS = words("""
    acos acosh asin asinh atan atan2 atanh cos cosh exp expm1 log log10 log1p log2 logit sigmoid sin sinc sinh
    special_entr special_xlog1py tan tanh xlogy
""")
FUNCTIONS = OF_NUMBERS | words("""
    celu elu gelu.tanh gelu_backward.tanh _log_softmax_backward_data logsumexp mish mish_backward pow.products
    pow.Scalar pow.Tensor_Tensor _safe_softmax softplus
""")
CHOICES = words("all any count_nonzero eq fmax fmin ge gt heaviside isinf isnan le lt masked_fill ne where")
LOGICAL = words("logical_and logical_not logical_or logical_xor")
OF_ROWS = words("linalg_vector_norm norm std std_mean var var_mean")
NORMS = words("""
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    native_batch_norm_backward native_group_norm native_layer_norm
""")
OF_FLOATS = words("""
    _log_softmax copysign elu_backward exp2 floor_divide fmod glu huber_loss.reduced huber_loss_backward hypot ldexp
    log_sigmoid_backward log_sigmoid_forward logaddexp nansum native_dropout_backward prod_backward remainder signbit
    silu silu_backward smooth_l1_loss.reduced smooth_l1_loss_backward softplus_backward
""")
OF_LOW = (
    FUNCTIONS
    | CHOICES
    | LOGICAL
    | OF_ROWS
    | (OF_FLOATS - words("copysign"))
    | words("""
    _prelu_kernel _softmax _softmax_backward_data add addcmul amax amin aminmax clamp erfc frac hardshrink
    hardsigmoid_backward hardtanh isneginf isposinf leaky_relu_backward logit_backward mean native_layer_norm prod relu
    rsub sgn sign sub sum threshold
""")
)
OF_INTEGERS = OF_NUMBERS | words("""
    amax amin angle copysign count_nonzero deg2rad div.Tensor erf erfc exp2 ldexp logaddexp logaddexp2 masked_fill
    pow.Scalar pow.Tensor_Scalar prod rad2deg reciprocal rsqrt sqrt
""")
# Operators by the dtype of their first tensor, which for `where` is the mask.
AS_FAST_AS_TORCH = {
    torch.float32: FUNCTIONS
    | CHOICES
    | LOGICAL
    | OF_ROWS
    | NORMS
    | OF_FLOATS
    | words("_softmax amax erf hardswish isneginf isposinf logaddexp2 trunc"),
    torch.float64: OF_NUMBERS - words("cos exp sin tan")
    | CHOICES
    | OF_ROWS
    | NORMS
    | OF_FLOATS
    | words("""
        _safe_softmax celu elu gelu.none gelu.tanh gelu_backward.none gelu_backward.tanh isneginf isposinf logical_and
        logical_or mish mish_backward pow.Tensor_Tensor pow.products softplus trunc
    """),
    torch.bfloat16: OF_LOW | words("clamp_max clamp_min maximum minimum softshrink"),
    torch.float16: OF_LOW
    | NORMS
    | words("""
        deg2rad div.Tensor hardsigmoid hardtanh_backward lerp mul pow.Tensor_Scalar rad2deg sigmoid_backward
        tanh_backward
    """),
    torch.int64: OF_INTEGERS | LOGICAL | words("add all any eq ge gt heaviside isnan isposinf le lt ne signbit"),
    torch.uint8: OF_INTEGERS | words("all any heaviside isneginf isposinf nansum signbit sum"),
    torch.bool: OF_INTEGERS | words("add all any heaviside isnan nansum rsqrt sum where"),
}
AS_FAST_AS_TORCH |= dict.fromkeys(
    (torch.int8, torch.int16, torch.int32),
    (AS_FAST_AS_TORCH[torch.int64] & AS_FAST_AS_TORCH[torch.uint8])
    - words("amax amin angle deg2rad div.Tensor exp2 isposinf rad2deg reciprocal rsqrt signbit"),
)
# Reductions that are as fast over dimensions other than the innermost one in memory.
OF_OTHER_ROWS = OF_ROWS | words("all any count_nonzero logsumexp")
# Also these, by the dtype of their operand, if at least MANY rows of at least as many columns lie side by side.
OF_MANY_ROWS = words("_log_softmax_backward_data _softmax _softmax_backward_data aminmax")
MANY_ROWS = dict.fromkeys((torch.float32, torch.float64), OF_MANY_ROWS | words("_log_softmax"))
MANY_ROWS |= dict.fromkeys(LOW, OF_MANY_ROWS | words("amax amin mean"))
MANY = 64
# Operators of float32 that also run as programs below FEW elements: torch's kernels take ten microseconds to start.
OF_FEW = words("gelu.none gelu_backward.none")
FEW = 2**14
TWO_VECTORS = 64  # bytes, with AVX2

# On a GPU torch's kernels read a row twice, and the gradient's tensors once for the input and once for the parameters.
ON_GPUS = words("native_layer_norm native_layer_norm_backward")

# By dtype: operators so slow in a program that fusion can't make up for it.
SLOW = {torch.float16: words("div.Scalar_mode div.Tensor_mode _log_softmax _log_softmax_backward_data")}


def names_of(node: Node) -> tuple[str, str]:
    """The operator's name, and the name with its overload, or with its formula if it has two."""
    name = node.target._schema.name.partition("::")[2]
    formula = node.target._overloadname
    if name in ("gelu", "gelu_backward"):
        formula = node.kwargs.get("approximate", "none")
    elif name in ("huber_loss", "smooth_l1_loss"):
        formula = "none" if node.args[2:3] == (0,) or node.kwargs.get("reduction") == 0 else "reduced"
    elif formula == "Tensor_Scalar" and name == "pow" and powers.avoids_general_power(node.args[1]):
        formula = "products"
    return name, f"{name}.{formula}"


def slow(node: Node) -> str | None:
    """Why torch computes an operator even if others could be fused with it, or None."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) else value
    if not isinstance(value, Tensor) or value.device.type != "cpu":
        return None
    if not SLOW.get(value.dtype, frozenset()).isdisjoint(names_of(node)):
        return f"torch's {names_of(node)[0]} of {str(value.dtype).removeprefix('torch.')} is several times as fast"
    return None


def reason(operators: Sequence[Node], as_nests: bool = True) -> str | None:
    """Why torch runs a group's operators instead of a program: none of them reads another, and torch's kernels are as
    fast. None if the program stays. as_nests: whether loop nests run programs, not always the interpreter."""
    own = [node for node in operators if not computes_nothing(node)]
    if not own or any(is_ours(node) or as_nests and lies_apart(node) for node in own):
        return None
    if any(reads(node, set(own)) for node in own):
        return None
    names = dict.fromkeys(names_of(node)[0] for node in own)
    return f"torch's kernel is as fast for {', '.join(names)} alone"


def reason_in_the_interpreter(reductions: Sequence[Node]) -> str | None:
    """Likewise of a group that would always run in the interpreter, which reads rows along other dimensions an element
    at a time. reductions: the group's, without its sums over rows."""
    others = [node for node in reductions if not is_over_innermost(node) and OF_ROWS.isdisjoint(names_of(node))]
    names = ", ".join(dict.fromkeys(names_of(node)[0] for node in others))
    if not others:
        return None
    return f"without loop nests torch's kernels are faster for {names} over dimensions that aren't innermost in memory"


def is_ours(node: Node) -> bool:
    """Whether its program is as fast as torch's kernel."""
    first = next((v for v in map(value_of, node.all_input_nodes) if isinstance(v, Tensor)), None)
    # The other tables hold for CPUs; on a GPU torch's kernels make one pass over memory too.
    if first is not None and first.device.type != "cpu":
        return names_of(node)[0] in ON_GPUS and not programs.obstacle(first.device.type)
    dtype = None if first is None else first.dtype
    if names_of(node)[0] == "_to_copy":
        return dtype == torch.float16 and value_of(node).dtype not in (torch.float32, torch.int64, torch.uint8)
    known = AS_FAST_AS_TORCH.get(dtype, frozenset())
    if node.target in ROWS and not is_over_innermost(node):
        known = OF_OTHER_ROWS | (MANY_ROWS.get(dtype, frozenset()) if are_many_side_by_side(node) else frozenset())
        return not known.isdisjoint(names_of(node))
    if dtype == torch.float32 and math.prod(map(hint, first.shape)) < FEW:
        known |= OF_FEW
    return not known.isdisjoint(names_of(node))


def lies_apart(node: Node) -> bool:
    """Whether it is an elementwise operator whose tensors of the result's shape lie in different orders in memory, or
    with gaps after fewer elements than two vectors have: torch's kernels for CPUs then take one number at a time, and
    loop nests turn or pick them in registers. Of eight bytes a number, torch's kernels are faster nevertheless."""
    result = value_of(node)
    if node.target not in POINTWISE or not isinstance(result, Tensor) or result.device.type != "cpu":
        return False
    operands = [x for x in node.all_input_nodes if isinstance(value_of(x), Tensor) and have_same_shape(x, node)]
    whole = [x for x in (result, *map(value_of, operands)) if has_hints(x) and 0 not in map(hint, x.stride())]
    widest = max((x.element_size() for x in whole), default=0)
    if not 0 < widest <= 4:
        return False
    orders = {tuple(d for d in memory_order(x) if hint(x.shape[d]) > 1) for x in whole}
    return len(orders) > 1 or has_short_runs(whole, orders.pop(), TWO_VECTORS // widest)


def has_short_runs(tensors: Sequence[Tensor], order: Sequence[int], fewest: int) -> bool:
    """Whether tensors of a shape, of many elements, are contiguous along fewer than so many of them. order: that of
    their dimensions in memory, outermost first."""
    run = 1
    for d in reversed(order):
        if any(hint(x.stride(d)) != run for x in tensors):
            break
        run *= hint(tensors[0].shape[d])
    return run < fewest and math.prod(map(hint, tensors[0].shape)) >= FEW


def is_over_innermost(node: Node) -> bool:
    """Whether a reduction is over the innermost dimension in memory of its operand."""
    x = node.args[0].meta["val"]
    return covers_innermost(reduced_dims(ROWS[node.target].dims(*node.args, **node.kwargs), x.dim()), x)


def are_many_side_by_side(node: Node) -> bool:
    """Whether a reduction has many columns, and many of its rows are adjacent in memory."""
    x = node.args[0].meta["val"]
    columns = reduced_dims(ROWS[node.target].dims(*node.args, **node.kwargs), x.dim())
    if not columns or not has_hints(x):
        return False
    order = memory_order(x)
    rows = order[1 + max(map(order.index, columns)) :]
    return all(math.prod(hint(x.shape[d]) for d in dims) >= MANY for dims in (rows, columns))


def value_of(node: Node) -> object:
    return node.meta.get("val")


def reads(node: Node, others: set[Node]) -> bool:
    """Whether it reads one of the others, directly or through views and getitem."""
    pending, seen = list(node.all_input_nodes), set()
    while pending:
        source = pending.pop()
        if source in others:
            return True
        if source not in seen and computes_nothing(source):
            seen.add(source)
            pending += source.all_input_nodes
    return False


def computes_nothing(node: Node) -> bool:
    return node.target in NOTHING
