"""fourfold._C of the plain package, which FOURFOLD_NO_EXTENSION=1 builds without a compiler.

It replaces the compiled module: the same operators with the same schemas, computed by their definitions
(fourfold/reference.py), which differentiate by torch's own autograd. It has no programs, so nothing is compiled.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch

from fourfold import _cmake

PLAIN = "built with FOURFOLD_NO_EXTENSION=1, without fourfold's compiled library"
_STATE = "bool reverse=False, Tensor? batch_sizes=None, Tensor? reset=None"
_CALL = f"{_STATE}, Tensor? prepacked=None, bool allow_tf32=False, bool save_for_backward=True"
_KEPT = "bool reverse, Tensor? batch_sizes, Tensor? reset, bool allow_tf32, Tensor output, Tensor kept"
_WEIGHTS = "Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih"
_GRADIENTS = "Tensor grad_weight_ih, Tensor grad_weight_hh, Tensor grad_bias_ih, Tensor grad_bias_hh"
_LINEAR = "Tensor hidden_weights, Tensor? hidden_bias, Tensor output_weights, Tensor? output_bias"
SCHEMAS = (
    "axpby(Tensor x, Tensor y, float alpha=2, float beta=1, ScalarType? dtype=None) -> Tensor",
    f"gru(Tensor input, Tensor h_0, {_WEIGHTS}=None, Tensor? bias_hh=None, {_CALL}) "
    "-> (Tensor output, Tensor h_n, Tensor kept)",
    f"gru_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor input, Tensor h_0, {_WEIGHTS}, Tensor? bias_hh, "
    f"{_KEPT}, bool[] output_mask) -> (Tensor grad_input, Tensor grad_h_0, {_GRADIENTS})",
    f"gru_prepack({_WEIGHTS}=None, Tensor? bias_hh=None) -> Tensor prepacked",
    f"lltm(Tensor input, Tensor h_0, Tensor c_0, Tensor weights, Tensor? bias=None, {_CALL}) "
    "-> (Tensor output, Tensor h_n, Tensor c_n, Tensor kept, Tensor cells)",
    "lltm_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor input, Tensor h_0, Tensor c_0, "
    f"Tensor weights, Tensor? bias, {_KEPT}, Tensor cells, bool[] output_mask) "
    "-> (Tensor grad_input, Tensor grad_h_0, Tensor grad_c_0, Tensor grad_weights, Tensor grad_bias)",
    "lltm_cell(Tensor x, Tensor h, Tensor c, Tensor weights, Tensor? bias=None, bool save_for_backward=True) "
    "-> (Tensor next_h, Tensor next_c, Tensor kept)",
    "lltm_cell_backward(Tensor? grad_next_h, Tensor? grad_next_c, Tensor x, Tensor h, Tensor c, Tensor weights, "
    "Tensor? bias, Tensor next_c, Tensor kept, bool[] output_mask) "
    "-> (Tensor grad_x, Tensor grad_h, Tensor grad_c, Tensor grad_weights, Tensor grad_bias)",
    "lltm_prepack(Tensor weights, Tensor? bias=None) -> Tensor prepacked",
    f"lstm(Tensor input, Tensor h_0, Tensor c_0, {_WEIGHTS}=None, Tensor? bias_hh=None, {_CALL}) "
    "-> (Tensor output, Tensor h_n, Tensor c_n, Tensor kept, Tensor cells)",
    "lstm_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor input, Tensor h_0, Tensor c_0, "
    f"{_WEIGHTS}, Tensor? bias_hh, {_KEPT}, Tensor cells, bool[] output_mask) "
    f"-> (Tensor grad_input, Tensor grad_h_0, Tensor grad_c_0, {_GRADIENTS})",
    f"lstm_prepack({_WEIGHTS}=None, Tensor? bias_hh=None) -> Tensor prepacked",
    f"mlp(Tensor x, {_LINEAR}, bool save_for_backward=True) -> (Tensor output, Tensor hidden)",
    f"mlp_backward(Tensor grad, Tensor x, {_LINEAR}, Tensor hidden, bool[] output_mask) -> (Tensor grad_x, "
    "Tensor grad_hidden_weights, Tensor grad_hidden_bias, Tensor grad_output_weights, Tensor grad_output_bias)",
    'mlp_layers(Tensor x, Tensor[] weights, Tensor?[] biases, str activation="relu", bool save_for_backward=True, '
    "bool need_weights=True) -> (Tensor output, Tensor kept)",
    "mlp_layers_backward(Tensor grad, Tensor x, Tensor[] weights, Tensor?[] biases, str activation, Tensor kept, "
    "bool[] output_mask) -> (Tensor grad_x, Tensor[] grad_weights, Tensor[] grad_biases)",
    "softshrink(Tensor x, float lambd=0.5) -> Tensor",
    "softshrink_backward(Tensor grad, Tensor x, float lambd) -> Tensor grad_x",
)
OPERATORS = tuple(schema.partition("(")[0] for schema in SCHEMAS)


def build_info() -> dict[str, Any]:
    operators = [name for name in OPERATORS if not name.endswith(("_backward", "_prepack"))]
    return {"version": version("fourfold"), "torch_version": torch.__version__, "kind": PLAIN, "operators": operators}


def backends() -> dict[str, tuple[bool, str]]:
    reason = "FOURFOLD_NO_EXTENSION=1; operators run as plain torch"
    return dict.fromkeys(("cpu", "cuda", "hip", "metal"), (False, reason))


def cpu_capability() -> str:
    return "plain"


def prepacked_bytes(op: str, dtype: str, input_size: int, hidden_size: int) -> int:
    return 0


def dtypes() -> list[tuple[str, str, str, int, int]]:
    """Empty: there are no programs."""
    return []


def operations() -> list[tuple[str, int, str, int]]:
    return []


def generators() -> list[str]:
    return []


def program_backends() -> list[int]:
    return []


def serve_nests(served: bool) -> None:
    """Does nothing: there are no nests."""


def wait_for_nests(milliseconds: int) -> int:
    """1: nothing was requested."""
    return 1


@functools.cache
def _warn() -> None:
    warnings.warn(
        "fourfold computes its operators as plain torch, which is slower: this installation was "
        f"{PLAIN}; with a C++ compiler, unset the variable and {_cmake.REINSTALL}",
        stacklevel=2,
    )


def _definition_of(name: str) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        from fourfold.operators._operator import declared

        _warn()
        operator = declared[name]
        if not name.endswith("_backward"):  # its check needs what the library's forward keeps
            operator.check(*args)
        outputs = operator.definition(*args)
        if not operator.kept:
            return outputs
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return (*outputs, *(args[0].new_empty(0) for _ in range(operator.kept)))  # nothing is kept for a backward

    return run


def _prepacked(weights: torch.Tensor, *_: torch.Tensor | None) -> torch.Tensor:
    return weights.new_empty(0, dtype=torch.uint8)


_library = torch.library.Library("fourfold", "DEF")
for _schema, _name in zip(SCHEMAS, OPERATORS, strict=True):
    _library.define(_schema)
    if _name.endswith("_prepack"):
        _library.impl(_name, _prepacked, "CompositeExplicitAutograd")
    else:  # composed of torch's operators, which differentiate, batch and compile
        for _key in ("CompositeImplicitAutograd", "FuncTorchBatchedDecomposition"):
            _library.impl(_name, _definition_of(_name), _key)
