"""The benchmark's recurrent PPO: what workers collect, what is learnt from it, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import rl, sb3
from benchmarks.__main__ import main
from benchmarks.recurrent_ppo import GAMMA, LAMBDA, Collector, Sizes, loss_of, part_of, policy_of, rollout_of, training

pytestmark = pytest.mark.slow

SMALL = Sizes(environments=4, steps=40, hidden_size=16, epochs=2)


@pytest.mark.parametrize("fused", [False, True])
def test_workers_collect_what_one_process_collects(fused: bool, tmp_path: Path) -> None:
    policy = policy_of(SMALL, fused)
    own = rollout_of(tmp_path / "own", SMALL, policy)
    own.parameters.copy_(torch.nn.utils.parameters_to_vector(policy.parameters()).detach())
    collectors = [Collector(own, policy_of(SMALL, fused), SMALL, part_of(SMALL, k, 2), k) for k in range(2)]
    with training(tmp_path, SMALL, fused, 2) as trained:
        for _ in range(2):  # the second starts with the state and the parameters that the first left
            trained.collect()
            for collector in collectors:
                collector.collect()
            for name, field in own.fields.items():
                torch.testing.assert_close(
                    trained.learner.rollout.fields[name], field, msg=lambda m, n=name: f"{n}: {m}"
                )
            assert 0 < own.first[1:].sum() < own.first[1:].numel()
            trained.learner.learn()
            assert not torch.equal(trained.learner.rollout.parameters, own.parameters)
            own.parameters.copy_(trained.learner.rollout.parameters)


@pytest.mark.parametrize("fused", [False, True])
def test_a_replay_gives_what_collecting_gave(fused: bool, tmp_path: Path) -> None:
    """Whole segments have the values and probabilities of single steps; the loss is then that of ratio 1."""
    with training(tmp_path, SMALL, fused, 0) as trained:
        trained.collect()
        trained.learner.learn()
        trained.collect()
        rollout, policy = trained.learner.rollout, trained.learner.policy
        logits, values, _ = policy(rollout.observations, rollout.states, rollout.first[:-1].bool())
        chosen = logits.log_softmax(-1).gather(-1, rollout.actions.long()[..., None])[..., 0]
        torch.testing.assert_close(values, rollout.values[:-1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(chosen, rollout.log_probabilities, rtol=1e-4, atol=1e-5)
        advantages = rollout.advantages()
        wanted = 0.5 * advantages.square().mean()
        torch.testing.assert_close(loss_of(policy, rollout, advantages), wanted, rtol=1e-4, atol=1e-5)


def test_advantages_end_with_an_episode(tmp_path: Path) -> None:
    rollout = rollout_of(tmp_path / "rollout", Sizes(environments=1, steps=3, hidden_size=2), policy_of(SMALL, False))
    rollout.rewards[:] = torch.tensor([[1.0], [2.0], [4.0]])
    rollout.values[:] = torch.tensor([[0.5], [0.25], [1.0], [8.0]])
    rollout.first[:] = torch.tensor([[0.0], [0.0], [1.0], [0.0]])
    last, middle = 4 + GAMMA * 8 - 1, 2 - 0.25
    first = 1 + GAMMA * 0.25 - 0.5 + GAMMA * LAMBDA * middle
    torch.testing.assert_close(rollout.advantages(), torch.tensor([[first], [middle], [last]]))


@pytest.mark.parametrize("right", [True, False])
def test_the_suite_from_end_to_end(
    right: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong gradient of fourfold's layers is reported, and the command fails."""
    of_policy = rl.policy_of

    def policy(sizes: Sizes, fused: bool):
        policy = of_policy(sizes, fused)
        if fused and not right:
            policy.critic.weight_hh_l0.register_hook(lambda gradient: 1.01 * gradient)
        return policy

    monkeypatch.setattr(rl, "policy_of", policy)
    monkeypatch.setattr(rl, "QUICK", SMALL)
    monkeypatch.setattr(sb3, "missing", lambda: "a test leaves it out")
    file = tmp_path / "rl.json"
    assert main(["rl", "--quick", "--repeats", "2", "--json", str(file)]) == (not right)
    output, results = capsys.readouterr().out, json.loads(file.read_text())["results"]
    assert "Recurrent PPO, 4 environments, 40 steps, hidden 16, 2 epochs" in output
    assert ("WRONG" in output) is not right
    left_out, *figures = results[-1]["figures"]
    assert left_out == {"way": sb3.NAME, "reason": "a test leaves it out"}
    assert [figure["way"] for figure in figures] == [*rl.WAYS]
    assert figures[0]["ratio"] == 1 and all(figure["frames_per_second"] > 0 for figure in figures)
