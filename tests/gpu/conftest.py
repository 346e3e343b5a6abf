import fake_machine
import pytest


@pytest.fixture
def two_gpus(tmp_path, monkeypatch):
    """Be a machine of two GPUs."""
    fake_machine.two_gpus(tmp_path, monkeypatch)
