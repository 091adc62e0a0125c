"""Tensors without elements may have any sizes, even with products that overflow 64 bits: rejected with a one-sentence
error, or computed at once. A call needs little stack."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fourfold
from forked import Forks
from refusals import T, sentence_of

HUGE = 2**61


def uncountable(name: str, *sizes: int) -> str:
    return f"expected {name} to have sizes whose product, a 0 counted as 1, is below 2^48, but got {sizes}"


def lstm(time: int, batch: int, input_size: int, hidden_size: int, gates: int = 4) -> tuple:
    weights = T(gates * hidden_size, input_size), T(gates * hidden_size, hidden_size)
    return (T(time, batch, input_size), *(T(batch, hidden_size) for _ in range(gates - 2)), *weights)


def lltm(time: int, batch: int, input_size: int, hidden_size: int) -> tuple:
    state = T(batch, hidden_size), T(batch, hidden_size)
    return T(time, batch, input_size), *state, T(3 * hidden_size, hidden_size + input_size)


def mlp(rows: int, input_size: int, hidden_size: int, output_size: int) -> tuple:
    return T(rows, input_size), T(hidden_size, input_size), None, T(output_size, hidden_size), None


def mlp_layers(*sizes: int) -> tuple:
    rows, *widths = sizes
    weights = [T(outputs, inputs) for inputs, outputs in zip(widths, widths[1:], strict=False)]
    return T(rows, widths[0]), weights, [None] * len(weights)


REFUSED = [
    ("lstm", lstm(1, HUGE, 0, 0), uncountable("input", 1, HUGE, 0)),
    ("gru", lstm(1, HUGE, 0, 0, 3), uncountable("input", 1, HUGE, 0)),
    ("lltm", lltm(1, HUGE, 0, 0), uncountable("input", 1, HUGE, 0)),
    # 4 times 2^62 overflows to 0 in 64 bits, and 3 times 2^62 to a negative number
    (
        "lstm",
        (T(2, 0, 3), T(0, 2**62), T(0, 2**62), T(0, 3), T(0, 2**62)),
        uncountable("h_0", 0, 2**62),
    ),
    ("gru", (T(2, 0, 3), T(0, 2**62), T(0, 3), T(0, 2**62)), uncountable("h_0", 0, 2**62)),
    ("lltm", (T(2, 0, 3), T(0, 2**62), T(0, 2**62), T(0, 3)), uncountable("h_0", 0, 2**62)),
    ("lltm_cell", (T(HUGE, 0), T(HUGE, 0), T(HUGE, 0), T(0, 0)), uncountable("x", HUGE, 0)),
    ("lltm_cell", (T(0, 3), T(0, 2**62), T(0, 2**62), T(0, 3)), uncountable("h", 0, 2**62)),
    ("mlp", mlp(HUGE, 0, 0, 0), uncountable("x", HUGE, 0)),
    ("mlp", mlp(2**40, 0, 2**10, 0), uncountable("the hidden layer", 2**40, 2**10)),
    ("mlp", mlp(2**40, 0, 0, 2**10), uncountable("the output", 2**40, 2**10)),
    ("mlp_layers", mlp_layers(HUGE, 0, 0, 0, 0), uncountable("x", HUGE, 0)),
    ("mlp_layers", mlp_layers(2**40, 0, 2**10, 0, 0), uncountable("each layer's output", 2**40, 2**10)),
    ("axpby", (T(HUGE, 1, 0), T(1, 4, 1)), uncountable("the result", HUGE, 4, 0)),
]


@pytest.mark.parametrize(("op", "args", "sentence"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_uncountable_sizes_are_refused(op: str, args: tuple, sentence: str) -> None:
    """By the function, by the operator and for meta tensors, with the same message."""
    assert sentence_of(getattr(fourfold, op), args, ValueError) == f"{op}: {sentence}"
    assert sentence_of(getattr(torch.ops.fourfold, op), args, RuntimeError) == f"{op}: {sentence}"
    meta = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), args)
    assert sentence_of(getattr(fourfold, op), meta, ValueError) == f"{op}: {sentence}"


def test_batch_sizes_that_overflow_are_refused() -> None:
    sizes = torch.full((2**16,), 2**47)
    args = (T(0, 3), T(2**47, 0), T(2**47, 0), T(0, 3), T(0, 0), None, None, False, sizes)
    with pytest.raises(ValueError, match=r"lstm: expected batch_sizes to add up .* add up to 2\^63 or more"):
        fourfold.lstm(*args)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("lstm", lstm(1, 2**40, 0, 0)),
        ("lstm", lstm(2**40, 0, 0, 3)),
        ("gru", lstm(1, 2**40, 0, 0, 3)),
        ("gru", lstm(2**40, 0, 3, 2, 3)),
        ("lltm", lltm(1, 2**40, 0, 0)),
        ("lltm", lltm(2**40, 0, 2, 3)),
        ("lltm_cell", (T(2**40, 0), T(2**40, 0), T(2**40, 0), T(0, 0))),
        ("mlp", mlp(2**40, 0, 0, 0)),
        ("mlp_layers", mlp_layers(2**40, 0, 0, 0, 0)),
        ("softshrink", (T(HUGE, 4, 0),)),
        ("axpby", (T(HUGE, 4, 0), T(HUGE, 4, 0))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_results_without_elements_take_no_time(op: str, args: tuple) -> None:
    """Forward and backward, for any number of empty rows or steps."""
    args = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().requires_grad_(), args)
    outputs = getattr(fourfold, op)(*args)
    outputs = [t for t in torch.utils._pytree.tree_leaves(outputs) if t.requires_grad]
    leaves = [t for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
    gradients = torch.autograd.grad([o.sum() for o in outputs], leaves)
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients if g.numel())


SMALL_STACK = """
import sys, threading
import torch, fourfold
from op_cases import CASES, differentiable, flatten

def call(case, dtype):
    args, leaves = differentiable(case.arguments(dtype))
    outputs = flatten(case.function(*args))
    torch.autograd.grad([o.sum() for o in outputs], leaves, materialize_grads=True)
    done.append(case)

done = []
cases = [case for case in CASES if case.every_path]
for dtype in (torch.float32, torch.float64, torch.bfloat16):
    for case in cases:
        print(case.id, dtype, flush=True)
        call(case, dtype)  # what torch loads at its first call needs a stack of its own
        threading.stack_size(int(sys.argv[1]))
        thread = threading.Thread(target=call, args=(case, dtype))
        thread.start()
        thread.join()
        threading.stack_size(0)
assert len(done) == 6 * len(cases)
"""


def test_a_thread_of_a_small_stack(after_torch: Forks) -> None:
    """64 KiB; torch's own autograd needs about 30 of them."""
    run = after_torch.run("-c", SMALL_STACK, 64 * 1024, cwd=Path(__file__).parent)
    assert run.returncode == 0, f"{run.stdout[-60:]} {run.stderr[-2000:]}"
