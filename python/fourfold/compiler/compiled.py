"""A graph that went through the passes, and the Python function that it is where no plan runs it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen

from fourfold.compiler import passes
from fourfold.compiler.fused import Fused, fused_nodes
from fourfold.compiler.passes.plan import Plan, layouts
from fourfold.compiler.support import REFUSAL


class Boxed(CodeGen):
    """A function of one list, which it empties, so that each input's memory goes when it is last read."""

    def gen_fn_def(self, names: list[str], annotation: str, **settings: object) -> str:
        inputs = [name.split(":")[0].split("=")[0].strip() for name in names if name != "self"]
        unpacked = f"\n    {', '.join(inputs)}, = given" if inputs else ""
        return f"def forward(self, given){annotation}:{unpacked}\n    given.clear()"


@dataclass(eq=False)
class Compiled:
    module: GraphModule  # whose graph is what runs
    native: object = None  # fourfold.Graph, once it is needed

    @classmethod
    def of(cls, module: GraphModule, trace: bool = False) -> Compiled:
        module.meta["trace"] = trace
        return cls(passes.run(passes.HALF, module))

    @property
    def nodes(self) -> Sequence[Node]:
        return list(self.module.graph.nodes)

    @property
    def programs(self) -> list[Fused]:
        return [node.target for node in fused_nodes(self.module.graph)]

    @property
    def refusals(self) -> dict[Node, str]:
        """Why operators are left to torch, where a pass decided so."""
        return {node: node.meta[REFUSAL] for node in self.nodes if REFUSAL in node.meta}

    @property
    def outputs(self) -> int:
        return len(self.module.graph.output_node().args[0])

    @property
    def plan(self) -> Plan | None:
        return self.module.meta.get("plan")

    @functools.cached_property
    def layouts(self) -> list[tuple[int, list[int]]]:
        return layouts(self.module.graph.find_nodes(op="placeholder"), self.plan)

    @functools.cached_property
    def run(self) -> Callable[[list[object]], object]:
        """The graph as a Python function, written when it is first called."""

        @functools.cache
        def forward() -> Callable[[list[object]], object]:
            self.module.graph.set_codegen(Boxed())
            self.module.recompile()
            return type(self.module).forward

        def run(given: list[object]) -> object:
            return forward()(self.module, given)

        run._boxed_call = True
        return run
