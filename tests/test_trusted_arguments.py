"""Arguments in model files that torch's kernels don't check: they are checked before each call."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from saved_models import in_python, rewritten


def calling(operator: str, tensors: dict[str, Tensor], arguments: dict[str, Any], results: int, folder: Path) -> Path:
    """The file of a model whose only step is this call of an operator. tensors: the model's arguments, named after the
    operator's; those with an underscore are elements of lists."""

    class Sum(nn.Module):
        def forward(self, *given: Tensor) -> Tensor:
            return sum(each.sum() for each in given)

    # torch.export takes one tensor for one argument.
    program = torch.export.export(Sum(), tuple(each.clone() for each in tensors.values()))
    fourfold.save(program, folder / "sum.ff")

    def change(_: Any, inner: dict[str, Any]) -> None:
        own = {name: {"value": k} for k, name in enumerate(tensors) if name[0] != "_"}
        inner["programs"] = []
        step = {"operator": f"aten::{operator}", "arguments": own | arguments, "results": results}
        inner["graph"] = {"steps": [step], "outputs": [len(tensors)]}

    return rewritten(folder / "sum.ff", folder / "call.ff", change)


IMAGE, ONE, FOUR = torch.randn(2, 4, 5, 6), torch.ones(1), torch.ones(4)
NONE = {"weight": None, "bias": None, "running_mean": None, "running_var": None}
NORM = {"training": False, "momentum": 0.1, "eps": 1e-5}
TRAINING = NORM | {"running_mean": None, "running_var": None, "training": True}
SAMPLER = {"interpolation_mode": 2, "padding_mode": 2, "align_corners": False}
TRUNC = {"rounding_mode": "trunc"}
LSTM = {"has_biases": True, "num_layers": 1, "dropout": 0, "train": False, "bidirectional": False, "batch_first": False}


