"""pytorch-forecasting's recurrent models (DeepAR, RecurrentNetwork, …) with fourfold's layers.

Its layers override forward and call torch.nn's, so that ``fourfold.optimize`` alone leaves them. A class that derives
from theirs and from fourfold's has their forward, which then calls fourfold's.
"""

from __future__ import annotations

import math
from typing import Any

import pandas
import torch
from pytorch_forecasting import DeepAR, TimeSeriesDataSet
from pytorch_forecasting.models.nn import rnn
from torch import nn

import fourfold


class LSTM(rnn.LSTM, fourfold.nn.LSTM):
    pass


class GRU(rnn.GRU, fourfold.nn.GRU):
    pass


def optimize(model: nn.Module) -> None:
    """In place; parameters and checkpoints stay as they are."""
    ours = {rnn.LSTM: LSTM, rnn.GRU: GRU}
    for module in model.modules():
        module.__class__ = ours.get(type(module), type(module))
    fourfold.optimize(model)


# The adapter ends here. What follows uses it.


def series() -> TimeSeriesDataSet:
    """Twenty noisy waves: 60 steps to read, 20 to predict."""
    rows = [(t, str(k), math.sin(t / 7 + k) + 0.1 * torch.randn(()).item()) for k in range(20) for t in range(200)]
    frame = pandas.DataFrame(rows, columns=["time", "series", "value"])
    lengths: dict[str, Any] = {"max_encoder_length": 60, "max_prediction_length": 20}
    known: dict[str, Any] = {"time_varying_unknown_reals": ["value"], "time_varying_known_reals": ["time"]}
    return TimeSeriesDataSet(frame, time_idx="time", target="value", group_ids=["series"], **lengths, **known)


def model_of(data: TimeSeriesDataSet, kind: str) -> DeepAR:
    return DeepAR.from_dataset(data, cell_type=kind, hidden_size=64, rnn_layers=2, dropout=0.0)
