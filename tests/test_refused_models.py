"""Files that fourfold.load rejects: the error says what is wrong, and nothing in them runs."""

from __future__ import annotations

import contextlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from saved_models import CASES, in_python, rewritten, saved


@pytest.fixture(autouse=True, params=[contextlib.nullcontext, in_python], ids=["C++", "Python"])
def executor(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param():
        yield


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("block", tmp_path_factory.mktemp("files"))


def first_operator(inner: dict[str, Any]) -> dict[str, Any]:
    return next(step for step in inner["graph"]["steps"] if step.get("operator") == "aten::addmm")


def set_version(own: dict[str, Any], _: Any) -> None:
    own["__metadata__"]["fourfold.version"] = "2"


def rename(name: str, **arguments: Any) -> Any:
    def change(_: Any, inner: dict[str, Any]) -> None:
        step = first_operator(inner)
        step["operator"] = name
        step["arguments"] = arguments or step["arguments"]

    return change


def change_arguments(change: Any) -> Any:
    return lambda _, inner: change(first_operator(inner)["arguments"])


CHANGED = {
    "newer": (set_version, "it has version 2, and this fourfold reads files up to version 1: upgrade fourfold"),
    "tensors": (
        lambda own, _: own["__metadata__"].pop("fourfold.version"),
        "it is a safetensors file that fourfold.save did",
    ),
    "namespace": (rename("evil::run"), "expected operators of aten, fourfold, prims, but the file calls 'evil::run'"),
    "from_file": (rename("aten::from_file"), "the file calls 'aten::from_file', which fourfold doesn't run for a file"),
    "set": (rename("aten::set_.source_Tensor"), "expected no operator that changes its arguments, but the file calls"),
    "add": (rename("aten::add_.Tensor"), "expected no operator that changes its arguments, but the file calls"),
    "out": (rename("aten::add.out"), "expected no operator that changes its arguments, but the file calls"),
    "empty": (
        rename("aten::empty.memory_format"),
        "the file calls 'aten::empty.memory_format', which fourfold doesn't run",
    ),
    "unknown": (
        rename("aten::nothing"),
        "expected an operator that this torch has, but the file calls 'aten::nothing'",
    ),
    "argument": (
        change_arguments(lambda a: a.update(new=1)),
        "the file gives aten::addmm an argument that this torch's has not",
    ),
    "later value": (
        change_arguments(lambda a: a.update(mat1={"value": 500})),
        "expected a value to be at least 0 and below ",
    ),
    "type": (
        change_arguments(lambda a: a.update(mat1=[1])),
        "expected argument mat1 of aten::addmm to be Tensor, but got another constant",
    ),
    "missing": (
        change_arguments(lambda a: a.pop("mat2")),
        "expected argument mat2 of aten::addmm to be Tensor, but got none",
    ),
    "kind": (lambda _, inner: inner["arguments"].append({"name": "x"}), "expected an argument to have 'constant'"),
    "program": (
        lambda _, inner: inner["programs"][0].update(text="fourfold program 2"),
        "program: line 1: expected 'fourfold program 1'",
    ),
    "step": (
        lambda _, inner: inner["graph"]["steps"].append({"call": 1}),
        "expected a step to be an operator, a program",
    ),
    "output": (lambda _, inner: inner["graph"]["outputs"].append(-1), "expected a value to be at least 0 and below"),
    "dtype": (
        lambda own, _: own["out.bias"].update(dtype="F65"),
        "expected a dtype that fourfold knows, but got 'F65'",
    ),
    "shape": (
        lambda own, _: own["out.bias"].update(shape=[17]),
        "expected the data_offsets of 'out.bias' to be 68 bytes",
    ),
    "overflow": (
        lambda own, _: own["out.bias"].update(shape=[2**62, 2**62]),
        "expected the shape of 'out.bias' to have fewer elements",
    ),
    "gap": (lambda own, _: own.pop("qkv.bias"), "expected the bytes of "),
}


@pytest.mark.parametrize("what", CHANGED)
def test_files_that_are_wrong_are_refused(block: Path, tmp_path: Path, what: str) -> None:
    change, message = CHANGED[what]
    path = rewritten(block, tmp_path / "m.ff", change)
    with pytest.raises(ValueError) as error:
        fourfold.load(path)
    start = f"load: expected {path} to be a model that fourfold.save wrote, but "
    assert str(error.value).startswith(start + message), str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"1234")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "long").write_bytes(struct.pack("<Q", 2**63) + b"{}")
    for name, message in (
        ("short", "expected at least 8 bytes, but got 4; the file may have been cut off"),
        ("empty", "expected at least 8 bytes, but got 0; the file may have been cut off"),
        (
            "long",
            "expected a safetensors header of at most 2 bytes, but its length is given as 9223372036854775808; "
            "the file may have been cut off, or be of another format",
        ),
        (".", "it is no regular file"),
    ):
        with pytest.raises(ValueError, match=f"but {message}$"):
            fourfold.load(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="No such file or directory: '.*none'$"):
        fourfold.load(tmp_path / "none")


