"""AMD's cards as kubelet is offered them, and as containers get them."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from berth_agent.app import BY_CDI
from berth_agent.configuration.settings import Settings
from berth_agent.dra.cdi import ClaimEdits
from berth_agent.kubelet_api.deviceplugin_pb2 import ContainerAllocateResponse
from berth_agent.vendor import HandOver, MisconfiguredError, Offer
from berth_agent.vendors.amd.hand_over import AmdAccess, AmdHandOver
from berth_agent.vendors.amd.inventory import AmdInventory
from berth_api.device import DeviceSpec
from tests.objects import amd_trees
from tests.objects.amd_trees import MI300X, AmdTree

CDI = "k8s.device-plugin.amd.com/gpu"


class Node:
    """A node as the agent reads it, with its hand-over."""

    def __init__(self, tree: AmdTree, spec: DeviceSpec, **settings: Any) -> None:
        self.spec = spec
        self.hand_over: HandOver = AmdHandOver(Settings(node_name="n", sysfs_root=tree.root, **settings))

    @property
    def access(self) -> AmdAccess:
        access = self.hand_over.access(self.spec)
        assert isinstance(access, AmdAccess)
        return access

    @property
    def offered(self) -> dict[str, int]:
        return {offer.resource: len(offer.units) for offer in self.hand_over.offers(self.spec).offers}


async def node(tree: AmdTree, **settings: Any) -> Node:
    inventory = AmdInventory(Settings(node_name="n", sysfs_root=tree.root, proc_root=tree.root))
    return Node(tree, (await inventory.read())["n"].spec, **settings)


def paths(answer: ContainerAllocateResponse) -> list[str]:
    assert all(device.host_path == device.container_path for device in answer.devices)
    assert {device.permissions for device in answer.devices} <= {"rw"}
    return [device.host_path for device in answer.devices]


async def test_a_container_gets_the_nodes_of_its_cards(tmp_path: Path) -> None:
    cards = await node(amd_trees.mi210(tmp_path))
    answer = cards.access.grant([cards.spec.devices[7].id, cards.spec.devices[0].id])
    first, last = (folder.name for folder in (tmp_path / "bus/pci/devices").glob("0000:[6a]3*/drm/card*"))
    assert {first, last} <= {"card1", "card8"}
    assert paths(answer) == [
        *("/dev/kfd", "/dev/dri/card8", "/dev/dri/renderD135", "/dev/dri/card1", "/dev/dri/renderD128")
    ]
    assert (dict(answer.envs), list(answer.cdi_devices), list(answer.mounts)) == ({}, [], [])


async def test_a_partition_has_nodes_of_its_own(tmp_path: Path) -> None:
    tree = amd_trees.mi300x(tmp_path, compute="CPX", memory="NPS4", is_privileged=True)
    cards = await node(tree)
    granted = {path for card in cards.spec.devices for path in paths(cards.access.grant([card.id]))[1:]}
    assert len(granted) == 2 * 64
    assert paths(cards.access.grant([f"GPU-{MI300X[0].unique_id}-1"])) == [
        *("/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD129")
    ]


@pytest.mark.parametrize(
    ("strategies", "by_nodes", "by_cdi"),
    [
        (("envvar",), True, False),
        (("cdi-cri",), False, True),
        (("envvar", "cdi-cri"), True, True),
        (("cdi-annotations",), False, True),
    ],
)
async def test_cdi(tmp_path: Path, strategies: Sequence[str], *, by_nodes: bool, by_cdi: bool) -> None:
    cards = await node(amd_trees.radeon(tmp_path), device_list_strategy=strategies)
    answer = cards.access.grant(["GPU-0000-03-00.0"])
    assert bool(answer.devices) is by_nodes
    names = [*(device.name for device in answer.cdi_devices), *answer.annotations.values()]
    assert names == [f"{CDI}=GPU-0000-03-00.0"] * by_cdi
    assert all(key.startswith("cdi.k8s.io/amd-device-plugin_") for key in answer.annotations)

    def edits(*devices: str) -> dict[str, Any]:
        return {"deviceNodes": [{"path": path, "hostPath": path} for path in devices]}

    of_card = edits("/dev/dri/card1", "/dev/dri/renderD128")
    specification = {
        "cdiVersion": "0.5.0",
        "kind": CDI,
        "devices": [
            {"name": "GPU-0000-03-00.0", "containerEdits": of_card},
            {"name": "all", "containerEdits": of_card},
        ],
        "containerEdits": edits("/dev/kfd"),
    }
    assert cards.access.cdi() == ({"gpu": specification} if by_cdi else {})


async def test_the_variable_is_set_on_request_and_names_cards_by_their_own_ids(tmp_path: Path) -> None:
    cards = await node(amd_trees.mi210(tmp_path / "mi210"), amd_visible_devices=True)
    cards.access.check()
    answer = cards.access.grant([card.id for card in cards.spec.devices[:2]])
    assert dict(answer.envs) == {"AMD_VISIBLE_DEVICES": "0x1901ead3a2ecd4a6,0x51276ac12ce05db3"}
    nameless = await node(amd_trees.radeon(tmp_path / "radeon"), amd_visible_devices=True)
    with pytest.raises(MisconfiguredError, match=r"AMD_VISIBLE_DEVICES cannot name GPU-0000-03-00\.0"):
        nameless.access.check()


async def test_without_kfd_nothing_is_offered(tmp_path: Path) -> None:
    cards = await node(amd_trees.mi210(tmp_path))
    cards.access.check()
    (tmp_path / "class/kfd/kfd").rmdir()
    with pytest.raises(MisconfiguredError, match="/dev/kfd: not there"):
        cards.access.check()


@pytest.mark.parametrize(
    ("compute", "strategy", "expected"),
    [
        ("SPX", "single", {"amd.com/gpu": 8}),
        ("CPX", "single", {"amd.com/gpu": 64}),
        ("SPX", "mixed", {"amd.com/spx_nps1": 8}),
        ("CPX", "mixed", {"amd.com/cpx_nps1": 64}),
    ],
)
async def test_the_names_of_resources(tmp_path: Path, compute: str, strategy: str, expected: dict[str, int]) -> None:
    tree = amd_trees.mi300x(tmp_path, compute=compute, is_privileged=True)
    assert (await node(tree, amd_resource_naming_strategy=strategy)).offered == expected


async def test_different_modes(tmp_path: Path) -> None:
    tree = amd_trees.mi300x(tmp_path)
    tree.card("0000:f1:00.0", "0x740f", 192, unique_id="1901ead3a2ecd4a6")
    assert (await node(tree, amd_resource_naming_strategy="mixed")).offered == {
        "amd.com/spx_nps1": 8,
        "amd.com/gpu": 1,
    }
    with pytest.raises(MisconfiguredError, match="different partition modes: none, spx_nps1"):
        _ = (await node(tree)).offered


async def test_cards_without_a_choice_of_the_scheduler_are_of_one_hive(tmp_path: Path) -> None:
    cards = await node(amd_trees.mi210(tmp_path))
    [offer] = cards.hand_over.offers(cards.spec).offers
    ids = [unit.id for unit in offer.units]

    def direct(chosen: Sequence[str]) -> int:
        of_minor = {card.minor: card.id for card in cards.spec.devices}
        rows = {card.id: {of_minor[link.minor] for link in card.links if link.count} for card in cards.spec.devices}
        return sum(right in rows[left] for left, right in combinations(chosen, 2))

    for size in (2, 3, 4):
        for available in (ids, ids[1:], ids[3:], [*ids[:2], *ids[5:]]):
            chosen = cards.access.prefer(offer, available, [], size)
            assert direct(chosen) == max(map(direct, combinations(available, size)))
    assert cards.access.prefer(offer, ids, [ids[5]], 2)[1] in ids[4:]


async def test_withheld_and_unhealthy_cards_are_unhealthy_units(tmp_path: Path) -> None:
    tree = amd_trees.mi210(tmp_path)
    (tmp_path / "bus/pci/devices/0000:63:00.0/ras/umc_err_count").write_text("ue: 1\n")
    cards = await node(tree)
    offers = cards.hand_over.offers(cards.spec, withheld=frozenset({cards.spec.devices[7].id}))
    [offer] = offers.offers
    assert isinstance(offer, Offer)
    assert [unit.healthy for unit in offer.units] == [False, *[True] * 6, False]
    assert [unit.numa for unit in offer.units] == [0] * 4 + [1] * 4


async def test_cards_of_claims_are_named_by_no_variable(tmp_path: Path) -> None:
    by_name = Settings(node_name="n", sysfs_root=tmp_path, amd_visible_devices=True)
    spec = (await node(amd_trees.mi210(tmp_path))).spec
    access = AmdHandOver(by_name.model_copy(update=BY_CDI)).access(spec)
    edits = [ClaimEdits(access, card.id).edits for card in spec.devices]
    assert len(edits) == 8
    assert all(set(one) == {"deviceNodes"} for one in edits)
