"""What happens when a program can't be made or run: torch's own operators do its work, and a warning says so once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator

import torch
from torch.fx import GraphModule, Node

SWITCH = "FOURFOLD_STRICT"
MOST_FAILURES = 3  # of one pass
_reported: set[str] = set()


def is_strict() -> bool:
    switch = os.environ.get(SWITCH, "")
    if switch not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} is {switch}; set it to 1 for errors instead of warnings, or unset it")
    return switch == "1"


def report(target: object, error: Exception) -> None:
    """Warns once for each operator; raises the error where FOURFOLD_STRICT is 1."""
    if is_strict():
        raise error
    if str(target) not in _reported:
        _reported.add(str(target))
        why = f"{type(error).__name__}: {error}"
        what = f"fourfold could not compute {target} in a program, and leaves it to torch: {why}"
        warnings.warn(what, RuntimeWarning, stacklevel=2)


def is_traced(given: object) -> bool:
    """Whether its own operators have to be called: a tensor of a subclass, as tracers call with, one that stands for a
    batch, or one with a tangent."""
    if not isinstance(given, torch.Tensor):
        return False
    is_of_a_subclass = type(given) not in (torch.Tensor, torch.nn.Parameter)
    return is_of_a_subclass or is_batch(given) or has_tangent(given)


def is_batch(given: torch.Tensor) -> bool:
    """Whether it stands for one: of torch.func.vmap, or of torch.autograd.grad(…, is_grads_batched=True)."""
    return torch._C._functorch.is_functorch_wrapped_tensor(given) or torch._C._dispatch_keys(given).has("Batched")


def has_tangent(given: torch.Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(given).tangent is not None


def visiting(module: GraphModule) -> Iterator[Node]:
    """The graph's nodes, as they are when this begins; what fails meanwhile is put down to the last one given."""
    for node in list(module.graph.nodes):
        module.meta["at"] = node
        yield node
    module.meta["at"] = None


def recovering(stage: Callable[[GraphModule], GraphModule], module: GraphModule) -> GraphModule:
    """Runs a pass. A failure is reported and leaves the node that the pass was at to torch, and the pass starts again;
    a second failure leaves all nodes of that operator, and a third the whole graph."""
    failed: dict[Node, str] = module.meta.setdefault("failed", {})
    nodes: list[Node] = []
    for attempt in range(MOST_FAILURES + 1):
        module.meta["at"] = None
        try:
            return stage(module)
        except Exception as error:
            at = module.meta["at"]
            report(stage.__name__ if at is None else getattr(at.target, "operator", at.target), error)
            if attempt == MOST_FAILURES:
                raise
            nodes = [node for node in module.graph.nodes if attempt or node is at]
            if attempt == 1 and at is not None and at not in failed:
                nodes = [node for node in nodes if node.target == at.target]
            reason = f"failed: {type(error).__name__}: {error}"
            for node in nodes:
                failed.setdefault(node, reason)
                node.meta["refusal"] = reason
    raise AssertionError
