"""Writes docs/compiler_alone.md: torch.compile(backend="fourfold") against eager for functions of a single operator.

Each operator is timed for each dtype at three sizes, forward and forward with backward, on one thread:

    OMP_NUM_THREADS=1 python scripts/operators_alone.py --part 1/12   # ... 12/12, each within 100 s
    python scripts/operators_alone.py --quick                         # a few minutes: float32, 1e5, fewer rounds
    python scripts/operators_alone.py --write                         # the page, from all parts
    python scripts/operators_alone.py --check                         # whether the page has every operator

Prints the rows below the floor, the slowest first. The clock is the thread's processor time, so that other programs on
the machine disturb it little; calls are timed in turns, in a rotated order, and the shortest block counts.

The timed callable is the one that the backend returns to Dynamo, without Dynamo's guards, which cost the same for
every backend. Programs run as loop nests from the first call on (FOURFOLD_GENERATOR=llvm, unless it is set).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

os.environ.setdefault("FOURFOLD_GENERATOR", "llvm")
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from alone_cases import CASES, DTYPES, SIZES, Case  # noqa: E402
from compiler_samples import module_of  # noqa: E402
from fourfold.compiler.pipeline.entry import backend  # noqa: E402

PAGE = ROOT / "docs" / "compiler_alone.md"
RESULTS = ROOT / "build" / "operators_alone"
FLOOR = 0.95  # of eager's speed, from 1e5 elements on
ROUNDS = 15
AGAIN = 3  # how often a row below the floor is timed again, with more rounds each time
BLOCK = 4e-4  # minimum seconds of a block of calls between two readings of the clock

Row = tuple[str, str, int, bool, float, float, float]  # name, dtype, size, trained, ratio, seconds of both


def seconds_of(function: Callable[[], object], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        function()
    return (time.thread_time() - start) / calls


def compared(eager: Callable[[], object], ours: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Seconds of each: the shortest of many blocks of calls, taken in turns, each first in every other round."""
    for function in (eager, ours, eager, ours):
        function()
    calls = max(1, int(BLOCK / max(seconds_of(eager, 2), 1e-7)))
    found = {eager: [], ours: []}
    for turn in range(rounds):
        for function in (eager, ours)[:: -1 if turn % 2 else 1]:
            found[function].append(seconds_of(function, calls))
    return min(found[eager]), min(found[ours])


def trained(function: Callable[..., object], tensors: Sequence[Tensor]) -> Callable[[], object]:
    leaves = [x for x in tensors if x.requires_grad]
    outputs = [y for y in function(*tensors) if y.requires_grad]
    ones = [torch.ones_like(y) for y in outputs]

    def step() -> object:
        given = [y for y in function(*tensors) if y.requires_grad]
        return torch.autograd.grad(given, leaves, ones, allow_unused=True)

    return step


def calls_of(case: Case, dtype: torch.dtype, size: int, has_gradient: bool) -> tuple[Callable[[], object], ...]:
    torch.manual_seed(0)
    tensors = case.draw(size, dtype, has_gradient)
    call = case.call
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with tracing(TracingContext(mode)):  # as in Dynamo
        fakes = [mode.from_tensor(x, static_shapes=True) for x in tensors]
        compiled = backend(module_of(call, len(tensors)), fakes)
    if has_gradient:
        return trained(call, tensors), trained(compiled, tensors)
    return (lambda: call(*tensors)), (lambda: compiled(*tensors))


def row_of(name: str, case: Case, dtype: torch.dtype, size: int, has_gradient: bool) -> Row:
    eager, ours = calls_of(case, dtype, size, has_gradient)
    theirs, own = compared(eager, ours, ROUNDS)
    for k in range(AGAIN):
        is_clear = theirs >= FLOOR * 1.03 * own or k and theirs < 0.75 * own
        if is_clear or size < SIZES[1]:
            break
        theirs, own = compared(eager, ours, 2 * ROUNDS)
    return name, str(dtype).removeprefix("torch."), size, has_gradient, theirs / own, theirs, own


def gives_its_input(case: Case, dtype: torch.dtype) -> bool:
    """Whether the operator returns its input, as a conversion to the tensor's own dtype does."""
    tensors = case.draw(SIZES[0], dtype, False)
    return any(result.data_ptr() == x.data_ptr() for result in case.call(*tensors) for x in tensors)


def measure(names: Sequence[str], sizes: Sequence[int], dtypes: Sequence[torch.dtype]) -> list[Row]:
    rows = []
    for name in names:
        case = CASES[name]
        for dtype in (d for d in dtypes if d in case.dtypes):
            for size in sizes:
                if gives_its_input(case, dtype):
                    continue
                for has_gradient in (False, True) if dtype in case.trained else (False,):
                    torch._dynamo.reset()
                    rows.append(row_of(name, case, dtype, size, has_gradient))
    return rows


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()}, {torch.backends.cpu.get_cpu_capability()}"
    return "unknown"


