"""``python -m fourfold explain``: what torch.compile(backend="fourfold") does with a function, as text and as a
page."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import fourfold
from fourfold import _native
from fourfold.cli.usage import MOST, Parser, UsageError, expect_module, output_file
from fourfold.explaining import Explanation

TEXT = """\
Compile a function with torch.compile(backend="fourfold"), call it once with random tensors, and print the result: the
programs, the operators that torch still runs and why, and the bytes moved. Small functions also show their graphs,
large ones with --detail. --time adds the time of each stage, and --save writes an HTML page that opens without a
network.

For a file that fourfold.save wrote, print the graph and the programs."""

EXAMPLES = """\
examples:
  python -m fourfold explain waves:power --shapes 1000              power(x) of waves.py, in this directory
  python -m fourfold explain waves:power --shapes 16x128 --save power.html
  python -m fourfold explain package.models:block --shapes 8x64 --shapes 64 --dtype bfloat16 --no-grad
  python -m fourfold explain torch.nn.functional:gelu --shapes 1000 --time
  python -m fourfold explain model.ff"""

SUFFIX = ".ff"
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool")


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    text = "show what torch.compile does with a function"
    parser = commands.add_parser("explain", help=text, description=TEXT, epilog=EXAMPLES)
    what = "a function or an nn.Module instance in a Python module; or a saved model, *.ff"
    parser.add_argument("function", metavar="MODULE:FUNCTION", help=what, action=FunctionOrFile)
    shapes = "shape of an argument, such as 16x128, or scalar; repeat it for each argument"
    parser.add_argument("--shapes", type=shape, action="append", required=True, metavar="SHAPE", help=shapes)
    dtype = f"dtype of the arguments: {', '.join(DTYPES)} (%(default)s)"
    parser.add_argument("--dtype", choices=DTYPES, default="float32", metavar="NAME", help=dtype)
    grad = "whether the arguments require a gradient (default: if their dtype supports it)"
    parser.add_argument("--grad", action=argparse.BooleanOptionalAction, help=grad)
    detail = "print every stage of a large function instead of a summary"
    parser.add_argument("--detail", action="store_true", help=detail)
    nest = "also print each program's loop nest: as C++, as LLVM IR or as assembly"
    parser.add_argument("--nest", choices=("c", "llvm", "assembly"), metavar="FORM", help=nest)
    time = "also compile it several times and call it up to a hundred times to time each stage"
    parser.add_argument("--time", action="store_true", help=time)
    parser.add_argument("--save", type=output_file, metavar="FILE", help="also write an HTML page to FILE")
    parser.set_defaults(run=run)


class FunctionOrFile(argparse.Action):
    """The argument; a file needs no shapes."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: str, _: object) -> None:
        setattr(namespace, self.dest, values)
        if values.endswith(SUFFIX):
            for action in parser._actions:
                action.required = False


def shape(text: str) -> tuple[int, ...]:
    words = [] if text == "scalar" else text.replace("×", "x").split("x")
    sizes = tuple(int(word) if word.isdecimal() and len(word) < 16 else -1 for word in words)
    if any(not 0 <= size <= MOST for size in sizes):
        raise argparse.ArgumentTypeError(f"expected sizes such as 16x128, or scalar, but got {text!r}")
    return sizes


def run(options: argparse.Namespace) -> int:
    try:
        _native.expect_library("explain")
    except ImportError as error:
        raise UsageError(str(error)) from None
    if options.function.endswith(SUFFIX):
        return print_model(options.function)
    dtype = getattr(torch, options.dtype)
    if options.grad and not dtype.is_floating_point:
        raise UsageError(f"explain: expected --grad only with a floating-point --dtype, but got {options.dtype}")
    with current_directory_first():
        f = function(options.function)
        generator = torch.Generator().manual_seed(0)
        inputs = [random(sizes, dtype, generator) for sizes in options.shapes]
        if dtype.is_floating_point:
            inputs = [tensor.requires_grad_(options.grad is not False) for tensor in inputs]
        expect_arguments(options.function, f, inputs)
        explanation = fourfold.explain(f, *inputs, timing=options.time)
    print(explanation.detail() if options.detail else explanation)
    if options.nest is not None:
        print_nests(explanation, options.nest)
    if options.save is not None:
        explanation.save(options.save)
        print(f"\nPage: {options.save}")
    return 0


def print_nests(explanation: Explanation, form: str) -> None:
    show = {"c": explanation.nest, "llvm": explanation.llvm, "assembly": explanation.assembly}[form]
    several = len(explanation.graphs) > 1
    parts = [(half, {"graph": graph}, f" of graph {graph}" * several) for graph, half in explanation.halves]
    parts += [
        (half, {"scan": number}, f" of scan {number}")
        for number, scan in enumerate(explanation.scans)
        for half in scan.halves
    ]
    for half, where, of in parts:
        for number, program in enumerate(half.programs):
            print(f"\n{program.name} of the {half.name}{of}")
            try:
                print(show(half.name, number, **where))
            except (ValueError, ImportError) as error:
                print(str(error).removeprefix("explain: "))


def random(sizes: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(sizes, generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 10, sizes, generator=generator).to(dtype)


@contextlib.contextmanager
def current_directory_first() -> Iterator[None]:
    """Puts the current directory first, like python -m, also when this is called in another way."""
    path = sys.path[:]
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11
        sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = path


def function(name: str) -> Callable[..., Any]:
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise UsageError(f"explain: expected a function as module:function, but got {name!r}")
    expect_module("explain", module)
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        if not hasattr(value, part):
            raise UsageError(f"explain: expected a function of {module}, but it has no {path!r}")
        value = getattr(value, part)
    if not callable(value) or isinstance(value, type):
        kind = "class" if isinstance(value, type) else type(value).__name__
        raise UsageError(f"explain: expected a function or a module's instance, but {name} is a {kind}")
    return value


def expect_arguments(name: str, f: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> None:
    try:
        signature = inspect.signature(getattr(f, "forward", f))
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*inputs)
    except TypeError as error:
        given = f"{len(inputs)} of --shapes"
        raise UsageError(
            f"explain: expected a shape for each argument of {name}{signature}, but got {given}: {error}"
        ) from error


def print_model(path: str) -> int:
    try:
        print(fourfold.load(path))
    except FileNotFoundError:
        raise UsageError(f"explain: expected a model that fourfold.save wrote, but there is no file {path}") from None
    except ValueError as error:
        raise UsageError(f"explain: {error}") from None
    return 0
