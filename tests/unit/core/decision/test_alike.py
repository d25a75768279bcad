"""Alike GPUs: the cards of a pod, and of members of a gang with equal requests, are of one model and one kind."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.allocation import REPLICAS, Grant, mig
from berth_api.allocation.partitions import Partition
from berth_api.request import BUILT_IN, Kinds
from berth_operator.core.advice.simulate import simulate
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide, feasible
from berth_operator.core.decision.gang import decide_gang
from berth_operator.core.decision.gang_preemption import preempt_gang
from berth_operator.core.decision.policy import CARD_STRATEGIES, Policy
from berth_operator.core.decision.preemption import preempt
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import Membership, PendingPod
from tests.objects.builders import (
    A100,
    GI,
    GPU,
    NVIDIA,
    RATIO,
    RDMA,
    SHARED,
    T4,
    T4_BYTES,
    add,
    asks,
    card,
    cards,
    charge,
    divided,
    fleet,
    gang,
    grant,
    inventory,
    jointly,
    node_info,
    other_card,
    place,
    replica,
    sliced,
    waiting,
)
from tests.objects.volumes import mounts

MI210 = "AMD Instinct MI210"
MIG_1G = "nvidia.com/mig-1g.10gb"
MIXED = {names.MIXED_GPUS: "true"}
POLICY = Policy()
GROUP = Membership(group="ns/g")


def t4(minor: int = 0, **fields: Any) -> CardInfo:
    return card(minor, model=T4, memory=T4_BYTES, **fields)


def t4s(count: int) -> tuple[CardInfo, ...]:
    return tuple(t4(minor) for minor in range(count))


def halves(*minors: int) -> tuple[CardInfo, ...]:
    return tuple(divided(minor, "3g.40gb", "3g.40gb") for minor in minors)


def mixture(
    nodes: Mapping[str, Sequence[CardInfo]],
    *,
    single: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    choices: Mapping[str, str] | None = None,
) -> Fleet:
    """Return a fleet.

    `single` has the nodes with MIG strategy single, `labels` the value of each node's `pool`, `choices` the field of
    DeviceInventory that says who chooses its slices.
    """
    made = Fleet()
    for name, card_infos in nodes.items():
        pool = {"pool": labels[name]} if labels else {}
        fields: Any = {choice: True} if (choice := (choices or {}).get(name)) else {}
        add(made, node_info(name, labels=pool), inventory(*card_infos, mig_single=name in single, **fields))
    return made


def unit(of: Fleet, node: str, grant_: Grant) -> tuple[str, str]:
    """Return the model and kind of a grant."""
    row = of.rows[node]
    [slot] = [slot for slot in of.cards["gpu"].slots(row) if of.cards["gpu"].minor[row, slot] == grant_.minor]
    model = of.intern_table.models[int(of.cards["gpu"].model[row, slot])]
    amounts = dict(grant_.amounts)
    profiles = [name for name in amounts if mig.is_resource(name)]
    if profiles:
        return model, profiles[0]
    return model, f"1/{100 // amounts['gpu-core']}" if REPLICAS in amounts else "whole"


def units(of: Fleet, *placements: Placement) -> Counter[tuple[str, str]]:
    return Counter(unit(of, each.node, grant_) for each in placements for grant_ in each.grants)


def members(count: int, requests: Mapping[str, int], *, first: int = 0, **fields: Any) -> list[PendingPod]:
    annotations = fields.pop("annotations", None)
    request = asks(
        requests, annotations=annotations, **{key: fields.pop(key) for key in ("selector",) if key in fields}
    )
    return [waiting(f"m{number}", request, gang=GROUP, **fields) for number in range(first, first + count)]


def decided(of: Fleet, *pods: PendingPod, policy: Policy = POLICY, **fields: Any) -> list[Placement]:
    outcome = decide_gang(of, gang(*pods, **fields), policy)
    assert not isinstance(outcome, Failure), outcome
    return outcome


# --- whole cards first ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "annotation", "expected"),
    [
        pytest.param("last", None, ["whole", "part"], id="the default"),
        pytest.param("never", None, ["whole", None], id="never, by the profile"),
        pytest.param("last", "never", ["whole", None], id="never, by the pod"),
        pytest.param("never", "last", ["whole", "part"], id="the pod comes first"),
        pytest.param("equal", None, ["part", "part"], id="equal, by the profile"),
        pytest.param("last", "equal", ["part", "part"], id="equal, by the pod"),
        pytest.param("never", "only", ["part", "part"], id="only, by the pod"),
    ],
)
def test_the_profile_and_the_pod_say_whether_a_gpu_may_be_a_slice(
    profile: Any, annotation: str | None, expected: list[str | None]
) -> None:
    made = mixture({"node": (sliced(0, 4), card(1))})
    made.charge(charge("other", *place(mixture({"node": (sliced(0, 4),)}), waiting("x", {REPLICAS: 1})).grants))
    annotations = {} if annotation is None else {names.GPU_SUBDEVICES: annotation}
    for number, kind in enumerate(expected):
        outcome = decide(
            made, waiting(str(number), asks({NVIDIA: 1}, annotations=annotations)), Policy(subdevices=profile)
        )
        if kind is None:
            assert isinstance(outcome, Failure)
            assert "too few free GPUs" in outcome.message
            continue
        assert isinstance(outcome, Placement)
        assert outcome.grants[0].is_subdevice is (kind == "part")
        made.charge(outcome.charge)


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({names.PARTITION_SPEC: '{"allocatePolicy": "Restricted"}'}, id="partition"),
        pytest.param({names.GPU_TOPOLOGY: "nvlink"}, id="NVLink"),
        pytest.param({names.GPU_TOPOLOGY: "numa"}, id="NUMA node"),
        pytest.param({names.ALLOCATE_HINT: '{"gpu": {"requiredTopologyScope": "PCIe"}}'}, id="PCIe switch"),
        pytest.param({names.ALLOCATE_HINT: '{"gpu": {"requiredTopologyScope": "Device"}}'}, id="device"),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("rule", ["last", "equal"])
def test_partitions_and_topology_scopes_never_take_subdevices(
    annotations: dict[str, str], rule: Any, count: int, *, single: bool
) -> None:
    where: Any = {"numa": 0, "pcie": "s"}
    parts = [replace(divided(minor, *["1g.10gb"] * 7) if single else sliced(minor, 8), **where) for minor in range(8)]
    made = mixture({"node": parts}, single=["node"] if single else [])
    assert isinstance(decide(made, waiting("p", {NVIDIA: count}), Policy(subdevices=rule)), Placement)
    pod = waiting("p", asks({NVIDIA: count}, annotations=annotations))
    outcome = decide(made, pod, Policy(subdevices=rule))
    assert isinstance(outcome, Failure)
    assert "nor in MIG mode" in outcome.message


def test_a_pod_cannot_want_subdevices_only_and_a_topology_of_cards() -> None:
    with pytest.raises(ValueError, match="gpu-subdevices: only; the pod's topology, scope or partition is for whole"):
        asks({NVIDIA: 2}, annotations={names.GPU_SUBDEVICES: "only", names.GPU_TOPOLOGY: "numa"})


# --- the cards of one pod ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "fits"),
    [
        pytest.param({NVIDIA: 2}, False, id="cards by the plugin's name"),
        pytest.param({GPU: 200}, False, id="cards by amounts"),
        pytest.param({SHARED: 2, RATIO: 100}, False, id="shares"),
        pytest.param({NVIDIA: 1}, True, id="a single card"),
    ],
)
def test_the_cards_of_a_pod_are_of_one_model_unless_it_says_otherwise(request_: dict[str, int], *, fits: bool) -> None:
    made = mixture({"node": (card(0), t4(1))})
    outcome = decide(made, waiting("pod", asks(request_)), POLICY)
    assert isinstance(outcome, Placement) is fits
    if isinstance(outcome, Failure):
        assert "of one model (at most 1 of 2)" in outcome.message
    mixed = decide(made, waiting("pod", asks(request_, annotations=MIXED)), POLICY)
    assert isinstance(mixed, Placement)


def test_a_reason_names_models_only_on_nodes_with_several() -> None:
    made = mixture({"several": (card(0), t4(1)), "one": cards(2)}, labels={"several": "a", "one": "b"})
    request = asks({NVIDIA: 2}, annotations={names.GPU_TOPOLOGY: "nvlink"}, selector={"pool": "b"})
    outcome = decide(made, waiting("pod", request), POLICY)
    assert isinstance(outcome, Failure)
    assert "1 node(s) have too few healthy GPUs with NVLinks among all of them (at most 1 of 2)" in outcome.message


def test_the_model_of_which_there_are_enough_is_chosen() -> None:
    made = mixture({"node": (card(0), t4(1), card(2), t4(3), t4(4))})
    placement = place(made, waiting("pod", {NVIDIA: 3}))
    assert units(made, placement) == {(T4, "whole"): 3}


def test_instances_of_several_profiles_are_of_one_model() -> None:
    other = replace(divided(1, "1g.10gb", "3g.40gb"), model="NVIDIA H100")
    made = mixture({"node": (divided(0, "1g.10gb"), other)})
    placement = place(made, waiting("pod", {MIG_1G: 1, "nvidia.com/mig-3g.40gb": 1}))
    assert {each.minor for each in placement.grants} == {1}
    assert isinstance(decide(made, waiting("more", {MIG_1G: 1, "nvidia.com/mig-3g.40gb": 1}), POLICY), Failure)


def test_a_pod_that_accepts_a_mixture_gets_cards_first_and_slices_for_the_rest() -> None:
    made = mixture({"node": (sliced(0, 4), card(1), t4(2))})
    placement = place(made, waiting("pod", asks({NVIDIA: 3}, annotations=MIXED)))
    assert sorted(kind for _, kind in units(made, placement)) == ["1/4", "whole", "whole"]


def test_cards_under_the_switches_of_nics_are_of_one_model() -> None:
    nics = [other_card("rdma", minor, pcie=switch) for minor, switch in enumerate("abc")]
    gpus = [card(0, pcie="a"), t4(1, pcie="b"), t4(2, pcie="c")]
    made = mixture({"node": (*gpus, *nics)})
    request = asks({NVIDIA: 2, RDMA: 2}, annotations=jointly("gpu", "rdma"))
    placement = place(made, waiting("pod", request))
    assert [each.minor for each in placement.grants if each.type == "gpu"] == [1, 2]
    assert isinstance(decide(made, waiting("more", request), POLICY), Failure)
    # There are two T4, but only one of them has a NIC under its switch.
    made = mixture({"node": (*gpus[:2], t4(2, pcie="d"), *nics)})
    outcome = decide(made, waiting("pod", request), POLICY)
    assert isinstance(outcome, Failure)
    assert "too few free devices under the same PCIe switches" in outcome.message


# --- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("card_info", "request_", "least", "fits"),
    [
        pytest.param(sliced(0, 4), {NVIDIA: 1}, "19Gi", True, id="a slice"),
        pytest.param(sliced(0, 4), {NVIDIA: 1}, "20Gi", False, id="a slice that is too small"),
        pytest.param(sliced(0, 4), {REPLICAS: 1}, "20Gi", False, id="a slice by name"),
        pytest.param(divided(0, "1g.10gb"), {NVIDIA: 1}, "10Gi", True, id="an instance"),
        pytest.param(divided(0, "1g.10gb"), {NVIDIA: 1}, "11Gi", False, id="an instance that is too small"),
        pytest.param(divided(0, "1g.10gb"), {MIG_1G: 1}, "11Gi", False, id="an instance by name"),
        pytest.param(card(0), {GPU: 50}, "39Gi", True, id="a share"),
        pytest.param(card(0), {GPU: 50}, "40Gi", False, id="a share that is too small"),
        pytest.param(card(0), {"kubernetes.io/gpu-memory": 10 * GI}, "11Gi", False, id="a share in bytes"),
        pytest.param(card(0), {GPU: 100}, "79Gi", True, id="a card"),
    ],
)
def test_the_least_memory_is_of_what_the_container_gets(
    card_info: CardInfo,
    request_: dict[str, int],
    least: str,
    *,
    fits: bool,
) -> None:
    single = ["node"] if NVIDIA in request_ else []
    pod = waiting("pod", asks(request_, annotations={names.MIN_GPU_MEMORY: least}))
    outcome = decide(mixture({"node": (card_info,)}, single=single), pod, POLICY)
    assert isinstance(outcome, Placement) is fits
    if isinstance(outcome, Failure):
        assert f"{least} of memory" in outcome.message or f"of {least})" in outcome.message


# --- gangs ------------------------------------------------------------------------------------------------------


def test_a_gang_that_no_model_can_hold_waits_and_shows_which_comes_nearest() -> None:
    made = mixture({"a100": cards(8), "more": cards(8), "parts": halves(*range(2)), "t4": t4s(5)}, single=["parts"])
    outcome = decide_gang(made, gang(*members(20, {NVIDIA: 1})), POLICY)
    assert isinstance(outcome, Failure)
    assert outcome.message.startswith(f"PodGroup ns/g: 16 of the 20 required members fit on {A100}; next member m6: ")
    assert outcome.message.endswith('enough fit: allow them by the annotation berth.dev/mixed-gpus: "true".')
    mixed = decided(made, *members(20, {NVIDIA: 1}, annotations=MIXED))
    assert len(units(made, *mixed)) > 1


def test_a_gang_of_which_whole_cards_hold_the_minimum_takes_no_instances() -> None:
    made = mixture({"a100": cards(8), "parts": halves(*range(8))}, single=["parts"])
    assert units(made, *decided(made, *members(12, {NVIDIA: 1}), minimum=6)) == {(A100, "whole"): 8}
    assert units(made, *decided(made, *members(12, {NVIDIA: 1}))) == {(A100, "nvidia.com/mig-3g.40gb"): 12}


def test_a_model_that_holds_all_members_comes_before_one_that_holds_the_minimum() -> None:
    made = mixture({"a100": cards(4), "t4": t4s(6)})
    assert units(made, *decided(made, *members(6, {NVIDIA: 1}), minimum=2)) == {(T4, "whole"): 6}


def test_members_that_select_different_nodes_or_request_different_gpus_may_get_different_models() -> None:
    made = mixture({"a100": cards(4), "t4": t4s(4)}, labels={"a100": "big", "t4": "small"})
    big = members(2, {NVIDIA: 2}, selector={"pool": "big"})
    small = members(2, {NVIDIA: 2}, first=2, selector={"pool": "small"})
    assert units(made, *decided(made, *big, *small)) == {(A100, "whole"): 4, (T4, "whole"): 4}


def test_members_that_differ_only_in_labels_or_cpu_get_the_same_model() -> None:
    made = mixture({"a100": cards(1), "t4": t4s(2)})
    pods = [waiting(f"m{number}", asks({NVIDIA: 1, "cpu": 1000 * (1 + number)}), gang=GROUP) for number in range(2)]
    assert units(made, *decided(made, *pods)) == {(T4, "whole"): 2}


@pytest.mark.parametrize("model", [A100, T4])
def test_members_that_come_later_get_what_the_others_hold(model: str) -> None:
    made = mixture({"a100": cards(3), "t4": t4s(3)})
    node = {A100: "a100", T4: "t4"}[model]
    first = waiting("first", asks({NVIDIA: 1}, selector=None), gang=GROUP)
    made.charge(
        charge("first", grant(0, core=100, ratio=100), node=node, gang=GROUP, alike_key=first.request.alike_key)
    )
    held: dict[str, Any] = {"placed": 1, "nodes": (node,), "held": ("uid-first",)}
    placed = decided(made, *members(2, {NVIDIA: 1}), minimum=1, **held)
    assert units(made, *placed) == {(model, "whole"): 2}
    # None of the other model, even if this one is used up.
    for each in placed:
        made.charge(each.charge)
    outcome = decide_gang(made, gang(*members(1, {NVIDIA: 1}, first=2), minimum=1, **held), POLICY)
    assert isinstance(outcome, Failure)


def test_what_members_with_another_request_hold_does_not_matter() -> None:
    made = mixture({"a100": cards(1), "t4": t4s(3)})
    other = asks({NVIDIA: 1}, selector={"pool": "x"})
    made.charge(charge("first", grant(0, core=100, ratio=100), node="a100", gang=GROUP, alike_key=other.alike_key))
    placed = decided(made, *members(2, {NVIDIA: 1}), minimum=3, placed=1, nodes=("a100",), held=("uid-first",))
    assert units(made, *placed) == {(T4, "whole"): 2}


def test_a_gang_preempts_pods_on_alike_cards_only() -> None:
    made = mixture({"a100": cards(2), "t4": t4s(3)})
    for node, count, priority in (("a100", 2, 5), ("t4", 3, 1)):
        for minor in range(count):
            name = f"{node}-{minor}"
            made.charge(charge(name, grant(minor, core=100, ratio=100), node=node, priority=priority))
    preemption = preempt_gang(made, gang(*members(2, {NVIDIA: 1}, priority=10)), POLICY, Budgets())
    assert preemption is not None
    assert {each.node for each in preemption.victims} == {"t4"}
    assert len(preemption.victims) == 2
    larger = preempt_gang(made, gang(*members(4, {NVIDIA: 1}, priority=10)), POLICY, Budgets())
    assert larger is None


def test_a_pod_preempts_pods_on_alike_cards_only() -> None:
    made = mixture({"node": (card(0), t4(1), card(2), t4(3))})
    for minor, priority in ((0, 1), (1, 2), (2, 9), (3, 3)):
        made.charge(charge(str(minor), grant(minor, core=100, ratio=100), priority=priority))
    preemption = preempt(made, waiting("pod", {NVIDIA: 2}, priority=5), POLICY, Budgets())
    assert preemption is not None
    assert {each.uid for each in preemption.victims} == {"uid-1", "uid-3"}
    assert {each.minor for each in preemption.nominee.grants} == {1, 3}


def test_a_simulated_gang_stays_on_one_model() -> None:
    made = mixture({"a100": cards(2), "t4": t4s(3)})
    unit_ = gang(*members(3, {NVIDIA: 1}), minimum=1)
    outcomes = simulate(made, [unit_], {"berth-scheduler": POLICY}).outcomes
    placements = [each.result for each in outcomes if isinstance(each.result, Placement)]
    assert units(made, *placements) == {(T4, "whole"): 3}


# --- one slice of each card ----------------------------------------------------------------------------------------


SEVERAL = {names.GPU_SUBDEVICES: "only"}


def sliced_node(*replicas: int, name: str = "node") -> Fleet:
    return mixture({name: [sliced(minor, count) for minor, count in enumerate(replicas)]})


def test_members_get_slices_of_different_cards() -> None:
    made = sliced_node(4, 4)
    placed = decided(made, *members(2, {NVIDIA: 1}))
    assert sorted(each.grants[0].minor for each in placed) == [0, 1]
    outcome = decide_gang(made, gang(*members(4, {NVIDIA: 1})), POLICY)
    assert isinstance(outcome, Failure)
    assert outcome.message == (
        "PodGroup ns/g: 2 of the 4 required members fit on 1/4 slices of NVIDIA A100-SXM4-80GB; next member m2: "
        "0/1 nodes are available: 1 node(s) have too few GPUs of which no other member of the pod group has a "
        "slice (1 requested; annotation berth.dev/gpu-subdevices: only allows several slices of one GPU)."
    )
    # Nothing of it is left for other pods and for gangs that allow it, or request slices.
    assert not isinstance(decide(made, waiting("pod", {NVIDIA: 2}), POLICY), Failure)
    for pods in (members(8, {NVIDIA: 1}, annotations=SEVERAL), members(8, {REPLICAS: 1})):
        assert len(decided(made, *pods)) == 8


def test_where_kubelet_chooses_members_share_no_node() -> None:
    cards_of = {name: [sliced(0, 4), sliced(1, 4)] for name in ("a", "b")}
    made = mixture(cards_of, choices={"a": "kubelet_chooses"})
    assert sorted(each.node for each in decided(made, *members(3, {NVIDIA: 1}))) == ["a", "b", "b"]
    outcome = decide_gang(made, gang(*members(4, {NVIDIA: 1})), POLICY)
    assert isinstance(outcome, Failure)
    assert "1 node(s) let kubelet choose the slices, maybe of one GPU (1 requested; " in outcome.message
    assert len(decided(made, *members(16, {NVIDIA: 1}, annotations=SEVERAL))) == 16


@pytest.mark.parametrize(
    ("plugin_requests", "key", "fits"),
    [
        pytest.param(((NVIDIA, 1),), "ns/g", False, id="a member has a slice"),
        pytest.param(((REPLICAS, 1),), "ns/g", True, id="a member requested a slice"),
        pytest.param(((NVIDIA, 1),), "ns/other", True, id="a member of another gang"),
    ],
)
def test_members_with_a_node_count(plugin_requests: tuple[tuple[str, int], ...], key: str, *, fits: bool) -> None:
    made = sliced_node(4)
    of = Membership(group=key)
    made.charge(charge("first", replica(0, 0), gang=of, plugin_requests=plugin_requests))
    held = ("uid-first",) if key == "ns/g" else ()
    waiting_gang = gang(*members(1, {NVIDIA: 1}), minimum=2, placed=1, held=held, nodes=("node",))
    outcome = decide_gang(made, waiting_gang, POLICY)
    assert isinstance(outcome, Failure) is not fits
    assert not isinstance(decide(made, waiting("pod", {NVIDIA: 1}), POLICY), Failure)


def test_members_of_several_sizes_share_no_card() -> None:
    made = sliced_node(4, 4, 4)
    pods = [*members(1, {NVIDIA: 2}), *members(1, {NVIDIA: 1}, first=1)]
    assert sorted(part.minor for each in decided(made, *pods) for part in each.grants) == [0, 1, 2]
    assert isinstance(decide_gang(made, gang(*pods, *members(1, {NVIDIA: 1}, first=2)), POLICY), Failure)


def test_a_gang_preempts_slices_of_different_cards() -> None:
    made = sliced_node(4, 4)
    for minor in (0, 1):
        for number in range(4):
            made.charge(charge(f"{minor}-{number}", replica(minor, number), priority=1))
    preemption = preempt_gang(made, gang(*members(2, {NVIDIA: 1}, priority=9)), POLICY, Budgets())
    assert preemption is not None
    assert {part.minor for each in preemption.victims for part in each.grants} == {0, 1}
    assert sorted(each.grants[0].minor for each in preemption.nominees) == [0, 1]
    assert preempt_gang(made, gang(*members(3, {NVIDIA: 1}, priority=9)), POLICY, Budgets()) is None


# --- laws -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Nodes with their cards, which of them have MIG strategy single, and who chooses the slices of the others."""

    nodes: Mapping[str, tuple[CardInfo, ...]]
    single: tuple[str, ...]
    choices: Mapping[str, str]

    def fleet(self) -> Fleet:
        return mixture(self.nodes, single=self.single, choices=self.choices)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    nodes, single, choices = {}, [], {}
    for number in range(draw(st.integers(1, 3))):
        choices[f"node-{number}"] = draw(st.sampled_from(["", "kubelet_chooses", "one_replica"]))
        name, is_single = f"node-{number}", draw(st.sampled_from([False, False, True]))
        models = draw(st.sampled_from([(A100,), (T4,), (A100, T4)]))
        infos = []
        for minor in range(draw(st.integers(1, 4))):
            where: Any = {"numa": draw(st.integers(-1, 1)), "pcie": draw(st.sampled_from(["", "s", "t"]))}
            plain = card(minor)
            info = draw(
                st.sampled_from(
                    [divided(minor, *["1g.10gb"] * draw(st.integers(1, 3)))]
                    if is_single
                    else [plain, plain, sliced(minor, 2), sliced(minor, 4), divided(minor, "1g.10gb", "1g.10gb")]
                )
            )
            infos.append(replace(info, model=draw(st.sampled_from(models)), **where))
        nodes[name] = tuple(infos)
        single += [name] if is_single else []
    return World(nodes=nodes, single=tuple(single), choices=choices)


