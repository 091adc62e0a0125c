"""examples/libraries: layers, estimators and networks of other libraries with fourfold, against the libraries' own
results and gradients."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from benchmarks import library_cases
from benchmarks.libraries import DIFFERENCE, apart
from machine import ROOT, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64" or not (3, 11) <= sys.version_info[:2] < (3, 14),
        reason="requirements-libraries.txt: Linux, x86-64, Python 3.11 to 3.13",
    ),
    pytest.mark.filterwarnings("ignore"),  # the libraries' own, about versions and deprecations
]
# What requirements-libraries.txt lists; the others are tested where they are installed.
LISTED = ("sb3-contrib", "torchrl", "keras", "snntorch", "lightning")


def example(name: str, *packages: str) -> Any:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            missing(f"this test needs {package}: pip install --no-deps -r requirements-libraries.txt")
    return library_cases.example(name)


@pytest.mark.parametrize("library", library_cases.CASES)
def test_results_and_gradients_are_the_librarys(library: str) -> None:
    """The benchmark's cases."""
    packages, cases = library_cases.CASES[library]
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if absent:
        sentence = f"this test needs {', '.join(absent)}"
        missing(sentence) if library in LISTED else pytest.skip(sentence)
    torch.set_num_threads(1)
    for case in cases():
        theirs, ours = case.theirs(), case.ours()
        assert apart(theirs, ours) < DIFFERENCE, case.title
        assert max(float(x.abs().max()) for x in theirs) > 0


def test_a_policy_trains_as_sb3_contribs_does() -> None:
    sb3 = example("sb3", "sb3_contrib")
    (losses, returns), (theirs, their_returns) = (sb3.train(library, 3, 2048) for library in (False, True))
    assert losses == pytest.approx(theirs, rel=1e-5) and len(losses) == 2
    assert returns == their_returns and len(returns) > 50  # also where an episode's end restarts the state


def test_sb3s_policy_restarts_within_a_sequence() -> None:
    """The library's buffer cuts sequences at restarts; a policy that is called with others restarts all the same."""
    sb3 = example("sb3", "sb3_contrib")
    theirs, ours = (sb3.model_of(library, 0).policy for library in (True, False))
    assert isinstance(ours.lstm_actor, fourfold.nn.LSTM)
    features, first = torch.randn(3 * 9, 2), (torch.rand(3 * 9) < 0.3).float()
    state = torch.randn(1, 3, 64), torch.randn(1, 3, 64)
    ours.load_state_dict(theirs.state_dict())
    wanted, got = (p._process_sequence(features, state, first, p.lstm_actor) for p in (theirs, ours))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    without = ours._process_sequence(features, state, 0 * first, ours.lstm_actor)
    assert (without[0] - wanted[0]).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_torchrl_modules_restart_where_the_library_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = example("torchrl_modules", "torchrl")
    import torchrl.modules
    from tensordict import TensorDict

    states = ["h", "c"] if kind == "LSTM" else ["h"]
    keys = {"in_keys": ["x", *states], "out_keys": ["y", *(("next", name) for name in states)]}
    options = {"input_size": 3, "hidden_size": 5, "num_layers": 2, "default_recurrent_mode": True, **keys}
    theirs, module = (getattr(each, f"{kind}Module")(**options) for each in (torchrl.modules, ours))
    module.load_state_dict(theirs.state_dict())
    first = torch.rand(4, 7, 1) < 0.3
    zero = {name: torch.zeros(4, 7, 2, 5) for name in states}
    zero |= {name: torch.cat((torch.randn(4, 1, 2, 5), state[:, 1:]), 1) for name, state in zero.items()}
    given = {name: torch.randn(4, 7, 2, 5) for name in states}  # other states than zero where a sequence restarts
    padded = f"_{kind.lower()}_pad_with_resets"
    for state in (zero, given, {}):
        monkeypatch.setattr(type(module), padded, getattr(type(theirs), padded) if state is given else None)
        seen = TensorDict({"x": torch.randn(4, 7, 3), "is_init": first, **state}, [4, 7])
        wanted, got = theirs(seen.clone()), module(seen.clone())
        torch.testing.assert_close(got["y"], wanted["y"])
        for name in states:
            torch.testing.assert_close(got["next", name][:, -1], wanted["next", name][:, -1])


