"""Tests that need a machine with a GPU: `make test-gpu`. None of them changes a setting of a card."""

import pytest

from tests.gpu import machine


@pytest.fixture(scope="session")
def _gpu() -> None:
    """Skip with the reason if there is no GPU."""
    if reason := machine.obstacle():
        pytest.skip(reason)
