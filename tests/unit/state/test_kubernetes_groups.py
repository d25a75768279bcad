"""Kubernetes' PodGroups, and the pods that name them."""

import pytest

from berth_api import names
from berth_api.words import KUBERNETES_GROUPS
from berth_operator.core.values.request import SCHEDULING_GROUP, Membership
from berth_operator.state.objects import groups, pods
from tests.objects.builders import Raw, charge, kubernetes_group, pod
from tests.objects.builders import waiting as waits
from tests.unit.core.queue.test_gang_tracker import gang_tracker

IN_GROUP: Raw = {"schedulingGroup": {"podGroupName": "g"}}
MEMBER = Membership(group="ns/g", word=SCHEDULING_GROUP)
SAME = "all pods in a single pod group should have the same"


def test_a_pod_names_its_group() -> None:
    waiting = pods.pending(pod(**IN_GROUP))
    assert (waiting.gang, waiting.error, waiting.request.unsupported) == (MEMBER, "", ())
    assert waiting.gang is not None
    assert waiting.gang.is_kubernetes
    assert pods.charge(pod(**IN_GROUP, on="node")).gang == MEMBER
    phase, version = {"phase": "Succeeded"}, {"resourceVersion": "1"}
    ended = groups.transform_ended(pod(**IN_GROUP, status=phase, metadata=version))
    assert groups.of_placed(ended) == MEMBER


@pytest.mark.parametrize(
    ("fields", "other"),
    [
        pytest.param({"labels": {names.POD_GROUP_LABEL: "h"}}, f"label {names.POD_GROUP_LABEL}", id="label"),
        pytest.param({"annotations": {names.POD_GROUP: "h"}}, f"annotation {names.POD_GROUP}", id="annotation"),
    ],
)
def test_a_pod_names_one_group(fields: Raw, other: str) -> None:
    error = f"spec.schedulingGroup and {other} both name a group; allowed is one"
    assert pods.pending(pod(**IN_GROUP, **fields)).error == error


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(kubernetes_group(), (1, 0, "", False), id="basic"),
        pytest.param(kubernetes_group(minimum=3, priority=7), (3, 7, "", False), id="gang"),
        pytest.param(kubernetes_group(topology_key="rack"), (1, 0, "rack", False), id="topology"),
        pytest.param(kubernetes_group(disruption="all"), (1, 0, "", True), id="disrupted as a whole"),
        pytest.param({**kubernetes_group(), "spec": {"schedulingPolicy": {}}}, (1, 0, "", False), id="bare"),
    ],
)
def test_the_fields_of_a_group(raw: Raw, expected: tuple[object, ...]) -> None:
    group = groups.group(raw, KUBERNETES_GROUPS)
    assert (group.minimum, group.priority, group.topology_key, group.leaves_whole) == expected
    assert (group.problem, group.notes, group.formed) == ("", "", False)


def test_a_group_that_was_scheduled_once_has_formed() -> None:
    conditions = [{"type": "DisruptionTarget", "status": "True"}]
    assert not groups.group(kubernetes_group(conditions=conditions), KUBERNETES_GROUPS).formed
    conditions.append({"type": "PodGroupInitiallyScheduled", "status": "True"})
    assert groups.group(kubernetes_group(conditions=conditions), KUBERNETES_GROUPS).formed


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        pytest.param(
            {"parentCompositePodGroupName": "p"},
            "PodGroup ns/g: spec.parentCompositePodGroupName makes it a part of a CompositePodGroup, which Berth does "
            "not support",
            id="composite",
        ),
        pytest.param(
            {"resourceClaims": [{"name": "c"}]},
            "PodGroup ns/g: spec.resourceClaims reserves ResourceClaims for the group, which Berth does not support",
            id="claims",
        ),
    ],
)
def test_what_is_not_supported(spec: Raw, problem: str) -> None:
    assert groups.group(kubernetes_group(spec=spec), KUBERNETES_GROUPS).problem == problem


# --- what the members must have in common ----------------------------------------------------------------------------


def test_a_group_that_does_not_exist_is_waited_for_in_kube_schedulers_words() -> None:
    gangs = gang_tracker(group=None)
    gangs.wait(waits("a"), MEMBER)
    assert gangs.waiting(MEMBER)[1] == 'waiting for pods\'s pod group "g" to appear in scheduling queue'
    gangs.put_group(groups.group(kubernetes_group(), KUBERNETES_GROUPS))
    assert gangs.waiting(MEMBER)[1] == ""


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        pytest.param({}, "", id="alike"),
        pytest.param({"priority": 6}, f"{SAME} priority as the pod group's priority, got 6 and 5", id="priority"),
        pytest.param({"scheduler": "x"}, f'{SAME} .spec.schedulerName set, got: "x" and "s"', id="scheduler"),
        pytest.param(
            {"preempts": False}, f"{SAME} preemption policy, got Never and PreemptLowerPriority", id="preemption policy"
        ),
    ],
)
def test_members_contradict_each_other(second: Raw, problem: str) -> None:
    gangs = gang_tracker(group=None)
    gangs.put_group(groups.group(kubernetes_group(minimum=2, priority=5), KUBERNETES_GROUPS))
    for name, fields in (("a", {}), ("b", second)):
        gangs.wait(waits(name, **{"scheduler": "s", "priority": 5, **fields}), MEMBER)
    assert gangs.waiting(MEMBER)[1] == problem
    assert (gangs.ready(MEMBER, 0.0) is None) == bool(problem)


def test_a_placed_member_contradicts_the_group() -> None:
    gangs = gang_tracker(group=None)
    gangs.put_group(groups.group(kubernetes_group(priority=5), KUBERNETES_GROUPS))
    gangs.hold(charge("a", priority=4, scheduler="s"), MEMBER, bound=True)
    gangs.wait(waits("b", priority=5, scheduler="s"), MEMBER)
    assert gangs.waiting(MEMBER)[1] == f"{SAME} priority as the pod group's priority, got 4 and 5"


# --- preemption -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disruption", "leaving"),
    [pytest.param("all", ["uid-a", "uid-b"], id="all"), pytest.param("single", ["uid-a"], id="single")],
)
def test_who_leaves_with_a_victim(disruption: str, leaving: list[str]) -> None:
    gangs = gang_tracker(group=None)
    gangs.put_group(groups.group(kubernetes_group(minimum=2, disruption=disruption), KUBERNETES_GROUPS))
    placed = {name: charge(name, gang=MEMBER) for name in "abcd"}
    gangs.hold(placed["a"], MEMBER, bound=True)
    gangs.hold(placed["b"], MEMBER, bound=True)
    gangs.hold(placed["c"], MEMBER, bound=False)
    assert [each.uid for each in gangs.leaving_with([placed["a"]])] == leaving
    assert [each.uid for each in gangs.leaving_with([placed["d"]])] == ["uid-d"]
