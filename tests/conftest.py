import os

import pytest
import torch

import simulated

if library := os.environ.get("FOURFOLD_SIMULATED"):
    simulated.serve(library)


@pytest.fixture(autouse=True)
def _fixed_state():
    """Each test starts from the same seed and leaves no default changed, so that their order is free."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
