"""Writes docs/compiler_operators.md: which of torch's operators torch.compile(backend="fourfold") fuses, determined by
compiling torch's own samples of them (tests/compiler_operators.py).

    python scripts/operator_table.py            # with --check, only report whether the page is up to date
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.fx import Node

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from compiler_operators import ENTRIES, LEFT, LEFT_OF_INTEGERS, OpInfo, chosen  # noqa: E402
from compiler_samples import Problem  # noqa: E402
from fourfold.compiler.analysis.views import VIEWS  # noqa: E402
from fourfold.compiler.lowering import CONSTANT, POINTWISE, ROWS, decompositions  # noqa: E402
from fourfold.compiler.lowering.decompositions import late  # noqa: E402
from fourfold.compiler.pipeline.record import Half  # noqa: E402
from in_programs import everything_in_programs  # noqa: E402

PAGE = ROOT / "docs" / "compiler_operators.md"
SAMPLES = 6  # per entry
COSTS_NOTHING = VIEWS | CONSTANT.keys() | {torch.ops.aten.detach.default, torch.ops.aten.alias.default}


@dataclass
class Found:
    """Results for the graphs of an entry's samples, forward or backward."""

    graphs: int = 0
    programs: int = 0
    left: set[str] = field(default_factory=set)

    def add(self, half: Half | None) -> None:
        if half is None:
            return
        self.graphs += 1
        self.programs += len(half.compiled.programs)
        self.left |= {name_of(node) for node in half.compiled.nodes if computes(node)}

    def word(self) -> str:
        if not self.graphs:
            return "-"
        if not self.programs:
            return "torch" if self.left else "nothing to compute"
        return "in part" if self.left else "fused"


def computes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target not in COSTS_NOTHING


def name_of(node: Node) -> str:
    return node.target._schema.name.removeprefix("aten::")


def found_of(entry: OpInfo) -> tuple[Found, Found]:
    dtypes = entry.supported_dtypes("cpu")
    dtype = next(dtype for dtype in (torch.float32, torch.int64, torch.complex64) if dtype in dtypes)
    has_gradient = entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
    forward, backward = Found(), Found()
    torch.manual_seed(0)
    for sample in chosen(list(entry.sample_inputs("cpu", dtype, requires_grad=has_gradient)), SAMPLES):
        problem = Problem.of(entry, sample, has_gradient)
        with everything_in_programs():
            function, captured = problem.compiled()
            if has_gradient and captured.backward is None:
                problem.results(function)  # some runtimes compile the backward at its first call
        forward.add(captured.forward)
        backward.add(captured.backward)
    return forward, backward


def line(name: str) -> str:
    forward, backward = found_of(ENTRIES[name])
    left = ", ".join(f"`{operator}`" for operator in sorted(forward.left | backward.left))
    reason = LEFT.get(name, "")
    if name in LEFT_OF_INTEGERS:
        reason = f"integers: {LEFT_OF_INTEGERS[name]}"
    return f"| `{name}` | {forward.word()} | {backward.word()} | {left} | {reason} |"


def bare(target: object) -> str:
    return target._schema.name.partition("::")[2]


def names(targets: Iterable[object], others: Iterable[object] = ()) -> str:
    """With the overload where another list has the name too."""
    repeated = set(map(bare, others))
    found = {
        f"{bare(target)}.{target._overloadname}" if bare(target) in repeated else bare(target) for target in targets
    }
    return ", ".join(f"`{name}`" for name in sorted(found))


def page() -> str:
    lines = "\n".join(map(line, sorted(ENTRIES)))
    lists = [list(targets) for targets in (POINTWISE, ROWS, decompositions(), late(), VIEWS, CONSTANT)]
    pointwise, rows, early, at_neighbours, views, constants = (
        names(own, itertools.chain.from_iterable(other for other in lists if other is not own)) for own in lists
    )
    return f"""# Operators that torch.compile(backend="fourfold") fuses

This page lists the operators that fourfold fuses with their neighbours, and those that torch runs. In a function of a
single operator, torch runs many of them ([compiler_alone.md](compiler_alone.md)). `python scripts/operator_table.py`
generates the page by compiling torch's own samples of its operators, with torch {torch.__version__.partition("+")[0]};
`tests/test_compiler_operators.py` compares the same samples with eager mode.

## Operators in graphs

torch runs all operators that are not in these lists, between the programs. Operators in two lists are named with their
overload. If an overload is in both, the layout, dtype or device of its arguments decides.

Elementwise, over broadcast shapes: {pointwise}.

Reductions, over any dimensions: {rows}.

Decomposed while the graph is traced: {early}.

Decomposed if their pieces fuse with neighbours, and otherwise run by torch: {at_neighbours}.

Index arithmetic: {views}. Constants, which programs materialise where they are needed:
{constants}.

Programs support bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 and float64; torch computes complex
numbers.

## torch's samples

*fused*: programs compute everything in the samples' graphs, in float32 (or in int64, for entries without float32).
*in part*: in some of the samples torch runs the named operators: programs don't support a shape or dimension, or, for
most `sum`s in a backward, the sum over leading dimensions has no operator to fuse with.

| entry of torch's `op_db` | forward | backward | run by torch | reason |
|---|---|---|---|---|
{lines}
"""


def main() -> int:
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    text = page()
    if "--check" in sys.argv[1:]:
        found = "holds the table" if written == text else "differs: run python scripts/operator_table.py"
        print(f"{PAGE.relative_to(ROOT)} {found}")
        return int(written != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
