"""The command line: ``python -m fourfold {info,demo,bench}``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import fourfold
from fourfold.usage import (
    Parser,
    UsageError,
    natural_number,
    output_file,
    positive_integer,
    positive_number,
)

DESCRIPTION = """\
fourfold: fused PyTorch operators."""

EXAMPLES = """\
examples:
  python -m fourfold info            what is installed, and what of it this machine can use
  python -m fourfold demo            train a small language model with plain PyTorch and with fourfold, in turns
  python -m fourfold bench cell      one LLTM step against plain PyTorch, C++ and torch.compile
  python -m fourfold bench --help    the benchmarks there are"""

INFO = """\
Print the versions of fourfold, torch and Python, how this fourfold was built, which backends it has and whether
this machine can use them, and which operators have a kernel on which device. Paste it into a bug report."""

INFO_EXAMPLES = """\
examples:
  python -m fourfold info
  python -m fourfold info --json | jq .backends"""

DEMO = """\
Train a character-level language model on the sources of Python's standard library, twice and in turns: with the
LLTM as the PyTorch tutorial writes it, and with fourfold.nn.LLTM. Both start from the same parameters and see the
same text in the same order. Prints whether their losses agree, the speed of both, and a text that the trained model
writes; saves a picture of both. The exit code is 1 when the losses don't agree."""

DEMO_EXAMPLES = """\
examples:
  python -m fourfold demo                                   about a minute on two cores
  python -m fourfold demo --steps 200                       a quick look: the text will be poor
  python -m fourfold demo --hidden-size 512 --steps 4000    a better writer, in its own time
  python -m fourfold demo --threads 1 --out results"""

BENCH = """\
Time fourfold against other ways to run the same mathematics, all in one process and in turns. Numbers are checked
against float64 before anything is timed. Where fourfold is slower, the table shows it and a line below says so."""

BENCH_EXAMPLES = """\
examples:
  python -m fourfold bench cell
  python -m fourfold bench mlp --batch-size 256 --threads 2
  python -m fourfold bench cell --quick --skip inductor
  python -m fourfold bench sequence --device cuda --dtype bfloat16"""

CELL = """\
One step of the LLTM, forward and backward in microseconds, measured as the C++ extension tutorial measures it: batch
16, 32 inputs, 128 hidden units."""

CELL_EXAMPLES = """\
examples:
  python -m fourfold bench cell
  python -m fourfold bench cell --batch-size 1 --hidden-size 512 --threads 1 2 4
  python -m fourfold bench cell --device cuda
  python -m fourfold bench cell --repeats 100 --json cell.json"""

MLP = """\
A perceptron with one hidden layer, forward and backward in microseconds: the ROCm extension tutorial's 5 inputs, 15
hidden units and 1 output."""

MLP_EXAMPLES = """\
examples:
  python -m fourfold bench mlp
  python -m fourfold bench mlp --batch-size 16 --input-size 64 --hidden-size 128 --output-size 10
  python -m fourfold bench mlp --repeats 100 --json mlp.json"""


SEQUENCE = """\
The LLTM over whole sequences, forward and with its gradients, beside nn.LSTM of the same sizes (which has four gates
to the LLTM's three), in microseconds altogether and a step. Without sizes, a list of them."""

SEQUENCE_EXAMPLES = """\
examples:
  python -m fourfold bench sequence
  python -m fourfold bench sequence --batch-size 1 --hidden-size 512 --time 1000 --threads 2
  python -m fourfold bench sequence --device cuda --dtype bfloat16 tf32 --json sequence.json"""

ELEMENTWISE = """\
softshrink and axpby against torch's own one-pass operators and against copying as many bytes, in microseconds and
gigabytes read and written a second. fourfold allocates its result; the row with preallocated output shows what that
costs, which on a CPU is most of a large call."""

ELEMENTWISE_EXAMPLES = """\
examples:
  python -m fourfold bench elementwise
  python -m fourfold bench elementwise --elements 1000 1000000 --threads 1
  python -m fourfold bench elementwise --device cuda --dtype bfloat16"""


