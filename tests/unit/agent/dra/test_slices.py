"""ResourceSlices: the devices that they list, and the writes that bring them to the API server."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_agent.conditions import unhealthy
from berth_agent.dra import devices, slices
from berth_agent.dra.devices import ListedDevice, link_groups
from berth_agent.dra.slices import Create, Delete, Known, Update
from berth_agent.vendors.nvidia.labels import CardFacts, Facts
from berth_api.device import DeviceInfo, DeviceSpec, Link, Mig, MigInstance, Topology

UUID = "GPU-3F2A0001-aaaa-bbbb-cccc-{:012d}"


def card(minor: int, *peers: int, **fields: Any) -> DeviceInfo:
    return DeviceInfo(
        type="gpu",
        minor=minor,
        id=UUID.format(minor),
        health=True,
        model="NVIDIA H100 80GB HBM3",
        resources={"kubernetes.io/gpu-memory": "81559Mi"},
        topology=Topology(node_id=1, bus_id=f"0000:{0xA0 - minor:02x}:00.0"),
        links=[Link(minor=peer, type="NVLink", count=2) for peer in peers],
    ).model_copy(update=fields)


def spec(*cards: DeviceInfo) -> DeviceSpec:
    return DeviceSpec(driver_version="570.124.06", cuda_version="12.8", devices=list(cards))


def test_a_device_has_the_attributes_of_nvidias_driver() -> None:
    facts = Facts(cards={UUID.format(0): CardFacts(compute=(8, 9), pci_class="0x030200")})
    [listed] = devices.listed(spec(card(0)), facts, roots={"0000:a0:00.0": "pci0000:9f"})
    [[shown]] = slices.by_card([listed], with_taints=True).values()
    assert shown == {
        "name": "gpu-3f2a0001-aaaa-bbbb-cccc-000000000000",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": UUID.format(0)},
            "productName": {"string": "NVIDIA H100 80GB HBM3"},
            "driverVersion": {"version": "570.124.6"},
            "cudaDriverVersion": {"version": "12.8.0"},
            "architecture": {"string": "Ada Lovelace"},
            "cudaComputeCapability": {"version": "8.9.0"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:a0:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:9f"},
            "resource.kubernetes.io/numaNode": {"int": 1},
        },
        "capacity": {"memory": {"value": "81559Mi"}},
    }


def test_instances_replace_their_card_and_faults_are_taints_or_absences() -> None:
    instance = MigInstance(id="MIG-5", profile="1g.10gb", gpu_instance=1, compute_instance=0, memory="9856Mi")
    broken = unhealthy(card(1), reason="Xid79", message="fell off the bus")
    divided = card(0, mig=Mig(enabled=True, instances=[instance]))
    listed = devices.listed(spec(divided, broken, card(2)), None, roots={}, hidden=frozenset({UUID.format(2)}))
    # By PCI address, not by minor.
    assert [(one.name, one.fault, one.message) for one in listed] == [
        ("gpu-3f2a0001-aaaa-bbbb-cccc-000000000001", "Xid79", "fell off the bus"),
        ("mig-5", "", ""),
    ]
    assert listed[1].attributes["parentUUID"] == {"string": UUID.format(0)}
    tainted = slices.by_card(listed, with_taints=True)
    assert [[device.get("taints") for device in group] for group in tainted.values()] == [
        [[{"key": "gpu.berth.dev/unhealthy", "value": "Xid79", "effect": "NoSchedule"}]],
        [None],
    ]
    left = slices.by_card(listed, with_taints=False)
    assert [device["name"] for group in left.values() for device in group] == ["mig-5"]


@pytest.mark.parametrize(
    ("cards", "groups"),
    [
        pytest.param([card(0, 1), card(1, 0), card(2, 3), card(3, 2), card(4)], [{0, 1}, {2, 3}], id="bridges"),
        pytest.param([card(n, *({0, 1, 2, 3} - {n})) for n in range(4)], [{0, 1, 2, 3}], id="switch"),
        pytest.param([card(n, (n + 1) % 4, (n - 1) % 4) for n in range(4)], [], id="mesh"),
        pytest.param([card(0, 1), card(1, 0, 2), card(2, 1)], [], id="chain"),
        pytest.param([card(0, 7)], [], id="peer that is gone"),
    ],
)
def test_only_disjoint_groups_of_linked_cards_have_a_name(cards: list[DeviceInfo], groups: list[set[int]]) -> None:
    named: dict[str, set[int]] = {}
    minors = {one.id: one.minor for one in cards}
    for uuid, group in link_groups(cards).items():
        named.setdefault(group, set()).add(minors[uuid])
    assert list(named.values()) == groups


class Server:
    """The slices of an API server, which adds times to taints."""

    def __init__(self) -> None:
        self.slices: dict[str, Known] = {}
        self._count = 0

    def apply(self, changes: Sequence[Create | Update | Delete]) -> None:
        for change in changes:
            self._count += 1
            if isinstance(change, Delete):
                del self.slices[change.known.name]
            elif isinstance(change, Update):
                one = change.known
                self.slices[one.name] = self._stored(one.name, one.card, change.spec)
            else:
                self.slices[f"s{self._count}"] = self._stored(f"s{self._count}", change.card, change.spec)

    def _stored(self, name: str, card: str, body: slices.Spec) -> Known:
        shown = [
            {**device, "taints": [{**taint, "timeAdded": "now"} for taint in device["taints"]]}
            if "taints" in device
            else device
            for device in body["devices"]
        ]
        return Known(name=name, uid=name, version=str(self._count), card=card, spec={**body, "devices": shown})

    def devices(self) -> set[str]:
        """Return the devices of the complete pool, as a scheduler reads them; none while it is incomplete."""
        pools = [one.spec["pool"] for one in self.slices.values()]
        newest = max((pool["generation"] for pool in pools), default=0)
        current = [one for one in self.slices.values() if one.spec["pool"]["generation"] == newest]
        if any(one.spec["pool"]["resourceSliceCount"] != len(current) for one in current):
            return set()
        return {device["name"] for one in current for device in one.spec["devices"]}


def one(number: int, fault: str) -> ListedDevice:
    return ListedDevice(name=f"gpu-{number}", id=f"GPU-{number}", card=f"GPU-{number}", place="", fault=fault)


@given(
    st.lists(
        st.tuples(st.dictionaries(st.integers(0, 4), st.sampled_from(["", "Xid79"])), st.sets(st.integers(0, 9))),
        min_size=1,
    )
)
def test_any_change_or_deletion_ends_with_a_complete_pool_and_no_further_write(
    steps: list[tuple[dict[int, str], set[int]]],
) -> None:
    server = Server()
    for faults, deleted in steps:
        for index in deleted & set(range(len(server.slices))):
            server.slices.pop(sorted(server.slices)[min(index, len(server.slices) - 1)])
        listed = [one(number, fault) for number, fault in sorted(faults.items())]
        wanted = slices.by_card(listed, with_taints=True)
        changes = slices.plan(wanted, list(server.slices.values()), node="node")
        server.apply(changes)
        assert server.devices() == {device.name for device in listed}
        assert slices.plan(wanted, list(server.slices.values()), node="node") == []


def test_a_new_fault_is_one_write_and_a_lost_slice_another() -> None:
    server = Server()
    sound = slices.by_card([one(0, ""), one(1, "")], with_taints=True)
    server.apply(slices.plan(sound, [], node="node"))
    faulty = slices.by_card([one(0, ""), one(1, "Xid79")], with_taints=True)
    [update] = slices.plan(faulty, list(server.slices.values()), node="node")
    assert isinstance(update, Update)
    server.apply([update])
    server.slices.pop(next(iter(server.slices)))
    [create] = slices.plan(faulty, list(server.slices.values()), node="node")
    assert isinstance(create, Create)
