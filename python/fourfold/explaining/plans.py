"""How C++ would run the loop of a scan, and why not in a faster way: it plans the loop on memory laid out like a call's
tensors, without computing anything."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from fourfold import _native
from fourfold.compiler.analysis.support import device_of
from fourfold.compiler.nest.cpu.build import NotCompiled
from fourfold.compiler.nest.jit import service
from fourfold.compiler.nodes.fused import Fused, fused_nodes, results_of
from fourfold.compiler.nodes.loop import Loop
from fourfold.compiler.pipeline.compiled import Compiled
from fourfold.devices import programs
from fourfold.explaining import nests
from fourfold.explaining.shapes import DEPENDS_ON_DATA, LoopCall, memory


@dataclass(frozen=True)
class LoopPlan:
    """reasons: why there is no nest, and why there are no stages, if so. layout: of the nest. stages: in words."""

    reasons: dict[str, str]
    layout: str = ""
    stages: tuple[str, ...] = ()


def obstacle(whole: Compiled) -> str:
    """Why the loop runs in Python; empty if it runs in C++."""
    if _native.module is None:
        return f"fourfold has no C++ module for this torch: {_native.path}"
    return "" if whole.plan is not None else f"the graph of the sequence needs Python: {why_python(whole)}"


def why_python(compiled: Compiled) -> str:
    return str(compiled.module.meta.get("needs Python", "its passes failed"))


def plan_of(whole: Compiled, call: LoopCall, generator: str) -> LoopPlan:
    """generator: what runs programs."""
    loop, body = call.loop, call.loop.body
    with unset_fake_temporarily():
        made = Memory()
        values, firsts = ([], []) if body.plan is None else (recorded(call, made), body.plan.firsts)
        nest, layout, no_stages, stages = _native.module.plan_loop(
            step_of(whole, loop), [call.steps, *map(made, call.given)], values, firsts
        )
    reasons = {"nest": nest or not_compiled(body, layout, generator), "stages": no_stages}
    if body.plan is None:
        reasons = {way: f"{reason}: {why_python(body)}" for way, reason in reasons.items()}
    names = (text or f"loop_{body.plan.fused[step].__name__}" for step, text in stages)
    return LoopPlan({way: reason for way, reason in reasons.items() if reason}, layout, tuple(names))


def step_of(whole: Compiled, loop: Loop) -> object:
    """The loop's step in the plan of the sequence."""
    return next(step for step in whole.plan.steps if step[0] == "loop" and step[1][0] is loop)


def not_compiled(body: Compiled, layout: str, generator: str) -> str:
    """Why the nest with this layout is not compiled; empty if it is."""
    (node,) = fused_nodes(body.module.graph)
    try:
        nests.built(node.target.text, layout)
    except NotCompiled as reason:
        return str(reason)
    if device_of(node).type not in programs.INTERPRETED:
        return ""
    return "as the environment variable FOURFOLD_GENERATOR says" if generator == "interpreter" else service.obstacle()


def recorded(call: LoopCall, made: Memory) -> list[object]:
    """The values of the first step, as the plan numbers them."""
    plan = call.loop.body.plan
    values: list[object] = [0] * plan.count
    for node, value in call.body.items():
        if isinstance(node.target, Fused):
            index = next(plan.index[one] - k for k, one in enumerate(results_of(node)) if one is not None)
        elif node in plan.index:
            index = plan.index[node]
        else:
            continue
        several = isinstance(node.target, Fused) or len(returns(node.target)) > 1
        each = value if several and isinstance(value, (tuple, list)) else [value]
        values[index : index + len(each)] = map(made, each)
    return values


def returns(target: object) -> Sequence[object]:
    return target._schema.returns if isinstance(target, torch._ops.OpOverload) else ()


class Memory:
    """Makes tensors with the layouts of fake ones, which share memory where those do. On CPUs they take none: nobody
    touches their pages."""

    def __init__(self) -> None:
        self.storages: dict[object, torch.UntypedStorage] = {}

    def __call__(self, value: object) -> object:
        if isinstance(value, (tuple, list)):
            return list(map(self, value))
        if not isinstance(value, Tensor):
            return value if isinstance(value, (int, float)) else 0  # a number that depends on data
        if not isinstance(value, FakeTensor):
            return value
        with contextlib.suppress(*DEPENDS_ON_DATA):
            return self.tensor(value)
        return None

    def tensor(self, value: FakeTensor) -> Tensor:
        key = memory(value)
        if key not in self.storages:
            self.storages[key] = torch.UntypedStorage(value.untyped_storage().nbytes(), device=value.device)
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(self.storages[key], value.storage_offset(), value.shape, value.stride())
