"""Installs built wheels as users will: from an index, into fresh environments, where README's examples run.

    python scripts/rehearse_release.py dist                          # with this Python
    python scripts/rehearse_release.py dist python3.10 python3.12    # with these
    python scripts/rehearse_release.py dist --without-torch python3.12

The index is served on this machine and holds only dist; torch and llvmlite come from the usual index, in the versions
of requirements-build.txt. TORCH_INDEX names another index for torch. --without-torch, where there is no torch for a
Python: installs without dependencies and checks that the import says so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import http.server
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from release import version

ROOT = Path(__file__).resolve().parent.parent
# What the index shows is what runs: the description in the installed metadata.
EXAMPLES = """
import importlib.metadata, pathlib, re, sys
import fourfold
assert "site-packages" in fourfold.__file__, fourfold.__file__
assert fourfold.__version__ == importlib.metadata.version("fourfold") == sys.argv[1], fourfold.__version__
shown = importlib.metadata.metadata("fourfold").get_payload()
examples = re.findall(r"^```python\\n(.*?)^```", shown, re.MULTILINE | re.DOTALL)
assert len(examples) == 3, examples
pathlib.Path("examples.py").write_text("\\n".join(examples))
"""
WITHOUT_TORCH = """
import importlib.metadata, sys
assert importlib.metadata.version("fourfold") == sys.argv[1]
try:
    import fourfold
except ImportError as error:
    print("without torch:", error)
    assert "torch" in str(error).lower()
else:
    raise AssertionError("expected an error, because torch isn't installed")
"""


@contextlib.contextmanager
def index(dist: Path) -> Iterator[str]:
    """The address of a simple index with the files of dist."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "simple", "fourfold", "index.html")
        page.parent.mkdir(parents=True)
        links = []
        for file in sorted(dist.glob("fourfold-*")):
            (page.parent / file.name).symlink_to(file.resolve())
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            links.append(f'<a href="{file.name}#sha256={digest}">{file.name}</a><br>\n')
        page.write_text(f"<!DOCTYPE html><html><body>\n{''.join(links)}</body></html>\n", encoding="utf-8")
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/simple"
            server.shutdown()


def run(*command: object, **keywords: object) -> None:
    print("+", *(word for word in command if "\n" not in str(word)), flush=True)
    subprocess.run([str(word) for word in command], check=True, **keywords)


def rehearse(python: str, address: str, with_torch: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", Path(folder, "venv"))
        own = Path(folder, "venv", "bin", "python")
        pip = (own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        if with_torch:
            others = ("--extra-index-url", os.environ["TORCH_INDEX"]) if os.environ.get("TORCH_INDEX") else ()
            run(*pip, *others, "--constraint", ROOT / "requirements-build.txt", "torch", "llvmlite", "numpy")
        # Only this index, and no wheel of another build from a cache.
        alone = os.environ | {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
        only = ("--index-url", address, "--no-cache-dir", "--only-binary", ":all:", f"fourfold=={version()}")
        run(*pip, "--no-deps", *only, env=alone)
        if with_torch:
            run(own, "-m", "pip", "check", env=alone)
            run(own, "-m", "fourfold", "info", cwd=folder)
        run(own, "-c", EXAMPLES if with_torch else WITHOUT_TORCH, version(), cwd=folder)
        if with_torch:
            run(own, "examples.py", cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("python", nargs="*")
    given = parser.parse_intermixed_args()
    with index(given.dist) as address:
        for python in given.python or [sys.executable]:
            rehearse(python, address, not given.without_torch)


if __name__ == "__main__":
    main()
