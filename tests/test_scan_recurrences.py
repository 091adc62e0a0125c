"""Published recurrences run by fourfold.scan, against a Python loop and the packages' own functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fourfold
from benchmarks.other_recurrences import OTHERS
from benchmarks.recurrences import RECURRENCES, Recurrence, Scan, loop
from fourfold.compiler.nest.jit.service import obstacle

pytestmark = pytest.mark.usefixtures("fresh_steps")
EVERY = RECURRENCES | OTHERS
SMALL, ODD = (3, 4, 5), (17, 6, 33)  # batch, inputs, hidden
# A float64 sum in another order is off by some units in the last place, times its terms; the same holds for float32,
# and exponents and quotients amplify it.
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-11},
    torch.float32: {"rtol": 2e-4, "atol": 2e-4},
}


def outcome(scan: Callable[..., Any], recurrence: Recurrence, made: Scan) -> Any:
    """Results, and gradients of the first carry, the sequence and the weights."""
    given = pytree.tree_map(lambda x: x.detach().clone().requires_grad_(), (made.init, made.xs, made.weights))
    init, xs, weights = given
    carry, ys = scan(recurrence.of(weights), init, xs, reverse=made.reverse)
    results = [result for result in pytree.tree_leaves((carry, ys)) if result.requires_grad]
    directions = [torch.linspace(-1, 1, r.numel(), dtype=r.dtype).view(r.shape) for r in results]
    wanted = pytree.tree_leaves(given)
    gradients = torch.autograd.grad(results, wanted, directions, allow_unused=True)
    return carry, ys, [torch.zeros_like(w) if g is None else g for g, w in zip(gradients, wanted, strict=True)]


def check(name: str, steps: int, sizes: tuple[int, int, int]) -> None:
    recurrence = EVERY[name]
    made = recurrence.make(steps, *sizes, dtype=torch.float64)
    expected, found = (outcome(scan, recurrence, made) for scan in (loop, fourfold.scan))
    torch.testing.assert_close(found, expected, **TOLERANCE[torch.float64])
    assert all(gradient.isfinite().all() for gradient in found[2])


@pytest.mark.parametrize("name", EVERY)
def test_values_and_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not obstacle():
        monkeypatch.setenv("FOURFOLD_GENERATOR", "llvm")
    for steps in (9, 1):
        check(name, steps, ODD)


@pytest.mark.parametrize("name", EVERY)
def test_float32(name: str) -> None:
    """Without gradients: the step's gradient doesn't depend on the dtype."""
    made = EVERY[name].make(9, *SMALL)
    with torch.no_grad():
        found, expected = (scan(made.step, made.init, made.xs, reverse=made.reverse) for scan in (fourfold.scan, loop))
    torch.testing.assert_close(found, expected, **TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", ["SRU", "liGRU with layer norm", "LIF", "V-trace"])
def test_a_second_size(name: str) -> None:
    check(name, 2, SMALL)
    check(name, 3, ODD)


def scanned(name: str, steps: int = 9, **of: Any) -> tuple[Scan, Any, Any]:
    made = EVERY[name].make(steps, *SMALL, dtype=torch.float64, **of)
    return made, *fourfold.scan(made.step, made.init, made.xs, reverse=made.reverse)


def near(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, **TOLERANCE[torch.float64])


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_torchs_layers(name: str) -> None:
    made, carry, ys = scanned(name)
    layer = getattr(nn, name)(*SMALL[1:]).double()
    with torch.no_grad():
        for own, given in zip(layer.parameters(), made.weights, strict=True):
            own.copy_(given)
    states = pytree.tree_map(lambda state: state.unsqueeze(0), made.init)
    output, last = layer(made.xs, states)
    near((ys, carry), (output, pytree.tree_map(lambda state: state.squeeze(0), last)))


def test_our_lltm() -> None:
    made, carry, ys = scanned("LLTM")
    output, last = fourfold.lltm(made.xs, *made.init, *made.weights)
    near((ys, carry), (output, last))


def package(name: str) -> Any:
    """A package that the tests don't install. Without it they check against the rewritten definition."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: one of its libraries was built for another torch
        pytest.skip(f"{name}: {error}")


def stepped(call: Callable[..., Any], state: Any, *xs: Tensor) -> tuple[Any, Any]:
    """Runs call(state, *elements), which returns the new state and a result, over the steps."""
    ys = []
    for given in zip(*xs, strict=True):
        state, y = call(state, *given)
        ys.append(y)
    return state, pytree.tree_map(lambda *rows: torch.stack(rows), *ys)


def double(number: float) -> Tensor:
    """Packages may round numbers to float32 instead."""
    return torch.tensor(number, dtype=torch.float64)


from_packages = pytest.mark.filterwarnings("ignore")  # their own, at import


@from_packages
@pytest.mark.parametrize("name", ["leaky neuron", "synaptic neuron"])
def test_snntorchs_neurons(name: str) -> None:
    snntorch = package("snntorch")
    made, carry, ys = scanned(name)
    *decays, threshold = made.weights
    make = snntorch.Leaky if len(decays) == 1 else snntorch.Synaptic
    neuron = make(*decays, threshold=threshold, spike_grad=package("snntorch.surrogate").atan())

    def call(state: Any, x: Tensor) -> Any:
        spikes, *new = neuron(x, *state)
        return new, (spikes.double(), new[-1])

    states = made.init if isinstance(made.init, tuple) else (made.init,)
    expected = stepped(call, states, made.xs)
    near((pytree.tree_leaves(carry), ys), (list(expected[0]), expected[1]))


