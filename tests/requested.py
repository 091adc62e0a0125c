"""The texts and layouts of the nests that this process has requested: the library requests each once."""

from __future__ import annotations

from fourfold.compiler.nest.jit.service import Service

REQUESTED: set[tuple[str, str]] = set()
answer = Service.compile_or_refuse


def noted(self: Service, text: str, layout: str, target: str) -> None:
    REQUESTED.add((text, layout))
    answer(self, text, layout, target)


def note_requests() -> None:
    Service.compile_or_refuse = noted
