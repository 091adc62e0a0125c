"""``python -m benchmarks``, from the root of the source tree."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.functions import FUNCTIONS
from benchmarks.model_worker import MODELS as MODEL_NAMES
from fourfold.cli import console
from fourfold.cli.usage import (
    Parser,
    add_integer,
    add_memory_fraction,
    limit_memory,
    output_file,
    positive_integer,
    thread_count,
)

BENCH = """\
Time fourfold against other ways to run the same mathematics, all in one process and in turns. Numbers are checked
against float64 before anything is timed. Where fourfold is slower, the table shows it and a line below says so."""

BENCH_EXAMPLES = """\
examples:
  python -m benchmarks all --quick             under three minutes; a trial, not for quoting
  python -m benchmarks all --json zen3.json --plots .
  python -m benchmarks mlp --batch-size 256 --threads 2
  python -m benchmarks sequence --device cuda --dtype bfloat16"""

CELL = """\
One step of the LLTM, forward and backward in microseconds, measured as the C++ extension tutorial measures it: batch
16, 32 inputs, 128 hidden units."""

CELL_EXAMPLES = """\
examples:
  python -m benchmarks cell
  python -m benchmarks cell --batch-size 1 --hidden-size 512 --threads 1 2 4
  python -m benchmarks cell --device cuda
  python -m benchmarks cell --repeats 100 --json cell.json"""

MLP = """\
Small perceptrons, forward and backward in microseconds, as modules and as functions, and what each keeps for the
backward. Without sizes a list of them, which begins with the ROCm extension tutorial's 5 inputs, 15 hidden units and
1 output at batch 32."""

MLP_EXAMPLES = """\
examples:
  python -m benchmarks mlp
  python -m benchmarks mlp --batch-size 16 --input-size 64 --hidden-size 128 --output-size 10
  python -m benchmarks mlp --repeats 100 --json mlp.json"""


SEQUENCE = """\
LLTM, LSTM and GRU over whole sequences, forward and with gradients, in microseconds altogether and a step: beside
torch.nn's layers with the same weights (for the LLTM beside nn.LSTM, which has four gates to its three), plain PyTorch,
and ONNX Runtime where it is installed. Without sizes a list of them, packed sequences of many lengths, and what the
plots are drawn of."""

SEQUENCE_EXAMPLES = """\
examples:
  python -m benchmarks sequence --plots .
  python -m benchmarks sequence --layer GRU --dtype autocast
  python -m benchmarks sequence --batch-size 1 --hidden-size 512 --time 1000 --threads 2
  python -m benchmarks sequence --device cuda --dtype bfloat16 tf32 --json sequence.json"""

ELEMENTWISE = """\
softshrink and axpby against torch's own one-pass operators and against copying as many bytes, in microseconds and
gigabytes read and written a second. All but the copy allocate their result, which on a CPU is most of a large call. On
the CPU first 64 elements, with gradients too, and views and broadcasts; with --elements or --dtype neither."""

ELEMENTWISE_EXAMPLES = """\
examples:
  python -m benchmarks elementwise
  python -m benchmarks elementwise --elements 1000 1000000 --threads 1
  python -m benchmarks elementwise --device cuda --dtype bfloat16"""

STREAM = """\
One step a call at batch 1, in eval mode without gradient, as a program calls that gets its input one piece at a time:
fourfold's LSTM and GRU beside torch.nn's layers and cells, in microseconds."""

STREAM_EXAMPLES = """\
examples:
  python -m benchmarks stream
  python -m benchmarks stream --layer LSTM --hidden-size 256 --threads 1"""

RL = """\
A reinforcement-learning rollout whose sequences start anew where an episode is over: fourfold's one call with a mask of
restarts against torch.nn's layer called step by step with its state masked. Forward, and with gradients."""

RL_EXAMPLES = """\
examples:
  python -m benchmarks rl
  python -m benchmarks rl --batch-size 64 --time 256"""

SWEEP = """\
LSTM and GRU at random points of steps, batch, sizes, dtype, direction, threads, with and without gradients, drawn from
a seed, against torch.nn's layers with the same weights: the median ratio, the worst, and each point that is slower.
Three to six minutes on two cores; --first and --points take a part. Not in all."""

SWEEP_EXAMPLES = """\
examples:
  python -m benchmarks sweep
  python -m benchmarks sweep --first 51 --points 50
  python -m benchmarks sweep --seed 7 --threads 1 --json sweep.json"""

