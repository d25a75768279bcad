"""The agent's measurements for metrics match nvidia-smi."""

import pytest

from tests.gpu import measured
from tests.gpu.look import look

pytestmark = pytest.mark.usefixtures("_gpu")


def test_every_value_is_reported_by_both_or_by_none_and_close() -> None:
    theirs = measured.of_smi(measured.ask())
    assert theirs, "nvidia-smi knows of no card"
    assert measured.differences(look().measured, theirs) == []
