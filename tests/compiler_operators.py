"""Selects torch's own operator samples (op_db) for the compiler: the entries, and their samples.

An entry is fused if its forward becomes a program for at least one sample; ``LEFT`` lists the others with the reason.
"""

from __future__ import annotations

import warnings
from unittest import mock

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from fourfold.compiler.ir.dtypes import KINDS

# Importing these modules forbids later changes of torch.backends' flags, and warns about optional packages.
with mock.patch.object(torch.backends, "disable_global_flags", lambda: None), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core
    from torch.testing._internal.opinfo.core import (
        BinaryUfuncInfo,
        OpInfo,
        ReductionOpInfo,
        SampleInput,
        UnaryUfuncInfo,
    )

# Each draw of samples would search the stack for torch's own test case and read the source of each frame, which takes a
# tenth of a second.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

# The other entries of op_db that are elementwise, reduce along dimensions, or are composed of such operators.
_PLAIN = """
    addcdiv addcmul aminmax clamp clone dist full_like lerp linalg.matrix_norm linalg.norm
    linalg.norm.subgradients_at_zero linalg.vecdot log_softmax log_softmax.with_dtype logaddexp2 logsumexp
    masked.log_softmax masked.logaddexp masked.normalize masked.softmax masked.softmin masked_fill
    max.reduction_no_dim max.reduction_with_dim min.reduction_no_dim min.reduction_with_dim native_dropout_backward
    native_group_norm native_layer_norm nn.functional.batch_norm nn.functional.binary_cross_entropy
    nn.functional.binary_cross_entropy_with_logits nn.functional.cosine_embedding_loss
    nn.functional.cosine_similarity nn.functional.cross_entropy nn.functional.gelu nn.functional.glu
    nn.functional.group_norm nn.functional.hardswish nn.functional.hinge_embedding_loss nn.functional.huber_loss
    nn.functional.instance_norm nn.functional.kl_div nn.functional.l1_loss nn.functional.layer_norm
    nn.functional.leaky_relu nn.functional.local_response_norm nn.functional.margin_ranking_loss
    nn.functional.mse_loss nn.functional.multilabel_soft_margin_loss nn.functional.nll_loss nn.functional.normalize
    nn.functional.pairwise_distance nn.functional.poisson_nll_loss nn.functional.rms_norm
    nn.functional.smooth_l1_loss nn.functional.soft_margin_loss nn.functional.softmin
    nn.functional.softmin.with_dtype nn.functional.triplet_margin_loss norm norm.fro norm.inf ones_like outer
    softmax softmax.with_dtype _softmax_backward_data std_mean std_mean.unbiased sum_to_size to
    torch.ops.aten._safe_softmax.default var_mean var_mean.unbiased where zeros_like
"""
PLAIN = frozenset(_PLAIN.split())

# Entries whose result is random, or that need a GPU.
APART = {
    "nn.functional.rrelu": "draws random numbers",
    "jiterator_unary": "CUDA's alone",
    "jiterator_binary": "CUDA's alone",
    "jiterator_binary_return_by_ref": "CUDA's alone",
}

_SPECIAL = """
    airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t chebyshev_polynomial_u
    chebyshev_polynomial_v chebyshev_polynomial_w erfcx hermite_polynomial_h hermite_polynomial_he i0e i1 i1e
    laguerre_polynomial_l legendre_polynomial_p log_ndtr modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
    modified_bessel_k1 ndtri polygamma.special_polygamma_n_0 scaled_modified_bessel_k0 scaled_modified_bessel_k1
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w spherical_bessel_j0 zeta
"""
SPECIAL = "a special function without an operation in programs"
COMPLEX = "its result is complex"
NOTHING = "nothing is computed"
PLACES = "it returns indices"

