"""C++ programs of users who have installed fourfold and a libtorch: they link with find_package, and compute and train
as Python does.

Their libtorch is a copy of this Python's in another folder, or the one in FOURFOLD_OTHER_LIBTORCH, a folder with lib/,
include/ and share/, of any version from 2.10 on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from consumer_cases import CASES, arguments, make, results
from machine import INSTALLED, ROOT, linux_only, output_of, tool
from once import locked, made_once
from saved_models import project_with_objects
from test_compile import packaged

pytestmark = [linux_only, pytest.mark.slow]

SOURCES = ROOT / "tests" / "consumer"
PAGE = ROOT / "docs" / "cpp.md"
TORCH = Path(torch.__file__).parent
PROGRAMS = ("links_fourfold", "links_fourfold_first", "links_torch_first")
TARGETS = (*PROGRAMS, "takes_nothing")  # not runs_model: few tests need it
# Variables that could select another torch or fourfold.
CHOICES = ("Torch_ROOT", "Torch_DIR", "fourfold_ROOT", "fourfold_DIR", "CMAKE_PREFIX_PATH", "LD_LIBRARY_PATH")
SURROUNDINGS = {name: value for name, value in os.environ.items() if name not in CHOICES}


def cmake(*arguments: object, **keywords: Any) -> str:
    folders = [str(Path(sys.executable).parent), str(Path(tool("ninja", "ninja")).parent)]
    path = os.pathsep.join([*folders, SURROUNDINGS["PATH"]])
    return output_of(tool("cmake", "cmake"), *arguments, env=SURROUNDINGS | {"PATH": path}, **keywords)


def cmake_dir() -> Path:
    return Path(output_of(sys.executable, "-m", "fourfold", "--cmake-dir").strip())


def blocks(language: str, page: Path = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def libtorch(shared: Path) -> Iterator[Path]:
    """The libraries are copies: /proc/self/maps resolves links."""
    if named := os.environ.get("FOURFOLD_OTHER_LIBTORCH"):
        yield Path(named)
        return
    copy, users = shared / "libtorch" / "torch", shared / "libtorch-users"
    users.mkdir(exist_ok=True)
    (me := users / str(os.getpid())).touch()
    with locked(shared / "libtorch.lock"):
        if not copy.exists():
            copy_torch(copy)
    yield copy
    with locked(shared / "libtorch.lock"):
        me.unlink(missing_ok=True)  # two files use this fixture
        if not list(users.iterdir()) and copy.parent.exists():
            shutil.rmtree(copy.parent)  # half a gigabyte


def copy_torch(copy: Path) -> None:
    shutil.copytree(TORCH / "lib", copy / "lib", ignore=shutil.ignore_patterns("libtorch_python*", "*.a"))
    for name in ("include", "share"):
        (copy / name).symlink_to(TORCH / name)
    for library in TORCH.parent.glob("nvidia*"):  # a CUDA build looks for them beside itself
        (copy.parent / library.name).symlink_to(library)


@pytest.fixture(scope="module")
def configured(shared: Path, libtorch: Path) -> Path:
    return made_once(shared / "consumer", lambda folder: configure_programs(folder, libtorch))


def configure_programs(folder: Path, libtorch: Path) -> None:
    (folder / "page.cpp").write_text("".join(blocks("cpp")), encoding="utf-8")
    (folder / "files_page.cpp").write_text(*blocks("cpp", ROOT / "docs" / "files.md"), encoding="utf-8")
    pages = (f"-DPAGE={folder / 'page.cpp'}", f"-DFILES_PAGE={folder / 'files_page.cpp'}")
    project = project_with_objects(folder / "page", blocks("cmake")[1])
    choices = (f"-Dfourfold_DIR={cmake_dir()}", f"-DTorch_ROOT={libtorch}", *pages)
    cmake("-S", SOURCES, "-B", folder, "-G", "Ninja", *choices, f"-DOBJECTS={project}")


def built(folder: Path, *targets: str) -> str:
    with locked(folder / "lock"):
        return cmake("--build", folder, "--parallel", "2", "--target", *targets)


@pytest.fixture(scope="module")
def build(configured: Path) -> Path:
    built(configured, *TARGETS)
    return configured


@pytest.fixture(params=PROGRAMS)
def program(build: Path, request: pytest.FixtureRequest) -> Path:
    return build / request.param


def run(program: Path, *arguments: object) -> str:
    return output_of(program, *arguments, env=SURROUNDINGS)


def torches(said: str) -> list[str]:
    return re.findall(r"^torch: (.*)$", said, re.MULTILINE)


class Model(nn.Module):
    """The same model as in main.cpp."""

    def __init__(self) -> None:
        super().__init__()
        self.lltm = fourfold.nn.LLTM(5, 8)
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.lltm(x)[0])


def save_state(module: nn.Module, path: Path) -> Path:
    torch.save(dict(module.state_dict()), path)
    return path


def save(value: Any, path: Path) -> Path:
    torch.save(value, path)
    return path


def close(mine: Tensor, theirs: Tensor) -> None:
    """The kernels and their order are the same; another libtorch may compute products and sums in another order."""
    torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=1e-6)


def test_a_program_computes_what_python_does(program: Path, libtorch: Path, tmp_path: Path) -> None:
    model, x = Model().eval(), torch.randn(6, 2, 5)
    state = save_state(model, tmp_path / "model.pt")
    said = run(program, "infer", state, save(x, tmp_path / "x.pt"), tmp_path / "y.pt")
    with torch.no_grad():
        close(torch.load(tmp_path / "y.pt"), model(x))
    assert torches(said) == [str(libtorch / "lib")]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_program_trains_to_pythons_losses(build: Path, tmp_path: Path, name: str) -> None:
    model, data = Model(), {"x": torch.randn(10, 4, 5), "y": torch.randn(10, 4, 3)}
    state = save_state(model, tmp_path / "model.pt")
    run(build / PROGRAMS[0], "train", state, save(data, tmp_path / "data.pt"), name, tmp_path / "losses.pt")
    parameters = model.parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.5) if name == "sgd" else torch.optim.Adam(parameters, lr=1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(data["x"]), data["y"])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    # Adam divides by the gradients' size: a rounding of a small one moves a parameter as far as one of a large one.
    torch.testing.assert_close(torch.load(tmp_path / "losses.pt"), torch.stack(losses), rtol=1e-5, atol=1e-6)
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's packaging uses functions that torch deprecates
def test_a_program_runs_what_aotinductor_made(shared: Path, build: Path, libtorch: Path, tmp_path: Path) -> None:
    package, model, x = packaged(shared)
    said = run(build / PROGRAMS[0], "package", package, save(x, tmp_path / "x.pt"), tmp_path / "y.pt")
    with torch.no_grad():
        close(torch.load(tmp_path / "y.pt"), model(x))
    assert torches(said) == [str(libtorch / "lib")]


def test_modules_compute_what_pythons_do(build: Path, tmp_path: Path) -> None:
    """Names, initial values, results and gradients."""
    written, wanted = [], []
    for k, case in enumerate(CASES):
        torch.manual_seed(0)
        module = make(case)
        initial = {f"initial.{name}": p.detach().clone() for name, p in module.named_parameters()}
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_(std=0.5)
        module.to(case.get("dtype", torch.float32)).train(case.get("train", False))
        given = arguments(case)
        fields = {name: value for name, value in case.items() if not isinstance(value, torch.dtype)}
        fields |= {"input_size": 5, "hidden_size": 8, "train": case.get("train", False)}
        written.append({**fields, **given, "state_dict": str(save_state(module, tmp_path / f"state{k}.pt"))})
        wanted.append((case, initial, results(case, module, given)))
    run(build / PROGRAMS[0], "layers", save(written, tmp_path / "cases.pt"), tmp_path / "results.pt")
    found = torch.load(tmp_path / "results.pt", weights_only=False)  # libtorch stores lists with their types
    for mine, (case, initial, theirs) in zip(found, wanted, strict=True):
        assert set(mine) == {*initial, *theirs}, case
        for name, value in initial.items():
            assert torch.equal(mine[name], value), (case, name)
        for name, value in theirs.items():
            torch.testing.assert_close(
                mine[name], value, rtol=1e-5, atol=1e-6, msg=lambda m, n=name, c=case: f"{c}, {n}: {m}"
            )


REFUSALS = [
    "LSTM: expected proj_size to be 0, but got 4; a projected LSTM is torch::nn::LSTM's alone",
    "LLTM: expected hidden_size to be at least 1, but got 0",
    "GRU: expected dropout to be a number in [0, 1], but got 2",
    "MLP: expected activation to be relu, tanh, gelu or silu, but got relu6",
    "MLP: expected sizes to have those of the input and the output, but got [5]",
    "LSTM: expected the last dimension of the input to be input_size = 5, but got shape [6, 2, 4]",
    "LSTM: expected input to have 3 dimensions, or 2 when unbatched, but got shape [5]",
    "LSTM: expected at least one time step, but got none",
    "LSTM: expected c_0 to have shape (num_layers * num_directions, batch, hidden_size) = [1, 2, 8], but got [1, 3, 8]",
    "LSTM: expected h_0 to have shape (num_layers * num_directions, hidden_size) = [1, 8], but got [8]",
    "LSTM: expected reset to have dtype bool, but got Float",
    "LSTM: expected reset to have the input's shape without its last dimension, [6, 2], but got [2, 6]",
    "LSTM: expected reset to be a PackedSequence of bools with one for each step of the input, packed as the input is "
    "packed, with the same lengths and the same enforce_sorted",
    "GRUCell: expected each state to have shape (batch, hidden_size) = [2, 8], but got [3, 8]",
    "LLTMCell: expected input to have 2 dimensions, or 1 when unbatched, but got shape [6, 2, 5]",
]


def test_checkpoints_and_calls_that_do_not_fit_are_refused(build: Path, tmp_path: Path) -> None:
    state = dict(Model().state_dict())
    checkpoints = {
        "missing": {name: value for name, value in state.items() if name != "linear.bias"},
        "unexpected": {**state, "linear.scale": torch.ones(1)},
        "misshaped": {**state, "linear.weight": torch.ones(8, 3)},
        "row": {**state, "lltm.bias_l0": state["lltm.bias_l0"].unsqueeze(0), "linear.weight": torch.ones(1, 3, 8)},
        "tensor": torch.ones(3),
        "list": {**state, "linear.bias": [1.0]},
        "ordered": Model().state_dict(),
    }
    paths = {name: save(value, tmp_path / name) for name, value in checkpoints.items()}
    paths["absent"] = tmp_path / "absent"
    *lines, torch_line = run(build / PROGRAMS[0], "refuse", *paths.values()).splitlines()
    assert torch_line.startswith("torch: ")

    def entries(name: str, what: str) -> str:
        return f"load_state_dict: expected the entries of {paths[name]} to be the module's, but {what}"

    def file(name: str, what: str) -> str:
        return (
            f"load_state_dict: expected {paths[name]} to hold a dict of tensors, as torch.save("
            f"dict(model.state_dict()), path) writes it, but {what}"
        )

    torch_says = (
        "torch can't read it. model.state_dict() itself, without dict(), is of a type that libtorch does not know."
    )
    assert lines.pop(6).startswith(file("ordered", torch_says))
    assert lines == [
        entries("missing", "linear.bias is missing"),
        entries("unexpected", "linear.scale is none of the module's"),
        entries("misshaped", "linear.weight should have shape [3, 8] and has [8, 3]"),
        entries("row", "linear.weight should have shape [3, 8] and has [1, 3, 8]"),
        file("tensor", "it holds a Tensor"),
        file("list", "linear.bias is a GenericList"),
        f"load_state_dict: expected to read {paths['absent']}, but it can't be opened or read",
        *REFUSALS,
    ]


def test_a_backward_without_gradients_is_refused(build: Path) -> None:
    """torch's engine would leave them undefined, with a warning. Calls after enable_gradients() are differentiable."""
    lines = run(build / PROGRAMS[0], "forget").splitlines()[:-1]
    operators = ("softshrink", "axpby", "mlp", "mlp_layers", "lltm_cell", "lltm", "lstm", "gru")
    said = (
        ": expected gradients to be enabled before the forward call; include fourfold/autograd.h in one file and call "
        "fourfold::enable_gradients() once, before any operator"
    )
    assert lines == [*(name + said for name in operators), "0", "6"]


