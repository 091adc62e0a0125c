"""Models that fourfold.save rejects, or that fourfold.load rejects unless the caller allows their operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fourfold

pytestmark = [
    pytest.mark.usefixtures("strict"),
]


class Cond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.ones(3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.c * x).real


class ComplexNumber(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 1j


class Sparse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.empty_strided((3,), (1,)) + x


class Shares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        whole = torch.zeros(4)
        self.register_buffer("a", whole[:3])
        self.register_buffer("b", whole[1:])

    def forward(self, x: Tensor) -> Tensor:
        self.a.add_(x)
        return self.b + x


REFUSED = {
    Cond: "save: expected a graph that runs without Python, but it has torch's cond, which runs in Python; "
    "compute both branches and choose with torch.where",
    Complex: "save: expected c to have a dtype that safetensors holds, but got torch.complex64; "
    "export torch.view_as_real",
    ComplexNumber: "save: expected a graph that runs without Python, but it has the complex number 1j; "
    "build the result from real tensors with torch.complex",
    Sparse: "save: expected a graph that can be loaded, but the file calls 'aten::empty_strided'",
    Shares: "save: expected b and a to share no memory, since the model changes one in place",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_file_can_not_hold_is_refused(kind: type[nn.Module], tmp_path: Path) -> None:
    program = torch.export.export(kind(), (torch.ones(3),))
    with pytest.raises(ValueError) as error:
        fourfold.save(program, tmp_path / "m.ff")
    assert str(error.value).startswith(REFUSED[kind])
    assert list(tmp_path.iterdir()) == []


def test_only_exported_programs_are_saved(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"^save: expected the program that torch.export.export returns, but got Linear; c"
    ):
        fourfold.save(nn.Linear(2, 2), tmp_path / "m.ff")


@pytest.mark.parametrize("name", ["nowhere/m.ff", "."])
def test_a_path_that_can_not_be_a_file_is_refused(name: str, tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(3, 2),))
    with pytest.raises(ValueError, match="^save: expected path to name a file in a folder that exists, but got '"):
        fourfold.save(program, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_operator_of_others_needs_their_word(tmp_path: Path) -> None:
    @torch.library.custom_op("test_unsaved_models::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return twice(x) + 1

    fourfold.save(torch.export.export(Twice(), (torch.ones(3),)), tmp_path / "m.ff")
    with pytest.raises(
        ValueError, match=r"but the file calls 'test_unsaved_models::twice'; if you trust the file, allow its na"
    ):
        fourfold.load(tmp_path / "m.ff")
    assert fourfold.load(tmp_path / "m.ff", allow=("test_unsaved_models",))(torch.ones(3)).tolist() == [3, 3, 3]
    with pytest.raises(TypeError, match="^load: expected allow to be a tuple of namespaces"):
        fourfold.load(tmp_path / "m.ff", allow="test_unsaved_models")
