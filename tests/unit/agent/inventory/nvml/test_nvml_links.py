"""The link matrix, against what `nvidia-smi topo -m` would show."""

from dataclasses import replace

from berth_agent.readings import Reading
from berth_api.device import DeviceInfo
from tests.gpu.look import word
from tests.nvml.fixture import NOT_SUPPORTED, a100, t4
from tests.nvml.probe import Machine, Start


def matrix(reading: Reading) -> list[str]:
    return [row(card) for card in reading.spec.devices]


def row(card: DeviceInfo) -> str:
    cells = {link.minor: word(link) for link in card.links}
    cells[card.minor] = "X"
    return " ".join(cells[minor] for minor in sorted(cells))


async def test_links_that_are_down_do_not_count(machine: Machine, agent: Start) -> None:
    weak = a100(1)
    weak.links[3] = replace(weak.links[3], active=False)
    weak.links[7] = replace(weak.links[7], active=False)
    assert matrix(await agent(machine(a100(0), weak, a100(2))).read()) == ["X NV10 NV12", "NV10 X NV10", "NV12 NV10 X"]


async def test_a_link_whose_end_the_driver_does_not_report_does_not_count(machine: Machine, agent: Start) -> None:
    card = a100(1)
    card.links = [replace(link, end="gpu") for link in card.links]
    card.fails["nvmlDeviceGetNvLinkRemotePciInfo_v2"] = NOT_SUPPORTED
    reading = await agent(machine(a100(0), card)).read()
    assert [card.health for card in reading.spec.devices] == [True, True]
    assert matrix(reading) == ["X PIX", "PIX X"]


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
