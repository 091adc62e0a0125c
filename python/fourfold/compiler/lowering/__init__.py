"""What torch's elementwise operators and reductions are as operations of a program.

Each is a formula of values (``ir.Value``), registered by ``pointwise`` where its arguments broadcast to the result
and by ``rows`` where it reduces along some dimensions. The lowering made of it, in ``POINTWISE`` or ``ROWS``, is
called with a ``Call`` and the node's arguments, tensors as ``Operand``; it gives the value of the result, or a tuple
of values. ``CONSTANT`` has the operators whose result holds one number. ``refusal`` says which calls are left to
torch. ``decompositions`` has what torch writes in terms of these.

Formulas are those of torch's own kernels (aten/src/ATen/native/cpu), so that values agree at special points."""

from fourfold.compiler.lowering import activations, arithmetic, conversions, functions, norms, reductions
from fourfold.compiler.lowering.call import CONSTANT, POINTWISE, ROWS, Call, NotFusable, Operand, fits, refusal
from fourfold.compiler.lowering.decompositions import decompositions

__all__ = ["CONSTANT", "POINTWISE", "ROWS", "Call", "NotFusable", "Operand", "decompositions", "fits", "refusal"]

_FILLED = (activations, arithmetic, conversions, functions, norms, reductions)  # each registers what it lowers
