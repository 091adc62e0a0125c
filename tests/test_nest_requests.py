"""When nests are requested, in which order they are compiled, and waiting for them."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

import fourfold
from forked import Forks
from fourfold.compiler.nest.jit import service
from fourfold.compiler.nest.jit.service import Service
from fourfold.compiler.pipeline.calling import Program
from nests import needs_nests
from programs import HEAD

pytestmark = needs_nests

numbers = itertools.count()


def program(generator: str = "auto") -> Program:
    """One of rows, whose nest nobody has requested yet."""
    text = (
        f"{HEAD}axes a=x.0 | b=x.1\nx: float32 = input float32 [a b]\nn: float32 = constant {next(numbers)}.5\n"
        "y: float32 = mul x n\nz: float32 = sin y\ns: float32 = sum z\noutput s float32 [a]\n"
    )
    return Program(text, "program", service.number(generator))


class Gate:
    """The compiler waits before each nest until the gate is open."""

    def __init__(self) -> None:
        self.asked: list[str] = []  # the constant in each program
        self.came, self.opens = threading.Event(), threading.Event()

    def answer(self, answer: Callable[..., None], own: Service, *request: str) -> None:
        self.asked.append(request[0].partition("constant ")[2].split()[0])
        self.came.set()
        assert self.opens.wait(60)
        answer(own, *request)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    assert fourfold.wait_for_nests(60)
    gate, answer = Gate(), Service.answer
    monkeypatch.setattr(Service, "answer", lambda self, *request: gate.answer(answer, self, *request))
    yield gate
    gate.opens.set()
    assert fourfold.wait_for_nests(60)


def test_waiting_for_nests(gate: Gate) -> None:
    before, made = service.service.compiled, program()
    assert fourfold.wait_for_nests() and fourfold.wait_for_nests(0)
    for _ in range(2):
        made(torch.randn(2, 100))
    start = time.monotonic()
    assert not fourfold.wait_for_nests(0) and not fourfold.wait_for_nests(0.25)
    assert time.monotonic() - start >= 0.2
    gate.opens.set()
    assert fourfold.wait_for_nests() and service.service.compiled == before + 1


def test_the_largest_work_is_compiled_first(gate: Gate) -> None:
    """The work of all calls so far counts. A nest for which a call waits precedes all others."""
    constant = next(numbers) + 1
    for size, calls in ((100, 2), (100, 2), (5000, 2), (100, 200), (5000, 2)):
        made = program()
        for _ in range(calls):
            made(torch.randn(2, size))
        assert gate.came.wait(60)  # the first is being compiled, the others wait
    waiting = threading.Thread(target=program("llvm"), args=(torch.randn(2, 10),))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    gate.opens.set()
    waiting.join(60)
    assert fourfold.wait_for_nests(60)
    assert gate.asked == [f"{constant + k}.5" for k in (0, 5, 3, 2, 4, 1)]


def test_a_large_layout_is_compiled_at_its_first_call(gate: Gate) -> None:
    gate.opens.set()
    before, small, large = service.service.compiled, program(), program()
    small(torch.randn(1).expand(100, 10_000))
    large(torch.randn(1).expand(100, 1_000_000))
    assert fourfold.wait_for_nests(60) and service.service.compiled == before + 1
    small(torch.randn(1).expand(100, 10_000))
    assert fourfold.wait_for_nests(60) and service.service.compiled == before + 2


SCRIPT = """
import os, signal, sys, threading, time, torch, fourfold
from fourfold.compiler.pipeline.calling import Program
from fourfold.compiler.nest.jit import service
def program(op, generator="auto"):
    lines = ("axes a=x.0", "x: float32 = input float32 [a]", f"y: float32 = {op} x", "output y float32 [a]")
    return Program("\\n".join(("fourfold program 1", *lines)), op, service.number(generator))
answer, came, opens = service.Service.answer, threading.Event(), threading.Event()
def waiting(self, *request):
    came.set()
    assert opens.wait(60)
    answer(self, *request)
service.Service.answer = waiting
x = torch.randn(100)
for op in ("sin", "cos"):
    made = program(op)
    made(x), made(x)
came.wait(60)
"""
# The parent's thread has taken one request, and the other one waits.
FORK = """
child = os.fork()
if child == 0:
    signal.alarm(100)
    assert service.service.thread is None and not fourfold.wait_for_nests()
    opens.set()
    for op in ("sin", "cos"):
        assert torch.equal(program(op, "llvm")(x), program(op, "interpreter")(x))
    assert fourfold.wait_for_nests() and service.service.compiled == 2
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
opens.set()
assert fourfold.wait_for_nests(60) and service.service.compiled == 2
"""
# At exit the nest that is being compiled is completed, and no thread waits for the other one.
EXIT = """
import atexit
states = []
thread = threading.Thread(target=lambda: states.append(fourfold.wait_for_nests()), daemon=True)
thread.start()
atexit.register(lambda: (thread.join(60), print(states, service.service.compiled)))  # runs before the service stops
atexit.unregister(service.service.stop)
atexit.register(service.service.stop)  # runs before that
threading.Timer(0.3, opens.set).start()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.slow
@pytest.mark.parametrize(("ending", "printed"), [(FORK, ""), (EXIT, "[False] 1\n")], ids=["fork", "exit"])
def test_a_process_that_forks_or_exits_waits_for_no_nest(ending: str, printed: str, after_torch: Forks) -> None:
    done = after_torch.run("-c", SCRIPT + ending)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
