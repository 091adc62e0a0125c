"""Lowers torch's elementwise operators and reductions to operations of a program.

Each is a formula on values of the IR, registered by ``pointwise`` if its arguments broadcast to the result and by
``rows`` if it reduces along some dimensions. The lowering made of it, in ``POINTWISE`` or ``ROWS``, is called with a
``Call`` and the node's arguments, tensors as ``Operand``; it returns the value of the result, or a tuple of values.
``CONSTANT`` has the operators whose result is filled with one number. ``refusal`` returns why torch has to run a call.
``decompositions`` has the operators that are decomposed into these.

Formulas are those of torch's own kernels (aten/src/ATen/native/cpu), so that values agree at special points."""

from fourfold.compiler.lowering import (
    activations,
    arithmetic,
    conversions,
    functions,
    norm_decompositions,
    norms,
    product_gradients,
    reductions,
    stencils,
)
from fourfold.compiler.lowering.call import (
    CONSTANT,
    POINTWISE,
    ROWS,
    Call,
    NotFusable,
    Operand,
    fits,
    is_stepwise,
    refusal,
)
from fourfold.compiler.lowering.decompositions import decompositions

__all__ = [
    "CONSTANT",
    "POINTWISE",
    "ROWS",
    "Call",
    "NotFusable",
    "Operand",
    "decompositions",
    "fits",
    "is_stepwise",
    "refusal",
]

_FILLED = (  # each fills tables
    *(activations, arithmetic, conversions, functions, norm_decompositions, norms, product_gradients, reductions),
    stencils,
)
