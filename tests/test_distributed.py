"""Training in several processes: the demo under torchrun, layers under DDP, FSDP2 and DTensor, docs/distributed.md."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from distributed_layers import WAYS, data, fresh, train
from fourfold.cli import main
from fourfold.cli.usage import UsageError
from fourfold.demo import training
from fourfold.demo.processes import Processes
from machine import FORK, LOOPBACK, ROOT, output_of
from test_cli import TINY_DEMO

HERE = Path(__file__).parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
SURROUNDINGS = {**os.environ, "GLOO_SOCKET_IFNAME": LOOPBACK, "OMP_NUM_THREADS": "1"}
# `python -m fourfold`, which also writes the losses of the demo's trainings: FILE, then the command line.
DEMO = """
import json, sys
from fourfold.cli import main
from fourfold.demo import report
verdict = report.verdict
def kept(result):
    losses = {run.name: run.losses for run in (result.plain, result.fused, result.lstm)}
    open(sys.argv[1], "x").write(json.dumps(losses))
    return verdict(result)
report.verdict = kept
raise SystemExit(main(sys.argv[2:]))
"""


def losses_of_demo(folder: Path, *launcher: str, options: tuple[str, ...] = ()) -> tuple[dict[str, list[float]], str]:
    folder.mkdir()
    (folder / "program.py").write_text(DEMO)
    words = (folder / "program.py", folder / "losses.json", *TINY_DEMO, *options, "--out", folder / "out")
    said = output_of(*launcher, *words, env=SURROUNDINGS)
    return json.loads((folder / "losses.json").read_text()), said


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    return losses_of_demo(tmp_path_factory.mktemp("demo") / "alone", sys.executable)[0]


@pytest.mark.parametrize(("options", "by"), [((), "DistributedDataParallel"), (("--fsdp",), "FSDP2")])
def test_two_processes_learn_what_one_learns(
    options: tuple[str, ...], by: str, alone: dict[str, list[float]], tmp_path: Path
) -> None:
    losses, said = losses_of_demo(tmp_path / "two", *TORCHRUN, "2", options=options)  # processes write no file twice
    assert losses.keys() == alone.keys() and len(alone["fourfold"]) == 24
    for name, curve in losses.items():
        # The batch's mean is a mean of two means, and each gradient a sum of two: rounding errors of losses near 4.6.
        torch.testing.assert_close(torch.tensor(curve), torch.tensor(alone[name]), rtol=0, atol=1e-5)
    assert said.count("step 24 of 24") == said.count("Speed-up") == said.count("Both learn the same") == 1
    assert said.count("characters/s") == 1
    for name in ("plain PyTorch", "fourfold"):
        assert len(re.findall(rf"^{name} +[\d,]*[1-9][\d,]* +[\d,]+ to [\d,]+ +\d", said, re.MULTILINE)) == 1, said
    assert f"parts   1 of each batch's 2 pieces in each of 2 processes, by {by}" in said
    assert "warn" not in said.lower()
    pictures = [path.name for path in (tmp_path / "two" / "out").iterdir()]
    assert pictures == ["fourfold-demo.png"] * (importlib.util.find_spec("matplotlib") is not None)


@pytest.mark.parametrize(
    ("processes", "options", "sentence"),
    [
        ("3", "", "demo: expected --batch-size to be a multiple of the 3 processes, but got 2"),
        ("2", "--device mps", "demo: expected --device to be cpu or cuda under torchrun, but got 'mps'"),
    ],
)
def test_what_processes_cannot_do_is_one_sentence(processes: str, options: str, sentence: str, tmp_path: Path) -> None:
    command = [*TORCHRUN, processes, "-m", "fourfold", *TINY_DEMO, *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=SURROUNDINGS)
    assert done.returncode != 0 and done.stdout == ""
    ours = [line for line in done.stderr.splitlines() if line.startswith("python -m fourfold")]
    assert ours == [f"python -m fourfold {sentence}"]  # the rest is torchrun's
    assert "exitcode  : 2 " in done.stderr and not list(tmp_path.iterdir())


def test_fsdp_is_for_several_processes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*TINY_DEMO, "--fsdp", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        "python -m fourfold demo: expected --fsdp only under torchrun, but this is one process: torchrun "
        "--nproc-per-node 2 -m fourfold demo --fsdp\n"
    )
    assert not list(tmp_path.iterdir())


def test_each_process_has_its_own_gpu_and_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    second = Processes(1, 2, launched=True)
    assert second.device("cuda") == "cuda:1" and second.device("cpu") == "cpu"
    assert Processes().device("cuda:1") == "cuda:1" and Processes().device("mps") == "mps"
    with pytest.raises(UsageError, match="expected --device to be cpu or cuda under torchrun, but got 'cuda:1'"):
        second.device("cuda:1")
    batch = torch.arange(12).view(3, 4)
    parts = [Processes(rank, 2).part(batch) for rank in range(2)]
    assert torch.equal(torch.cat(parts, 1), batch) and [p.shape[1] for p in parts] == [2, 2]
    assert torch.equal(training.ALONE.part(batch), batch)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    output_of(sys.executable, "-W", "ignore", HERE / "distributed_layers.py", folder, FORK, cwd=HERE)
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_layers_trained_by_two_processes(way: str, left: Path) -> None:
    model, untrained = fresh(), fresh().state_dict()
    train(model, *data())
    found = torch.load(left / f"{way}.pt")
    assert found.keys() == untrained.keys()
    for name, value in model.state_dict().items():
        assert not torch.equal(value, untrained[name])
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")


PAGE = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
PACKAGES = {"train_lightning.py": "lightning", "train_accelerate.py": "accelerate"}


def test_the_page_has_these_scripts() -> None:
    assert {*SCRIPTS} == {"model.py", "ddp.py", "fsdp.py", "dtensor.py", *PACKAGES}


@pytest.mark.parametrize("name", ["ddp.py", "fsdp.py", *PACKAGES])
def test_a_script_adds_ten_lines(name: str) -> None:
    lines = [line for line in SCRIPTS[name].splitlines() if line and not re.match(r" *#|from |import ", line)]
    assert 3 < len(lines) <= 10


@pytest.mark.parametrize("name", sorted({*SCRIPTS} - {"model.py"}))
def test_the_pages_scripts_train_as_one_process_does(name: str, tmp_path: Path) -> None:
    if (package := PACKAGES.get(name)) and importlib.util.find_spec(package) is None:
        pytest.skip(f"this script needs {package}: pip install {package}")
    for script in ("model.py", name):
        (tmp_path / script).write_text(SCRIPTS[script])
    said = said_by_two(tmp_path / name)
    losses = dict(re.findall(r"rank (\d): loss ([\d.]+)", said))
    assert losses.keys() == {"0", "1"}, said
    assert sum(map(float, losses.values())) / 2 == pytest.approx(loss_of_one_process(), abs=2e-6)


def said_by_two(script: Path) -> str:
    """A script's output. Lightning's and Accelerate's scripts end with models that refer to a process group; torch may
    then abort with this message after all work is done."""
    for _ in range(5):
        command = [*TORCHRUN, "2", script]
        done = subprocess.run(command, capture_output=True, text=True, cwd=script.parent, env=SURROUNDINGS)
        if script.name not in PACKAGES or "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout


def loss_of_one_process() -> float:
    namespace: dict = {}
    with torch.random.fork_rng():
        exec(compile(SCRIPTS["model.py"], "model.py", "exec"), namespace)
        # In the script's order: seed, data, model.
        model = namespace["Model"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(namespace["inputs"]), namespace["targets"])
        loss.backward()
        optimizer.step()
    return loss.item()
