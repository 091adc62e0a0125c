"""The command line: ``python -m fourfold {info,demo,bench,profile,explain,objects,cache}``."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import fourfold
from fourfold import _cmake, demo
from fourfold.cli import bench, cache, explain, info, objects, profile
from fourfold.cli.console import run
from fourfold.cli.usage import (
    Parser,
    add_integer,
    add_machine,
    natural_number,
    output_file,
    positive_integer,
    positive_number,
)

EXAMPLES = """\
examples:
  python -m fourfold info            versions, backends, and what this machine can use
  python -m fourfold demo            train a small language model with plain PyTorch and with fourfold, side by side
  python -m fourfold demo --quick    the same in some ten seconds
  python -m fourfold bench cell      time one step of the LLTM, like PyTorch's C++ extension tutorial
  python -m fourfold bench mlp       time a small MLP, like the ROCm extension tutorial
  python -m fourfold profile run.py  run a script, and print which operators took the time
  python -m fourfold explain run:f --shapes 1000   show what torch.compile(backend="fourfold") does with a function
  python -m fourfold objects model.ff --call 1x512 -o model.o   compile a saved model's loops for a C++ program
  python -m fourfold cache --clear   remove the machine code that FOURFOLD_CACHE keeps
  python -m fourfold --cmake-dir     print the folder for fourfold_DIR in a C++ program's CMake call"""

INFO = """\
Print the versions of fourfold, torch and Python, how this fourfold was built, which backends it has and whether
this machine can use them, and which operators have a kernel on which device. Paste it into a bug report."""

INFO_EXAMPLES = """\
examples:
  python -m fourfold info
  python -m fourfold info --json | jq .backends"""

DEMO = """\
Train a character-level language model on the sources of Python's standard library twice, with interleaved steps:
with the PyTorch tutorial's LLTM, and with fourfold.nn.LLTM. Both start from the same parameters and read the same
text in the same order. Prints whether their losses agree, the speed of both, and a text that the trained model
generates; saves a picture of both trainings. A torch.nn.LSTM of the same size is timed too. The exit code is 1 if
the losses don't agree."""

DEMO_EXAMPLES = """\
examples:
  python -m fourfold demo                                   about a minute on two cores
  python -m fourfold demo --quick                           some ten seconds: is it faster here, and as accurate?
  python -m fourfold demo --hidden-size 512 --steps 4000    a better model, which takes longer
  python -m fourfold demo --threads 1 --out results
  torchrun --nproc-per-node 2 -m fourfold demo              the same training with two processes (DDP)
  torchrun --nproc-per-node 2 -m fourfold demo --fsdp       which also shard the parameters (FSDP2)"""

BENCH = """\
Time fourfold against plain PyTorch, interleaved in one process: cell times one step of the LLTM, like PyTorch's C++
extension tutorial; mlp times the ROCm extension tutorial's MLP. Both implementations are compared with float64 before
anything is timed, and the exit code is 1 if one is wrong. More suites are in the source tree: run python -m benchmarks
--help there."""

BENCH_EXAMPLES = """\
examples:
  python -m fourfold bench cell
  python -m fourfold bench cell --batch-size 1 --hidden-size 512 --threads 1
  python -m fourfold bench mlp --device cuda --dtype bfloat16
  python -m fourfold bench mlp --repeats 100 --json mlp.json"""


class PrintCMakeFolder(argparse.Action):
    """`python -m fourfold --cmake-dir` alone is handled before torch is imported, and does not get here."""

    def __call__(self, *_: object) -> NoReturn:
        raise SystemExit(_cmake.print_folder())