def of_lstm(hx: Sequence[int], *weights: tuple[int, ...]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = [torch.randn(size) for size in ((7, 2, 3), hx, hx, *weights)]
    named = {f"_{k}": each for k, each in enumerate(tensors)}
    lists = {"hx": [1, 2], "params": range(3, len(tensors))}
    arguments = {name: [{"value": k} for k in which] for name, which in lists.items()}
    return named, {"input": {"value": 0}, **arguments, **LSTM}


def of_packed(sizes: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {
        "data": torch.randn(3, 4),
        "batch_sizes": torch.tensor(sizes, dtype=torch.int64),
        "hx": torch.zeros(1, 2, 5),
    }
    weights = {f"_{k}": torch.randn(size) for k, size in enumerate([(15, 4), (15, 5)])}
    settings = {**LSTM, "has_biases": False, "params": [{"value": 3}, {"value": 4}]}
    return tensors | weights, {name: value for name, value in settings.items() if name != "batch_first"}


# Valid arguments, which run, and invalid ones, with the reason.
TRUSTED: dict[str, tuple[str, int, dict[str, Tensor], dict[str, Any], str]] = {
    "batch norm": (
        "native_batch_norm",
        3,
        {"input": IMAGE, "weight": FOUR, "bias": FOUR},
        TRAINING,
        "",
    ),
    "batch norm's weight": (
        *("native_batch_norm", 3, {"input": IMAGE, "weight": ONE}, TRAINING | {"bias": None}),
        "aten::native_batch_norm: expected weight to have 4 elements, but got 1",
    ),
    "batch norm's mean": (
        *("_native_batch_norm_legit_no_training", 3),
        {"input": IMAGE, "running_mean": ONE, "running_var": FOUR},
        {"weight": None, "bias": None, "momentum": 0.1, "eps": 1e-5},
        "aten::_native_batch_norm_legit_no_training: expected running_mean to have 4 elements, but got 1",
    ),
    "batch norm without channels": (
        *("native_batch_norm", 3, {"input": FOUR}, NORM | NONE),
        "aten::native_batch_norm: expected input to have a dimension of channels, but got 1 dimensions",
    ),
    "weight norm": ("_weight_norm_interface", 2, {"v": IMAGE, "g": torch.ones(2, 1, 1, 1)}, {}, ""),
    "weight norm's g": (
        *("_weight_norm_interface", 2, {"v": IMAGE, "g": ONE}, {}),
        "aten::_weight_norm_interface: expected g to have 2 elements, but got 1",
    ),
    "weight norm's dim": (
        *("_weight_norm_interface", 2, {"v": IMAGE, "g": FOUR}, {"dim": 1}),
        "aten::_weight_norm_interface: expected dim to be the first or the last of v, but got 1",
    ),
    "scales": (
        *("_upsample_bilinear2d_aa", 1, {"self": IMAGE}),
        {"output_size": [7, 9], "align_corners": False, "scales_h": 1.45, "scales_w": 1.5},
        "",
    ),
    "scales that lead elsewhere": (
        *("_upsample_bilinear2d_aa", 1, {"self": IMAGE}),
        {"output_size": [7, 9], "align_corners": False, "scales_h": 1.4, "scales_w": -3.0},
        "aten::_upsample_bilinear2d_aa: expected scales of 9 elements, but got -3 for 6 elements",
    ),
    "scales that lead elsewhere in a list": (
        *("upsample_nearest2d.vec", 1, {"input": IMAGE}, {"output_size": [7, 9], "scale_factors": [1e9, 1.5]}),
        "aten::upsample_nearest2d: expected scales of 7 elements, but got 1e+09 for 5 elements",
    ),
    "segments": (
        *("segment_reduce", 1, {"data": FOUR, "lengths": torch.tensor([1, 3])}, {"reduce": "sum"}),
        "",
    ),
    "segments by offsets": (
        *("segment_reduce", 1, {"data": FOUR, "offsets": torch.tensor([0, 10**8, 4])}, {"reduce": "sum"}),
        "aten::segment_reduce: expected lengths rather than offsets",
    ),
    "weight norm's layout": (
        *("_weight_norm_interface", 2, {"v": ONE.expand(40, 30), "g": torch.ones(40, 1)}, {}),
        "aten::_weight_norm_interface: expected v to be contiguous, but got the strides [0, 0]",
    ),
    "a scale that leads one element further": (
        *("_upsample_bilinear2d_aa", 1, {"self": IMAGE}),
        {"output_size": [6, 9], "align_corners": False, "scales_h": 1.0, "scales_w": 1.5},
        "aten::_upsample_bilinear2d_aa: expected scales of 6 elements, but got 1 for 5 elements",
    ),
    "repeats": ("repeat_interleave.Tensor", 1, {"repeats": torch.tensor([2, 3])}, {}, ""),
    "repeats that overflow": (
        *("repeat_interleave.Tensor", 1, {"repeats": torch.tensor([2**63 - 1, 2**63 - 1, 4])}, {}),
        "aten::repeat_interleave: expected repeats with a sum below 2^53, but got 1.8",
    ),
    "attention": ("scaled_dot_product_attention", 1, {"query": IMAGE, "key": IMAGE, "value": IMAGE}, {}, ""),
    "attention to a short key": (
        *("scaled_dot_product_attention", 1, {"query": IMAGE, "key": IMAGE[:, :, :3], "value": IMAGE}, {}),
        "aten::scaled_dot_product_attention: expected key and value of the same length",
    ),
    "transform": ("_fft_r2c", 1, {"self": IMAGE}, {"dim": [3], "normalization": 0, "onesided": True}, ""),
    "transform of a dimension beyond": (
        *("_fft_r2c", 1, {"self": IMAGE}, {"dim": [9], "normalization": 0, "onesided": True}),
        "aten::_fft_r2c: expected dims of a tensor of 4 dimensions, but got 9",
    ),
    "transform of a dimension twice": (
        *("_fft_r2c", 1, {"self": IMAGE}, {"dim": [3, 3], "normalization": 0, "onesided": True}),
        "aten::_fft_r2c: expected each dim once, but got [3, 3]",
    ),
    "sampler": ("grid_sampler_2d", 1, {"input": IMAGE, "grid": torch.zeros(2, 3, 3, 2)}, SAMPLER, ""),
    "sampler of another mode": (
        *("grid_sampler_2d", 1, {"input": IMAGE, "grid": torch.zeros(2, 3, 3, 2)}, SAMPLER | {"padding_mode": 17}),
        "aten::grid_sampler_2d: expected modes that torch has, but got interpolation_mode 2 and padding_mode 17",
    ),
    "quotient": (
        *("div.Tensor_mode", 1, {"self": torch.tensor([7, -(2**63)]), "other": torch.tensor([-1, 2])}, TRUNC, ""),
    ),
    "quotient that overflows": (
        *("div.Tensor_mode", 1, {"self": torch.tensor([7, -(2**63)]), "other": torch.tensor([2, -1])}, TRUNC),
        "aten::div: expected quotients that Long holds, but got -9223372036854775808 / -1",
    ),
    "quotient by a number": (
        *("div.Scalar_mode", 1, {"self": torch.tensor([-(2**31)], dtype=torch.int32)}, TRUNC | {"other": -1}),
        "aten::div: expected quotients that Int holds, but got -2147483648 / -1",
    ),
    "packed": ("gru.data", 2, *of_packed([2, 1]), ""),
    "packed without steps": (
        *("gru.data", 2, *of_packed([])),
        "aten::gru: expected batch_sizes of one contiguous dimension of int64 on the CPU",
    ),
    "packed beyond": (
        *("gru.data", 2, *of_packed([2, 2])),
        "aten::gru: expected batch_sizes with the sum 3, but got 4",
    ),
    "packed and rising": (
        *("gru.data", 2, *of_packed([1, 2])),
        "aten::gru: expected batch_sizes that are positive and don't increase, but got ",
    ),
    "segments that nothing checks": (
        *("segment_reduce", 1, {"data": FOUR, "lengths": torch.tensor([10**8, 3])}, {"reduce": "sum", "unsafe": True}),
        "aten::segment_reduce: expected unsafe to be False",
    ),
    "samples": (
        *("fractional_max_pool2d", 2, {"self": IMAGE, "random_samples": torch.rand(2, 4, 2)}),
        {"kernel_size": [2, 2], "output_size": [2, 2]},
        "",
    ),
    "samples beyond": (
        *("fractional_max_pool2d", 2, {"self": IMAGE, "random_samples": torch.full((2, 4, 2), torch.nan)}),
        {"kernel_size": [2, 2], "output_size": [2, 2]},
        "aten::fractional_max_pool2d: expected random_samples of at least 0 and below 1",
    ),
    "LSTM": ("lstm.input", 3, *of_lstm((1, 2, 5), (20, 3), (20, 5), (20,), (20,)), ""),
    "LSTM's weight": (
        *("lstm.input", 3, *of_lstm((1, 2, 5), (1, 3), (20, 5), (20,), (20,))),
        "aten::lstm: expected weight 0 of shape [20, 3], but got [1, 3]",
    ),
    "LSTM's weights": (
        *("lstm.input", 3, *of_lstm((1, 2, 5), (20, 3), (20, 5))),
        "aten::lstm: expected 4 weights for each layer and direction, but got 2",
    ),
    "LSTM's state": (
        *("lstm.input", 3, *of_lstm((1, 1, 5), (20, 3), (20, 5), (20,), (20,))),
        "aten::lstm: expected states of shape (1, 2, size), but got [1, 1, 5]",
    ),
}


@pytest.mark.parametrize("what", TRUSTED)
def test_what_torchs_kernels_trust_is_checked(tmp_path: Path, what: str) -> None:
    """Without the check, some of these end the process, and others read out of bounds."""
    name, results, tensors, arguments, message = TRUSTED[what]
    path = calling(name, tensors, arguments, results, tmp_path)
    for executor in (contextlib.nullcontext, in_python):
        with executor():
            model = fourfold.load(path)
            if message:
                with pytest.raises(ValueError) as error:
                    model(*tensors.values())
                assert str(error.value).startswith(message)
            else:
                model(*tensors.values())


@pytest.mark.parametrize(
    "name",
    [
        "_ctc_loss",
        "batch_norm_update_stats",
        "max_pool2d_with_indices_backward",
        "_stack",
        "_foreach_add.List",
        "_foobar",
    ],
)
def test_operators_that_trust_what_they_are_given_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"the file calls 'aten::{name}', which fourfold doesn't run for a file"):
        fourfold.load(calling(name, {"self": FOUR}, {}, 1, tmp_path))
