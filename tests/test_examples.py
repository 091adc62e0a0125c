"""The examples run, at sizes that take seconds, and show what they claim."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import fourfold
from machine import ROOT, linux_only, needs
from test_container import AS_CONTAINERS_ARE, folder, in_a_container  # noqa: F401

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
# Difference between two orders of the same float32 sums of at most 128 products, through a few nonlinear steps.
ROUNDING = 1e-5


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_streaming(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    streaming, model = example("streaming"), tmp_path / "characters.pt"
    trained = streaming.main(["--quick", "--model", str(model)])
    assert "step  100: " in capsys.readouterr().out
    loaded = streaming.main(["--quick", "--model", str(model), "--chunk", "7"])
    assert "step" not in capsys.readouterr().out
    for result in (trained, loaded):
        assert result.bits < result.bits_of_frequencies - 0.3
        assert max(result.difference, result.difference_from_torch) < ROUNDING
        assert len(result.milliseconds) == 3 and min(result.milliseconds.values()) > 0
    assert loaded.bits == pytest.approx(trained.bits, abs=1e-4)


def test_a_stream_without_its_state_is_another() -> None:
    """Without the state, the results that the example compares differ."""
    streaming = example("streaming")
    model = streaming.NextByte(fourfold.nn.LSTM, 16)
    tokens = torch.arange(40)[:, None]
    whole, chunks = model(tokens)[0], streaming.streamed(model, tokens, 16)
    torch.testing.assert_close(chunks, whole)
    forgetful = torch.cat([model(piece)[0] for piece in tokens.split(16)])
    assert (forgetful - whole).abs().max() > 100 * ROUNDING


def test_recurrent_ppo(capsys: pytest.CaptureFixture[str]) -> None:
    curve, difference = example("recurrent_ppo").main(["--quick"])
    assert difference < ROUNDING
    assert len(curve) == 10 and sum(curve[-3:]) > 2 * sum(curve[:3])  # in an experiment 8 times as much
    assert "steps: return" in capsys.readouterr().out


def test_replay_needs_its_resets() -> None:
    ppo = example("recurrent_ppo")
    policy, poles = ppo.Policy(16), ppo.CartPoles(8)
    start = torch.ones(8, dtype=torch.bool), torch.zeros(1, 8, 16)
    _, first, state, *_ = ppo.play(policy, poles, *start, 40, False)
    segment, *_, returns = ppo.play(policy, poles, first, state, 64, False)  # starts in the middle of episodes
    assert not segment.first[0].all() and segment.first[1:].any() and returns
    assert ppo.replayed(policy, segment) < ROUNDING
    assert ppo.replayed(policy, segment._replace(first=torch.zeros_like(segment.first))) > 100 * ROUNDING
    assert ppo.replayed(policy, segment._replace(state=torch.zeros_like(segment.state))) > 100 * ROUNDING


def test_advantages_are_those_of_the_definition() -> None:
    """Computed as sums of discounted errors until the episode's end, instead of by a recurrence."""
    ppo = example("recurrent_ppo")
    time, count = 12, 3
    done, values, behind = torch.rand(time, count) < 0.2, torch.randn(time, count), torch.randn(count)
    segment = ppo.Segment(*[None] * 4, values=values, done=done, state=None)
    found = ppo.advantages_of(segment, behind)
    following = torch.cat((values[1:], behind[None]))
    for k in range(count):
        for t in range(time):
            total, factor = 0.0, 1.0
            for u in range(t, time):
                ends = done[u, k].item()
                total += factor * (
                    ppo.REWARD + ppo.DISCOUNT * (not ends) * following[u, k].item() - values[u, k].item()
                )
                factor *= ppo.DISCOUNT * ppo.GAE_LAMBDA
                if ends:
                    break
            assert found[t, k].item() == pytest.approx(total, abs=1e-4)