def build_parser() -> Parser:
    parser = Parser(prog="python -m fourfold", description="fourfold: fused PyTorch operators.", epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"fourfold {fourfold.__version__}")
    folder = {"action": PrintCMakeFolder, "nargs": 0, "dest": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    parser.add_argument("--cmake-dir", help="print where CMake finds fourfold", **folder)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_info(commands)
    add_demo(commands)
    add_bench(commands)
    profile.add_to(commands)
    explain.add_to(commands)
    objects.add_to(commands)
    cache.add_to(commands)
    return parser


def add_info(commands: "argparse._SubParsersAction[Parser]") -> None:
    text = "versions, backends and operators"
    parser = commands.add_parser("info", help=text, description=INFO, epilog=INFO_EXAMPLES)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run_info)


def add_demo(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = commands.add_parser("demo", help="train a language model twice", description=DEMO, epilog=DEMO_EXAMPLES)
    model = parser.add_argument_group("model")
    add_integer(model, "--hidden-size", 192, "hidden units of the LLTM")
    add_integer(model, "--embedding-size", 32, "size of a character's embedding")
    training = parser.add_argument_group("training")
    steps = f"optimizer steps of each model, at least 2 ({demo.STEPS}; {demo.QUICK_STEPS} with --quick)"
    training.add_argument("--steps", type=positive_integer, metavar="N", help=steps)
    quick = "train for seconds: prints the losses and the speeds, and neither writes text nor draws"
    training.add_argument("--quick", action="store_true", help=quick)
    add_integer(training, "--batch-size", 16, "sequences in one step")
    add_integer(training, "--sequence-length", 64, "characters in one sequence")
    rate = "highest learning rate; it rises over the first tenth of the steps, then falls to 0 (%(default)s)"
    training.add_argument("--lr", type=positive_number, default=1e-2, metavar="X", help=rate)
    seed = "seed of parameters, data order and text sample (%(default)s)"
    training.add_argument("--seed", type=natural_number, default=0, metavar="N", help=seed)
    machine = parser.add_argument_group("machine")
    add_machine(machine)
    fsdp = "under torchrun: shard parameters and optimizer with FSDP2, where DDP replicates them"
    machine.add_argument("--fsdp", action="store_true", help=fsdp)
    out = "folder of the picture fourfold-demo.png, created if missing (the current directory)"
    machine.add_argument("--out", type=Path, default=Path(), metavar="DIR", help=out)
    parser.set_defaults(run=demo.run)


def add_bench(commands: "argparse._SubParsersAction[Parser]") -> None:
    parser = commands.add_parser("bench", help="time the cell and the MLP", description=BENCH, epilog=BENCH_EXAMPLES)
    parser.add_argument("suite", type=suite, metavar="SUITE", help="cell or mlp")
    sizes = parser.add_argument_group("sizes", "The defaults are the tutorial's.")
    named = {"batch": "rows", "input": "inputs", "hidden": "hidden units", "output": "outputs, of mlp"}
    for name, text in named.items():
        sizes.add_argument(f"--{name}-size", type=positive_integer, metavar="N", help=text)
    machine = parser.add_argument_group("machine")
    add_machine(machine)
    dtypes = ("float32", "float64", "bfloat16", "float16")
    machine.add_argument(
        "--dtype", choices=dtypes, default="float32", metavar="NAME", help=f"{', '.join(dtypes)} (%(default)s)"
    )
    measurement = parser.add_argument_group("measurement")
    add_integer(measurement, "--repeats", 40, "interleaved samples of each implementation")
    file = "also write every figure, with the versions, to FILE"
    measurement.add_argument("--json", type=output_file, metavar="FILE", help=file)
    parser.set_defaults(run=bench.run)


def suite(name: str) -> str:
    if name not in ("cell", "mlp"):
        raise argparse.ArgumentTypeError(
            f"expected cell or mlp, but got {name!r}; the other suites are in fourfold's source tree: python -m "
            "benchmarks --help, run there, lists them"
        )
    return name


def run_info(arguments: argparse.Namespace) -> int:
    facts = info.collect()
    print(json.dumps(facts, indent=2) if arguments.json else info.as_text(facts))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    return run(build_parser(), arguments)
