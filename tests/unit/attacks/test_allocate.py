"""Calls of the device plugin with ids that are oversized, unknown or too many: refused with a short message."""

from collections.abc import Sequence

import pytest

from berth_agent.configuration.options import Options
from berth_agent.kubelet.device_plugin.offered_ids import InvalidRequestError, OfferedIds
from berth_agent.vendors.nvidia.hand_over import resources
from tests.attacks.work import counted
from tests.objects.devices import spec

MAX_TEXT = 400
"""Characters of an error."""
CALLS: dict[str, tuple[Sequence[str], str]] = {
    "an id of a megabyte": (["x" * 2**20], "unknown device: x"),
    "an id of a megabyte after a known one": (["GPU-0", "x" * 2**20], "unknown device: x"),
    "a hundred thousand unknown ids": (
        [f"GPU-x{number}" for number in range(100_000)],
        "100000 devices; offered are 2",
    ),
    "a known id a hundred thousand times": (["GPU-0"] * 100_000, "100000 devices; offered are 2"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_is_refused_at_once_and_not_echoed(call: str) -> None:
    ids, words = CALLS[call]
    (offer,) = resources.offers(spec(2), Options()).offers
    offered = OfferedIds(offer)

    def check() -> str:
        with pytest.raises(InvalidRequestError) as error:
            offered.check(ids, one_at_most=False)
        return str(error.value)

    text, _ = counted(check, 200)
    assert words in text
    assert len(text) < MAX_TEXT
