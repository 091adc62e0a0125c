"""The runs of the case table in the simulator, which take minutes: each is executed once for all files here."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from case_table import METAL, RUNS, Outcome, Run, carry_out

LONGEST = (RUNS[0], METAL)


@pytest.fixture(scope="session")
def outcome_of(request) -> Callable[[Run], Outcome]:
    """Returns a run's outcome. The runs that the selected tests need are executed once each, several in parallel."""
    wanted = []
    for item in request.session.items:
        wanted += getattr(item.function, "runs", ())
        if "run" in getattr(item, "fixturenames", ()):
            wanted.append(item.callspec.params["run"])
    longest_first = sorted(dict.fromkeys(wanted), key=lambda run: (run not in LONGEST, run.sanitizer == "checked"))
    pool = ThreadPoolExecutor(os.cpu_count())
    futures = {run: pool.submit(carry_out, run) for run in longest_first}
    yield lambda run: futures[run].result()
    pool.shutdown(cancel_futures=True)
    carried_out = {run: future for run, future in futures.items() if not future.cancelled() and not future.exception()}
    took = sorted(((future.result().seconds, run.name) for run, future in carried_out.items()), reverse=True)
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", *(f"{seconds:5.0f} s  {name}" for seconds, name in took), sep="\n")
