"""The agent and nvidia-smi report the same for this machine."""

import pytest

from tests.gpu import smi
from tests.gpu.look import look

pytestmark = pytest.mark.usefixtures("_gpu")


def test_every_field_equals_nvidia_smis() -> None:
    theirs = smi.facts(smi.ask())
    assert len(theirs) > 1, "nvidia-smi knows of no card"
    assert smi.differences(look().facts, theirs) == []
