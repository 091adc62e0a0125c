"""fourfold.explain's page in a real browser: from disk, without a network, wide and narrow, in light and dark mode."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fourfold
from browser import chromium, screenshot, seen

# Added to the page by this test: the browser's layout as one line of text.
PROBE = """
<script>
const root = document.documentElement;
const style = getComputedStyle(document.querySelector("main"));
document.title = JSON.stringify({
  wide: root.scrollWidth - innerWidth,
  fetched: performance.getEntriesByType("resource").length, ink: style.color, paper: style.backgroundColor,
});
</script>
"""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def hostile(x: Tensor) -> Tensor:
    return x.sin() + (1 if "<script>alert('&')</script>" else 0)  # "</title><h1>"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each in its own folder, with the probe in a second file."""
    made = {
        "block": fourfold.explain(Block(), torch.randn(4, 16, requires_grad=True), timing=True),
        "hostile": fourfold.explain(hostile, torch.randn(7)),
    }
    found = {}
    for name, explanation in made.items():
        found[name] = tmp_path_factory.mktemp(name) / "page.html"
        explanation.save(found[name])
        text = found[name].read_text(encoding="utf-8")
        (found[name].parent / "probed.html").write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    return found


def probed(page: Path, width: int, *settings: str) -> dict:
    import json

    text = chromium(
        page.parent, *settings, f"--window-size={width},900", "--dump-dom", (page.parent / "probed.html").as_uri()
    )
    (title,) = re.findall(r"<title>(\{.*?\})</title>", text)
    return json.loads(title)


def test_it_shows_headings_graphs_and_programs(pages: dict[str, Path]) -> None:
    text = seen(pages["block"])
    heads = [re.sub("<.*?>", "", head) for head in re.findall(r"<h[1-4].*?</h[1-4]>", text)]
    assert heads[:4] == ["Block", "Summary", "Captured graph", "Forward"] and heads[-1] == "Time"
    assert "Outside programs in the forward" in heads and "program_0 of the backward" in heads
    levels = [int(level) for level in re.findall(r"<h([1-4])", text)]
    assert levels[0] == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:], strict=False))
    assert all(f"<summary>The {half} for Graphviz</summary>" in text for half in ("forward", "backward"))
    assert "digraph forward {" in text and "digraph backward {" in text
    assert " = program_0(" in text and "fourfold_compiler" not in text
    assert text.count("fourfold program 1") >= 3 and "native_layer_norm" in text
    assert set(re.findall(r'href="#([^"]*)"', text)) == set(re.findall(r'<h2 id="([^"]*)"', text))


def test_nothing_is_fetched_and_no_script_is_needed(pages: dict[str, Path]) -> None:
    for page in pages.values():
        text = page.read_text(encoding="utf-8")
        assert "http" not in text and "<script" not in text and "@import" not in text and "url(" not in text
        assert "src=" not in text and "<link" not in text
    assert probed(pages["block"], 1200)["fetched"] == 0


@pytest.mark.parametrize("width", [1200, 500])  # Chromium's narrowest window; frames are below
def test_nothing_is_wider_than_the_page(pages: dict[str, Path], width: int) -> None:
    assert probed(pages["block"], width)["wide"] <= 0


def test_a_telephone_shows_it_whole(pages: dict[str, Path], tmp_path: Path) -> None:
    framed = tmp_path / "framed.html"
    frame = f'<iframe width="400" height="800" src="{(pages["block"].parent / "probed.html").as_uri()}"></iframe>'
    script = "<script>onload = () => document.title = frames[0].document.title</script>"
    framed.write_text(f"<!DOCTYPE html><title>-</title>{frame}{script}")
    text = chromium(tmp_path, "--allow-file-access-from-files", "--dump-dom", framed.as_uri())
    (title,) = re.findall(r"<title>(\{.*?\})</title>", text)
    assert re.search(r'"wide":(0|-\d+),', title)


def test_light_and_dark_are_readable(pages: dict[str, Path]) -> None:
    for settings in ([], ["--blink-settings=preferredColorScheme=0"]):
        found = probed(pages["block"], 1200, *settings)
        lights = [luminance(found[name]) for name in ("ink", "paper")]
        assert (max(lights) + 0.05) / (min(lights) + 0.05) > 7  # WCAG 2.2's enhanced contrast
        assert (lights[0] > lights[1]) == bool(settings)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# What JupyterLab and the older notebook have for the tables of a cell's output.
JUPYTER = """
<!DOCTYPE html>
<style>
.rendered_html td, .rendered_html th { text-align: right; vertical-align: middle; }
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td, :not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon th,
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon tr { text-align: right; }
</style>
<div class="jp-RenderedHTMLCommon rendered_html">EXPLANATION</div>
<script>
const cells = [...document.querySelectorAll("th, td")].filter(cell => cell.textContent);
document.title = cells.map(cell => (cell.className || "words") + " " + getComputedStyle(cell).textAlign).join();
</script>
"""


def test_a_notebook_aligns_words_left_and_numbers_right(tmp_path: Path) -> None:
    html = fourfold.explain(Block(), torch.randn(4, 16, requires_grad=True))._repr_html_()
    page = tmp_path / "notebook.html"
    page.write_text(JUPYTER.replace("EXPLANATION", html), encoding="utf-8")
    (title,) = re.findall(r"<title>((?:number|words) .*?)</title>", seen(page))
    assert set(title.split(",")) == {"words left", "number right"}


@pytest.mark.parametrize("width", [1200, 500])
def test_it_can_be_drawn(pages: dict[str, Path], width: int, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    screenshot(pages["block"], picture, width, 1600)
    content = picture.read_bytes()
    assert struct.unpack(">II", content[16:24]) == (width, 1600)
    assert len(content) > 20_000  # an empty page has a tenth


def test_what_it_is_given_is_text_only(pages: dict[str, Path]) -> None:
    text = seen(pages["hostile"])
    assert "<script" not in text and text.count("<h1") == 1
    assert "&lt;/title&gt;&lt;h1&gt;" in text


def test_it_prints(pages: dict[str, Path], tmp_path: Path) -> None:
    chromium(tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", pages["block"].as_uri())
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
