"""What is true only of a machine with a GPU: `make test-gpu`. Nothing here changes a setting of a card."""

import pytest

from tests.gpu import machine


@pytest.fixture(scope="session")
def _gpu() -> None:
    """Skip, in plain words, where there is no GPU."""
    if reason := machine.obstacle():
        pytest.skip(reason)