@from_packages
@pytest.mark.parametrize(("name", "kind"), [("LIF", "LIF"), ("adaptive LIF", "LSNN")])
def test_norses_neurons(name: str, kind: str) -> None:
    module = package(f"norse.torch.functional.{kind.lower()}")
    made, _, ys = scanned(name, 30)
    state = getattr(module, f"{kind}State")(*made.init)
    inexact = {} if kind == "LIF" else {"tau_adapt_inv": double(1 / 800), "beta": double(1.8)}
    parameters = getattr(module, f"{kind}Parameters")(**inexact)

    def call(state: Any, x: Tensor) -> Any:
        spikes, state = getattr(module, f"{kind.lower()}_step")(x, state, *made.weights, parameters)
        return state, spikes

    near(ys, stepped(call, state, made.xs)[1])


@from_packages
def test_ncps_closed_form_cell() -> None:
    cells = package("ncps.torch")
    made, _, ys = scanned("CfC")
    cell = cells.CfCCell(*SMALL[1:], backbone_units=2 * SMALL[2]).double()
    w, bias, heads, head_bias = made.weights
    with torch.no_grad():
        cell.backbone[0].weight.copy_(w)
        cell.backbone[0].bias.copy_(bias)
        for layer, rows, shifts in zip(
            (cell.ff1, cell.ff2, cell.time_a, cell.time_b), heads.chunk(4), head_bias.chunk(4), strict=True
        ):
            layer.weight.copy_(rows)
            layer.bias.copy_(shifts)
    expected = stepped(lambda h, x, elapsed: cell(x, h, elapsed)[::-1], made.init, *made.xs)[1]
    near(ys, expected)


@from_packages
def test_ncps_liquid_cell() -> None:
    cells, wirings = package("ncps.torch"), package("ncps.wirings")
    made, _, ys = scanned("LTC")
    cell = cells.LTCCell(wirings.FullyConnected(SMALL[2]), SMALL[1], ode_unfolds=3).double()
    names = ("sensory_w", "sensory_mu", "sensory_sigma", "sensory_erev", "w", "mu", "sigma", "erev")
    with torch.no_grad():
        for name, given in zip((*names, "gleak", "vleak", "cm"), made.weights, strict=True):
            getattr(cell, name).copy_(given)
    near(ys, stepped(lambda v, x: cell(x, v), made.init, made.xs)[1])


@from_packages
def test_speechbrains_gru() -> None:
    recurrent = package("speechbrain.nnet.RNN")
    made, _, ys = scanned("liGRU with layer norm")
    w, u, *norm = made.weights
    layer = recurrent.LiGRU_Layer(SMALL[1], SMALL[2], 1, SMALL[0], normalization="layernorm").double()
    with torch.no_grad():
        parameters = layer.w.weight, layer.u.weight, layer.norm.weight, layer.norm.bias
        for own, given in zip(parameters, (w, u, *norm), strict=True):
            own.copy_(given)
    near(ys, layer(made.xs.transpose(0, 1), made.init).transpose(0, 1))


@from_packages
def test_xlstms_cell() -> None:
    vanilla = package("xlstm.blocks.slstm.src.vanilla.slstm")
    made, carry, ys = scanned("sLSTM")
    w, r, bias = made.weights

    def call(states: Tensor, x: Tensor) -> Any:
        new, _ = vanilla.slstm_forward_pointwise(x @ w.t(), states[0] @ r.t(), bias[None], states, {})
        return new, new[0]

    states, expected = stepped(call, torch.stack(made.init), made.xs)
    near((torch.stack(carry), ys), (states, expected))


@from_packages
def test_torchrls_advantages() -> None:
    functional = package("torchrl.objectives.value.functional")
    made = EVERY["advantages"].make(9, *SMALL, dtype=torch.float64)
    _, found = fourfold.scan(made.step, torch.zeros_like(made.init), made.xs, reverse=True)
    reward, value, following, runs = (x.t().unsqueeze(-1) for x in made.xs)
    done = runs == 0
    given = value, following, reward, done, done
    expected, _ = functional.vec_generalized_advantage_estimate(double(0.99), double(0.95), *given)
    near(found, expected.squeeze(-1).t())


@from_packages
def test_torchrls_v_trace() -> None:
    functional = package("torchrl.objectives.value.functional")
    made = EVERY["V-trace"].make(9, *SMALL, dtype=torch.float64)
    _, found = fourfold.scan(made.step, torch.zeros_like(made.init), made.xs, reverse=True)
    ratio, reward, value, following, runs = (x.t().unsqueeze(-1) for x in made.xs)
    given = ratio, torch.zeros_like(ratio), value, following, reward, runs == 0
    _, expected = functional.vtrace_advantage_estimate(double(0.99), *given)
    near(found, expected.squeeze(-1).t())


@from_packages
def test_torchaudios_filter() -> None:
    functional = package("torchaudio.functional")
    made = EVERY["biquad"].make(50, *SMALL, dtype=torch.float64)
    _, found = fourfold.scan(made.step, pytree.tree_map(torch.zeros_like, made.init), made.xs)
    b, a = torch.stack(made.weights[:3]), torch.stack((torch.tensor(1.0).double(), *made.weights[3:]))
    near(found, functional.lfilter(made.xs.movedim(0, -1), a, b, clamp=False).movedim(-1, 0))