def test_a_device_that_is_not_there_is_named(block: Path) -> None:
    wanted = r"^load: expected a device that torch can use here, but got 'cuda:99': torch says: [^\n]+$"
    with pytest.raises(ValueError, match=wanted):
        fourfold.load(block, device="cuda:99")


def test_a_file_that_is_too_long_was_not_cut_off(block: Path, tmp_path: Path) -> None:
    (tmp_path / "m.ff").write_bytes(block.read_bytes() + b"x")
    with pytest.raises(ValueError, match=r"expected (\d+) bytes behind the header, but got \d+$"):
        fourfold.load(tmp_path / "m.ff")
    (tmp_path / "m.ff").write_bytes(block.read_bytes()[:-1])
    with pytest.raises(ValueError, match="bytes behind the header, but got .*; the file may have been cut off$"):
        fourfold.load(tmp_path / "m.ff")


def test_json_is_read_strictly(block: Path, tmp_path: Path) -> None:
    for text, message in (
        ('{"a":1,"a":2}', "expected no key twice"),
        ("[" * 200 + "]" * 200, "expected no deeper lists and objects"),
        ('{"a":01}', "expected a value"),
        ('{"a":1}x', "expected nothing behind the value"),
        ('{"a":99999999999999999999}', "expected an integer of 64 bits"),
        ('{"a":1e999}', "expected a number that float64 holds"),
        ('{"a":1e-999}', "expected a number that float64 holds"),
        ('{"a":"\\ud800"}', "expected a whole character"),
        ('{"a":"\\x"}', "expected an escape that JSON has"),
        ('{"a":NaN}', "expected a value"),
        ('{"a":', "expected a value"),
    ):
        (tmp_path / "m.ff").write_bytes(struct.pack("<Q", len(text)) + text.encode())
        with pytest.raises(ValueError, match=f"invalid JSON at byte .*{message}$"):
            fourfold.load(tmp_path / "m.ff")
    (tmp_path / "m.ff").write_bytes(struct.pack("<Q", 9) + b'{"a":"\xff"}')
    with pytest.raises(ValueError, match="expected UTF-8"):
        fourfold.load(tmp_path / "m.ff")


def test_items_that_a_list_has_not_are_refused(block: Path, tmp_path: Path) -> None:
    def change(_: Any, inner: dict[str, Any]) -> None:
        item = next(step["item"] for step in inner["graph"]["steps"] if "item" in step)
        item[1] = 500

    loaded = fourfold.load(rewritten(block, tmp_path / "m.ff", change))
    args, kwargs = CASES["block"].inputs(5)
    with pytest.raises(ValueError, match="^graph: expected a list of more than 500 tensors, but got 3$"):
        loaded(*args, **kwargs)


def test_structures_run_nothing(block: Path, tmp_path: Path) -> None:
    """A file has names of types; their modules are not imported."""

    def change(own: dict[str, Any], _: Any) -> None:
        structure = json.loads(own["__metadata__"]["fourfold.structure"])
        structure["outputs"] = {"registered": ["*"] * 5, "type": "antigravity.Thing", "context": "null"}
        own["__metadata__"]["fourfold.structure"] = json.dumps(structure)

    loaded = fourfold.load(rewritten(block, tmp_path / "m.ff", change))
    args, kwargs = CASES["block"].inputs(5)
    with pytest.raises(TypeError, match=r"expected the type 'antigravity.Thing' to be registered"):
        loaded(*args, **kwargs)
    assert "antigravity" not in sys.modules


