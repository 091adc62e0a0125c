"""Converts the recording of torch.profiler to calls, and to the work that they launched on a device, for the table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch.autograd import DeviceType

Kind = Literal["operator", "autograd", "region", "part"]
OPERATOR = re.compile(r"\w+::\w+")
ENGINE = "autograd::engine::"
PLAIN_NODE = re.compile(r"\w+Backward\d+|torch::autograd::\w+|fourfold_\w+")  # nodes that only call operators


class Operand(NamedTuple):
    """A tensor argument of a call; each element of a list is one."""

    device: torch.device
    dtype: torch.dtype
    elements: int


class Work(NamedTuple):
    """A kernel, copy or fill that ran on a device of this type. call: the id of the call that launched it, else 0."""

    call: int
    device: str
    name: str
    nanoseconds: int


@dataclass
class HostCall:
    """Something that the host ran: an operator; a node of autograd or its engine; a named region; or a part of one of
    these that torch records under a name."""

    id: int
    name: str
    nanoseconds: int  # on the host, including its calls
    kind: Kind = "operator"
    operands: tuple[Operand, ...] = ()
    calls: list[HostCall] = field(default_factory=list)


def calls_of(result: Any) -> list[HostCall]:
    """The outermost calls of a result of torch's profiler, recorded with shapes. Python frames and calls of the
    driver's library are replaced by the calls within them."""
    outermost: list[HostCall] = []
    events = [(event, outermost) for event in reversed(result.experimental_event_tree())]
    while events:  # not recursive: with Python frames the tree is as deep as the stack
        event, siblings = events.pop()
        tag, fields = event.typed
        if tag.name == "TorchOp":
            kind = kind_of(event.name, fields.scope.name)
            operands = tuple(_operands(fields.inputs))
            call = HostCall(event.correlation_id, event.name, event.duration_time_ns, kind, operands)
            siblings.append(call)
            siblings = call.calls
        events += [(child, siblings) for child in reversed(event.children)]
    return outermost


def kind_of(name: str, scope: str) -> Kind:
    """scope: the name of torch's RecordScope. A custom or compiled autograd node counts as an operator: its time is
    that of its own code."""
    if scope == "USER_SCOPE":
        return "region"
    if scope == "BACKWARD_FUNCTION":
        return "autograd" if PLAIN_NODE.fullmatch(name) else "operator"
    if name.startswith(ENGINE):
        return "autograd"
    return "operator" if OPERATOR.fullmatch(name) else "part"


def _operands(inputs: list[Any]) -> Iterator[Operand]:
    for value in inputs:
        if isinstance(value, list):
            yield from _operands(value)
        elif hasattr(value, "sizes"):
            yield Operand(value.device, value.dtype, math.prod(value.sizes))


def work_of(result: Any) -> list[Work]:
    """The work on devices other than the CPU that torch's profiler records: none on MPS."""
    return [
        Work(event.linked_correlation_id(), device_of(event.device_type()), event.name(), event.duration_ns())
        for event in result.events()
        if event.device_type() != DeviceType.CPU and not event.is_user_annotation()
    ]


def device_of(kind: DeviceType) -> str:
    """The device type's name in torch."""
    return "cuda" if kind == DeviceType.HIP else kind.name.lower()
