"""Functions for torch.compile's backend "fourfold", and their comparison with eager."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fourfold.compiler.pipeline.entry import backend
from fourfold.compiler.pipeline.record import Record


def draw(*shape: int, dtype: torch.dtype = torch.float32, gradient: bool = True, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(gradient)


def compiled(function: Callable, record: Record | None = None, **settings: object) -> Callable:
    """Compiles after a reset of all earlier compilations."""
    torch._dynamo.reset()
    return torch.compile(function, backend=partial(backend, record=record) if record else "fourfold", **settings)


def results_of(function: Callable, arguments: tuple, parameters: tuple = ()) -> list[object]:
    """A call's results, the gradients of all arguments that require one, and the arguments after the call."""
    torch.manual_seed(0)
    own = [
        a.detach().clone(memory_format=torch.preserve_format).requires_grad_(a.requires_grad)
        if isinstance(a, Tensor)
        else a
        for a in arguments
    ]
    given = function(*own)
    outputs = list(given) if isinstance(given, (tuple, list)) else [given]
    differentiable = [o for o in outputs if isinstance(o, Tensor) and o.requires_grad]
    gradients: list[object] = []
    if differentiable:
        upstream = [draw(*o.shape, dtype=o.dtype, gradient=False, seed=7) for o in differentiable]
        torch.autograd.backward(differentiable, upstream)
        gradients = [a.grad for a in own if isinstance(a, Tensor)] + [p.grad for p in parameters]
    return (
        [o.detach() if isinstance(o, Tensor) else o for o in outputs]
        + gradients
        + [a.detach() for a in own if isinstance(a, Tensor)]
    )


UNITS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def assert_near(got: Tensor, expected: Tensor) -> None:
    """Sums in another order: relative to the largest element."""
    unit = UNITS[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=unit, atol=unit * max(1.0, expected.abs().max().item()))


def assert_same(got: list[object], expected: list[object], **tolerance: float) -> None:
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        if isinstance(theirs, Tensor):
            torch.testing.assert_close(mine, theirs, equal_nan=True, **tolerance)
            assert mine.stride() == theirs.stride()
        else:
            assert mine == theirs


@dataclass(frozen=True)
class Case:
    """A function and its arguments. programs: the number in forward and backward together, if it matters."""

    name: str
    call: Callable
    arguments: tuple
    tolerance: dict[str, float] = field(default_factory=dict)
    programs: int | None = None
    runtime: str = ""  # what needs torch's own runtime
    dynamic: bool = True  # whether it is also compiled with dynamic sizes

    def check(self, **settings: object) -> Record:
        record = Record()
        if isinstance(self.call, nn.Module):
            eager, ours = copy.deepcopy(self.call), copy.deepcopy(self.call)
            expected = results_of(eager, self.arguments, tuple(eager.parameters()))
            got = results_of(compiled(ours, record, **settings), self.arguments, tuple(ours.parameters()))
        else:
            expected = results_of(self.call, self.arguments)
            got = results_of(compiled(self.call, record, **settings), self.arguments)
        assert_same(got, expected, **self.tolerance)
        return record


def programs_of(record: Record) -> int:
    halves = [half for captured in record.captured for half in (captured.forward, captured.backward) if half]
    return sum(len(half.compiled.programs) for half in halves)


LOW = {"rtol": 2e-2, "atol": 2e-2}  # eager rounds after each operation, a program only its results
x46, w6, b4 = draw(4, 6), draw(6, seed=1), draw(4, 1, seed=2)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 4 + 1, -1) @ v


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


