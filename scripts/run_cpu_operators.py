"""check_backends.py runs this in a process of its own, with one of its builds. It needs no GPU.

    python -S scripts/run_cpu_operators.py cuda|hip

Imports fourfold, compares its CPU operators with their definitions, and prints the names of the operators that have a
kernel of that backend registered. PYTHONPATH begins with the build; -S keeps an editable install out.
"""

import sys

import torch

import fourfold
from op_cases import CASES, TOLERANCE, flatten, wider


def main() -> None:
    backend = sys.argv[1]
    torch.manual_seed(0)
    for case in CASES:
        args = case.arguments(torch.float32)
        exact = case.reference(*map(wider, args))
        for result, wanted in zip(flatten(case.function(*args)), flatten(exact), strict=True):
            wanted = wanted.to(torch.float32)
            torch.testing.assert_close(result, wanted, equal_nan=True, **TOLERANCE[torch.float32])
    if not fourfold.backends()[backend]["built"]:
        sys.exit(f"the library says that {backend} is not built: {fourfold.backends()[backend]['reason']}")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    # A ROCm build of torch dispatches HIP kernels under this key too.
    print(*(name for name in fourfold.operator_names() if has_kernel(f"fourfold::{name}", "CUDA")))


if __name__ == "__main__":
    main()
