"""fourfold: fused PyTorch operators whose mathematics is written once for every backend."""

from fourfold import _cmake, _waiting

if _cmake.is_requested():
    raise SystemExit(_cmake.print_folder())
_waiting.prepare_demo()

import importlib as _importlib
import warnings as _warnings
from typing import TYPE_CHECKING

with _warnings.catch_warnings():
    # torch's import warns if there is no NumPy, which neither package needs.
    _warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    import torch as _torch

_TORCH_MINIMUM = (2, 10)

if tuple(int(part) for part in _torch.__version__.split(".")[:2]) < _TORCH_MINIMUM:
    raise ImportError(
        f"fourfold needs torch {'.'.join(map(str, _TORCH_MINIMUM))} or newer, but this is torch {_torch.__version__}; "
        f"upgrade it: pip install 'torch>={'.'.join(map(str, _TORCH_MINIMUM))}'"
    )

from fourfold import _one_copy

_one_copy.expect()

try:
    # torch is imported first: libfourfold finds torch's libraries because they are loaded already.
    from fourfold import _C
except ImportError as error:
    if str(error).startswith("fourfold: "):  # the message is complete
        raise
    raise ImportError(
        f"fourfold's compiled library could not be loaded under torch {_torch.__version__}: {error}; "
        f"{_cmake.REINSTALL} (without a C++ compiler, set FOURFOLD_NO_EXTENSION=1 for a package in plain PyTorch)"
    ) from error

from fourfold import _health

_health.check()

from fourfold import _native
from fourfold import functional as functional
from fourfold.operators import _axes, _flops

_native.enable_gradients()
_flops.enable()
_axes.enable()

from fourfold._backends import backends as backends
from fourfold._backends import cpu_capability as cpu_capability
from fourfold._backends import operator_names as operator_names
from fourfold._native import empty_cache as empty_cache
from fourfold.functional import *

if TYPE_CHECKING:
    # This form marks the names as exported for type checkers, which can't evaluate __all__ below.
    from fourfold import nn as nn
    from fourfold import profiler as profiler
    from fourfold import reference as reference
    from fourfold._event import Event as Event
    from fourfold._optimize import optimize as optimize
    from fourfold._optimize import restore as restore
    from fourfold.compiler.nest.jit.service import wait_for_nests as wait_for_nests
    from fourfold.explaining import explain as explain
    from fourfold.freezing import freeze as freeze
    from fourfold.freezing import frozen as frozen
    from fourfold.freezing import unfreeze as unfreeze
    from fourfold.functional import axpby as axpby
    from fourfold.functional import gru as gru
    from fourfold.functional import lltm as lltm
    from fourfold.functional import lltm_cell as lltm_cell
    from fourfold.functional import lstm as lstm
    from fourfold.functional import mlp as mlp
    from fourfold.functional import mlp_layers as mlp_layers
    from fourfold.functional import softshrink as softshrink
    from fourfold.saving.load import Model as Model
    from fourfold.saving.load import load as load
    from fourfold.saving.save import save as save
    from fourfold.saving.stream import Stream as Stream
    from fourfold.scanning.scan import scan as scan

__version__: str = _C.build_info()["version"]

# Imported at first use: a process that runs loaded models needs only one of them. The modules, and other names with
# their modules.
_MODULES = ("nn", "profiler", "reference")
_LATER = {
    "Event": "_event",
    "Model": "saving.load",
    "Stream": "saving.stream",
    "explain": "explaining",
    "freeze": "freezing",
    "frozen": "freezing",
    "load": "saving.load",
    "optimize": "_optimize",
    "restore": "_optimize",
    "save": "saving.save",
    "scan": "scanning",
    "unfreeze": "freezing",
    "wait_for_nests": "compiler.nest.jit.service",
}

if not TYPE_CHECKING:  # type checkers don't evaluate it
    __all__ = [
        "backends",
        "cpu_capability",
        "empty_cache",
        "functional",
        "operator_names",
        *functional.__all__,
        *_MODULES,
        *_LATER,
    ]


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return _importlib.import_module(f"fourfold.{name}")
        if name not in _LATER:
            instead = '; use torch.compile(function, backend="fourfold")' if name == "compile" else ""
            raise AttributeError(f"module 'fourfold' has no attribute {name!r}{instead}")
        globals()[name] = getattr(_importlib.import_module(f"fourfold.{_LATER[name]}"), name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_LATER})
