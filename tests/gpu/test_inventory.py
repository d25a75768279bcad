"""The agent and nvidia-smi report the same for this machine."""

import pytest

from tests.gpu import smi
from tests.gpu.look import look

pytestmark = pytest.mark.usefixtures("_gpu")


def test_every_field_is_as_nvidia_smi_tells_it() -> None:
    theirs = smi.facts(smi.ask())
    assert len(theirs) > 1, "nvidia-smi knows of no card"
    assert smi.differences(look().facts, theirs) == []
