"""The common part of NVRTC and hipRTC, which have the same functions under two prefixes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path


class CompilationError(RuntimeError):
    """A kernel that failed to compile. ``log`` is the compiler's output."""

    def __init__(self, message: str, log: str):
        super().__init__(f"{message}\n{log}" if log else message)
        self.log = log


class RuntimeCompiler:
    """A compiler's library. Calls release the GIL, and threads may share one."""

    def __init__(self, path: str | Path, prefix: str):
        self.prefix = prefix
        self.library = ctypes.CDLL(str(path))
        self._call("Version", 0, ctypes.byref(major := ctypes.c_int()), ctypes.byref(minor := ctypes.c_int()))
        self.version = major.value, minor.value

    def compile(self, source: str, architecture: str, name: str) -> bytes:
        """Compiles a source to what the driver or the runtime loads."""
        raise NotImplementedError

    def compiled(self, source: str, name: str, options: Sequence[str], result: str) -> bytes:
        """Compiles a source with these options. result: Code, CUBIN or PTX. name: for messages."""
        program = ctypes.c_void_p()
        self._call("CreateProgram", 0, ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        try:
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._function("CompileProgram")(program, len(options), given)
            if status:
                said = f"{name} failed to compile with {' '.join(options)}: {self._describe(status)}"
                raise CompilationError(said, self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace"))
            return self._bytes(program, result)
        finally:
            self._function("DestroyProgram")(ctypes.byref(program))

    def path(self) -> Path:
        """The path of the library, which may have been found by its soname."""

        class Found(ctypes.Structure):
            _fields_ = [
                (name, ctypes.c_char_p if name == "path" else ctypes.c_void_p) for name in ("path", "a", "b", "c")
            ]

        dladdr = ctypes.CDLL(None).dladdr
        dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Found)]
        found = Found()
        if not dladdr(ctypes.cast(self._function("Version"), ctypes.c_void_p), ctypes.byref(found)):
            raise OSError(f"dladdr doesn't know {self.prefix}Version")
        return Path(os.fsdecode(found.path))

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", 0, program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", 0, program, buffer)
        return buffer.raw

    def _call(self, name: str, expected: int, *arguments: object) -> None:
        status = self._function(name)(*arguments)
        if status != expected:
            raise CompilationError(f"{self.prefix}{name} failed: {self._describe(status)}", "")

    def _function(self, name: str) -> ctypes._CFuncPtr:
        return getattr(self.library, self.prefix + name)

    def _describe(self, status: int) -> str:
        describe = self._function("GetErrorString")
        describe.restype = ctypes.c_char_p
        return describe(status).decode()


class Installed:
    """The compiler that this process finds, loaded at its first use.

    kind: its class. library: finds its soname or path. missing: the error if there is none. outdated: the error if its
    version is too old, or None."""

    def __init__(
        self,
        kind: type[RuntimeCompiler],
        library: Callable[[], str | None],
        missing: str,
        outdated: Callable[[RuntimeCompiler], str | None] | None = None,
    ):
        self.kind = kind
        self.find = library
        self.missing = missing
        self.outdated = outdated

    def compile(self, source: str, architecture: str, name: str) -> bytes:
        """Compiles with the compiler that torch uses, or else with the system's."""
        reason = self.obstacle()
        if reason is not None:
            raise CompilationError(reason, "")
        return self.compiler.compile(source, architecture, name)

    def obstacle(self) -> str | None:
        """Why nothing can be compiled, or None."""
        if self.library is None:
            return self.missing
        return self.outdated(self.compiler) if self.outdated else None

    @cached_property
    def library(self) -> str | None:
        return self.find()

    @cached_property
    def compiler(self) -> RuntimeCompiler:
        return self.kind(self.library)


def first_library(sonames: Iterable[str], paths: Iterable[Path]) -> str | None:
    """The first of these that loads: a soname that this process has loaded already, then the paths, then a soname that
    the system finds."""
    sonames = tuple(sonames)
    for name in sonames:
        if _loads(name, os.RTLD_NOLOAD):
            return name
    return next((str(path) for path in (*paths, *sonames) if _loads(str(path), ctypes.DEFAULT_MODE)), None)


def _loads(path: str, mode: int) -> bool:
    try:
        ctypes.CDLL(path, mode=mode)
    except OSError:
        return False
    return True
