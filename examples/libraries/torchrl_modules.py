"""TorchRL's LSTMModule and GRUModule: a rollout with restarts in one call, without splits and padding."""

from __future__ import annotations

from typing import Any

import torchrl.modules
from torch import Tensor
from torch.nn.functional import pad

import fourfold


def placed(state: Tensor, steps: int) -> Tensor:
    """The last state, (layers, batch, hidden_size), as TorchRL returns it: (batch, time, layers, hidden_size)."""
    return pad(state.transpose(0, 1).unsqueeze(1), (0, 0, 0, 0, steps - 1, 0))


def restarts(is_init: Tensor, *hidden: Tensor) -> Tensor | None:
    """(batch, time), without those of the first step, whose state is given; None if another state isn't zero."""
    first = is_init.clone()
    first[:, 0] = False
    return None if any(h[first].any() for h in hidden) else first


class LSTMModule(torchrl.modules.LSTMModule):
    """With TorchRL's arguments and parameters. The states that it returns are zero but for the last step; TorchRL's
    also has those at the ends of episodes, and says not to use them."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        fourfold.optimize(self)
        self.recurrent_backend = "scan"  # which passes is_init on

    def _lstm_scan_with_resets(self, input: Tensor, h: Tensor, c: Tensor, initial: Any, is_init: Tensor) -> Any:
        if (
            not isinstance(self.lstm, fourfold.nn.LSTM)
            or self.lstm.bidirectional
            or (first := restarts(is_init, h, c)) is None
        ):
            return self._lstm_pad_with_resets(input, h, c, is_init)
        output, last = self.lstm(input, initial, reset=first)
        return output, *(placed(state, input.shape[1]) for state in last)


class GRUModule(torchrl.modules.GRUModule):
    """The same."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        fourfold.optimize(self)
        self.recurrent_backend = "scan"

    def _gru_scan_with_resets(self, input: Tensor, h: Tensor, initial: Tensor, is_init: Tensor) -> Any:
        if (
            not isinstance(self.gru, fourfold.nn.GRU)
            or self.gru.bidirectional
            or (first := restarts(is_init, h)) is None
        ):
            return self._gru_pad_with_resets(input, h, is_init)
        output, last = self.gru(input, initial, reset=first)
        return output, placed(last, input.shape[1])
