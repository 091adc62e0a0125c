"""torch.compile's backend: ``torch.compile(model, backend="fourfold")``.

torch captures and differentiates; elementwise operators and reductions are fused into programs (cpp/program), which run
without a compiler.

``backend`` is imported lazily: a process that runs loaded models compiles loop nests without importing Dynamo."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fourfold.compiler.pipeline.entry import backend as backend

__all__ = ["backend"]

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name != "backend":
            raise AttributeError(f"module 'fourfold.compiler' has no attribute {name!r}")
        from fourfold import _native

        _native.expect_library('torch.compile(backend="fourfold")')
        from fourfold.compiler.pipeline.entry import backend

        globals()["backend"] = backend
        return backend
