"""The documentation site: it builds without a warning, its reference has every public name, its links work, and a
browser shows it from disk, without a network, wide and narrow."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch

import fourfold
from browser import chromium
from fourfold.explaining import Explanation
from machine import ROOT, missing, output_of
from once import made_once

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
PROBED = "probe-"  # prefix of pages that tests add


@pytest.fixture(scope="session")
def site(shared: Path) -> Path:
    """The folder of pages, built once for all workers as `make docs` builds it."""
    for package in ("sphinx", "furo", "myst_parser"):
        if importlib.util.find_spec(package) is None:
            missing(f"this test needs {package}: pip install -r requirements-docs.txt")
    return made_once(shared / "site", build) / "html"


def build(folder: Path) -> None:
    output_of(
        sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", folder / "doctrees", DOCS, folder / "html"
    )


class Page(HTMLParser):
    """Collects ids, loaded files, and targets of links."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.ids.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "preload", "icon", "preconnect", "dns-prefetch"):
            self.loaded.append(found["href"])
        self.loaded += [value for name, value in found.items() if name in ("src", "srcset", "data", "poster")]


@cache
def page(file: Path) -> Page:
    return Page(file)


def pages(site: Path) -> list[Path]:
    return sorted(file for file in site.rglob("*.html") if not file.name.startswith(PROBED))


def test_links_lead_somewhere(site: Path) -> None:
    """Sphinx checks references; this checks its output, including the pages of sources."""
    broken, checked = [], 0
    for file in pages(site):
        for link in page(file).links:
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = (file.parent / unquote(path)).resolve() if path else file
            checked += 1
            if not target.is_file() or (
                anchor and target.suffix == ".html" and unquote(anchor) not in page(target).ids
            ):
                broken.append(f"{file.relative_to(site)}: {link}")
    assert broken == []
    assert checked > 1000


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = {address for file in pages(site) for address in page(file).loaded}
    assert [address for address in loaded if re.match(r"([a-z]+:)?//", address)] == []
    for file in site.rglob("*.css"):
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"@import|url\(\s*['\"]?(?:https?:)?//", text) == [], file


@pytest.fixture(scope="session")
def names(site: Path) -> set[str]:
    """The names that the reference describes, such as `fourfold.nn.LSTM`."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    data = inventory.data if hasattr(inventory, "data") else inventory
    return {name for kind, entries in data.items() if kind.startswith("py:") for name in entries}


def public_names() -> Iterator[str]:
    """Everything that a user may import or call; of classes the methods with a docstring."""
    modules = ("functional", "nn", "profiler", "reference")
    yield from (f"fourfold.{name}" for name in (*fourfold.__all__, "__version__") if name not in modules)
    for module in (fourfold.nn, fourfold.profiler):
        yield from (f"{module.__name__}.{name}" for name in module.__all__)
    for name, each in vars(fourfold.reference).items():
        if not name.startswith("_") and getattr(each, "__module__", None) == "fourfold.reference":
            yield f"fourfold.reference.{name}"
    yield from ("fourfold.compiler.backend", "fourfold.compiler.options.Options")
    classes = {"fourfold": (fourfold.Event, fourfold.Model), "fourfold.explaining": (Explanation,)}
    classes["fourfold.profiler"] = fourfold.profiler.Row, fourfold.profiler.profile
    for module, kinds in classes.items():
        for kind in kinds:
            for name, each in vars(kind).items():
                is_method = inspect.isfunction(each) or isinstance(each, property)
                if is_method and each.__doc__ and not name.startswith("_"):
                    yield f"{module}.{kind.__name__}.{name}"


def test_the_reference_has_every_public_name(names: set[str]) -> None:
    wanted = set(public_names())
    assert wanted - names == set(), "add them to docs/reference"
    assert len(wanted) > 70


def test_signatures_that_are_written_by_hand() -> None:
    """torch.nn's constructors take *args: the page has their arguments and defaults."""
    text = (DOCS / "reference" / "nn.md").read_text(encoding="utf-8")
    written = dict(re.findall(r"autoclass:: (\w+)\((.+)\)", text))
    assert set(written) == {"LSTM", "GRU", "LSTMCell", "GRUCell"}
    for name, arguments in written.items():
        names: dict[str, Callable] = {}
        exec(f"def shown({arguments}): ...", names)
        kind = getattr(torch.nn, name) if name.endswith("Cell") else torch.nn.RNNBase
        shown, real = (
            [(key, each.default) for key, each in inspect.signature(function).parameters.items()]
            for function in (names["shown"], kind)
        )
        assert shown == [(key, default) for key, default in real if key not in ("mode", "proj_size")]
        getattr(fourfold.nn, name)(2, 3, **dict(shown[2:]))


