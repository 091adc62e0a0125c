"""Translates CUDA sources into HIP with torch's hipify; fails if a CUDA name remains.

    python hip/hipify.py CUDA_FOLDER HIP_FOLDER [PACKAGES]

x.cu becomes x.hip. A header with changes becomes x_hip.cuh, and the other files include it under that name.
HIP_FOLDER is emptied first; CUDA_FOLDER is only read. PACKAGES: the folder of Python packages that has torch, if this
Python has none.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# Names of CUDA's runtime, driver and libraries, and its launch syntax. torch's names, such as the dispatch key CUDA and
# aoti_torch_get_current_cuda_stream, are the same in a ROCm build.
CUDA_NAME = re.compile(r"\bcuda[A-Z]\w*|\bcu[A-Z][a-z]\w*|\bCU[a-z]\w+|\bcu(?:blas|rand|dnn|sparse|solver|fft)\w+|<<<")
CUDA_HEADER = re.compile(r"(?:^|/)(?:cuda|cu(?:blas|rand|dnn|sparse|fft)|cub/|nv/|mma\.h|cooperative_groups)")


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    source, output = map(Path, sys.argv[1:3])
    sys.path += sys.argv[3:]
    files = sorted(path for path in source.iterdir() if path.suffix in (".cu", ".cuh"))
    if not files:
        sys.exit(f"hipify: {source} contains no .cu file")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = translate(files, Path(scratch))
        problems = [problem for file in files for problem in collect(file, outcomes, output)]
    if problems:
        # A later build would use the files.
        shutil.rmtree(output)
        sys.exit("\n".join(problems))


def translate(files: list[Path], scratch: Path) -> dict[str, tuple[Path, str]]:
    """For each file's name, the path of hipify's translation and hipify's status."""
    from torch.utils.hipify import hipify_python

    # hipify replaces cuda and CUDA in the names of folders and files, so the copy's folders must not contain them.
    copy, result = scratch / "copy", scratch / "result"
    copy.mkdir()
    for file in files:
        if "cuda" in file.name.lower():
            sys.exit(f"hipify: {file.name} would be renamed by hipify; give it a name without cuda")
        shutil.copy(file, copy)
    done = hipify_python.hipify(
        project_directory=str(copy),
        output_directory=str(result),
        includes=[str(copy / "*")],
        show_progress=False,
        is_pytorch_extension=True,
    )
    return {Path(path).name: (Path(one.hipified_path or path), one.status) for path, one in done.items()}


def collect(file: Path, outcomes: dict[str, tuple[Path, str]], output: Path) -> list[str]:
    """Writes one file's translation into `output`; returns its problems."""
    if file.name not in outcomes:
        return [f"hipify: {file.name} was not translated"]
    path, status = outcomes[file.name]
    if not path.exists():
        return [f"hipify: {file.name} has no translation ({status or 'hipify skipped it'})"]
    text = path.read_text()
    name = f"{file.stem}.hip" if file.suffix == ".cu" else path.name
    (output / name).write_text(text)
    code = COMMENT_OR_STRING.sub(lambda found: "\n" * found.group().count("\n"), text)
    left = [found.group() for found in CUDA_NAME.finditer(code)]
    left += [name for name in INCLUDE.findall(text) if CUDA_HEADER.search(name)]
    return [f"hipify: {file.name} still has {name} after its translation" for name in dict.fromkeys(left)]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
