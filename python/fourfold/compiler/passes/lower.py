"""Writes the program of each fusion group and loads it into the library."""

from __future__ import annotations

import logging

import torch
from torch.fx import GraphModule

from fourfold.compiler.analysis import in_place, profitability
from fourfold.compiler.analysis.concatenations import concatenations
from fourfold.compiler.analysis.support import IN_LOOP, device_of
from fourfold.compiler.lowering import NotFusable
from fourfold.compiler.lowering.codegen import write_program
from fourfold.compiler.nest.jit import service
from fourfold.compiler.nodes.fused import Fused, fused_nodes, inline
from fourfold.compiler.options import Options
from fourfold.compiler.pipeline.calling import Program
from fourfold.compiler.pipeline.fallback import FAILED, report, visiting

log = logging.getLogger("fourfold.compiler")


def lower(module: GraphModule) -> GraphModule:
    options = module.meta.get("options", Options())
    # 0-d results, such as a count of steps, are copied in any case.
    updated = [result for result in in_place.updates(module).values() if result.meta["val"].dim()]
    updated += [part for parts in concatenations(module).values() for part in parts if in_place.is_result(part)]
    updating = {in_place.program_of(result) for result in updated}
    for node in visiting(module):
        if not isinstance(node.target, Fused):
            continue
        fused = node.target
        is_wanted = node in updating or module.meta.get(IN_LOOP, False)
        why = None if is_wanted else why_not(fused, device_of(node), options)
        if why is not None:
            inline(node, why)
            continue
        try:
            fused.text = write_program(fused, options.rounds_each)
            device = device_of(node)
            fused.call = Program(fused.text, fused.profiled_name, service.number(options.generator, device), device)
        except NotFusable as reason:
            inline(node, str(reason))
            continue
        except Exception as error:  # only this group falls back
            report(fused.operator, error)
            inline(node, f"{FAILED}{type(error).__name__}: {error}")
            continue
        if options.trace:
            log.info("%s", fused.named(fused.text))
    for k, node in enumerate(fused_nodes(module.graph)):
        node.target.__name__ = f"program_{k}"
    return module


def why_not(fused: Fused, device: torch.device, options: Options) -> str | None:
    """Why torch runs the group's operators; None if a program does."""
    as_nests = device.type != "cpu" or service.compiles(options.generator)
    reason = profitability.reason(fused.members, as_nests)
    if reason is None and not as_nests:
        reductions = [node for node in fused.members if node in fused.space.reduced]
        return profitability.reason_in_the_interpreter(reductions)
    return reason
