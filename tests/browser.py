"""A headless browser for the tests of pages: Debian's Chromium."""

from __future__ import annotations

import subprocess
from pathlib import Path

from machine import tool


def chromium(folder: Path, *arguments: object) -> str:
    """Chromium's output, with a profile of its own in the folder, and without a network."""
    program = tool("chromium", "chromium")
    settings = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
    )
    offline = ("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", "--no-first-run")
    command = [program, *settings, *offline, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"chromium exited with {done.returncode}:\n{done.stderr}"
    return done.stdout


def seen(page: Path, width: int = 1200) -> str:
    """The document after the page's scripts have run."""
    return chromium(page.parent, f"--window-size={width},900", "--dump-dom", page.as_uri())


def screenshot(page: Path, picture: Path, width: int, height: int) -> None:
    chromium(page.parent, f"--window-size={width},{height}", f"--screenshot={picture}", page.as_uri())