def checkpointed(x: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(lambda z: z.sin().cos().exp(), x, use_reentrant=False)


def under_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.gelu(x @ w) + 1


def with_a_break(x: Tensor) -> Tensor:
    y = x.sin() * 2
    torch._dynamo.graph_break()
    return y.cos()


def twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y, y


def gated(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """The halves of each row are real and imaginary parts, as in Llama."""
    a, b = x.chunk(2, -1)
    return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()


def joined_apart(x: Tensor) -> Tensor:
    """Concatenates a program's result with another that depends on it through cumsum."""
    y = x.sin()
    return torch.cat([y, y.cumsum(-1) + 1], -1)


def joined_with_what_is_drawn(x: Tensor) -> tuple[Tensor, Tensor]:
    """The second random tensor has to wait for the first, which depends on a result."""
    y = x.sigmoid()
    mask = torch.bernoulli(y)
    return torch.cat([y, torch.rand(4, 32)], 1), mask


def by_a_size(x: Tensor) -> Tensor:
    return (x * (2 * x.shape[1])).gather(1, torch.arange(4).view(4, 1))


def of_parameters(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The parameters' gradients are sums over rows."""
    return torch.tanh(x.view(-1, 32) * w + b)


def of_merged_dimensions(x: Tensor, y: Tensor) -> Tensor:
    """Groups that see the rows as one axis and as two, until an operation needs both."""
    return x.view(12, 6).sin() * y.exp().view(12, 1)


def of_parted_dimensions(x: Tensor, y: Tensor) -> Tensor:
    return x.exp().view(3, 4, 6) * y.sin().unsqueeze(-1)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q.sin(), k, v, is_causal=True) + 1


def dropped(q: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


def of_small_integers(x: Tensor) -> tuple[Tensor, ...]:
    """Comparisons with numbers outside the dtype's range."""
    compared = (x != -100, x == 300, x > -1, x < 300, x == torch.tensor(300))
    return *compared, x + 200, x // 300, torch.maximum(x, torch.tensor(400))


def of_low_precision(x: Tensor) -> tuple[Tensor, ...]:
    """Comparisons with numbers that torch rounds to the tensor's dtype."""
    return x >= 1.001, x > 70000.0, x == 1.0001, x > torch.tensor(1.0001), x == torch.tensor([2049]), x < 1e-9


def losses_and_probabilities(x: Tensor) -> tuple[Tensor, Tensor]:
    log_p = x.log_softmax(-1)
    return F.nll_loss(log_p, torch.arange(4)), log_p


def drawn(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5) + torch.rand(10) * torch.randn(10)


CASES = [
    Case("sin2_cos2", lambda x: torch.sin(x) ** 2 + torch.cos(x) ** 2, (draw(1000),), programs=2),
    Case("broadcasts", lambda x, w, b: x * w + b.exp(), (x46, w6, b4)),
    Case("a_number_in_a_tensor", lambda x, y: x * y + 2, (x46, draw().detach().requires_grad_())),
    Case("silu_gating", lambda x, g: x * F.silu(g), (draw(100), draw(100, seed=3)), programs=2),
    Case("layer_norm", lambda x, w, b: F.layer_norm(x, (6,), w, b), (x46, w6, draw(6, seed=5))),
    Case("rms_norm", lambda x, w: F.rms_norm(x, (6,), w), (x46, w6)),
    Case("softmax_within", lambda x: F.softmax(x.sin(), -1).cos(), (x46,), programs=2),
    Case("softmax_along_rows", lambda x: F.softmax(x.sin(), 0).cos(), (x46,)),
    Case("cross_entropy", lambda x: F.cross_entropy(x, torch.arange(4) % 3), (x46,)),
    Case("cross_entropy_of_some", lambda x: F.cross_entropy(x, torch.arange(4), ignore_index=2), (x46,), programs=3),
    Case("cross_entropy_of_none", lambda x: F.cross_entropy(x, torch.full((4,), -100)), (x46,)),
    Case("cross_entropy_each", lambda x: F.cross_entropy(x * 3, torch.arange(4), reduction="none"), (x46,)),
    Case("cross_entropy_added", lambda x: F.cross_entropy(x, torch.arange(4), reduction="sum", ignore_index=0), (x46,)),
    Case("cross_entropy_weighted", lambda x, w: F.cross_entropy(x, torch.arange(4), w), (x46, w6.detach().exp())),
    Case("cross_entropy_smoothed", lambda x: F.cross_entropy(x, torch.arange(4), label_smoothing=0.1), (x46,)),
    Case("cross_entropy_of_images", lambda x: F.cross_entropy(x, torch.arange(12).view(2, 6) % 3), (draw(2, 3, 6),)),
    Case("cross_entropy_and_what_it_is_of", losses_and_probabilities, (x46,)),
    Case("low_cross_entropy", lambda x: F.cross_entropy(x.bfloat16(), torch.arange(4)), (x46,), LOW),
    Case("half_cross_entropy", lambda x: F.cross_entropy(x.half().float(), torch.arange(4)), (x46,), LOW),
    Case("log_probability", lambda x: x.log_softmax(-1).gather(-1, torch.arange(4).view(4, 1)), (x46,)),
    Case("categorical", lambda x: (x - x.logsumexp(-1, True)).gather(1, torch.arange(4)[:, None]).sum(), (x46,)),
    Case("gathered_along_rows", lambda x: (x.sin() * 2).gather(0, torch.arange(6).view(1, 6) % 4), (x46,)),
    Case("gathered_more", lambda x: x.sin().gather(1, torch.arange(8).view(4, 2) % 6), (x46,)),
    Case("gathered_of_one", lambda x: x.exp().gather(0, torch.tensor(0)), (draw(),)),
    Case("gathered_of_two", lambda x, y: (x * y).gather(1, torch.arange(4).view(4, 1)), (x46, draw(4, 6, seed=3))),
    Case("of_rows", lambda x, r: (x - x.amax(-1, True)).exp() * r.log(), (x46, b4.detach().exp().requires_grad_())),
    Case("of_merged_dimensions", of_merged_dimensions, (draw(3, 4, 6), draw(3, 4)), programs=3),
    Case("of_parted_dimensions", of_parted_dimensions, (draw(12, 6), draw(3, 4))),
    Case("causal", causal, tuple(draw(2, 4, 8, 16, seed=k) for k in range(3)), {"rtol": 1e-5, "atol": 1e-5}),
    Case("log_softmax_across", lambda x: F.log_softmax(x.transpose(1, 2), -1).view(6, 5), (draw(2, 5, 3),)),
    Case("log_sigmoid_across", lambda x: F.logsigmoid(x.transpose(1, 2)), (draw(2, 5, 3),)),
    Case("batch_norm_across", lambda x: F.batch_norm(x.mT, torch.zeros(3), torch.ones(3)), (draw(2, 5, 3),)),
    Case("dropped_across", lambda x: F.dropout(x.mT, 0.5), (draw(2, 5, 3),)),
    Case("dropped", dropped, (draw(2, 4, 8, 16),)),
    Case("three_sums", lambda x, y: x.sum() / y.abs().sum() + y.sum() * 2, (draw(40), draw(40)), programs=2),
    Case("sums_of_two", lambda x, y: x.sin().sum(-1) / y.exp().sum(-1) - y.amax(-1), (x46, draw(4, 6)), programs=3),
    Case("means_of_two", lambda x, y: x.mean((1, 2)) - y.mean((1, 2)), (draw(3, 4, 5), draw(3, 4, 5)), programs=2),
    Case("sums_along_two", lambda x, y: x.sum(-1) * y.cos().sum(0), (draw(6, 6), draw(6, 6)), programs=3),
    Case("row_sums", lambda x, y: (x * y.unsqueeze(1)).sum(1), (x46, draw(4))),
    Case("sum_of_all", lambda x: x.sin().sum(), (x46,), programs=2),
    Case("mean_of_all", lambda x: ((x - 1) ** 2).mean(), (draw(40, 60),)),
    Case("standardised", normalised, (draw(4, 16),)),
    Case("logsumexp", lambda x: x.logsumexp(-1), (x46,)),
    Case("extremes", lambda x: x.amax(-1) + x.amin(-1), (x46,)),
    Case("norm", lambda x: x / x.norm(dim=-1, keepdim=True), (x46,)),
    Case("transposed", lambda x, y: (x.t() + y).sin(), (x46, draw(6, 4))),
    Case("with_its_transpose", lambda x: x.relu() + x.relu().t(), (draw(6, 6),)),
    Case("permuted", lambda x, y: x.sin().permute(2, 0, 1) * y, (draw(2, 3, 4), draw(4, 2, 3))),
    Case("reshaped", lambda x, y: x.sin().view(2, 12).cos() + y, (draw(2, 3, 4), draw(2, 12)), dynamic=False),
    Case("reshaped_apart", lambda x, y: (x * y.view(4, 6)).view(2, 2, 6), (x46, draw(24)), dynamic=False),
    Case("expanded", lambda x: x.expand(5, 10).sin() + 1, (draw(10),)),
    Case(
        "channels_last",
        lambda x: x.relu() * 2,
        (draw(2, 3, 4, 5).to(memory_format=torch.channels_last).detach().requires_grad_(),),
    ),
    Case("no_elements", lambda x: x.sin() * 2, (draw(0, 4),), dynamic=False),
    Case("powers", lambda x: x**2 + x**3 + x.abs() ** 0.5 + x.abs().sqrt() ** -1, (draw(10),)),
    Case("choices", lambda x: torch.where(x > 0, x, x.exp() - 1), (draw(10),)),
    *(
        Case(f"compared_{dtype}", of_low_precision, (torch.tensor([1.0, 2048.0, math.inf], dtype=dtype),))
        for dtype in (torch.float16, torch.bfloat16)
    ),
    Case("bytes", of_small_integers, (torch.tensor([156, 44, 3], dtype=torch.uint8),)),
    Case("signed_bytes", of_small_integers, (torch.tensor([-106, 44, 3], dtype=torch.int8),)),
    Case("booleans", lambda x, y: (x > 0) & (y < 1) | ~(x != y), (draw(10), draw(10, seed=1))),
    Case("integers", lambda x: (x * 3 + 1) // 2 - x % 3, (torch.arange(-10, 10),)),
    Case("small_integers", lambda x: x * x + x, (torch.arange(-128, 127, dtype=torch.int8),)),
    Case("unsigned", lambda x: (x * 7 - 3) >> 1, (torch.arange(256).to(torch.uint8),)),
    Case("mixed_types", lambda x, k: x.double() * k + x.long(), (x46, torch.arange(6))),
    Case("complex", lambda x: (x * x).abs(), (torch.randn(4, dtype=torch.complex64),), programs=0),
    Case(
        "bfloat16", lambda x: F.gelu(x).tanh() * 2, (draw(10, 20, dtype=torch.bfloat16).detach().requires_grad_(),), LOW
    ),
    Case(
        "float16",
        lambda x: F.silu(x) * x.sum(-1, keepdim=True),
        (draw(4, 8, dtype=torch.float16).detach().requires_grad_(),),
        LOW,
    ),
    Case("a_users_rounding", lambda x: x.to(torch.bfloat16).float() * 3, (x46,)),
    Case("autocast", under_autocast, (draw(4, 8), draw(8, 8)), LOW),
    Case("detached", lambda x, y: x.detach() * y + y.detach(), (draw(4), draw(4, seed=1))),
    Case("without_gradient", lambda x: (x.sin(), x > 0, x.detach().exp()), (draw(4),)),
    Case("gated_halves", lambda x: F.glu(x), (x46,)),
    Case("joined", lambda x, y: torch.cat([x.sin(), y.cos()], 1).exp(), (x46, draw(4, 5))),
    Case("joined_results", lambda x: torch.cat([x.sin(), x.cos()], 1), (x46,), programs=2),
    Case("cross", lambda x, y: torch.linalg.cross(x, y).exp(), (draw(5, 3), draw(5, 3, seed=1))),
    Case("cross_of_columns", lambda x, y: torch.cross(x, y, 0), (draw(3, 4, 1), draw(3, 1, 5, seed=1))),
    Case("joined_across", lambda x: torch.cat([x.t().sin(), x.t().cos(), x.t()], -1), (x46,)),
    Case("joined_of_two_types", lambda x: torch.cat([x.sin(), x.double().cos()], 0), (x46,)),
    Case("joined_twice", lambda x: torch.cat([x.sin().mul(2)] * 2, -2), (x46,)),
    Case("joined_and_used", lambda x: (torch.cat([x.sin(), x.cos()], 0), x.sin()), (x46,), programs=2),
    Case("joined_rows", lambda x: torch.cat([x.sum(-1), x.amax(-1)]), (x46,)),
    Case("joined_apart", joined_apart, (x46,)),
    Case("joined_with_its_transpose", lambda x: torch.cat([x.sin().mul(2), x.sin().mul(2).t()]), (draw(32, 32),)),
    Case("joined_joined", lambda x: torch.cat([torch.cat([x.sin(), x.cos()], 1), x.exp()], 1), (x46,), dynamic=False),
    Case("summed_joined", lambda x: torch.cat([x.sin() * 2, x.cos()], 1).sum(0), (draw(4, 32),)),
    Case("joined_with_what_is_drawn", joined_with_what_is_drawn, (draw(4, 32),)),
    Case("summed_over_what_is_expanded", lambda x: x.sin().mul(2).expand(3, 4, 32).sum((0, 1)), (draw(4, 32),)),
    Case("summed_over_what_is_expanded_apart", lambda x: x.sin().mul(2).expand(3, 4, 32).sum(1), (draw(4, 32),)),
    Case("expanded_by_a_gradient", lambda x, b: (x + b).sum(0).sin().sum(), (draw(3, 4, 32), draw(32))),
    Case("gathered_by_a_size", by_a_size, (x46,)),
    Case("halves", gated, (draw(5, 64),), programs=2),
    Case("rotated", rotated, (draw(2, 5, 16), draw(5, 16, gradient=False))),
    Case("of_parameters", of_parameters, (draw(3, 20, 32), draw(32), draw(32, seed=4)), programs=2),
    Case("after_a_sum_of_columns", lambda x: (x - x.sum(0) / 20).sin(), (draw(20, 18),)),
    Case("of_wide_parameters", lambda x, w: (x * w).sin(), (draw(20, 3, 16), draw(3, 16)), programs=2),
    Case(
        "of_low_parameters",
        lambda x, w, b: F.layer_norm(x, (32,), w, b),
        tuple(draw(*s, dtype=torch.bfloat16).detach().requires_grad_() for s in ((40, 32), (32,), (32,))),
        {"rtol": 2e-2, "atol": 1e-1},  # eager's sums over 40 rows are off by 0.08, fourfold's by 0.04
    ),
    Case("of_transposed_rows", lambda x, w: F.rms_norm(x.t(), (40,), w), (draw(40, 50), draw(40)), dynamic=False),
    Case("attention", attention, tuple(draw(2, 4, 8, 16, seed=k) for k in range(3)), {"rtol": 1e-5, "atol": 1e-5}),
    Case(
        "sdpa",
        partial(F.scaled_dot_product_attention, is_causal=True),
        tuple(draw(2, 4, 8, 16, seed=k) for k in range(3)),
    ),
    Case("embedding", nn.Sequential(nn.Embedding(10, 8), nn.LayerNorm(8)), (torch.randint(0, 10, (3, 4)),)),
    Case(
        "perceptron",
        nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1)),
        (draw(5, 8),),
    ),
    Case(
        "convolution",
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        (draw(2, 3, 8, 8),),
        {"rtol": 1e-4, "atol": 1e-5},
        runtime="changed in place",  # the running mean
    ),
    Case("changed_in_place", lambda x: x.add_(1).mul(2), (draw(10, gradient=False),)),
    Case("views_of_inputs", lambda x: (x.view(2, 5), x + 1), (draw(10),), runtime="view"),
    Case("an_input_itself", lambda x: (x, x.sin()), (draw(10),)),
    Case("one_result_twice", twice, (draw(10),)),
    Case("numbers_and_tensors", lambda x: (x.sin(), x.shape[0] + 1), (draw(10),)),
    Case("random", drawn, (draw(10),)),
    Case("checkpointed", checkpointed, (draw(10),)),
    Case("a_graph_break", with_a_break, (draw(10),), programs=4),
]
