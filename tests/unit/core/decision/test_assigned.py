"""Events name the devices of a pod, with the share or the subdevice of each."""

from dataclasses import replace

import pytest

from berth_api.allocation import Grant
from berth_operator.core.decision import assigned
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.fleet.fleet import Fleet
from tests.objects.builders import GI, card, divided, fleet, grant, instance, replica, sliced, waiting, with_functions

TWICE = tuple((f"MIG-2-0::{number}", "nvidia.com/mig-3g.40gb.shared") for number in range(2))


A_QUARTER, ITS_MEMORY = grant(3, core=50, ratio=25, memory=20 * GI), grant(3, core=25, ratio=100, memory=80 * GI)
SECOND = replace(instance(2, 0, "3g.40gb.shared"), id="MIG-2-0::1")
FUNCTION, MANY = with_functions(1, "0000:1f:00.2"), [grant(minor, ratio=100) for minor in range(3, 21)]


def made() -> Fleet:
    shared = card(2, healthy=False, more={"nvidia.com/mig-3g.40gb.shared": 2}, instances=TWICE)
    return fleet({"node": [sliced(0, 4), divided(1, "1g.10gb.me", "3g.40gb"), shared, *map(card, range(3, 24))]})


@pytest.mark.parametrize(
    ("grants", "text"),
    [
        pytest.param([], "", id="no device"),
        pytest.param([grant(3, core=100, ratio=100, memory=80 * GI)], "GPU 3", id="a whole card"),
        pytest.param([grant(3, ratio=100), grant(4, ratio=100)], "GPU 3; GPU 4", id="two"),
        pytest.param([A_QUARTER], "GPU 3 (core 50, memory 20Gi)", id="a share of a card"),
        pytest.param([ITS_MEMORY], "GPU 3 (core 25, memory 80Gi)", id="a share of its cores"),
        pytest.param([grant(3, ratio=25, memory=20 * GI)], "GPU 3 (memory 20Gi)", id="a share by memory"),
        pytest.param([replica(0, 1)], "GPU 0, replica 2 of 4", id="a slice"),
        pytest.param([instance(1, 1, "3g.40gb")], "GPU 1, MIG 3g.40gb", id="an instance"),
        pytest.param([instance(1, 0, "1g.10gb.me")], "GPU 1, MIG 1g.10gb+me", id="an instance with attributes"),
        pytest.param([SECOND], "GPU 2, MIG 3g.40gb, replica 2 of 2", id="a replica of an instance"),
        pytest.param([grant(0, "rdma", rdma=100)], "RDMA 0", id="a NIC"),
        pytest.param([FUNCTION], "RDMA 1 (1 of 100, virtual function 0000:1f:00.2)", id="a function"),
        pytest.param(MANY, "; ".join(f"GPU {minor}" for minor in range(3, 19)) + " and 2 more", id="many"),
    ],
)
def test_devices_are_named(grants: list[Grant], text: str) -> None:
    assert assigned.devices(made(), Placement(pod=waiting("a"), node="node", grants=tuple(grants))) == text


def test_a_node_that_is_gone_has_no_number_of_replicas() -> None:
    placement = Placement(pod=waiting("a"), node="gone", grants=(replica(0, 1),))
    assert assigned.devices(made(), placement) == "GPU 0, replica 2"
