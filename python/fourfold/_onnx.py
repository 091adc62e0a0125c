"""Detects torch.onnx.export: its files hold torch's operators, so fourfold's are exported as their definitions."""

import sys

import torch

_is_exporting = torch.compiler.is_exporting
_is_tracing = torch.jit.is_tracing


def is_exporting() -> bool:
    """Whether torch.onnx.export captures the program, by torch.export or by its older tracer. Dynamo treats the first
    call as a constant, and doesn't trace the rest in what torch.compile captures."""
    return (_is_exporting() or _is_tracing()) and is_under_way()


def is_under_way() -> bool:
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and onnx.is_in_onnx_export()
