"""The code in README, CONTRIBUTING and the pages of docs. Every Python block of a page runs, in order, unless a comment
before it gives a reason: `<!-- not run: reason -->`. Blocks of other languages are checked elsewhere, or here if they
are commands; a page with an unchecked block fails."""

from __future__ import annotations

import doctest
import re
import runpy
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fourfold
from fourfold.cli import build_parser
from machine import ROOT

PAGES = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md") if (ROOT / name).exists()]
    + list((ROOT / "docs").rglob("*.md"))
)
# Pages whose own tests run every block and compare its output: they fail for an additional block.
RUN_BY = {
    "docs/recurrent.md": "tests/test_recurrent_page.py",
    "docs/scan.md": "tests/test_recurrent_page.py",
    "docs/profiling.md": "tests/test_profiling_page.py",
    "docs/libraries.md": "tests/test_libraries.py",
}
# Pages whose own tests run blocks that begin with a file name, `# train.py`, in processes of their own.
SCRIPTS_RUN_BY = {"docs/distributed.md": "tests/test_distributed.py"}
# Each of these blocks quotes a part of the sources.
QUOTED = {"CONTRIBUTING.md": ("cpp", "python")}
# Tests of the blocks in other languages; blocks without a language are output and commands.
CHECKED_BY = {
    ("docs/cpp.md", "cpp"): "tests/test_consumer.py",
    ("docs/cpp.md", "cmake"): "tests/test_consumer.py",
    ("docs/cpp.md", "sh"): "tests/test_consumer.py",
    ("docs/files.md", "cpp"): "tests/test_consumer.py",
}
# Names that the reader has to define, by a text in the block.
GIVEN = {
    "loss(model(x)).backward()": "model, x, loss = torch.nn.Linear(3, 3), torch.randn(2, 3), torch.sum",
}
# Calls of functions that a page only defines.
CALLS = {
    "docs/compiler.md": """
import torch.nn.functional as F
p = torch.ones(3)
update(p, torch.ones(3))
torch.testing.assert_close(p, torch.full((3,), 1.0))
x, y = torch.randn(2, 5, 3), torch.rand(2, 5, 3)
torch.testing.assert_close(shift(x, y), x * y + torch.cat([torch.zeros(2, 1, 3), x[:, :-1]], 1) * (1 - y))
""",
}


@dataclass(frozen=True)
class Block:
    page: str  # relative to the repository's root
    line: int  # number of the first line of code
    language: str
    text: str
    reason: str  # why it isn't run

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