COMPILING = """\
How long torch.compile takes over a model with nn.LLTM, against the length of its sequence: 16 to 4096 steps."""

COMPILING_EXAMPLES = """\
examples:
  python -m benchmarks compiling
  python -m benchmarks compiling --skip inductor"""

DISTURBED = """\
How much slower a sequence on two threads is beside a busy process on one core, and with eight threads asked for under a
quota of one CPU: a control group's, or, where none can be made, by running on one CPU only. Linux."""

DISTURBED_EXAMPLES = """\
examples:
  python -m benchmarks disturbed
  python -m benchmarks disturbed --quick"""

POINTWISE = """\
Functions of elementwise operators and of reductions over rows, forward and with gradients, in microseconds: as they are
written, and under torch.compile with Inductor, with aot_eager and with fourfold's backend. 1,000 to 10 million
elements; then strided arguments, large activations and masked rows beside ordinary numbers, and the largest size with
memory that malloc keeps. With --elements only those sizes, with --function only those functions.
Inductor takes from its cache on disk what it has there: for first calls see cold. Ten minutes on two cores."""

POINTWISE_EXAMPLES = """\
examples:
  python -m benchmarks pointwise
  python -m benchmarks pointwise --quick
  python -m benchmarks pointwise --function sin2_cos2 adam --elements 1000 100000 --threads 1"""

COLD = """\
How long the first call of a compiled function takes in a fresh process, forward and backward, and that of another: in
seconds after `import torch`. As usual with empty caches, and with an empty PATH, without HOME and on a read-only file
system. Of plain PyTorch, and of torch.compile with aot_eager, with Inductor and with fourfold's backend."""

COLD_EXAMPLES = """\
examples:
  python -m benchmarks cold
  python -m benchmarks cold --skip inductor"""

MODELS = """\
Training of a small ViT, GPT-2 and Llama from the package transformers, built from their configurations with random
weights: whether three steps give plain PyTorch's losses, seconds to the first step in a fresh process, and a warm step,
as they are and under torch.compile's backends."""

MODELS_EXAMPLES = """\
examples:
  python -m benchmarks models
  python -m benchmarks models --quick
  python -m benchmarks models --model GPT-2 --threads 1"""

ALL = """\
Every benchmark on the CPU, one after the other, then a summary of all targets: reached, or missed by how much. Half an
hour to 40 minutes on two cores."""

ALL_EXAMPLES = """\
examples:
  python -m benchmarks all --quick
  python -m benchmarks all --json docs/benchmarks/zen3.json --plots docs/benchmarks"""

ONE_TABLE = "With one of them, one table; those left out as in the list's first."
SIZE_WORDS = {
    "--batch-size": "rows",
    "--input-size": "inputs",
    "--hidden-size": "hidden units",
    "--output-size": "outputs",
    "--time": "steps",
}


def build_parser() -> Parser:
    parser = Parser(prog="python -m benchmarks", description=BENCH, epilog=BENCH_EXAMPLES)
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    for add in (add_cell, add_mlp, add_sequence, add_elementwise, add_stream, add_rl, add_pointwise):
        add(benchmarks)
    for add in (add_sweep, add_machine):
        add(benchmarks)
    return parser


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
    sizes = mlp.add_argument_group("sizes", ONE_TABLE)
    add_sizes(sizes, "--batch-size", "--input-size", "--hidden-size", "--output-size")
    add_measurement(mlp)
    set_benchmark(mlp, "mlp", "batch_size", "input_size", "hidden_size", "output_size")


