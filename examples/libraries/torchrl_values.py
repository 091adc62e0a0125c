"""TorchRL's value estimators by fourfold.scan: the sequential definitions, instead of convolutions of padded
trajectories. The signatures are those of torchrl.objectives.value.functional."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrl.objectives.value import advantages

import fourfold


def backwards(terms: Tensor, factors: Tensor, last: Tensor, time_dim: int) -> Tensor:
    """y[t] = terms[t] + factors[t] * y[t + 1], from the last step to the first."""

    def step(y: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y = x[0] + x[1] * y
        return y, y

    return fourfold.scan(step, last, (terms, factors), dim=time_dim, reverse=True)[1]


def runs(ended: Tensor | None, done: Tensor, like: Tensor) -> Tensor:
    """1 where an episode goes on."""
    return (done if ended is None else ended).logical_not().to(like.dtype)


def gae(gamma, lmbda, value, following, reward, done, terminated=None, *, time_dim=-2):
    """generalized_advantage_estimate, plain or vectorised."""
    errors = reward + gamma * runs(terminated, done, value) * following - value
    zero = torch.zeros_like(value.select(time_dim, -1))
    found = backwards(errors, gamma * lmbda * runs(None, done, value), zero, time_dim)
    return found, found + value


def td_lambda(gamma, lmbda, following, reward, done, terminated=None, rolling_gamma=None, *, time_dim=-2):
    """td_lambda_return_estimate, plain or vectorised."""
    if rolling_gamma is False:
        raise NotImplementedError("td_lambda: expected rolling_gamma to be True or None, but got False")
    following = following * runs(terminated, done, following)
    kept = lmbda * runs(None, done, following)
    terms = reward + gamma * following * (1 - kept)
    return backwards(terms, gamma * kept, following.select(time_dim, -1), time_dim)


def vtrace(
    gamma, log_pi, log_mu, value, following, reward, done, terminated=None, rho_thresh=1.0, c_thresh=1.0, time_dim=-2
):
    """vtrace_advantage_estimate."""
    rho, ends = (log_pi - log_mu).exp(), gamma * runs(terminated, done, value)
    clipped = rho.clamp_max(rho_thresh)
    factors = gamma * runs(None, done, value) * rho.clamp_max(c_thresh)
    zero = torch.zeros_like(value.select(time_dim, -1))
    found = value + backwards(clipped * (reward + ends * following - value), factors, zero, time_dim)
    steps = value.shape[time_dim]
    later = torch.cat((found.narrow(time_dim, 1, steps - 1), following.narrow(time_dim, steps - 1, 1)), time_dim)
    later = torch.where(done, following, later)  # another trajectory follows
    return clipped * (reward + ends * later - value), found


def install() -> None:
    """Gives TorchRL's GAE, TDLambdaEstimator, VTrace and the losses that make one these functions."""
    advantages.generalized_advantage_estimate = advantages.vec_generalized_advantage_estimate = gae
    advantages.td_lambda_return_estimate = advantages.vec_td_lambda_return_estimate = td_lambda
    advantages.vtrace_advantage_estimate = vtrace
