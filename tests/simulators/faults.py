"""The host code's errors for failed launches: pytest tests/simulators/faults.py, which check-backends runs with the
case table. The simulated runtime fails the next launch on request."""

from __future__ import annotations

import ctypes
import json

import pytest

import simulated
from simulation import run_python

# The runtime's error numbers, as in HIP.
FAULTS = {
    "no kernel image": (209, "this build has GPU kernels for the architectures the simulator, but device"),
    "an old driver": (35, "but this build's kernels need"),
    "out of memory": (2, "is out of memory; free some, or make the batch smaller"),
    "a failed launch": (719, "reports: unspecified launch failure"),
}
SCRIPT = """
import ctypes, json, sys
import torch
import fourfold, simulated
library, error = sys.argv[1], int(sys.argv[2])
simulated.serve(library)
x = torch.randn(1000)
lltm = fourfold.nn.LLTM(8, 16)
said = []
for call in (lambda: fourfold.softshrink(x), lambda: lltm(torch.randn(3, 2, 8))):
    call()
    ctypes.CDLL(library).gpusim_fail_next_launch(error)
    try:
        call()
    except RuntimeError as refusal:
        said.append(str(refusal))
    call()
torch.testing.assert_close(fourfold.softshrink(x), torch.nn.functional.softshrink(x))
print(json.dumps(said))
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_launch_is_one_sentence_and_the_next_call_works(fault: str) -> None:
    error, sentence = FAULTS[fault]
    done = run_python("-c", SCRIPT, simulated.build(), error)
    assert done.returncode == 0, done.stdout
    said = json.loads(done.stdout)
    assert len(said) == 2, "a call that was to fail did not"
    for words in said:
        assert words.startswith("fourfold: ")
        assert sentence in words
        assert "\n" not in words


def test_the_simulated_runtime_is_the_one_that_is_asked() -> None:
    assert hasattr(ctypes.CDLL(str(simulated.build())), "gpusim_fail_next_launch")
