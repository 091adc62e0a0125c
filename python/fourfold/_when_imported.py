"""Runs code when a module of torch is imported, so that `import fourfold` needn't import modules that few programs
use."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Register = Callable[[ModuleType], None]


def when_imported(name: str, register: Register) -> None:
    """Calls ``register`` with the module of that name: now if it is imported, else as soon as it is."""
    if name in sys.modules:
        register(sys.modules[name])
    elif not any(isinstance(finder, _WhenImported) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported(name, register))


class _WhenImported:
    """A finder that waits for one module, which the other finders then find."""

    _is_asking = False

    def __init__(self, name: str, register: Register) -> None:
        self.name, self.register = name, register

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None:
            execute = spec.loader.exec_module

            def then_register(module: ModuleType) -> None:
                execute(module)
                self.register(module)
                sys.meta_path.remove(self)

            spec.loader.exec_module = then_register
        return spec
