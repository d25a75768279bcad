"""The link matrix, against what `nvidia-smi topo -m` would show."""

from dataclasses import replace

from berth_agent.readings import Reading
from berth_api.device import DeviceInfo
from tests.gpu.look import word
from tests.nvml.fixture import NvLink, a100, h100, t4
from tests.nvml.probe import Machine, Start


def matrix(reading: Reading) -> list[str]:
    return [row(card) for card in reading.spec.devices]


def row(card: DeviceInfo) -> str:
    cells = {link.minor: word(link) for link in card.links}
    cells[card.minor] = "X"
    return " ".join(cells[minor] for minor in sorted(cells))


async def test_nvswitch_joins_all_cards_by_all_their_links(machine: Machine, agent: Start) -> None:
    reading = await agent(machine(*(h100(index) for index in range(8)))).read()
    assert matrix(reading) == [
        "X NV18 NV18 NV18 NV18 NV18 NV18 NV18",
        "NV18 X NV18 NV18 NV18 NV18 NV18 NV18",
        "NV18 NV18 X NV18 NV18 NV18 NV18 NV18",
        "NV18 NV18 NV18 X NV18 NV18 NV18 NV18",
        "NV18 NV18 NV18 NV18 X NV18 NV18 NV18",
        "NV18 NV18 NV18 NV18 NV18 X NV18 NV18",
        "NV18 NV18 NV18 NV18 NV18 NV18 X NV18",
        "NV18 NV18 NV18 NV18 NV18 NV18 NV18 X",
    ]
    assert all(link.peer_to_peer for card in reading.spec.devices for link in card.links)


async def test_links_that_are_down_do_not_count(machine: Machine, agent: Start) -> None:
    weak = a100(1)
    weak.links[3] = replace(weak.links[3], active=False)
    weak.links[7] = replace(weak.links[7], active=False)
    assert matrix(await agent(machine(a100(0), weak, a100(2))).read()) == ["X NV10 NV12", "NV10 X NV10", "NV12 NV10 X"]


async def test_direct_links_count_toward_their_card_only(machine: Machine, agent: Start) -> None:
    cards = [replace(a100(index), links=[]) for index in range(3)]
    cards[0].links = [NvLink(end="gpu", remote=cards[1].bus_id)] * 2
    cards[1].links = [NvLink(end="gpu", remote=cards[0].bus_id)] * 2
    assert matrix(await agent(machine(*cards)).read()) == ["X NV2 NODE", "NV2 X NODE", "NODE NODE X"]


async def test_without_nvlink_the_pcie_path_counts(machine: Machine, agent: Start) -> None:
    cards = [replace(a100(index), links=[]) for index in (0, 1, 2, 4)]
    reading = await agent(machine(*cards)).read()
    assert matrix(reading) == ["X PIX NODE SYS", "PIX X NODE SYS", "NODE NODE X SYS", "SYS SYS SYS X"]


async def test_every_level_of_a_common_ancestor_has_its_name(machine: Machine, agent: Start) -> None:
    others = [t4(index) for index in range(1, 7)]
    levels = {other.uuid: level for other, level in zip(others, (0, 10, 20, 30, 40, 50), strict=True)}
    reading = await agent(machine(replace(t4(0), topology=levels), *others)).read()
    assert row(reading.spec.devices[0]) == "X PSB PIX PXB PHB NODE SYS"


async def test_the_driver_may_forbid_direct_access(machine: Machine, agent: Start) -> None:
    one, other = t4(0), t4(1)
    one.p2p = {other.uuid: 1}
    reading = await agent(machine(one, other)).read()
    assert [link.peer_to_peer for card in reading.spec.devices for link in card.links] == [False, True]


async def test_a_lost_card_leaves_the_rows_of_the_others(machine: Machine, agent: Start) -> None:
    fixture = machine(a100(0), a100(1), a100(2))
    probe = agent(fixture)
    await probe.read()
    fixture.lose(2)
    assert matrix(await probe.read())[:2] == ["X NV12", "NV12 X"]
