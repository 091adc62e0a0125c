"""The cases of the suite ``libraries``: a library's own way, and the same with fourfold, each a call that returns its
results and, if it trains, the gradients."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fourfold
from benchmarks.processes import ROOT

THEIRS = "the library's own"
Way = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True)
class Case:
    """title: the work, of which suites.py has a target. against: what ``theirs`` is."""

    title: str
    theirs: Way
    ours: Way
    against: str = THEIRS


def example(name: str) -> ModuleType:
    """The module of examples/libraries of that name."""
    if (known := sys.modules.get(f"library_{name}")) is not None:
        return known
    spec = importlib.util.spec_from_file_location(f"library_{name}", ROOT / "examples/libraries" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, about versions that they consider too new or too old
        spec.loader.exec_module(module)
    return module


def trained(call: Callable[[], Any], parameters: Sequence[Tensor]) -> Way:
    """The results, and the gradients of the sum of their squares."""

    def way() -> list[Tensor]:
        for parameter in parameters:
            parameter.grad = None
        results = [x for x in pytree.tree_leaves(call()) if isinstance(x, Tensor)]
        sum(x.square().mean() for x in results if x.requires_grad).backward()
        return [*results, *(p.grad for p in parameters if p.grad is not None)]

    return way


def untrained(call: Callable[[], Any]) -> Way:
    def way() -> list[Tensor]:
        with torch.no_grad():
            return [x for x in pytree.tree_leaves(call()) if isinstance(x, Tensor)]

    return way


def sb3_contrib() -> Iterator[Case]:
    sb3 = example("sb3")
    models = [sb3.model_of(library, seed=0) for library in (True, False)]
    theirs, ours = (model.policy for model in models)
    _, callback = models[0]._setup_learn(10**9)
    models[0].collect_rollouts(models[0].env, callback, models[0].rollout_buffer, n_rollout_steps=128)
    ours.load_state_dict(theirs.state_dict())
    some = next(models[0].rollout_buffer.get(256))

    def evaluated(policy: nn.Module) -> Way:
        given = some.observations, some.actions.long().flatten(), some.lstm_states, some.episode_starts
        return trained(lambda: policy.evaluate_actions(*given), list(policy.parameters()))

    yield Case("RecurrentPPO, gradients of a minibatch", evaluated(theirs), evaluated(ours))
    seen, state, first = torch.randn(8, 2), models[0]._last_lstm_states, torch.zeros(8)

    def stepped(policy: nn.Module) -> Way:
        return untrained(lambda: policy.forward(seen, state, first, deterministic=True))

    fourfold.freeze(ours)  # as PPO does while it collects
    yield Case("RecurrentPPO, a step of 8 environments", stepped(theirs), stepped(ours))


def torchrl() -> Iterator[Case]:
    ours, values = example("torchrl_modules"), example("torchrl_values")
    import torchrl.modules
    from tensordict import TensorDict
    from torchrl.objectives.value import functional

    batch, time, size = 16, 128, 64
    init = torch.rand(batch, time, 1) < 0.02
    seen = TensorDict({"seen": torch.randn(batch, time, 32), "is_init": init}, [batch, time])
    for kind in ("LSTM", "GRU"):
        options = {"input_size": 32, "hidden_size": size, "default_recurrent_mode": True}
        states = ["h", "c"] if kind == "LSTM" else ["h"]
        keys = {"in_keys": ["seen", *states], "out_keys": ["y", *(("next", name) for name in states)]}
        modules = [getattr(each, f"{kind}Module")(**options, **keys) for each in (torchrl.modules, ours)]
        modules[1].load_state_dict(modules[0].state_dict())
        ways = [trained(lambda m=m: m(seen.clone(False))["y"], list(m.parameters())) for m in modules]
        yield Case(f"{kind}Module, 16 rollouts of 128 steps, trained", *ways)
    value, following, reward = torch.randn(3, batch, time, 1)
    done = torch.rand(batch, time, 1) < 0.02
    given = 0.99, 0.95, value, following, reward, done
    vectorised = functional.vec_generalized_advantage_estimate
    yield Case("GAE, 16 by 128", untrained(lambda: vectorised(*given)), untrained(lambda: values.gae(*given)))
    returns = functional.vec_td_lambda_return_estimate
    given_returns = 0.99, 0.95, following, reward, done
    ways = [untrained(lambda f=f: f(*given_returns)) for f in (returns, values.td_lambda)]
    yield Case("TD(λ) returns, 16 by 128", *ways)


def keras() -> Iterator[Case]:
    ours = example("keras_layers")
    import keras as library

    for kind in ("LSTM", "GRU"):
        layer, x = getattr(library.layers, kind)(128, return_sequences=True), torch.randn(16, 100, 32)
        layer(x)
        parameters = [weight.value for weight in layer.trainable_weights]

        def call(switch: Callable[[], None], layer: Any = layer, x: Tensor = x) -> Tensor:
            switch()
            try:
                return layer(x)
            finally:
                ours.uninstall()

        ways = [trained(lambda s=s, c=call: c(s), parameters) for s in (ours.uninstall, ours.install)]
        yield Case(f"Keras {kind}, 100 steps, batch 16, 128 units, trained", *ways)


def filters() -> Iterator[Case]:
    ours = example("filters")
    from scipy import signal

    a, b = (each.detach() for each in ours.lowpass(torch.tensor(0.075), torch.tensor(4.0)))
    parameters = [a.clone().requires_grad_(), b.clone().requires_grad_()]
    x, long = ours.sound(0.2), ours.sound(2.0)

    def loop(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        b, a = b / a[0], a / a[0]
        padded, ys = nn.functional.pad(x, (2, 0)), [x.new_zeros(1), x.new_zeros(1)]
        for t in range(x.shape[1]):
            into = b[0] * padded[:, t + 2] + b[1] * padded[:, t + 1] + b[2] * padded[:, t]
            ys.append(into - a[1] * ys[-1] - a[2] * ys[-2])
        return torch.stack(ys[2:], 1)

    ways = [trained(lambda f=f: f(x, *parameters), parameters) for f in (loop, ours.lfilter)]
    yield Case("biquad of 3,200 samples, trained", *ways, against="a Python loop")
    by_scipy = untrained(lambda: torch.from_numpy(signal.lfilter(b.numpy(), a.numpy(), long.numpy())))
    title = "biquad of 32,000 samples, no gradient"
    yield Case(title, by_scipy, untrained(lambda: ours.lfilter(long, a, b)), against="scipy.signal.lfilter")


def snntorch() -> Iterator[Case]:
    ours = example("spiking")
    import snntorch as snn
    from snntorch import utils

    hidden = {"beta": 0.9, "init_hidden": True}
    layers = (nn.Linear(64, 128), snn.Leaky(**hidden), nn.Linear(128, 10), snn.Leaky(**hidden, output=True))
    net, x = nn.Sequential(*layers), 2 * torch.rand(100, 16, 64)

    def loop() -> list[Tensor]:
        utils.reset(net)
        return list(map(torch.stack, zip(*[net(each) for each in x], strict=True)))

    def scanned() -> Any:
        utils.reset(net)
        return ours.snntorch_over_time(net, x)

    ways = [trained(call, list(net.parameters())) for call in (loop, scanned)]
    yield Case("snntorch, two layers of Leaky, 100 steps, trained", *ways)


def norse() -> Iterator[Case]:
    ours = example("spiking")
    import norse.torch as library

    layers = (nn.Linear(64, 128), library.LIFCell(), nn.Linear(128, 10), library.LICell())
    net, x = library.SequentialState(*layers), 2 * torch.rand(100, 16, 64)
    lifted = library.Lift(net)
    ways = [trained(lambda f=f: f()[0], list(net.parameters())) for f in (lambda: lifted(x), lambda: scanned())]

    def scanned() -> Any:
        return ours.norse_over_time(net, x)

    yield Case("norse, LIF and LI, 100 steps, trained", *ways)


def lightning() -> Iterator[Case]:
    import lightning as library

    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
    net, x = nn.Sequential(*layers), torch.randn(256, 64)
    torch._dynamo.reset()
    fabric = library.Fabric(accelerator="cpu", devices=1)
    ways = [
        trained(lambda m=m: m(x), list(net.parameters()))
        for m in (fabric.setup(net), fabric.setup(torch.compile(net, backend="fourfold")))
    ]
    yield Case("Lightning Fabric, three layers with LayerNorm and GELU, trained", *ways)


def forecasting() -> Iterator[Case]:
    ours = example("forecasting")
    data = ours.series()
    x, _ = next(iter(data.to_dataloader(train=True, batch_size=64, num_workers=0)))
    for kind in ("LSTM", "GRU"):
        models = [ours.model_of(data, kind) for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        ours.optimize(models[1])
        ways = [trained(lambda m=m: m(x)["prediction"], list(m.parameters())) for m in models]
        yield Case(f"DeepAR, {kind}, 80 steps, batch 64, trained", *ways)


# What each needs, and its cases.
CASES: dict[str, tuple[Sequence[str], Callable[[], Iterator[Case]]]] = {
    "sb3-contrib": (("sb3_contrib", "stable_baselines3", "gymnasium"), sb3_contrib),
    "torchrl": (("torchrl", "tensordict"), torchrl),
    "keras": (("keras",), keras),
    "filters": (("scipy",), filters),
    "snntorch": (("snntorch",), snntorch),
    "norse": (("norse",), norse),
    "lightning": (("lightning",), lightning),
    "forecasting": (("pytorch_forecasting",), forecasting),
}
