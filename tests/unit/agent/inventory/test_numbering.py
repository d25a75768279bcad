"""A NIC or FPGA keeps its minor, whatever is added, removed or restarted."""

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_agent.inventory.numbering import MAX_RESERVED, Numbering, assigned, parsed, recalled
from berth_agent.readings import Reading
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec

NODE = "n"
TYPES = frozenset({names.RDMA, names.FPGA})


def device(kind: str, minor: int, name: str) -> DeviceInfo:
    return DeviceInfo(type=kind, minor=minor, id=name, health=True)


def reading(present: Iterable[tuple[str, str]], *, unnumbered: frozenset[str] = TYPES) -> Reading:
    """Return what an inventory reads: devices of a type are only counted."""
    ids = sorted(present)
    devices = [device(kind, ids.index((kind, name)), name) for kind, name in ids]
    return Reading(spec=DeviceSpec(devices=devices), findings=(), unnumbered=unnumbered)


class Host:
    """A node whose agent restarts; its Device outlives the agent."""

    def __init__(self) -> None:
        self.spec, self.annotations = DeviceSpec(), dict[str, str]()
        self.restart()

    def restart(self) -> None:
        self.agent = Numbering()
        self.agent.restore(NODE, self.spec, self.annotations.get(names.RESERVED_MINORS, ""))

    def show(self, *present: tuple[str, str]) -> dict[tuple[str, str], int]:
        present_now = reading(present)
        self.agent.assign(NODE, present_now)
        published = self.agent.numbered(NODE, present_now)
        self.spec, self.annotations = published.spec, dict(published.annotations)
        return {(device.type, device.id): device.minor for device in self.spec.devices}


def nics(*ids: str) -> list[tuple[str, str]]:
    return [("rdma", device_id) for device_id in ids]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_device_keeps_its_minor_when_others_come_and_go(*, restarts: bool) -> None:
    host = Host()
    assert host.show(*nics("b", "c")) == {("rdma", "b"): 0, ("rdma", "c"): 1}
    if restarts:
        host.restart()
    assert host.show(*nics("a", "c")) == {("rdma", "a"): 2, ("rdma", "c"): 1}
    if restarts:
        host.restart()
    assert host.annotations == {names.RESERVED_MINORS: "rdma/0=b"}
    assert host.show(*nics("a", "b", "c")) == {("rdma", "a"): 2, ("rdma", "b"): 0, ("rdma", "c"): 1}
    assert host.annotations == {}


_DEVICES = st.tuples(st.sampled_from(sorted(TYPES)), st.sampled_from("abcdef"))


@given(st.lists(st.tuples(st.booleans(), st.lists(_DEVICES, unique=True)), max_size=12))
def test_no_minor_is_ever_that_of_two_devices(story: list[tuple[bool, list[tuple[str, str]]]]) -> None:
    host, ever = Host(), dict[tuple[str, str], int]()
    for restarts, present in story:
        if restarts:
            host.restart()
        shown = host.show(*present)
        assert shown.keys() == set(present)
        assert all(ever.get(name, minor) == minor for name, minor in shown.items())
        ever |= shown
        keys = [(kind, minor) for (kind, _), minor in ever.items()]
        assert len(keys) == len(set(keys))


@given(st.lists(st.lists(st.integers(0, 400), unique=True, max_size=256).map(sorted), max_size=4))
def test_what_is_remembered_is_bounded(story: list[list[int]]) -> None:
    known: Mapping[str, int] = {}
    for present in story:
        ids = [f"{number:03}" for number in present]
        known = assigned(ids, known)
        assert len(known) <= MAX_RESERVED + len(ids)
        assert len(set(known.values())) == len(known)


def test_of_too_many_the_longest_gone_are_forgotten() -> None:
    known = assigned(["oldest"], {})
    known = assigned([f"{number:03}" for number in range(MAX_RESERVED)], known)
    known = assigned([], known)
    assert "oldest" not in known
    assert assigned(["new"], known)["new"] == 0


def test_readings_with_minors_of_their_own_are_left_as_they_are() -> None:
    plain = reading(nics("a"), unnumbered=frozenset())
    assert Numbering().numbered(NODE, plain) is plain
    mixed = reading([("gpu", "GPU-1"), ("npu", "x")], unnumbered=TYPES)
    numbering = Numbering()
    numbering.assign(NODE, mixed)
    assert numbering.numbered(NODE, mixed).spec == mixed.spec


@pytest.mark.parametrize(
    ("listed", "reserved", "expected"),
    [
        ([], "", {}),
        ([(1, "a"), (0, "b")], "", {"a": 1, "b": 0}),
        ([(0, "a")], "rdma/1=b,rdma/2=c", {"a": 0, "b": 1, "c": 2}),
        ([(0, "a")], "rdma/0=b", {"a": 0}),
        ([(3, "a")], "rdma/7=a", {"a": 3}),
        ([(1, "a"), (4, "a")], "", {"a": 1}),
        ([], "rdma/1=a,rdma/1=b", {"b": 1}),
        ([], "rdma/1=a,rdma/2=a", {"a": 2}),
    ],
    ids=["nothing", "spec", "both", "spec wins", "its own", "id twice", "later wins", "id twice reserved"],
)
def test_a_device_that_contradicts_itself_gives_each_minor_once(
    listed: list[tuple[int, str]], reserved: str, expected: dict[str, int]
) -> None:
    spec = DeviceSpec(devices=[device("rdma", minor, name) for minor, name in listed])
    assert recalled(spec, reserved).get("rdma", {}) == expected


@pytest.mark.parametrize(
    "text",
    ["", ",", "rdma", "rdma/1", "rdma/1=", "rdma/-1=a", "rdma/01=a", "rdma/65536=a", "rdma/1=a b", "RDMA/1=a", "{}"],
)
def test_entries_that_cannot_be_read_are_left_out(text: str) -> None:
    assert parsed(text) == []
    assert parsed(f"{text},rdma/65535=0000:1b:00.0") == [("rdma", 65535, "0000:1b:00.0")]