# Entries whose whole forward falls back to torch, and why.
LEFT = {
    **{f"special.{name}": SPECIAL for name in _SPECIAL.split()},
    **{f"polygamma.polygamma_n_{n}": SPECIAL for n in range(5)},
    **{f"mvlgamma.mvlgamma_p_{p}": SPECIAL for p in (1, 3, 5)},
    **dict.fromkeys(("digamma", "erfinv", "i0", "igamma", "igammac", "lgamma"), SPECIAL),
    **dict.fromkeys(("cdouble", "cfloat", "chalf", "complex", "polar"), COMPLEX),
    **dict.fromkeys(("conj", "conj_physical", "positive", "real"), NOTHING),
    **dict.fromkeys(("fill", "full_like", "isreal", "ones_like", "zeros_like"), NOTHING),
    **dict.fromkeys(("argmax", "argmin"), PLACES),
    **dict.fromkeys(("max.reduction_with_dim", "min.reduction_with_dim", "nn.functional.nll_loss"), PLACES),
    "clone": "a single copy",
    "frexp": "it splits numbers into mantissa and exponent",
    "gcd": "an integer loop for each element",
    "lcm": "an integer loop for each element",
    "hash_tensor": "it operates on bits",
    "nextafter": "it operates on bits",
    "nn.functional.binary_cross_entropy": "torch checks that its input is between 0 and 1; the backward is fused",
}

DIVISION = "torch raises an error for an integer division by zero"
# The same for integers, which then run entirely on torch's kernels.
LEFT_OF_INTEGERS = {
    **dict.fromkeys(("div.floor_rounding", "div.trunc_rounding", "floor_divide", "fmod", "remainder"), DIVISION),
    "__rmod__": DIVISION,
    "isfinite": NOTHING,
    **dict.fromkeys(("pow", "__rpow__"), "torch raises an error for a negative power of an integer"),
}

# Factors on torch's tolerance where cancellation amplifies a rounding error; zeros may then have any sign.
WORSE = {
    "sinc": 100,  # its gradient near 0: cos(x) - sin(x) / x, over x
    "nn.functional.tanhshrink": 2,  # near 0, where the result is the rounding error of tanh
    "native_group_norm": 5,  # with few elements; mean and deviation are saved in low precision, as in eager
}

# On a GPU torch's kernels give zeros another sign than on the CPU: the gradients of masked elements.
ZEROS_ON_GPU = {"ops.aten._safe_softmax.default"}


def is_chosen(entry: OpInfo) -> bool:
    if entry.full_name in APART:
        return False
    return isinstance(entry, (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)) or entry.full_name in PLAIN


ENTRIES = {entry.full_name: entry for entry in op_db if is_chosen(entry)}


# Also left to torch on an NVIDIA GPU.
LEFT_ON_CUDA = {"nn.functional.batch_norm": "torch calls cuDNN's operator, with its own saved values"}


def left_to_torch(name: str, dtype: torch.dtype, device: str = "cpu") -> str | None:
    """Why the forward of every sample of that dtype falls back to torch, or None if at least one must become a
    program."""
    if dtype not in KINDS:
        return "no dtype of programs"
    if device == "cuda" and name in LEFT_ON_CUDA:
        return LEFT_ON_CUDA[name]
    if not dtype.is_floating_point and name in LEFT_OF_INTEGERS:
        return LEFT_OF_INTEGERS[name]
    return LEFT.get(name)


# Choice of samples.


def tensors_of(sample: SampleInput) -> list[Tensor]:
    flat, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
    return [value for value in flat if isinstance(value, Tensor)]


def features(sample: SampleInput) -> frozenset[str]:
    """A sample's features: ranks and layouts of its tensors, broadcasting, empty tensors, keyword arguments."""
    tensors = tensors_of(sample)
    shapes = {tuple(t.shape) for t in tensors}
    found = {f"rank {t.dim()}" for t in tensors} | {f"keyword {name}" for name in sample.kwargs}
    found |= {f"argument {type(value).__name__}" for value in sample.args}
    found |= {"empty" for t in tensors if t.numel() == 0}
    found |= {"not contiguous" for t in tensors if not t.is_contiguous()}
    return frozenset(found | {"broadcasts" for _ in shapes if len(shapes) > 1})


def chosen(samples: list[SampleInput], most: int) -> list[SampleInput]:
    """At most ``most`` samples, which together have as many features as possible."""
    result: list[SampleInput] = []
    seen: set[str] = set()
    rest = [(features(sample), k) for k, sample in enumerate(samples)]
    while rest and len(result) < most:
        best = max(rest, key=lambda pair: (len(pair[0] - seen), -pair[1]))
        rest.remove(best)
        seen |= best[0]
        result.append(samples[best[1]])
    return result
