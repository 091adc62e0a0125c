"""The elementwise operators as modules."""

from torch import Tensor, nn

from fourfold import functional as F
from fourfold.nn.checks import not_dense


class Axpby(nn.Module):
    """Computes αx + βy; see :func:`fourfold.axpby`.

    Args:
        alpha, beta: numbers.
    """

    def __init__(self, alpha: float = 2, beta: float = 1):
        super().__init__()
        self.alpha = alpha
        self.beta = beta

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.axpby(x, y, self.alpha, self.beta)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, beta={self.beta}"


class Softshrink(nn.Module):
    """Shrinks each element towards zero by λ, like :class:`torch.nn.Softshrink`.

    Args:
        lambd: λ, at least 0.
    """

    def __init__(self, lambd: float = 0.5):
        super().__init__()
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        try:
            return F.softshrink(x, self.lambd)
        except TypeError as error:
            if not not_dense(x):
                raise
            try:
                return nn.functional.softshrink(x, self.lambd)  # supports nested tensors
            except (NotImplementedError, RuntimeError):
                raise error from None

    def extra_repr(self) -> str:
        return str(self.lambd)
