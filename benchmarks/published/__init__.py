"""The works of ``real``: a module for each model of examples/models, with ``cases``."""

import importlib

from torch import nn


def plain(name: str) -> nn.Module:
    """The model in plain PyTorch: that of the example, or the module's own where the example's is not plain."""
    from benchmarks.published.case import example

    own = importlib.import_module(f"{__name__}.{name}")
    return own.plain() if hasattr(own, "plain") else example(name).pretrained()
