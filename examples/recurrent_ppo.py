"""Recurrent PPO: a policy with memory balances a pole whose velocity it can't see.

    python examples/recurrent_ppo.py
    python examples/recurrent_ppo.py --forget      # the same policy without memory, for comparison

The policy steps with its environments. The learner replays each segment in one call: `reset` marks the first step of
each episode, where the state begins anew. Advantages are a recurrence too, backwards in time: a fourfold.scan.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import fourfold

DISCOUNT, GAE_LAMBDA, CLIP, ENTROPY, VALUE = 0.99, 0.95, 0.2, 0.01, 0.5
REWARD = 0.1  # of each step; with 1 the values' gradient would be far larger than the policy's


class CartPoles:
    """Carts that hold poles upright: Florian 2007, Correct equations for the dynamics of the cart-pole system, without
    friction; constants, in SI units, of Barto, Sutton and Anderson 1983. The policy sees positions and angles alone.
    An episode ends when the pole falls, when the cart leaves the track, or after 500 steps."""

    GRAVITY, CART, POLE, HALF_LENGTH, FORCE = 9.8, 1.0, 0.1, 0.5, 10.0
    TRACK, ANGLE, LONGEST = 2.4, 0.2095, 500

    def __init__(self, count: int, seconds: float = 0.02):
        self.state = self.starts(count)  # (count, 4): position, velocity, angle, angular velocity
        self.age, self.seconds = torch.zeros(count), seconds

    def starts(self, count: int) -> Tensor:
        return 0.1 * torch.rand(count, 4) - 0.05

    def seen(self) -> Tensor:
        """(count, 2): position and angle, relative to where the episode ends."""
        return self.state[:, ::2] / torch.tensor([self.TRACK, self.ANGLE])

    def move(self, force: Tensor) -> None:
        _, velocity, angle, spin = self.state.unbind(-1)
        sin, cos, mass = angle.sin(), angle.cos(), self.CART + self.POLE
        pull = (force + self.POLE * self.HALF_LENGTH * spin**2 * sin) / mass
        spin_up = (self.GRAVITY * sin - cos * pull) / (self.HALF_LENGTH * (4 / 3 - self.POLE * cos**2 / mass))
        speed_up = pull - self.POLE * self.HALF_LENGTH * spin_up * cos / mass
        self.state = self.state + self.seconds * torch.stack((velocity, speed_up, spin, spin_up), -1)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Push each cart to the left (0) or right (1). Returns which episodes ended, and the return of each so far, the
        number of its steps. Episodes that ended begin anew."""
        self.move(self.FORCE * (2.0 * actions - 1.0))
        age = self.age + 1
        done = (self.seen().abs() > 1).any(-1) | (age >= self.LONGEST)
        self.state = torch.where(done[:, None], self.starts(len(done)), self.state)
        self.age = torch.where(done, 0.0, age)
        return done, age


class Policy(nn.Module):
    def __init__(self, hidden_size: int):
        super().__init__()
        self.memory = fourfold.nn.GRU(2, hidden_size)
        self.heads = nn.Linear(hidden_size, 3)  # two actions and the value

    def forward(self, seen: Tensor, state: Tensor, reset: Tensor | None = None) -> tuple[Categorical, Tensor, Tensor]:
        """seen: (time, count, 2). state: (1, count, hidden_size). reset: (time, count)."""
        output, state = self.memory(seen, state, reset=reset)
        logits, value = self.heads(output).split([2, 1], -1)
        return Categorical(logits=logits), value.squeeze(-1), state


class Segment(NamedTuple):
    """(time, count, ...) each, and the state (1, count, hidden_size) before the first step."""

    seen: Tensor
    first: Tensor  # whether a step is the first of its episode
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    done: Tensor
    state: Tensor