def test_no_module_is_imported_for_a_structure(block: Path, tmp_path: Path) -> None:
    """torch's own defaultdict has the name of its factory's module."""

    def change(own: dict[str, Any], _: Any) -> None:
        structure = json.loads(own["__metadata__"]["fourfold.structure"])
        context = {
            "default_factory_module": "antigravity",
            "default_factory_name": "fly",
            "dict_context": list("abcde"),
        }
        kind = {"registered": ["*"] * 5, "type": "collections.defaultdict", "context": json.dumps(context)}
        own["__metadata__"]["fourfold.structure"] = json.dumps(structure | {"outputs": kind})

    with pytest.raises(ValueError, match="expected the structure of arguments and results"):
        fourfold.load(rewritten(block, tmp_path / "m.ff", change))
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "outputs",
    [[], {}, 3, {"tuple": ["*", {}, "*"]}, {"tuple": 5}, {"dict": ["*", "*"], "keys": ["a", "a"]}]
    + [{"namedtuple": ["*"], "name": "N", "fields": ["_a"]}, {"registered": [], "type": "x", "context": "{"}],
    ids=str,
)
def test_other_structures_are_refused(block: Path, tmp_path: Path, outputs: Any) -> None:
    def change(own: dict[str, Any], _: Any) -> None:
        structure = json.loads(own["__metadata__"]["fourfold.structure"])
        own["__metadata__"]["fourfold.structure"] = json.dumps(structure | {"outputs": outputs})

    with pytest.raises(ValueError, match="expected the structure of arguments and results"):
        fourfold.load(rewritten(block, tmp_path / "m.ff", change))


def concatenation(strides: list[int], *steps: dict[str, Any]) -> Any:
    """Two parts of one element, then more steps; the result is the whole tensor."""

    def change(_: Any, inner: dict[str, Any]) -> None:
        described = {"sizes": [2], "strides": strides, "dtype": "float32", "dimension": 0, "lengths": [1, 1]}
        inner["programs"] = []
        inner["graph"] = {"steps": [{"concatenation": described}, *steps], "outputs": [1]}

    return change


def copy(into: int, value: int) -> dict[str, Any]:
    return {"operator": "aten::copy_", "arguments": {"self": {"value": into}, "src": {"value": value}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (concatenation([3], copy(2, 0), copy(3, 0)), "expected a concatenation without gaps and overlaps"),
        (concatenation([1], copy(2, 2), copy(3, 0)), "expected the parts of a concatenation to be written before"),
        (concatenation([1], copy(2, 0)), "expected the parts of a concatenation to be written before"),
    ],
    ids=["gaps", "itself", "half"],
)
def test_memory_that_nothing_wrote_is_not_read(tmp_path: Path, change: Any, message: str) -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ x

    fourfold.save(torch.export.export(Twice(), (torch.randn(1),)), tmp_path / "twice.ff")
    written = fourfold.load(
        rewritten(tmp_path / "twice.ff", tmp_path / "m.ff", concatenation([1], copy(2, 0), copy(3, 0)))
    )
    assert written(torch.full((1,), 7.0)).tolist() == [7, 7]
    with pytest.raises(ValueError, match=message):
        fourfold.load(rewritten(tmp_path / "twice.ff", tmp_path / "m.ff", change))


def test_a_view_by_an_absolute_offset_is_the_same_in_every_step(tmp_path: Path) -> None:
    """A step's element is a part of the whole series; a view whose offset moved with the steps would exceed its end."""

    def change(_: Any, inner: dict[str, Any]) -> None:
        (whole,) = (step for step in inner["graph"]["steps"] if "graph" in step)
        (loop,) = (step["loop"] for step in whole["graph"]["steps"] if "loop" in step)
        view = {"self": {"value": 1}, "size": [3, 5], "stride": [5, 1], "storage_offset": 30}
        steps = [
            {"operator": "aten::as_strided", "arguments": view},
            {"operator": "aten::add.Tensor", "arguments": {"self": {"value": 0}, "other": {"value": 5}}},
            {"operator": "aten::clone", "arguments": {"self": {"value": 5}}},
        ]
        loop["body"] = {"steps": steps, "outputs": [6, 7]}

    model = fourfold.load(rewritten(saved("scan", tmp_path), tmp_path / "m.ff", change))
    (x, h), _ = CASES["scan"].inputs(7)
    y, last = model(x, h)
    third = x.flip(0)[2]  # the steps run backward
    torch.testing.assert_close(y, (third + 1).expand(7, 3, 5))
    torch.testing.assert_close(last, h + 7 * third)
