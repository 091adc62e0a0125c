"""fourfold.save and fourfold.load: a loaded model computes what was exported; invalid arguments are rejected."""

from __future__ import annotations

import copy
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fourfold
from forked import Forks
from fourfold import _native
from saved_models import CASES, exported, graph, header, made, rewritten, saved

pytestmark = [
    pytest.mark.usefixtures("strict"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    return {name: saved(name, folder) for name in CASES}


def copied(given: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.detach().clone(), given)


def assert_same(mine: Any, theirs: Any) -> None:
    mine_paths, their_paths = (
        [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(t)] for t in (mine, theirs)
    )
    assert mine_paths == their_paths  # namedtuples are types with the same names and fields
    for a, b in zip(pytree.tree_leaves(mine), pytree.tree_leaves(theirs), strict=True):
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-5)
        else:
            assert type(a) is type(b) and a == b


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_model_computes_what_was_exported(files: dict[str, Path], name: str) -> None:
    model, loaded = made(name), fourfold.load(files[name])
    for _ in range(2):
        for size in CASES[name].sizes:
            args, kwargs = CASES[name].inputs(size)
            own_args, own_kwargs = copied((args, kwargs))
            with torch.no_grad():
                wanted = model(*args, **kwargs)
            found = loaded(*own_args, **own_kwargs)
            assert_same(found, wanted)
            assert_same((own_args, own_kwargs), (args, kwargs))  # also if the model changes them
    state = dict(model.named_buffers())
    assert_same({key: loaded.tensors[key] for key in state}, state)


def test_the_cases_have_every_kind_of_step(files: dict[str, Path]) -> None:
    kinds: set[str] = set()

    def visit(node: Any) -> None:
        for step in node.get("steps", ()):
            kinds.add(next(iter(step)))
            visit(step.get("graph") or step.get("loop", {}).get("body", {}))
            kinds.update({"updates"} & step.keys())

    for path in files.values():
        visit(graph(path)["graph"])
        kinds.update({"by operators"} if graph(path)["programs"] else ())
    wanted = {"operator", "program", "item", "constant", "number", "concatenation", "loop", "graph", "updates"}
    assert wanted <= kinds | {"constant"}, wanted - kinds


def test_any_reader_of_safetensors_opens_the_weights(files: dict[str, Path]) -> None:
    """As specified: the tensors fill the bytes after the header, aligned to their dtypes."""
    model, own = made("block"), header(files["block"])
    data = files["block"].read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert (8 + length) % 64 == 0
    own.pop("__metadata__")
    assert own.keys() == dict(model.named_parameters()).keys()
    end = 0
    for name, entry in sorted(own.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        assert begin == end and (8 + length + begin) % 4 == 0
        end = stop
        found = torch.frombuffer(bytearray(data[8 + length + begin : 8 + length + stop]), dtype=torch.float32)
        assert torch.equal(found.view(entry["shape"]), model.get_parameter(name))
    assert 8 + length + end == len(data)


def test_shared_parameters_are_stored_once(files: dict[str, Path]) -> None:
    names = {each["name"]: each["data"] for each in graph(files["counter"])["tensors"]}
    assert names["weight"] == names.get("tied", "weight")
    assert "tied" not in header(files["counter"])
    loaded = fourfold.load(files["counter"])
    assert loaded.tensors["weight"].stride() == made("counter").weight.stride()


def test_weights_lie_in_the_files_memory(files: dict[str, Path], tmp_path: Path) -> None:
    loaded = fourfold.load(files["block"])
    before = files["block"].read_bytes()
    loaded.tensors["out.weight"].zero_()  # changes only this process's copy
    assert files["block"].read_bytes() == before
    assert fourfold.load(files["block"]).tensors["out.weight"].any()
    assert loaded.tensors["qkv.weight"].data_ptr() % 64 == 0


@pytest.mark.parametrize("name", CASES)
def test_operators_take_the_place_of_programs_elsewhere(files: dict[str, Path], name: str) -> None:
    """On a device without programs: shapes and dtypes of torch's meta device."""
    model = fourfold.load(files[name], device="meta")
    if name == "stream":
        pytest.skip("fourfold's operators have no kernels for the meta device in C++")
    args, kwargs = CASES[name].inputs(CASES[name].sizes[1])
    with torch.no_grad():
        wanted = made(name)(*args, **kwargs)
    found = model(*pytree.tree_map_only(Tensor, lambda t: t.to("meta"), args), **pytree.tree_map_only(
        Tensor, lambda t: t.to("meta"), kwargs
    ))  # fmt: skip
    for mine, theirs in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
        if isinstance(theirs, Tensor):
            assert mine.device.type == "meta" and mine.shape == theirs.shape and mine.dtype == theirs.dtype


def by_operators(_: Any, inner: dict[str, Any]) -> None:
    """Replaces each program by its operators, and its in-place writes by copies."""
    for step in inner["graph"]["steps"]:
        if "program" not in step:
            continue
        operators = copy.deepcopy(inner["programs"][step.pop("program")]["operators"])
        updates = step.pop("updates", [])
        count = len(step["inputs"])
        for node in [each for each in operators["steps"] if "arguments" in each]:
            node["arguments"] = shifted(node["arguments"], count, len(updates))
        operators["outputs"] = [k + len(updates) if k >= count else k for k in operators["outputs"]]
        for k, (output, _) in enumerate(updates):
            given = {"self": {"value": count + k}, "src": {"value": operators["outputs"][output]}}
            operators["steps"].append({"operator": "aten::copy_", "arguments": given})
        step["inputs"] += [value for _, value in updates]
        step["graph"] = operators
        step.pop("results", None)


def shifted(given: Any, first: int, by: int) -> Any:
    if isinstance(given, list):
        return [shifted(each, first, by) for each in given]
    if isinstance(given, dict):
        is_later = given.keys() == {"value"} and given["value"] >= first
        return {"value": given["value"] + by} if is_later else {k: shifted(v, first, by) for k, v in given.items()}
    return given


@pytest.mark.parametrize("name", [name for name in CASES if name != "cache"])  # its programs write into new memory
def test_operators_compute_what_programs_do(files: dict[str, Path], name: str, tmp_path: Path) -> None:
    loaded = fourfold.load(rewritten(files[name], tmp_path / "m.ff", by_operators))
    other = fourfold.load(files[name])
    for size in CASES[name].sizes:
        args, kwargs = CASES[name].inputs(size)
        own = copied((args, kwargs))
        assert_same(loaded(*args, **kwargs), other(*own[0], **own[1]))
        assert_same((args, kwargs), own)


REFUSED_CALLS = {
    "dtype": (lambda x: x.double(), "model: expected x to be float32, but got float64"),
    "rank": (lambda x: x[0], "model: expected x to be of 3 dimensions, but got a shape of 2"),
    "static": (lambda x: x[..., :9], "model: expected dimension 2 of x to be 16, but got 9"),
    "bound": (
        lambda x: x.repeat(1, 20, 1),
        "model: expected dimension 1 of x to be between 2 and 64, but got 100",
    ),
    "kind": (lambda x: 3, "model: expected x to be a tensor, but got 3"),
    "layout": (lambda x: x.to_sparse(), "model: expected x to be a strided tensor, but got Sparse"),
    "device": (
        lambda x: x.to("meta"),
        "model: expected x to be on cpu, where the model is, but got meta; move the tensor, or load the file with that "
        "device",
    ),
}


@pytest.mark.parametrize("what", REFUSED_CALLS)
def test_calls_that_do_not_fit_are_refused(files: dict[str, Path], what: str) -> None:
    change, message = REFUSED_CALLS[what]
    (x, causal), kwargs = CASES["block"].inputs(5)
    with pytest.raises(ValueError) as error:
        fourfold.load(files["block"])(change(x), causal, **kwargs)
    assert str(error.value) == message


def test_arguments_of_another_structure_are_refused(files: dict[str, Path]) -> None:
    loaded = fourfold.load(files["block"])
    (x, causal), kwargs = CASES["block"].inputs(5)
    for call, message in (
        (
            lambda: loaded(x, False, **kwargs),
            "expected causal to be True, as the model was exported with, but got False",
        ),
        (lambda: loaded(x, **kwargs), "expected 2 arguments without names, but got 1"),
        (lambda: loaded(x, causal), "expected the named arguments scale, but got none"),
        (lambda: loaded(x, causal, scales=1), "expected the named arguments scale, but got scales"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^model: {message}$"):
            call()
    stream = fourfold.load(files["stream"])
    (x, (h, c)), _ = CASES["stream"].inputs(5)
    for state, got in ((h, "Tensor"), ((h,), "tuple of 1")):
        with pytest.raises(TypeError, match=f"^model: expected argument 1 to be a tuple of 2, but got {got}$"):
            stream(x, state)
    with pytest.raises(ValueError, match="^model: expected state_1 to be a tensor, but got None$"):
        stream(x, (h, None))
    wanted = "^model: expected x to be a tensor or a number, but got list; convert it with torch.as_tensor$"
    with pytest.raises(TypeError, match=wanted):
        stream(x.tolist(), (h, c))


def test_derived_sizes_are_checked(tmp_path: Path) -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.view(2, -1) + y

    n = torch.export.Dim("n", min=2, max=50)
    program = torch.export.export(Halves(), (torch.ones(8), torch.ones(4)), dynamic_shapes=({0: 2 * n}, {0: n}))
    fourfold.save(program, tmp_path / "m.ff")
    loaded = fourfold.load(tmp_path / "m.ff")
    assert loaded(torch.ones(12), torch.ones(6)).shape == (2, 6)
    with pytest.raises(ValueError, match="model: expected dimension 0 of x to be .*a multiple of 2, but got 9"):
        loaded(torch.ones(9), torch.ones(4))
    with pytest.raises(ValueError, match=r"model: expected dimension 0 of y to be n?\w* = 6, but got 4"):
        loaded(torch.ones(12), torch.ones(4))
    with pytest.raises(ValueError, match="between 2 and 50, but got 60"):
        loaded(torch.ones(120), torch.ones(60))


def test_equal_sizes_are_named_by_their_places(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    n = torch.export.Dim("n", min=2, max=50)
    program = torch.export.export(Sum(), (torch.ones(8), torch.ones(3, 8)), dynamic_shapes=({0: n}, {1: n}))
    fourfold.save(program, tmp_path / "m.ff")
    with pytest.raises(ValueError, match="^model: expected dimension 1 of y to be dimension 0 of x = 6, but got 4$"):
        fourfold.load(tmp_path / "m.ff")(torch.ones(6), torch.ones(3, 4))


def test_a_call_computes_no_gradients(files: dict[str, Path]) -> None:
    (x, h), _ = CASES["scan"].inputs(5)
    y, _ = fourfold.load(files["scan"])(x.requires_grad_(), h)
    assert not y.requires_grad and torch.is_grad_enabled()


def test_threads_call_one_model(files: dict[str, Path]) -> None:
    loaded = fourfold.load(files["scan"])
    args, _ = CASES["scan"].inputs(20)
    wanted, found = loaded(*args), []
    threads = [threading.Thread(target=lambda: found.extend(loaded(*args) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for each in found:
        assert_same(each, wanted)


def test_a_model_is_shown_in_words(files: dict[str, Path]) -> None:
    loaded = fourfold.load(files["block"])
    text = str(loaded)
    assert "x: float32 [2, n, 16], n from 2 to 64" in text.replace("s36", "n") or "float32 [2, " in text
    assert "aten::scaled_dot_product_attention" in text and "fourfold program 1" in text
    assert repr(loaded) == f"<fourfold model {str(files['block'])!r}: x, causal, scale>"
    assert loaded.arguments == ["x", "causal", "scale"]


@pytest.mark.skipif(_native.module is None, reason="Python runs graphs with the compiler's nodes")
def test_loading_imports_no_compiler(files: dict[str, Path], after_torch: Forks) -> None:
    code = f"""
import sys, torch, fourfold
before = set(sys.modules)
model = fourfold.load({str(files["counter"])!r})
model(torch.ones(4, 6), torch.ones(6))
late = ("torch._dynamo", "torch._inductor", "torch._export", "torch.fx", "fourfold.nn", "fourfold.compiler.passes",
        "fourfold.saving.save")
heavy = [name for name in set(sys.modules) - before if name.startswith(late)]
assert heavy == [], heavy
assert not any(name.startswith("fourfold.nn") for name in sys.modules)
"""
    after_torch.output_of("-c", code)


def test_a_file_is_replaced_at_once(tmp_path: Path, files: dict[str, Path]) -> None:
    path = tmp_path / "m.ff"
    path.write_bytes(files["scan"].read_bytes())
    old = fourfold.load(path)
    fourfold.save(exported("cache"), path)
    args, _ = CASES["scan"].inputs(5)
    old(*args)
    assert list(tmp_path.iterdir()) == [path]
    assert fourfold.load(path).arguments == ["input", "cache"]


def test_the_command_line_prints_a_file(files: dict[str, Path], after_torch: Forks) -> None:
    command = ("-m", "fourfold", "explain")
    said = after_torch.output_of(*command, files["scan"])
    assert said == f"{fourfold.load(files['scan'])}\n" and "= loop(" in said
    none = after_torch.run(*command, "none.ff")
    assert none.returncode == 2 and "but there is no file none.ff" in none.stderr


def test_a_registered_type_is_returned(tmp_path: Path) -> None:
    class Result:
        def __init__(self, a: Tensor, b: Tensor, name: str):
            self.a, self.b, self.name = a, b, name

    pytree.register_pytree_node(
        Result,
        lambda r: ([r.a, r.b], r.name),
        lambda values, name: Result(*values, name),
        serialized_type_name="test_saving.Result",
    )

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Result:
            return Result(x + 1, x * 2, "result")

    fourfold.save(torch.export.export(Model(), (torch.ones(3),)), tmp_path / "m.ff")
    found = fourfold.load(tmp_path / "m.ff")(torch.ones(3))
    assert type(found) is Result and found.name == "result" and found.b.tolist() == [2, 2, 2]


def test_copies_of_a_loaded_model_are_refused(files: dict[str, Path]) -> None:
    with pytest.raises(TypeError):
        copy.deepcopy(fourfold.load(files["block"]))


class Pairs(nn.Module):
    """Two inputs of one program have names with the same prefix."""

    def forward(self, b: Tensor) -> Tensor:
        i, a = b.prod(-1), (b * 2).prod(-1)
        return a[:, None] + a[None] - i


def test_inputs_of_a_program_have_names_of_their_own(tmp_path: Path) -> None:
    size = {0: torch.export.Dim("n", min=2, max=512)}
    fourfold.save(torch.export.export(Pairs(), (torch.randn(8, 2),), dynamic_shapes=(size,)), tmp_path / "m.ff")
    x = torch.randn(5, 2)
    torch.testing.assert_close(fourfold.load(tmp_path / "m.ff")(x), Pairs()(x))