@torch.no_grad()
def play(
    policy: Policy, poles: CartPoles, first: Tensor, state: Tensor, steps: int, forget: bool
) -> tuple[Segment, Tensor, Tensor, Tensor, list[float]]:
    """Step by step. Returns the segment; what the next one begins with: first, state and values; and the returns of the
    episodes that ended."""
    rows, returns, before = [], [], state
    with fourfold.frozen(policy):  # no weight changes in here
        for _ in range(steps):
            seen = poles.seen()
            actions, value, state = policy(seen[None], state * ~first[:, None])
            action = actions.sample()
            done, age = poles.step(action[0])
            rows.append((seen, first, action[0], actions.log_prob(action)[0], value[0], done))
            first = done | forget
            returns += age[done].tolist()
        value = policy(poles.seen()[None], state * ~first[:, None])[1][0]
    return Segment(*map(torch.stack, zip(*rows, strict=True)), before), first, state, value, returns


def advantages_of(segment: Segment, value: Tensor) -> Tensor:
    """Schulman et al. 2016, equation 16. value: of the step behind the segment."""
    decay = DISCOUNT * (~segment.done).float()
    errors = REWARD + decay * torch.cat((segment.values[1:], value[None])) - segment.values
    return fourfold.scan(backwards, torch.zeros_like(value), (errors, GAE_LAMBDA * decay), reverse=True)[1]


def backwards(advantage: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    error, decay = x
    advantage = error + decay * advantage
    return advantage, advantage


def learn(policy: Policy, optimizer: torch.optim.Optimizer, segment: Segment, advantages: Tensor) -> None:
    """Four epochs of PPO: Schulman et al. 2017, equation 9. Minibatches are the whole segments of some environments."""
    for some in (part for _ in range(4) for part in torch.randperm(advantages.shape[1]).chunk(4)):
        seen, first, actions, log_probs, values, _, state = (part[:, some] for part in segment)
        distribution, new_values, _ = policy(seen, state, reset=first)  # all steps and episodes in one call
        gains = advantages[:, some]
        value_loss = nn.functional.smooth_l1_loss(new_values, gains + values)
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        ratio = (distribution.log_prob(actions) - log_probs).exp()
        surrogate = torch.minimum(ratio * gains, ratio.clamp(1 - CLIP, 1 + CLIP) * gains).mean()
        optimizer.zero_grad()
        (VALUE * value_loss - surrogate - ENTROPY * distribution.entropy().mean()).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()


@torch.no_grad()
def replayed(policy: Policy, segment: Segment) -> float:
    """How far one call with reset is from the steps: the largest difference of values and log probabilities."""
    actions, values, _ = policy(segment.seen, segment.state, reset=segment.first)
    differences = (values - segment.values, actions.log_prob(segment.actions) - segment.log_probs)
    return max(difference.abs().max().item() for difference in differences)


def main(arguments: Sequence[str] | None = None) -> tuple[list[float], float]:
    """The mean return of the episodes that ended in each tenth of the updates, and what ``replayed`` found at most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100, help="segments of 128 steps to learn from (100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forget", action="store_true", help="begin every step with a zero state")
    parser.add_argument("--quick", action="store_true", help="20 updates, for a test")
    options = parser.parse_args(arguments)
    if options.quick:
        options.updates = 20
    torch.manual_seed(options.seed)
    count, hidden_size = 32, 64
    policy, poles = Policy(hidden_size), CartPoles(count)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3, eps=1e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, options.updates)
    first, state = torch.ones(count, dtype=torch.bool), torch.zeros(1, count, hidden_size)
    curve, recent, difference, begin = [], [], 0.0, perf_counter()
    for update in range(1, options.updates + 1):
        segment, first, state, value, returns = play(policy, poles, first, state, 128, options.forget)
        difference = max(difference, replayed(policy, segment))
        learn(policy, optimizer, segment, advantages_of(segment, value))
        schedule.step()
        recent += returns
        if update % max(1, options.updates // 10) == 0:
            curve.append(sum(recent) / max(1, len(recent)))
            recent.clear()
            print(
                f"{128 * count * update:>9,} steps: return {curve[-1]:6.1f} {'█' * round(curve[-1] / 10)}", flush=True
            )
    print(f"{perf_counter() - begin:.0f} s; one call with reset and single steps differ by at most {difference:.0e}")
    return curve, difference


if __name__ == "__main__":
    main()
