"""FOURFOLD_GPU_PATH in the simulator: pytest tests/simulators/paths.py, which make check-backends runs. Each path is
taken and gives the same results; where it isn't supported, the call is rejected."""

from __future__ import annotations

import json

import pytest
from case_table import Run, carry_out, kernels_in

import simulated
from simulation import run_python

CASES = "(row-tiles or mlp-tutorial) and not reset and not packed and contiguous and float32 and test_autograd"
# Kernels that each path launches, and kernels that it doesn't.
ONE_BLOCK, PERSISTENT = ({f"{name}_forward", f"{name}_backward"} for name in ("one_block", "persistent"))
PATHS = {
    "block": (ONE_BLOCK | {"mlp_kernel"}, PERSISTENT | {"step_kernel", "cell_kernel"}),
    "persistent": (PERSISTENT | {"mlp_kernel"}, ONE_BLOCK | {"step_kernel", "cell_kernel"}),
    "step": ({"step_kernel", "product_kernel", "mlp_kernel"}, ONE_BLOCK | PERSISTENT),
    "vendor": ({"cell_kernel", "cell_backward_kernel"}, ONE_BLOCK | PERSISTENT | {"step_kernel", "mlp_kernel"}),
    "fused": (ONE_BLOCK | {"mlp_kernel", "mlp_rows_backward_kernel"}, {"step_kernel"}),
}
REFUSED = {
    "quick": (
        "fourfold: expected FOURFOLD_GPU_PATH to be block, persistent, step, vendor or fused, but got quick",
        "gru(65)",
    ),
    "block": (
        "fourfold: expected a layer that one block computes, because FOURFOLD_GPU_PATH=block is set",
        "gru(5, 97)",
    ),
    "persistent": (
        "fourfold: expected a layer that runs in one or two launches, because FOURFOLD_GPU_PATH=persistent is set",
        "gru(1025)",
    ),
    "fused": ("mlp: expected at most 128 inputs, hidden units and outputs, as FOURFOLD_GPU_PATH=fused", "mlp(129)"),
}
CALLS = """
import json, os, sys, torch, fourfold, simulated
simulated.serve(os.environ["FOURFOLD_SIMULATED"])
def gru(batch, size=8):
    fourfold.nn.GRU(8, size)(torch.randn(3, batch, 8))
def mlp(width):
    fourfold.mlp(torch.randn(4, width), torch.randn(8, width), torch.randn(8), torch.randn(8, 8), torch.randn(8))
said = {}
for path, (_, call) in json.loads(sys.argv[1]).items():
    os.environ["FOURFOLD_GPU_PATH"] = path  # which each call reads
    try:
        eval(call)
    except (RuntimeError, ValueError) as refusal:
        said[path] = str(refusal)
print(json.dumps(said))
"""


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_taken(path: str) -> None:
    outcome = carry_out(Run(f"path {path}", CASES, environment=(("FOURFOLD_GPU_PATH", path),)))
    assert outcome.code == 0, f"{outcome.failed}\n{outcome.said[-6000:]}"
    kernels = kernels_in(outcome.library)
    launched = {kernels[int(offset, 16)].partition("<")[0] for offset in outcome.launches.read_text().split()}
    wanted, unwanted = PATHS[path]
    assert wanted <= launched and not unwanted & launched


def test_paths_that_can_not_be_taken_are_refused() -> None:
    done = run_python("-c", CALLS, json.dumps(REFUSED), FOURFOLD_SIMULATED=str(simulated.build()))
    assert done.returncode == 0, done.stdout
    said = json.loads(done.stdout)
    assert {path: sentence for path, (sentence, _) in REFUSED.items() if sentence not in said.get(path, "")} == {}, said
