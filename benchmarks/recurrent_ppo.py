"""Recurrent PPO in several processes: workers collect a rollout in memory shared with the learner, which replays whole
segments, with a mask of restarts, in one call per layer.

All ways use the same policy, loss and environment: an actor and a critic, each an LSTM and a perceptron, as in
sb3-contrib's MlpLstmPolicy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fourfold
from benchmarks.processes import worker

OBSERVATION, ACTIONS = 4, 2
HEAD = (64, 64)  # the hidden layers of the perceptrons
SHORTEST, LONGEST = 8, 24  # steps of an episode
GAMMA, LAMBDA, CLIP, VALUE_WEIGHT, LARGEST_NORM, RATE = 0.99, 0.95, 0.2, 0.5, 0.5, 3e-4  # sb3-contrib's defaults


@dataclass(frozen=True)
class Sizes:
    environments: int = 8
    steps: int = 128
    hidden_size: int = 128
    epochs: int = 4


class Recall:
    """Environments that need memory: the first observation of an episode has a cue, 1 or -1, which the action of the
    last step has to repeat. Observations are the cue, whether this is the last step, the elapsed fraction of the
    episode, and noise."""

    def __init__(self, count: int, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.cue, self.length, self.step_number = np.zeros(count), np.zeros(count, int), np.zeros(count, int)

    def reset(self, where: np.ndarray | slice = slice(None)) -> np.ndarray:
        count = len(self.cue[where])
        self.cue[where] = self.random.choice((-1.0, 1.0), count)
        self.length[where] = self.random.integers(SHORTEST, LONGEST + 1, count)
        self.step_number[where] = 0
        return self.observe()

    def observe(self) -> np.ndarray:
        first, last = self.step_number == 0, self.step_number == self.length - 1
        noise = self.random.standard_normal(len(self.cue))
        return np.stack([self.cue * first, last, self.step_number / self.length, noise], 1).astype(np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns observations, rewards, and which episodes ended; a new one starts at once."""
        done = self.step_number == self.length - 1
        rewards = np.where(done, np.where((actions == 1) == (self.cue > 0), 1.0, -1.0), 0.0)
        self.step_number += 1
        return (self.reset(done) if done.any() else self.observe()), rewards, done