def test_pushes_add_the_energy_of_their_work() -> None:
    """The gain in kinetic and potential energy of cart and pole is force times distance."""
    ppo = example("recurrent_ppo")
    poles = ppo.CartPoles(16, seconds=1e-4)
    poles.state = torch.randn(16, 4, dtype=torch.float64)

    def energy() -> torch.Tensor:
        _, velocity, angle, spin = poles.state.unbind(-1)
        across = velocity + poles.HALF_LENGTH * spin * angle.cos()  # of the pole's centre
        down = poles.HALF_LENGTH * spin * angle.sin()
        inertia = poles.POLE * (2 * poles.HALF_LENGTH) ** 2 / 12
        kinetic = poles.CART * velocity**2 + poles.POLE * (across**2 + down**2) + inertia * spin**2
        return kinetic / 2 + poles.POLE * poles.GRAVITY * poles.HALF_LENGTH * angle.cos()

    before, began = energy(), poles.state[:, 0]
    force = torch.linspace(-10, 10, 16, dtype=torch.float64)
    for _ in range(2000):
        poles.move(force)
    work = force * (poles.state[:, 0] - began)
    assert work.abs().max() > 1
    # The error of the explicit Euler method is proportional to the step size.
    torch.testing.assert_close(energy() - before, work, rtol=0, atol=2e-3)


def test_variable_length(capsys: pytest.CaptureFixture[str]) -> None:
    result = example("variable_length").main(["--quick"])
    assert result.accuracy > result.of_majority + 0.05
    assert result.difference < ROUNDING
    assert "accuracy" in capsys.readouterr().out


def test_held_out_lines_are_of_other_files() -> None:
    seen, unseen = example("variable_length").lines()
    texts = [{bytes(line.tolist()) for line, _ in part} for part in (seen, unseen)]
    assert not texts[0] & texts[1] and min(map(len, texts)) > 1000
    assert {label for _, label in unseen} == {label for _, label in seen} == set(range(6))


# Dynamo warns about a tensor in a step's closure that is not a leaf.
NOT_A_LEAF = "ignore:The .grad attribute of a Tensor that is not a leaf"


@pytest.mark.filterwarnings(NOT_A_LEAF)
def test_custom_recurrence(capsys: pytest.CaptureFixture[str]) -> None:
    needs("matplotlib")
    result = example("custom_recurrence").main(["--quick", "--explain"])
    omega, alpha, beta = result.parameters
    assert omega > 0 and 0 < alpha < beta < alpha + beta < 1
    assert result.unseen < result.unseen_of_constant - 0.05
    assert result.difference < 1e-10  # in float64
    said = capsys.readouterr().out
    assert "Scan 0: step (custom_recurrence.py:" in said
    assert re.search(r"in the loop\n +2 mul, 2 add +line \d+: return omega \+ alpha \* squared", said).group() in PAGE


# In the container: runs the script, then lists the files in the only writable folder.
TRAINING = """
import runpy, sys, tempfile
from pathlib import Path
sys.argv = [PATH, "--steps", "40"]
runpy.run_path(PATH, run_name="__main__")
left = [path for path in Path(tempfile.gettempdir()).rglob("*") if path.is_file()]
assert not left, left
"""


