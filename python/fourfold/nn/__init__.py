"""fourfold's operators as modules. Parameters have the names and shapes of the published tutorials, so their
checkpoints load."""

from typing import TYPE_CHECKING

from fourfold.nn.elementwise import Axpby, Softshrink
from fourfold.nn.lltm import LLTM, LLTMCell
from fourfold.nn.lstm_gru import GRU, LSTM, GRUCell, LSTMCell
from fourfold.nn.mlp import MLP
from fourfold.nn.of_cells import Recurrent

__all__ = ["GRU", "LLTM", "LSTM", "MLP", "Axpby", "GRUCell", "LLTMCell", "LSTMCell", "Recurrent", "Softshrink"]

for _name in __all__:  # pickles and the classes' reprs name the public module
    globals()[_name].__module__ = __name__

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> object:
        import torch

        instead = f"; use torch.nn.{name}" if hasattr(torch.nn, name) else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{instead}")
