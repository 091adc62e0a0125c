"""A compiled graph, and the Python function that runs it if it has no plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen

from fourfold import _native
from fourfold.compiler import passes
from fourfold.compiler.analysis.support import REFUSAL
from fourfold.compiler.nodes.fused import Fused, fused_nodes
from fourfold.compiler.options import Options
from fourfold.compiler.passes.plan import Plan, layouts


class Boxed(CodeGen):
    """torch's boxed calling convention: a function of one list, which it empties so that inputs are freed after their
    last use."""

    def gen_fn_def(self, names: list[str], annotation: str, **settings: object) -> str:
        inputs = [name.split(":")[0].split("=")[0].strip() for name in names if name != "self"]
        unpacked = f"\n    {', '.join(inputs)}, = given" if inputs else ""
        return f"def forward(self, given){annotation}:{unpacked}\n    given.clear()"


@dataclass(eq=False)
class Compiled:
    module: GraphModule  # its graph is the one that runs
    native: object = None  # the fourfold.Graph, created on demand

    @classmethod
    def of(cls, module: GraphModule, options: Options | None = None, first: Sequence[passes.Pass] = ()) -> Compiled:
        """first: passes before those that every graph goes through."""
        module.meta["options"] = options or Options()
        return cls(passes.run((*first, *passes.FUSION), module))

    @property
    def nodes(self) -> Sequence[Node]:
        return list(self.module.graph.nodes)

    @property
    def programs(self) -> list[Fused]:
        return [node.target for node in fused_nodes(self.module.graph)]

    @property
    def refusals(self) -> dict[Node, str]:
        """Why passes left operators to torch."""
        return {node: node.meta[REFUSAL] for node in self.nodes if REFUSAL in node.meta}

    @property
    def outputs(self) -> int:
        return len(self.module.graph.output_node().args[0])

    @property
    def plan(self) -> Plan | None:
        return self.module.meta.get("plan")

    @property
    def updates(self) -> Mapping[Node, Node]:
        """The copies into inputs that programs make unnecessary, each with the result that is written in place."""
        return {} if self.plan is None or _native.module is None else self.plan.updates

    @property
    def overwritten(self) -> Collection[Node]:
        """The copies into inputs that operators in place make unnecessary."""
        return () if self.plan is None or _native.module is None else self.plan.overwritten

    @property
    def concatenations(self) -> Mapping[Node, Sequence[Node]]:
        """The concatenations into which programs write parts, with these parts."""
        return {} if self.plan is None or _native.module is None else self.plan.concatenations

    @functools.cached_property
    def layouts(self) -> list[tuple[int, list[int], bool]]:
        return layouts(self.module.graph.find_nodes(op="placeholder"), self.plan)

    @functools.cached_property
    def run(self) -> Callable[[list[object]], object]:
        """The graph as a Python function, generated at the first call."""

        @functools.cache
        def forward() -> Callable[[list[object]], object]:
            self.module.graph.set_codegen(Boxed())
            self.module.recompile()
            return type(self.module).forward

        def run(given: list[object]) -> object:
            return forward()(self.module, given)

        run._boxed_call = True
        return run