def add_sequence(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    sequence = benchmarks.add_parser(
        "sequence", help="LLTM, LSTM and GRU over whole sequences", description=SEQUENCE, epilog=SEQUENCE_EXAMPLES
    )
    sizes = sequence.add_argument_group("sizes", ONE_TABLE)
    add_sizes(sizes, "--batch-size", "--input-size", "--hidden-size", "--time")
    add_layer(sequence, "LLTM LSTM GRU", "all; on a GPU LLTM")
    default = "float32 and autocast to bfloat16; on a GPU float32, bfloat16, float16, and tf32 where it has it"
    add_dtype(sequence, "float32 tf32 bfloat16 float16 autocast", default)
    add_measurement(sequence)
    add_plots(sequence)
    set_benchmark(sequence, "sequence", "batch_size", "input_size", "hidden_size", "time")


def add_elementwise(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    elementwise = benchmarks.add_parser(
        "elementwise", help="softshrink and axpby", description=ELEMENTWISE, epilog=ELEMENTWISE_EXAMPLES
    )
    sizes = elementwise.add_argument_group("sizes")
    counts = "elements, one table for each (100,000 to 10 million; with CUDA to 100 million)"
    sizes.add_argument("--elements", type=positive_integer, nargs="+", metavar="N", help=counts)
    add_dtype(elementwise, "float32 bfloat16 float16")
    add_measurement(elementwise)
    set_benchmark(elementwise, "elementwise", "elements")


def add_stream(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    stream = benchmarks.add_parser("stream", help="one step a call", description=STREAM, epilog=STREAM_EXAMPLES)
    add_sizes(stream.add_argument_group("sizes", ONE_TABLE), "--input-size", "--hidden-size")
    add_layer(stream, "LSTM GRU", "both")
    add_measurement(stream, gpu=False)
    set_benchmark(stream, "stream", "input_size", "hidden_size")


def add_rl(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    rl = benchmarks.add_parser("rl", help="a rollout with restarts", description=RL, epilog=RL_EXAMPLES)
    sizes = rl.add_argument_group("sizes", "Those left out are batch 8, 64 inputs, 128 hidden units, 128 steps.")
    add_sizes(sizes, "--batch-size", "--input-size", "--hidden-size", "--time")
    add_measurement(rl, gpu=False)
    set_benchmark(rl, "rl", "batch_size", "input_size", "hidden_size", "time")


def add_sweep(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    sweep = benchmarks.add_parser(
        "sweep", help="LSTM and GRU at random sizes", description=SWEEP, epilog=SWEEP_EXAMPLES
    )
    points = sweep.add_argument_group("points")
    points.add_argument("--points", type=positive_integer, metavar="N", help="how many (200; 10 with --quick)")
    points.add_argument("--first", type=positive_integer, metavar="K", help="begin with the Kth point (1)")
    points.add_argument("--seed", type=positive_integer, metavar="SEED", help="what they are drawn from (1)")
    group = sweep.add_argument_group("measurement")
    threads = "CPU threads that points are drawn from (1 2; 1 with --quick)"
    group.add_argument("--threads", type=thread_count, nargs="+", metavar="N", help=threads)
    repeats = "samples of each point, at most 15 (15; 5 with --quick)"
    group.add_argument("--repeats", type=positive_integer, metavar="N", help=repeats)
    add_quick(group)
    add_json(group)
    set_benchmark(sweep, "sweep", "points", "first", "seed")


def add_pointwise(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    pointwise = benchmarks.add_parser(
        "pointwise", help="functions under torch.compile", description=POINTWISE, epilog=POINTWISE_EXAMPLES
    )
    sizes = pointwise.add_argument_group("sizes")
    counts = "elements, one table for each function and number (1,000 to 10 million)"
    sizes.add_argument("--elements", type=positive_integer, nargs="+", metavar="N", help=counts)
    text = f"some of {', '.join(FUNCTIONS)} (all)"
    pointwise.add_argument("--function", dest="kinds", nargs="+", choices=FUNCTIONS, metavar="NAME", help=text)
    add_measurement(pointwise, gpu=False, skip=("inductor", "aot_eager"))
    set_benchmark(pointwise, "pointwise", "elements")


def add_machine(benchmarks: argparse._SubParsersAction[Parser]) -> None:
    """The benchmarks without sizes."""
    compiling = benchmarks.add_parser(
        "compiling", help="torch.compile's time", description=COMPILING, epilog=COMPILING_EXAMPLES
    )
    group = compiling.add_argument_group("measurement")
    add_quick(group)
    add_skip(group, "inductor")
    add_json(group)
    set_benchmark(compiling, "compiling")
    disturbed = benchmarks.add_parser(
        "disturbed", help="a busy neighbour, a quota", description=DISTURBED, epilog=DISTURBED_EXAMPLES
    )
    group = disturbed.add_argument_group("measurement")
    add_repeats(group)
    add_quick(group)
    add_json(group)
    set_benchmark(disturbed, "disturbed")
    cold = benchmarks.add_parser("cold", help="first calls", description=COLD, epilog=COLD_EXAMPLES)
    group = cold.add_argument_group("measurement")
    add_quick(group)
    add_skip(group, "inductor")
    add_json(group)
    set_benchmark(cold, "cold")
    models = benchmarks.add_parser("models", help="training of models", description=MODELS, epilog=MODELS_EXAMPLES)
    text = f"some of {', '.join(MODEL_NAMES)} (all; GPT-2 with --quick)"
    models.add_argument("--model", dest="kinds", nargs="+", choices=MODEL_NAMES, metavar="NAME", help=text)
    group = models.add_argument_group("measurement")
    group.add_argument("--threads", type=thread_count, nargs=1, metavar="N", help="CPU threads (2; 1 with --quick)")
    add_repeats(group)
    add_quick(group)
    add_skip(group, "inductor", "aot_eager")
    add_json(group)
    set_benchmark(models, "models")
    every = benchmarks.add_parser("all", help="all of them", description=ALL, epilog=ALL_EXAMPLES)
    add_measurement(every, gpu=False)
    add_plots(every)
    set_benchmark(every, "all")


def add_sizes(group: argparse._ArgumentGroup, *flags: str) -> None:
    """Sizes that are the benchmark's own where they are not given."""
    for flag in flags:
        group.add_argument(flag, type=positive_integer, metavar="N", help=SIZE_WORDS[flag])


def add_layer(parser: Parser, names: str, default: str) -> None:
    text = f"some of {names.replace(' ', ', ')} ({default})"
    parser.add_argument("--layer", dest="kinds", nargs="+", choices=names.split(), metavar="NAME", help=text)


def add_plots(parser: Parser) -> None:
    text = "also draw speed-up against batch, hidden size and sequence length, as PNG files in DIR; needs matplotlib"
    parser.add_argument("--plots", type=Path, metavar="DIR", help=text)


def set_benchmark(parser: Parser, name: str, *size_names: str) -> None:
    parser.set_defaults(run=run_benchmark, benchmark=name, size_names=size_names)


def add_dtype(parser: Parser, choices: str, default: str = "") -> None:
    text = f"one table for each ({default or 'float32; on a GPU ' + choices.replace(' ', ', ')})"
    parser.add_argument("--dtype", nargs="+", choices=choices.split(), metavar="NAME", help=text)


def add_measurement(parser: Parser, gpu: bool = True, skip: Sequence[str] = ("aten", "inductor")) -> None:
    """The options of most benchmarks that say how to measure and where the result goes."""
    group = parser.add_argument_group("measurement")
    if gpu:
        group.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda, cuda:1 or mps (%(default)s)")
        add_memory_fraction(group)
    threads = "CPU threads, one table for each (1 2; 1 with --quick)"
    group.add_argument("--threads", type=thread_count, nargs="+", metavar="N", help=threads)
    add_repeats(group)
    add_quick(group)
    add_skip(group, *skip)
    add_json(group)


def add_repeats(group: argparse._ArgumentGroup) -> None:
    repeats = "samples of each row; below 30 the result is marked as a trial (40; 5 with --quick)"
    group.add_argument("--repeats", type=positive_integer, metavar="N", help=repeats)


def add_quick(group: argparse._ArgumentGroup) -> None:
    text = "a quick look: few repeats, one thread, one size, on a CPU no row that has to be compiled first"
    group.add_argument("--quick", action="store_true", help=text)


def add_skip(group: argparse._ArgumentGroup, *rows: str) -> None:
    words = {
        "aten": "aten (the tutorials' extensions, built once by your compilers)",
        "inductor": "inductor (torch.compile)",
        "aot_eager": "aot_eager (torch.compile without generated code)",
    }
    text = f"leave out {' or '.join(words[row] for row in rows)}" + ", or both" * (len(rows) > 1)
    group.add_argument("--skip", nargs="+", choices=rows, default=(), metavar="ROW", help=text)


def add_json(group: argparse._ArgumentGroup) -> None:
    file = "also write every figure, with versions and machine, to FILE"
    group.add_argument("--json", type=output_file, metavar="FILE", help=file)


def run_benchmark(arguments: argparse.Namespace) -> int:
    from benchmarks import run
    from benchmarks.request import Request

    request = Request.of(vars(arguments))
    limit_memory(request.benchmark, request.device, vars(arguments).get("memory_fraction"))
    return run.run(request)


def main(arguments: Sequence[str] | None = None) -> int:
    return console.run(build_parser(), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
