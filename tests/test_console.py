"""The command line as a process: output in ASCII, closed pipes, full disks, Ctrl-C, requests that exceed the
machine."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fourfold.cli import main, usage
from machine import ROOT
from test_cli import TINY_DEMO

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "fourfold"]
LONG = "x" * 300


def error_of(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """The error of a rejected command: one line, and exit code 2."""
    try:
        code = main(list(arguments))
    except SystemExit as stopped:
        code = stopped.code
    error = capsys.readouterr().err
    assert code == 2 and error.count("\n") == 1, error
    return error


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (f"demo --seed {2**63}", f"--seed: expected an integer from 0 on, at most {2**63 - 1}, but got {2**63}"),
        (f"demo --seed {'9' * 5000}", "but got one of 5000 digits"),
        (f"demo --steps {10**15}", f"--steps: expected a positive integer, at most {2**48}, but got {10**15}"),
        ("demo --threads 100000", "--threads: expected a positive integer, at most 1024, but got 100000"),
        ("bench cell --threads 100000", "--threads: expected a positive integer, at most 1024, but got 100000"),
        ("demo --lr 1e300", "--lr: expected a positive number, at most 1e+30, but got '1e300'"),
        ("demo --steps 000", "--steps: expected a positive integer, but got '000'"),
        (f"bench cell --json {LONG}", "--json: expected a file in a directory that exists and can be written to"),
        ("bench cell --json .", "--json: expected a file in a directory that exists and can be written to"),
        (f"demo --out {LONG}", "demo: expected --out to be a directory to write to"),
    ],
)
def test_what_cannot_be_met_is_refused_before_the_run(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert complaint in error_of(capsys, *arguments.split())
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        f"demo --hidden-size {2**48}",
        f"demo --embedding-size {2**47}",
        f"demo --batch-size {2**48}",
        f"bench mlp --hidden-size {2**48}",
        f"bench cell --batch-size {2**48}",
    ],
)
def test_sizes_that_no_memory_holds(
    arguments: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert error_of(capsys, *arguments.split()).startswith("python -m fourfold: expected sizes that fit into memory")


def test_other_errors_of_torch_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: object) -> int:
        raise RuntimeError("expected scalar type Float but found Double")

    monkeypatch.setattr("fourfold.cli.run_info", broken)
    with pytest.raises(RuntimeError, match="scalar type"):
        main(["info"])


def test_a_file_is_not_changed_by_asking_whether_it_can_be_written(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept", tmp_path / "link"
    kept.write_text("text")
    link.symlink_to(tmp_path / "nothing")
    for path in (kept, link, tmp_path / "new"):
        assert usage.why_unwritable(path) is None
    assert kept.read_text() == "text" and link.is_symlink() and len(list(tmp_path.iterdir())) == 2
    assert usage.why_unwritable(Path(os.devnull)) is None
    assert usage.why_unwritable(tmp_path) == "Is a directory"


def test_a_learning_rate_far_too_high(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert main([*TINY_DEMO, "--lr", "1e30", "--out", str(tmp_path)]) == 1
    assert "THE LOSSES DISAGREE" in capsys.readouterr().out


def expect_every_character(output: bytes, times: bytes) -> None:
    assert b"of 2 %b 8 characters" % times in output
    assert b"  | def " in output and b"?" not in output.split(b"writes:")[0]


def test_any_encoding_of_the_output(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [*COMMAND, *TINY_DEMO, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert done.stderr == b""
    expect_every_character(done.stdout, b"x")


@pytest.mark.parametrize(("encoding", "times"), [("ascii", b"x"), ("latin-1", b"\xd7")])
def test_a_stream_that_takes_no_other_characters(
    encoding: str, times: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, errors="strict"))
    assert main([*TINY_DEMO, "--out", str(tmp_path)]) == 0
    expect_every_character(written.getvalue(), times)


def test_a_pipe_that_nobody_reads_on(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, *TINY_DEMO, "--out", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
def test_a_full_disk() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "info"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("python -m fourfold: expected to read and write its files, but the system says: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["fourfold demo --steps 100000", "benchmarks disturbed --repeats 300"])
def test_ctrl_c_ends_it_and_what_it_started(command: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        # A background job may ignore SIGINT, and processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            assert process.stdout.readline()
            time.sleep(1)
            os.killpg(process.pid, signal.SIGINT)
            _, error = process.communicate(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert error == f"python -m {command.split()[0]}: interrupted\n"
    assert process.returncode in (130, -signal.SIGINT)  # the latter if it arrived while a module was imported
