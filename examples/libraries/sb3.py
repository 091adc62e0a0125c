"""sb3-contrib's RecurrentPPO: a rollout in one call of each LSTM, instead of a call for each step.

python examples/libraries/sb3.py               # a pole whose velocity the policy can't see
python examples/libraries/sb3.py --library     # the same with sb3-contrib's own policy, for comparison
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import thread_time
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.ppo_recurrent.policies import MlpLstmPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

import fourfold


class Policy(MlpLstmPolicy):
    """MlpLstmPolicy with fourfold's layers. Parameters, their initial values and saved models are the same."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        fourfold.optimize(self)

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: tuple[Tensor, Tensor], episode_starts: Tensor, lstm: torch.nn.LSTM
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """features: (sequences * time, input_size). episode_starts: (sequences * time), 1.0 where a state restarts."""
        if not isinstance(lstm, fourfold.nn.LSTM):  # optimize left it, because it is too large
            return MlpLstmPolicy._process_sequence(features, lstm_states, episode_starts, lstm)
        count = lstm_states[0].shape[1]
        sequences = features.reshape(count, -1, lstm.input_size).transpose(0, 1)
        first = episode_starts.reshape(count, -1).transpose(0, 1) != 0
        output, lstm_states = lstm(sequences, lstm_states, reset=first)
        return output.transpose(0, 1).flatten(0, 1), lstm_states


class PPO(RecurrentPPO):
    """Steps through its environments with weights that are packed once a rollout."""

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        if not any(isinstance(module, fourfold.nn.LSTM) for module in self.policy.modules()):
            return super().collect_rollouts(*args, **kwargs)
        with fourfold.frozen(self.policy):
            return super().collect_rollouts(*args, **kwargs)


# The adapter ends here. What follows uses it.


class Positions(gymnasium.ObservationWrapper):
    """CartPole without its velocities: a policy needs memory to balance it."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        box = env.observation_space
        self.observation_space = spaces.Box(box.low[::2], box.high[::2])

    def observation(self, observation: Any) -> Any:
        return observation[::2]


class Losses(BaseCallback):
    """The loss of each update."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if "train/loss" in self.logger.name_to_value:  # of the update before
            self.found.append(self.logger.name_to_value["train/loss"])

    _on_training_end = _on_rollout_start


def model_of(library: bool, seed: int) -> RecurrentPPO:
    algorithm, policy = (RecurrentPPO, MlpLstmPolicy) if library else (PPO, Policy)
    poles = DummyVecEnv([lambda: Monitor(Positions(gymnasium.make("CartPole-v1")))] * 8)
    sizes = {"n_steps": 128, "batch_size": 256, "n_epochs": 5, "policy_kwargs": {"lstm_hidden_size": 64}}
    return algorithm(policy, poles, **sizes, seed=seed, device="cpu")


def train(library: bool, seed: int, steps: int) -> tuple[list[float], list[float]]:
    """The loss of each update, and the return of each episode that ended."""
    model, losses = model_of(library, seed), Losses()
    model.learn(steps, losses)
    return losses.found, [one for env in model.env.envs for one in env.get_episode_rewards()]


def main(arguments: Sequence[str] | None = None) -> tuple[list[float], list[float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="store_true", help="train sb3-contrib's own policy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50_000, help="of all environments together (50000)")
    options = parser.parse_args(arguments)
    begin = thread_time()
    losses, returns = train(options.library, options.seed, options.steps)
    last = returns[-len(returns) // 10 :]
    print(
        f"{thread_time() - begin:.1f} s; {len(returns)} episodes, return of the last tenth {sum(last) / len(last):.1f}"
    )
    return losses, returns


if __name__ == "__main__":
    main()
