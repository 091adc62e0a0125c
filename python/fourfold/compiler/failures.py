"""What happens when a program can't be made or run: torch's own operators do its work, and a warning says so once."""

from __future__ import annotations

import os
import warnings

import torch
from torch.fx import Node

from fourfold.compiler.views import same

SWITCH = "FOURFOLD_STRICT"
# What a program reads need not lie in memory as it was traced.
RESHAPES = dict.fromkeys((torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default), torch.reshape)
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


class Eagerly:
    """A program's nodes, run one by one."""

    def __init__(self, built: object):
        self.built = built

    def __call__(self, error: Exception, *given: object) -> object:
        if not any(map(is_traced, given)):
            report(self.built.members[0].target, error)
        known: dict[Node, object] = dict(zip(self.built.inputs, given, strict=True))
        with torch.no_grad():
            results = tuple(self.value(node, known) for node in self.built.outputs)
        return results[0] if len(results) == 1 else results

    def value(self, node: Node, known: dict[Node, object]) -> object:
        """By way of a stack: a group may be longer than Python's own is deep."""
        stack = [node]
        while stack:
            now = stack[-1]
            missing = [operand for operand in now.all_input_nodes if operand not in known]
            if now in known or missing:
                stack.extend(missing) if now not in known else stack.pop()
                continue
            known[now] = self.size(now, known) if now.op == "placeholder" else self.called(now, known)
            stack.pop()
        return known[node]

    def called(self, node: Node, known: dict[Node, object]) -> object:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
        return RESHAPES.get(node.target, node.target)(*args, **kwargs)

    def size(self, wanted: Node, known: dict[Node, object]) -> object:
        """A number that only views read: a program has it from its inputs."""
        for given in self.built.inputs:
            fake = given.meta["val"]
            for dim, size in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
                if same(size, wanted.meta["val"]):
                    return known[given].shape[dim]
        raise AssertionError(f"{wanted} is the size of none of the program's inputs")
