"""What the tests of a machine with a GPU prove of each operator, from their report to the file that is kept of it."""

from __future__ import annotations

import datetime
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def count(report: Path, operators: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """How many tests of each operator passed on cuda, and how many failed: those whose parameters name both."""
    passed, failed = Counter[str](), Counter[str]()
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        _, _, parameters = case.get("name", "").partition("[")
        words = parameters.rstrip("]").split("-")
        outcomes = {child.tag for child in case}
        for name in operators:
            if name in words and "cuda" in words and "skipped" not in outcomes:
                (failed if outcomes & {"failure", "error"} else passed)[name] += 1
    return passed, failed


def of(
    device: Mapping[str, Any], passed: Counter[str], failed: Counter[str], commit: str | None, every_test_passed: bool
) -> dict[str, Any]:
    """What scripts/check_backends.py shows as run on hardware: the operators of which no test failed."""
    sound = {name: count for name, count in sorted(passed.items()) if not failed[name]}
    return {
        "check": "gpu",
        "backend": "cuda",
        "device": device["name"],
        **device,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit,
        "every_test_passed": every_test_passed,
        "passed": list(sound),
        "operators": sound,
        "failed": dict(sorted(failed.items())),
    }
