"""hip/hipify.py translates all of cuda/, or names the file that it could not translate."""

import runpy
import sys
import warnings
from pathlib import Path

import pytest
import torch

from machine import ROOT, output_of

KERNEL = """#include <cuda_runtime.h>
#include "launch.cuh"
__global__ void kernel(float* x) { x[threadIdx.x] *= 2; }
void run(float* x, cudaStream_t stream) { kernel<<<1, 32, 0, stream>>>(x); }
"""


HIPIFY = ROOT / "hip" / "hipify.py"


@pytest.fixture
def hipify(tmp_path, monkeypatch, capsys):
    """Translates a folder with the given files; returns the exit code, the output, and the translations. Runs in this
    process, which has already imported torch; torch's hipify caches its translations, so the cache is cleared."""
    from torch.utils.hipify import hipify_python

    def run(**files):
        folder = tmp_path / "sources"
        folder.mkdir()
        for name, text in files.items():
            (folder / name.replace("_dot_", ".")).write_text(text)
        monkeypatch.setattr(hipify_python, "HIPIFY_FINAL_RESULT", {})
        monkeypatch.setattr(sys, "argv", [str(HIPIFY), str(folder), str(tmp_path / "out")])
        code, said = 0, ""
        with warnings.catch_warnings(action="ignore"):
            try:
                runpy.run_path(str(HIPIFY), run_name="__main__")
            except SystemExit as ended:
                code, said = 1, ended.code
        return code, said, translations(tmp_path / "out")

    return run


def translations(folder):
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.exists() else {}


def test_the_kernels_of_this_source_tree_are_translated(tmp_path):
    """As a command, which must exit as the build expects. In pip's environment of a build Python finds no torch."""
    packages = Path(torch.__file__).parent.parent
    output_of(sys.executable, "-S", HIPIFY, ROOT / "cuda", tmp_path / "out", packages)
    files = translations(tmp_path / "out")
    for source in (ROOT / "cuda").glob("*.cu"):
        assert f"{source.stem}.hip" in files
    assert "hipLaunchKernel" in "".join(files.values())


def test_headers_are_included_under_their_new_names(hipify):
    code, said, files = hipify(a_dot_cu=KERNEL, launch_dot_cuh="#include <cuda_runtime.h>\n")
    assert code == 0, said
    assert sorted(files) == ["a.hip", "launch_hip.cuh"]
    assert '#include "launch_hip.cuh"' in files["a.hip"]
    assert "hipStream_t" in files["a.hip"]


def test_a_file_with_nothing_to_translate_is_taken_as_it_is(hipify):
    code, said, files = hipify(a_dot_cu=KERNEL, launch_dot_cuh="int launches();\n")
    assert code == 0, said
    assert files["launch.cuh"] == "int launches();\n"
    assert '#include "launch.cuh"' in files["a.hip"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("void f() { cudaNoSuchCall(0); }\n", "cudaNoSuchCall"),
        ("#include <cuda/atomic>\n", "cuda/atomic"),
        ("void f() { cuNoSuchDriverCall(0); }\n", "cuNoSuchDriverCall"),
    ],
)
def test_what_is_left_of_cuda_is_an_error(hipify, text, left):
    code, said, files = hipify(a_dot_cu=KERNEL + text, launch_dot_cuh="")
    assert code == 1
    assert f"hipify: a.cu still has {left} after its translation" in said
    assert files == {}


def test_words_in_comments_and_sentences_are_not_code(hipify):
    text = '// as cudaNoSuchCall does\nconst char* sentence = "cudaNoSuchCall";\n'
    code, said, _ = hipify(a_dot_cu=KERNEL + text, launch_dot_cuh="")
    assert code == 0, said


def test_an_empty_folder_is_an_error(hipify):
    code, said, _ = hipify()
    assert code == 1
    assert "contains no .cu file" in said


def test_a_name_that_hipify_would_change_is_refused(hipify):
    code, said, _ = hipify(cuda_a_dot_cu=KERNEL, launch_dot_cuh="")
    assert code == 1
    assert "hipify: cuda_a.cu would be renamed by hipify; give it a name without cuda" in said