def perceptron(sizes: Sequence[int]) -> nn.Module:
    layers = [layer for pair in zip(sizes, sizes[1:], strict=False) for layer in (nn.Linear(*pair), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


class Policy(nn.Module):
    """Uses torch.nn's layers step by step with the state masked, or fourfold's, which take a mask."""

    def __init__(self, sizes: Sizes, fused: bool) -> None:
        super().__init__()
        lstm = fourfold.nn.LSTM if fused else nn.LSTM
        self.fused = fused
        self.actor, self.critic = (lstm(OBSERVATION, sizes.hidden_size) for _ in range(2))
        widths = [[sizes.hidden_size, *HEAD, outputs] for outputs in (ACTIONS, 1)]
        make = (lambda widths: fourfold.nn.MLP(widths, activation="tanh")) if fused else perceptron
        self.policy, self.value = map(make, widths)

    def forward(self, x: Tensor, states: Tensor, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: (time, batch, 4). states: (4, 1, batch, hidden_size), of actor and critic. first: (time, batch), whether
        an episode begins. Returns logits (time, batch, 2), values (time, batch) and the final states."""
        acted, of_actor = self.remember(self.actor, x, (states[0], states[1]), first)
        judged, of_critic = self.remember(self.critic, x, (states[2], states[3]), first)
        return self.policy(acted), self.value(judged).squeeze(-1), torch.stack([*of_actor, *of_critic])

    def remember(self, lstm: nn.LSTM, x: Tensor, state: tuple[Tensor, Tensor], first: Tensor) -> tuple[Tensor, tuple]:
        if self.fused:
            return lstm(x, state, reset=first)
        outputs, keep = [], (~first).to(x.dtype)[:, None, :, None]  # sb3-contrib's mask
        for t in range(len(x)):
            output, state = lstm(x[t : t + 1], (keep[t] * state[0], keep[t] * state[1]))
            outputs.append(output)
        return torch.cat(outputs), state


class Rollout:
    """Tensors in a memory-mapped file: the collected rollout, and the policy's parameters as one vector."""

    def __init__(self, path: Path, sizes: Sizes, parameters: int) -> None:
        steps, count = sizes.steps, sizes.environments
        shapes: Mapping[str, tuple[int, ...]] = {
            "parameters": (parameters,),
            "observations": (steps, count, OBSERVATION),
            "first": (steps + 1, count),  # the last: whether an episode begins after the rollout
            "actions": (steps, count),
            "log_probabilities": (steps, count),
            "rewards": (steps, count),
            "values": (steps + 1, count),
            "states": (4, 1, count, sizes.hidden_size),  # at the start of the rollout
        }
        flat = torch.from_file(str(path), shared=True, size=sum(map(math.prod, shapes.values())))
        parts = flat.split([math.prod(shape) for shape in shapes.values()])
        self.fields = {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}

    def __getattr__(self, name: str) -> Tensor:
        try:
            return vars(self)["fields"][name]  # not self.fields: copies have none at first
        except KeyError:
            raise AttributeError(f"a rollout has no {name}") from None

    def advantages(self) -> Tensor:
        """Generalised advantage estimates, (steps, environments)."""
        values, rewards, keep = self.values.numpy(), self.rewards.numpy(), 1 - self.first.numpy()
        found, last = np.zeros_like(rewards), np.zeros_like(rewards[0])
        for t in reversed(range(len(rewards))):
            delta = rewards[t] + GAMMA * values[t + 1] * keep[t + 1] - values[t]
            found[t] = last = delta + GAMMA * LAMBDA * keep[t + 1] * last
        return torch.from_numpy(found)


class Collector:
    """Steps some of the environments and writes the rollout to the shared memory."""

    def __init__(self, rollout: Rollout, policy: Policy, sizes: Sizes, part: slice, seed: int) -> None:
        self.rollout, self.policy, self.part = rollout, policy, part
        count = part.stop - part.start
        self.environments = Recall(count, seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.observations = torch.from_numpy(self.environments.reset())
        self.first, self.states = torch.ones(count, dtype=torch.bool), torch.zeros(4, 1, count, sizes.hidden_size)

    def collect(self) -> None:
        nn.utils.vector_to_parameters(self.rollout.parameters, self.policy.parameters())
        fields = {name: field[:, self.part] for name, field in self.rollout.fields.items() if field.dim() in (2, 3)}
        self.rollout.states[:, :, self.part] = self.states
        # The weights don't change during a rollout.
        with fourfold.frozen(self.policy) if self.policy.fused else contextlib.nullcontext(), torch.no_grad():
            for t in range(len(fields["actions"])):
                self.step(t, fields)
            fields["first"][-1] = self.first
            fields["values"][-1] = self.act()[1]

    def act(self) -> tuple[Tensor, Tensor, Tensor]:
        logits, values, states = self.policy(self.observations[None], self.states, self.first[None])
        return logits[0].log_softmax(-1), values[0], states

    def step(self, t: int, fields: Mapping[str, Tensor]) -> None:
        scores, values, self.states = self.act()
        actions = scores.exp().multinomial(1, generator=self.generator)
        fields["observations"][t], fields["first"][t], fields["values"][t] = self.observations, self.first, values
        fields["actions"][t] = actions[:, 0]
        fields["log_probabilities"][t] = scores.gather(1, actions)[:, 0]
        observations, rewards, done = self.environments.step(actions[:, 0].numpy())
        fields["rewards"][t] = torch.from_numpy(rewards)
        self.observations, self.first = torch.from_numpy(observations), torch.from_numpy(done)


def loss_of(policy: Policy, rollout: Rollout, advantages: Tensor) -> Tensor:
    """PPO's loss over the whole rollout: the clipped surrogate and half the squared error of the values."""
    logits, values, _ = policy(rollout.observations, rollout.states, rollout.first[:-1].bool())
    chosen = logits.log_softmax(-1).gather(-1, rollout.actions.long()[..., None])[..., 0]
    ratio = (chosen - rollout.log_probabilities).exp()
    normal = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    surrogate = torch.min(ratio * normal, ratio.clamp(1 - CLIP, 1 + CLIP) * normal)
    returns = advantages + rollout.values[:-1]
    return VALUE_WEIGHT * (values - returns).square().mean() - surrogate.mean()


class Learner:
    """Optimises the policy on a rollout and publishes its parameters to the collectors."""

    def __init__(self, rollout: Rollout, policy: Policy, epochs: int) -> None:
        self.rollout, self.policy, self.epochs = rollout, policy, epochs
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=RATE, eps=1e-5)
        self.publish()

    def publish(self) -> None:
        self.rollout.parameters.copy_(nn.utils.parameters_to_vector(self.policy.parameters()).detach())

    def learn(self) -> None:
        advantages = self.rollout.advantages()
        for _ in range(self.epochs):
            loss = loss_of(self.policy, self.rollout, advantages)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.policy.parameters(), LARGEST_NORM)
            self.optimizer.step()
        self.publish()


@dataclass
class Training:
    """One way to train; each ``iteration`` collects a rollout and learns from it."""

    learner: Learner
    collect: Callable[[], object]

    def iteration(self) -> tuple[float, float]:
        """Returns the seconds of collecting and of learning."""
        start = time.perf_counter()
        self.collect()
        middle = time.perf_counter()
        self.learner.learn()
        return middle - start, time.perf_counter() - middle


def policy_of(sizes: Sizes, fused: bool) -> Policy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = Policy(sizes, fused=False)
    if not fused:
        return policy
    own = Policy(sizes, fused=True)
    own.load_state_dict(policy.state_dict())
    return own


def rollout_of(path: Path, sizes: Sizes, policy: Policy) -> Rollout:
    return Rollout(path, sizes, sum(parameter.numel() for parameter in policy.parameters()))


def part_of(sizes: Sizes, number: int, workers: int) -> slice:
    count = sizes.environments // workers
    return slice(number * count, (number + 1) * count)


@contextlib.contextmanager
def training(folder: Path, sizes: Sizes, fused: bool, workers: int) -> Iterator[Training]:
    """workers: the number of collecting processes, a divisor of the number of environments; 0: the learner collects."""
    policy = policy_of(sizes, fused)
    rollout = rollout_of(folder / f"rollout-{fused}-{workers}", sizes, policy)
    learner = Learner(rollout, policy, sizes.epochs)
    if not workers:
        yield Training(learner, Collector(rollout, policy_of(sizes, fused), sizes, part_of(sizes, 0, 1), 0).collect)
        return
    with contextlib.ExitStack() as stack:
        given = str(folder / f"rollout-{fused}-{workers}"), dataclasses.asdict(sizes), fused
        asks = [
            stack.enter_context(worker("recurrent_ppo", "collector", *given, number, workers))
            for number in range(workers)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        yield Training(learner, lambda: list(pool.map(lambda ask: ask(), asks)))


def collector(path: str, sizes: Mapping[str, int], fused: bool, number: int, workers: int) -> Callable[[], Any]:
    """Runs in a process of its own: collects a rollout of its environments at each request."""
    torch.set_num_threads(1)
    own = Sizes(**sizes)
    policy = policy_of(own, fused)
    part = part_of(own, number, workers)
    return Collector(rollout_of(Path(path), own, policy), policy, own, part, number).collect
