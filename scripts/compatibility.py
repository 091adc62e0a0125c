"""Records runs of the tests, and writes docs/compatibility.md from the records.

    python scripts/compatibility.py record        # of a whole `make test`, into build/compatibility; .ci/run does it
    python scripts/compatibility.py               # writes the page; with --check, only reports whether it is up to date

Commit a record by moving it to docs/compatibility. The page also lists the runs of docs/benchmarks.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "tests.xml"  # by pytest
RECORDS, BENCHMARKS = ROOT / "docs" / "compatibility", ROOT / "docs" / "benchmarks"
PAGE = ROOT / "docs" / "compatibility.md"
START, END = "<!-- runs -->\n", "<!-- end -->"


def record(what: str, results: Path) -> dict[str, Any]:
    """The run of which pytest wrote the results: versions, processor, levels, and how many tests passed."""
    sys.path.append(str(ROOT))
    import torch

    from benchmarks import environment
    from fourfold import _C, _native, cpu_capability

    (suite,) = ElementTree.parse(results).getroot().iter("testsuite")
    count = {name: int(suite.get(name, 0)) for name in ("tests", "skipped", "failures", "errors")}
    failed = count["failures"] + count["errors"]
    return {
        "what": what,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": environment.commit(),
        "torch": torch.__version__,
        "calls": _native.path,
        "python": platform.python_version() + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": environment.processor(),
        "levels": _C.build_info()["cpu_levels"],
        "cpu_level": cpu_capability(),
        "passed": count["tests"] - count["skipped"] - failed,
        "skipped": count["skipped"],
        "failed": failed,
    }


def write(found: dict[str, Any], folder: Path) -> Path:
    """One file for each torch, Python, system and processor; a later run replaces an earlier one."""
    words = [found["torch"].partition("+")[0], found["python"], found["platform"], found["cpu_level"], found["what"]]
    path = folder / f"{re.sub(r'[^a-z0-9._]+', '-', '-'.join(words).lower())}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path


def minor(version: str) -> str:
    """2.13 of 2.13.0+cpu, 3.14t of 3.14.1t."""
    return ".".join(version.split(".")[:2]) + ("t" if version.endswith("t") else "")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def rows() -> list[str]:
    lines = []
    for found in map(read, sorted(RECORDS.glob("*.json"))):
        failed = f", **{found['failed']} failed**" if found["failed"] else ""
        counts = f"{found['passed']:,} passed, {found['skipped']} skipped{failed}"
        ran = f"{found['what']}: {counts}; levels {', '.join(found['levels'])}"
        lines.append(line(found, found["processor"], ran, f"{found['date']}, {found['commit']}"))
    by_machine: dict[str, dict[str, Any]] = {}
    for path in sorted(BENCHMARKS.rglob("*.json")):
        found = read(path)
        facts = found.get("environment")
        if facts is not None:
            where = facts.get("gpu", {}).get("name", facts["processor"])
            key = line(facts, where, "", "")
            by_machine.setdefault(key, facts | {"where": where, "ran": []})["ran"].append(
                f"`{found['benchmark']}` {facts['commit'].removesuffix('-dirty')}"
            )
        elif "check" in found:  # of scripts/check_gpu.py
            verdict = "all passed" if found["every_test_passed"] else "some failed, see [GPUs](gpu.md#on-an-h100)"
            ran = f"tests of {len(found['operators'])} operators on the GPU: {verdict}"
            facts = {**found, "python": "", "platform": "Linux x86_64"}
            lines.append(
                line(facts, found["device"], ran, f"{found['date']}, {found['commit'].removesuffix('-dirty')}")
            )
    lines += [
        line(facts, facts["where"], "benchmarks, which compare results with torch's", ", ".join(facts["ran"]))
        for facts in by_machine.values()
    ]
    return sorted(lines)


def line(facts: dict[str, Any], processor: str, ran: str, when: str) -> str:
    versions = f"{minor(facts['torch'])} | {minor(facts['python']) or 'not recorded'}"
    return f"| {versions} | {facts['platform']}: {processor} | {ran} | {when} |"


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"compatibility: expected {PAGE.name} to have {START.strip()} and {END}")
    head = ["", "| torch | Python | machine | what ran | when, or at which commit |", "|---|---|---|---|---|"]
    return before + START + "\n".join([*head, *rows(), "", ""]) + END + after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["record"])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--what", default="all tests")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.command == "record":
        print(write(record(options.what, options.results), ROOT / "build" / "compatibility"))
    elif not options.check:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        raise SystemExit("docs/compatibility.md differs from its records: run python scripts/compatibility.py")


if __name__ == "__main__":
    main()
