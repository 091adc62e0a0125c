"""Loop nests compiled ahead of time for C++ programs: the results are those of the interpreter, bit by bit, on every
CPU level, and programs find all of their nests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold.cli import main
from machine import linux_only, output_of, tool
from test_consumer import SURROUNDINGS, built, configured, libtorch  # noqa: F401

pytestmark = [linux_only, pytest.mark.slow]

CALLS = ["--call", "300x40,17x9,6x8x32,3", "--call", "2x40,1x9,40x8x32,3"]
WITHOUT_BITCODE = "from fourfold.compiler.nest.jit import bitcode; bitcode.functions = lambda level: {}"
OTHER_VERSION = "import fourfold.compiler.nest.objects as made; made.__version__ = '9.9'"


class Model(nn.Module):
    """Rows, columns, a transposed tensor, sums, several dtypes, a number, elementary functions, and a loop."""

    def forward(self, x: Tensor, y: Tensor, steps: Tensor, power: int) -> tuple[Tensor, ...]:
        rows = torch.softmax(nn.functional.gelu(x) * x.std(-1, keepdim=True), -1)
        turned = (x.t().sin() + 1).contiguous() * power
        halves = torch.tanh(y.bfloat16()).float() + y.double().exp().float() + torch.pow(y.abs() + 1, 1.7)

        def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            carry = torch.sigmoid(x + carry) * carry + torch.log1p(x.abs())
            return carry, carry * torch.cos(x)

        return rows, turned, halves, (y * y).sum(0), fourfold.scan(step, torch.zeros_like(steps[0]), steps)[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("objects") / "model.ff"
    sizes = [{0: torch.export.Dim(name, min=1, max=4096)} for name in ("rows", "lines", "steps")]
    example = torch.zeros(5, 40), torch.zeros(4, 9), torch.zeros(7, 8, 32), 3
    fourfold.save(torch.export.export(Model(), example, dynamic_shapes=(*sizes, torch.export.Dim.DYNAMIC)), path)
    return path


@pytest.fixture(scope="module")
def program(configured: Path) -> Path:  # noqa: F811
    built(configured, "runs_model")
    return configured / "runs_model"


def loaded(model: Path, folder: Path, before: str = "") -> Path:
    """The object file that the command writes, as a library that a program can load."""
    words = ["objects", str(model), "-o", str(folder / "model.o"), "--threads", "1", *CALLS]
    said = output_of(sys.executable, "-c", f"{before}\nfrom fourfold.cli import main\nraise SystemExit(main({words}))")
    assert "loop nests for x86-64-v3 and x86-64-v4" in said or "for aarch64" in said
    output_of(tool("c++", "g++"), "-shared", "-o", folder / "model.so", folder / "model.o")
    return folder / "model.so"


def run(program: Path, model: Path, calls: list[list[object]], folder: Path, **variables: str) -> tuple[list, dict]:
    torch.save(calls, folder / "calls.pt")
    command = [program, model, folder / "calls.pt", folder / "results.pt", "1"]
    environment = SURROUNDINGS | {"OMP_NUM_THREADS": "1"} | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    said = dict(line.split() for line in done.stdout.splitlines()) | {"stderr": done.stderr}
    return torch.load(folder / "results.pt", weights_only=False), said


def inputs() -> list[list[object]]:
    torch.manual_seed(3)
    sizes = (((300, 40), (17, 9), (6, 8, 32)), ((2, 40), (1, 9), (40, 8, 32)), ((200, 40), (30, 9), (3, 8, 32)))
    return [[*(torch.randn(size) for size in each), 3] for each in sizes]


@pytest.mark.parametrize("before", ["", WITHOUT_BITCODE], ids=["bitcode", "addresses"])
def test_results_are_the_interpreters(program: Path, model: Path, tmp_path: Path, before: str) -> None:
    """On each CPU level that has nests; bits are compared, also at sizes that the command was not called with."""
    library, calls = loaded(model, tmp_path, before), inputs()
    built = fourfold._C.build_info()["cpu_levels"]
    lower = ["avx2"] if "avx2" in built and fourfold._C.cpu_capability() != "default" else []
    for level in dict.fromkeys([*lower, fourfold._C.cpu_capability()]):
        wanted, plain = run(program, model, calls, tmp_path, FOURFOLD_CPU_CAPABILITY=level)
        found, said = run(program, model, calls, tmp_path, FOURFOLD_CPU_CAPABILITY=level, LD_PRELOAD=str(library))
        assert (plain["compiled"], plain["interpreted"]) == ("0", "1") and int(said["compiled"]) >= 6, said
        assert said["interpreted"] == "0", said
        for mine, theirs in zip(found, wanted, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    expected = fourfold.load(model)(*calls[0])
    torch.testing.assert_close(list(found[0]), list(expected), rtol=2e-5, atol=1e-5)


def test_another_versions_nests_are_reported_and_not_used(program: Path, model: Path, tmp_path: Path) -> None:
    library = loaded(model, tmp_path, OTHER_VERSION)
    _, said = run(program, model, inputs(), tmp_path, LD_PRELOAD=str(library))
    assert (said["compiled"], said["interpreted"]) == ("0", "1")
    ours = f"compiled by fourfold {fourfold.__version__} with ABI version"
    assert ours in said["stderr"] and "but got 9.9 with" in said["stderr"]


def test_the_pages_lines_compile_them(configured: Path, tmp_path: Path) -> None:  # noqa: F811
    """docs/cpp.md's CMake, for the model that test_consumer.py saves."""
    built(configured, "app")
    path, calls = configured / "page" / "model.ff", [[torch.randn(1, 512)]]
    (found,), said = run(configured / "objects" / "app", path, calls, tmp_path)
    assert (said["compiled"], said["interpreted"]) == ("1", "0")
    assert torch.equal(found[0], fourfold.load(path)(*calls[0]))


def test_models_that_divide_by_integers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command calls with zeros, then with ones; what neither suits is an error."""

    class Divided(nn.Module):
        def forward(self, x: Tensor, k: Tensor) -> Tensor:
            return (x // k).tanh()

    class Refused(Divided):
        def forward(self, x: Tensor, k: Tensor) -> Tensor:
            return super().forward(x, k - k)

    for model, code in ((Divided(), 0), (Refused(), 2)):
        example = torch.ones(4, 9, dtype=torch.long), torch.ones(4, 9, dtype=torch.long)
        fourfold.save(torch.export.export(model, example), tmp_path / "model.ff")
        words = ["objects", str(tmp_path / "model.ff"), "-o", str(tmp_path / "x.o"), "--threads", "1"]
        assert main(words) == code
    assert "expected a model that takes random numbers, and zeros or ones for integers" in capsys.readouterr().err


def test_errors_name_what_to_change(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        assert main(["objects", str(model), "-o", str(tmp_path / "x.o"), *words]) == 2
        return capsys.readouterr().err

    assert "expected --call with the shapes of x, y, steps, power, because x has a dynamic size" in refused()
    assert "expected --call to have a shape for each of x, y, steps, power" in refused("--call", "4x40")
    assert "expected y to have sizes such as 16x128, or scalar, but got '4y9'" in refused("--call", "4x40,4y9,2x8x32,3")
    assert "expected power to be a number, but got 'x'" in refused("--call", "4x40,4x9,2x8x32,x")
    assert "expected dimension 1 of x to be 40, but got 41" in refused("--call", "4x41,4x9,2x8x32,3")
    assert "but got 'x86-64-v1'" in refused("--target", "x86-64-v1", "--call", "4x40,4x9,2x8x32,3")
