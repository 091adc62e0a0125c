"""The command line's demo, at sizes that take seconds."""

import contextlib
import fcntl
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import fourfold
from fourfold import _waiting, demo, reference
from fourfold.demo import bar, corpus, training
from machine import ROOT, linux_only, needs
from test_cli import TINY_DEMO, run

pytestmark = pytest.mark.slow


def test_the_corpus_is_the_same_on_every_read():
    first, second = corpus.read(50_000), corpus.read(50_000)
    assert torch.equal(first.tokens, second.tokens)
    assert first.alphabet == second.alphabet
    assert corpus.read(20_000).decode([0, 1]) != ""
    assert first.decode(first.tokens[:1000].tolist()).count("\n") > 5


def test_the_corpus_is_the_modules_in_order_of_their_names(tmp_path):
    for name, text in (("b.py", b"yz"), ("B.py", b"abc"), ("c.txt", b"no"), ("a.py", b"x")):
        (tmp_path / name).write_bytes(text)
    text = corpus.read(5, tmp_path)
    assert text.decode(text.tokens.tolist()) == "abcxy"
    assert text.encode(b"cab").tolist() == [2, 0, 1]
    tokens, targets = text.batch(7, 4, torch.Generator().manual_seed(0))
    assert tokens.T.tolist() == [text.encode(b"abcx").tolist()] * 7
    assert targets.T.tolist() == [text.encode(b"bcxy").tolist()] * 7


def test_a_text_that_is_too_short_is_refused(tmp_path):
    with pytest.raises(corpus.UsageError, match="expected 10 characters of Python source in .*, but found 0"):
        corpus.read(10, tmp_path)


