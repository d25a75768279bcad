"""Which devices are proposed, and which are accepted: one row for each case."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from berth_agent.kubelet.admission import choice
from berth_agent.kubelet.admission.mirror import ContainerReport, Holding, Mirror
from berth_agent.kubelet.admission.pods import ContainerSpec, Pod
from berth_agent.kubelet.admission.snapshot import ContainerKey
from berth_agent.kubelet.admission.units import Units
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError
from berth_agent.readings import ClaimedByContainer
from berth_api.allocation import Grant
from berth_api.device import ClaimedDevice, DeviceInfo, DeviceSpec, Topology
from tests.unit.agent.dra.test_preparation import no_room
from tests.unit.agent.kubelet.admission.kubelets import GPU, Agent, Api, Kubelet, pod, share, units, wants, whole

INSTANCE = "nvidia.com/mig-1g.10gb"
Node = Callable[..., Agent]


def report(name: str, container: str, *ids: str) -> ContainerReport:
    return ContainerReport(namespace="ns", pod=name, container=container, by_resource={GPU: frozenset(ids)})


def test_cards_that_a_plugin_names_by_their_addresses_are_those_cards() -> None:
    """AMD's plugin does. Partitions of one card share an address, which then names none of them."""
    addresses = ["0000:63:00.0", "0000:43:00.0", "0000:05:00.0", "0000:05:00.0"]
    devices = [
        DeviceInfo(type="gpu", minor=minor, id=f"GPU-{minor}", topology=Topology(bus_id=address))
        for minor, address in enumerate(addresses)
    ]
    mirror = Mirror()
    mirror.put(pod("a", 2))
    mirror.apply_reports([report("a", "c0", "0000:43:00.0", "0000:05:00.0")], 0.0)
    # Kubelet may answer before the cards are read.
    mirror.see(Units.of(DeviceSpec(devices=devices)))
    [holding] = mirror.holdings()
    assert holding.ids == ("0000:05:00.0", "GPU-1")
    assert mirror.snapshot().uncertain() == {"GPU-2", "GPU-3"}
    assert mirror.snapshot().withheld() == {"GPU-2", "GPU-3"}
    [unmatched] = mirror.unmatched()
    assert (unmatched.resource, unmatched.pod, unmatched.cards) == (GPU, "ns/a", ("GPU-2", "GPU-3"))

    mirror.apply_reports([report("a", "c0", "0000:43:00.0")], 1.0)
    mirror.release_ended([])
    assert not mirror.snapshot().uncertain()


def test_no_card_is_given_that_a_container_may_have_by_another_id() -> None:
    mirror = Mirror()
    mirror.see(units(2))
    mirror.put(pod("a", 1))
    mirror.apply_reports([report("a", "c0", "unit-7")], 0.0)
    mirror.put(pod("b", 1))
    request = choice.PreferenceRequest(resource=GPU, available=["GPU-0", "GPU-1"], must=[], size=1)
    proposal = choice.propose(mirror.snapshot(), request, choice.first_available)
    assert proposal is not None
    assert not proposal.ids
    assert choice.explain(mirror.snapshot(), GPU, frozenset({"GPU-0"}), None) is None
    assert mirror.snapshot().held() >= {"GPU-0", "GPU-1"}