def build_parser() -> Parser:
    parser = Parser(prog="python -m fourfold", description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"fourfold {fourfold.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_info(commands)
    add_demo(commands)
    bench = commands.add_parser(
        "bench", help="time fourfold against other ways", description=BENCH, epilog=BENCH_EXAMPLES
    )
    benchmarks = bench.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    add_cell(benchmarks)
    add_mlp(benchmarks)
    add_sequence(benchmarks)
    add_elementwise(benchmarks)
    return parser


def add_info(commands: argparse._SubParsersAction[Parser]) -> None:
    info = commands.add_parser("info", help="versions, backends and operators", description=INFO, epilog=INFO_EXAMPLES)
    info.add_argument("--json", action="store_true", help="print JSON instead of text")
    info.set_defaults(run=run_info)


def add_integer(group: argparse._ArgumentGroup, flag: str, default: int, text: str) -> None:
    group.add_argument(flag, type=positive_integer, default=default, metavar="N", help=f"{text} (%(default)s)")


def add_demo(commands: argparse._SubParsersAction[Parser]) -> None:
    demo = commands.add_parser("demo", help="train a language model twice", description=DEMO, epilog=DEMO_EXAMPLES)
    model = demo.add_argument_group("model")
    add_integer(model, "--hidden-size", 192, "hidden units of the LLTM")
    add_integer(model, "--embedding-size", 32, "numbers that stand for one character")
    training = demo.add_argument_group("training")
    add_integer(training, "--steps", 2000, "optimizer steps of each model, at least 2")
    add_integer(training, "--batch-size", 16, "pieces of text in one step")
    add_integer(training, "--sequence-length", 64, "characters in one piece of text")
    rate = "highest learning rate; it rises over the first tenth of the steps, then falls to 0 (%(default)s)"
    training.add_argument("--lr", type=positive_number, default=1e-2, metavar="X", help=rate)
    seed = "seed of parameters, data order and text sample (%(default)s)"
    training.add_argument("--seed", type=natural_number, default=0, metavar="N", help=seed)
    machine = demo.add_argument_group("machine")
    device = "where both models run: cpu, cuda, cuda:1, mps (%(default)s)"
    machine.add_argument("--device", default="cpu", metavar="NAME", help=device)
    machine.add_argument("--threads", type=positive_integer, metavar="N", help="CPU threads (torch's own choice)")
    out = "where the picture fourfold-demo.png goes; made if missing (the current directory)"
    machine.add_argument("--out", type=Path, default=Path(), metavar="DIR", help=out)
    demo.set_defaults(run=run_demo)


def add_cell(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    cell = benchmarks.add_parser("cell", help="one step of the LLTM", description=CELL, epilog=CELL_EXAMPLES)
    sizes = cell.add_argument_group("sizes")
    add_integer(sizes, "--batch-size", 16, "rows")
    add_integer(sizes, "--input-size", 32, "inputs")
    add_integer(sizes, "--hidden-size", 128, "hidden units")
    add_measurement(cell)
    set_benchmark(cell, "cell", "batch_size", "input_size", "hidden_size")


def add_mlp(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    mlp = benchmarks.add_parser("mlp", help="a small perceptron", description=MLP, epilog=MLP_EXAMPLES)
    sizes = mlp.add_argument_group("sizes")
    add_integer(sizes, "--batch-size", 32, "rows")
    add_integer(sizes, "--input-size", 5, "inputs")
    add_integer(sizes, "--hidden-size", 15, "hidden units")
    add_integer(sizes, "--output-size", 1, "outputs")
    add_measurement(mlp)
    set_benchmark(mlp, "mlp", "batch_size", "input_size", "hidden_size", "output_size")


def add_sequence(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    sequence = benchmarks.add_parser(
        "sequence", help="the LLTM over whole sequences", description=SEQUENCE, epilog=SEQUENCE_EXAMPLES
    )
    sizes = sequence.add_argument_group("sizes", "With one of them, one table; those left out as in the list's first.")
    for flag, text in (("batch", "rows"), ("input", "inputs"), ("hidden", "hidden units")):
        sizes.add_argument(f"--{flag}-size", type=positive_integer, metavar="N", help=text)
    sizes.add_argument("--time", type=positive_integer, metavar="N", help="steps")
    add_dtype(sequence, "float32 tf32 bfloat16 float16")
    add_measurement(sequence)
    set_benchmark(sequence, "sequence", "batch_size", "input_size", "hidden_size", "time")


def add_elementwise(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    elementwise = benchmarks.add_parser(
        "elementwise", help="softshrink and axpby", description=ELEMENTWISE, epilog=ELEMENTWISE_EXAMPLES
    )
    sizes = elementwise.add_argument_group("sizes")
    counts = "elements, one table for each (100,000 to 10 million; on a GPU to 100 million)"
    sizes.add_argument("--elements", type=positive_integer, nargs="+", metavar="N", help=counts)
    add_dtype(elementwise, "float32 bfloat16 float16")
    add_measurement(elementwise)
    set_benchmark(elementwise, "elementwise", "elements")


def set_benchmark(parser: Parser, name: str, *size_names: str) -> None:
    parser.set_defaults(run=run_bench, benchmark=name, size_names=size_names)


def add_dtype(parser: Parser, choices: str) -> None:
    default = f"one table for each (float32; on a GPU {choices.replace(' ', ', ')})"
    parser.add_argument("--dtype", nargs="+", choices=choices.split(), metavar="NAME", help=default)


def add_measurement(parser: Parser) -> None:
    """The options of every benchmark that say how to measure and where the result goes."""
    group = parser.add_argument_group("measurement")
    group.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda or cuda:1 (%(default)s)")
    threads = "CPU threads, one table for each (1 2; 1 with --quick)"
    group.add_argument("--threads", type=positive_integer, nargs="+", metavar="N", help=threads)
    repeats = "samples of each row; below 30 the result is marked as a trial (40; 5 with --quick)"
    group.add_argument("--repeats", type=positive_integer, metavar="N", help=repeats)
    group.add_argument("--quick", action="store_true", help="a quick look: few repeats, one thread, one size")
    skip = (
        "leave out aten (the tutorials' extensions, built once by your compilers) or inductor (torch.compile), or both"
    )
    group.add_argument("--skip", nargs="+", choices=("aten", "inductor"), default=(), metavar="ROW", help=skip)
    file = "also write every figure, with versions and machine, to FILE"
    group.add_argument("--json", type=output_file, metavar="FILE", help=file)


def run_info(arguments: argparse.Namespace) -> int:
    from fourfold import info

    print(info.as_json() if arguments.json else info.as_text())
    return 0


def run_demo(arguments: argparse.Namespace) -> int:
    from fourfold import demo

    if arguments.steps < 2:
        raise UsageError("demo: expected --steps to be at least 2, one to warm up and one to time, but got 1")
    options = vars(arguments).copy()
    del options["run"]
    return demo.run(demo.Options(**options))


def run_bench(arguments: argparse.Namespace) -> int:
    from fourfold import bench

    return bench.run(bench.Request.of(vars(arguments)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for a result that is wrong, 2 for a request that can't be met."""
    parsed = build_parser().parse_args(arguments)
    try:
        return parsed.run(parsed)
    except UsageError as error:
        print(f"python -m fourfold {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("python -m fourfold: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
