"""Assembles an explanation from the graphs and the scans of the observed calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import fourfold
from fourfold.compiler.options import Options, generator_of_environment
from fourfold.explaining.explanation import Explanation
from fourfold.explaining.reading import graph_of, short_reason
from fourfold.explaining.running import Observed, parameter_names, uncompiled
from fourfold.explaining.scans import scans_of
from fourfold.scanning.scan import OUTSIDE_GRAPHS


def explained(f: Callable[..., Any], observed: Observed, options: Options) -> Explanation:
    name = getattr(f, "__qualname__", None) or type(getattr(f, "_orig_mod", f)).__name__
    parameters = parameter_names(uncompiled(f))
    several = len(observed.captured) > 1
    graphs = (graph_of(one, parameters, f" of graph {k}" * several) for k, one in enumerate(observed.captured))
    breaks = tuple(map(short_reason, observed.breaks))
    return Explanation(
        name.rpartition("<locals>.")[2],
        f"fourfold {fourfold.__version__}, torch {torch.__version__}",
        tuple(graphs),
        tuple(reason for reason in breaks if reason != OUTSIDE_GRAPHS),
        tuple(observed.stages),
        observed.compilations,
        options.generator or generator_of_environment(),
        options.rounds_each,
        scans_of(observed.scans),
        OUTSIDE_GRAPHS in breaks,
    )
