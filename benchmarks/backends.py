"""torch.compile's backends that functions and models are timed with, by the names of their rows."""

from __future__ import annotations

from benchmarks.problem import OURS

PLAIN = "plain PyTorch"
INDUCTOR = "torch.compile (Inductor)"
AOT_EAGER = "torch.compile (aot_eager)"
BACKENDS = {PLAIN: "", INDUCTOR: "inductor", AOT_EAGER: "aot_eager", OURS: "fourfold"}  # "": called as it is
