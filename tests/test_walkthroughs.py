"""The published walk-throughs on which fourfold is based, as their readers would run them. Each test has the name of
one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fourfold
from fourfold import reference
from machine import devices


def test_walkthrough_cpp_extension_on_amd_gpus() -> None:
    """A C++ extension on AMD GPUs: a one-hidden-layer MLP, 5-15-1, trained by hand-written gradients."""
    x, target = torch.randn(64, 5), torch.randn(64, 1)
    model = fourfold.nn.MLP(5, 15, 1)
    plain = nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 1))
    with torch.no_grad():
        for mine, theirs in zip(
            (model.hidden_weights, model.hidden_bias, model.output_weights, model.output_bias),
            plain.parameters(),
            strict=True,
        ):
            theirs.copy_(mine.reshape(theirs.shape))
    losses = []
    for network in (model, plain):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
        losses.append([])
        for _ in range(20):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(network(x), target)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.detach())
    torch.testing.assert_close(torch.stack(losses[0]), torch.stack(losses[1]), rtol=1e-4, atol=1e-5)
    assert losses[0][-1] < losses[0][0]
    assert {n: tuple(p.shape) for n, p in model.named_parameters()} == {
        "hidden_weights": (15, 5),
        "output_weights": (1, 15),
        "hidden_bias": (1, 15),
        "output_bias": (1, 1),
    }


def test_walkthrough_a_first_cpp_extension() -> None:
    """z = 2x + y: its values, and gradients of 2 and 1."""
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.tensor([10.0, 20.0], requires_grad=True)
    z = fourfold.axpby(x, y)
    assert z.tolist() == [12.0, 24.0]
    z.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    assert y.grad.tolist() == [1.0, 1.0]


def test_walkthrough_lltm_in_python_cpp_and_cuda() -> None:
    """The LLTM cell of the C++ extension tutorial: batch 16, input 32, state 128; checkpoints, values and gradients."""
    rnn, tutorial = fourfold.nn.LLTMCell(32, 128), reference.LLTMCell(32, 128)
    rnn.load_state_dict(tutorial.state_dict())
    x, h, c = torch.randn(16, 32), torch.randn(16, 128), torch.randn(16, 128)
    grads = []
    for cell in (rnn, tutorial):
        new_h, new_c = cell(x, (h, c))
        (new_h.sum() + new_c.sum()).backward()
        grads.append([new_h, new_c, cell.weights.grad, cell.bias.grad])
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", devices())
def test_walkthrough_mps_backend_softshrink(device: str) -> None:
    """The MPS walk-through's custom Softshrink, used in a Sequential, against torch's, under the profiler as in the
    walk-through."""
    custom = nn.Sequential(nn.Linear(8, 8), fourfold.nn.Softshrink(), nn.Linear(8, 2)).to(device)
    plain = nn.Sequential(custom[0], nn.Softshrink(), custom[2])
    x = torch.randn(5, 8, device=device, requires_grad=True)
    with fourfold.profiler.profile() as prof:
        output = custom(x)
        grads = torch.autograd.grad(output.sum(), (x, *custom.parameters()))
    expected = plain(x)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(grads, torch.autograd.grad(expected.sum(), (x, *plain.parameters())))
    ours = sorted((row.operator, row.calls, row.dtype, row.device) for row in prof.rows() if row.is_fourfolds)
    names = ("fourfold::softshrink", "fourfold::softshrink_backward")
    assert ours == [(name, 1, "float32", device) for name in names]
    assert all(name in str(prof) for name in names)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.5, -0.5], device=device)
    torch.testing.assert_close(fourfold.softshrink(special), nn.functional.softshrink(special), equal_nan=True)


def test_walkthrough_how_pytorch_2_compiles() -> None:
    """sin²x + cos²x beside fourfold's operators in one compiled graph: the value is 1 and the gradient 0."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return fourfold.axpby(torch.sin(x) ** 2, torch.cos(x) ** 2, 1, 1)

    torch._dynamo.reset()
    x = torch.randn(10, dtype=torch.float64, requires_grad=True)
    y = torch.compile(f, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(y, torch.ones_like(y))
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, torch.zeros_like(grad))
