"""DTensors: every operator on two processes, what is rejected, and that torch's module is not imported needlessly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fourfold
from forked import Forks
from machine import FORK
from op_cases import CASES

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, after_dynamo: Forks) -> dict[str, dict[str, str]]:
    """For each case and way to place its arguments on two processes: the error, or ""."""
    folder = tmp_path_factory.mktemp("sharded")
    after_dynamo.output_of(HERE / "sharded.py", folder, FORK, cwd=HERE)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("op", sorted({case.op for case in CASES}))
def test_two_processes_give_what_one_gives(op: str, found: dict[str, dict[str, str]]) -> None:
    cases = {case.id: case for case in CASES if case.op == op}
    keys = [key for key in found if key.rpartition("-")[0] in cases]
    ran = {key.rpartition("-")[0] for key in keys}  # not all of those that differ only in sizes
    assert {name for name, case in cases.items() if case.every_path} <= ran <= set(cases)
    wrong = {f"{key}, {way}": error for key in keys for way, error in found[key].items() if error}
    assert not wrong, "\n".join(f"{where}: {error}" for where, error in wrong.items())
    assert any(way != "replicated" for key in keys for way in found[key])


def test_a_mesh_of_two_dimensions(found: dict[str, dict[str, str]]) -> None:
    assert found["two dimensions"] == dict.fromkeys(("values", "gradients", "placements", "sums"), "")


# The tests below run in this process only, on a mesh of one device: sharding there is nominal.


@pytest.fixture
def place(process_group: None) -> Callable[..., Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    return lambda tensor, placement: distribute_tensor(tensor, mesh, [placement])


def sequence(place: Callable[..., Tensor], **placements: Any) -> tuple:
    from torch.distributed.tensor import Replicate

    shapes = {"input": (6, 4, 3), "h_0": (4, 5), "c_0": (4, 5), "weight_ih": (20, 3), "weight_hh": (20, 5)}
    return tuple(place(torch.zeros(shape), placements.get(name, Replicate())) for name, shape in shapes.items())


BATCHED = "lstm: expected input to be sharded along dimension 1 (batch) or replicated, but got placements "
SO = "redistribute it before the call, "
FSDP = "or shard parameters by torch.distributed.fsdp.fully_shard, which gathers them"


@pytest.mark.parametrize(
    ("name", "dim", "sentence"),
    [
        ("input", 0, f"{BATCHED}(Shard(dim=0),); {SO}input.redistribute(placements=[Shard(1)])"),
        ("input", 2, f"{BATCHED}(Shard(dim=2),); {SO}input.redistribute(placements=[Shard(1)])"),
        ("h_0", 1, f"lstm: expected h_0 to be sharded along dimension 0 (batch) or replicated, but got placements "
         f"(Shard(dim=1),); {SO}h_0.redistribute(placements=[Shard(0)])"),
        ("weight_hh", 0, f"lstm: expected weight_hh to be replicated, but got placements (Shard(dim=0),); {SO}"
         f"weight_hh.redistribute(placements=[Replicate()]), {FSDP}"),
        ("weight_ih", 1, f"lstm: expected weight_ih to be replicated, but got placements (Shard(dim=1),); {SO}"
         f"weight_ih.redistribute(placements=[Replicate()]), {FSDP}"),
    ],
)  # fmt: skip
def test_what_no_part_can_compute_is_one_sentence(
    name: str, dim: int, sentence: str, place: Callable[..., Tensor]
) -> None:
    from torch.distributed.tensor import Shard

    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        fourfold.lstm(*sequence(place, **{name: Shard(dim)}))


def test_other_refusals(place: Callable[..., Tensor]) -> None:
    from torch.distributed.tensor import Replicate, Shard

    def lay(placement: Any, *shape: int) -> Tensor:
        return place(torch.zeros(shape), placement)

    weights = lay(Replicate(), 7, 3), None, lay(Replicate(), 2, 7), None
    with pytest.raises(ValueError, match=r"mlp: expected x to be sharded along dimension 0 or 1 or replicated"):
        fourfold.mlp(lay(Shard(2), 4, 5, 3), *weights)
    with pytest.raises(ValueError, match=r"mlp: expected output_weights to be replicated"):
        fourfold.mlp(lay(Shard(0), 4, 5, 3), weights[0], None, lay(Shard(0), 2, 7), None)
    with pytest.raises(ValueError, match=r"mlp_layers: expected weights to be replicated"):
        fourfold.mlp_layers(lay(Shard(0), 4, 3), [weights[0], lay(Shard(1), 2, 7)], None, "tanh")
    with pytest.raises(ValueError, match=r"lltm_cell: expected c to be sharded along dimension 0 \(batch\)"):
        fourfold.lltm_cell(lay(Shard(0), 4, 3), lay(Shard(0), 4, 5), lay(Shard(1), 4, 5), lay(Replicate(), 15, 8))
    batch_sizes = place(torch.tensor([3, 2]), Replicate())
    packed = (lay(Shard(0), 5, 3), *sequence(place)[1:], None, None, False, batch_sizes)
    packed = (packed[0], lay(Replicate(), 3, 5), lay(Replicate(), 3, 5), *packed[3:])
    with pytest.raises(ValueError, match=r"lstm: expected input to be replicated"):
        fourfold.lstm(*packed)
    with pytest.raises(RuntimeError, match=r"mixed torch.Tensor and DTensor"):  # torch's own error
        fourfold.softshrink(fourfold.axpby(lay(Shard(0), 4), torch.zeros(4)))
    kept = torch.ops.fourfold.lstm(*sequence(place, input=Shard(1)))
    given = [
        *kept[:3],
        *sequence(place, input=Shard(1)),
        None,
        None,
        False,
        None,
        None,
        False,
        kept[0],
        kept[3],
        kept[4],
    ]
    assert torch.ops.fourfold.lstm_backward(*given, [True] * 7)[0].placements == (Shard(1),)
    given[-2] = kept[3].redistribute(placements=[Replicate()])
    with pytest.raises(NotImplementedError, match=r"lstm_backward: expected kept as the forward call gave it"):
        torch.ops.fourfold.lstm_backward(*given, [True] * 7)


def test_what_decides_beside_the_tensors(place: Callable[..., Tensor]) -> None:
    """torch caches the result of a rule; calls that differ in a number, a mask or a missing tensor are different
    calls."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    args = sequence(place, input=Shard(1))
    bias = place(torch.zeros(20), Replicate())
    for biases in ((bias, None), (None, bias), (None, None), (bias, bias)):
        for keeps in (True, False):
            results = torch.ops.fourfold.lstm(*args, *biases, False, None, None, None, False, keeps)
            assert [tuple(r.shape) for r in results[3:]] == ([(24, 20), (24, 5)] if keeps else [(0,), (0,)])
            placed = Shard(0) if keeps else Replicate()
            assert [r.placements for r in results] == [(Shard(1),), (Shard(0),), (Shard(0),), (placed,), (placed,)]
            if keeps:
                given = (*results[:3], *args, *biases, False, None, None, False, results[0], *results[3:])
                for wanted in ((0, 3), (4,), (5, 6)):
                    mask = [k in wanted and not (k > 4 and biases[k - 5] is None) for k in range(7)]
                    for k, gradient in enumerate(torch.ops.fourfold.lstm_backward(*given, mask)):
                        placed = {True: Partial() if k > 2 else Shard(1 if k == 0 else 0), False: Replicate()}[mask[k]]
                        assert (gradient.placements, gradient.numel() > 0) == ((placed,), mask[k])