FENCE = re.compile(r"^( *)(```+|:::+)([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)


def blocks_of(file: Path) -> list[Block]:
    text = file.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent, _, language, code = match.groups()
        before = text[: match.start()].rstrip().splitlines()
        marked = re.fullmatch(r" *<!-- not run: (.+) -->", before[-1]) if before else None
        line = text.count("\n", 0, match.start(4)) + 1
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        page = file.relative_to(ROOT).as_posix()
        found.append(Block(page, line, language.strip(), code, marked[1] if marked else ""))
    return found


BLOCKS = [block for file in PAGES for block in blocks_of(file)]


def page_source(page: str, blocks: list[Block]) -> str:
    """A file with the page's code on the page's line numbers, so that errors refer to them."""
    lines: list[str] = []
    for block in blocks:
        given = next((code for text, code in GIVEN.items() if text in block.text), "")
        lines += [""] * (block.line - 1 - len(lines))
        if given:
            lines[-1] = given
        lines += block.text.splitlines()
    return "\n".join([*lines, CALLS.get(page, "")])


def is_run_here(block: Block) -> bool:
    elsewhere = block.page in RUN_BY or "python" in QUOTED.get(block.page, ())
    is_script = block.page in SCRIPTS_RUN_BY and re.match(r"# \w+\.py\n", block.text)
    return block.language == "python" and not (block.reason or elsewhere or is_script)


RUN_HERE = list(dict.fromkeys(block.page for block in BLOCKS if is_run_here(block)))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # from Dynamo
@pytest.mark.parametrize("page", RUN_HERE)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [block for block in BLOCKS if block.page == page and is_run_here(block)]
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    file = tmp_path / Path(page).with_suffix(".py").name
    file.write_text(page_source(page, blocks), encoding="utf-8")
    known = {"torch": torch} if "import torch" not in file.read_text(encoding="utf-8") else None
    runpy.run_path(str(file), known, run_name=tmp_path.name)  # unique: Dynamo looks up a module by name


def test_pages_that_other_tests_run_are_in_them() -> None:
    with_code = {block.page for block in BLOCKS if block.language == "python"}
    for page, test in (RUN_BY | SCRIPTS_RUN_BY).items():
        assert page not in with_code or Path(page).name in (ROOT / test).read_text(encoding="utf-8")
    assert set(RUN_BY) <= with_code
    assert {"README.md", "docs/index.md", "docs/quickstart.md", "docs/compiler.md"} <= set(RUN_HERE)


def test_what_printed_text_follows_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The quickstart's report."""
    blocks = blocks_of(ROOT / "docs" / "quickstart.md")
    (at,) = (k for k, block in enumerate(blocks) if "print(fourfold.optimize(model))" in block.text)
    exec(f"import torch, fourfold\n{blocks[at].text}", {})
    assert capsys.readouterr().out == blocks[at + 1].text


def test_examples_of_docstrings_print_what_they_say() -> None:
    """The examples of public functions, which the reference shows."""
    layers = {"memory": torch.nn.LSTM(16, 32), "head": torch.nn.GRU(16, 4096)}
    given = {"torch": torch, "fourfold": fourfold, "model": torch.nn.ModuleDict(layers)}
    shown = [each for each in (getattr(fourfold, name) for name in fourfold.__all__) if ">>>" in (each.__doc__ or "")]
    runner = doctest.DocTestRunner()
    for function in shown:
        (examples,) = doctest.DocTestFinder(recurse=False).find(function, function.__name__, globs=dict(given))
        runner.run(examples)
    assert runner.summarize(verbose=False).failed == 0
    assert len(shown) >= 3


def test_blocks_that_quote_the_sources_are_in_them() -> None:
    files = [file for folder in ("cpp", "python") for file in files_of(ROOT / folder)]
    sources = [squeezed(file.read_text(encoding="utf-8")) for file in files]
    quoted = [block for block in BLOCKS if block.language in QUOTED.get(block.page, ())]
    assert [str(block) for block in quoted if not any(squeezed(block.text) in text for text in sources)] == []
    assert len(quoted) >= 4


def squeezed(code: str) -> str:
    """Without full-line comments and without white space."""
    return "".join(re.sub(r"^\s*(//|#).*$", "", code, flags=re.MULTILINE).split())


def files_of(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.suffix in (".h", ".cpp", ".py")]


def test_every_block_is_checked() -> None:
    unchecked = []
    for block in BLOCKS:
        is_directive = block.language.startswith("{")  # a Sphinx directive, of the site
        is_checked = (
            block.language == "python"
            or block.language in QUOTED.get(block.page, ())
            or (block.page, block.language) in CHECKED_BY
            or block.language in ("", "text", "sh")  # commands are checked below
        )
        if not (is_directive or is_checked or block.reason):
            unchecked.append(f"{block}: {block.language}")
    assert unchecked == [], "say in tests/test_docs_code.py what checks them"
    for (page, language), test in CHECKED_BY.items():
        text = (ROOT / test).read_text(encoding="utf-8")
        assert f'"{language}"' in text, (page, language, test)


# Commands


def commands() -> list[tuple[Block, str]]:
    """Shell lines without comments, with continuation lines joined."""
    found = []
    for block in BLOCKS:
        if block.language in ("", "sh") and not block.reason:
            for line in block.text.replace("\\\n", " ").splitlines():
                if re.match(r"(\w+=\S+ )*(make|pip|python|bash|cmake|xcode-select)\b", line):
                    found.append((block, line))
    return found


COMMANDS = commands()


def words_of(line: str) -> tuple[dict[str, str], list[str]]:
    """The environment, and the command."""
    words = shlex.split(line, comments=True)
    count = next((k for k, word in enumerate(words) if not re.fullmatch(r"\w+=.*", word)), len(words))
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def test_our_command_line_takes_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours = [
        words[3:] for words in (words_of(line)[1] for _, line in COMMANDS) if words[:3] == ["python", "-m", "fourfold"]
    ]
    for words in ours:
        build_parser().parse_args(words)  # raises for unknown options
    assert len(ours) >= 5


def test_make_has_the_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (targets,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    asked = [word for _, line in COMMANDS for word in words_of(line)[1][1:2] if words_of(line)[1][0] == "make"]
    assert set(asked) - set(targets.split()) == set()
    assert len(asked) >= 5


def test_options_of_builds_exist() -> None:
    options = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    used = {name for _, line in COMMANDS for name in words_of(line)[0] if name.startswith("FOURFOLD_")}
    used |= {name for _, line in COMMANDS for name in re.findall(r"\bFOURFOLD_\w+(?==)", line)}
    assert [name for name in used if not re.search(rf"\b{name}\b", options)] == []
    assert len(used) >= 3


def test_a_build_without_isolation_names_what_it_needs() -> None:
    (needed,) = re.findall(r"^build = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    named = [line.partition("#")[2] for _, line in COMMANDS if "--no-build-isolation ." in line.partition("#")[0]]
    for comment in named:
        assert all(name in comment for name in re.findall(r'"([a-z0-9-]+)', needed)), comment
    assert len(named) >= 2
