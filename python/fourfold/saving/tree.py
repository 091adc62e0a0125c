"""The structure of a model's arguments and results in a file's JSON. Reading it imports nothing: a type other than
Python's containers has to be registered with ``torch.utils._pytree`` already."""

from __future__ import annotations

import functools
import json
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator

from torch.utils import _pytree as pytree

Tree = object  # LEAF, or {"tuple": [trees]} and so on
LEAF = "*"
KEYS = (str, int, float, bool)
# To read these, torch would import a module that the file names.
IMPORTING = (defaultdict,)


def encoded(spec: pytree.TreeSpec) -> Tree:
    """Raises ValueError for a structure that the file can't hold."""
    if spec.is_leaf():
        return LEAF
    items = [encoded(child) for child in spec.children()]
    kind, context = spec.type, spec.context
    if kind in (tuple, list):
        return {kind.__name__: items}
    if kind in (dict, OrderedDict):
        if not all(isinstance(key, KEYS) for key in context):
            raise ValueError(f"save: expected the keys of dicts to be strings or numbers, but got {list(context)}")
        return {kind.__name__: items, "keys": list(context)}
    if kind is namedtuple:
        return {"namedtuple": items, "name": context.__name__, "fields": list(context._fields)}
    known = None if kind in IMPORTING else pytree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    if known is None or known.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
        raise ValueError(
            f"save: expected arguments and results of tuples, lists, dicts and tensors, but got {kind.__name__}; "
            "return tuple(…) or dict(…) of it, or register the type with torch.export.register_dataclass or "
            "torch.utils._pytree.register_pytree_node(…, serialized_type_name=…)"
        )
    dumped = context if known.to_dumpable_context is None else known.to_dumpable_context(context)
    return {"registered": items, "type": known.serialized_type_name, "context": json.dumps(dumped)}


class Structure:
    """Flattens arguments and unflattens results."""

    def __init__(self, text: str):
        """Raises ValueError."""
        found = json.loads(text)
        try:
            self.inputs, self.outputs = found["inputs"], found["outputs"]
            (self.args, self.kwargs), self.names = self.inputs["tuple"], self.inputs["tuple"][1]["keys"]
            self.kwargs = self.kwargs["dict"]
            if not all(isinstance(name, str) for name in self.names):
                raise ValueError("names")
            self.is_flat = not self.names and all(each == LEAF for each in self.args["tuple"])
            self.leaves = sum(map(count, (*self.args["tuple"], *self.kwargs))), count(self.outputs)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"load: expected the structure of arguments and results, but got {text[:60]!r}") from error

    def flatten(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[object]:
        """Raises TypeError for arguments of another structure."""
        expected = self.args["tuple"]
        if len(args) != len(expected):
            raise TypeError(f"model: expected {len(expected)} arguments without names, but got {len(args)}")
        if kwargs.keys() != set(self.names):
            given = ", ".join(kwargs) or "none"
            raise TypeError(f"model: expected the named arguments {', '.join(self.names) or 'none'}, but got {given}")
        found: list[object] = []
        for k, (tree, value) in enumerate(zip(expected, args, strict=True)):
            found += leaves(tree, value, f"argument {k}")
        for tree, name in zip(self.kwargs, self.names, strict=True):
            found += leaves(tree, kwargs[name], name)
        return found

    def unflatten(self, results: list[object]) -> object:
        return built(self.outputs, iter(results))


def count(tree: Tree) -> int:
    """The number of leaves. Raises the errors of reading a malformed tree."""
    return 1 if tree == LEAF else sum(map(count, items_of(tree)))


def items_of(tree: dict[str, object]) -> list[Tree]:
    kind = next(iter(tree), None) if isinstance(tree, dict) else None
    if kind not in ("tuple", "list", "dict", "OrderedDict", "namedtuple", "registered"):
        raise ValueError("kind")
    items = tree[kind]
    if not isinstance(items, list):
        raise ValueError("items")
    if kind in ("dict", "OrderedDict"):
        keys = tree["keys"]
        if len(items) != len(keys) or len(set(keys)) != len(keys) or not all(isinstance(key, KEYS) for key in keys):
            raise ValueError("keys")
    elif kind == "namedtuple":
        if len(items) != len(tree["fields"]):
            raise ValueError("fields")
        named(tree["name"], *tree["fields"])
    elif kind == "registered":
        if tree["type"] in map(serialized, IMPORTING):
            raise ValueError("type")
        json.loads(tree["context"])
    return items


def serialized(kind: type) -> str:
    return pytree.SUPPORTED_SERIALIZED_TYPES[kind].serialized_type_name


def leaves(tree: Tree, value: object, what: str) -> Iterator[object]:
    if tree == LEAF:
        yield value
        return
    kind, items = next(iter(tree)), items_of(tree)
    if kind in ("dict", "OrderedDict"):
        keys = tree["keys"]
        if not isinstance(value, dict) or value.keys() != set(keys):
            raise TypeError(f"model: expected {what} to be a dict with the keys {keys}, but got {described(value)}")
        parts = [value[key] for key in keys]
        names = [f"{what}[{key!r}]" for key in keys]
    elif kind == "registered":
        parts, names = flattened(tree, value, what), [what] * len(items)
    else:
        expected = list if kind == "list" else tuple
        if not isinstance(value, expected) or len(value) != len(items):
            raise TypeError(
                f"model: expected {what} to be a {expected.__name__} of {len(items)}, but got {described(value)}"
            )
        parts, names = value, [f"{what}[{k}]" for k in range(len(items))]
    for item, part, name in zip(items, parts, names, strict=True):
        yield from leaves(item, part, name)


def flattened(tree: dict[str, object], value: object, what: str) -> list[object]:
    kind = type_of(tree)
    parts, _ = pytree.SUPPORTED_NODES[kind].flatten_fn(value) if isinstance(value, kind) else ((), None)
    if len(parts) != len(tree["registered"]):
        raise TypeError(
            f"model: expected {what} to be a {kind.__name__} with {len(tree['registered'])} parts, but got "
            f"{described(value)}"
        )
    return list(parts)


def built(tree: Tree, results: Iterator[object]) -> object:
    if tree == LEAF:
        return next(results)
    kind = next(iter(tree))
    parts = [built(item, results) for item in items_of(tree)]
    if kind == "list":
        return parts
    if kind == "tuple":
        return tuple(parts)
    if kind in ("dict", "OrderedDict"):
        return (dict if kind == "dict" else OrderedDict)(zip(tree["keys"], parts, strict=True))
    if kind == "namedtuple":
        return named(tree["name"], *tree["fields"])(*parts)
    made = type_of(tree)
    known = pytree.SUPPORTED_SERIALIZED_TYPES[made]
    context = json.loads(tree["context"])
    if known.from_dumpable_context is not None:
        context = known.from_dumpable_context(context)
    return pytree.SUPPORTED_NODES[made].unflatten_fn(parts, context)


@functools.cache
def named(name: str, *fields: str) -> type:
    return namedtuple(name, fields)


def type_of(tree: dict[str, object]) -> type:
    found = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(tree["type"])
    if found is None:
        raise TypeError(
            f"model: expected the type {tree['type']!r} to be registered with torch.utils._pytree; import the module "
            "that defines it first"
        )
    return found


def described(value: object) -> str:
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"{type(value).__name__}{size}"