@pytest.mark.parametrize(("kind", "kept"), [("sum", True), ("avg", True), ("max", False)])
def test_sums_stay_sums_where_the_gradient_is_linear(kind: str, kept: bool, place: Callable[..., Tensor]) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    x, grad = torch.randn(5, 3), torch.randn(5, 3)
    mesh = place(x, Replicate()).device_mesh
    sums = DTensor.from_local(grad, mesh, [Partial(kind)])
    got = torch.ops.fourfold.softshrink_backward(sums, place(x, Replicate()), 0.5)
    assert got.placements == ((Partial(kind) if kept else Replicate()),)
    torch.testing.assert_close(got.full_tensor(), torch.ops.fourfold.softshrink_backward(grad, x, 0.5))
    assert torch.ops.fourfold.softshrink_backward(sums, place(x, Shard(1)), 0.5).placements == (Shard(1),)


def test_tensors_by_name_and_compiled(place: Callable[..., Tensor]) -> None:
    from torch.distributed.tensor import Replicate, Shard

    args = sequence(place, input=Shard(1))
    names = ("input", "h_0", "c_0", "weight_ih", "weight_hh")
    by_name = torch.ops.fourfold.lstm(**dict(zip(names, args, strict=True)))
    assert by_name[0].placements == (Shard(1),)
    x, y = place(torch.randn(6, 4, 3), Shard(1)), place(torch.randn(4, 3), Replicate())

    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(fourfold.axpby(fourfold.softshrink(x), y)) * 2

    got = torch.compile(f, backend="fourfold")(x, y)
    assert got.placements == (Shard(1),)
    torch.testing.assert_close(got.full_tensor(), f(x.full_tensor(), y.full_tensor()))


def test_laid_out_weights(place: Callable[..., Tensor]) -> None:
    from torch.distributed.tensor import Replicate, Shard

    weights = torch.randn(15, 8)
    packed = torch.ops.fourfold.lltm_prepack(place(weights, Replicate()))
    assert packed.placements == (Replicate(),)
    assert torch.equal(packed.to_local(), torch.ops.fourfold.lltm_prepack(weights))
    with pytest.raises(NotImplementedError, match="lltm_prepack: expected weights to be replicated"):
        torch.ops.fourfold.lltm_prepack(place(weights, Shard(0)))


def test_every_operator_has_a_rule() -> None:
    from torch.distributed.tensor import DTensor

    found = {op.name() for op in DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs}
    # A program, whose name begins with "_", gets the local tensors that AOTAutograd makes of DTensors.
    names = [name for name in torch._C._dispatch_get_all_op_names() if re.match("fourfold::[^_]", name)]
    assert len(names) > 15
    assert [name for name in names if name not in found] == []


@pytest.mark.parametrize("first", ["fourfold", "torch.distributed.tensor"])
def test_whichever_is_imported_first(first: str, after_torch: Forks) -> None:
    code = f"""
import importlib, sys, torch, {first}
if {first!r} == "fourfold":
    assert "torch.distributed.tensor" not in sys.modules
import fourfold
importlib.reload(fourfold)
from torch.distributed.tensor import DTensor
importlib.reload(fourfold)
rules = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
assert torch.ops.fourfold.lstm_backward.default in rules
assert not [finder for finder in sys.meta_path if getattr(finder, "name", "") == "torch.distributed.tensor"]
"""
    after_torch.output_of("-c", code)


def test_a_torch_whose_rules_changed_is_a_warning(after_torch: Forks) -> None:
    """torch.distributed.tensor itself stays usable."""
    code = """
import sys, warnings, torch, fourfold
sys.modules["torch.distributed.tensor._op_schema"] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from fourfold.operators import _axes
    _axes._register(None)
(warning,) = caught
assert "fourfold has no sharding rules for the DTensors of torch" in str(warning.message), warning.message
"""
    after_torch.output_of("-c", code)
