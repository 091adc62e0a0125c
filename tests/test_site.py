"""The documentation site: it builds without a warning, its reference has every public name, its links work, and a
browser shows it from disk, without a network, wide and narrow, in light and dark mode."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch

import fourfold
import fourfold.functional
from browser import chromium
from fourfold.compiler.options import Options
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


def test_every_page_of_docs_is_there(site: Path) -> None:
    wanted = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    if not (ROOT / "CHANGELOG.md").exists():
        wanted.discard(Path("changelog.html"))
    assert wanted - {path.relative_to(site) for path in pages(site)} == set()
    assert len(wanted) > 20


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
    elsewhere = [
        f"{file.relative_to(site)}: {address}"
        for file in pages(site)
        for address in page(file).loaded
        if re.match(r"([a-z]+:)?//", address)
    ]
    assert elsewhere == []
    for file in site.rglob("*.css"):
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"@import|url\(\s*['\"]?(?:https?:)?//", text) == [], file


def test_links_to_files_of_the_repository_become_pages(site: Path) -> None:
    linked = {link for link in page(site / "design.html").links if link.startswith("source/")}
    assert "source/cpp/formulas/softshrink.h.html" in linked and len(linked) > 50
    text = (site / "source" / "cpp" / "formulas" / "softshrink.h.html").read_text(encoding="utf-8")
    words = " ".join(re.sub("<.*?>", "", text).split())
    assert "struct Softshrink" in words


# The names in the reference


@pytest.fixture(scope="session")
def names(site: Path) -> set[str]:
    """The names that the reference describes, such as `fourfold.nn.LSTM`."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: path)
    data = inventory.data if hasattr(inventory, "data") else inventory
    return {name for kind, entries in data.items() if kind.startswith("py:") for name in entries}


def public_names() -> Iterator[str]:
    """Everything that a user may import or call."""
    modules = ("functional", "nn", "profiler", "reference")
    yield from (f"fourfold.{name}" for name in (*fourfold.__all__, "__version__") if name not in modules)
    for module in (fourfold.nn, fourfold.profiler):
        yield from (f"{module.__name__}.{name}" for name in module.__all__)
    own = (name for name, each in vars(fourfold.reference).items() if is_defined_in(fourfold.reference, each))
    yield from (f"fourfold.reference.{name}" for name in own if not name.startswith("_"))
    yield "fourfold.compiler.backend"
    yield "fourfold.compiler.options.Options"
    classes = {"fourfold": (fourfold.Event, fourfold.Model), "fourfold.explaining": (Explanation,)}
    classes["fourfold.profiler"] = fourfold.profiler.Row, fourfold.profiler.profile
    for module, kinds in classes.items():
        yield from (f"{module}.{kind.__name__}.{name}" for kind in kinds for name in methods(kind))


def is_defined_in(module: object, each: object) -> bool:
    return getattr(each, "__module__", None) == module.__name__ and (inspect.isfunction(each) or inspect.isclass(each))


def methods(kind: type) -> list[str]:
    """Public methods: those with a docstring."""
    found = {name: each for name, each in vars(kind).items() if inspect.isfunction(each) or isinstance(each, property)}
    return [name for name, each in found.items() if not name.startswith("_") and each.__doc__]


def test_the_reference_has_every_public_name(names: set[str]) -> None:
    wanted = set(public_names())
    assert wanted - names == set(), "add them to docs/reference"
    assert len(wanted) > 70


def test_functional_has_the_functions_of_the_package() -> None:
    """Therefore the reference has them once."""
    assert all(getattr(fourfold.functional, name) is getattr(fourfold, name) for name in fourfold.functional.__all__)


def test_options_and_arguments_are_described(site: Path) -> None:
    text = (site / "reference" / "compiler.html").read_text(encoding="utf-8")
    for field in fields(Options):
        assert f"<strong>{field.name}</strong>" in text
    functions = (site / "reference" / "functional.html").read_text(encoding="utf-8")
    for name in fourfold.functional.__all__:
        for argument in inspect.signature(getattr(fourfold, name)).parameters:
            assert f"<strong>{argument}</strong>" in functions, (name, argument)


def test_every_command_is_described(site: Path) -> None:
    text = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name in ("info", "demo", "bench", "profile", "explain"):
        assert f'id="command-{name}"' in text and f"usage: python -m fourfold {name}" in text


def test_signatures_that_are_written_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.nn's constructors take *args: the page has their arguments and defaults."""
    text = (DOCS / "reference" / "nn.md").read_text(encoding="utf-8")
    written = dict(re.findall(r"autoclass:: (\w+)\((.+)\)", text))
    assert set(written) == {"LSTM", "GRU", "LSTMCell", "GRUCell"}
    for name, arguments in written.items():
        shown = ast.parse(f"def f({arguments}): ...").body[0].args
        shown_defaults = dict(
            zip([each.arg for each in shown.args[::-1]], map(ast.literal_eval, shown.defaults[::-1]), strict=False)
        )
        kind = getattr(torch.nn, name) if name.endswith("Cell") else torch.nn.RNNBase
        real = dict(inspect.signature(kind).parameters)
        for not_taken in ("mode", "proj_size"):
            real.pop(not_taken, None)
        assert [each.arg for each in shown.args] == list(real)
        defaults = {key: each.default for key, each in real.items() if each.default is not inspect.Parameter.empty}
        assert shown_defaults == defaults
        getattr(fourfold.nn, name)(2, 3, **shown_defaults)


# In a browser

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
const style = getComputedStyle(document.body);
const content = getComputedStyle(document.querySelector("article"));
result.ink = content.color, result.paper = style.backgroundColor;
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


def probed(site: Path, name: str, profile: Path, width: int, *settings: str) -> dict:
    """The browser's layout of a page. The copy with the probe is written beside the page."""
    text = (site / name).read_text(encoding="utf-8")
    copy = (site / name).with_name(f"{PROBED}{os.getpid()}.html")  # unique for each worker
    copy.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    try:
        seen = chromium(profile, *settings, f"--window-size={width},900", "--dump-dom", copy.as_uri())
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


@pytest.mark.parametrize("settings", [(), ("--blink-settings=preferredColorScheme=0",)], ids=["light", "dark"])
def test_light_and_dark_are_readable(site: Path, settings: tuple[str, ...], tmp_path: Path) -> None:
    found = probed(site, "quickstart.html", tmp_path, 1300, *settings)
    ink, paper = luminance(found["ink"]), luminance(found["paper"])
    assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 7  # WCAG 2.2's enhanced contrast
    assert (ink > paper) == bool(settings)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


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
    every = Counter(answer for (answer,) in found.values())
    assert len(every) == len(re.findall("data-system", (DOCS / "install.md").read_text(encoding="utf-8")))


def test_without_scripts_every_answer_can_be_chosen(site: Path) -> None:
    """The selector is HTML and CSS."""
    text = (site / "install.html").read_text(encoding="utf-8")
    article = text[text.index("<article") : text.index("</article>")]
    assert "<script" not in article and "onclick" not in article and "onchange" not in article


def test_the_search_finds_pages_from_disk(site: Path, tmp_path: Path) -> None:
    address = (site / "search.html").as_uri() + "?q=checkpoint_every"
    seen = chromium(tmp_path, "--virtual-time-budget=10000", "--dump-dom", address)
    found = re.findall(r'href="([^"#?]+\.html)[^"]*"[^>]*data-score|<li[^>]*><a href="([^"#?]+\.html)', seen)
    assert any("scan.html" in "".join(each) for each in found), seen[-3000:]
