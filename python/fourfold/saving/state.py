"""Which arguments of a saved model are the state of a stream: they take results of the call before."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from fourfold.saving.tree import LEAF, Tree, count, items_of

State = Mapping[str, int | str | None]
Names = dict[str, range]  # an argument's or a result's leaves


def pairs_of(state: State, structure: Mapping[str, Tree], leaves: Sequence[str]) -> list[tuple[int, int | None]]:
    """For each leaf of the state the index among the arguments' leaves, and that among the results' leaves, or None for
    an argument that the model changes in place. leaves: the names of the arguments' leaves. Raises ValueError."""
    arguments, results = arguments_of(structure["inputs"], leaves), results_of(structure["outputs"])
    found: list[tuple[int, int | None]] = []
    for name, result in state.items():
        if name not in arguments:
            raise ValueError(f"save: expected state to name arguments, {listed(arguments)}, but got {name!r}")
        own = arguments[name]
        if result is None:
            found += [(argument, None) for argument in own]
            continue
        if str(result) not in results:
            raise ValueError(f"save: expected state[{name!r}] to be a result, {listed(results)}, but got {result!r}")
        given = results[str(result)]
        if len(given) != len(own):
            raise ValueError(
                f"save: expected the result {result!r} to have as many tensors as {name}, {len(own)}, but "
                f"it has {len(given)}"
            )
        found += zip(own, given, strict=True)
    return found


def listed(names: Names) -> str:
    return ", ".join(names) or "of which there are none"


def arguments_of(tree: Tree, leaves: Sequence[str]) -> Names:
    """Those of the call, named as in the module's forward, and each tensor in a tuple, list or dict by its own name."""
    found = {name: range(k, k + 1) for k, name in enumerate(leaves)}
    positional, named = tree["tuple"]
    begin = 0
    for item, key in zip((*items_of(positional), *items_of(named)), names_of(positional, named), strict=True):
        own = range(begin, begin + count(item))
        begin = own.stop
        if item != LEAF and own:
            found[key or prefix_of([leaves[k] for k in own])] = own
    return found


def names_of(positional: Tree, named: Tree) -> list[str]:
    return [""] * len(items_of(positional)) + named["keys"]


def prefix_of(leaves: list[str]) -> str:
    """torch.export names the leaves of the argument `state` state_0, state_1, or by their keys."""
    prefix = os.path.commonprefix(leaves) if len(leaves) > 1 else leaves[0]
    return prefix.rpartition("_")[0]


def results_of(tree: Tree) -> Names:
    """By index or key; of a model with one result, 0."""
    if tree == LEAF:
        return {"0": range(1)}
    found, begin = {}, 0
    names = tree.get("keys") or tree.get("fields") or range(len(items_of(tree)))
    for k, (item, name) in enumerate(zip(items_of(tree), names, strict=True)):
        own = range(begin, begin + count(item))
        begin = own.stop
        found[str(k)] = found[str(name)] = own
    return found


def structure_of_stream(inputs: Tree, outputs: Tree, pairs: Sequence[tuple[int, int]]) -> str:
    """The structure of the arguments and results that are not state, as a file has it."""
    results = {result for _, result in pairs if result >= 0}
    others = without_arguments(inputs, {argument for argument, _ in pairs})
    return json.dumps({"inputs": others, "outputs": without(outputs, results) or {"tuple": []}})


def without_arguments(tree: Tree, leaves: set[int]) -> Tree:
    """The structure of a call's arguments without these leaves."""
    positional, named = tree["tuple"]
    kept: dict[str, list[Tree]] = {"": []}
    begin = 0
    for item, name in zip((*items_of(positional), *items_of(named)), names_of(positional, named), strict=True):
        part = without(item, leaves, begin) if count(item) else item
        begin += count(item)
        if part is not None:
            kept.setdefault(name, []).append(part)
    keys = [name for name in kept if name]
    return {"tuple": [{"tuple": kept[""]}, {"dict": [kept[name][0] for name in keys], "keys": keys}]}


def without(tree: Tree, leaves: set[int], begin: int = 0) -> Tree | None:
    """The structure without these leaves, and without containers that have no others; None if nothing is left. A tuple
    or list of several, of which one is left, becomes that one."""
    if tree == LEAF:
        return None if begin in leaves else LEAF
    kind, items, kept = next(iter(tree)), items_of(tree), []
    for k, item in enumerate(items):
        part = without(item, leaves, begin)
        begin += count(item)
        if part is not None or not count(item):
            kept.append((k, item if part is None else part))
    if len(kept) == len(items):
        return {**tree, kind: [part for _, part in kept]}
    if kind in ("dict", "OrderedDict"):
        return {kind: [part for _, part in kept], "keys": [tree["keys"][k] for k, _ in kept]} if kept else None
    if not kept:
        return None
    if kind == "registered":
        raise ValueError(
            f"save: expected results that are state to be in tuples, lists and dicts, not in {tree['type']}"
        )
    return kept[0][1] if len(kept) == 1 else {"list" if kind == "list" else "tuple": [part for _, part in kept]}
