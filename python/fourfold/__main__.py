"""The command line: ``python -m fourfold {info,demo,bench}``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import fourfold
from fourfold import _console as console
from fourfold._bench_options import add_bench
from fourfold.usage import (
    Parser,
    UsageError,
    add_integer,
    natural_number,
    positive_number,
    thread_count,
)

DESCRIPTION = """\
fourfold: fused PyTorch operators."""

EXAMPLES = """\
examples:
  python -m fourfold info            what is installed, and what of it this machine can use
  python -m fourfold demo            train a small language model with plain PyTorch and with fourfold, in turns
  python -m fourfold bench all       every operator against other ways to run the same mathematics
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


def build_parser() -> Parser:
    parser = Parser(prog="python -m fourfold", description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"fourfold {fourfold.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_info(commands)
    add_demo(commands)
    add_bench(commands)
    return parser


def add_info(commands: argparse._SubParsersAction[Parser]) -> None:
    info = commands.add_parser("info", help="versions, backends and operators", description=INFO, epilog=INFO_EXAMPLES)
    info.add_argument("--json", action="store_true", help="print JSON instead of text")
    info.set_defaults(run=run_info)


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
    machine.add_argument("--threads", type=thread_count, metavar="N", help="CPU threads (torch's own choice)")
    out = "where the picture fourfold-demo.png goes; made if missing (the current directory)"
    machine.add_argument("--out", type=Path, default=Path(), metavar="DIR", help=out)
    demo.set_defaults(run=run_demo)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for a result that is wrong, 2 for a request that can't be met, and
    a shell's own where Ctrl-C or a closed pipe ended it."""
    console.show_every_character()
    try:
        try:
            parsed = build_parser().parse_args(arguments)
            return parsed.run(parsed)
        finally:
            sys.stdout.flush()  # while what goes wrong can still be told
    except UsageError as error:
        return fail(str(error), 2)
    except KeyboardInterrupt:
        return fail(": interrupted", 130)
    except BrokenPipeError:
        console.give_up_output()
        return 141
    except OSError as error:
        console.give_up_output()
        return fail(f": expected to read and write its files, but the system says: {error}", 2)
    except (MemoryError, RuntimeError) as error:
        if not console.is_out_of_memory(error):
            raise
        return fail(f": expected sizes that fit into memory, but torch says: {console.first_line(error)}", 2)


def fail(sentence: str, code: int) -> int:
    print(f"python -m fourfold{sentence if sentence.startswith(':') else f' {sentence}'}", file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
