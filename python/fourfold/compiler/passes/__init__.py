"""The compiler's passes, in the order in which they run. Each takes a graph and returns the transformed graph.

Dynamo's graph goes through CAPTURED. AOTAutograd's joint graph of forward and backward goes through JOINT and is
partitioned; each half goes through FUSION. A forward without gradients goes through INFERENCE and FUSION."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

from torch.fx import GraphModule

from fourfold.compiler.analysis.support import REFUSAL
from fourfold.compiler.passes.align_parts import align_parts
from fourfold.compiler.passes.by_parts import by_parts
from fourfold.compiler.passes.canonicalize import canonicalize
from fourfold.compiler.passes.correct_dtypes import correct_dtypes
from fourfold.compiler.passes.cse import cse
from fourfold.compiler.passes.decompose import decompose
from fourfold.compiler.passes.epilogues import epilogues
from fourfold.compiler.passes.flatten import flatten
from fourfold.compiler.passes.fuse import fuse
from fourfold.compiler.passes.linear_layers import linear_layers
from fourfold.compiler.passes.lower import lower
from fourfold.compiler.passes.plan import plan
from fourfold.compiler.passes.products import products
from fourfold.compiler.passes.recurrent import recurrent
from fourfold.compiler.passes.rematerialize import rematerialize
from fourfold.compiler.passes.round_exponents import round_exponents
from fourfold.compiler.passes.scatters import scatters
from fourfold.compiler.passes.sink_gather import sink_gather
from fourfold.compiler.passes.sink_relu import sink_relu
from fourfold.compiler.passes.sink_slices import sink_slices
from fourfold.compiler.passes.stack_gradients import stack_gradients
from fourfold.compiler.passes.unroll_sums import unroll_sums
from fourfold.compiler.pipeline.fallback import recovering

Pass = Callable[[GraphModule], GraphModule]

CAPTURED: Sequence[Pass] = (recurrent, products)
JOINT: Sequence[Pass] = (correct_dtypes, round_exponents, scatters, decompose, stack_gradients, rematerialize)
INFERENCE: Sequence[Pass] = (correct_dtypes, scatters, linear_layers, sink_relu, decompose, sink_relu)
FUSION: Sequence[Pass] = (
    canonicalize,
    cse,
    sink_gather,
    align_parts,
    sink_slices,
    unroll_sums,
    cse,
    by_parts,
    canonicalize,
    cse,
    flatten,
    fuse,
    epilogues,
    lower,
    plan,
)


def run(passes: Sequence[Pass], module: GraphModule) -> GraphModule:
    """Runs passes, and records the seconds of each in ``module.meta["seconds"]``."""
    for node in module.graph.nodes:  # refusals by an earlier list of passes concern another graph
        node.meta = {key: value for key, value in node.meta.items() if key != REFUSAL}
    return recovering(functools.partial(run_all, passes), module)


def run_all(passes: Sequence[Pass], module: GraphModule) -> GraphModule:
    seconds = module.meta.setdefault("seconds", {})
    for each in passes:
        start = time.perf_counter()
        module = each(module)
        seconds[each.__name__] = seconds.get(each.__name__, 0) + time.perf_counter() - start
    return module
