"""Ids that would give a container other cards, at each place where ids enter."""

from collections.abc import Callable

import orjson
import pytest

from berth_agent.configuration.options import Options
from berth_agent.inventory.plugins import checked
from berth_agent.vendors.nvidia.hand_over import resources
from berth_api import allocation
from berth_api.device import DeviceInfo, DeviceSpec
from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import kubelet, pods
from tests.objects.builders import CORE, NVIDIA, RATIO, RDMA, device, entry, gpu_pod, node, pod

INVALID = {
    "all": "all",
    "none": "none",
    "an index": "0",
    "an index of an instance": "0:1",
    "two cards": "GPU-0,GPU-1",
    "a line break": "GPU-0\nLD_PRELOAD=/x",
    "a trailing line break": "GPU-0\n",
    "a space": "GPU-0 ",
    "a path": "../../dev/mem",
    "no ASCII": "GPU-\u0661",
    "a prefix alone": "GPU-",
    "a replica of a card": "GPU-0::1",
}
VALID = ("GPU-5f1c2d3e-0000-1111-2222-333344445555", "MIG-5f1c2d3e-0000-1111-2222-333344445555", "MIG-GPU-5f1c/1/0")


def by_the_operator(name: str) -> bool:
    made = Cluster(grace=40)
    made.node_cache.put_node(node())
    made.node_cache.put_device(device("node", entry(0, id=name)))
    made.fleet.set_fresh("node", fresh=True)
    return not isinstance(decide(made.fleet, pods.pending(pod(requests={NVIDIA: "1"})), Policy()), Failure)


def as_an_instance(name: str) -> bool:
    instance = {"id": name, "profile": "1g.10gb", "gpuInstance": 0, "computeInstance": 0, "memory": "10Gi"}
    made = Cluster(grace=40)
    made.node_cache.put_node(node())
    made.node_cache.put_device(device("node", entry(0, mig={"enabled": True, "instances": [instance]})))
    made.fleet.set_fresh("node", fresh=True)
    asked = pods.pending(pod(requests={"nvidia.com/mig-1g.10gb": "1"}))
    return not isinstance(decide(made.fleet, asked, Policy()), Failure)


def in_an_allocation(name: str) -> bool:
    recorded = {"gpu": [{"minor": 0, "id": name, "resources": {CORE: "100", RATIO: "100"}}]}
    try:
        allocation.parse(orjson.dumps(recorded).decode())
    except allocation.AllocationError:
        return False
    return True


def in_a_gpu_pod(name: str) -> bool:
    raw = gpu_pod("pod", "GPU-0")
    raw["spec"]["containers"][0]["devices"][0]["id"] = name
    return bool(kubelet.gpu_pod(raw).actual.devices)


def by_the_device_plugin(name: str) -> bool:
    spec = DeviceSpec.model_validate({"devices": [entry(0, id=name)]})
    return any(offer.units for offer in resources.offers(spec, Options()).offers)


def by_a_plugin_of_the_agent(name: str) -> bool:
    try:
        checked("gpu", [DeviceInfo.model_validate(entry(0, id=name))])
    except ValueError:
        return False
    return True


PLACES: dict[str, Callable[[str], bool]] = {
    "the operator's Device": by_the_operator,
    "an instance of the Device": as_an_instance,
    "an allocation": in_an_allocation,
    "a GpuPod": in_a_gpu_pod,
    "the device plugin": by_the_device_plugin,
    "a plug-in of the agent": by_a_plugin_of_the_agent,
}
TAKES_REPLICAS = ("an allocation", "a GpuPod")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", INVALID)
def test_an_id_that_is_no_uuid_is_not_taken(place: str, kind: str) -> None:
    expected = kind == "a replica of a card" and place in TAKES_REPLICAS
    assert PLACES[place](INVALID[kind]) is expected


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", VALID)
def test_a_uuid_is_taken(place: str, name: str) -> None:
    assert PLACES[place](name)


def test_the_problem_is_shown_on_the_device_and_its_other_cards_are_allocated() -> None:
    made = Cluster(grace=40)
    made.node_cache.put_node(node())
    made.node_cache.put_device(device("node", entry(0, id="all"), entry(1)))
    made.fleet.set_fresh("node", fresh=True)
    placement = decide(made.fleet, pods.pending(pod(requests={NVIDIA: "1"})), Policy())
    assert not isinstance(placement, Failure)
    assert [grant.id for grant in placement.grants] == ["GPU-1"]


@pytest.mark.parametrize("name", ["0000:3b:00.0", "rdma-0", "mlx5"])
def test_pci_addresses_of_nics_are_taken(name: str) -> None:
    made = Cluster(grace=40)
    made.node_cache.put_node(node())
    made.node_cache.put_device(device("node", entry(0, type="rdma", id=name, resources={RDMA: "100"})))
    made.fleet.set_fresh("node", fresh=True)
    assert not isinstance(decide(made.fleet, pods.pending(pod(requests={RDMA: "100"})), Policy()), Failure)
