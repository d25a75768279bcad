"""Requests for NICs or FPGAs are divided over cards, with and without a strategy and an exclusive policy."""

from typing import Any

import orjson
import pytest

from berth_api import names
from berth_api.request import Joint, Kinds, Part, RequestError, of_pod
from berth_api.request.kinds import KindError, read_nics
from tests.objects.builders import FPGA, NVIDIA, RDMA

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


OTHERS = Kinds(nics=read_nics("nvidia.com/hostdev=100,rdma/a=1,rdma/b=1,rdma/c=30"))


@pytest.mark.parametrize(
    ("total", "count", "each"),
    [
        pytest.param({"nvidia.com/hostdev": 1}, 1, 100, id="a whole NIC"),
        pytest.param({"nvidia.com/hostdev": 3}, 3, 100, id="whole NICs"),
        pytest.param({"rdma/a": 1}, 1, 1, id="a share"),
        pytest.param({"rdma/a": 4}, 1, 4, id="shares of one NIC"),
        pytest.param({"rdma/a": 1, "rdma/b": 1}, 2, 1, id="each name is a NIC of its own"),
        pytest.param({"rdma/a": 100, "nvidia.com/hostdev": 1}, 2, 100, id="whole NICs by two names"),
    ],
)
def test_names_of_other_plugins_are_nics_where_they_are_configured(
    total: dict[str, int], count: int, each: int
) -> None:
    (part_,) = of_pod(total, {}, {}, OTHERS).parts
    assert (part_.type, part_.count, part_.amounts) == ("rdma", count, (("rdma", each),))
    assert of_pod(total, {}, {}).parts == ()
    joint = {names.JOINT_ALLOCATE: orjson.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}).decode()}
    types = ("gpu", "rdma")
    of_gpus = {**total, NVIDIA: 2}
    assert of_pod(of_gpus, joint, {}, OTHERS).joint == Joint(types=types, same_pcie=True, exact=True)
    # Manifests of others have no annotation.
    assert of_pod(of_gpus, {}, {}, OTHERS).joint == Joint(types=types, exact=True)
    assert of_pod(total, {}, {}, OTHERS).joint is of_pod({RDMA: 1, NVIDIA: 2}, {}, {}).joint is None


@pytest.mark.parametrize(
    ("total", "message"),
    [
        ({"rdma/a": 1, "rdma/c": 1}, "allowed are equal parts"),
        ({"rdma/c": 4}, "are 120 hundredths of NICs"),
        ({"rdma/a": 1, RDMA: 1}, "both request NICs"),
    ],
)
def test_other_amounts_of_their_names_are_refused(total: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        of_pod(total, {}, {}, OTHERS)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "hostdev=100",
        "rdma/a=0",
        "rdma/a=101",
        "rdma/a=x",
        "kubernetes.io/rdma=1",
        "nvidia.com/gpu=1",
        "berth.dev/rdma=1",
    ],
)
def test_what_cannot_be_a_nic_of_another_plugin_is_refused(text: str) -> None:
    with pytest.raises(KindError, match="allowed are"):
        read_nics(text)
