"""Which arguments of a saved model are the state of a stream: they take results of the call before."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from fourfold.saving.tree import LEAF, Tree, count, items_of

State = Mapping[str, int | str | None]


def pairs_of(state: State, inputs: Tree, outputs: Tree, leaves: Sequence[str]) -> list[tuple[int, int | None]]:
    """For each leaf of the state the index among the arguments' leaves, and that among the results' leaves, or None for
    an argument that the model changes in place. leaves: the names of the arguments' leaves. Raises ValueError."""
    arguments, results = arguments_of(inputs, leaves), results_of(outputs)
    found: dict[int, int | None] = {}
    for name, result in state.items():
        if name not in arguments:
            raise ValueError(f"save: expected state to name arguments, {listed(arguments)}, but got {name!r}")
        own = arguments[name]
        if result is not None and result not in results:
            raise ValueError(f"save: expected state[{name!r}] to be a result, {listed(results)}, but got {result!r}")
        given = [None] * len(own) if result is None else results[result]
        if len(given) != len(own):
            raise ValueError(
                f"save: expected the result {result!r} to have as many tensors as {name}, {len(own)}, but "
                f"it has {len(given)}"
            )
        twice = [leaves[argument] for argument in own if argument in found]
        if twice:
            raise ValueError(f"save: expected each argument of state once, but {name!r} has {twice[0]} again")
        found |= zip(own, given, strict=True)
    return list(found.items())


def listed(names: Mapping[object, range]) -> str:
    return ", ".join(map(str, names)) or "of which there are none"


def arguments_of(tree: Tree, leaves: Sequence[str]) -> dict[str, range]:
    """Those of the call, named as in the module's forward, and each tensor in a tuple, list or dict by its own name."""
    found = {name: range(k, k + 1) for k, name in enumerate(leaves)}
    positional, named = tree["tuple"]
    begin = 0
    for item, key in zip((*items_of(positional), *items_of(named)), keys_of(positional, named), strict=True):
        own = range(begin, begin + count(item))
        begin = own.stop
        if item != LEAF and own:
            found[key or argument_of(item, [leaves[k] for k in own])] = own
    return found


def keys_of(positional: Tree, named: Tree) -> list[str]:
    """Of each argument of a call; empty for those without names."""
    return [""] * len(items_of(positional)) + named["keys"]


def argument_of(tree: Tree, leaves: Sequence[str]) -> str:
    """The name of an argument that has these leaves: torch.export appends indices and keys to it, and another number if
    there is a leaf of that name."""
    for leaf, path in zip(leaves, paths_of(tree), strict=True):
        end = "".join(f"_{re.sub('[^a-zA-Z0-9]', '_', str(key))}" for key in path).lower()
        for name in (leaf, leaf.rpartition("_")[0]):
            if name.lower().endswith(end) and name[: -len(end)]:
                return name[: -len(end)]
    return leaves[0]


def paths_of(tree: Tree) -> Iterator[tuple[object, ...]]:
    """The indices and keys that lead to each leaf."""
    if tree == LEAF:
        yield ()
        return
    for name, item in zip(names_of(tree), items_of(tree), strict=True):
        for path in paths_of(item):
            yield (name, *path)


def names_of(tree: Tree) -> Sequence[object]:
    return tree.get("keys") or tree.get("fields") or range(len(items_of(tree)))


def results_of(tree: Tree) -> dict[object, range]:
    """By key in a dict, by index otherwise and by field in a named tuple; of a model with one result, 0."""
    if tree == LEAF:
        return {0: range(1)}
    found: dict[object, range] = {}
    begin = 0
    for k, (item, name) in enumerate(zip(items_of(tree), names_of(tree), strict=True)):
        own = range(begin, begin + count(item))
        begin = own.stop
        found[name] = own
        if "fields" in tree:
            found[k] = own
    return found


def structure_of_stream(inputs: Tree, outputs: Tree, pairs: Sequence[tuple[int, int | None]]) -> str:
    """The structure of the arguments and results that are not state, as a file has it. Raises ValueError."""
    results = {result for _, result in pairs if result is not None and result >= 0}
    others = without_arguments(inputs, {argument for argument, _ in pairs})
    return json.dumps({"inputs": others, "outputs": without(outputs, results) or {"tuple": []}})


def without_arguments(tree: Tree, leaves: set[int]) -> Tree:
    """The structure of a call's arguments without these leaves."""
    positional, named = tree["tuple"]
    kept: list[tuple[str, Tree]] = []
    begin = 0
    for item, key in zip((*items_of(positional), *items_of(named)), keys_of(positional, named), strict=True):
        part = without(item, leaves, begin) if count(item) else item
        begin += count(item)
        if part is not None:
            kept.append((key, part))
    by_key = {key: part for key, part in kept if key}
    without_key = [part for key, part in kept if not key]
    return {"tuple": [{"tuple": without_key}, {"dict": list(by_key.values()), "keys": list(by_key)}]}


def without(tree: Tree, leaves: set[int], begin: int = 0) -> Tree | None:
    """The structure without these leaves, and without containers that have no others; None if nothing is left. A tuple
    or list of several, of which one is left, becomes that one. Raises ValueError for other types of containers."""
    if tree == LEAF:
        return None if begin in leaves else LEAF
    if not leaves & set(range(begin, begin + count(tree))):
        return tree
    kind, items, kept = next(iter(tree)), items_of(tree), []
    if kind == "registered":
        raise ValueError(f"save: expected state in tuples, lists and dicts, but some is in {tree['type']}")
    for k, item in enumerate(items):
        part = without(item, leaves, begin)
        begin += count(item)
        if part is not None:
            kept.append((k, part))
    if not kept:
        return None
    parts = [part for _, part in kept]
    if kind in ("dict", "OrderedDict"):
        return {kind: parts, "keys": [tree["keys"][k] for k, _ in kept]}
    if len(kept) == 1 and len(items) > 1:
        return parts[0]
    return {"list" if kind == "list" else "tuple": parts}
