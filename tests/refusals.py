"""Shared by the tests of rejected input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

T = torch.zeros


def sentence_of(function: Any, args: tuple, kind: type) -> str:
    with pytest.raises(kind) as raised:
        function(*args)
    return str(raised.value)


def refusal_id(value: Any) -> str | None:
    return value.split(",")[0][:40] if isinstance(value, str) else None
