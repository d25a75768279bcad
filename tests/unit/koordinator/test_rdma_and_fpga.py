"""Requests for NICs or FPGAs are divided over cards, with and without a strategy and an exclusive policy."""

from typing import Any

import orjson
import pytest

from berth_api import names
from berth_api.request import Part, RequestError, of_pod
from tests.builders import FPGA, NVIDIA, RDMA

ALL, COUNT = {"allocateStrategy": "ApplyForAll"}, {"allocateStrategy": "RequestsAsCount"}
EACH = {"exclusivePolicy": "DeviceLevel"}
SWITCH = {"exclusivePolicy": "PCIeLevel"}


def part(kind: str, amount: int, hint: dict[str, Any]) -> Part:
    """Return the part of a request for an amount of a type with this hint."""
    hints = orjson.dumps({kind: hint}).decode()
    (part_,) = of_pod({f"kubernetes.io/{kind}": amount}, {names.ALLOCATE_HINT: hints}, {}).parts
    return part_


@pytest.mark.parametrize("kind", [pytest.param("rdma", id="rdma"), pytest.param("fpga", id="fpga")])
@pytest.mark.parametrize(
    ("amount", "hint", "count", "each", "every"),
    [
        pytest.param(1, {}, 1, 1, False, id="a hundredth"),
        pytest.param(50, {}, 1, 50, False, id="half of one"),
        pytest.param(100, {}, 1, 100, False, id="one"),
        pytest.param(200, {}, 2, 100, False, id="two"),
        pytest.param(800, {}, 8, 100, False, id="eight"),
        pytest.param(1, ALL, 1, 1, True, id="a hundredth of all"),
        pytest.param(50, ALL, 1, 50, True, id="half of all"),
        pytest.param(100, ALL, 1, 100, True, id="all of all"),
        pytest.param(200, ALL, 2, 100, False, id="several are counted before all are taken"),
        pytest.param(1, COUNT, 1, 1, False, id="one, of which nearly nothing is taken"),
        pytest.param(4, COUNT, 4, 1, False, id="four"),
        pytest.param(100, COUNT, 100, 1, False, id="a hundred"),
        pytest.param(200, COUNT, 2, 100, False, id="several whole ones are counted by hundreds"),
        pytest.param(4, COUNT | EACH, 4, 100, False, id="four, and no other pod on them"),
        pytest.param(4, COUNT | SWITCH, 4, 1, False, id="four, and no other pod on their switches"),
        pytest.param(50, EACH, 1, 50, False, id="a policy by itself divides nothing"),
        pytest.param(50, ALL | EACH, 1, 50, True, id="nor does it with all"),
    ],
)
def test_what_a_strategy_makes_of_a_request(
    kind: str, amount: int, hint: dict[str, Any], count: int, each: int, *, every: bool
) -> None:
    part_ = part(kind, amount, hint)
    assert (part_.type, part_.count, part_.amounts, part_.every) == (kind, count, ((kind, each),), every)


@pytest.mark.parametrize("amount", [pytest.param(amount, id=str(amount)) for amount in (101, 150, 199, 250, 1001)])
@pytest.mark.parametrize(
    "hint", [pytest.param({}, id="none"), pytest.param(ALL, id="all"), pytest.param(COUNT, id="count")]
)
@pytest.mark.parametrize("kind", [pytest.param("rdma", id="rdma"), pytest.param("fpga", id="fpga")])
def test_no_strategy_makes_sense_of_one_and_a_half(kind: str, hint: dict[str, Any], amount: int) -> None:
    with pytest.raises(RequestError, match=f"{kind}: {amount}; allowed are 1 to 100"):
        part(kind, amount, hint)


def test_each_type_has_its_own_strategy() -> None:
    hints = orjson.dumps({"rdma": ALL, "fpga": COUNT}).decode()
    device_request = of_pod({RDMA: 3, FPGA: 3}, {names.ALLOCATE_HINT: hints}, {})
    assert [(each.type, each.count, each.every) for each in device_request.parts] == [
        ("rdma", 1, True),
        ("fpga", 3, False),
    ]


def test_gpus_know_no_strategy() -> None:
    hints = orjson.dumps({"gpu": ALL | EACH}).decode()
    (part_,) = of_pod({NVIDIA: 2}, {names.ALLOCATE_HINT: hints}, {}).parts
    assert (part_.count, part_.every, part_.exclusive) == (2, False, "DeviceLevel")
