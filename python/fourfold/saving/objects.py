"""The loop nests that a saved model's calls use, compiled ahead of time into an object file."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fourfold import _native
from fourfold.compiler.nest.ir.levels import AVX2, AVX512, NEON, Level
from fourfold.compiler.nest.jit import service

ARM = {"aarch64": NEON}
X86 = {"x86-64-v3": AVX2, "x86-64-v4": AVX512}
CALLS = 6  # from the fourth in a row with the same sizes on, a loaded model runs by a plan


def targets() -> Mapping[str, Level]:
    """Those of this machine's architecture, by name."""
    return ARM if platform.machine().lower() in ("aarch64", "arm64") else X86


@dataclass(frozen=True, slots=True)
class Object:
    """code: the object file. nests: how many it has for each target. refused: why programs run without, by reason."""

    code: bytes
    nests: int
    refused: Mapping[str, int]


def compile_model(path: str, levels: Sequence[Level], calls: Sequence[Sequence[str]], threads: Sequence[int]) -> Object:
    """Calls the model in this process and compiles what it runs.

    Args:
        path: of the file that ``fourfold.save`` wrote.
        levels: what to compile for.
        calls: for each call the shapes of the arguments without a state's, such as ``"1x512"``, or numbers; empty if no
            argument has a dynamic size.
        threads: the numbers of threads to call with.

    Raises:
        ImportError: nests can't be compiled here, or this build of fourfold has no module for the installed torch.
        ValueError: a file that can't be loaded, or calls that don't fit it.
    """
    if _native.module is None:
        raise ImportError(
            f"objects: expected fourfold's module for torch {_native.VERSION}, but calls run in {_native.path}"
        )
    if service.obstacle():
        raise ImportError(f"objects: expected loop nests that can be compiled, but {service.obstacle()}")
    import llvmlite.binding as llvm

    from fourfold.compiler.nest.objects import compile_object

    native = _native.module.Model(path, None, [], service.number("llvm"))
    before = len(service.service.nests), len(service.service.refusals)
    try:
        run(native, calls, threads, 0)
    except RuntimeError:  # such as a division by zero
        try:
            run(native, calls, threads, 1)
        except RuntimeError as error:
            raise ValueError(
                "objects: expected a model that takes random numbers, and zeros or ones for integers, but it raises: "
                f"{str(error).partition(chr(10))[0]}"
            ) from error
    found = [(text, layout) for text, layout, _ in service.service.nests[before[0] :]]
    if not found:
        raise ValueError("objects: expected programs that run as loop nests, but these calls run none")
    refused: dict[str, int] = {}
    for reason in list(service.service.refusals.values())[before[1] :]:
        refused[reason] = refused.get(reason, 0) + 1
    return Object(compile_object(found, levels, llvm.get_process_triple()), len(found), refused)


def run(native: object, calls: Sequence[Sequence[str]], threads: Sequence[int], integer: int) -> None:
    """integer: the value of all integers; of booleans, the first is True."""
    graph, *_, state = _native.module.describe_model(native)
    described = json.loads(graph)
    own = {argument for argument, _ in state}
    arguments = [each for k, each in enumerate(described["arguments"]) if k not in own]
    for count in threads:
        torch.set_num_threads(count)
        for words in calls or [shapes_of(arguments)]:
            leaves = list(leaves_of(arguments, words, integer))
            call = _native.module.Stream(native, {}) if state else native
            for _ in range(CALLS):
                call(*leaves)


def shapes_of(arguments: Sequence[Mapping[str, object]]) -> list[str]:
    """Those of a file without dynamic sizes."""
    words = []
    for argument in arguments:
        if "constant" in argument:
            continue
        shape = argument.get("shape")
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            names = ", ".join(str(each["name"]) for each in arguments if "constant" not in each)
            raise ValueError(
                f"objects: expected --call with the shapes of {names}, because {argument['name']} "
                f"{'is a number' if shape is None else 'has a dynamic size'}"
            )
        words.append("x".join(map(str, shape)) or "scalar")
    return words


def leaves_of(
    arguments: Sequence[Mapping[str, object]], words: Sequence[str], integer: int = 0
) -> Iterator[Tensor | float | object]:
    """What a call passes. Sizes are checked by the model."""
    wanted = [each for each in arguments if "constant" not in each]
    if len(words) != len(wanted):
        names = ", ".join(str(each["name"]) for each in wanted)
        raise ValueError(f"objects: expected --call to have a shape for each of {names}, but got {','.join(words)}")
    given = iter(words)
    generator = torch.Generator().manual_seed(0)
    for argument in arguments:
        if "constant" in argument:
            yield constant_of(argument["constant"])
        elif "number" in argument:
            yield number_of(next(given), argument)
        else:
            dtype = getattr(torch, str(argument["dtype"]))
            values = torch.full(sizes_of(next(given), str(argument["name"])), integer).to(dtype)
            values.view(-1)[:1] = 1 if dtype == torch.bool else integer
            yield values.normal_(generator=generator) if dtype.is_floating_point else values


def constant_of(value: object) -> object:
    return float(value["float"]) if isinstance(value, dict) else value


def number_of(word: str, argument: Mapping[str, object]) -> float:
    try:
        return int(word) if argument["number"] == "integer" else float(word)
    except ValueError:
        raise ValueError(f"objects: expected {argument['name']} to be a number, but got {word!r}") from None


def sizes_of(word: str, name: str) -> list[int]:
    sizes = [] if word == "scalar" else word.replace("×", "x").split("x")
    if not all(size.isdecimal() and len(size) < 16 for size in sizes):
        raise ValueError(f"objects: expected {name} to have sizes such as 16x128, or scalar, but got {word!r}")
    return list(map(int, sizes))
