"""``python -m benchmarks``, from the root of the source tree. The table of suites defines the options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.suites import SUITES, Suite
from fourfold.cli import console
from fourfold.cli.usage import Parser, add_memory_fraction, limit_memory, output_file, positive_integer, thread_count

DESCRIPTION = """\
Time fourfold against other ways to run the same mathematics, all in one process and in turns. Every row is checked
against float64 before anything is timed. Where fourfold is slower, the table shows it and a line below says so."""
EXAMPLES = """\
examples:
  python -m benchmarks all --quick             under five minutes; a trial, not for quoting
  python -m benchmarks all --json zen3.json --plots ."""
DEFAULTS = "with one of them, one table; those left out as in the list's first"


def option(words: str, **settings: Any) -> dict[str, Any]:
    return {"help": words, **settings}


def integer(words: str, **settings: Any) -> dict[str, Any]:
    return option(words, type=positive_integer, metavar="N", **settings)


def some(words: str, **settings: Any) -> dict[str, Any]:
    return option(words, nargs="+", metavar="NAME", **settings)


# argparse's settings of each option. {} in a help text is replaced by the choices.
OPTIONS = {
    "--batch-size": integer("rows"),
    "--input-size": integer("inputs"),
    "--hidden-size": integer("hidden units"),
    "--output-size": integer("outputs"),
    "--time": integer("steps"),
    "--elements": integer("elements, one table for each", nargs="+"),
    "--first": integer("begin with the Nth point (1)"),
    "--points": integer("how many (200; 10 with --quick)"),
    "--seed": integer("what the points are drawn from (1)"),
    "--layer": some("some of {} (all; on a GPU LLTM)", dest="kinds"),
    "--function": some("some of {} (all)", dest="kinds"),
    "--library": some("some of {} (all)", dest="kinds"),
    "--model": some("some of {} (all; GPT-2 with --quick)", dest="kinds"),
    "--dtype": some("one table for each: some of {}"),
    "--device": option("cpu, cuda, cuda:1 or mps (%(default)s)", default="cpu", metavar="NAME"),
    "--threads": integer("CPU threads, one table for each (1 2; 1 with --quick)", nargs="+") | {"type": thread_count},
    "--repeats": integer("samples of each row; below 30 the result is marked as a trial (40; 5 with --quick)"),
    "--quick": option("few repeats, one thread, one size, on a CPU no row that has to be compiled first")
    | {"action": "store_true"},
    "--skip": some("leave out the rows of some of {}", default=()),
    "--json": option("also write every figure, with versions and machine", type=output_file, metavar="FILE"),
    "--plots": option(
        "also draw speed-up against batch, hidden size and sequence length; needs matplotlib", type=Path, metavar="DIR"
    ),
}
SIZES = frozenset(flag for flag, settings in OPTIONS.items() if settings.get("type") is positive_integer) - {
    "--repeats"
}


def build_parser() -> Parser:
    parser = Parser(prog="python -m benchmarks", description=DESCRIPTION, epilog=EXAMPLES)
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    for suite in SUITES:
        add_suite(benchmarks, suite)
    return parser


def add_suite(benchmarks: argparse._SubParsersAction[Parser], suite: Suite) -> None:
    times = f"{suite.times[0].upper()}{suite.times[1:]}." + (f" Against {suite.against}." if suite.against else "")
    commands = [f"python -m benchmarks {suite.name} {options}" for options in dict.fromkeys(("--quick", suite.example))]
    examples = "\n  ".join(["examples:", *(command for command in commands if not command.endswith(" "))])
    parser = benchmarks.add_parser(suite.name, help=suite.title, description=times, epilog=examples)
    groups = {}
    if SIZES & set(suite.flags):
        groups[True] = parser.add_argument_group("sizes", DEFAULTS if "--batch-size" in suite.flags else None)
    groups[False] = parser.add_argument_group("measurement")
    for flag, choices in suite.flags.items():
        if flag == "--memory-fraction":
            add_memory_fraction(groups[False])
            continue
        settings = {**OPTIONS[flag], **({"choices": choices} if choices else {})}
        settings["help"] = settings["help"].replace("{}", ", ".join(choices))
        groups[flag in SIZES].add_argument(flag, **settings)
    sizes = tuple(flag[2:].replace("-", "_") for flag in suite.flags if flag in SIZES)
    parser.set_defaults(run=run_suite, suite=suite.name, size_names=sizes)


def run_suite(arguments: argparse.Namespace) -> int:
    from benchmarks import run
    from benchmarks.request import Request

    request = Request.of(vars(arguments))
    limit_memory(request.suite, request.device, vars(arguments).get("memory_fraction"))
    return run.run(request)


def main(arguments: Sequence[str] | None = None) -> int:
    return console.run(build_parser(), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