def test_demo_from_end_to_end(capsys, tmp_path):
    needs("matplotlib")
    code, output = run(capsys, *TINY_DEMO, "--out", tmp_path / "new" / "directory")
    assert code == 0
    for words in (
        "24 for each model, of 2 × 8 characters",
        "step 24 of 24",
        "torch.nn.LSTM  ",
        "Both learn the same",
        "Speed-up:",
        "│ def ",
    ):
        assert words in output
    picture = tmp_path / "new" / "directory" / "fourfold-demo.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"Picture: {picture}" in output
    *_, page = output.split()  # the last line
    assert "Next: fourfold.optimize(your_model)" in output
    (documentation,) = re.findall(r'^Documentation = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert page == f"{documentation.replace('/tree/', '/blob/')}/quickstart.md"


def test_a_quick_demo_has_the_losses_and_the_speeds_alone(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "QUICK_STEPS", 24)
    steps = TINY_DEMO.index("--steps")
    tiny = TINY_DEMO[:steps] + TINY_DEMO[steps + 2 :]
    code, output = run(capsys, *tiny, "--quick", "--out", tmp_path / "new")
    assert code == 0
    for words in ("24 for each model, of 2 × 8 characters", "Both learn the same", "Speed-up:", "quickstart.md"):
        assert words in output
    assert "│ def " not in output and "Picture" not in output
    assert not (tmp_path / "new").exists()
    code, output = run(capsys, *TINY_DEMO, "--quick", "--steps", 2, "--out", tmp_path)
    assert code == 0 and "2 for each model" in output


def demo_on_a_terminal(tmp_path):
    """The demo's standard output, a pipe, and its standard error, a terminal."""
    ours, theirs = pty.openpty()
    command = (sys.executable, "-m", "fourfold", *TINY_DEMO, "--out", str(tmp_path))
    with os.fdopen(ours, "rb", buffering=0) as terminal, ThreadPoolExecutor(1) as pool:
        shown = pool.submit(everything_on, terminal)
        with os.fdopen(theirs, "wb", buffering=0) as error:
            fcntl.ioctl(error, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=error, text=True, check=True)
        return done.stdout, shown.result().decode()


def everything_on(terminal):
    shown = b""
    with contextlib.suppress(OSError):  # Linux's end of file, once all writers have closed it
        while piece := terminal.read(4096):
            shown += piece
    return shown


def test_demo_shows_its_progress_on_a_terminal(tmp_path):
    needs("tqdm")
    said, shown = demo_on_a_terminal(tmp_path)
    assert "step 24 of 24" in said and "steps/s" not in said
    assert "/72 [" in shown and "steps/s" in shown  # two trainings of 24 steps, and as many rounds of the LSTM
    assert shown.rpartition("\r")[0].endswith(" ")  # the line is cleared


def test_demo_shows_no_progress_without_a_terminal(tmp_path):
    done = subprocess.run([sys.executable, "-m", "fourfold", *TINY_DEMO], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "step 24 of 24" in done.stdout


def test_progress_without_tqdm_is_lines_alone(capsys, monkeypatch):
    monkeypatch.setattr(bar, "find_spec", lambda name: None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with bar.progress(3) as progress:
        progress.update(3)
        progress.write("a line")
    assert capsys.readouterr() == ("a line\n", "")


def test_demo_without_matplotlib_says_how_to_get_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "importable", lambda name: False)
    code, output = run(capsys, *TINY_DEMO, "--out", tmp_path)
    assert code == 0
    assert "pip install 'fourfold[demo]'" in output
    assert list(tmp_path.iterdir()) == []


def test_demo_writes_the_same_text_for_the_same_seed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "importable", lambda name: False)
    texts = [run(capsys, *TINY_DEMO, "--seed", seed, "--out", tmp_path)[1] for seed in (3, 3, 4)]
    written = [text[text.index("What the model") :] for text in texts]
    assert written[0] == written[1] != written[2]


def test_demo_fails_when_a_gradient_is_wrong(capsys, tmp_path, monkeypatch):
    class Wrong(reference.LLTM):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.bias_l0.register_hook(torch.zeros_like)

    monkeypatch.setattr(demo, "importable", lambda name: False)
    monkeypatch.setattr(fourfold.nn, "LLTM", Wrong)
    code, output = run(capsys, *TINY_DEMO, "--out", tmp_path)
    assert code == 1
    assert "THE LOSSES DISAGREE" in output


@pytest.mark.parametrize(
    ("words", "share", "given", "chosen"),
    [
        ("-m fourfold demo --steps 2", 0.5, {}, "PASSIVE"),
        ("-X dev -m fourfold demo", 0.5, {}, "PASSIVE"),
        ("-m fourfold demo", 0.1, {}, None),
        ("-m fourfold demo", 0.5, {"OMP_WAIT_POLICY": "active"}, "active"),
        ("-m fourfold demo", 0.5, {"GOMP_SPINCOUNT": "10"}, None),
        ("-m fourfold bench cell", 0.5, {}, None),
        ("demo.py", 0.5, {}, None),
    ],
)
def test_demos_threads_sleep_where_others_use_the_machine(words, share, given, chosen, monkeypatch):
    chosen_by_users = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    others = {name: value for name, value in os.environ.items() if name not in chosen_by_users}
    monkeypatch.setattr(os, "environ", others | given)  # a copy, to which prepare_demo may add
    monkeypatch.setattr(sys, "orig_argv", ["python", *words.split()])
    monkeypatch.delitem(sys.modules, "torch")  # as before its import
    monkeypatch.setattr(_waiting, "busy", lambda: share)
    _waiting.prepare_demo()
    assert os.environ.get("OMP_WAIT_POLICY") == chosen


@linux_only
def test_demos_threads_are_told_before_torch_is_loaded(tmp_path):
    """OpenMP prints its settings when torch loads it."""
    (tmp_path / "sitecustomize.py").write_text("""
import pathlib
reads, real = iter(["cpu 0 0 0 0 0 0 0 0", "cpu 50 0 0 50 0 0 0 0"]), pathlib.Path.read_text
pathlib.Path.read_text = lambda self, *a, **k: next(reads) if str(self) == "/proc/stat" else real(self, *a, **k)
""")
    chosen = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    surroundings = {name: value for name, value in os.environ.items() if name not in chosen}
    surroundings |= {"OMP_DISPLAY_ENV": "verbose", "PYTHONPATH": str(tmp_path)}
    for command, spins in (("demo", "0"), ("bench", "[1-9][0-9]*")):
        command = (sys.executable, "-m", "fourfold", command, "--help")
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings)
        assert re.search(f"GOMP_SPINCOUNT = '{spins}'", done.stderr)


def test_what_others_use_of_the_machine(monkeypatch):
    told = iter([(100, 1000), (130, 1100)])
    monkeypatch.setattr(_waiting, "_times", lambda: next(told))
    assert _waiting.busy(0) == 0.3
    monkeypatch.setattr(_waiting, "_times", lambda: None)
    assert _waiting.busy(0) == 0
    monkeypatch.undo()
    assert 0 <= _waiting.busy(0.05) <= 1


def test_losses_agree_within_the_tolerances_only():
    curve = [4.0 - step / 100 for step in range(100)]
    late = [loss + 0.1 * (-1) ** step * (step > 50) for step, loss in enumerate(curve)]
    assert training.agreement(curve, late).holds
    assert not training.agreement(curve, [curve[0] + 0.001, *curve[1:]]).holds
    assert not training.agreement(curve, curve[:60] + [loss + 0.12 for loss in curve[60:]]).holds
    assert not training.agreement(curve, [*curve[:-1], math.nan]).holds
    assert not training.agreement(curve[:3], [*curve[:2], math.nan]).holds


def test_the_models_are_interleaved_and_the_first_changes():
    order = []
    done = list(training.interleaved(("a", "b"), 7, 3, lambda run, steps: order.append((run, steps))))
    assert done == [3, 6, 7]
    assert order == [("a", 3), ("b", 3), ("b", 3), ("a", 3), ("a", 1), ("b", 1)]


def test_the_speedup_leaves_out_the_first_block():
    assert training.speedups([100.0, 4.0, 9.0, 8.0], [1.0, 2.0, 3.0, 2.0]) == [2.0, 3.0, 4.0]