@linux_only
def test_training_in_a_container(folder: Path) -> None:  # noqa: F811
    path = EXAMPLES / "container" / "train.py"
    strict = "import os\nos.environ['FOURFOLD_STRICT'] = '1'\n"
    said = in_a_container(folder, "-c", strict + AS_CONTAINERS_ARE + f"PATH = {str(path)!r}\n" + TRAINING)
    assert "user id 4242, home None, root writable: False" in said
    bits = [float(number) for number in re.findall(r"([\d.]+) bits per byte", said)]
    assert len(bits) == 6 and bits[-1] < 6 < 8  # 8 bits is the loss of a model that has learnt nothing


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, with continuation lines joined."""
    text = (EXAMPLES / "container" / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"\\\n\s*", "", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line]


def test_the_image_is_what_its_readme_says() -> None:
    readme = (EXAMPLES / "container" / "README.md").read_text(encoding="utf-8")
    assert {name for name, _ in instructions()} <= {"FROM", "ARG", "RUN", "COPY", "USER", "ENTRYPOINT"}
    of = {name: [rest for other, rest in instructions() if other == name] for name, _ in instructions()}
    (image,), (install,), (user,), (entry,) = of["FROM"], of["RUN"], of["USER"], of["ENTRYPOINT"]
    assert f"`{image}`" in readme and image.endswith("-slim")
    version = re.match(r"python:([\d.]+)-", image).group(1)
    assert f"make wheel PYTHON=python{version}\n" in readme
    tag = "cp" + version.replace(".", "")
    assert install.endswith(f"/dist/fourfold-*-{tag}-{tag}-*.whl")
    assert re.findall(r"\b(?:apt|apt-get|gcc|g\+\+|build-essential)\b", install) == []
    assert "pip install" in install
    assert re.fullmatch(r"\d+:\d+", user) and f"--user {user} " in readme and "--read-only --tmpfs /tmp " in readme
    (copied,) = of["COPY"]
    *_, source, target = copied.split()
    assert (ROOT / source).is_file() and json.loads(entry) == ["python", target]
    names = re.findall(r"--build-arg (\w+)=", readme)
    assert names == [declared.split("=")[0] for declared in of["ARG"]]
    assert all(f"${name}" in install for name in names)


def test_the_build_gets_what_it_copies_and_no_more() -> None:
    rules = (EXAMPLES / "container" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert rules == ["*", "!dist/*.whl", "!examples/container/train.py"]
    assert "source=dist," in dict(instructions())["RUN"]


def cells() -> list[dict[str, Any]]:
    notebook = json.loads((EXAMPLES / "explain.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4 and set(notebook["metadata"]) == {"kernelspec", "language_info"}
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """What a kernel shows for a cell: its output, and the value of its last expression."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    value, said = None, io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return said.getvalue(), value


def headings(html: str) -> list[str]:
    return [re.sub("<.*?>", "", head) for head in re.findall(r"<h[1-4].*?</h[1-4]>", html)]


@pytest.mark.filterwarnings(NOT_A_LEAF)
def test_the_notebook_shows_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each cell again, without Jupyter. Vector lanes and versions differ between machines."""
    needs("matplotlib")
    monkeypatch.setitem(sys.modules, "a_notebook", module := ModuleType("a_notebook"))
    names, shown = vars(module), []
    for number, cell in enumerate(cells(), 1):
        assert cell["execution_count"] == number and cell["metadata"] == {}
        said, value = run_cell("".join(cell["source"]), names)
        printed = "".join("".join(one["text"]) for one in cell["outputs"] if one["output_type"] == "stream")
        assert re.sub(r"x(8|16)\b", "", said)[:60] == re.sub(r"x(8|16)\b", "", printed)[:60]
        data = [one["data"] for one in cell["outputs"] if one["output_type"] == "execute_result"]
        assert (value is not None) == bool(data)
        if data and "text/html" in data[0]:
            committed, fresh = "".join(data[0]["text/html"]), value._repr_html_()
            assert headings(committed) == headings(fresh) and headings(fresh)
            assert committed.count("digraph ") == fresh.count("digraph ") > 0
            shown.append(value.name)
        elif data:
            assert "".join(data[0]["text/plain"]) == repr(value)
    assert shown == ["student_t", "garch"]


def commands() -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in re.findall(r"^python examples/.*", PAGE, re.MULTILINE)]


def test_the_page_has_every_example() -> None:
    linked = {link for link in re.findall(r"\]\(\.\./examples/([^)#]+)\)", PAGE)}
    assert linked == {*(f"{name}.py" for name in SCRIPTS), "explain.ipynb", "container"}
    assert {Path(command[1]).stem for command in commands()} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_commands_have_options_that_there_are(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("matplotlib")
    module, path = example(name), str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(path, run_name="__main__")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    given = [command[2:] for command in commands() if Path(command[1]).stem == name]
    given += [shlex.split(line, comments=True)[2:] for line in re.findall(r"python examples/.*", module.__doc__)]
    options = {word for words in given for word in words if word.startswith("--")}
    assert given and options <= set(re.findall(r"(?<=  )--[\w-]+", said))
