"""Reads an operator's schema: its arguments, and how it is differentiated.

The names in the two schemas determine what ``NAME_backward`` takes and returns. ``fourfold/gradient_rule.h`` reads them
in the same way; docs/design.md gives the rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

GRADIENT, ARGUMENT, OUTPUT, MASK = "gradient", "argument", "output", "mask"


@dataclass(frozen=True)
class Rule:
    """How an operator is differentiated.

    differentiable: the indices of the arguments that have a gradient, in the order of the backward's results.
    outputs: the number of leading outputs that have a gradient. The others are kept for the backward.
    sources: the kind of each argument of the backward, and its index among the outputs or arguments.
    """

    differentiable: tuple[int, ...]
    outputs: int
    sources: tuple[tuple[str, int], ...]


class Schema:
    """An operator's arguments.

    torch's Functions find tensors only among their own arguments, not in lists. They get the arguments as one flat
    tuple, with the elements in place of each list; ``lengths`` has the number of elements of each list.
    """

    def __init__(self, schema: torch.FunctionSchema) -> None:
        self.name = schema.name.removeprefix("fourfold::")
        self.arguments = [argument.name for argument in schema.arguments]
        self.results = [result.name for result in schema.returns]
        self.defaults = tuple(argument.default_value for argument in schema.arguments)
        self.lists = [k for k, a in enumerate(schema.arguments) if _holds_tensors_in_list(a.type)]
        self.result_lists = [k for k, r in enumerate(schema.returns) if _holds_tensors_in_list(r.type)]
        self.numbers = [k for k, a in enumerate(schema.arguments) if str(a.type) == "float"]
        self.single = len(self.results) == 1

    def full(self, args: Sequence[Any]) -> tuple:
        """All arguments: the dispatcher omits those that equal their default."""
        return (*args, *self.defaults[len(args) :])

    def named(self, args: Sequence[Any]) -> SimpleNamespace:
        return SimpleNamespace(**dict(zip(self.arguments, self.full(args), strict=True)))

    def flatten(self, args: Sequence[Any]) -> tuple[tuple[int, ...], tuple]:
        """The lengths of the lists, and all arguments as one flat tuple."""
        args = self.full(args)
        return tuple(len(args[k]) for k in self.lists), _flattened(args, self.lists)

    def nest(self, lengths: Sequence[int], flat: Sequence[Any]) -> tuple:
        """The arguments from flat ones."""
        return _nested(flat, len(self.arguments), self.lists, lengths)

    def spans(self, lengths: Sequence[int]) -> list[list[int]]:
        """The indices of each argument among the flat ones."""
        places = self.nest(lengths, range(len(self.arguments) - len(self.lists) + sum(lengths)))
        return [place if isinstance(place, list) else [place] for place in places]

    def flatten_results(self, results: Any) -> tuple:
        return (results,) if self.single else _flattened(results, self.result_lists)

    def nest_results(self, lengths: Sequence[int], flat: Sequence[Any]) -> Any:
        """A backward's lists of results are as long as the arguments' lists."""
        return flat[0] if self.single else _nested(flat, len(self.results), self.result_lists, lengths)


def _flattened(values: Sequence[Any], lists: Sequence[int]) -> tuple:
    return tuple(one for k, v in enumerate(values) for one in (v if k in lists else (v,))) if lists else tuple(values)


def _nested(flat: Sequence[Any], count: int, lists: Sequence[int], lengths: Sequence[int]) -> tuple:
    rest, left = iter(flat), iter(lengths)
    return tuple([next(rest) for _ in range(next(left))] if k in lists else next(rest) for k in range(count))


def schema_of(name: str) -> Schema:
    return Schema(getattr(torch.ops.fourfold, name).default._schema)


def _holds_tensors_in_list(kind: Any) -> bool:
    return str(kind).startswith("List[") and "Tensor" in str(kind)


def rule_of(forward: Schema, backward: Schema) -> Rule:
    def place(name: str, among: list[str]) -> int:
        if name not in among:
            raise ImportError(f"{backward.name}: nothing of {forward.name} is called {name}")
        return among.index(name)

    differentiable = tuple(place(name.removeprefix("grad_"), forward.arguments) for name in backward.results)
    sources = []
    for name in backward.arguments:
        if name == "output_mask":
            sources.append((MASK, 0))
        elif name == "grad":
            sources.append((GRADIENT, 0))
        elif name.startswith("grad_"):
            sources.append((GRADIENT, place(name.removeprefix("grad_"), forward.results)))
        elif name in forward.results:
            sources.append((OUTPUT, forward.results.index(name)))
        else:
            sources.append((ARGUMENT, place(name, forward.arguments)))
    outputs = 1 + max(at for kind, at in sources if kind == GRADIENT)
    return Rule(differentiable, outputs, tuple(sources))
