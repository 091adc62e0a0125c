"""``fourfold.explain``: shows what torch.compile(backend="fourfold") does with a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fourfold import _native
from fourfold.explaining.explanation import Explanation

__all__ = ["Explanation", "explain"]

Explanation.__module__ = __name__


def explain(
    f: Callable[..., Any],
    *args: Any,
    options: Mapping[str, object] | None = None,
    dynamic: bool | None = None,
    timing: bool = False,
    **kwargs: Any,
) -> Explanation:
    """Compiles ``f``, calls it once, and reports what the compiler did: to print, to ``save`` as a page, or in a
    notebook.

    Args:
        f: a function or a module, called with args and kwargs. A compiled function is compiled again; the existing
            compiled code stays in use. If results require a gradient, the backward is compiled too, but it does not
            run, and no ``.grad`` changes. f has the side effects of one call; the CPU's random number generator is
            restored.
        options: torch.compile's options.
        dynamic: torch.compile's dynamic.
        timing: also measure each stage. f is then compiled several times and called up to a hundred times, forward and
            backward; no ``.grad`` changes.

    Returns:
        An Explanation.

    Raises:
        ValueError, TypeError: f can't be called, or the backend doesn't have such options; and all errors of f and of
            torch's capture.
    """
    _native.expect_library("explain")
    if not callable(f):
        raise TypeError(f"explain: expected f to be a function or a module, but got {type(f).__name__}")
    from fourfold.explaining.running import observe

    observed = observe(f, args, kwargs, options, dynamic, timing)  # first: it measures how long Dynamo takes to load
    from fourfold.compiler.options import Options
    from fourfold.explaining.assembling import explained

    return explained(f, observed, Options.of(options))
