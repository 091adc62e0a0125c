"""fourfold.optimize and fourfold.restore: convert a model's layers to fourfold's operators, and back."""

import copyreg
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fourfold._optimize.layers import FUSED_LAYERS, Fused, torchs_class, why_layer_is_left
from fourfold._optimize.stacks import (
    FusedSequential,
    find_stacks,
    find_unfused,
    has_dropout,
    leaves_of,
    sizes_of,
    why_stack_is_left,
)
from fourfold.freezing import Freezable, unfreeze

# From torch's class to ours.
_CLASSES: dict[type, type[Fused]] = {**FUSED_LAYERS, nn.Sequential: FusedSequential}
for _ours in _CLASSES.values():  # pickles name this module
    globals()[_ours.__name__] = _ours
    _ours.__module__ = __name__


class _Derived(type):
    """Metaclass of generated classes: they have no importable name, so pickle stores how to make them."""


def fused_class(kind: type[nn.Module]) -> type[Fused]:
    """The fused class for modules of one of torch's classes, or of a user's class that derives from one."""
    ours = _CLASSES[torchs_class(kind)]
    if kind is ours.torchs:
        return ours
    if kind not in _derived:
        contents = {"former": kind, "__module__": kind.__module__, "__qualname__": f"Fused{kind.__qualname__}"}
        _derived[kind] = _Derived(f"Fused{kind.__name__}", (ours, kind), contents)
    return _derived[kind]


_derived: dict[type, type[Fused]] = {}
copyreg.pickle(_Derived, lambda derived: (fused_class, (derived.former,)))


@dataclass(frozen=True)
class Entry:
    """One layer of the report.

    name: as in named_modules; for a stack, with the range of the Sequential's children.
    kind: what it was. what: what it is now, or why it is unchanged.
    """

    name: str
    kind: str
    what: str


@dataclass
class Report:
    """The result of :func:`optimize`. ``str(report)`` is a table.

    changed: the layers that now run on fourfold's operators. left: layers of the same kinds that stay unchanged.
    """

    changed: list[Entry] = field(default_factory=list)
    left: list[Entry] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.changed and not self.left:
            return "fourfold.optimize found no LSTM, GRU or stack of Linear layers"
        rows = [("layer", "was", "now")]
        rows += [(e.name, e.kind, e.what) for e in self.changed]
        rows += [(e.name, e.kind, f"left: {e.what}") for e in self.left]
        widths = [max(len(row[k]) for row in rows) for k in range(2)]
        return "\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in rows)


def optimize(model: nn.Module) -> Report:
    """Converts the model's LSTM, GRU, LSTMCell and GRUCell layers, and stacks of Linear layers with an activation
    between them, to fourfold's operators, in place.

    Each changed module remains the same object with the same parameters, hooks and keys of state_dict, so optimisers
    and references stay valid; only its class changes, to a subclass of its former class. Subclasses of torch.nn's
    layers that don't override forward are changed too. A stack runs as one operator while its dropout is inactive (in
    eval mode, or with p = 0); in training, dropout runs as in torch.nn. A layer stays unchanged if fourfold would not
    be faster, by the limits of ``fourfold._optimize.limits``, or if its result could differ. :func:`restore` undoes it.

    Each call checks these conditions again: while a parameter or the input is not a plain tensor, or a mode is active,
    a layer runs as in torch.nn.

    Call it at any time, before or after moving the model. With other transformations, call it:

    - torch.compile: before or after. With backend="fourfold" the model is one graph (fullgraph=True), optimised or not.
      With other backends Dynamo breaks the graph at every nn.LSTM and nn.GRU, fourfold's included, unless
      torch._dynamo.config.allow_rnn = True.
    - DistributedDataParallel: before or after.
    - fully_shard: before. Layers whose parameters are already sharded stay unchanged.
    - torch.export: before. An exported program has operators instead of layers; optimize raises TypeError for it.
    - torch.onnx.export: before or after. The file has torch's own layers.
    - torch.jit.trace: before. The trace has torch's own operators; optimize raises TypeError for a trace.
    - torch.jit.script: neither. Each raises an error for the other's result; call restore first.
    - torch.fx.symbolic_trace: before or after. The graph is that of the original model, with each recurrent layer as
      one node.
    - torch.ao.quantization: after. Quantization doesn't support optimised recurrent layers: restore, quantize, then
      optimize the other layers.
    - copy.deepcopy, pickle, torch.save: before or after. A copy of an optimised model is optimised and needs
      fourfold to load; call restore first to load it without.

    Args:
        model: any module; it may be such a layer itself.

    Returns:
        The changed layers, and those left unchanged with the reason.

    Raises:
        TypeError: model is not an nn.Module, or is an exported, traced or scripted program.

    Example:
        >>> print(fourfold.optimize(model))
        layer   was   now
        memory  LSTM  fourfold.nn.LSTM
        head    GRU   left: hidden_size 4096 is above 1024, the largest that is faster in torch.float32
    """
    _expect_model("optimize", model)
    report = Report()
    for name, module in model.named_modules():
        found = list(_look_at(name or "(the model)", module))
        for place, kind, now, reason in found:
            entries = report.changed if reason is None else report.left
            entries.append(Entry(place, kind, reason or now))
        if any(reason is None for *_, reason in found):
            module.__class__ = fused_class(type(module))
    return report


