"""Which nodes of a graph a program can read or compute, and which have effects."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler.analysis import profitability
from fourfold.compiler.analysis.views import VIEWS, has_hints
from fourfold.compiler.ir.dtypes import KINDS
from fourfold.compiler.lowering import CONSTANT, POINTWISE, ROWS, fits, refusal
from fourfold.compiler.lowering.call import named
from fourfold.compiler.lowering.supported_by_eager import eager_supports, is_unusual
from fourfold.compiler.nodes.control_flow import RUN
from fourfold.devices import programs

REFUSAL = "refusal"  # in a node's meta: why it is not in a program
IN_LOOP = "in loop"  # in the meta of a loop's body, where even a single operator becomes a program
RANDOM = torch.Tag.nondeterministic_seeded
EFFECTS: dict[object, bool] = {}  # a cache: whether an operator has an effect other than drawing random numbers


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat))


def can_be_held(value: torch.Tensor) -> bool:
    is_strided = not programs.obstacle(value.device.type) and value.layout == torch.strided
    return is_strided and value.dtype in KINDS and has_hints(value)


def device_of(node: Node) -> torch.device | None:
    """The device of its results."""
    return next((value.device for value in results_of(node) if is_tensor(value)), None)


def is_number_elsewhere(value: torch.Tensor, device: torch.device | None) -> bool:
    """Whether a program of that device takes a 0-d CPU tensor as a number, as torch's operators do."""
    return value.device.type == "cpu" and value.dim() == 0 and device is not None and device.type != "cpu"


def can_be_read(node: Node) -> bool:
    """Whether a program can take it as an input: a strided tensor of a supported dtype on a device that runs programs,
    or a number."""
    value = node.meta.get("val")
    return can_be_held(value) if is_tensor(value) else is_number(value)


def results_of(node: Node) -> list[object]:
    """Its traced results without None, which stands for a gradient that is not needed."""
    values = node.meta.get("val")
    return [v for v in values if v is not None] if isinstance(values, (tuple, list)) else [values]


def refuse(node: Node, reason: str) -> bool:
    """Records why a node is left to torch; returns False."""
    node.meta.setdefault(REFUSAL, reason)
    return False


def can_be_computed(node: Node) -> bool:
    """Whether this call of an operator with a lowering can be in a program; otherwise records the reason."""
    results = results_of(node)
    obstacles = (programs.obstacle(value.device.type) for value in results if is_tensor(value))
    obstacle = next(filter(None, obstacles), "")
    if obstacle:
        return refuse(node, obstacle)
    if not results or not all(is_tensor(value) and can_be_held(value) for value in results):
        return refuse(node, "a result that programs don't write, for its dtype, layout or device")
    if not all(can_be_read(operand) for operand in node.all_input_nodes):
        return refuse(node, "an operand that programs don't read, for its dtype, layout, device or origin")
    device = results[0].device
    operands = (each for each in (operand.meta.get("val") for operand in node.all_input_nodes) if is_tensor(each))
    if any(each.device != device and not is_number_elsewhere(each, device) for each in operands):
        return refuse(node, "operands on several devices")
    is_formula = node.target in POINTWISE or node.target in ROWS
    is_tried = is_formula and device.type == "cpu" and is_unusual(node)
    if is_tried and not eager_supports(node.target, node.args, node.kwargs):
        return refuse(node, "dtypes or sizes for which torch raises an error")
    refused = refusal(node.target, results[0].dtype, node.args, node.kwargs) or profitability.slow(node)
    return refused is None or refuse(node, refused)


def is_computed(node: Node, *tables: Container[object]) -> bool:
    """Whether one of the tables has the operator, and a program can compute this call."""
    known = node.op == "call_function" and any(node.target in table for table in tables)
    return known and can_be_computed(node)


def constant_of(node: Node) -> bool | int | float | None:
    """The one number that fills a tensor, if it is known and the dtype can hold it."""
    while node.op == "call_function" and node.target in VIEWS:
        node = node.args[0]
    if node.op != "call_function" or node.target not in CONSTANT:
        return None
    number = CONSTANT[node.target](*node.args, **node.kwargs)
    is_known = isinstance(number, (bool, int, float))
    return number if is_known and fits(number, node.meta["val"].dtype) else None


def has_effect(node: Node) -> bool:
    """Whether it draws random numbers, writes to a tensor or has another effect. Such nodes must keep their order."""
    return has_lasting_effect(node) or draws_numbers(node)


def has_lasting_effect(node: Node) -> bool:
    """Whether it has an effect other than drawing random numbers."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    if node.target in RUN:
        return any(has_lasting_effect(each) for body in bodies_of(node).values() for each in body.graph.nodes)
    if not isinstance(node.target, torch._ops.OpOverload):
        is_known = node.op == "call_function" and not isinstance(node.target, torch._ops.HigherOrderOperator)
        return not is_known or node.is_impure()
    if node.target not in EFFECTS:
        EFFECTS[node.target] = node.target._schema.is_mutable or node.is_impure(impure_random=False)
    return EFFECTS[node.target]


def bodies_of(node: Node) -> dict[Node, GraphModule]:
    """The graphs among the arguments of one of torch's control flow operators."""
    read = [each for each in node.all_input_nodes if each.op == "get_attr"]
    found = {each: getattr(node.graph.owning_module, str(each.target), None) for each in read}
    return {each: body for each, body in found.items() if isinstance(body, GraphModule)}


def draws_numbers(node: Node) -> bool:
    if node.target in RUN:
        return any(draws_numbers(each) for body in bodies_of(node).values() for each in body.graph.nodes)
    is_random = isinstance(node.target, torch._ops.OpOverload) and RANDOM in node.target.tags
    return is_random and not drops_nothing(node)


def drops_nothing(node: Node) -> bool:
    """Whether it draws random numbers only for a dropout, as attention does, and its dropout is 0."""
    given = named(node.target, node.args, node.kwargs).get("dropout_p")
    return isinstance(given, (int, float)) and given == 0
