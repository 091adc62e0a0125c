"""Cases for the modules of fourfold/nn.h, as tests/consumer/layers.h makes and calls them, with the results of Python's
modules."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import fourfold


def layer_cases() -> list[dict[str, Any]]:
    """For each recurrent layer: directions, layers, layouts, states, restarts, lengths, dropout, dtypes."""
    usual = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "bidirectional": False}
    deep = {"num_layers": 2, "bidirectional": True}
    varied: list[dict[str, Any]] = [
        {},
        {"bias": False, "unbatched": True, "state": True, "reset": True},
        {**deep, "batch_first": True, "state": True, "reset": True},
        {**deep, "packed": True, "state": True, "reset": True},
        {"packed": True, "dtype": torch.float64},
        {**deep, "dropout": 0.5, "train": True, "dtype": torch.float64},
        {"num_layers": 2, "dropout": 0.5, "unbatched": True, "batch_first": True},
    ]
    kinds = ("LLTM", "LSTM", "GRU")
    return [{"kind": kind, **usual, **one} for kind, one in itertools.product(kinds, varied)]


def cell_cases() -> list[dict[str, Any]]:
    varied = [{"bias": True, "state": True}, {"bias": False, "unbatched": True, "state": True}, {"bias": True}]
    return [{"kind": kind, **one} for kind, one in itertools.product(("LLTMCell", "LSTMCell", "GRUCell"), varied)]


def mlp_cases() -> list[dict[str, Any]]:
    return [
        {"kind": "MLP", "sizes": [5, 8, 7, 3], "tutorial": False, "bias": True, "activation": "tanh"},
        {"kind": "MLP", "sizes": [5, 8, 3], "tutorial": False, "bias": False, "activation": "gelu"},
        {"kind": "MLP", "sizes": [5, 8, 3], "tutorial": True, "bias": True, "activation": "relu"},
        {"kind": "MLP", "sizes": [5, 8, 3], "tutorial": True, "bias": False, "activation": "silu"},
    ]


CASES = layer_cases() + cell_cases() + mlp_cases()


def make(case: dict[str, Any]) -> nn.Module:
    kind = getattr(fourfold.nn, case["kind"])
    if case["kind"] == "MLP":
        sizes = case["sizes"] if case["tutorial"] else [case["sizes"]]
        return kind(*sizes, bias=case["bias"], activation=case["activation"])
    options = ("num_layers", "bias", "batch_first", "dropout", "bidirectional")
    return kind(5, 8, **{name: case[name] for name in options if name in case})


def arguments(case: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of one call, as the C++ program reads them."""
    like = {"dtype": case.get("dtype", torch.float32)}
    if "Cell" in case["kind"] or case["kind"] == "MLP":
        batch = () if case.get("unbatched") else (3,)
        states = {name: torch.randn(*batch, 8, **like) for name in ("h_0", "c_0")} if case.get("state") else {}
        return {"input": torch.randn(*batch, 5, **like), **states}
    lengths = torch.tensor([2, 6, 4])
    shape = (6,) if case.get("unbatched") else (3, 6) if case["batch_first"] else (6, 3)
    given = {"input": torch.randn(*shape, 5, **like)}
    if case.get("reset"):
        given["reset"] = torch.rand(shape) < 0.4
    if case.get("packed"):
        packed = {name: pack_padded_sequence(t, lengths, enforce_sorted=False) for name, t in given.items()}
        given = {name: sequence.data for name, sequence in packed.items()}
        for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            given[field] = getattr(packed["input"], field)
    if case.get("state"):
        rows = case["num_layers"] * (2 if case["bidirectional"] else 1)
        batch = () if case.get("unbatched") else (3,)
        given |= {name: torch.randn(rows, *batch, 8, **like) for name in ("h_0", "c_0")}
    return given


def results(case: dict[str, Any], module: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Python's results, under the C++ program's names."""
    state = (given["h_0"], given["c_0"]) if "h_0" in given else None
    if "GRU" in case["kind"] and state:
        state = state[0]
    x, reset = given["input"], given.get("reset")
    if case.get("packed"):
        fields = [given[name] for name in ("batch_sizes", "sorted_indices", "unsorted_indices")]
        x = PackedSequence(x, *fields)
        reset = None if reset is None else PackedSequence(reset, *fields)
    torch.manual_seed(1)
    if case["kind"] == "MLP":
        found = {"output": module(x)}
    elif "Cell" in case["kind"]:
        found = {"state": module(x, state)}
    else:
        output, last = module(x, state, reset)
        found = {"output": getattr(output, "data", output) if case.get("packed") else output, "state": last}
    if "state" in found:
        last = found.pop("state")
        found |= dict(zip(("h_n", "c_n"), last if isinstance(last, tuple) else (last,), strict=False))
    sum(value.square().sum() for value in found.values()).backward()
    found = {name: value.detach() for name, value in found.items()}
    return found | {f"grad.{name}": p.grad for name, p in module.named_parameters()}