MANY = 1000
"""More slices than any card has."""
Free = dict[str, Counter[tuple[str, str]]]
"""Node -> how many units of each model and kind are free."""


def free_units(world: World, held: Mapping[str, set[str]], resource: str, most: int) -> Free:
    """Return the free units by which a resource can be served, at most `most` slices of each card.

    `held` are the ids that pods hold of each node.
    """
    free: Free = {}
    for name, infos in world.nodes.items():
        counts: Counter[tuple[str, str]] = Counter()
        for info in infos:
            replicas = dict(info.amounts).get(REPLICAS, 0)
            instances = [each for each, _ in info.instances if each not in held[name]]
            if replicas and resource in (NVIDIA, REPLICAS):
                left = sum(f"{info.id}::{number}" not in held[name] for number in range(replicas))
                counts[info.model, f"1/{replicas}"] += min(left, most)
            elif info.instances and resource == (NVIDIA if name in world.single else MIG_1G):
                counts[info.model, MIG_1G] += len(instances)
            elif not replicas and not info.instances and resource == NVIDIA:
                counts[info.model, "whole"] += info.id not in held[name]
        free[name] = counts
    return free


def allowed(kind: str, rule: str, resource: str) -> bool:
    return resource != NVIDIA or rule in ("last", "equal") or (kind == "whole") is (rule == "never")