def named(*minors: int) -> list[str]:
    return [f"GPU-{minor}" for minor in minors]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return an agent that knows pods, with a kubelet that allocated some devices already."""

    def begin(*pods: Pod, given: Mapping[tuple[str, str], Sequence[int]] | None = None, cards: int = 4) -> Agent:
        api = Api()
        kubelet = Kubelet(devices=named(*range(cards)), chance=random.Random(1))
        for listed in pods:
            api.put(listed)
        kubelet.pods = {listed.uid: listed for listed in pods}
        kubelet.given = {(f"uid-{name}", at): set(named(*ids)) for (name, at), ids in (given or {}).items()}
        return Agent(api=api, kubelet=kubelet, path=tmp_path / "checkpoint", cards=cards)

    return begin


PROPOSAL = {
    "its own": ([pod("a", 1, grants=whole(2))], {}, ([0, 1, 2, 3], [], 1), [2]),
    "its own two": ([pod("a", 2, grants=whole(3, 1))], {}, ([0, 1, 2, 3], [], 2), [1, 3]),
    "the first": ([pod("a", 1, grants=whole(2)), pod("b", 1, grants=whole(0))], {}, ([0, 1, 2, 3], [], 1), [2]),
    "the one of this size": (
        [pod("a", 2, grants=whole(2, 3)), pod("b", 1, grants=whole(0))],
        {},
        ([0, 1, 2, 3], [], 1),
        [0],
    ),
    "the next": (
        [pod("a", 1, grants=whole(2)), pod("b", 1, grants=whole(0))],
        {("a", "c0"): [2]},
        ([0, 1, 3], [], 1),
        [0],
    ),
    "what the other was meant to have": (
        [pod("a", 1, grants=whole(2)), pod("b", 1, grants=whole(0))],
        {("b", "c0"): [2]},
        ([0, 1, 3], [], 1),
        [0],
    ),
    "what is left of a ring of three": (
        [pod("a", 1, grants=whole(0)), pod("b", 1, grants=whole(1)), pod("c", 1, grants=whole(2))],
        {("b", "c0"): [0], ("c", "c0"): [1]},
        ([2, 3], [], 1),
        [2],
    ),
    "a foreign pod gets what no pod has": ([pod("a", 1)], {}, ([0, 1, 2, 3], [], 1), [0]),
    "a foreign pod gets no share and no annotated card": (
        [pod("a", 1), pod("b", 1, grants=whole(0)), pod("h", 0, grants=share(1))],
        {("b", "c0"): [0]},
        ([1, 2, 3], [], 1),
        [2],
    ),
    "rather nothing than a shared card": ([pod("a", 1), pod("h", 0, grants=share(1))], {}, ([1], [], 1), []),
    "what must be included, and its own": (
        [pod("a", 1, containers=wants(2, init=[1]), grants=whole(2, 3))],
        {("a", "init0"): [2]},
        ([0, 1, 2, 3], [2], 2),
        [2, 3],
    ),
    "the pod that kubelet is in the middle of": (
        [pod("a", 1, 1, grants=whole(2, 3)), pod("b", 1, grants=whole(0))],
        {("a", "c0"): [2]},
        ([0, 1, 3], [], 1),
        [3],
    ),
    "rather one that kubelet said nothing of": (
        [replace(pod("a", 1, grants=whole(2)), started=True), pod("b", 1, grants=whole(0))],
        {},
        ([0, 1, 2, 3], [], 1),
        [0],
    ),
    "an unknown pod": ([], {}, ([0, 1], [], 1), [0]),
}


@pytest.mark.parametrize(("pods", "given", "ask", "expected"), PROPOSAL.values(), ids=PROPOSAL)
async def test_a_proposal(
    node: Node,
    pods: list[Pod],
    given: dict[tuple[str, str], list[int]],
    ask: tuple[list[int], list[int], int],
    expected: list[int],
) -> None:
    available, must, size = ask
    chosen = await node(*pods, given=given).admission.prefer(GPU, named(*available), named(*must), size)
    assert chosen == named(*expected)


def test_a_container_gets_what_was_annotated_for_it() -> None:
    two = (ContainerSpec(name="x", wants={GPU: 1}, visible=("GPU-3",)), ContainerSpec(name="y", wants={GPU: 1}))
    mirror = Mirror()
    mirror.units = units(4)
    mirror.replace([pod("a", containers=two, grants=whole(1, 3))], 1)
    question = choice.PreferenceRequest(resource=GPU, available=named(0, 1, 2, 3), must=(), size=1)
    proposal = choice.propose(mirror.snapshot(), question, choice.first_available)
    assert proposal is not None
    assert (proposal.key, proposal.ids) == (ContainerKey(uid="uid-a", container="x"), frozenset({"GPU-3"}))


def test_an_instance_is_proposed_by_its_own_id() -> None:
    grant = Grant(type="gpu", minor=1, id="MIG-b", amounts=((INSTANCE, 1),))
    mirror = Mirror()
    parents = {"MIG-a": "GPU-1", "MIG-b": "GPU-1"}
    mirror.units = Units(minors={"GPU-1": 1, "MIG-a": 1, "MIG-b": 1}, cards=frozenset({"GPU-1"}), parents=parents)
    mirror.replace([pod("a", containers=(ContainerSpec(name="c", wants={INSTANCE: 1}),), grants=(grant,))], 1)
    question = choice.PreferenceRequest(resource=INSTANCE, available=("MIG-a", "MIG-b"), must=(), size=1)
    proposal = choice.propose(mirror.snapshot(), question, choice.first_available)
    assert proposal is not None
    assert proposal.ids == {"MIG-b"}


def test_a_foreign_pod_gets_no_replica_of_a_shared_card_but_the_others_of_a_sliced_one() -> None:
    mirror = Mirror()
    mirror.units = units(2)
    sliced = Grant(type="gpu", minor=1, id="GPU-1::0", amounts=(("nvidia.com/gpu.shared", 1),))
    mirror.replace([pod("h", 0, grants=share(0)), pod("s", 1, grants=(sliced,)), pod("a", 1, version=2)], 2)
    mirror.apply_reports([report("s", "c0", "GPU-1::0")], 0)
    question = choice.PreferenceRequest(resource=GPU, available=("GPU-0::0", "GPU-0::1", "GPU-1::1"), must=(), size=1)
    proposal = choice.propose(mirror.snapshot(), question, choice.first_available)
    assert proposal is not None
    assert proposal.ids == {"GPU-1::1"}


@pytest.mark.parametrize(
    ("pods", "given", "ids", "expected"),
    [
        pytest.param([pod("a", 1, grants=whole(2))], {}, [2], "uid-a/c0", id="its own"),
        pytest.param([pod("a", 1, 1, grants=whole(2, 3))], {}, [3], "uid-a/c0", id="a part of its own"),
        pytest.param([pod("a", 1, grants=whole(2)), pod("b", 1, grants=whole(0))], {}, [0], "uid-b/c0", id="another's"),
        pytest.param(
            [pod("a", containers=wants(1, init=[2]), grants=whole(2, 3))],
            {("a", "init0"): [2, 3]},
            [3],
            "uid-a/c0",
            id="a part of what its init container had",
        ),
        pytest.param([pod("a", 1)], {}, [1], "uid-a/c0", id="a foreign pod's"),
        pytest.param([pod("a", 1), pod("h", 0, grants=share(1))], {}, [1], "", id="no foreign pod's on a shared card"),
        pytest.param(
            [pod("a", 1), pod("b", 2, grants=whole(1, 2))], {}, [1], "", id="no foreign pod's that is annotated"
        ),
        pytest.param([pod("a", 1, grants=whole(2))], {}, [1], "", id="not its own, though that is there"),
        pytest.param(
            [pod("a", 1, grants=whole(2)), pod("b", 1)], {("b", "c0"): [2]}, [1], "uid-a/c0", id="free, its own is not"
        ),
        pytest.param([pod("a", 1, grants=whole(2))], {}, [1, 2], "", id="of no such size"),
        pytest.param([pod("a", 1, grants=whole(2))], {("a", "c0"): [2]}, [2], "", id="no pod waits, another has it"),
        pytest.param([pod("h", 0, grants=share(1))], {}, [1], "", id="no pod waits, a share is of it"),
    ],
)
async def test_what_kubelet_gives_is_explained_or_refused(
    node: Node, pods: list[Pod], given: dict[tuple[str, str], list[int]], ids: list[int], expected: str
) -> None:
    admission = node(*pods, given=given).admission
    await admission.refresh()
    for (name, container), minors in given.items():
        admission.mirror.record_allocation(
            ContainerKey(uid=f"uid-{name}", container=container), GPU, frozenset(named(*minors)), 0
        )
    before = admission.mirror.pending
    if not expected:
        with pytest.raises(AllocationRefusedError, match=r"nvidia\.com/gpu GPU-\d.*no pod that waits"):
            await admission.admit(GPU, named(*ids))
        assert admission.mirror.pending == before
        return
    await admission.admit(GPU, named(*ids))
    last = admission.mirror.pending[-1]
    assert (f"{last.key.uid}/{last.key.container}", last.ids) == (expected, frozenset(named(*ids)))


async def test_a_static_pod_which_no_pod_object_shows_yet_gets_devices_that_no_pod_has(node: Node) -> None:
    agent = node(pod("a", 1, grants=whole(2)), pod("h", 0, grants=share(1)), given={("a", "c0"): [2]})
    await agent.admission.refresh()
    assert await agent.admission.prefer(GPU, named(0, 1, 3), [], 1) == named(0)
    agent.api.is_away = True
    with pytest.raises(AllocationRefusedError, match="none waits for 1 of them"):
        await agent.admission.admit(GPU, named(0))
    agent.api.is_away = False
    await agent.admission.admit(GPU, named(0))
    assert agent.admission.mirror.is_confirmed


async def test_a_refusal_names_the_waiting_pods_and_warns_them(node: Node) -> None:
    agent = node(pod("a", 1, grants=whole(2)), pod("h", 0, grants=share(1)))
    with pytest.raises(AllocationRefusedError) as caught:
        await agent.admission.admit(GPU, named(1))
    text = "nvidia.com/gpu GPU-1: no pod that waits on this node can be given these (ns/a was given GPU-2)"
    assert str(caught.value) == text
    assert agent.api.warned == [("a", text)]


async def test_a_pod_that_the_watch_has_not_delivered_is_listed_once(node: Node) -> None:
    agent = node()
    agent.api.put(pod("late", 1, grants=whole(3)))
    assert await agent.admission.prefer(GPU, named(0, 1, 2, 3), [], 1) == named(3)
    assert agent.api.lists == 1
    await agent.admission.admit(GPU, named(3))
    assert agent.api.lists == 1


async def test_a_list_that_does_not_answer_is_given_up_after_a_second(node: Node) -> None:
    agent = node(pod("a", 1, grants=whole(1)))
    agent.api.is_away = True
    assert await agent.admission.prefer(GPU, named(0, 1), [], 1) == named(1)
    with pytest.raises(AllocationRefusedError):
        await agent.admission.admit(GPU, named(0, 1))


CARDS_ARE_WITHHELD = {
    "a share": ([pod("h", 0, grants=share(1))], [], {"GPU-1"}),
    "not for a pod that uses the plugin": ([pod("a", 1, grants=whole(1))], [], set()),
    "not for one that ended": ([replace(pod("h", 0, grants=share(1)), ended=True)], [], set()),
    "never what kubelet gave": ([pod("h", 0, grants=share(1)), pod("a", 1)], [report("a", "c0", "GPU-1")], set()),
    "even for an unknown pod": ([pod("h", 0, grants=share(1))], [report("x", "c0", "GPU-1")], set()),
}


@pytest.mark.parametrize(("pods", "records", "expected"), CARDS_ARE_WITHHELD.values(), ids=CARDS_ARE_WITHHELD)
def test_cards_are_withheld(pods: list[Pod], records: list[ContainerReport], expected: set[str]) -> None:
    mirror = Mirror()
    mirror.units = units(4)
    mirror.replace(pods, 1)
    mirror.apply_reports(records, 0)
    assert mirror.snapshot().withheld() == expected


# --- what is promised ---------------------------------------------------------------------------------------------


def promising(*pods: Pod) -> Mirror:
    mirror = Mirror()
    mirror.units = units(4)
    mirror.replace(pods, 1)
    mirror.record_allocation(
        ContainerKey(uid="uid-a", container=pods[0].containers[0].name), GPU, frozenset({"GPU-1"}), 10.0
    )
    return mirror


@pytest.mark.parametrize(
    ("records", "asked_at", "stands"),
    [
        ([], 10.5, True),
        ([], 11.5, False),
        ([report("a", "c0", "GPU-1")], 10.1, False),
        ([report("b", "c0", "GPU-1")], 10.1, False),
        ([report("b", "c0", "GPU-2")], 10.1, True),
    ],
)
def test_a_promise_stands_until_kubelet_says_or_a_second_is_over(
    records: list[ContainerReport], asked_at: float, *, stands: bool
) -> None:
    mirror = promising(pod("a", 1), pod("b", 1))
    mirror.apply_reports(records, asked_at)
    assert bool(mirror.pending) == stands


def test_a_promise_to_an_init_container_stands_as_long_as_its_pod() -> None:
    first = pod("a", containers=wants(0, init=[1]))
    mirror = promising(first, pod("b", 1))
    mirror.apply_reports([], 1000)
    assert [allocation.ids for allocation in mirror.pending] == [{"GPU-1"}]
    assert [holding.container for holding in mirror.holdings()] == ["init0"]
    mirror.put(replace(first, ended=True, version=2))
    mirror.apply_reports([], 1001)
    assert mirror.pending == ()


def test_what_kubelet_still_has_to_give_was_not_given() -> None:
    mirror = promising(pod("a", containers=wants(0, init=[1])))
    mirror.release_offered(GPU, frozenset({"GPU-0", "GPU-1"}))
    assert mirror.pending == ()


def test_what_a_removed_pod_was_promised_may_be_free_before_kubelet_reports_again() -> None:
    mirror = promising(pod("a", containers=wants(0, init=[1])))
    mirror.remove(pod("a", version=2))
    mirror.release_offered(GPU, frozenset({"GPU-0", "GPU-1"}))
    assert mirror.pending == ()
    assert mirror.holdings() == (holding("a", "init0", "GPU-1"),)


def test_a_pod_with_a_failed_promise_comes_last() -> None:
    mirror = promising(pod("a", 1, grants=whole(1)), pod("b", 1, grants=whole(2)))
    mirror.release_offered(GPU, frozenset(named(1, 2, 3)))
    assert [candidate.pod.name for candidate in mirror.snapshot().pending_containers(GPU, 1)] == ["b", "a"]


def test_what_another_pod_turns_out_to_have_was_its_init_container_s() -> None:
    mirror = promising(pod("a", 1), pod("b", containers=wants(1, init=[1])))
    mirror.record_allocation(ContainerKey(uid="uid-b", container="c0"), GPU, frozenset({"GPU-1"}), 11.0)
    assert {
        (allocation.key.uid, allocation.key.container, allocation.never_reported) for allocation in mirror.pending
    } == {
        ("uid-b", "init0", True),
        ("uid-b", "c0", False),
    }


def test_what_another_pod_s_init_container_had_stays_with_that_pod() -> None:
    mirror = Mirror()
    for listed in (pod("a", containers=wants(1, init=[2])), pod("b", containers=wants(1, init=[2]))):
        mirror.put(listed)
    mirror.record_allocation(ContainerKey(uid="uid-a", container="init0"), GPU, frozenset({"GPU-1", "GPU-2"}), 10.0)
    mirror.apply_reports([report("b", "c0", "GPU-1")], 11.5)
    assert {(holding.pod, holding.container, *holding.ids) for holding in mirror.holdings()} == {
        ("b", "init0", "GPU-2"),
        ("b", "c0", "GPU-1"),
    }


# --- the order of pods ---------------------------------------------------------------------------------------------


def names_of(mirror: Mirror) -> str:
    return "".join(pod.name for pod in mirror.pods)


def test_the_first_list_is_in_the_order_of_creation_and_what_follows_in_that_of_versions() -> None:
    first = [pod("b", created="2", version=1), pod("a", created="1", version=3)]
    mirror = Mirror()
    mirror.replace(first, 3)
    late = pod("c", created="0", version=4)
    mirror.put(late)
    assert names_of(mirror) == "abc"
    mirror.replace([pod("e", created="0", version=6), pod("d", created="9", version=5), late, *first], 6)
    assert names_of(mirror) == "abcde"
    mirror.reorder()
    assert names_of(mirror) == "ceabd"


def test_old_news_change_nothing() -> None:
    mirror = Mirror()
    mirror.replace([pod("a", version=3)], 5)
    assert not mirror.put(pod("b", version=4))
    assert not mirror.remove(pod("a", version=4))
    assert names_of(mirror) == "a"
    assert mirror.put(pod("a", version=6, started=True))
    assert not mirror.put(pod("a", version=7, started=True))
    assert mirror.remove(pod("a", version=8))


async def test_a_list_that_is_older_than_an_event_changes_nothing(node: Node) -> None:
    """The watch has shown the event already, and does not show it again."""
    agent = node(pod("new", 1), pod("gone", 0, grants=share(1)), pod("done", 0, grants=share(2)))

    def meanwhile() -> None:
        agent.api.put(pod("late", 1))
        agent.api.put(pod("done", 0, grants=share(2), ended=True))
        agent.api.remove("uid-gone")
        agent.hear()

    agent.api.meanwhile = meanwhile
    await agent.admission.prefer(GPU, named(0, 1, 2), [], 1)
    assert (agent.api.lists, names_of(agent.admission.mirror)) == (1, "newlate")


def test_a_list_of_the_watch_counts_whatever_was_seen_before() -> None:
    """Versions are lower after a restore of etcd, and the watch goes on from its list."""
    mirror = Mirror()
    mirror.replace([pod("a", version=8)], 8)
    mirror.put(pod("b", version=9))
    mirror.replace([pod("a", version=3)], 5)
    assert (names_of(mirror), mirror.version) == ("a", 5)
    assert mirror.put(pod("b", version=6))


async def test_after_kubelet_was_away_pods_are_in_the_order_of_creation(node: Node) -> None:
    agent = node(pod("b", 1, created="2", grants=whole(1)))
    agent.api.put(pod("a", 1, created="1", grants=whole(0)))
    agent.hear()
    agent.kubelet.is_away = True
    await agent.admission.refresh()
    assert names_of(agent.admission.mirror) == "ba"
    agent.kubelet.is_away = False
    assert await agent.admission.prefer(GPU, named(0, 1), [], 1) == named(0)


# --- cards whose minors changed --------------------------------------------------------------------------------


def moved() -> Mirror:
    """Return the mirror of a node that rebooted without its first card: the driver numbers the others from 0."""
    mirror = Mirror()
    mirror.units = units(3).joined(Units(minors={"GPU-1": 0, "GPU-2": 1}, cards=frozenset({"GPU-1", "GPU-2"})))
    return mirror


def test_a_share_is_withheld_where_its_card_is_now() -> None:
    mirror = moved()
    mirror.replace([pod("h", 0, grants=share(1))], 1)
    assert mirror.snapshot().withheld() == {"GPU-1"}


def test_a_pod_gets_its_card_whatever_its_minor_is_now() -> None:
    mirror = moved()
    mirror.replace([pod("h", 0, grants=share(1)), pod("a", 1, grants=whole(2))], 1)
    question = choice.PreferenceRequest(resource=GPU, available=named(1, 2), must=(), size=1)
    proposal = choice.propose(mirror.snapshot(), question, choice.first_available)
    assert proposal is not None
    assert proposal.ids == {"GPU-2"}


def test_a_pod_of_another_scheduler_gets_a_card_under_an_old_minor_and_none_that_moved() -> None:
    mirror = moved()
    mirror.replace([pod("gone", 0, grants=share(0)), pod("h", 0, grants=share(1)), pod("a", 1)], 1)
    mirror.apply_reports([report("x", "c0", "GPU-0")], 0)
    question = choice.PreferenceRequest(resource=GPU, available=named(1, 2), must=(), size=1)
    proposal = choice.propose(mirror.snapshot(), question, choice.first_available)
    assert proposal is not None
    assert proposal.ids == {"GPU-2"}
    assert choice.explain(mirror.snapshot(), GPU, frozenset({"GPU-1"}), proposal) is None


def test_an_instance_that_is_gone_takes_nothing_of_the_card_under_its_old_minor() -> None:
    mirror = Mirror()
    before = Units(minors={"GPU-0": 0, "MIG-a": 0}, cards=frozenset({"GPU-0"}), parents={"MIG-a": "GPU-0"})
    mirror.units = before.joined(Units(minors={"GPU-1": 0}, cards=frozenset({"GPU-1"})))
    mirror.replace([pod("a", 1)], 1)
    mirror.apply_reports([report("x", "c0", "MIG-a")], 0)
    assert choice.explain(mirror.snapshot(), GPU, frozenset({"GPU-1"}), None) == ContainerKey(
        uid="uid-a", container="c0"
    )


# --- what outlives pods --------------------------------------------------------------------------------------------


def holding(name: str, container: str, *ids: str) -> Holding:
    return Holding(uid=f"uid-{name}", namespace="ns", pod=name, container=container, ids=ids)


@pytest.mark.parametrize("kubelet_first", [True, False])
def test_a_removed_pod_holds_while_it_has_processes(*, kubelet_first: bool) -> None:
    mirror = Mirror()
    mirror.units = units(4)
    mirror.replace([pod("a", 1), pod("b", 1)], 1)
    mirror.apply_reports([report("a", "c0", "GPU-1")], 0)
    if kubelet_first:
        mirror.apply_reports([], 1)
    mirror.remove(pod("a", 1, version=2))
    mirror.apply_reports([], 2)
    assert mirror.holdings() == (holding("a", "c0", "GPU-1"),)
    mirror.release_ended({"uid-a"})
    snapshot = mirror.snapshot()
    assert snapshot.withheld() == {"GPU-1"}
    assert choice.explain(snapshot, GPU, frozenset({"GPU-1"}), None) is None
    mirror.release_ended(set())
    assert mirror.holdings() == ()
    assert choice.explain(mirror.snapshot(), GPU, frozenset({"GPU-1"}), None) == ContainerKey(
        uid="uid-b", container="c0"
    )


@pytest.mark.parametrize("is_restored", [True, False])
def test_what_kubelet_reports_again_does_not_linger(*, is_restored: bool) -> None:
    mirror = Mirror()
    mirror.replace([pod("a", containers=wants(1, init=[2]))], 1)
    mirror.record_allocation(ContainerKey(uid="uid-a", container="init0"), GPU, frozenset(named(1, 2)), 0)
    mirror.apply_reports([report("a", "c0", "GPU-1")], 0)
    if is_restored:
        # The holding of the init container is older than the report of the container that took over one of its cards.
        saved = [holding("a", "init0", *named(1, 2)), holding("a", "c0", "GPU-1"), holding("gone", "c0", "GPU-3")]
        mirror.restore(mirror.pending, saved, 0)
    else:
        mirror.apply_reports([], 1)
    assert mirror.has_lingering
    mirror.apply_reports([report("a", "c0", "GPU-1")], 2)
    assert mirror.snapshot().lingering == ({"uid-gone": {"GPU-3"}} if is_restored else {})
    mirror.remove(pod("a", version=2))
    assert mirror.snapshot().lingering["uid-a"] == {"GPU-1", "GPU-2"}


def test_nothing_is_kept_of_pods_that_are_gone() -> None:
    """Kubelet may report a pod after its removal, and static pods that the watch does not show."""
    mirror = Mirror()
    mirror.replace([pod("a", 1), pod("b", 1)], 1)
    mirror.record_allocation(ContainerKey(uid="uid-b", container="c0"), GPU, frozenset({"GPU-2"}), 0)
    reports = [report("a", "c0", "GPU-1"), report("static", "c0", "GPU-3")]
    mirror.apply_reports(reports, 0)
    mirror.remove(pod("a", version=2))
    mirror.remove(pod("b", version=3))
    mirror.apply_reports(reports, 1)
    mirror.apply_reports([], 2)
    assert mirror.snapshot().unreported == frozenset()
    assert mirror.snapshot().doubtful == frozenset()


def test_a_removed_share_holds_by_its_annotation() -> None:
    mirror = Mirror()
    mirror.units = units(4)
    mirror.replace([pod("h", 0, grants=share(1))], 1)
    assert mirror.holdings() == ()
    mirror.remove(pod("h", 0, version=2))
    assert mirror.holdings() == (holding("h", "c0", "GPU-1"),)


def test_a_successor_of_the_same_name_does_not_hold_what_the_removed_pod_held() -> None:
    mirror = Mirror()
    mirror.replace([pod("a", 1, uid="old")], 1)
    mirror.apply_reports([report("a", "c0", "GPU-1")], 0)
    mirror.remove(pod("a", 1, uid="old", version=2))
    mirror.put(pod("a", 1, uid="new", version=3))
    mirror.apply_reports([report("a", "c0", "GPU-1")], 1)
    assert [holding.uid for holding in mirror.holdings()] == ["old"]
    mirror.record_allocation(ContainerKey(uid="new", container="c0"), GPU, frozenset({"GPU-1"}), 1)
    mirror.apply_reports([report("a", "c0", "GPU-1")], 2)
    mirror.release_ended(set())
    assert [holding.uid for holding in mirror.holdings()] == ["new"]


async def test_a_restarted_agent_knows_what_it_promised(node: Node) -> None:
    agent = node(pod("a", 1, grants=whole(1)), pod("b", 1, grants=whole(2)))
    await agent.admission.prefer(GPU, named(0, 1, 2), [], 1)
    await agent.admission.admit(GPU, named(1))
    agent.start()
    assert [allocation.key.uid for allocation in agent.admission.mirror.pending] == ["uid-a"]
    assert await agent.admission.prefer(GPU, named(0, 2), [], 1) == named(2)


async def test_a_restarted_agent_knows_which_pods_were_removed_meanwhile(node: Node) -> None:
    agent = node(pod("a", 1), given={("a", "c0"): [1]})
    await agent.admission.refresh()
    agent.running.add("uid-a")
    agent.api.remove("uid-a")
    agent.kubelet.pods.clear()
    agent.start()
    await agent.admission.refresh()
    assert agent.admission.mirror.holdings() == (holding("a", "c0", "GPU-1"),)
    agent.running.clear()
    await agent.admission.refresh()
    assert agent.admission.mirror.holdings() == ()


async def test_a_restarted_agent_knows_which_shares_were_removed_meanwhile(node: Node) -> None:
    agent = node(pod("gone", 0, grants=share(1)), pod("stays", 0, grants=share(2)))
    await agent.admission.refresh()
    agent.running |= {"uid-gone", "uid-stays"}
    agent.api.remove("uid-gone")
    agent.start()
    await agent.admission.refresh()
    # The share of a pod that is there is published by its annotation.
    assert agent.admission.mirror.holdings() == (holding("gone", "c0", "GPU-1"),)
    assert agent.admission.withheld() == {"GPU-1", "GPU-2"}
    agent.running.clear()
    await agent.admission.refresh()
    assert agent.admission.withheld() == {"GPU-2"}


async def test_a_checkpoint_that_another_program_removed_is_written_again(node: Node, tmp_path: Path) -> None:
    agent = node(pod("a", 1), given={("a", "c0"): [1]})
    await agent.admission.refresh()
    file = tmp_path / "checkpoint"
    before = file.read_bytes()
    file.unlink()
    with no_room(), capture_logs() as logs:
        await agent.admission.refresh()
        await agent.admission.refresh()
    assert ["checkpoint not written" in line["event"] for line in logs] == [True]
    await agent.admission.refresh()
    assert not agent.admission.has_news
    assert file.read_bytes() == before


async def test_a_checkpoint_for_which_there_was_no_room_is_written_later(node: Node, tmp_path: Path) -> None:
    agent = node(pod("a", 1), given={("a", "c0"): [1]})
    file = tmp_path / "checkpoint"
    with no_room(), capture_logs():
        await agent.admission.refresh()
    assert not file.exists()
    await agent.admission.refresh()
    assert not agent.admission.has_news
    assert file.exists()


async def test_a_refresh_has_news_whichever_reader_saw_it_first(node: Node) -> None:
    agent = node(pod("a", 1), pod("b", 1), given={("a", "c0"): [1]})
    await agent.admission.refresh()
    assert agent.admission.has_news
    await agent.admission.refresh()
    assert not agent.admission.has_news
    agent.kubelet.given.clear()
    await agent.admission.prefer(GPU, named(0, 1), [], 1)
    await agent.admission.refresh()
    assert agent.admission.has_news
    await agent.admission.refresh()
    assert not agent.admission.has_news
    agent.admission.replace_pods(*await agent.api.pods())
    await agent.admission.refresh()
    assert agent.admission.has_news


async def test_devices_of_claims_are_news(node: Node) -> None:
    agent = node(pod("a", 1))
    await agent.admission.refresh()
    device = ClaimedDevice(namespace="ns", claim="c", driver="d", pool="p", device="gpu-0")
    users = [ClaimedByContainer(pod=name, container="main", device=device) for name in ("a", "b")]
    agent.kubelet.claim_users = tuple(users)
    await agent.admission.refresh()
    assert agent.admission.has_news
    assert agent.admission.claimed == (device,)
    await agent.admission.refresh()
    assert not agent.admission.has_news
