"""A graph as the Python function that runs it: calls of programs, and of torch's operators for what is left."""

from __future__ import annotations

import functools
import heapq
import keyword
import logging
import operator
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from fourfold.compiler import alone, failures
from fourfold.compiler.building import Built, build, uses_outside
from fourfold.compiler.calling import Program
from fourfold.compiler.fusion import Fusion
from fourfold.compiler.groups import Group
from fourfold.compiler.lowering import CONSTANT, NotFusable
from fourfold.compiler.nodes import keeps_its_place
from fourfold.compiler.options import Options
from fourfold.compiler.selection import choose_earlier
from fourfold.compiler.straight import Straight, layouts, straight
from fourfold.compiler.views import VIEWS, hint, same, shape_of

LONGEST_NAME = 60
COPIES = (torch.ops.aten.clone.default,)
ALIASES = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)
log = logging.getLogger("fourfold.compiler")


@dataclass
class Compiled:
    """What became of a graph: programs, what was left to torch and why, and the function's source."""

    programs: list[Built] = field(default_factory=list)
    left: dict[Node, str] = field(default_factory=dict)
    source: str = ""
    outputs: int = 0
    straight: Straight | None = None
    layouts: list[tuple[int, list[int]]] = field(default_factory=list)
    graph: object = None  # fourfold.Graph, of both, once it is needed
    run: Callable[[list[object]], object] | None = None


def compile_graph(module: GraphModule, options: Options) -> Compiled:
    """The function takes a list of the graph's inputs, which it empties, and gives its outputs."""
    return Generator(module, options).compile()


def name_of(members: list[Node]) -> str:
    """What profilers show: the operators, in their order, as far as they fit."""
    operators = [node.target for node in members if node.target is not operator.getitem]
    words = dict.fromkeys(target._schema.name.split("::")[1] for target in operators)
    name = "fourfold"
    for word in words:
        if len(name) + len(word) > LONGEST_NAME:
            return name + "_etc"
        name += f"_{word}"
    return name


def tidy(module: GraphModule) -> None:
    """What is filled with one number waits for no tensor whose shape it has, and a graph without gradients needs no
    other names for its tensors."""
    for node in list(module.graph.nodes):
        fake = node.meta.get("val")
        if node.target in ALIASES or is_whole(node):
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
        if node.target not in CONSTANT or not node.all_input_nodes or not isinstance(fake, torch.Tensor):
            continue
        number = CONSTANT[node.target](*node.args, **node.kwargs)
        shape = list(fake.shape)
        if isinstance(number, (bool, int, float)) and all(isinstance(s, int) for s in shape) and fake.is_contiguous():
            node.target, node.args = torch.ops.aten.full.default, (shape, number)
            node.kwargs = {"dtype": fake.dtype, "layout": fake.layout, "device": fake.device, "pin_memory": False}


def is_whole(node: Node) -> bool:
    """Whether it is a slice of everything, as the gradient of a concatenation's only part with elements."""
    return node.target == torch.ops.aten.slice.Tensor and all(map(same, shape_of(node), shape_of(node.args[0])))


