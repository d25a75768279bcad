"""Check that a bound pod holds what the answer to its manifest promises."""

import re
from typing import Any, Final

from berth_api.resources import quantity
from tests.integration.operator import world

_AMOUNTS: Final = re.compile(
    r"(?P<count>\d+) (?:x nvidia.com/gpu|(?P<whole>whole )?cards?)"
    r"(?: of (?:(?P<mebibytes>\d+) MiB|(?P<percent>\d+) % of the memory))?"
    r"(?: (?:and|with) (?P<cores>\d+) % of the cores)?(?: each)?(?: and 1 whole RDMA NIC)?"
)


def held_cards(pod: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """Return the UUIDs of a bound pod's cards, after a check of their number and of the amounts on each."""
    meant = _AMOUNTS.fullmatch(answer["gets"])
    assert meant, answer["gets"]
    cards = world.allocation(pod)["gpu"]
    assert len(cards) == int(meant["count"])
    for card in cards:
        held = {name.partition("/")[2]: quantity.parse(amount) for name, amount in card["resources"].items()}
        if meant["mebibytes"]:
            assert held["gpu-memory"] == int(meant["mebibytes"]) * 2**20
        else:
            assert held["gpu-memory-ratio"] == int(meant["percent"] or 100)
        assert held.get("gpu-core", 0) >= int(meant["cores"] or 0)
    return [card["id"] for card in cards]
