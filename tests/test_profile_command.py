"""``python -m fourfold profile``: a script runs as under python, and a table follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forked import Forks
from fourfold import profiler
from fourfold.cli import main

pytestmark = pytest.mark.slow

FACTS = """
import pickle, sys, helper
class Mine: ...
main = sys.modules["__main__"]
print([sys.argv[1:], __name__, sys.path[0], __file__, __package__, main.Mine is Mine, helper.WHO])
print(sys.argv[0], type(pickle.loads(pickle.dumps(Mine()))) is Mine, __spec__ and __spec__.name)
"""
WORK = """
import sys, torch, fourfold
print("arguments", sys.argv[1:])
fourfold.softshrink(torch.randn(3, requires_grad=True)).sum().backward()
"""


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *(str(word) for word in command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, env=os.environ | environment)


@pytest.fixture(scope="module")
def profile() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs `python -m fourfold profile` with these arguments, in forks: the first script below also runs without."""
    # The last two take seconds, and torch imports them for a profile.
    forks = Forks("fourfold.cli", "fourfold.profiler", "torch._dynamo", "torch.distributed.tensor")
    yield lambda *arguments, cwd: forks.run("-m", "fourfold", "profile", *arguments, cwd=cwd)
    forks.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Scripts, a package, and a link to one of them from another folder."""
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "facts.py").write_text(FACTS)
    (tmp_path / "inner" / "helper.py").write_text("WHO = 'inner'\n")
    (tmp_path / "helper.py").write_text("WHO = 'outer'\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "inner" / "facts.py")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "inner/facts.py --help -- a -b",
        "inner/facts.py --n 2 --t=1 --with",
        "link.py",
        "-m inner.facts --trace x",
        "-P link.py",
    ],
)
def test_a_script_sees_what_python_shows_it(command: str, folder: Path, profile: Callable) -> None:
    words = command.removeprefix("-P ").split()
    if command.startswith("-P"):
        options, environment = (sys.version_info >= (3, 11)) * ["-P"], {"PYTHONPATH": str(folder)}
        plain = run(*options, *words, cwd=folder, **environment)
        profiled = run(*options, "-m", "fourfold", "profile", *words, cwd=folder, **environment)
    else:
        plain, profiled = run(*words, cwd=folder), profile(*words, cwd=folder)
    assert plain.returncode == profiled.returncode == 0, profiled.stderr
    assert plain.stdout and profiled.stdout.startswith(plain.stdout)


def profiled(*arguments: object) -> int:
    return main(["profile", *(str(argument) for argument in arguments)])


def test_the_table_comes_last(folder: Path, capsys: Any) -> None:
    before = (sys.argv, sys.path[:], sys.modules["__main__"])
    assert profiled("--torch-rows", 0, "--", folder / "work.py", "--epochs", 3) == 0
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["arguments ['--epochs', '3']", ""]
    rows = sorted(line.split()[0] for line in lines if line.startswith("  fourfold::"))  # the table's order is by time
    assert rows == ["fourfold::softshrink", "fourfold::softshrink_backward"]
    assert not any("aten::" in line for line in lines)


def test_the_trace_is_written(folder: Path, capsys: Any) -> None:
    file = folder / "trace.json"
    assert profiled("--trace", file, "--with-stack", folder / "work.py", "--trace", "nowhere/x.json") == 0
    output = capsys.readouterr().out
    assert f"Trace: {file}" in output and "['--trace', 'nowhere/x.json']" in output
    text = file.read_text()
    assert "fourfold::softshrink" in {event["name"] for event in json.loads(text)["traceEvents"]}
    assert "work.py(" in text


@pytest.mark.parametrize(
    ("ending", "code", "error"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('said last')", 1, "said last\n"),
        ("raise KeyboardInterrupt", 130, "python -m fourfold: interrupted\n"),
    ],
)
def test_exit_codes_are_the_scripts(ending: str, code: int, error: str, folder: Path, profile: Callable) -> None:
    (folder / "work.py").write_text(f"{WORK}{ending}\n")
    done = profile("work.py", cwd=folder)
    assert done.returncode == code and without_torchs(done.stderr) == error
    assert "fourfold::softshrink" in done.stdout


def without_torchs(said: str) -> str:
    """Without the lines that torch 2.13's profiler prints itself."""
    return "".join(line for line in said.splitlines(keepends=True) if not line.startswith("USDT:"))


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("work.py", "def f():\n    raise OSError('mine')\nf()\n"),
        ("-m work", "raise RuntimeError('out of memory')\n"),
        ("work.py", "x = = 1\n"),
        ("-m work", "x = = 1\n"),
        ("-m work", "import nonesuch\n"),
    ],
)
def test_an_exception_is_python_s_traceback_after_the_table(
    how: str, ending: str, folder: Path, profile: Callable
) -> None:
    # Plain Python gets the same line numbers, without importing torch.
    (folder / "work.py").write_text("\n" * WORK.count("\n") + ending)
    plain = run("work.py", cwd=folder)
    (folder / "work.py").write_text(WORK + ending)
    done = profile(*how.split(), cwd=folder)
    assert done.returncode == plain.returncode == 1
    said = without_torchs(done.stderr)
    assert said == plain.stderr or (how == "-m work" and "SyntaxError" in said and said.endswith(plain.stderr))
    assert done.stdout.rstrip().endswith("a torch operator's are its self time.")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("", "profile: the following arguments are required: SCRIPT"),
        ("nowhere.py", "profile: expected a script, but there is no file 'nowhere.py'"),
        ("-- nowhere.py", "profile: expected a script, but there is no file 'nowhere.py'"),
        (".", "profile: expected a script, but there is no file '.'"),
        ("-m nonesuch.inner", "expected a module that python can import, but there is none named 'nonesuch.inner'"),
        ("-m .relative", "expected a module that python can import, but there is none named '.relative'"),
        ("--trace nowhere/x.json work.py", "argument --trace: expected a file in a directory that exists"),
        ("--torch-rows -1 work.py", "argument --torch-rows: expected an integer from 0 on, but got '-1'"),
        ("--nvtx --trace x.json work.py", "profile: expected --trace or --nvtx, but got both"),
        ("--nvtx work.py", "profile: expected a GPU of NVIDIA or AMD for nvtx=True, but torch"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_runs(
    arguments: str, complaint: str, folder: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    try:
        code = profiled(*arguments.split())
    except SystemExit as stopped:
        code = stopped.code
    output, error = capsys.readouterr()
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert complaint in error
    assert profiler._running is None


@pytest.mark.parametrize(
    ("options", "nvtx"), [([], None), (["--nvtx"], True), (["--no-nvtx"], False), (["--trace", "x.json"], False)]
)
def test_nvtx_is_asked_for_as_the_options_say(
    options: list[str], nvtx: bool | None, folder: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(folder)
    asked = []

    class Profile(profiler.profile):
        def __init__(self, **keywords: Any):
            asked.append(keywords)
            super().__init__(nvtx=False)

    monkeypatch.setattr("fourfold.cli.profile.profile", Profile)
    assert profiled(*options, "work.py") == 0
    assert asked == [{"with_stack": False, "nvtx": nvtx}]


OWN_PROFILES = {
    "fourfold.profiler": "import fourfold\nwith fourfold.profiler.profile(): pass\n",
    "torch.profiler": "import torch\nwith torch.profiler.profile() as p: torch.ones(3).sum()\n",
    "torch.autograd.profiler": "import torch\nwith torch.autograd.profiler.profile() as p: torch.ones(3).sum()\n",
}


def test_a_script_that_profiles_itself_with_fourfold_is_told(folder: Path, profile: Callable) -> None:
    (folder / "work.py").write_text(OWN_PROFILES["fourfold.profiler"])
    done = profile("work.py", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.endswith(
        "RuntimeError: profile: expected no other profile to be running, but python -m fourfold profile runs one; run "
        "the script by itself, or remove its own profile\n"
    )


@pytest.mark.parametrize("how", ["torch.profiler", "torch.autograd.profiler"])
def test_a_script_that_profiles_itself_with_torch_keeps_its_own(how: str, folder: Path, profile: Callable) -> None:
    show = "print(sorted(e.key for e in p.key_averages() if e.key == 'aten::sum'))\ntorch.ones(3) + 1\n"
    (folder / "work.py").write_text(OWN_PROFILES[how] + show)
    done = profile("work.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"['aten::sum']\n\n{profiler.INTERRUPTED}\n"
    done = profile("--trace", "trace.json", "work.py", cwd=folder)
    assert done.returncode == 2 and not (folder / "trace.json").exists()
    assert "profile: no trace was written, because the script ran a profile of its own" in done.stderr
