"""README for package indexes, for scikit-build-core: relative links and pictures, which work in the repository only,
lead to the files of the release's tag."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>(?!\w+:)[^)\s]+)\)")


def dynamic_metadata(settings: Mapping[str, object], project: Mapping[str, object]) -> dict[str, dict[str, str]]:
    if settings:
        raise ValueError(f"readme: expected no settings, but got {settings}")
    urls = project["urls"]
    assert isinstance(urls, Mapping)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return {"readme": {"content-type": "text/markdown", "text": absolute(text, urls["Homepage"], project["version"])}}


def absolute(text: str, repository: str, version: object) -> str:
    """text: of a file in the repository's root. repository: its address on GitHub."""

    def with_address(match: re.Match[str]) -> str:
        file, _, heading = match["target"].partition("#")
        kind = "raw" if match["picture"] else "tree" if (ROOT / file).is_dir() and file else "blob"
        address = f"{repository}/{kind}/v{version}/{file or 'README.md'}{'#' + heading if heading else ''}"
        return f"{match['picture']}[{match['text']}]({address})"

    return LINK.sub(with_address, text)
