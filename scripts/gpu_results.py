"""A pytest plugin that writes each test's outcome when it is known: what a stopped run had shown by then is not lost.

    PYTHONPATH=scripts python -m pytest -p gpu_results --results FILE

FILE gets a line of JSON for each phase of a test that tells something: {"test": ..., "outcome": ...}.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, metavar="FILE", help="write each test's outcome to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--results")
    if path is not None and not hasattr(config, "workerinput"):  # with pytest-xdist the main process hears of all
        config.pluginmanager.register(Results(path))


class Results:
    def __init__(self, path: Path) -> None:
        self.file = path.open("w", encoding="utf-8", buffering=1)  # a line at a time

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.file.write(json.dumps({"test": report.nodeid, "outcome": report.outcome}) + "\n")