PODS = st.tuples(
    st.sampled_from([NVIDIA, NVIDIA, NVIDIA, REPLICAS, MIG_1G]),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from(["last", "last", "equal", "never", "only"]),
)
"""(resource, count, members of the gang, rule for subdevices)."""


@settings(max_examples=60, deadline=None)
@given(worlds(), st.lists(PODS, min_size=1, max_size=6), st.sampled_from(sorted(CARD_STRATEGIES)), st.booleans())
def test_kinds_and_models_are_never_mixed_unasked(
    world: World,
    pods: list[tuple[str, int, int, str]],
    strategy: str,
    by_profile: bool,
) -> None:
    made, held = world.fleet(), {name: set[str]() for name in world.nodes}
    for number, (resource, count, size, rule) in enumerate(pods):
        of_profile: Any = rule if by_profile and rule != "only" else "last"
        policy = Policy(card_strategy=strategy, subdevices=of_profile)
        annotations = {} if rule == of_profile else {names.GPU_SUBDEVICES: rule}
        request = asks({resource: count}, annotations=annotations)
        pods_ = [waiting(f"{number}-{each}", request, gang=GROUP) for each in range(size)]
        outcome: Any = decide(made, pods_[0], policy) if size == 1 else decide_gang(made, gang(*pods_), policy)
        apart = resource == NVIDIA and rule != "only"
        able: Counter[tuple[str, str]] = Counter()
        # One slice of each card, whichever member gets it.
        for name, counts in free_units(world, held, resource, 1 if apart else MANY).items():
            for unit_ in (unit_ for unit_ in counts if unit_[1].startswith("1/")):
                if world.choices[name] == "one_replica" and count > 1:
                    counts[unit_] = 0
                elif world.choices[name] == "kubelet_chooses" and apart:
                    counts[unit_] = min(counts[unit_], 1) if count == 1 else 0
            able.update({unit_: left // count for unit_, left in counts.items() if allowed(unit_[1], rule, resource)})
        if isinstance(outcome, Failure):
            assert all(capacity < size for capacity in able.values()), (able, outcome.message)
            assert outcome.message
            continue
        placements = [outcome] if isinstance(outcome, Placement) else outcome
        assert len(placements) == size
        [[unit_, granted]] = units(made, *placements).items()
        assert granted == count * size
        assert allowed(unit_[1], rule, resource)
        if resource == NVIDIA and rule == "last" and unit_[1] != "whole":
            assert all(capacity < size for (_, kind), capacity in able.items() if kind == "whole")
        of_slices = [(each.node, part.minor) for each in placements for part in each.grants if "::" in part.id]
        assert not apart or len(of_slices) == len(set(of_slices))
        by_kubelet = [name for name, _ in of_slices if world.choices[name] == "kubelet_chooses"]
        assert not apart or len(by_kubelet) == len(set(by_kubelet))
        for each in placements:
            assert each.pod.request == request
            ids = [grant_.id for grant_ in each.grants]
            assert len(set(ids)) == count
            assert held[each.node].isdisjoint(ids)
            held[each.node].update(ids)
            made.charge(each.charge)


ANNOTATIONS: Sequence[dict[str, str]] = (
    {},
    {},
    MIXED,
    {names.GPU_TOPOLOGY: "numa"},
    {names.GPU_TOPOLOGY: "pcie"},
    {names.GPU_TOPOLOGY: "nvlink"},
    {names.GPU_TOPOLOGY: "nvlink", names.GPU_TOPOLOGY_POLICY: "preferred"},
    {names.PARTITION_SPEC: "{}"},
    {names.PARTITION_SPEC: '{"allocatePolicy": "Restricted"}'},
    {names.MIN_GPU_MEMORY: "15Gi"},
    jointly("gpu", "rdma"),
    jointly("gpu", "rdma", same=False),
    {**MIXED, **jointly("gpu", "rdma")},
)
WANTED: Sequence[dict[str, int]] = (
    *({NVIDIA: count} for count in (1, 2, 3)),
    {GPU: 200},
    {SHARED: 2, RATIO: 60},
    {REPLICAS: 2},
    {MIG_1G: 2},
    {NVIDIA: 2, RDMA: 1},
    {GPU: 200, RDMA: 100},
    {REPLICAS: 2, RDMA: 1},
)


@settings(max_examples=60, deadline=None)
@given(
    worlds(),
    st.lists(st.tuples(st.sampled_from(WANTED), st.sampled_from(ANNOTATIONS)), min_size=1, max_size=8),
    st.sampled_from(sorted(CARD_STRATEGIES)),
    st.sampled_from(["last", "equal", "never"]),
    st.booleans(),
)
def test_what_passes_can_be_allocated_and_is_alike(
    world: World,
    pods: list[tuple[dict[str, int], dict[str, str]]],
    strategy: str,
    rule: Any,
    by_partition: bool,
) -> None:
    nics = tuple(other_card("rdma", minor, pcie=switch) for minor, switch in enumerate(("s", "t", "")))
    made = Fleet()
    for name, infos in world.nodes.items():
        linked = [
            replace(each, links=((each.minor + 1, "NVLink", 5),)) if each.minor % 2 == 0 else each for each in infos
        ]
        table = (
            (1, tuple(Partition(minors=(each.minor,)) for each in infos)),
            (2, (Partition(minors=(0, 1)), Partition(minors=(2, 3), score=2), Partition(minors=(1, 2)))),
        )
        of_node = replace(inventory(*linked, *nics), mig_single=name in world.single)
        if by_partition:
            of_node = replace(of_node, partitions=table, partitions_only=True)
        add(made, node_info(name), of_node)
    policy = Policy(card_strategy=strategy, subdevices=rule)
    for number, (amounts, annotations) in enumerate(pods):
        request = asks(amounts, annotations=annotations)
        outcome = decide(made, waiting(str(number), request), policy)
        if isinstance(outcome, Failure):
            assert outcome.reasons
            assert not feasible(made, request, policy.filters_of(request)).any()
            continue
        gpus = [each for each in outcome.grants if each.type == "gpu"]
        assert len(gpus) == sum(part.count for part in request.devices.parts if part.type == "gpu")
        kinds = units(made, replace(outcome, grants=tuple(gpus)))
        topology = request.devices.topology
        scoped = names.PARTITION_SPEC in annotations or (topology is not None and topology.required)
        if NVIDIA in amounts and (rule == "never" or scoped or by_partition):
            assert not any(each.is_subdevice for each in gpus)
        if not request.devices.mixed:
            assert len({model for model, _ in kinds}) == 1
            assert SHARED in amounts or len(kinds) == 1
        made.charge(outcome.charge)


# --- what a message names ---------------------------------------------------------------------------------------


A10 = "NVIDIA A10"
"""It comes before the A100 in the alphabet."""


def test_a_message_names_no_model_that_no_member_can_reach() -> None:
    """Two members with a full node each; the claim of one does not exist."""
    a10s = (card(0, model=A10), card(1, model=A10))
    made = mixture({name: cards(1) for name in "ab"} | {"t": a10s}, labels={"a": "a", "b": "b", "t": "t"})
    for name in "ab":
        made.charge(charge(f"full-{name}", grant(0, core=100, ratio=100), node=name))
    [first] = members(1, {NVIDIA: 1}, selector={"pool": "a"})
    [second] = members(1, {NVIDIA: 1}, selector={"pool": "b"}, first=1)
    without = replace(second, request=replace(second.request, mounts=mounts("missing")))

    outcome = decide_gang(made, gang(first, without), POLICY)

    assert isinstance(outcome, Failure)
    assert A10 not in outcome.message
    assert outcome.message.startswith("PodGroup ns/g: 0 of the 2 required members fit; next member m1: ")
    assert 'persistentvolumeclaim "missing" not found' in outcome.message


def test_a_message_names_the_models_of_the_nodes_that_members_select() -> None:
    a10s = (card(0, model=A10), card(1, model=A10))
    made = mixture({name: cards(1) for name in "abc"} | {"t": a10s}, labels={name: name for name in "abct"})
    made.put_node(node_info("c", cordoned=True, labels={"pool": "c"}))
    pods = [members(1, {NVIDIA: 1}, selector={"pool": name}, first=number)[0] for number, name in enumerate("abc")]

    outcome = decide_gang(made, gang(*pods), POLICY)

    assert isinstance(outcome, Failure)
    assert outcome.message.startswith(f"PodGroup ns/g: 2 of the 3 required members fit on {A100}; next member m2: ")


def test_a_fleet_of_one_model_is_decided_as_if_alikeness_did_not_exist() -> None:
    made = fleet({f"node-{number}": cards(4) for number in range(3)})
    assert not made.cards["gpu"].mixed.any()
    mixed = fleet({**{f"node-{number}": cards(4) for number in range(3)}, "other": (t4(0), card(1))})
    mixed.charge(charge("busy", *(grant(minor, core=100, ratio=100) for minor in range(2)), node="other"))
    for number, count in enumerate((2, 1, 4, 3, 1)):
        pods = [waiting(f"{number}", {NVIDIA: count}) for _ in range(2)]
        assert place(made, pods[0]).grants == place(mixed, pods[1]).grants


def two_vendors(kinds: Kinds = BUILT_IN) -> Fleet:
    """Return a fleet of a node with two cards of AMD, and one with a card of NVIDIA."""
    made = Fleet(kinds=kinds)
    mi210 = (card(0, model=MI210), card(1, model=MI210))
    add(made, node_info("amd"), inventory(*mi210, vendor="amd"))
    add(made, node_info("nvidia"), inventory(card(0)))
    return made


@pytest.mark.parametrize("amounts", [{GPU: 100}, {NVIDIA: 1}])
def test_a_gang_considers_only_models_of_vendors_that_give_it_cards(amounts: Mapping[str, int]) -> None:
    made = two_vendors()
    members = [waiting(f"m{number}", asks(amounts)) for number in range(2)]
    outcome = decide_gang(made, gang(*members), POLICY)
    assert isinstance(outcome, Failure)
    assert MI210 not in outcome.message
    assert "1 of the 2 required members fit" in outcome.message


@pytest.mark.parametrize("vendors", [{"amd"}, {"nvidia", "amd"}, {"*"}])
def test_a_setting_lets_shares_use_cards_of_other_vendors(vendors: set[str]) -> None:
    made = two_vendors(Kinds(gpu_vendors=frozenset(vendors)))
    placement = decide(made, waiting("pod", asks({GPU: 200})), POLICY)
    assert isinstance(placement, Placement)
    assert placement.node == "amd"
    share = decide(made, waiting("share", asks({GPU: 50})), POLICY)
    assert isinstance(share, Placement)
    assert (share.node == "amd") or "nvidia" in vendors or "*" in vendors
