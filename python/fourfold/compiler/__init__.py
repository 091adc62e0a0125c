"""torch.compile's backend: ``torch.compile(model, backend="fourfold")``.

torch captures and differentiates; elementwise operators and reductions are fused into programs (cpp/program), which run
without a compiler."""

from fourfold.compiler import capture
from fourfold.compiler.backend import backend

capture.enable(backend)

__all__ = ["backend"]