def restore(model: nn.Module) -> None:
    """Undoes :func:`optimize`: restores the former class of every module that it changed. Parameters stay as they are,
    so training in between is kept. Also works on copies and parts of an optimised model.

    Raises:
        TypeError: model is not an nn.Module, or is an exported, traced or scripted program.
    """
    _expect_model("restore", model)
    for module in model.modules():
        if isinstance(module, Fused):
            if isinstance(module, Freezable):
                unfreeze(module)
            module.__class__ = _former_class(type(module))


def _former_class(kind: type) -> type:
    if kind in _CLASSES.values() or type(kind) is _Derived:
        return kind.former
    # A class that parametrize or fully_shard derived from ours keeps what it adds.
    bases = tuple(_former_class(base) if issubclass(base, Fused) else base for base in kind.__bases__)
    return type(kind)(kind.__name__.replace("Fused", ""), bases, dict(vars(kind)))


def _expect_model(function: str, model: Any) -> None:
    if isinstance(model, torch.jit.ScriptModule) or not isinstance(model, nn.Module):
        captured = isinstance(model, (torch.jit.ScriptModule, torch.export.ExportedProgram))
        hint = "; it holds operators and no layers: optimise the model, then capture it" if captured else ""
        raise TypeError(f"{function}: expected model to be a torch.nn.Module, but got {type(model).__name__}{hint}")
    if isinstance(model, torch.fx.GraphModule) and any(
        node.op == "call_function" and str(node.target).startswith("aten.") for node in model.graph.nodes
    ):
        raise TypeError(
            f"{function}: expected model to be a module of layers, but got an exported graph, which holds operators; "
            "optimise the model, then export it"
        )


def _look_at(name: str, module: nn.Module) -> Iterator[tuple[str, str, str, str | None]]:
    """The layers of a module that could be changed: name, kind, what each would become, and why it can't, or None."""
    kind = type(module).__name__
    if isinstance(module, (Freezable, Fused)):
        return
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        now = next((f"fourfold.nn.{torchs.__name__}" for torchs in FUSED_LAYERS if isinstance(module, torchs)), "")
        yield name, kind, now, why_layer_is_left(module)
    if isinstance(module, nn.Sequential):
        leaves = leaves_of(module)
        keys, children = [key for key, _ in leaves], [child for _, child in leaves]

        def is_inside(begin: int, end: int) -> bool:
            """Whether a nested Sequential contains all of it, and reports it itself."""
            first, last = keys[begin].split("."), keys[end - 1].split(".")
            return len(first) > 1 and first[0] == last[0]

        stacks = find_stacks(children)
        for stack in stacks:
            if is_inside(stack.begin, stack.end):
                continue
            kind = f"Linear-{stack.activation} {sizes_of(stack.layers)}"
            reason = why_stack_is_left(module, stack, children)
            now = "one operator" + (" where dropout is off, as in eval mode" if has_dropout(stack, children) else "")
            yield f"{name}[{keys[stack.begin]}:{keys[stack.end - 1]}]", kind, now, reason
        for unfused in find_unfused(children, stacks):
            if is_inside(unfused.begin, unfused.end):
                continue
            place = f"{name}[{keys[unfused.begin]}:{keys[unfused.end - 1]}]"
            yield place, unfused.kind, "", unfused.reason
