import os
from pathlib import Path

import pytest
import torch

import simulated
from once import shared_folder

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


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes that run these tests."""
    return shared_folder(tmp_path_factory)
