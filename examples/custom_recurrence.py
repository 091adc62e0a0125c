"""A recurrence of your own: the volatility of a share, as one step in Python that fourfold.scan runs over all days.

    python examples/custom_recurrence.py
    python examples/custom_recurrence.py --explain

A GARCH(1, 1) (Bollerslev 1986) predicts the variance h of a share's daily return e from the day before: h' = omega +
alpha e² + beta h. Its parameters maximise the likelihood of Google's returns from 2004 to 2007; the year 2008 is held
out. The data comes with matplotlib: pip install 'fourfold[demo]'.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from matplotlib import cbook
from torch import Tensor, nn

import fourfold


class Garch(nn.Module):
    """Fitted from many starting points side by side: parameters and states are (starts)."""

    def __init__(self, starts: int, variance: float):
        super().__init__()
        self.variance = variance  # of the returns, where the recurrence begins
        self.level = nn.Parameter(torch.randn(starts))  # the long-run variance, relative to that
        self.persistence = nn.Parameter(torch.randn(starts) + 2)  # alpha + beta, which is below 1
        self.share = nn.Parameter(torch.randn(starts) - 2)  # alpha's part of it

    def of_step(self) -> tuple[Tensor, Tensor, Tensor]:
        """omega, alpha and beta."""
        persistence, share = self.persistence.sigmoid(), self.share.sigmoid()
        return self.variance * self.level.exp() * (1 - persistence), persistence * share, persistence * (1 - share)

    def forward(self, returns: Tensor, by_scan: bool = True) -> Tensor:
        """The variance (time, starts) of each day's return (time), as the days before predict it."""
        omega, alpha, beta = self.of_step()

        def step(variance: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
            return omega + alpha * squared + beta * variance, variance

        variance = torch.full_like(omega, self.variance)
        if by_scan:
            return fourfold.scan(step, variance, returns.square())[1]
        predictions = []  # what scan computes
        for squared in returns.square().unbind():
            variance, prediction = step(variance, squared)
            predictions.append(prediction)
        return torch.stack(predictions)


def loss(variance: Tensor, returns: Tensor) -> Tensor:
    """The negative log likelihood per day (starts) of normally distributed returns (time); variance: (time, starts)."""
    return 0.5 * (math.log(2 * math.pi) + variance.log() + returns[:, None].square() / variance).mean(0)


def google() -> tuple[Tensor, int]:
    """Daily returns in per cent, less their mean until the end of 2007, and how many days that is."""
    prices = cbook.get_sample_data("goog.npz")["price_data"]
    returns = torch.from_numpy(100 * np.diff(np.log(prices["adj_close"])))
    days = int((prices["date"][1:] < np.datetime64("2008-01-01")).sum())
    return returns - returns[:days].mean(), days


class Result(NamedTuple):
    parameters: tuple[float, ...]  # omega, alpha, beta
    unseen: float  # the loss of the held-out year
    unseen_of_constant: float  # with the training years' variance on every day
    difference: float  # between the gradients by scan and by the Python loop, relative to the largest
    milliseconds: tuple[float, float]  # forward and backward by scan, and by the loop


def timed(model: Garch, returns: Tensor, by_scan: bool) -> tuple[Tensor, float]:
    """The loss's gradients (3, starts), and the milliseconds that it takes with them: the best of five."""
    times = []
    for _ in range(5):
        begin = perf_counter()
        gradients = torch.autograd.grad(loss(model(returns, by_scan), returns).sum(), list(model.parameters()))
        times.append(1e3 * (perf_counter() - begin))
    return torch.stack(gradients), min(times)


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=64, help="starting points (64)")
    parser.add_argument("--steps", type=int, default=400, help="steps of Adam (400)")
    parser.add_argument("--explain", action="store_true", help="print how the scan runs")
    parser.add_argument("--quick", action="store_true", help="8 starting points and 100 steps, for a test")
    options = parser.parse_args(arguments)
    if options.quick:
        options.starts, options.steps = 8, 100
    torch.manual_seed(0)
    returns, days = google()
    seen, unseen = returns.split([days, len(returns) - days])
    model = Garch(options.starts, seen.square().mean().item()).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(1, options.steps + 1):
        losses = loss(model(seen), seen)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        if step % max(1, options.steps // 5) == 0:
            print(f"step {step:>4}: loss {losses.min():.4f} from the best start, {losses.max():.4f} from the worst")
    best = losses.argmin()
    with torch.no_grad():
        of_unseen = loss(model(returns)[days:], unseen)[best].item()
        of_constant = loss(torch.full_like(unseen[:, None], model.variance), unseen).item()
    (gradients, by_scan), (of_loop, by_loop) = (timed(model, seen, way) for way in (True, False))
    difference = ((gradients - of_loop).abs().max() / of_loop.abs().max()).item()
    result = Result(
        tuple(parameter[best].item() for parameter in model.of_step()),
        of_unseen,
        of_constant,
        difference,
        (by_scan, by_loop),
    )
    print("omega {:.3f}, alpha {:.3f}, beta {:.3f}".format(*result.parameters))
    print(f"loss of 2008: {of_unseen:.3f}; with a constant variance {of_constant:.3f}")
    print(f"{days} days, forward and backward: {by_scan:.2f} ms; by a Python loop {by_loop:.1f} ms, ", end="")
    print(f"whose gradients differ by {difference:.0e}")
    if options.explain:
        print(fourfold.explain(model, seen))
    return result


if __name__ == "__main__":
    main()
