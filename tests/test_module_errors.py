"""Errors of the modules themselves: sizes, states and checkpoints, each in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fourfold
from refusals import T, refusal_id, sentence_of

MODULES = [
    (lambda: fourfold.nn.LLTM(-1, 4), ValueError, "LLTM: expected input_size to be at least 1, but got -1"),
    (lambda: fourfold.nn.LLTM(3, 0), ValueError, "LLTM: expected hidden_size to be at least 1, but got 0"),
    (lambda: fourfold.nn.LLTM(3, 4, 0), ValueError, "LLTM: expected num_layers to be at least 1, but got 0"),
    (lambda: fourfold.nn.LLTM(3, 4.0), TypeError, "LLTM: expected hidden_size to be an int, but got float"),
    (
        lambda: fourfold.nn.LLTM(3, 4, dropout=1.5),
        ValueError,
        "LLTM: expected dropout to be a number in [0, 1], but got 1.5",
    ),
    (lambda: fourfold.nn.LLTMCell(3, -4), ValueError, "LLTMCell: expected hidden_size to be at least 1, but got -4"),
    (lambda: fourfold.nn.MLP(3, 4, True), TypeError, "MLP: expected output_size to be an int, but got bool"),
    (
        lambda: fourfold.nn.LLTM(3, 4)(T(5, 2, 3), (T(2, 4), T(2, 4))),
        ValueError,
        "LLTM: expected h_0 to have shape (num_layers * num_directions, batch, hidden_size) = (1, 2, 4), but got (2, 4)"
        "; for a single step use fourfold.nn.LLTMCell",
    ),
    (
        lambda: fourfold.nn.LLTM(3, 4)(T(5, 2, 3), (T(1, 2, 4), T(1, 3, 4))),
        ValueError,
        "LLTM: expected c_0 to have shape (num_layers * num_directions, batch, hidden_size) = (1, 2, 4), "
        "but got (1, 3, 4)",
    ),
    (
        lambda: fourfold.nn.LLTM(3, 4)(T(3)),
        ValueError,
        "LLTM: expected input to have 3 dimensions, or 2 when unbatched, but got shape (3,); for a single step use "
        "fourfold.nn.LLTMCell",
    ),
    (
        lambda: fourfold.nn.LLTM(3, 4)(T(5, 2, 7)),
        ValueError,
        "LLTM: expected the last dimension of the input to be input_size = 3, but got shape (5, 2, 7)",
    ),
    (
        lambda: fourfold.nn.GRU(3, 4)(T(5, 2, 3), (T(1, 2, 4), T(1, 2, 4))),
        TypeError,
        "GRU: expected hx to be a torch.Tensor, h_0, but got tuple; only an LSTM's state is a pair",
    ),
    (
        lambda: fourfold.nn.LLTMCell(3, 4)(T(2, 7)),
        ValueError,
        "LLTMCell: expected the last dimension of the input to be input_size = 3, but got shape (2, 7)",
    ),
    (
        lambda: fourfold.nn.MLP(3, 4, 2)(T(5, 7)),
        ValueError,
        "MLP: expected the last dimension of the input to be input_size = 3, but got shape (5, 7)",
    ),
    (
        lambda: fourfold.nn.MLP([3, 4, 2])(T(5, 7)),
        ValueError,
        "MLP: expected the last dimension of the input to be input_size = 3, but got shape (5, 7)",
    ),
    (
        lambda: fourfold.nn.MLP([3]),
        ValueError,
        "MLP: expected sizes to have those of the input and the output, but got (3,)",
    ),
    (lambda: fourfold.nn.MLP([3, 0, 2]), ValueError, "MLP: expected sizes[1] to be at least 1, but got 0"),
    (
        lambda: fourfold.nn.MLP([3, 4], 2),
        TypeError,
        "MLP: expected all sizes in the list, or input_size, hidden_size and output_size alone",
    ),
    (lambda: fourfold.nn.MLP(3), TypeError, "MLP: expected hidden_size to be an int, but got NoneType"),
    (
        lambda: fourfold.nn.MLP([3, 2], activation="elu"),
        ValueError,
        "MLP: expected activation to be relu, tanh, gelu or silu, but got elu",
    ),
    (
        lambda: fourfold.nn.LLTM(3, 4)(T(5, 2, 3).double()),
        TypeError,
        "LLTM: expected the input to have the parameters' dtype torch.float32, but got torch.float64; convert it with "
        "input.to(torch.float32)",
    ),
    *(
        (
            lambda layer=layer: layer(3, 4)(T(5, 2, 3).long()),
            ValueError,
            "RNN input dtype (torch.int64) does not match weight dtype (torch.float32). Convert input: "
            "input.to(torch.float32)",
        )
        for layer in (fourfold.nn.GRU, fourfold.nn.LSTM)
    ),
    *(
        (
            lambda dtype=dtype: fourfold.nn.Recurrent(torch.nn.GRUCell(3, 4))(T(5, 2, 3).to(dtype)),
            TypeError,
            f"Recurrent: expected the input to have the cell's dtype torch.float32, but got {dtype}; convert it with "
            "input.to(torch.float32)",
        )
        for dtype in (torch.int64, torch.float64)
    ),
    (
        lambda: fourfold.nn.MLP(3, 4, 2)(T(5, 3, device="meta")),
        ValueError,
        "MLP: expected the input to be on the parameters' device cpu, but got meta",
    ),
    (
        lambda: fourfold.nn.LLTM(3, 4)(T(5, 2, 3), T(2, 1, 2, 4)),
        TypeError,
        "LLTM: expected the state to be a pair of tensors, (h_0, c_0)",
    ),
    (
        lambda: fourfold.nn.LLTMCell(3, 4)(T(2, 3), T(2, 2, 4)),
        TypeError,
        "LLTMCell: expected the state to be a pair of tensors, (h, c)",
    ),
    (
        lambda: fourfold.nn.LLTMCell(3, 4)([1.0]),
        TypeError,
        "LLTMCell: expected the input to be a torch.Tensor, but got list",
    ),
    (
        lambda: fourfold.nn.LLTM(3, 4)([[1.0]]),
        TypeError,
        "LLTM: expected input to be a Tensor or a PackedSequence, but got list",
    ),
    (
        lambda: fourfold.nn.LLTM(3, 4).load_state_dict(fourfold.nn.LLTMCell(3, 4).state_dict()),
        ValueError,
        "LLTM: this checkpoint holds weights, which is a cell's; load it into fourfold.nn.LLTMCell, or rename weights "
        "to weights_l0 and bias to bias_l0",
    ),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), MODULES, ids=refusal_id)
def test_module_refuses(call: Any, kind: type, sentence: str) -> None:
    assert sentence_of(lambda: call(), (), kind) == sentence


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        (fourfold.nn, "RNN", "; use torch.nn.RNN"),
        (fourfold.nn, "nonesuch", ""),
        (fourfold, "compile", '; use torch.compile(function, backend="fourfold")'),
    ],
)
def test_names_of_torchs_own_are_referred_to_torch(module: Any, name: str, instead: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(module, name)
    assert str(raised.value) == f"module '{module.__name__}' has no attribute '{name}'{instead}"
