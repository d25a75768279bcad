from pathlib import Path

import pytest

from berth_agent.vendors.simulated import fleet
from berth_agent.vendors.simulated.fleet import FleetError
from berth_agent.vendors.simulated.inventory import SimulatedInventory
from berth_api import names
from berth_api.device import DeviceInfo, Link, Mig, Topology

ROOT = Path(__file__).parents[4]


def write(path: Path, text: str) -> Path:
    """Replace the file in one step, as editors and ConfigMaps do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
    return path


def fleet_of(folder: Path, *lines: str) -> SimulatedInventory:
    return SimulatedInventory(path=write(folder / "fleet.yaml", "\n".join(["nodes:", *lines])))


async def cards(inventory: SimulatedInventory, node: str) -> list[DeviceInfo]:
    return list((await inventory.read())[node].spec.devices)


async def test_an_a100_machine_has_two_sockets_four_switches_and_nvswitch(tmp_path: Path) -> None:
    devices = await cards(fleet_of(tmp_path, "- {names: a, profile: a100, gpus: 8, rdma: 4}"), "a")
    gpus, nics = devices[:8], devices[8:]
    assert [gpu.topology.node_id for gpu in gpus if gpu.topology] == [0, 0, 0, 0, 1, 1, 1, 1]
    switches = [gpu.topology.pcie_id for gpu in gpus if gpu.topology]
    assert switches[0::2] == switches[1::2]
    assert [nic.topology.pcie_id for nic in nics if nic.topology] == switches[0::2]
    assert gpus[7].links == [Link(minor=minor, type="NVLink", count=12, peer_to_peer=True) for minor in range(7)]
    assert len({device.topology.bus_id for device in devices if device.topology}) == 12


async def test_a_card_is_described_in_full(tmp_path: Path) -> None:
    card = (await cards(fleet_of(tmp_path, "- {names: node-3, profile: h100, gpus: 1}"), "node-3"))[0]
    assert card == DeviceInfo(
        type="gpu",
        minor=0,
        id=card.id,
        module_id=1,
        health=True,
        model="NVIDIA H100 80GB HBM3",
        resources={
            "kubernetes.io/gpu-core": 100,
            "kubernetes.io/gpu-memory": "81559Mi",
            "kubernetes.io/gpu-memory-ratio": 100,
        },
        multiprocessors=132,
        memory_bandwidth="3352320M",
        encoders=0,
        decoders=7,
        topology=Topology(socket_id=0, node_id=0, pcie_id="0000:11:00.0", bus_id="0000:12:00.0"),
        mig=Mig(enabled=False),
    )


async def test_cards_of_amd_have_hives_and_their_vendor(tmp_path: Path) -> None:
    readings = await fleet_of(
        tmp_path, "- {names: a, profile: mi210, gpus: 8}", "- {names: b, profile: mi300x, gpus: 8}"
    ).read()
    of_hive = [
        {link.minor for link in card.links if link.type == "XGMI"}
        for node in ("a", "b")
        for card in readings[node].spec.devices
    ]
    assert of_hive[0] == {1, 2, 3}
    assert of_hive[7] == {4, 5, 6}
    assert of_hive[8:] == [set(range(8)) - {minor} for minor in range(8)]
    assert readings["b"].labels == {
        names.VENDOR_LABEL: "amd",
        names.MODEL_LABEL: "Instinct-MI300X-OAM",
        names.DRIVER_LABEL: "6.10.5",
    }
    with pytest.raises(FleetError, match=r"nodes\[0\]: cards of amd and nvidia; a node has cards of one vendor"):
        fleet_of(tmp_path, "- {names: a, profile: [mi210, t4]}")


async def test_ids_survive_a_restart_and_differ_between_nodes(tmp_path: Path) -> None:
    lines = "- {names: 'node-[0-49]', profile: t4, gpus: 4}"
    first = await fleet_of(tmp_path, lines).read()
    second = await fleet_of(tmp_path, lines).read()
    assert first == second
    assert len({card.id for reading in first.values() for card in reading.spec.devices}) == 200


async def test_a_v100_machine_has_a_cube_mesh_of_six_links_a_card(tmp_path: Path) -> None:
    gpus = await cards(fleet_of(tmp_path, "- {names: a, profile: v100, gpus: 8}"), "a")
    assert [sum(link.count for link in gpu.links) for gpu in gpus] == [6] * 8
    assert {link.minor: link.count for link in gpus[0].links if link.count} == {1: 1, 2: 1, 3: 2, 4: 2}


async def test_cards_without_nvlink_reach_each_other_over_pcie(tmp_path: Path) -> None:
    gpus = await cards(fleet_of(tmp_path, "- {names: a, profile: l40s, gpus: 8}"), "a")
    assert [link.type for link in gpus[0].links] == ["SingleSwitch", *["SameNUMANode"] * 2, *["System"] * 4]


async def test_cards_can_be_divided_into_instances(tmp_path: Path) -> None:
    line = "- {names: a, profile: h100, gpus: 2, mig_strategy: single, mig: {1: [1g.10gb, 3g.40gb+me]}}"
    reading = (await fleet_of(tmp_path, line).read())["a"]
    first, second = reading.spec.devices
    assert reading.spec.mig_strategy == "single"
    assert first.mig == Mig(enabled=False)
    assert second.mig is not None
    assert second.mig.enabled
    assert [(instance.profile, instance.memory, instance.gpu_instance) for instance in second.mig.instances] == [
        ("1g.10gb", "10Gi", 1),
        ("3g.40gb+me", "40Gi", 2),
    ]
    assert len({first.id, second.id, *(instance.id for instance in second.mig.instances)}) == 4


async def test_cards_can_be_sliced(tmp_path: Path) -> None:
    devices = await cards(
        fleet_of(tmp_path, "- {names: a, profile: a100, gpus: 2, rdma: 1, replicas: 4, mig: {1: []}}"), "a"
    )
    assert [device.replicas for device in devices] == [4, 1, 1]


async def test_a_node_may_mix_models(tmp_path: Path) -> None:
    reading = (await fleet_of(tmp_path, "- {names: a, profile: [t4, a10]}").read())["a"]
    assert [card.model for card in reading.spec.devices] == ["Tesla T4", "NVIDIA A10"]
    assert names.MODEL_LABEL not in reading.labels


async def test_an_own_profile_can_be_named(tmp_path: Path) -> None:
    text = "profiles: {mine: {model: Mine, memory: 16Gi}}\nnodes: [{names: a, profile: mine, gpus: 2}]"
    inventory = SimulatedInventory(path=write(tmp_path / "f.yaml", text))
    assert [card.model for card in await cards(inventory, "a")] == ["Mine", "Mine"]


async def test_a_range_may_keep_its_zeros(tmp_path: Path) -> None:
    readings = await fleet_of(tmp_path, "- {names: 'n[08-11].rack', profile: t4, gpus: 1}").read()
    assert list(readings) == ["n08.rack", "n09.rack", "n10.rack", "n11.rack"]


async def test_a_change_of_the_file_touches_only_the_nodes_it_means(tmp_path: Path) -> None:
    same, other = "- {names: a, profile: t4, gpus: 2}", "- {names: b, profile: t4, gpus: 2, unhealthy: [1]}"
    inventory = fleet_of(tmp_path, same, other.replace("[1]", "[]"))
    before = await inventory.read()
    write(tmp_path / "fleet.yaml", f"nodes:\n{same}\n{other}")
    after = await inventory.read()
    assert after["a"] is before["a"]
    assert [card.health for card in after["b"].spec.devices] == [True, False]
    assert after["b"].spec.devices[1].conditions[0].reason == "Simulated"


async def test_a_heartbeat_can_be_stopped(tmp_path: Path) -> None:
    readings = await fleet_of(tmp_path, "- {names: a, heartbeat: false}", "- {names: b}").read()
    assert {name: reading.heartbeat for name, reading in readings.items()} == {"a": False, "b": True}


@pytest.mark.parametrize("text", ["nodes: [{names: a, gpus: x}]", "nodes: [", None])
async def test_a_file_that_turns_wrong_leaves_the_last_fleet_in_force(tmp_path: Path, text: str | None) -> None:
    inventory = fleet_of(tmp_path, "- {names: a, profile: t4, gpus: 2}")
    before = await inventory.read()
    if text is None:
        (tmp_path / "fleet.yaml").unlink()
    else:
        write(tmp_path / "fleet.yaml", text)
    assert await inventory.read() == before
    write(tmp_path / "fleet.yaml", "nodes: [{names: b}]")
    assert list(await inventory.read()) == ["b"]


INVALID_FLEET_FILE_IS_REFUSED_WITH_A_PLAIN_MESSAGE = {
    "type": ("nodes: [{names: a, gpus: many}]", "nodes[0].gpus: Input should be a valid integer"),
    "extra": ("nodes: [{names: a, colour: red}]", "nodes[0].colour: Extra inputs are not permitted"),
    "no name": ("nodes: [{profile: t4}]", "nodes[0].names: Field required"),
    "bad name": ("nodes: [{names: A_b}]", 'nodes[0]: names: "A_b" is no node name, nor a range'),
    "bad range": ("nodes: [{names: 'n-[5-3]'}]", 'names: "n-[5-3]" is no node name, nor a range'),
    "profile": ("nodes: [{names: a, profile: a99, gpus: 1}]", 'nodes[0]: no profile "a99"; there are'),
    "gpus without profile": ("nodes: [{names: a, gpus: 1}]", "gpus is 1, but no profile says which"),
    "twice": ("nodes: [{names: a}, {names: 'a'}]", "nodes[1]: a is there twice"),
    "unhealthy": (
        "nodes: [{names: a, profile: t4, gpus: 2, unhealthy: [2]}]",
        "unhealthy names minor 2, but the node has 2 GPUs, counted from 0",
    ),
    "instances of no card": (
        "nodes: [{names: a, profile: a100, gpus: 2, mig: {2: [1g.10gb]}}]",
        "mig names minor 2, but the node has 2 GPUs, counted from 0",
    ),
    "instances of a card without MIG": (
        "nodes: [{names: a, profile: [a100, t4], mig: {1: [1g.10gb]}}]",
        "nodes[0].mig.1: t4 is not capable of MIG",
    ),
    "no MIG profile": (
        "nodes: [{names: a, profile: a100, gpus: 1, mig: {0: [small]}}]",
        "nodes[0].mig[0][0]: small is no MIG profile such as 1g.10gb or 1g.10gb+me",
    ),
    "count": ("nodes: [{names: a, profile: [t4], gpus: 2}]", "gpus is 2, but profile lists 1 cards"),
    "memory": ("profiles: {p: {model: P, memory: lots}}", 'profiles.p.memory: "lots" is not a quantity'),
    "no YAML": ("nodes: {", "not YAML: "),
    "no mapping": ("- 1", "fleet: Input should be a valid dictionary"),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    INVALID_FLEET_FILE_IS_REFUSED_WITH_A_PLAIN_MESSAGE.values(),
    ids=INVALID_FLEET_FILE_IS_REFUSED_WITH_A_PLAIN_MESSAGE,
)
def test_an_invalid_fleet_file_is_refused_with_a_plain_message(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path / "fleet.yaml", text)
    with pytest.raises(FleetError) as refused:
        fleet.load(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert expected in str(refused.value)


def test_a_missing_fleet_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="No such file or directory"):
        fleet.load(tmp_path / "none.yaml")


def test_the_example_fleet_is_valid() -> None:
    read = fleet.load(ROOT / "manifests/configuration/fleet.yaml")
    assert len(read.nodes) == 16
