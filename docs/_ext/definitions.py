"""Where an object of the package is defined. Classes bear the name of the module that they are imported from, which is
often another than the one that defines them: inspect looks there and finds nothing."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from pathlib import Path

import fourfold

PACKAGE = Path(fourfold.__file__).parent


def place_of(documented: object) -> tuple[Path, int] | None:
    """File and line of a function, property or class; None for other objects, and those of other packages."""
    documented = documented.fget if isinstance(documented, property) else inspect.unwrap(documented)
    if inspect.isclass(documented):
        found = class_place(documented)
    elif inspect.isfunction(documented):
        found = Path(documented.__code__.co_filename), documented.__code__.co_firstlineno
    else:
        return None
    return found if found is not None and found[0].is_relative_to(PACKAGE) else None


def class_place(kind: type) -> tuple[Path, int] | None:
    node = class_node(kind)
    return None if node is None else (node[0], node[1].lineno)


def source_of(kind: type) -> str:
    """A class's source. Raises LookupError where there is none."""
    found = class_node(kind)
    if found is None:
        raise LookupError(f"no file defines {kind.__qualname__}")
    file, node = found
    return "\n".join(file.read_text(encoding="utf-8").splitlines()[node.lineno - 1 : node.end_lineno])


def class_node(kind: type) -> tuple[Path, ast.ClassDef] | None:
    """By the files of its methods, which know theirs; of a class without methods, by those of its package."""
    functions = (each.fget if isinstance(each, property) else each for each in vars(kind).values())
    files = [each.__code__.co_filename for each in functions if inspect.isfunction(each)]
    module = Path(getattr(sys.modules[kind.__module__], "__file__", None) or "")
    package = sorted(module.parent.glob("*.py")) if module.name == "__init__.py" else []
    for file in dict.fromkeys([*map(Path, files), module, *package]):
        for node in classes_in(file) if file.is_file() else ():
            if node.name == kind.__name__:
                return file, node
    return None


@cache
def classes_in(file: Path) -> list[ast.ClassDef]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
