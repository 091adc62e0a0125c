"""Runs random programs in the simulator, and compares them with the interpreter.

    python tests/run_random_programs.py LIBRARY FIRST LAST [--record FILE] [--broken NAME] [--wide] [--long]
        [--bits FILE]

LIBRARY is that of tests/simulated.py or tests/simulated_metal.py; FIRST and LAST are seeds. --record appends a line of
JSON for each compiled kernel: program, layout. --broken generates kernels with an error. --wide uses 64-bit indices
where 32 bits are enough. --long generates kernels for rows that are too long for registers, and programs with softmaxes
and variances. --bits writes a digest of all results. Sums of rows and of columns that several warps share come first.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

import simulated_programs
from fourfold.compiler.nest.grid import builder, layout, online, rows
from fourfold.compiler.nest.jit import service
from fourfold.compiler.pipeline.calling import Program
from programs import HEAD
from random_programs import Generator, RandomProgram

# Relative to the largest value: sums run in another order.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 2e-2, torch.float16: 2e-3}
NO_FLOAT64 = ("float32", "float32", "int32", "int64", "boolean")  # the types of Apple's GPUs

# Errors in the generated code: the tests must find each of them.
BROKEN: dict[str, Callable[[], object]] = {
    "barrier": lambda: mock.patch.object(builder.GridBuilder, "barrier", lambda self: None),
    "mask": lambda: mock.patch.object(builder.GridBuilder, "masked", lambda self, op, vector, valid: vector),
    "store": lambda: mock.patch.object(rows.Rows, "row_of", row_without_end),
    "stride": lambda: mock.patch.object(layout.GridLayout, "has_dense_columns", lambda self, tensor: True),
    "chunk": lambda: mock.patch.object(builder.GridBuilder, "sum_of_chunk", sum_of_first_chunk),
    "shift": lambda: mock.patch.object(online.Exponentials, "converted", lambda self, sum, largest, shift: sum),
    "distance": lambda: mock.patch.object(online.Deviations, "with_distance", lambda self, squares, *given: squares),
    # The values stay right, but their bits depend on the order of the threads.
    "order": lambda: mock.patch.object(builder.GridBuilder, "across_parts", in_the_order_of_threads),
}


def row_without_end(self: rows.Rows, first: object, is_present: bool = True) -> tuple[object, None]:
    """Omits the check that the thread has a row."""
    return self.writer.index("+", first, self.own, "row"), None


sum_of_chunk = builder.GridBuilder.sum_of_chunk


def sum_of_first_chunk(self: object, slot: object, number: int, chunk: object, column: object) -> object:
    """Puts the sums of all chunks into one place."""
    return sum_of_chunk(self, slot, number, builder.Constant(0, "index"), column)


def in_the_order_of_threads(
    self: builder.GridBuilder, totals: list, parts: int, per_part: int, part: object, within: object, writes: object
) -> list:
    """Each part adds its totals to those in shared memory when its turn comes, as atomic additions do. In the simulator
    a thread runs on until a barrier."""
    writer, places = self.writer, []
    begin = 0
    for total in totals:
        like, lanes = total.operand, max(total.operand.lanes, 1)
        places.append((self.shared_part(like.type, begin), writer.index("*", within, lanes)))
        first = builder.Constant(builder.identity(total.op, like.type), like.type, like.lanes)
        writer.body.append(builder.Store(first, *places[-1], like.type))
        begin += lanes * per_part
    self.kernel.shared = max(self.kernel.shared, begin * builder.BYTES_OF_PART)

    def read(total: object, place: tuple) -> object:
        like = total.operand
        return writer.let("load", like.type, *place, lanes=like.lanes, attribute=like.type)

    def add() -> None:
        for total, place in zip(totals, places, strict=True):
            sum_so_far = self.combined(total.op, read(total, place), total.operand)
            writer.body.append(builder.Store(sum_so_far, *place, total.operand.type))

    self.barrier()
    if writes is None:
        add()
    else:
        with writer.when(writes):
            add()
    self.barrier()
    found = [read(total, place) for total, place in zip(totals, places, strict=True)]
    self.barrier()
    return found


def sums() -> list[RandomProgram]:
    """Whose bits an order of threads would change, unlike most sums of random programs."""
    torch.manual_seed(0)
    text = "x: float32 = input float32 [a b]\ny: float32 = sum x\noutput y float32"
    return [
        RandomProgram(f"{HEAD}axes a=3 | b=5000\n{text} [a]\n", [torch.randn(3, 5000)]),
        RandomProgram(f"{HEAD}axes b=40 | a=700\n{text} [b]\n", [torch.randn(700, 40)]),
    ]


def is_exact(text: str) -> bool:
    """Whether float64 has its own precision: none is converted from float32, whose elementary functions differ between
    devices."""
    return "to_float64" not in text and "sum_float64" not in text


def differences(got: object, expected: object, exact: bool = True) -> list[str]:
    """exact: whether float64 has its own precision."""
    got, expected = (given if isinstance(given, tuple) else (given,) for given in (got, expected))
    found = []
    for k, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        if mine.shape != theirs.shape or mine.stride() != theirs.stride():
            found.append(f"output {k} has another shape or layout")
        elif not is_near(mine, theirs, exact):
            found.append(f"output {k}, {theirs.dtype} of {tuple(theirs.shape)}, has other values")
    return found


def is_near(mine: Tensor, theirs: Tensor, exact: bool) -> bool:
    mine = mine.cpu()
    if not theirs.dtype.is_floating_point or not theirs.numel():
        return torch.equal(mine, theirs)
    distance = (mine.double() - theirs.double()).abs()
    scale = theirs.double().abs().nan_to_num(0, 0, 0).max().item()
    tolerance = TOLERANCES[theirs.dtype if exact else max(theirs.dtype, torch.float32, key=TOLERANCES.get)]
    return bool(((distance <= tolerance * (1 + scale)) | (mine == theirs) | mine.isnan() & theirs.isnan()).all())


def on_device(given: object, device: str = "cpu") -> object:
    """A copy with the same layout, in memory that is allocated for the device."""
    if not isinstance(given, Tensor):
        return given
    memory = torch.empty(0, dtype=torch.uint8).set_(given.untyped_storage()).to(device, copy=True).untyped_storage()
    made = torch.empty(0, dtype=given.dtype, device=device)
    return made.set_(memory, given.storage_offset(), given.shape, given.stride())


def digest_of(results: list[object]) -> str:
    digest = hashlib.sha256()
    for result in results:
        for tensor in result if isinstance(result, tuple) else (result,):
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def change_layouts(pattern: str, to: str) -> None:
    """The sizes that a call passes to kernels stay the same."""
    of = layout.GridLayout.of
    mock.patch.object(layout.GridLayout, "of", lambda text: of(re.sub(pattern, to, text))).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    for name in ("--record", "--bits"):
        parser.add_argument(name)
    parser.add_argument("--broken", choices=BROKEN)
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--long", action="store_true")
    given = parser.parse_args()
    is_metal = "metal" in given.library
    types = NO_FLOAT64 if is_metal else ("float64", *NO_FLOAT64)
    cases = {f"sum {k}": program for k, program in enumerate(sums())}
    cases |= {f"seed {k}": Generator(k, types, given.long).program() for k in range(given.first, given.last)}
    expected = [Program(case.text, "interpreted", 0)(*case.arguments) for case in cases.values()]
    simulated_programs.serve(given.library, given.record)
    if given.broken:
        BROKEN[given.broken]().start()
    if given.wide:
        change_layouts("wide=0", "wide=1")
    if given.long:
        change_layouts(r"each=\d+", "each=0")
    wrong, results = [], []
    for (name, case), right in zip(cases.items(), expected, strict=True):
        results.append(Program(case.text, "simulated", service.number())(*map(on_device, case.arguments)))
        exact = is_exact(case.text) and not given.long
        wrong += [f"{name}: {what}\n{case.text}" for what in differences(results[-1], right, exact)]
    if service.service.failures:
        sys.exit("\n".join(service.service.failures.values()))
    if given.bits:
        Path(given.bits).write_text(digest_of(results))
    if wrong:
        sys.exit("\n".join(wrong))
    refused = len(service.service.refusals)
    print(f"{given.last - given.first} random programs, {service.service.compiled} layouts, {refused} refused")


if __name__ == "__main__":
    main()
