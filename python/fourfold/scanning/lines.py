"""The line of the user's code that an error is about, as a part of its message."""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.fx import Node

from fourfold.scanning.capture import ScanCall, code_of

OTHERS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
FRAME = re.compile(r'File "(.+)", line (\d+), in .*\n\s*(.+)')
CLOSING = {"(": ")", "[": "]", "{": "}"}
Frame = tuple[str, int, str]  # file, number and text of a line


def line_of(node: Node, step: object = None) -> str:
    """The line of the step that computes it."""
    return innermost(frames_in(node.meta.get("stack_trace") or ""), step)


def line_of_error(error: Exception, step: object) -> str:
    """The line of the step that Dynamo can't trace."""
    stack: Sequence[traceback.FrameSummary] = getattr(error, "real_stack", None) or ()
    frames = [(frame.filename, frame.lineno or 0, frame.line or "") for frame in stack]
    return innermost(frames or frames_in(str(error)), step)


def frames_in(trace: str) -> list[Frame]:
    return [(file, int(number), text) for file, number, text in FRAME.findall(trace)]


def innermost(frames: Sequence[Frame], step: object) -> str:
    """Of the frames outside torch and this package. A step that only hands on what it is given has none: its first line
    stands for it."""
    own = [frame for frame in frames if not frame[0].startswith(OTHERS)]
    if not own and step is not None:
        code = code_of(step)
        own = [
            (code.co_filename, code.co_firstlineno, linecache.getline(code.co_filename, code.co_firstlineno).strip())
        ]
    if not own:
        return ""
    file, number, text = own[-1]
    rest = f"...{CLOSING[text[-1]]}" if text[-1:] in CLOSING else ""  # of a statement on several lines
    return f" at {file}:{number}, {text + rest!r}"


def hint_of_batch(call: ScanCall) -> str:
    """For a batch-first xs whose batch was taken for the time."""
    rows = {carry.shape[0] for carry in call.carries if carry.dim()}
    if rows != {call.steps} or not any(x.dim() > 1 and x.shape[1] != call.steps for x in call.xs):
        return ""
    return f"; xs has {call.steps} steps, and the carry as many rows: if xs is batch-first, pass dim=1"
