"""Fetches the headers of other minor versions of torch, which is all that compiling the gradients for them needs.

    python scripts/torch_headers.py [--newest] [VERSION ...]

Without versions: every minor version from the oldest that fourfold supports to the newest that pip finds. Prints their
include folders. A wheel's build calls this (cmake/torch_headers.cmake). A wheel of torch has hundreds of megabytes, its
headers only a few: range requests fetch just these.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "torch-headers"
FIRST = (2, 10)
WANTED = "torch/include/"


class Remote(io.RawIOBase):
    """A file behind a URL that is read with range requests."""

    PIECE = 1 << 22

    def __init__(self, url: str) -> None:
        self.url = url
        self.at = 0
        self.size = int(self.get(0, 0)[0].rsplit("/", 1)[1])
        self.start, self.piece = 0, b""

    def get(self, first: int, last: int) -> tuple[str, bytes]:
        """The bytes from `first` to `last`, and the server's content range."""
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={first}-{last}"})
        for attempt in range(3):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    if answer.status != 206:
                        sys.exit(
                            f"torch_headers.py: the index sends {self.url} only whole; download torch's wheel and "
                            "unpack its include folder instead"
                        )
                    return answer.headers["Content-Range"], answer.read()
            except OSError:
                if attempt == 2:
                    raise
                time.sleep(2**attempt)
        raise AssertionError

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: memoryview) -> int:
        wanted = min(len(buffer), self.size - self.at)
        if wanted <= 0:
            return 0
        if not self.start <= self.at < self.start + len(self.piece):
            self.start = self.at
            self.piece = self.get(self.at, min(self.at + self.PIECE, self.size) - 1)[1]
        part = self.piece[self.at - self.start :][:wanted]
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)


def pip(*words: str) -> str:
    # One retry: without an index, a build should continue soon.
    command = [sys.executable, "-m", "pip", *words, "--retries", "1"]
    # The build's pinned torch is not the only one whose headers are needed.
    surroundings = os.environ | dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), os.devnull)
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        why = (errors or done.stderr.splitlines()[-1:] or ["no error message"])[0].removeprefix("ERROR: ")
        sys.exit(f"torch_headers.py: pip {' '.join(words)} says: {why}\n{done.stderr}")
    return done.stdout


def minor_versions() -> list[str]:
    """From the oldest that fourfold supports to the newest."""
    said = pip("index", "versions", "torch")
    listed = re.search(r"^Available versions: (.*)$", said, re.MULTILINE)
    if listed is None:
        sys.exit(f"torch_headers.py: expected pip to list the versions of torch, but it says: {said}")
    minors = {tuple(int(part) for part in version.split(".")[:2]) for version in listed[1].split(", ")}
    return [".".join(map(str, minor)) for minor in sorted(minors) if minor >= FIRST]


def fetch(version: str) -> Path:
    """The include folder of torch's headers of that minor version; fetched once."""
    folder = FOLDER / version
    if (folder / "complete").exists():
        return folder / WANTED
    resolve = ("install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-")
    (torch,) = json.loads(pip(*resolve, f"torch=={version}.*"))["install"]
    print(f"headers of torch {torch['metadata']['version']}", file=sys.stderr, flush=True)
    url = torch["download_info"]["url"]
    if url.startswith("file:"):
        source = urllib.request.url2pathname(url.removeprefix("file://"))
    else:
        source = io.BufferedReader(Remote(url), Remote.PIECE)
    with zipfile.ZipFile(source) as wheel:
        # In file order, so that one request serves many of them.
        members = sorted((m for m in wheel.infolist() if m.filename.startswith(WANTED)), key=lambda m: m.header_offset)
        wheel.extractall(folder, members)
    (folder / "complete").touch()
    return folder / WANTED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="minor versions, such as 2.12")
    parser.add_argument("--newest", action="store_true", help="of these the last alone")
    arguments = parser.parse_args()
    try:
        versions = arguments.versions or minor_versions()
        if arguments.newest:
            versions = versions[-1:]
        folders = [str(fetch(version)) for version in versions]
    except (OSError, zipfile.BadZipFile) as error:
        sys.exit(f"torch_headers.py: the headers were not read: {error}")
    print(";".join(folders))


if __name__ == "__main__":
    main()