def test_the_start_page_has_aims_speeds_limits_and_models(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    aims, speeds = re.findall(r"<table.*?</table>", text, re.DOTALL)[:2]
    assert [aims.count("<tr"), speeds.count("<tr")] == [1 + 3, 1 + 10]
    assert len(re.findall(r"\d\.\d\d×, ", aims)) >= 3 and "<strong>0." in speeds
    assert 'id="when-not-to-use-it"' in text
    cards = re.findall(r'<div class="cards">.*?</ul>', text, re.DOTALL)
    assert [each.count("<li>") for each in cards] == [6, 8]


def found_by_search(site: Path, profile: Path, query: str) -> list[str]:
    """The pages that a search finds, the best first."""
    address = f"{(site / 'search.html').as_uri()}?q={query}"
    seen = chromium(profile, "--virtual-time-budget=8000", "--dump-dom", address)
    return [link.partition(".html")[0] for link in re.findall(r'<a href="([^"]+)" data-score=', seen)]


def test_a_search_finds_pages_that_explain_before_those_that_record(site: Path, tmp_path: Path) -> None:
    found = found_by_search(site, tmp_path, "scan")
    assert "scan" in found[:3]
    for record in ("changelog", "benchmarks"):
        assert found.index("quickstart") < found.index(record)
    assert found[-1] == "changelog"


# Added to the page by this test: the browser's layout as JSON.
PROBE = """
<script>
const result = {};
const isScrolled = each => {
  for (let outer = each.parentElement; outer.tagName !== "ARTICLE"; outer = outer.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(outer).overflowX)) return true;
  return false;
};
result.wide = [...document.querySelectorAll("article *")]
  .filter(each => each.getBoundingClientRect().right > innerWidth && !isScrolled(each))
  .map(each => each.outerHTML.slice(0, 100));
result.overflow = document.documentElement.scrollWidth - innerWidth;
result.fetched = performance.getEntriesByType("resource").map(each => each.name)
  .filter(name => !name.startsWith("file:"));
const shown = () => [...document.querySelectorAll(".install [data-system]")]
  .filter(each => each.offsetParent !== null).map(each => each.innerText);
result.install = {};
for (const way of document.querySelectorAll("[name=way]"))
  for (const system of document.querySelectorAll("[name=system]"))
    for (const device of document.querySelectorAll("[name=device]")) {
      way.click(), system.click(), device.click();
      result.install[[way, system, device].map(each => each.id.split("-")[1]).join(" ")] = shown();
    }
const out = document.createElement("script");
out.type = "application/json", out.id = "result", out.textContent = JSON.stringify(result);
document.body.append(out);
</script>
"""


def probed(site: Path, name: str, profile: Path, width: int) -> dict:
    """The browser's layout of a page. The copy with the probe is written beside the page."""
    text = (site / name).read_text(encoding="utf-8")
    copy = (site / name).with_name(f"{PROBED}{os.getpid()}.html")  # unique for each worker
    copy.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    try:
        seen = chromium(profile, f"--window-size={width},900", "--dump-dom", copy.as_uri())
    finally:
        copy.unlink()
    (found,) = re.findall(r'<script type="application/json" id="result">(.*?)</script>', seen, re.DOTALL)
    return json.loads(found)


@pytest.mark.parametrize("width", [1300, 500])  # Chromium's narrowest window
@pytest.mark.parametrize("name", ["index.html", "install.html", "compiler.html", "reference/explain.html"])
def test_nothing_is_wider_than_the_window(site: Path, name: str, width: int, tmp_path: Path) -> None:
    found = probed(site, name, tmp_path, width)
    assert found["wide"] == [] and found["overflow"] <= 0
    assert found["fetched"] == []


def test_each_choice_of_the_install_page_has_one_answer(site: Path, tmp_path: Path) -> None:
    found = probed(site, "install.html", tmp_path, 1300)["install"]
    choices = itertools.product(("source", "pip"), ("linux", "macos"), ("cpu", "cuda", "hip", "metal"))
    assert set(found) == {" ".join(choice) for choice in choices}
    assert {choice: len(answers) for choice, answers in found.items() if len(answers) != 1} == {}
    assert "FOURFOLD_CUDA=ON pip install" in found["source linux cuda"][0]
    assert "FOURFOLD_HIP=ON pip install" in found["source linux hip"][0]
    assert "FOURFOLD_METAL=ON pip install" in found["source macos metal"][0]
    for choice, (answer,) in found.items():
        if choice.startswith("pip") and "pip install fourfold" in answer:
            assert "Not published yet" in answer
