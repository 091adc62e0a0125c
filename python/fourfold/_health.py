"""The checks of ``import fourfold``: the operators are registered, and the environment's CPU level is available."""

import torch

from fourfold import _C, _cmake


def check() -> None:
    """Raises ImportError with the versions and how to fix it."""
    info = _C.build_info()
    missing = [name for name in info["operators"] if not hasattr(torch.ops.fourfold, name)]
    if missing:
        raise ImportError(
            f"fourfold {info['version']} (built with torch {info['torch_version']}) loaded under torch "
            f"{torch.__version__}, but these operators are not registered: {', '.join(missing)}; {_cmake.REINSTALL}"
        )
    try:
        _C.cpu_capability()
    except RuntimeError as error:
        raise ImportError(str(error)) from None
