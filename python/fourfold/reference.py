"""Every operator in plain PyTorch: the definition that kernels, tests, demo and benchmark are compared with.

Nothing here is fused or fast, and nothing here calls fourfold's library. The functions differentiate by torch's own
autograd, to any order and in forward mode.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]
Step = Callable[[Tensor, State], State]


def axpby(x: Tensor, y: Tensor, alpha: float = 2, beta: float = 1) -> Tensor:
    """z = αx + βy, with torch's broadcasting and promotion, computed in the promoted dtype."""
    dtype = (alpha * x + beta * y).dtype
    return alpha * x.to(dtype) + beta * y.to(dtype)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x - λ above λ, x + λ below -λ, 0 between; NaN stays NaN."""
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, x * 0))


def lltm_cell(x: Tensor, h: Tensor, c: Tensor, weights: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One step of the LLTM: x (batch, input_size), h and c (batch, hidden_size) give the next h and c."""
    bias = bias if bias is None or bias.dim() == 1 else bias.reshape(-1)
    i, o, g = nn.functional.linear(torch.cat([h, x], dim=1), weights, bias).chunk(3, dim=1)
    c = c + torch.sigmoid(i) * nn.functional.elu(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _sequence(
    step: Step, input: Tensor, state: State, reverse: bool, batch_sizes: Tensor | None, reset: Tensor | None
) -> tuple[Tensor, State]:
    """A step over a sequence: input (time, batch, input_size), or packed (rows, input_size) with its batch_sizes."""
    sizes = [input.size(1)] * input.size(0) if batch_sizes is None else batch_sizes.tolist()
    steps = list(input.unbind(0) if batch_sizes is None else input.split(sizes))
    resets = (
        [None] * len(steps) if reset is None else list(reset.unbind(0) if batch_sizes is None else reset.split(sizes))
    )
    outputs = [None] * len(steps)
    for t in reversed(range(len(steps))) if reverse else range(len(steps)):
        n = sizes[t]  # rows that have a step t; a packed batch is sorted by length, so they come first
        before = tuple(s[:n] for s in state)
        if resets[t] is not None:
            before = tuple(torch.where(resets[t].unsqueeze(1), torch.zeros_like(s), s) for s in before)
        after = step(steps[t], before)
        state, outputs[t] = tuple(torch.cat([new, old[n:]]) for new, old in zip(after, state, strict=True)), after[0]
    if not steps:
        return input.new_empty((0, *state[0].shape[batch_sizes is not None :])), state
    return (torch.stack(outputs) if batch_sizes is None else torch.cat(outputs)), state


def lltm(
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The LLTM's cell over a sequence."""

    def step(x: Tensor, state: State) -> State:
        return lltm_cell(x, *state, weights, bias)

    return _sequence(step, input, (h_0, c_0), reverse, batch_sizes, reset)


def lstm(
    input: Tensor,
    h_0: Tensor,
    c_0: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """torch.nn.LSTM's layer: c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c'), with i, f, g, o the gates in order."""

    def step(x: Tensor, state: State) -> State:
        h, c = state
        gates = nn.functional.linear(x, weight_ih, bias_ih) + nn.functional.linear(h, weight_hh, bias_hh)
        i, f, g, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    return _sequence(step, input, (h_0, c_0), reverse, batch_sizes, reset)


def gru(
    input: Tensor,
    h_0: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """torch.nn.GRU's layer, the reset gate on the hidden product: h' = (1 - z) tanh(n_x + r n_h) + z h."""

    def step(x: Tensor, state: State) -> State:
        (h,) = state
        by_x = nn.functional.linear(x, weight_ih, bias_ih).chunk(3, dim=1)
        by_h = nn.functional.linear(h, weight_hh, bias_hh).chunk(3, dim=1)
        r, z = torch.sigmoid(by_x[0] + by_h[0]), torch.sigmoid(by_x[1] + by_h[1])
        n = torch.tanh(by_x[2] + r * by_h[2])
        return ((1 - z) * n + z * h,)

    output, (h_n,) = _sequence(step, input, (h_0,), reverse, batch_sizes, reset)
    return output, h_n


def mlp(
    x: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor | None,
    output_weights: Tensor,
    output_bias: Tensor | None,
) -> Tensor:
    """relu(x W₁ᵀ + b₁) W₂ᵀ + b₂ over the last dimension of x."""
    return mlp_layers(x, [hidden_weights, output_weights], [hidden_bias, output_bias])


def mlp_layers(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None] | None = None, activation: str = "relu"
) -> Tensor:
    """Linear layers over the last dimension of x, with torch's relu, tanh, gelu or silu between them."""
    f = {"relu": torch.relu, "tanh": torch.tanh, "gelu": nn.functional.gelu, "silu": nn.functional.silu}[activation]
    for k, (w, b) in enumerate(zip(weights, biases or [None] * len(weights), strict=True)):
        x = nn.functional.linear(x if k == 0 else f(x), w, None if b is None else b.reshape(-1))
    return x


class LLTMCell(nn.Module):
    """The C++ extension tutorial's module: its parameters' names, shapes and initial values, and its operations."""

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        self.weights: nn.Parameter = nn.Parameter(torch.empty(3 * hidden_size, input_size + hidden_size))
        self.bias: nn.Parameter = nn.Parameter(torch.empty(3 * hidden_size))
        self.hidden_size = hidden_size
        nn.RNNBase.reset_parameters(self)  # the tutorial's rule: uniform within ±1/√hidden_size

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return lltm_cell(x, *state, self.weights, self.bias)


class LLTM(LLTMCell):
    """The tutorial's cell called once per step: input (time, batch, input_size), state (1, batch, hidden_size) each.

    Its parameters have the names of :class:`fourfold.nn.LLTM`'s first layer, so the two exchange state_dicts.
    """

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.register_parameter("weights_l0", self._parameters.pop("weights"))
        self.register_parameter("bias_l0", self._parameters.pop("bias"))

    @property
    def weights(self) -> nn.Parameter:
        return self.weights_l0

    @property
    def bias(self) -> nn.Parameter:
        return self.bias_l0

    def forward(
        self, input: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state or (input.new_zeros(1, input.size(1), self.hidden_size),) * 2
        h, c, outputs = h[0], c[0], []
        for x in input:
            h, c = super().forward(x, (h, c))
            outputs.append(h)
        return torch.stack(outputs), (h.unsqueeze(0), c.unsqueeze(0))