class Generator:
    def __init__(self, module: GraphModule, options: Options):
        self.module = module
        self.options = options
        self.compiled = Compiled()
        tidy(module)
        choose_earlier(module.graph)
        self.nodes = list(module.graph.nodes)
        self.place = {node: k for k, node in enumerate(self.nodes)}
        self.built: dict[int, Built] = {}
        self.globals: dict[str, object] = {"torch": torch}
        self.names: dict[int, str] = {}

    def compile(self) -> Compiled:
        self.fusion = Fusion.of(self.module.graph, self.options.reductions)
        self.compiled.left.update(self.fusion.failed)
        for unit, group in self.fusion.groups.items():
            self.build(unit, group)
        if self.options.cpu == "cxx":
            from fourfold.compiler.cxx import compile_programs

            compile_programs({name: self.globals[name] for name in self.names.values()})
        steps = self.in_order(self.needed())
        self.compiled.outputs = len(self.nodes[-1].args[0])
        inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.compiled.straight = straight(
            inputs,
            [unit for unit in steps if isinstance(unit, Built) or unit.op not in ("placeholder", "output")],
            lambda built: tuple(self.globals[name] for name in self.called_by(built)),
            self.nodes[-1].args[0],
        )
        self.compiled.layouts = layouts(inputs, self.compiled.straight)
        self.compiled.source = self.source(steps)
        exec(compile(self.compiled.source, "<fourfold>", "exec"), self.globals)
        self.compiled.run = self.globals["run"]
        self.compiled.run._boxed_call = True
        return self.compiled

    def build(self, unit: int, group: Group) -> None:
        members = sorted(group.members, key=self.place.__getitem__)
        outputs = [n for n in members if n not in group.results and uses_outside(group, n, members)]
        ends = [n for n in (*group.joins, *group.totals) if n.users]
        elements = 1
        for size in group.sizes:
            elements *= hint(size)
        if elements < self.options.min_elements:
            self.leave(members + ends, f"fewer than {self.options.min_elements} elements")
        elif all(node.target in COPIES for node in members):
            self.leave(members + ends, "nothing but a copy")
        elif why := alone.reason(members + ends):
            self.leave(members + ends, why)
        elif outputs or ends:
            self.make(unit, group, members, outputs, ends)

    def make(self, unit: int, group: Group, members: list[Node], outputs: list[Node], ends: list[Node]) -> None:
        try:
            built = build(group, members, outputs, ends)
            program = Program(built.program.text(), name_of(built.members))
        except NotFusable as reason:
            self.leave(members + ends, str(reason))
            return
        except Exception as error:
            failures.report(members[0].target, error)
            self.leave(members + ends, f"failed: {error}")
            return
        if self.options.trace:
            log.info("%s", built.program.text())
        name = f"program_{len(self.compiled.programs)}"
        built.source = functools.partial(program.source, name)
        self.compiled.programs.append(built)
        self.built[unit] = built
        self.names[id(built)] = name
        self.globals |= zip(self.called_by(built), (program, failures.Eagerly(built)), strict=True)

    def called_by(self, built: Built) -> tuple[str, str]:
        """The names of a program, and of what does its work where it fails."""
        name = self.names[id(built)]
        return name, f"{name}_eagerly"

    def leave(self, members: list[Node], reason: str) -> None:
        self.compiled.left.update(dict.fromkeys(members, reason))

    # Units that have to run: programs by their number, other nodes by themselves.

    def unit_of(self, node: Node) -> Built | Node:
        return self.built[self.fusion.unit[node]] if self.is_member(node) else node

    def is_member(self, node: Node) -> bool:
        built = self.built.get(self.fusion.unit[node])
        return built is not None and node.op == "call_function" and node.target not in VIEWS

    def operands(self, unit: Built | Node) -> list[Node]:
        return unit.inputs if isinstance(unit, Built) else unit.all_input_nodes

    def needed(self) -> dict[Built | Node, int]:
        """Each with its place in the graph, a program with its last member's."""
        pending = [node for node in self.nodes if node.op in ("placeholder", "output") or keeps_its_place(node)]
        found: dict[int, tuple[Built | Node, int]] = {}
        while pending:
            node = pending.pop()
            unit = self.unit_of(node)
            if id(unit) not in found:
                place = max(self.place[m] for m in unit.members) if isinstance(unit, Built) else self.place[unit]
                found[id(unit)] = unit, place
                pending.extend(self.operands(unit))
        return list(found.values())

    def in_order(self, units: list[tuple[Built | Node, int]]) -> list[Built | Node]:
        """Each after what it reads; else as the graph has them, and those with effects in the graph's order."""
        waiting: dict[int, int] = {}
        users: dict[int, list[tuple[Built | Node, int]]] = {}
        last: Node | None = None
        for unit, place in sorted(units, key=lambda pair: pair[1]):
            sources = {id(self.unit_of(operand)) for operand in self.operands(unit)}
            if isinstance(unit, Node) and keeps_its_place(unit):
                sources |= {id(last)} if last is not None else set()
                last = unit
            waiting[id(unit)] = len(sources)
            for source in sources:
                users.setdefault(source, []).append((unit, place))
        ready = [(place, k, unit) for k, (unit, place) in enumerate(units) if waiting[id(unit)] == 0]
        heapq.heapify(ready)
        ordered = []
        while ready:
            _, _, unit = heapq.heappop(ready)
            ordered.append(unit)
            for user, place in users.get(id(unit), ()):
                waiting[id(user)] -= 1
                if waiting[id(user)] == 0:
                    heapq.heappush(ready, (place, len(ordered) + len(units) + id(user), user))
        if len(ordered) != len(units):
            raise AssertionError("a program waits for itself")
        return ordered

    # The function.

    def source(self, steps: list[Built | Node]) -> str:
        inputs = [node.name for node in self.nodes if node.op == "placeholder"]
        lines = ["def run(args):"]
        if inputs:
            lines.append(f"    {', '.join(inputs)}, = args")
        lines.append("    args.clear()")
        last_use = {node: k for k, unit in enumerate(steps) for node in self.operands(unit)}
        for k, unit in enumerate(steps):
            lines += [f"    {line}" for line in self.lines(unit)]
            made = unit.outputs if isinstance(unit, Built) else [unit]
            over = [node.name for node in dict.fromkeys([*self.operands(unit), *made]) if last_use.get(node, k) == k]
            is_read_later = isinstance(unit, Node) and unit.op == "placeholder" and unit in last_use
            is_output = isinstance(unit, Node) and unit.op == "output"
            if over and not is_output and not is_read_later:
                lines.append(f"    del {', '.join(over)}")
        return "\n".join(lines) + "\n"

    def lines(self, unit: Built | Node) -> list[str]:
        if isinstance(unit, Built):
            return self.program_lines(unit)
        if unit.op == "placeholder":
            return []
        if unit.op == "output":
            return [f"return {self.spell(unit.args[0])}"]
        if unit.op == "get_attr":
            value = self.module
            for part in unit.target.split("."):
                value = getattr(value, part)
            return [f"{unit.name} = {self.named(value, unit.name)}"]
        if unit.op != "call_function":
            raise AssertionError(f"a graph of operators has no {unit.op}")
        words = [self.spell(argument) for argument in unit.args]
        if all(name.isidentifier() and not keyword.iskeyword(name) for name in unit.kwargs):
            words += [f"{name}={self.spell(argument)}" for name, argument in unit.kwargs.items()]
        else:
            words.append(f"**{self.spell(unit.kwargs)}")
        return [f"{unit.name} = {self.called(unit.target)}({', '.join(words)})"]

    def program_lines(self, unit: Built) -> list[str]:
        name, otherwise = self.called_by(unit)
        results = ", ".join(node.name for node in unit.outputs)
        words = ", ".join(node.name for node in unit.inputs)
        return [
            "try:",
            f"    {results} = {name}({words})",
            "except Exception as error:",
            f"    {results} = {otherwise}(error{', ' if words else ''}{words})",
        ]

    def called(self, target: object) -> str:
        if isinstance(target, torch._ops.OpOverload):
            namespace, name = target._schema.name.split("::")
            if name.isidentifier() and not keyword.iskeyword(name):
                return f"torch.ops.{namespace}.{name}.{target._overloadname}"
        return self.named(target, getattr(target, "__name__", "call"))

    def named(self, value: object, hinted: str) -> str:
        base = "".join(c if c.isalnum() else "_" for c in hinted)
        name, count = f"the_{base}", 1
        while name in self.globals and self.globals[name] is not value:
            count += 1
            name = f"the_{base}_{count}"
        self.globals[name] = value
        return name

    def spell(self, value: object) -> str:
        if isinstance(value, Node):
            return value.name
        if isinstance(value, tuple) and type(value) is tuple:
            return f"({', '.join(map(self.spell, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.spell, value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.spell(k)}: {self.spell(v)}' for k, v in value.items())}}}"
        if isinstance(value, slice):
            return f"slice({self.spell(value.start)}, {self.spell(value.stop)}, {self.spell(value.step)})"
        if value is None or isinstance(value, (bool, int, str)) or isinstance(value, float) and value - value == 0:
            return repr(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return repr(value)
        return self.named(value, type(value).__name__)
