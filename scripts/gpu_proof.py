"""What tests on a GPU prove of each operator: from the test outcomes to the file that is committed."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def outcomes(results: Iterable[Path]) -> dict[str, set[str]]:
    """The outcomes that scripts/gpu_results.py recorded: of each call, and of setup and teardown if they failed or were
    skipped. A truncated last line belongs to a test that had not finished."""
    found: dict[str, set[str]] = {}
    for file in results:
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                said = json.loads(line)
                found.setdefault(said["test"], set()).add(said["outcome"])
    return found


def count(results: Iterable[Path], operators: Sequence[str], where: str) -> tuple[Counter[str], Counter[str]]:
    """How many tests of each operator passed on that device, and how many failed; a test's parameters name both."""
    passed, failed = Counter[str](), Counter[str]()
    for test, said in outcomes(results).items():
        _, _, parameters = test.partition("[")
        words = parameters.rstrip("]").split("-")
        for name in operators:
            if name in words and where in words and "skipped" not in said:
                (failed if "failed" in said else passed)[name] += 1
    return passed, failed


def of(
    backend: str,
    device: Mapping[str, Any],
    passed: Counter[str],
    failed: Counter[str],
    commit: str | None,
    every_test_passed: bool,
) -> dict[str, Any]:
    """The proof that scripts/check_backends.py reads for "run on hardware": the operators of which no test failed."""
    sound = {name: count for name, count in sorted(passed.items()) if not failed[name]}
    return {
        "check": "gpu",
        "backend": backend,
        "device": device["name"],
        **device,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": commit,
        "every_test_passed": every_test_passed,
        "passed": list(sound),
        "operators": sound,
        "failed": dict(sorted(failed.items())),
    }