def test_torchrls_estimators_call_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    values = example("torchrl_values", "torchrl")
    from tensordict import TensorDict
    from torchrl.objectives.value import GAE, TDLambdaEstimator, advantages, functional

    for name in [name for name in vars(advantages) if name.endswith("_estimate")]:
        monkeypatch.setattr(advantages, name, getattr(advantages, name))
    value, following, reward, log_pi, log_mu = torch.randn(5, 3, 11, 1)
    done = torch.rand(3, 11, 1) < 0.3
    terminated = done & (torch.rand(3, 11, 1) < 0.5)
    ends = {"done": done, "terminated": terminated}
    data = TensorDict({"state_value": value, "next": {"state_value": following, "reward": reward, **ends}}, [3, 11])
    estimators = [c(gamma=0.9, lmbda=0.8, value_network=None) for c in (GAE, TDLambdaEstimator)]
    wanted = [each(data.clone()) for each in estimators]
    traced = functional.vtrace_advantage_estimate(0.9, log_pi, log_mu, value, following, reward, done, terminated)
    values.install()
    assert advantages.vec_generalized_advantage_estimate is values.gae
    for each, before in zip(estimators, wanted, strict=True):
        found = each(data.clone())
        torch.testing.assert_close(found["advantage"], before["advantage"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found["value_target"], before["value_target"], rtol=1e-5, atol=1e-5)
    given = (0.9, log_pi, log_mu, value, following, reward, done, terminated)
    torch.testing.assert_close(advantages.vtrace_advantage_estimate(*given), traced)


def test_the_pages_blocks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "libraries"))
    for package in ("sb3_contrib", "torchrl", "keras", "snntorch", "lightning"):
        if importlib.util.find_spec(package) is None:
            missing(f"this test needs {package}: pip install --no-deps -r requirements-libraries.txt")
    from torchrl.objectives.value import advantages

    for name in [name for name in vars(advantages) if name.endswith("_estimate")]:
        monkeypatch.setattr(advantages, name, getattr(advantages, name))
    page = (ROOT / "docs" / "libraries.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(<!-- not run.*-->\n)?^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    for number, (reason, text) in enumerate(blocks):
        # Dynamo looks for a step's globals in its module.
        monkeypatch.setitem(sys.modules, f"block_{number}", module := ModuleType(f"block_{number}"))
        if not reason:
            exec(compile(text, "libraries.md", "exec"), vars(module))


@pytest.fixture
def keras_layers() -> Iterator[Any]:
    module = example("keras_layers", "keras")
    module.install()
    yield module
    module.uninstall()


def called(operator: str, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Has an item for each call of fourfold's operator."""
    calls: list[None] = []
    own: Callable[..., Any] = getattr(fourfold, operator)
    monkeypatch.setattr(fourfold, operator, lambda *a, **k: (calls.append(None), own(*a, **k))[1])
    return calls


OPTIONS: list[dict[str, Any]] = [
    {"return_state": True},
    {"return_sequences": True, "go_backwards": True, "use_bias": False},
    {"return_sequences": True, "activation": "relu"},
    {"return_state": True, "mask": [4, 9, 1]},
    {"return_sequences": True, "mask": [9, 4, 1]},
    {"mask": [9, 4, 0]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_keras_layers_with_each_option(
    kind: str, options: dict[str, Any], keras_layers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    options, calls = dict(options), called(kind.lower(), monkeypatch)
    lengths = options.pop("mask", None)
    mask = None if lengths is None else torch.arange(9) < torch.tensor(lengths)[:, None]
    layer, x = getattr(keras.layers, kind)(5, **options), torch.randn(3, 9, 4)
    supported = options.get("activation") is None and (mask is None or options.get("return_state"))
    got = layer(x, mask=mask)
    assert len(calls) == bool(supported)
    keras_layers.uninstall()
    torch.testing.assert_close(got, layer(x, mask=mask))


def test_a_keras_model_with_padding_trains_as_keras_does(keras_layers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = keras_layers.main(["--epochs", "1"]), keras_layers.main(["--epochs", "1", "--library"])
    assert ours == pytest.approx(theirs, rel=1e-5) and "losses" in capsys.readouterr().out


def test_a_filter_is_found_by_its_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    found = example("filters").main(["--seconds", "0.25", "--steps", "150"])
    assert found.hertz == pytest.approx(1200, rel=0.02) and found.q == pytest.approx(4, rel=0.05)
    loud, quiet = (float(found.sounds[name].square().mean()) for name in ("filtered", "compressed"))
    assert quiet < loud / 4 and "cutoff 1200 Hz" in capsys.readouterr().out


def test_filters_are_those_of_their_definitions() -> None:
    filters = example("filters")
    x, a, b = torch.randn(2, 30).double(), torch.tensor([2.0, 0.3, -0.4]).double(), torch.randn(3).double()
    varying = 0.3 * torch.randn(2, 30, 4).double()
    fixed, changing = [[torch.zeros(2).double()] * 4 for _ in range(2)]
    for t in range(30):
        into = sum(b[k] * x[:, t - k] for k in range(3) if t >= k)
        fixed.append((into - sum(a[k] * fixed[-k] for k in (1, 2))) / a[0])
        changing.append(x[:, t] - sum(varying[:, t, k] * changing[-1 - k] for k in range(4)))
    torch.testing.assert_close(filters.lfilter(x, a, b), torch.stack(fixed[4:], 1))
    torch.testing.assert_close(filters.all_pole(x, varying), torch.stack(changing[4:], 1))


def test_a_lightning_module_trains_compiled() -> None:
    """As docs/libraries.md says: compiled in its constructor."""
    pytest.importorskip("lightning")
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, compiled: bool):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 1))
            if compiled:
                self.net.compile(backend="fourfold")

        def training_step(self, batch: Tensor) -> Tensor:
            return (self.net(batch) - batch.sum(1, keepdim=True)).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    found = []
    data = torch.randn(64, 8)
    for compiled in (True, False):
        torch.manual_seed(0)
        module = Module(compiled)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(accelerator="cpu", max_epochs=2, enable_model_summary=False, **quiet)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=16))
        found.append([p.detach() for p in module.parameters()])
    assert apart(*found[::-1]) < 1e-4  # Adam's first steps have the gradient's sign alone


def test_an_lstm_that_is_too_large_runs_as_in_sb3() -> None:
    sb3 = example("sb3", "sb3_contrib")
    poles = sb3.DummyVecEnv([lambda: sb3.gymnasium.make("CartPole-v1")])
    sb3.PPO(sb3.Policy, poles, n_steps=2, n_epochs=1, device="cpu", policy_kwargs={"lstm_hidden_size": 1100}).learn(2)


def test_torchrls_layers_of_two_directions_restart_as_the_librarys() -> None:
    ours = example("torchrl_modules", "torchrl")
    import torchrl.modules
    from tensordict import TensorDict

    keys = {"in_keys": ["x", "h"], "out_keys": ["y", ("next", "h")], "bidirectional": True}
    theirs, module = (
        each.GRUModule(input_size=3, hidden_size=5, default_recurrent_mode=True, **keys)
        for each in (torchrl.modules, ours)
    )
    module.load_state_dict(theirs.state_dict())
    first = (torch.arange(7) == 4).expand(2, 7).unsqueeze(-1)
    state = torch.cat((torch.randn(2, 1, 2, 5), torch.zeros(2, 6, 2, 5)), 1)
    seen = TensorDict({"x": torch.randn(2, 7, 3), "is_init": first, "h": state}, [2, 7])
    torch.testing.assert_close(module(seen.clone())["y"], theirs(seen.clone())["y"])


def test_snntorch_over_one_step() -> None:
    spiking = example("spiking", "snntorch")
    import snntorch

    net = nn.Sequential(nn.Linear(8, 4), snntorch.Leaky(beta=0.9, init_hidden=True))
    assert spiking.snntorch_over_time(net, torch.rand(1, 2, 8)).shape == (1, 2, 4)
