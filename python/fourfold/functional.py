"""fourfold's operators as functions: ``import fourfold.functional as F``. One line per operator."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from fourfold.operators.axpby import axpby as axpby
from fourfold.operators.gru import gru as gru
from fourfold.operators.lltm import lltm as lltm
from fourfold.operators.lltm_cell import lltm_cell as lltm_cell
from fourfold.operators.lstm import lstm as lstm
from fourfold.operators.mlp import mlp as mlp
from fourfold.operators.mlp_layers import mlp_layers as mlp_layers
from fourfold.operators.softshrink import softshrink as softshrink

if not _TYPE_CHECKING:  # type checkers read the imports, and don't evaluate this
    __all__ = [name for name in dir() if not name.startswith("_")]
