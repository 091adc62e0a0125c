"""Packed weights as arguments of the raw operators: they carry the operator and layout that they belong to, and the
packing operators work with fake tensors and vmap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from fourfold import _C
from op_cases import SIMULATED

pytestmark = pytest.mark.skipif(SIMULATED, reason="a GPU's kernels take no prepacked weights")
GATES = {"lltm": 3, "lstm": 4, "gru": 3}


def parameters(op: str, input_size: int = 6, hidden_size: int = 16, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    rows = GATES[op] * hidden_size
    shapes = [(rows, input_size), (rows, hidden_size), (rows,), (rows,)]
    shapes = [(rows, hidden_size + input_size), (rows,)] if op == "lltm" else shapes
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(shape, generator=generator, dtype=torch.float64).sub(0.5).to(dtype) for shape in shapes]


def prepack(op: str, *weights: Any) -> Tensor:
    return getattr(torch.ops.fourfold, f"{op}_prepack")(*weights)


def call(
    op: str, weights: list, prepacked: Tensor, input_size: int = 6, hidden_size: int = 16, time: int = 3
) -> Tensor:
    dtype, device = weights[0].dtype, weights[0].device
    states = [torch.zeros(2, hidden_size, dtype=dtype, device=device)] * (1 if op == "gru" else 2)
    x = torch.ones(time, 2, input_size, dtype=dtype, device=device)
    return getattr(fourfold, op)(x, *states, *weights, prepacked=prepacked)[0]


def described(op: str, biases: str, dtype: str = "float32", input_size: int = 6, hidden_size: int = 16) -> str:
    size = _C.prepacked_bytes(op, dtype, input_size, hidden_size)
    return (
        f"{size} bytes of {op} of input_size {input_size}, hidden_size {hidden_size} and {biases}, for products of "
        f"torch.{dtype} at CPU level {fourfold.cpu_capability()}, layout 1"
    )


def expect_refused(op: str, weights: list, prepacked: Tensor, biases: str, found: str) -> None:
    with pytest.raises(ValueError) as raised:
        call(op, weights, prepacked)
    assert str(raised.value) == (
        f"{op}: expected prepacked to be what fourfold::{op}_prepack gives for these weights, {described(op, biases)}, "
        f"but got {found}"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", GATES)
def test_prepacked_weights_give_the_same_bits(op: str, dtype: torch.dtype) -> None:
    weights = parameters(op, dtype=dtype)
    prepacked = prepack(op, *weights)
    # With so many rows the call packs the weights itself. With few it reads them unpacked and sums in another order.
    assert torch.equal(call(op, weights, prepacked, time=40), call(op, weights, None, time=40))
    tolerance = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}
    torch.testing.assert_close(call(op, weights, prepacked), call(op, weights, None), **tolerance)
    assert prepacked.shape == (_C.prepacked_bytes(op, str(dtype).removeprefix("torch."), 6, 16),)


def test_weights_of_another_operator_are_refused() -> None:
    """Those of a gru and an lltm have equal sizes."""
    lltm, gru = parameters("lltm"), parameters("gru")
    expect_refused("lltm", lltm, prepack("gru", *gru), "a bias by x", described("gru", "both biases"))
    expect_refused("gru", gru, prepack("lltm", *lltm), "both biases", described("lltm", "a bias by x"))


def test_weights_of_other_sizes_biases_or_dtypes_are_refused() -> None:
    weights = parameters("lstm")
    other = prepack("lstm", *parameters("lstm", 16, 6))
    expect_refused("lstm", weights, other, "both biases", described("lstm", "both biases", "float32", 16, 6))
    for biases, found in ([None, weights[3]], "a bias by h"), ([weights[2], None], "a bias by x"), ([], "no bias"):
        prepacked = prepack("lstm", *weights[:2], *biases)
        expect_refused("lstm", weights, prepacked, "both biases", described("lstm", found))
    double = prepack("lstm", *parameters("lstm", dtype=torch.float64))
    expect_refused("lstm", weights, double, "both biases", described("lstm", "both biases", "float64"))


def test_other_bytes_are_refused() -> None:
    weights = parameters("lstm")
    prepacked = prepack("lstm", *weights)
    for bytes_ in (prepacked[:-1], torch.cat([prepacked, prepacked.new_zeros(1)])):
        found = described("lstm", "both biases").replace(str(len(prepacked)), str(len(bytes_)), 1)
        expect_refused("lstm", weights, bytes_, "both biases", found)
    for bytes_ in (prepacked[:63], torch.zeros_like(prepacked), prepacked.new_zeros(0)):
        expect_refused("lstm", weights, bytes_, "both biases", f"shape ({len(bytes_)},) of something else")


def test_another_level_or_layout_is_refused() -> None:
    """For example a tensor that was saved, and loaded where the kernels use another layout."""
    weights = parameters("lstm")
    for place in (8, 24):  # the number of the layout, and the name of the level
        prepacked = prepack("lstm", *weights)
        prepacked[place] += 1
        with pytest.raises(ValueError, match="lstm: expected prepacked to be what fourfold::lstm_prepack gives"):
            call("lstm", weights, prepacked)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("op", GATES)
def test_what_metadata_tells_is_refused_everywhere(op: str, device: str) -> None:
    weights = [w.to(device) for w in parameters(op)]
    size = _C.prepacked_bytes(op, "float32", 6, 16)
    for prepacked, kind, sentence in (
        (torch.zeros(size, device=device), TypeError, "prepacked to have dtype torch.uint8, but got torch.float32"),
        (
            torch.zeros(1, size, dtype=torch.uint8, device=device),
            ValueError,
            f"prepacked to have shape (bytes,) = (any,), but got (1, {size})",
        ),
        (
            torch.zeros(2 * size, dtype=torch.uint8, device=device)[::2],
            ValueError,
            "prepacked to be contiguous, but got stride 2",
        ),
    ):
        with pytest.raises(kind) as raised:
            call(op, weights, prepacked)
        assert str(raised.value) == f"{op}: expected {sentence}"
    other = "cpu" if device == "meta" else "meta"
    with pytest.raises(ValueError, match=f"{op}: expected prepacked to be on {device} like input, but got {other}"):
        call(op, weights, torch.zeros(size, dtype=torch.uint8, device=other))


@pytest.mark.parametrize("op", GATES)
def test_opcheck_of_what_packs(op: str) -> None:
    packs = getattr(torch.ops.fourfold, f"{op}_prepack").default
    weights = parameters(op)
    torch.library.opcheck(packs, tuple(weights))
    torch.library.opcheck(packs, tuple(w.double() for w in weights[: 1 if op == "lltm" else 2]))


@pytest.mark.parametrize("op", GATES)
def test_what_packs_refuses_alike_for_metadata(op: str) -> None:
    weights = parameters(op)
    for place, wrong in enumerate(weights):
        given = [*weights[:place], wrong[:-1], *weights[place + 1 :]]
        sentences = []
        for device in ("cpu", "meta"):
            with pytest.raises((RuntimeError, ValueError), match=f"^{op}_prepack: expected") as raised:
                prepack(op, *(w.to(device) for w in given))
            sentences.append(str(raised.value))
        assert sentences[0] == sentences[1]


def test_a_row_is_no_bias_of_torchs_layers() -> None:
    """The same from C++ and for meta tensors; the LLTM accepts its tutorial's rows."""
    *weights, bias_ih, bias_hh = parameters("lstm")
    given = (*weights, bias_ih.unsqueeze(0), bias_hh)
    for tensors in (given, tuple(t.to("meta") for t in given)):
        with pytest.raises(
            (RuntimeError, ValueError), match=r"bias_ih to have shape \(4 \* hidden_size,\) = \(64,\), but"
        ):
            prepack("lstm", *tensors)
    weights, bias = parameters("lltm")
    assert torch.equal(prepack("lltm", weights, bias.unsqueeze(0)), prepack("lltm", weights, bias))


@pytest.mark.parametrize("op", GATES)
def test_vmap_packs_each_and_calls_with_each(op: str) -> None:
    stacked = [torch.stack([w, 2 * w, -w]) for w in parameters(op)]

    def results(*weights: Tensor) -> tuple[Tensor, Tensor]:
        prepacked = prepack(op, *weights)
        return prepacked, call(op, list(weights), prepacked)

    prepacked, outputs = torch.vmap(results)(*stacked)
    for k in range(3):
        one, output = results(*(w[k] for w in stacked))
        assert torch.equal(prepacked[k], one)
        torch.testing.assert_close(outputs[k], output)
