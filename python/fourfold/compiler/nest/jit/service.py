"""Compiles the nests that running programs request, on a thread of its own.

The library requests a nest when a program's layout recurs (cpp/program/nests.h), and runs the interpreter until the
nest is ready."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

import torch

from fourfold import _C
from fourfold.compiler.nest.ir.levels import Level, level
from fourfold.compiler.nest.jit import memory
from fourfold.compiler.nest.jit.cache import Cache, Head, digest, folder, limit
from fourfold.compiler.options import GENERATORS, generator_of_environment
from fourfold.devices import programs

if TYPE_CHECKING:
    from fourfold.compiler.nest.jit.engine import Engine

log = logging.getLogger("fourfold.compiler")
CPU = torch.device("cpu")
WAIT = 60_000  # milliseconds
SLICE = 0.1  # seconds, after which a waiting thread looks for signals


@functools.cache
def obstacle() -> str:
    """Why this process compiles no nests; empty if it does."""
    if level() is None:
        return f"the CPU level {_C.cpu_capability()} has no vectors, such as AVX2's or NEON's"
    if importlib.util.find_spec("llvmlite") is None:
        return "llvmlite is not installed"
    return "" if memory.can_be_executed() else "memory that was written can't be made executable here"


def compiles(generator: str | None = None) -> bool:
    """Whether programs run as loop nests. None: FOURFOLD_GENERATOR decides."""
    return (generator or generator_of_environment()) != "interpreter" and not obstacle()


def number(generator: str | None = None, device: torch.device = CPU) -> int:
    """A generator's number in the library; starts the compiler's thread if it is needed. None: FOURFOLD_GENERATOR
    decides. device: where the program runs."""
    if compiles(generator) or device.type not in programs.INTERPRETED:
        limit()  # raises for an invalid value, before anything is compiled
        start()
    return GENERATORS.index(generator or generator_of_environment())


class Service:
    """nests: the compiled ones, as text, layout and target. refusals: by text and layout, why a nest is not compiled.
    failures: likewise, for errors."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.is_wanted = True
        self.busy = threading.Lock()  # held while a nest is compiled
        self.nests: list[tuple[str, str, str]] = []
        self.has_warned = False  # that the cache can't be written
        self.refusals: dict[tuple[str, str], str] = {}
        self.failures: dict[tuple[str, str], str] = {}

    @property
    def compiled(self) -> int:
        return len(self.nests)

    @functools.cached_property
    def level(self) -> Level:
        found = level()
        assert found is not None  # obstacle() says so
        return found

    @functools.cached_property
    def engine(self) -> Engine:
        from fourfold.compiler.nest.jit.engine import Engine

        return Engine(self.level)

    @functools.cached_property
    def cache(self) -> Cache | None:
        import llvmlite

        where = folder()
        return None if where is None else Cache(where, self.level.name, llvmlite.__version__)

    def start(self) -> None:
        with self.lock:
            if self.is_wanted and (self.thread is None or not self.thread.is_alive()):
                self.thread = threading.Thread(target=self.run, name="fourfold-nests", daemon=True)
                _C.serve_nests(True)
                self.thread.start()

    def stop(self) -> None:
        """Called before Python exits: later, a thread that waits in C++ can't be stopped."""
        with self.lock:
            self.is_wanted = False
            _C.serve_nests(False)
            if self.thread is not None:
                self.thread.join()

    def run(self) -> None:
        try:
            while self.is_wanted:
                request = _C.next_nest(WAIT)
                if request is not None:
                    self.answer(*request)
        finally:
            _C.serve_nests(False)  # no call waits for a thread that has ended

    def answer(self, text: str, layout: str, target: str) -> None:
        with self.busy:
            self.compile_or_refuse(text, layout, target)

    def compile_or_refuse(self, text: str, layout: str, target: str) -> None:
        from fourfold.compiler.nest.ir.schedule import NotCompiled

        try:
            if target:
                self.compile_grid(text, layout, target)
            else:
                self.compile(text, layout)
        except NotCompiled as refusal:
            self.refusals[text, layout] = reason = str(refusal)
        except Exception as error:  # the interpreter or torch's operators run the program, and the log has the reason
            self.failures[text, layout] = reason = f"{type(error).__name__}: {error}"
            log.warning("a loop nest was not compiled; its program runs without", exc_info=True)
        else:
            return
        _C.refuse_nest(text, layout, target, reason)

    def compile(self, text: str, layout: str) -> None:
        known = None if self.cache is None else self.cache.get(text, layout, "functions", "numbers")
        head, code = known or self.compiled_code(text, layout)
        names = [name for name in head["functions"] if name]
        addresses = dict(zip(names, self.engine.load(code, names), strict=True))
        self.nests.append((text, layout, ""))  # before calls that wait for it go on
        _C.attach_nest(text, layout, [addresses.get(name, 0) for name in head["functions"]], *head["numbers"])
        if known is None:
            self.keep(self.cache, text, layout, head, code)

    def compiled_code(self, text: str, layout: str) -> tuple[Head, bytes]:
        from fourfold.compiler.nest.cpu.build import build
        from fourfold.compiler.nest.ir.layout import Layout
        from fourfold.compiler.nest.ir.reading import read
        from fourfold.compiler.nest.print.llvm import print_nest

        nest = build(read(text), Layout.of(layout), self.level.lanes)
        names = ["" if function is None else function.name for function in nest.functions]
        numbers = [nest.bytes, nest.bytes_of_column, nest.bytes_of_panel, nest.sums]
        return {"functions": names, "numbers": numbers}, self.engine.code(print_nest(nest, self.level))

    def compile_grid(self, text: str, layout: str, target: str) -> None:
        from fourfold.compiler.nest.grid.build import build
        from fourfold.compiler.nest.grid.layout import GridLayout
        from fourfold.compiler.nest.ir.reading import read

        name, _, architecture = target.partition(" ")
        language = programs.LANGUAGES[name]
        where = folder()
        cache = None if where is None else Cache(where, target, digest(language.module().prelude()))
        known = None if cache is None else cache.get(text, layout, "kernels")
        if known is None:
            grid = build(read(text), GridLayout.of(layout))
            kernels = [[f"fourfold_{kernel.name}", kernel.threads, kernel.shared] for kernel in grid.kernels]
            source = language.module().print_file(grid)
            head, code = {"kernels": kernels}, language.compile(source, architecture, "a program of fourfold")
        else:
            head, code = known
        self.nests.append((text, layout, target))
        _C.attach_code(text, layout, target, code, head["kernels"])
        if known is None:
            self.keep(cache, text, layout, head, code)

    def keep(self, cache: Cache | None, text: str, layout: str, head: Head, code: bytes) -> None:
        """Caches code that was attached. Logs an error once; this process runs the code all the same."""
        try:
            if cache is not None:
                cache.put(text, layout, head, code)
        except OSError as error:
            if not self.has_warned:
                self.has_warned = True
                log.warning("code can't be cached for other processes in FOURFOLD_CACHE: %s", error)


service = Service()


def wait_for_nests(timeout: float | None = None) -> bool:
    """Waits until the loop nests that compiled functions have requested are compiled, for benchmarks and for services
    that warm up. With the generator ``auto`` a nest is requested at the second call with tensors of one layout.

    Args:
        timeout: in seconds; None waits without a limit.

    Returns:
        Whether all requests are answered. Without a thread that compiles, the function returns at once.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = SLICE if end is None else min(SLICE, max(0.0, end - time.monotonic()))
        state = _C.wait_for_nests(round(1000 * left))
        if state != 0 or left < SLICE:
            return state == 1


def start() -> None:
    service.start()


def forget() -> None:
    """Resets the service in a child process, in which the thread does not run."""
    service.thread = None
    service.lock = threading.Lock()
    service.busy.release()


# A fork waits until no nest is being compiled: LLVM's locks are free then.
os.register_at_fork(before=service.busy.acquire, after_in_parent=service.busy.release, after_in_child=forget)
atexit.register(service.stop)