def test_a_program_outlives_another_copy_of_the_library(build: Path, tmp_path: Path) -> None:
    """Python's tests check the whole message (test_two_copies.py)."""
    copy, own = shutil.copy(INSTALLED / "libfourfold.so", tmp_path / "libfourfold.so"), INSTALLED / "libfourfold.so"
    said = sorted(run(build / PROGRAMS[0], "load_copy", copy).splitlines())
    assert said[:2] == ["1.5", "6"]
    assert said[2].startswith(f"fourfold: expected one libfourfold in a process, but {copy} was loaded after {own}, ")


def test_modules_print_themselves_and_stand_in_a_sequential(build: Path) -> None:
    assert run(build / PROGRAMS[0], "print").splitlines()[:-1] == [
        "fourfold::nn::LSTM(input_size=3, hidden_size=4, num_layers=2, bias=true, batch_first=false, dropout=0.5, "
        "bidirectional=true)",
        "fourfold::nn::LLTMCell(3, 4, bias=false)",
        "fourfold::nn::MLP(5, 15, 1, bias=true, activation=relu)",
        "fourfold::nn::MLP(",
        "  (0): torch::nn::Linear(in_features=3, out_features=4, bias=true)",
        "  (1): torch::nn::Tanh()",
        "  (2): torch::nn::Linear(in_features=4, out_features=2, bias=true)",
        ")",
        "[7, 2, 6]",
    ]


