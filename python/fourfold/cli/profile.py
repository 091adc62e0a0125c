"""``python -m fourfold profile``: runs a script like python, under fourfold.profiler."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import io
import os
import runpy
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path

from fourfold.cli.usage import Parser, UsageError, expect_module, natural_number, output_file
from fourfold.profiler import profile

TEXT = """\
Run a Python script, or with -m a module, as python does, and print at its end which operators took the time: fourfold's
and torch's, with their dtypes, copies between devices, and fallbacks to the CPU. Options come before the script;
arguments after it belong to the script. The exit code is the script's."""

EXAMPLES = """\
examples:
  python -m fourfold profile train.py --epochs 1
  python -m fourfold profile --trace trace.json train.py     the trace opens in https://ui.perfetto.dev
  python -m fourfold profile -m package.train --epochs 1
  nsys profile python -m fourfold profile train.py           operators as NVTX ranges, in Nsight Systems
  xcrun xctrace record --template 'Metal System Trace' --launch -- python -m fourfold profile train.py"""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    text = "run a script and print which operators take the time"
    usage = "python -m fourfold profile [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    # Without abbreviations, which could be options of the script.
    parser = commands.add_parser(
        "profile", usage=usage, help=text, description=TEXT, epilog=EXAMPLES, allow_abbrev=False
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m does")
    trace = "also write a Chrome trace to FILE, compressed if its name ends in .gz"
    parser.add_argument("--trace", type=output_file, metavar="FILE", help=trace)
    parser.add_argument(
        "--with-stack", action="store_true", help="also record Python source lines in the trace; slower"
    )
    rows = "number of torch's operators in rows of their own; the others are added up (%(default)s)"
    parser.add_argument("--torch-rows", type=natural_number, default=10, metavar="N", help=rows)
    ranges = "emit NVTX or roctx ranges instead of a table (default: under Nsight Systems, unless with --trace)"
    parser.add_argument("--nvtx", action=argparse.BooleanOptionalAction, help=ranges)
    parser.add_argument("command", nargs=argparse.PARSER, metavar="SCRIPT", help="the script and its arguments")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[0] == "--" else options.command  # Python 3.14 removes it
    name, *arguments = command
    if options.trace is not None and options.nvtx:
        raise UsageError("profile: expected --trace or --nvtx, but got both: torch writes no trace with NVTX ranges")
    nvtx = False if options.trace is not None else options.nvtx
    error = None
    with as_python_has_it(name, arguments, options.module):
        try:
            prof = profile(with_stack=options.with_stack, nvtx=nvtx)
            prof._end_first = "python -m fourfold profile runs one; run the script by itself, or remove its own profile"
            prof.__enter__()
        except (RuntimeError, ValueError) as refused:
            raise UsageError(str(refused)) from refused
        try:
            with contextlib.ExitStack() as running:
                running.push(prof.__exit__)
                run_module(name) if options.module else run_script(name)
        except BaseException as raised:
            error = raised
    try:
        print(f"\n{prof.table(options.torch_rows)}", flush=True)
        if options.trace is not None and prof._interrupted:
            raise UsageError("profile: no trace was written, because the script ran a profile of its own")
        if options.trace is not None:
            prof.export_chrome_trace(options.trace)
            print(f"Trace: {options.trace}; https://ui.perfetto.dev shows it", flush=True)
    finally:
        code = ended_by(error)
    return code


def ended_by(error: BaseException | None) -> int:
    """The exit code, after the traceback that python would print. SystemExit and Ctrl-C propagate to their handlers."""
    if error is None:
        return 0
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        raise error
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename in (__file__, runpy.__file__, RUNPY):
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    return 1


RUNPY = "<frozen runpy>"


@contextlib.contextmanager
def as_python_has_it(name: str, arguments: Sequence[str], module: bool) -> Iterator[None]:
    """sys.argv and sys.path as in ``python script.py`` and ``python -m module``, then as they were."""
    argv, path, main = sys.argv, sys.path[:], sys.modules["__main__"]
    sys.argv = [name, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11; without it the current directory comes first
        sys.path[0] = str(Path.cwd() if module else Path(os.path.realpath(name)).parent)
    try:
        if module:
            expect_module("profile", name)
        elif not Path(name).is_file():
            raise UsageError(f"profile: expected a script, but there is no file {name!r}")
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main


def run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_script(name: str) -> None:
    """Like runpy.run_path, which would set a relative __file__ or an absolute sys.argv[0]; python sets the opposite."""
    file = str(Path(name).absolute())
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=file, __builtins__=builtins, __cached__=None, __loader__=SourceFileLoader("__main__", file)
    )
    sys.modules["__main__"] = main
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, main.__dict__)
