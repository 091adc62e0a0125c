"""Schemas are a contract: exported and compiled programs on disk refer to them. A released schema only gains arguments
with defaults; docs/operators.md is its table."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import fourfold
from fourfold.operators._elementwise import ELEMENTWISE
from fourfold.operators._operator import declared
from fourfold.operators._schema import ARGUMENT, GRADIENT, MASK, OUTPUT

DOCUMENT = Path(__file__).parent.parent / "docs" / "operators.md"


def registered() -> dict[str, str]:
    """The schemas of all public operators, including gradients. Names with an underscore are internal: compiled graphs
    call programs by ``_run_program`` under a torch without a compiled module of its own."""
    names = {
        n.removeprefix("fourfold::").split(".")[0]
        for n in torch._C._dispatch_get_all_op_names()
        if n.startswith("fourfold::") and not n.startswith("fourfold::_")
    }
    return {name: str(getattr(torch.ops.fourfold, name).default._schema) for name in sorted(names)}


def documented() -> dict[str, str]:
    schemas = re.findall(r"^fourfold::(\w+)(\(.*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    found = {name: f"fourfold::{name}{rest}" for name, rest in schemas}
    for name in ELEMENTWISE:  # the page describes their gradients in one sentence
        numbers = re.sub(r"=[^,)]+", "", found[name].partition("(")[2].removesuffix(" -> Tensor"))
        found[f"{name}_backward"] = f"fourfold::{name}_backward(Tensor grad, {numbers} -> Tensor grad_x"
    return found


SHIPPED = Path(__file__).parent / "schemas"  # one file per release, never changed


def test_shipped_schemas_still_serve() -> None:
    """A program on disk has a release's schema: today's must accept its calls."""
    shipped = [line for path in sorted(SHIPPED.glob("*.txt")) for line in path.read_text().splitlines()]
    assert shipped
    for line in shipped:
        old = torch._C.parse_schema(line)
        new = torch._C.parse_schema(registered()[old.name.removeprefix("fourfold::")])
        assert new.is_backward_compatible_with(old), f"{new} no longer takes the calls of {old}"


def test_every_operator_has_its_schema_in_the_documentation() -> None:
    assert registered() == documented()


def test_the_pages_example_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    exec(compile(example, "operators.md", "exec"), names := {})
    torch.testing.assert_close(names["z"], 2 * names["x"] + names["y"])


def test_every_operator_of_the_build_is_registered() -> None:
    assert set(fourfold.operator_names()) <= set(registered())
    gradients = {n for n in registered() if n.endswith("_backward")}
    # Operators that prepack weights return bytes, which have no gradient.
    packs = {n for n in registered() if n.endswith("_prepack")}
    assert set(registered()) == set(fourfold.operator_names()) | gradients | packs
    assert {n.removesuffix("_backward") for n in gradients} <= set(fourfold.operator_names())
    assert {n.removesuffix("_prepack") for n in packs} <= set(fourfold.operator_names())
    # Each is declared in Python, which makes it differentiable.
    assert set(registered()) - packs == set(declared)


def test_schemas_follow_the_rule_of_gradients() -> None:
    """docs/design.md has the rule; code that reads the schemas has no other information."""
    order = [GRADIENT, ARGUMENT, OUTPUT, MASK]
    for name in fourfold.operator_names():
        operator = declared[name]
        if operator.backward is None:
            assert name == "axpby", "the one operator whose gradient is torch's own scaling"
            continue
        schema, kinds = operator.backward.schema, [kind for kind, _ in operator.rule.sources]
        assert kinds == sorted(kinds, key=order.index)
        assert kinds.count(MASK) == (len(schema.results) > 1)
        assert all(result.startswith("grad_") for result in schema.results)
        # A flag requests the saved tensors, which are returned after the differentiable results.
        assert ("save_for_backward" in operator.schema.arguments) == bool(operator.kept)
        wanted = [schema.arguments[k] for k, kind in enumerate(kinds) if kind == GRADIENT]
        named = [f"grad_{result}" for result in operator.schema.results[: operator.rule.outputs]]
        assert wanted in (named, ["grad"])
