"""What ends a wait, word for word, for each kind of change. Each answer agrees with the decision."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from berth_api.allocation import REPLICAS, Grant, mig
from berth_api.allocation.partitions import Partition
from berth_api.names import GPU_TOPOLOGY, MIN_GPU_MEMORY
from berth_api.request.model import ModelConstraint
from berth_api.values.selectors import LabelSelector
from berth_operator.core.advice import remedies
from berth_operator.core.advice.assumptions import Assumption, Unit, WhatIfs
from berth_operator.core.advice.remedies import is_in_vain
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import ROWS, Fleet
from berth_operator.core.values.affinity import Affinity, Identity, Peers, Term
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.mounts import Disk, Mounts
from berth_operator.core.values.owner import Owner
from berth_operator.core.values.request import NodeTerm, PendingPod, PodRequest, Taint
from berth_operator.core.values.storage import READ_WRITE_ONCE_POD
from tests.objects import volumes
from tests.objects.builders import (
    GI,
    GPU,
    NVIDIA,
    RATIO,
    RDMA,
    add,
    asks,
    card,
    cards,
    charge,
    divided,
    fleet,
    grant,
    hints,
    instance,
    inventory,
    jointly,
    label,
    listens,
    node_info,
    replica,
    sliced,
    waiting,
)

POLICY = Policy()
NOT_POOL_A = NodeTerm(labels=(label("pool", "NotIn", "a"), label("gen", "Gt", "3")))
TAINT = Taint(key="x", value="", effect="NoSchedule")
OF_NVIDIA, OF_AMD = (Taint(key=f"{vendor}.com/gpu", value="present") for vendor in ("nvidia", "amd"))
ONE = {NVIDIA: 1}
H100 = ModelConstraint(globs=("*H100*",))
NO_OTHER = "another node like a would not help"
ANOTHER = "another node like a would end the wait"


def sentences(made: Fleet, pod: PendingPod) -> list[str]:
    """Return what is said; the copy that it is tried on is restored."""
    copied = made.copy()
    before = {name: copied.node_info(name) for name in copied.rows}, copied.charges, copied.nominees
    found = remedies.of_pod(WhatIfs(copied, pod, POLICY, Budgets()), pod, POLICY)
    said = [each.sentence for each in found if each is not None]
    assert ({name: copied.node_info(name) for name in copied.rows}, copied.charges, copied.nominees) == before
    return said


def one_node(*placed: Charge, fresh: bool = True, there: Sequence[CardInfo] = cards(2), **fields: Any) -> Fleet:
    """Return a fleet of one node, with two cards unless others are given."""
    made = Fleet()
    add(made, node_info("a", **fields), inventory(*there), fresh=fresh)
    for each in placed:
        made.charge(each)
    return made


def parts(*cards: CardInfo, **held: Grant) -> Fleet:
    """Return a fleet of one node with these cards, of which each pod holds a part."""
    made = Fleet()
    add(made, node_info("a"), inventory(*cards))
    for name, part in held.items():
        made.charge(charge(name, part, node="a"))
    return made


def holder(name: str, *minors: int, **fields: Any) -> Charge:
    return charge(name, *(grant(minor, core=100, ratio=100) for minor in minors), node="a", **fields)


def ends(*changes: str) -> list[str]:
    return [f"{change} would end the wait" for change in changes]


SLICED = sliced(0, 4, memory=80 * GI)
MIG_1G = mig.resource("1g.10gb")
TWO_HELD = parts(divided(0, "1g.10gb", "1g.10gb"), x=instance(0, 0), y=instance(0, 1))
FOUR_HELD = parts(SLICED, x=replica(0, 0), y=replica(0, 1), z=replica(0, 2), w=replica(0, 3))
PAIR = {"partitions": ((2, (Partition(minors=(0, 1)),)),), "partitions_only": True}
NPU = asks({"huawei.com/npu-core": 100, RATIO: 100}, annotations=hints(gpu={"selector": {"matchLabels": {"t": "f"}}}))
TWO_OWNERS = one_node(holder("x", 0), replace(holder("y", 1), pod="other/y"))
NEAR_NIC = asks({NVIDIA: 1, RDMA: 50}, annotations=jointly("gpu", "rdma"))
PORT_IN_USE = one_node(holder("x", ports=(listens(80),)))
NO_CLAIM = 'PersistentVolumeClaim "data", bound to a volume that every node reaches'
NO_NEW_NODE = "a new node, whatever it has, would not help"
END_OF_X = "the end of pod x on a"
WITHOUT_TAINT = ("a node like a without the taint x:NoSchedule", "removing the taint x:NoSchedule from a")
WITHOUT_TAINTS_OF_DEVICES = [
    each.replace("taint x:NoSchedule", f"taints {OF_NVIDIA} and {OF_AMD}") for each in WITHOUT_TAINT
]
TOLERATIONS = (
    "tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}, "
    "{key: amd.com/gpu, operator: Exists, effect: NoSchedule}] in the pod's spec"
)
NEWER = "the label gen=4 and no label pool"
TWO = {NVIDIA: 2}
THREE = "a node like a with 3 GPUs"
FAILED = card(1, healthy=False, failed=True)
RECOVERY = "gpu 1 on a becoming healthy"
ONE_OF_HUAWEI = "a node like a with 1 GPU of Huawei with device labels t=f"

WAITS: dict[str, tuple[Fleet, PodRequest | dict[str, int], list[str]]] = {
    "more cards than any node has": (one_node(), {NVIDIA: 9}, [NO_OTHER, *ends("a node like a with 9 GPUs")]),
    "a model that no node has": (
        one_node(),
        asks(ONE, model=H100),
        [NO_OTHER, *ends("a node like a with 1 GPU of model *H100*")],
    ),
    "cards of a vendor with a label": (one_node(), NPU, [NO_OTHER, *ends(ONE_OF_HUAWEI)]),
    "memory of half of a card": (
        one_node(),
        asks({RATIO: 50}, annotations={MIN_GPU_MEMORY: "60Gi"}),
        [NO_OTHER, *ends("a node like a with 1 GPU with 120Gi memory")],
    ),
    "cards of the usual vendor next to each other, and a node of another vendor": (
        fleet({"a": cards(2)}, vendor="amd"),
        asks({NVIDIA: 2}, annotations={GPU_TOPOLOGY: "numa"}),
        [NO_OTHER, *ends("a node like a with 2 GPUs of NVIDIA on one NUMA node")],
    ),
    "more cards than a partition has": (fleet({"a": cards(2)}, **PAIR), {NVIDIA: 3}, [NO_OTHER]),
    "devices under the same switches": (
        one_node(),
        NEAR_NIC,
        [NO_OTHER, *ends("a node like a with 1 GPU and 1 RDMA device under the same PCIe switches")],
    ),
    "a label that no node has": (
        one_node(),
        asks(ONE, selector={"pool": "b"}),
        [NO_OTHER, *ends("a node like a with the label pool=b", "the label pool=b on a")],
    ),
    "an affinity that no node matches": (
        one_node(labels={"pool": "a"}),
        asks(ONE, affinity=[NOT_POOL_A]),
        [NO_OTHER, *ends(f"a node like a with {NEWER}", f"{NEWER} on a")],
    ),
    "a taint": (one_node(taints=(TAINT,)), ONE, [NO_OTHER, *ends(*WITHOUT_TAINT)]),
    "a taint for pods without devices": (
        one_node(taints=(OF_NVIDIA, OF_AMD)),
        {GPU: 50},
        [NO_OTHER, *ends(*WITHOUT_TAINTS_OF_DEVICES, TOLERATIONS)],
    ),
    "a taint for pods without devices, and such a pod": (
        one_node(taints=(OF_NVIDIA,)),
        {"cpu": 1},
        [NO_OTHER, *ends(*(each.replace("x:NoSchedule", str(OF_NVIDIA)) for each in WITHOUT_TAINT))],
    ),
    "a cordon": (one_node(cordoned=True), ONE, [ANOTHER, *ends("uncordoning a")]),
    "a node that is not ready": (one_node(ready=False), ONE, [ANOTHER, *ends("a becoming ready")]),
    "a failed card": (fleet({"a": (card(0), FAILED)}), TWO, [NO_OTHER, *ends("a node like a with 2 GPUs", RECOVERY)]),
    "a failed card that the Node's sums do not count": (
        one_node(there=(card(0), FAILED), offered={NVIDIA: 1}),
        TWO,
        [NO_OTHER, *ends("a node like a with 2 GPUs", RECOVERY)],
    ),
    "two failed cards of three": (
        fleet({"a": (card(0), FAILED, replace(FAILED, minor=2, id="GPU-2"), replace(FAILED, minor=3, id="GPU-3"))}),
        asks({NVIDIA: 3}),
        [NO_OTHER, *ends(THREE, "gpu 2 and gpu 3 on a becoming healthy")],
    ),
    "failed cards, and still too few": (fleet({"a": (card(0), FAILED)}), {NVIDIA: 3}, [NO_OTHER, *ends(THREE)]),
    "a silent agent": (one_node(fresh=False), ONE, [ANOTHER, *ends("a report of the agent of a")]),
    "a silent agent of a node whose cards are in use": (one_node(holder("x", 0, 1), fresh=False), ONE, [ANOTHER]),
    "a silent agent of a node with too few cards": (
        one_node(fresh=False),
        {NVIDIA: 9},
        [NO_OTHER, *ends("a node like a with 9 GPUs")],
    ),
    "cards in use": (one_node(holder("x", 0, 1)), ONE, [ANOTHER, *ends("gpu 0 free on a", END_OF_X)]),
    "two pods, one of another namespace": (
        TWO_OWNERS,
        {NVIDIA: 2},
        [ANOTHER, *ends("gpu 0 free and gpu 1 free on a", "the end of pod x and 1 pod of another namespace on a")],
    ),
    "cpu in use": (
        one_node(holder("x", resources=(("cpu", 63_500),))),
        {"cpu": 1000},
        [ANOTHER, *ends("500m cpu more on a", END_OF_X)],
    ),
    "slices in use": (FOUR_HELD, {REPLICAS: 1}, [ANOTHER, *ends("gpu 0 free on a", "the end of pod z on a")]),
    "a share of a card in slices": (
        parts(sliced(0, 4), x=replica(0, 1)),
        {GPU: 90},
        [ANOTHER, *ends("gpu 0 free on a", END_OF_X)],
    ),
    "MIG instances in use": (
        TWO_HELD,
        {MIG_1G: 1},
        [ANOTHER, *ends(f"gpu 0 with 1 {MIG_1G} more free on a", "the end of pod y on a")],
    ),
    "instances that no card has, next to a card in use": (one_node(holder("x", 0)), {MIG_1G: 1}, [NO_OTHER]),
    "more cpu than any node has": (
        one_node(),
        {"cpu": 65_000},
        [NO_OTHER, *ends("a node like a with 65 cpu", "1 cpu more on a")],
    ),
    "a host port in use": (PORT_IN_USE, asks(ports=[listens(80)]), [ANOTHER, *ends(END_OF_X)]),
    "a claim that does not exist": (one_node(), volumes.wants("data"), [*ends(NO_CLAIM), NO_NEW_NODE]),
    "a claim that does not exist, and a taint": (
        one_node(taints=(TAINT,)),
        volumes.wants("data"),
        [f"needed first: {NO_CLAIM}", NO_NEW_NODE],
    ),
    "no node": (Fleet(), {NVIDIA: 1, "cpu": 1000}, ends("a node with 1 cpu and with 1 GPU")),
}


@pytest.mark.parametrize(("made", "request_", "said"), WAITS.values(), ids=WAITS)
def test_what_ends_a_wait(made: Fleet, request_: PodRequest | dict[str, int], said: Sequence[str]) -> None:
    assert sentences(made, waiting(request=request_)) == said


def test_a_pod_of_the_same_controller_may_wait_for_this_one() -> None:
    job = Owner(kind="Job", name="j", uid="j")
    assert sentences(one_node(holder("x", 0, 1, owner=job)), waiting(request=ONE, owner=job)) == [
        ANOTHER,
        *ends("gpu 0 free on a", "the end of pod x on a, which may wait for this pod,"),
    ]


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (waiting(error="no such thing"), "its request is invalid: no such thing"),
        (waiting(request=asks(unsupported=["x"])), "pod uses x, which Berth does not support"),
    ],
)
def test_waiting_is_in_vain_if_only_another_pod_can_be_placed(pod: PendingPod, why: str) -> None:
    found = [*filter(None, remedies.of_pod(WhatIfs(one_node(), pod, POLICY, Budgets()), pod, POLICY))]
    assert [each.sentence for each in found] == [f"only a corrected pod, created again, can be placed ({why})"]
    assert is_in_vain(found)


def test_a_card_becomes_free_of_which_a_slice_is_kept_for_a_pod_of_lower_priority() -> None:
    made = parts(SLICED, x=replica(0, 0))
    made.nominate(charge("low", replica(0, 1), node="a"))
    said = sentences(made, waiting(request={GPU: 90}, priority=5))
    assert said == [ANOTHER, *ends("gpu 0 free on a", END_OF_X)]


def test_no_card_is_named_whose_holder_the_pod_must_be_near() -> None:
    """A card becomes free by the end of its holder, and then the affinity matches no pod."""
    made = Fleet()
    add(made, node_info("a", labels={"zone": "z"}), inventory(card(0)))
    made.charge(holder("x", 0, identity=Identity(namespace="ns", labels=(("app", "x"),))))
    near = Term(
        key="zone",
        peers=Peers(namespaces=("ns",), selector=LabelSelector(requirements=(label("app", "In", "x"),))),
    )
    pod = waiting(request=replace(asks(ONE), affinity=Affinity(required_affinity=(near,))))
    assert sentences(made, pod) == [ANOTHER]


class CountingWhatIfs(WhatIfs):
    """Counts what-ifs."""

    count = 0

    def ends(self, *assumptions: Assumption, unit: Unit | None = None, evicting: bool = True) -> bool:
        self.count += 1
        return super().ends(*assumptions, unit=unit, evicting=evicting)


@pytest.mark.parametrize("request_", [ONE, {NVIDIA: 8}, {NVIDIA: 9}, asks(ONE, selector={"pool": "b"})])
def test_other_work_can_be_done_after_few_what_ifs(request_: Any) -> None:
    made = fleet({name: cards(8) for name in "abcdef"})
    for name in "abcdef":
        for minor in range(8):
            made.charge(charge(f"{name}-{minor}", grant(minor, core=100, ratio=100), node=name))
    pod = waiting(request=request_)
    what_ifs, counts = CountingWhatIfs(made.copy(), pod, POLICY, Budgets()), []
    for _ in remedies.of_pod(what_ifs, pod, POLICY):
        counts.append(what_ifs.count)
        what_ifs.count = 0
    assert max(counts) <= 2


def test_what_is_kept_for_another_pod() -> None:
    made = one_node()
    made.nominate(holder("first", 0, 1, priority=5))
    assert "giving up what is kept on a for pod first would end the wait" in sentences(made, waiting(request=ONE))


def test_a_fleet_without_a_spare_row_is_answered_as_any_other() -> None:
    """The arrays grow with the node that a what-if adds."""
    made = Fleet()
    for number in range(ROWS):
        add(made, node_info(f"n{number:02}"), inventory(*cards(2)))
    assert sentences(made, waiting(request={NVIDIA: 3})) == [
        "another node like n00 would not help",
        "a node like n00 with 3 GPUs would end the wait",
    ]


def test_the_ends_of_pods_are_searched_on_several_nodes() -> None:
    made = Fleet()
    for name in "abc":
        add(made, node_info(name), inventory(*cards(2)))
        made.charge(charge(f"low-{name}", *(grant(minor, core=100, ratio=100) for minor in range(2)), node=name))
    said = sentences(made, waiting(request={NVIDIA: 2}))
    assert [each for each in said if each.startswith("the end of")] == [
        f"the end of pod low-{name} on {name} would end the wait" for name in "abc"
    ]


def test_no_node_is_said_to_need_the_name_of_another() -> None:
    made = Fleet()
    for name in "ab":
        labels = {"kubernetes.io/hostname": name}
        add(made, node_info(name, labels=labels, cordoned=name == "b"), inventory(*cards(2)))
    said = sentences(made, waiting(request=asks(ONE, selector={"kubernetes.io/hostname": "b"})))
    assert said == ["another node like b would not help", "uncordoning b would end the wait"]


def test_a_node_of_the_wanted_model_is_the_one_that_a_new_node_is_like() -> None:
    made = Fleet()
    add(made, node_info("a"), inventory(*cards(2, model="T4")))
    add(made, node_info("b"), inventory(*cards(2, model="NVIDIA H100")))
    assert sentences(made, waiting(request=asks({NVIDIA: 9}, model=H100))) == [
        "another node like b would not help",
        "a node like b with 9 GPUs of model *H100* would end the wait",
    ]


def test_no_share_is_named_that_is_kept_for_another_pod() -> None:
    made = one_node(holder("x", 1))
    made.nominate(charge("first", grant(0, core=60, ratio=60), node="a", priority=5))
    said = sentences(made, waiting(request={GPU: 50}))
    assert said == [ANOTHER, *ends(END_OF_X, "giving up what is kept on a for pod first")]


@pytest.mark.parametrize(
    ("mine", "used"),
    [
        pytest.param(volumes.mounts("far", disks=[Disk(kind="gce", id="d")]), "a", id="a disk that another pod uses"),
        pytest.param(volumes.mounts("far", "mine"), "b", id="a claim that another pod uses"),
    ],
)
def test_no_other_volume_is_named_if_another_pod_uses_what_the_pod_mounts(mine: Mounts, used: str) -> None:
    made = fleet({"a": cards(1), "b": cards(1)})
    made.put_node(node_info("b", labels={"zone": "b"}, taints=(TAINT,)))
    alone = {"modes": frozenset({READ_WRITE_ONCE_POD})}
    volumes.put(made, volumes.bound("far", "v"), volumes.volume("v", on=("b",)), volumes.bound("mine", "w", **alone))
    volumes.put(made, volumes.volume("w"))
    made.charge(charge("x", node=used, mounts=mine))
    said = sentences(made, waiting(request=replace(asks(), mounts=mine)))
    assert not [each for each in said if each.startswith("a volume for")]
