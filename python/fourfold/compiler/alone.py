"""Which operators torch computes faster than a program does, where nothing is fused with them.

The tables are what ``scripts/operators_alone.py`` measured (docs/compiler_alone.md): an operator is in them where a
program of it alone took longer than torch's kernel, at 1e5 or 1e6 elements on one thread. Operators that aren't named
stay programs."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

from fourfold.compiler.views import VIEWS

LOW = (torch.bfloat16, torch.float16)
NOTHING = VIEWS | {operator.getitem, torch.ops.aten.detach.default, torch.ops.aten.alias.default}
FLOATS = (*LOW, torch.float32, torch.float64)


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Passes over memory, which torch's vectorized loops make as fast as can be.
SIMPLE = words("""
    abs add addcmul angle bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil
    clamp clamp_max clamp_min deg2rad div floor hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward
    hardswish hardswish_backward hardtanh hardtanh_backward hypot leaky_relu leaky_relu_backward lerp
    log_sigmoid_backward logit_backward maximum mean minimum mul nan_to_num nansum native_layer_norm
    native_layer_norm_backward neg _prelu_kernel rad2deg reciprocal relu round rsqrt rsub sigmoid_backward
    _softmax_backward_data softplus_backward softshrink softshrink_backward sub sum tanh_backward threshold
    threshold_backward
""")
MASKS = words("eq ge gt isinf isnan isneginf isposinf le logical_and logical_not logical_or logical_xor lt ne signbit")
BYTES = SIMPLE | MASKS | words("all amax amin any fmax fmin prelu sgn sign trunc")
PROMOTED = words("deg2rad rad2deg reciprocal rsqrt div nansum sum")  # of integers, which torch converts first
TORCHS = {
    torch.float32: SIMPLE | words("amax amin frac pow.Tensor_Scalar sgn sign"),
    torch.float64: SIMPLE | words("addcdiv amax amin frac pow.Tensor_Scalar rsqrt sgn sign"),
    torch.bfloat16: SIMPLE | words("copysign gelu.none gelu_backward.none pow.Tensor_Scalar sqrt trunc"),
    torch.float16: SIMPLE | words("copysign gelu.none gelu_backward.none sqrt trunc"),
    torch.int64: SIMPLE - words("deg2rad rad2deg reciprocal rsqrt")
    | words("amax fmax fmin heaviside isinf isneginf isposinf sgn sign trunc"),
    torch.uint8: BYTES - PROMOTED | words("rsqrt reciprocal div"),
    torch.bool: BYTES - PROMOTED - words("add all amax angle any"),
}
TORCHS |= dict.fromkeys((torch.int8, torch.int16, torch.int32), TORCHS[torch.int64] & TORCHS[torch.uint8])

# What no fusion makes up for. float64: functions, of which a program calls the C library's one number at a time.
DIVISIONS = words("div.Scalar_mode div.Tensor_mode floor_divide fmod remainder")
FUNCTIONS = words("""
    _log_softmax _log_softmax_backward_data _safe_softmax _softmax acos asin atan atan2 atanh celu cos cosh elu
    elu_backward erf erfc exp exp2 expm1 log log10 log1p log2 log_sigmoid_backward logaddexp logaddexp2 logit
    logit_backward logsumexp mish mish_backward sigmoid silu silu_backward sin sinh softplus softplus_backward tan
""")
SLOW = dict.fromkeys(FLOATS, DIVISIONS | words("prod")) | {
    torch.float64: DIVISIONS | FUNCTIONS | words("gelu.none gelu_backward.none prod pow.Tensor_Tensor"),
    torch.float16: DIVISIONS | words("prod _log_softmax _log_softmax_backward_data"),
}


def names_of(node: Node) -> tuple[str, str]:
    """Of its operator, without and with its overload, or with the formula where it has two."""
    name = node.target._schema.name.partition("::")[2]
    formula = node.kwargs.get("approximate", "none") if name in ("gelu", "gelu_backward") else node.target._overloadname
    return name, f"{name}.{formula}"


def slow(node: Node) -> str | None:
    """Why torch computes an operator whatever else could be fused with it, or None."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) else value
    known = SLOW.get(value.dtype, ()) if isinstance(value, Tensor) else ()
    if any(name in known for name in names_of(node)):
        return f"torch's {names_of(node)[0]} of {str(value.dtype).removeprefix('torch.')} is several times as fast"
    return None


def reason(operators: Sequence[Node]) -> str | None:
    """Why torch runs operators that would be a program: none of them reads another, and its kernels are faster. None
    where the program stays."""
    own = [node for node in operators if not computes_nothing(node)]
    if not own or not all(isinstance(node.target, torch._ops.OpOverload) and is_torchs(node) for node in own):
        return None
    if any(reads(node, set(own)) for node in own):
        return None
    names = dict.fromkeys(names_of(node)[0] for node in own)
    return f"torch's kernel is faster for {', '.join(names)} alone"


def is_torchs(node: Node) -> bool:
    dtype = next((v.dtype for v in map(value_of, node.all_input_nodes) if isinstance(v, Tensor)), None)
    name, with_overload = names_of(node)
    if name == "_to_copy":
        return dtype != torch.float16 or value_of(node).dtype == torch.float32
    known = TORCHS.get(dtype, frozenset())
    return name in known or with_overload in known


def value_of(node: Node) -> object:
    return node.meta.get("val")


def reads(node: Node, others: set[Node]) -> bool:
    """Whether it reads one of the others, directly or through views and results of several."""
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