def worst(rows: Sequence[Row], size: int, has_gradient: bool) -> str:
    found = [row[4] for row in rows if row[2] == size and row[3] == has_gradient]
    return f"{min(found):.2f}" if found else "-"


def ranges(rows: Sequence[Row]) -> str:
    """Each operator with its slowest and its fastest ratio."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row[4])
    return ", ".join(
        f"`{name}` ({' to '.join(dict.fromkeys(f'{ratio:.2f}' for ratio in (min(own), max(own))))})"
        for name, own in found.items()
    )


def page(rows: Sequence[Row]) -> str:
    names = sorted({row[0] for row in rows})
    columns = [(size, has_gradient) for has_gradient in (False, True) for size in SIZES]
    lines = []
    for name in names:
        own = [row for row in rows if row[0] == name]
        dtypes = ", ".join(dict.fromkeys(row[1] for row in own))
        lines.append(f"| `{name}` | {dtypes} | {' | '.join(worst(own, *column) for column in columns)} |")
    large = sorted((row for row in rows if row[2] >= SIZES[1]), key=lambda row: row[4])
    low = [row for row in large if row[4] < FLOOR]
    shown = "\n".join(
        f"| `{n}` | {d} | {s:,} | {'trained' if t else 'forward'} | {r:.2f} | {a * 1e6:.0f} | {b * 1e6:.0f} |"
        for n, d, s, t, r, a, b in large[: max(12, len(low))]
    )
    text = "\n".join(lines)
    sizes = " | ".join(f"{size:,}" for size in SIZES)
    trained_sizes = " | ".join(f"trained {size:,}" for size in SIZES)
    return f"""# Single operators

The speed of torch.compile(backend="fourfold") relative to eager mode for functions of a single operator: eager's time
divided by the compiled function's, so 1.1 is 10 % faster than eager. One thread, the shortest of interleaved calls,
torch {torch.__version__.partition("+")[0]}, {processor()}. `scripts/operators_alone.py` measures and writes this page.

A single operator falls back to torch's kernel unless its program was at least as fast on every measured processor
([`profitability.py`](../python/fourfold/compiler/analysis/profitability.py)). Compiled functions can still be slower
than eager mode. At {SIZES[0]:,} elements the call takes longer than the computation. Of {len(large)} rows with at least
{SIZES[1]:,} elements, {len(low)} are below {FLOOR}: {ranges(low)}.

## The slowest rows

| operator | dtype | elements | | ratio | eager, us | compiled, us |
|---|---|---|---|---|---|---|
{shown}

## Every operator, with its slowest dtype

| operator | dtypes | {sizes} | {trained_sizes} |
|---|---|---|---|---|---|---|---|
{text}
"""


def part_of(names: list[str], part: str) -> list[str]:
    index, count = map(int, part.split("/"))
    if not 1 <= index <= count:
        raise SystemExit(f"expected a part such as 2/12, but got {part}")
    return names[index - 1 :: count]


def missing() -> list[str]:
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return [name for name in CASES if f"| `{name}` | " not in written]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1/1", help="which of how many slices of the operators to time")
    parser.add_argument("--only", nargs="*", help="these operators alone")
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--dtypes", nargs="*", default=[str(d).removeprefix("torch.") for d in DTYPES])
    parser.add_argument("--quick", action="store_true", help="--dtypes float32 --sizes 100000")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of timed slices")
    parser.add_argument("--write", action="store_true", help="write the page from all timed slices")
    parser.add_argument("--check", action="store_true", help="say which operators the page lacks")
    given = parser.parse_args()
    if given.check:
        lacking = missing()
        print(f"{PAGE.relative_to(ROOT)} lacks {', '.join(lacking)}" if lacking else f"{PAGE.name} has every operator")
        return int(bool(lacking))
    if given.write:
        found: dict[tuple[object, ...], Row] = {}
        for file in sorted(given.results.glob("*.json"), key=lambda file: file.stat().st_mtime):
            found |= {tuple(row[:4]): tuple(row) for row in json.loads(file.read_text(encoding="utf-8"))}
        PAGE.write_text(page([row for row in found.values() if row[0] in CASES]), encoding="utf-8")
        return 0
    names = given.only or part_of(list(CASES), given.part)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.quick:
        given.dtypes, given.sizes = ["float32"], [SIZES[1]]
    rows = measure(names, given.sizes, [getattr(torch, name) for name in given.dtypes])
    given.results.mkdir(parents=True, exist_ok=True)
    label = given.part.replace("/", "_of_") if not given.only else "_".join(given.only)[:80]
    of = "_".join(map(str, (*given.sizes, *given.dtypes)))
    (given.results / f"{label}_{of}.json").write_text(json.dumps(rows), encoding="utf-8")
    for name, dtype, size, has_gradient, ratio, theirs, own in sorted(rows, key=lambda row: row[4]):
        if ratio < FLOOR and size >= SIZES[1]:
            way = "trained" if has_gradient else "forward"
            print(f"{ratio:.2f} {name} {dtype} {size} {way}: {theirs * 1e6:.1f} us, {own * 1e6:.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
