"""``python -m fourfold objects``: a saved model's loop nests as an object file for C++ programs."""

from __future__ import annotations

import argparse

import torch

from fourfold.cli.usage import Parser, UsageError, output_file, thread_count

TEXT = """\
Compile the loop nests of a saved model into an object file, for C++ programs. A program that links it runs the model's
programs as fast as Python, which compiles them while it runs; without it they are interpreted. The results are the
same, bit by bit.

The command calls the model to find the nests that its calls use, which depend on the shapes. Call it with every kind of
shape that the program will use; other sizes often share their nests. In the program, fourfold_nests_count() counts
those that it lacks."""

EXAMPLES = """\
examples:
  python -m fourfold objects vad.ff --call 1x512 -o vad.o
  python -m fourfold objects reader.ff --call 1x1x64x300 --call 8x1x64x300 --target x86-64-v3 -o reader.o"""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    text = "compile a saved model's loop nests for C++ programs"
    parser = commands.add_parser("objects", help=text, description=TEXT, epilog=EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a file that fourfold.save wrote")
    parser.add_argument("-o", "--output", type=output_file, required=True, metavar="FILE", help="the object file")
    target = (
        "what to compile for: x86-64-v3 (AVX2), x86-64-v4 (AVX-512), aarch64; repeat it (default: all of this "
        "machine's architecture)"
    )
    parser.add_argument("--target", action="append", default=[], metavar="NAME", help=target)
    call = (
        "shapes of the arguments, or numbers, separated by commas, without constants and a stream's state; repeat it "
        "for other shapes (default: the file's, if none is dynamic)"
    )
    parser.add_argument("--call", action="append", default=[], metavar="SHAPES", help=call)
    threads = "a number of threads to call it with; repeat it (default: 1, and all of this machine)"
    parser.add_argument("--threads", type=thread_count, action="append", default=[], metavar="N", help=threads)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fourfold import _native
    from fourfold.saving.objects import compile_model, targets

    known = targets()
    unknown = [name for name in options.target if name not in known]
    if unknown:
        raise UsageError(f"objects: expected --target to be {' or '.join(known)}, but got {unknown[0]!r}")
    names = list(dict.fromkeys(options.target or known))
    threads = options.threads or sorted({1, torch.get_num_threads()})
    calls = [call.split(",") for call in options.call]
    try:
        _native.expect_library("objects")
        made = compile_model(options.model, [known[name] for name in names], calls, threads)
    except FileNotFoundError:
        raise UsageError(
            f"objects: expected a model that fourfold.save wrote, but there is no file {options.model}"
        ) from None
    except (ImportError, ValueError) as error:
        raise UsageError(str(error)) from None
    options.output.write_bytes(made.code)
    plural = "s" * (made.nests != 1)
    print(f"{options.output}: {made.nests} loop nest{plural} for {' and '.join(names)}, {len(made.code) / 1e3:.0f} kB")
    for reason, count in made.refused.items():
        print(f"without a loop nest, interpreted: {count} ({reason})")
    return 0
