"""sb3-contrib's RecurrentPPO on the environments of ``recurrent_ppo``, if it is installed."""

from __future__ import annotations

import importlib.util
import time
import warnings
from typing import Any

import numpy as np

from benchmarks.recurrent_ppo import ACTIONS, HEAD, OBSERVATION, Recall, Sizes

NAME = "sb3-contrib's RecurrentPPO"


def missing() -> str:
    """Why it can't be measured here; empty if it can."""
    packages = [
        name for name in ("sb3_contrib", "stable_baselines3", "gymnasium") if not importlib.util.find_spec(name)
    ]
    return f"needs {', '.join(packages)}: pip install sb3-contrib" if packages else ""


class Training:
    """Trains the same policy with the same rollouts and optimizer steps; an iteration is one of ``learn``."""

    def __init__(self, sizes: Sizes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about versions of packages that it considers too new or too old
            from sb3_contrib import RecurrentPPO
        self.model = RecurrentPPO(
            "MlpLstmPolicy",
            environments(sizes.environments),
            n_steps=sizes.steps,
            batch_size=sizes.steps * sizes.environments,
            n_epochs=sizes.epochs,
            policy_kwargs={"lstm_hidden_size": sizes.hidden_size, "net_arch": list(HEAD)},
            device="cpu",
            seed=0,
        )
        _, self.callback = self.model._setup_learn(10**9)

    def iteration(self) -> tuple[float, float]:
        """Returns the seconds of collecting and of learning."""
        model = self.model
        start = time.perf_counter()
        model.collect_rollouts(model.env, self.callback, model.rollout_buffer, n_rollout_steps=model.n_steps)
        middle = time.perf_counter()
        model.train()
        return middle - start, time.perf_counter() - middle


def environments(count: int) -> Any:
    """All environments as one vectorised environment of stable-baselines3, which steps them as cheaply as the other
    ways do."""
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv

    class Vector(VecEnv):
        def __init__(self) -> None:
            self.inner = Recall(count, 0)
            bounds = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
            super().__init__(count, bounds, spaces.Discrete(ACTIONS))

        def reset(self) -> np.ndarray:
            return self.inner.reset()

        def step_async(self, actions: np.ndarray) -> None:
            self.actions = actions

        def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
            return (*self.inner.step(self.actions), [{} for _ in range(count)])

        def close(self) -> None: ...

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [getattr(self, attr_name, None)] * count

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * count

    return Vector()
