"""Finds inputs that operators may change in place, such as the rings of a key-value cache.

Functionalization traces ``ring[:, at] = row`` as an operator that copies the ring and writes a row of the copy; at the
end of the graph the whole is copied back into the input. If nothing reads the old values after the operator, its form
in place writes the row into the input, as in eager mode, and neither copy is needed. As everywhere, different inputs
share no memory: AOTAutograd and Dynamo's guards see to that, and exported programs assume it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from fourfold.compiler.analysis.in_place import COPY, given_away, is_new, is_result, readers
from fourfold.compiler.analysis.support import has_lasting_effect
from fourfold.compiler.analysis.writes import SCATTERS, VIEW_OF, Write, memory_of, reads_in_time, write_of
from fourfold.compiler.nodes.fused import flat


@dataclass
class Overwritten:
    """writes: by the node of the result, which is the input. copies: those into inputs that are not needed."""

    writes: dict[Node, Write] = field(default_factory=dict)
    copies: set[Node] = field(default_factory=set)


def overwritten(module: GraphModule) -> Overwritten:
    position = {node: k for k, node in enumerate(module.graph.nodes)}
    found, copies = Overwritten(), module.graph.find_nodes(op="call_function", target=COPY)
    for copy in copies:
        if copy.args[0].op != "placeholder" or sum(other.args[0] is copy.args[0] for other in copies) > 1:
            continue
        writes = chain_of(*copy.args[:2])
        is_private = given_away(module).isdisjoint(views_of(copy.args[1]))
        if writes and is_private and all(is_safe(node, write, copy, position) for node, write in writes.items()):
            found.writes |= writes
            found.copies.add(copy)
    return found


def chain_of(given: Node, result: Node) -> dict[Node, Write]:
    """The writes that make the result of the input, the last one first; empty if other operators do too."""
    found: dict[Node, Write] = {}
    node = result
    while node is not given:
        if node.target in VIEW_OF:
            found[node] = write_of(node, SCATTERS)
        elif node.target in SCATTERS:
            found[node] = Write(node.args[0], (), node, (), False, node)
        else:
            return {}
        node = found[node].into
    return found


def is_safe(node: Node, write: Write, copy: Node, position: dict[Node, int]) -> bool:
    """Whether nothing reads or changes the old values after this write, and what it writes is not in the same memory,
    or may be."""
    of_input = write.into is copy.args[0]
    readers_of_old = [user for user in readers(write.into) if user not in (node, copy, *write.within)]
    for user in (*readers_of_old, *readers(node)):
        if has_lasting_effect(user) and user is not copy and not is_copied(user, node):
            return False
    # A view of the input that the graph returns shows the new values in any case.
    if any(position[user] > position[node] and not (of_input and user.op == "output") for user in readers_of_old):
        return False
    return reads_in_time(node, write) and (write.operator is None or reads_others(write))


def is_copied(user: Node, node: Node) -> bool:
    """Whether it copies the tensor, or a view of it, into an input of other memory."""
    return user.target is COPY and user.args[0] not in views_of(node) and user.args[0].op == "placeholder"


def reads_others(write: Write) -> bool:
    """Whether no operand but the first one shares the memory into which the operator writes."""
    first, *others = (each for each in flat((write.operator.args, write.operator.kwargs)) if isinstance(each, Node))
    return not any(first is other or write.into in memory_of(other) for other in others)


def views_of(node: Node) -> set[Node]:
    """The nodes that are the tensor or may be views of it."""
    return {node, *(user for user in readers(node) if not is_result(user) and not is_new(user))}
