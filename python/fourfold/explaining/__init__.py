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
    """Compile ``f``, call it once, and report what the compiler did: to print, to ``save`` as a page, or in a notebook.

    f: a function or a module, called with args and kwargs. One that is compiled already is compiled anew, and stays as
    it is. If its results can be differentiated, their backward is compiled too; it does not run, and no ``.grad``
    changes. f has the side effects of one call; the CPU's random number generator is restored.
    options, dynamic: torch.compile's.
    timing: also say how long each stage takes. For that f is compiled several times, and up to a hundred calls run,
    forward and backward; no ``.grad`` changes here either.
    Raises ValueError or TypeError for options that the backend doesn't have, and what f or torch's capture raises."""
    _native.expect_library("explain")
    from fourfold.explaining.running import observe

    observed = observe(f, args, kwargs, options, dynamic, timing)  # first: it measures how long Dynamo takes to load
    from fourfold.compiler.options import Options, generator_of_environment
    from fourfold.explaining.assembling import explained

    return explained(f, observed, Options.of(options).generator or generator_of_environment())