def test_what_the_page_shows_runs(build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (python,) = blocks("python")
    namespace: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    exec(compile(python, str(PAGE), "exec"), namespace)
    said = output_of(build / PROGRAMS[0], "page", env=SURROUNDINGS, cwd=tmp_path).split()
    model = namespace["model"]
    with torch.no_grad():
        first = model["out"](model["memory"](torch.ones(10, 1, 16))[0]).square().mean()
    losses = [float(word) for word in said[:3]]
    assert losses[0] == pytest.approx(float(first), rel=1e-4)  # printed with six digits
    assert losses[0] > losses[1] > losses[2]
    assert said[3:6] == ["1", "0", "1"]


def test_the_pages_project_is_configured_by_its_command_and_links(libtorch: Path, tmp_path: Path) -> None:
    """With a main that compiles quickly: the page's own is compiled in the tests' program."""
    (project, _), (command,) = blocks("cmake"), blocks("sh")
    (tmp_path / "CMakeLists.txt").write_text(project)
    (tmp_path / "main.cpp").write_text("int main() {}\n")
    path = os.pathsep.join([str(Path(sys.executable).parent), SURROUNDINGS["PATH"]])
    output_of("bash", "-c", command, cwd=tmp_path, env=SURROUNDINGS | {"PATH": path})
    output_of(tool("cmake", "cmake"), "--build", "build", cwd=tmp_path, env=SURROUNDINGS)
    loaded = output_of("ldd", tmp_path / "build" / "app", env=SURROUNDINGS)
    assert f"=> {TORCH}/lib/libtorch_cpu.so" in loaded
    assert f"=> {INSTALLED}/libfourfold.so" in loaded


def test_a_library_that_no_symbol_is_taken_from_stays(build: Path, libtorch: Path) -> None:
    loaded = output_of("ldd", build / "takes_nothing", env=SURROUNDINGS)
    assert f"=> {libtorch}/lib/libtorch_cpu.so" in loaded
    assert f"=> {INSTALLED}/libfourfold.so" in loaded


def test_torch_may_be_looked_for_first(build: Path, libtorch: Path, tmp_path: Path) -> None:
    """The commands stay the same, so nothing is recompiled."""
    assert "TORCH_FIRST:BOOL=OFF" in (build / "CMakeCache.txt").read_text()
    cmake("-S", SOURCES, "-B", build, "-DTORCH_FIRST=ON")
    assert "no work to do" in built(build, *TARGETS)


@pytest.fixture
def configure(tmp_path: Path) -> Any:
    """Configures the page's project, which looks only for fourfold."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(blocks("cmake")[0])
    (source / "main.cpp").write_text("int main() {}\n")

    def run(*options: object, code: int = 0) -> str:
        command = (tool("cmake", "cmake"), "-S", source, "-B", tmp_path / "build", f"-Dfourfold_DIR={cmake_dir()}")
        done = subprocess.run([*command, *options], capture_output=True, text=True, env=SURROUNDINGS)
        assert done.returncode == code, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    return run


def test_a_missing_torch_names_what_to_set(configure: Any) -> None:
    said = configure(code=1)
    assert (
        "fourfold needs torch 2.10 or newer, and find_package(Torch) finds none. Set Torch_ROOT to a libtorch" in said
    )
    assert "CMAKE_PREFIX_PATH" in said


def fake_torch(folder: Path, version: str) -> Path:
    """The files that configuring a program reads. Its package fails like a CUDA build's without a toolkit."""
    package = folder / "share" / "cmake" / "Torch"
    package.mkdir(parents=True)
    (package / "TorchConfigVersion.cmake").write_text(f'set(PACKAGE_VERSION "{version}")\n')
    (package / "TorchConfig.cmake").write_text('message(FATAL_ERROR "I cannot find the CUDA libraries")\n')
    return folder


def test_an_old_torch_is_refused(configure: Any, tmp_path: Path) -> None:
    torch_of_old = fake_torch(tmp_path / "torch", "2.9.1")
    said = configure(f"-DTorch_ROOT={torch_of_old}", code=1)
    assert f"fourfold needs torch 2.10 or newer, but {torch_of_old} is torch 2.9.1. Set Torch_ROOT to a newer" in said


def test_a_torch_without_shared_libraries_is_refused(configure: Any, tmp_path: Path) -> None:
    static = fake_torch(tmp_path / "torch", "2.13.0")
    said = configure(f"-DTorch_ROOT={static}", code=1)
    assert f"{static}/lib has no torch_cpu among them" in said


def test_a_cuda_build_of_torch_needs_no_toolkit(configure: Any, tmp_path: Path) -> None:
    cuda = fake_torch(tmp_path / "torch", "2.13.0")
    for name in ("lib", "include"):
        (cuda / name).symlink_to(TORCH / name)
    configure(f"-DTorch_ROOT={cuda}")
    cmake("--build", tmp_path / "build")
