"""Models in files under a torch that fourfold has no module for: Python saves, loads and runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fourfold
from forked import Forks
from saved_models import CASES, exported, in_python

ANOTHER_TORCH = """
import sys, torch
torch.__version__ = torch.torch_version.TorchVersion("2.99.0")
import fourfold

def step(h, x):
    h = torch.tanh(h + x)
    return h, h * 2

class Step(torch.nn.Module):
    def forward(self, x, h, ring):
        ring.copy_(torch.cat([ring[1:], x[:1]]))
        h, y = fourfold.scan(step, h, x)
        return y + ring.sum(0), h

x, h, ring = torch.randn(3, 4), torch.zeros(4), torch.zeros(2, 4)
program = torch.export.export(Step(), (x.clone(), h.clone(), ring.clone()))
fourfold.save(program, sys.argv[1], state={"h": 1, "ring": None})
model = fourfold.load(sys.argv[1])
stream = model.stream()
for _ in range(3):
    wanted, h = Step()(x, h, ring)
    torch.testing.assert_close(stream(x), wanted)
torch.testing.assert_close(stream.state, {"h": h, "ring": ring})
print(model.arguments)
"""


def test_another_torch_runs_files_after_one_warning(tmp_path: Path, after_dynamo: Forks) -> None:
    done = after_dynamo.run("-c", ANOTHER_TORCH, str(tmp_path / "model.ff"))
    assert (done.returncode, done.stdout) == (0, "['x', 'h', 'ring']\n"), done.stderr
    assert done.stderr.count("Warning: ") == 1, done.stderr
    assert "UserWarning: fourfold runs gradients, calls and saved models in Python" in done.stderr


def leaves(given: object) -> list[object]:
    return [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in pytree.tree_leaves(given)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("strict")
def test_python_saves_and_computes_the_same(tmp_path: Path, name: str) -> None:
    torch.manual_seed(2)
    path, own = tmp_path / "model.ff", tmp_path / "own.ff"
    program = exported(name)
    fourfold.save(program, path)
    with in_python():
        fourfold.save(program, own)
        assert own.read_bytes() == path.read_bytes()
    for size in CASES[name].sizes[1:2]:
        given = CASES[name].inputs(size)
        found = []
        for executor in (in_python, None):
            args, kwargs = pytree.tree_map_only(Tensor, Tensor.clone, given)
            if executor is None:
                model = fourfold.load(path)
                results = model(*args, **kwargs)
                tensors = dict(model.tensors)
            else:
                with executor():
                    model = fourfold.load(path)
                    with torch.autocast("cpu", torch.bfloat16):  # means nothing to it
                        results = model(*args, **kwargs)
                    tensors = dict(model.tensors)
            found.append(leaves((results, args, kwargs, tensors)))
        torch.testing.assert_close(*found, rtol=2e-5, atol=1e-5)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: Tensor, h: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.cell(x + last, h)
        return x, h, h[:, :1] * 2


def test_streams_in_python_are_those_of_the_module(tmp_path: Path) -> None:
    torch.manual_seed(3)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    given = torch.randn(2, 3), torch.zeros(2, 4), torch.zeros(2, 3)
    program = torch.export.export(Cell().eval(), given, dynamic_shapes=(batch, batch, batch))
    with pytest.raises(ValueError, match="expected the result that last takes to be float32"), in_python():
        fourfold.save(program, tmp_path / "m.ff", state={"h": 1, "last": 2})
    with in_python():
        fourfold.save(program, tmp_path / "m.ff", state={"h": 1, "last": 0})
        streams = [fourfold.load(tmp_path / "m.ff").stream(h=torch.ones(3, 4))]
        with pytest.raises(ValueError, match="expected the name of a state, h, last, but got 'x'"):
            fourfold.load(tmp_path / "m.ff").stream(x=torch.ones(1))
    streams.append(fourfold.load(tmp_path / "m.ff").stream(h=torch.ones(3, 4)))
    frame, found = torch.empty(3, 3), []
    for stream, executor in zip(streams, (in_python, pytest.MonkeyPatch.context), strict=True):
        torch.manual_seed(4)
        with executor():
            results = [stream(frame.normal_()).clone() for _ in range(2)]  # the same memory in each call
            state = stream.state
            stream.reset(torch.tensor([False, True, False]))
            assert torch.equal(stream.state["h"][1], torch.ones(4)) and not torch.equal(stream.state["h"], state["h"])
            results.append(stream(frame.normal_()))
            with pytest.raises(ValueError, match="expected dimension 0 of h to be dimension 0 of x = 2, but got 3"):
                stream(torch.randn(2, 3))
            with pytest.raises(ValueError, match="^reset: expected streams to have 3 elements, as dimension 0 of h"):
                stream.reset(torch.tensor([False, True]))
            with pytest.raises(ValueError, match="^reset: expected h to have a dimension 5 that counts the streams"):
                stream.reset(torch.tensor([False, True, False]), dim=5)
            found.append([*results, *state.values(), *stream.state.values()])
            stream.reset()
            assert stream.state == {}
    torch.testing.assert_close(*found, rtol=2e-5, atol=1e-5)
