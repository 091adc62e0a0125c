"""softshrink: shrinks towards zero by λ."""

from types import SimpleNamespace

from torch import Tensor
from torch.compiler import is_dynamo_compiling as is_compiling

from fourfold import reference
from fourfold.operators._elementwise import declare_elementwise


def _check(op: str, a: SimpleNamespace) -> None:
    if not a.lambd >= 0:
        raise ValueError(f"{op}: expected lambd to be at least 0, but got {a.lambd:g}")


FORWARD = declare_elementwise("softshrink", reference.softshrink, _check)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Shrinks each element towards zero by λ: x - λ above λ, x + λ below -λ, 0 between; NaN stays NaN.

    The values of :func:`torch.nn.functional.softshrink`. The gradient flows where x is NaN or beyond ±λ.

    Args:
        x: any shape; float16, bfloat16, float32 or float64.
        lambd: λ, at least 0.

    Returns:
        A tensor of x's shape, dtype and memory layout.

    Raises:
        TypeError: x is not a dense floating-point tensor, or lambd is not a number.
        ValueError: lambd is negative or NaN.

    Example:
        >>> fourfold.softshrink(torch.tensor([-2.0, 0.1, 2.0]), lambd=0.5)
        tensor([-1.5000,  0.0000,  1.5000])
    """
    return (FORWARD.traced if is_compiling() else FORWARD.call)(x, lambd)
