"""A pytest plugin that writes each test's outcome at once, so that an interrupted run keeps its results.

    PYTHONPATH=scripts python -m pytest -p gpu_results --results FILE

FILE gets a line of JSON for each relevant phase of a test: {"test": ..., "outcome": ...}.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, metavar="FILE", help="write each test's outcome to FILE")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--results")
    if path is not None and not hasattr(config, "workerinput"):  # with pytest-xdist the main process gets all reports
        config.pluginmanager.register(Results(path))


class Results:
    def __init__(self, path: Path) -> None:
        self.file = path.open("w", encoding="utf-8", buffering=1)  # line-buffered

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.file.write(json.dumps({"test": report.nodeid, "outcome": report.outcome}) + "\n")
