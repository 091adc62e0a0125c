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
from fourfold.demo import report, training
from fourfold.demo.processes import Processes
from machine import LOOPBACK, ROOT
from once import made_once
from test_cli import TINY_DEMO

pytestmark = pytest.mark.slow

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


PAGE = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
PACKAGES = {"train_lightning.py": "lightning", "train_accelerate.py": "accelerate"}
USABLE = [name for name in SCRIPTS if importlib.util.find_spec(PACKAGES.get(name, "torch"))]


@pytest.fixture(scope="module")
def ran(shared: Path) -> Path:
    """The folder of by_two_processes.py, which has run everything that the tests below start under torchrun."""
    return made_once(shared / "distributed", run_all)


def run_all(folder: Path) -> None:
    (folder / "demo.py").write_text(DEMO)
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    (folder / "layers").mkdir()
    for name in ("ddp", "fsdp"):
        (folder / f"demo-{name}").mkdir()
    jobs = {
        "demo-ddp": ["demo.py", "demo-ddp/losses.json", *TINY_DEMO, "--out", "demo-ddp/out"],
        "demo-fsdp": ["demo.py", "demo-fsdp/losses.json", *TINY_DEMO, "--fsdp", "--out", "demo-fsdp/out"],
        "batch": ["-m", "fourfold", *TINY_DEMO, "--batch-size", "3", "--out", "refused"],
        "layers": [str(HERE / "distributed_layers.py"), "layers"],
        **{name: [name] for name in USABLE if name != "model.py"},
        "alone": ["-m", "fourfold", *TINY_DEMO, "--device", "mps", "--out", "refused"],
    }
    (folder / "jobs.json").write_text(json.dumps(jobs))
    imports = ["fourfold.demo", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"]
    command = [*TORCHRUN, "2", HERE / "by_two_processes.py", folder, *imports]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=SURROUNDINGS)
    (folder / "alone.json").write_text(json.dumps([done.returncode, done.stdout, done.stderr]))


def said_by_two(name: str, folder: Path, code: int = 0) -> str:
    """What both processes of a job printed, after they have ended with that exit code."""
    said, aborted = "", "terminate called without an active exception"
    for rank in range(2):
        text = (folder / f"{name}.{rank}.txt").read_text()
        ended = int((folder / f"{name}.{rank}.code").read_text())
        # Lightning's and Accelerate's scripts end with models that refer to a process group; torch may then abort
        # after all work is done.
        assert ended == code or (name in PACKAGES and aborted in text), f"{name} exited with {ended}:\n{text}"
        said += text
    return said


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The losses of the demo in this process."""
    kept: list[report.Result] = []
    threads, verdict = torch.get_num_threads(), report.verdict
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "verdict", lambda result: kept.append(result) or verdict(result))
        assert main([*TINY_DEMO, "--out", str(tmp_path_factory.mktemp("demo") / "out")]) == 0
    torch.set_num_threads(threads)
    return {run.name: run.losses for run in (kept[0].plain, kept[0].fused, kept[0].lstm)}


@pytest.mark.parametrize(("name", "by"), [("demo-ddp", "DistributedDataParallel"), ("demo-fsdp", "FSDP2")])
def test_two_processes_learn_what_one_learns(name: str, by: str, alone: dict[str, list[float]], ran: Path) -> None:
    said = said_by_two(name, ran)
    losses = json.loads((ran / name / "losses.json").read_text())  # processes write no file twice
    assert losses.keys() == alone.keys() and len(alone["fourfold"]) == 24
    for model, curve in losses.items():
        # The batch's mean is a mean of two means, and each gradient a sum of two: rounding errors of losses near 4.6.
        torch.testing.assert_close(torch.tensor(curve), torch.tensor(alone[model]), rtol=0, atol=1e-5)
    assert said.count("step 24 of 24") == said.count("Speed-up") == said.count("Both learn the same") == 1
    assert said.count("characters/s") == 1
    for model in ("plain PyTorch", "fourfold"):
        assert len(re.findall(rf"^{model} +[\d,]*[1-9][\d,]* +[\d,]+ to [\d,]+ +\d", said, re.MULTILINE)) == 1, said
    assert f"parts   1 of each batch's 2 pieces in each of 2 processes, by {by}" in said
    assert "warn" not in said.lower()
    pictures = [path.name for path in (ran / name / "out").iterdir()]
    assert pictures == ["fourfold-demo.png"] * (importlib.util.find_spec("matplotlib") is not None)


def test_a_batch_that_processes_cannot_share_is_one_sentence(ran: Path) -> None:
    sentence = "demo: expected --batch-size to be a multiple of the 2 processes, but got 3"
    assert said_by_two("batch", ran, 2) == f"python -m fourfold {sentence}\n"
    assert not (ran / "refused").exists()


def test_a_device_that_processes_cannot_share_ends_torchrun(ran: Path) -> None:
    code, output, error = json.loads((ran / "alone.json").read_text())
    assert code != 0 and output == ""
    ours = [line for line in error.splitlines() if line.startswith("python -m fourfold")]
    sentence = "demo: expected --device to be cpu or cuda under torchrun, but got 'mps'"
    assert ours == [f"python -m fourfold {sentence}"]  # the rest is torchrun's
    assert "exitcode  : 2 " in error and not (ran / "refused").exists()


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


@pytest.mark.parametrize("way", WAYS)
def test_layers_trained_by_two_processes(way: str, ran: Path) -> None:
    said_by_two("layers", ran)
    model, untrained = fresh(), fresh().state_dict()
    train(model, *data())
    found = torch.load(ran / "layers" / f"{way}.pt")
    assert found.keys() == untrained.keys()
    for name, value in model.state_dict().items():
        assert not torch.equal(value, untrained[name])
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")


def test_the_page_has_these_scripts() -> None:
    assert {*SCRIPTS} == {"model.py", "ddp.py", "fsdp.py", "dtensor.py", *PACKAGES}


@pytest.mark.parametrize("name", ["ddp.py", "fsdp.py", *PACKAGES])
def test_a_script_adds_ten_lines(name: str) -> None:
    lines = [line for line in SCRIPTS[name].splitlines() if line and not re.match(r" *#|from |import ", line)]
    assert 3 < len(lines) <= 10


@pytest.mark.parametrize("name", sorted({*SCRIPTS} - {"model.py"}))
def test_the_pages_scripts_train_as_one_process_does(name: str, ran: Path) -> None:
    if name not in USABLE:
        pytest.skip(f"this script needs {PACKAGES[name]}: pip install {PACKAGES[name]}")
    said = said_by_two(name, ran)
    losses = dict(re.findall(r"rank (\d): loss ([\d.]+)", said))
    assert losses.keys() == {"0", "1"}, said
    assert sum(map(float, losses.values())) / 2 == pytest.approx(loss_of_one_process(), abs=2e-6)


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
