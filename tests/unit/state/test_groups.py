"""The gang that a pod names, and the fields of a PodGroup."""

import pytest

from berth_api import names
from berth_api.words import TABLE
from berth_operator.core.decision import messages
from berth_operator.core.queue.gang_tracker import SETTLE, GangTracker
from berth_operator.core.values.request import Membership
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import groups, pods
from tests.objects.builders import Raw, pod, pod_group

LABELS, ANNOTATIONS = "labels", "annotations"


GANG = "gang.scheduling.koordinator.sh/"


def by(name: str | None, minimum: str | None) -> dict[str, dict[str, str]]:
    values = {names.POD_GROUP: name, names.POD_GROUP_MIN_MEMBER: minimum}
    return {ANNOTATIONS: {key: value for key, value in values.items() if value is not None}}


GANG_OF_A_POD = {
    "none": ({}, None),
    "by label": ({LABELS: {names.POD_GROUP_LABEL: "g"}}, Membership(group="ns/g")),
    "by the older label": ({LABELS: {names.OLD_POD_GROUP_LABEL: "g"}}, Membership(group="ns/g")),
    "by both alike": ({LABELS: {names.POD_GROUP_LABEL: "g", names.OLD_POD_GROUP_LABEL: "g"}}, Membership(group="ns/g")),
    "an empty label": ({LABELS: {names.POD_GROUP_LABEL: ""}}, None),
    "by annotations": (by("g", "3"), Membership(group="ns/g", minimum=3)),
    "by the annotations of another system": (
        {ANNOTATIONS: {f"{GANG}name": "g", f"{GANG}min-available": "3"}},
        Membership(group="ns/g", minimum=3),
    ),
    "by the object of another system": ({ANNOTATIONS: {"scheduling.k8s.io/group-name": "g"}}, Membership(group="ns/g")),
    "of another scheduler": (
        {**by("g", "3"), "schedulerName": "x"},
        Membership(group="ns/g", minimum=3, scheduler="x"),
    ),
}


@pytest.mark.parametrize(("fields", "expected"), GANG_OF_A_POD.values(), ids=GANG_OF_A_POD)
def test_the_gang_of_a_pod(fields: Raw, expected: Membership | None) -> None:
    assert groups.of_pod(pod(**fields)) == expected
    assert pods.pending(pod(**fields)).gang == expected
    assert pods.charge(pod(**fields, on="node")).gang == expected
    assert pods.pending(pod(**fields)).error == ""
    assert not pods.pending(pod(**fields)).request.unsupported


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {LABELS: {names.POD_GROUP_LABEL: "g", names.OLD_POD_GROUP_LABEL: "h"}},
            "labels scheduling.x-k8s.io/pod-group: g, pod-group.scheduling.sigs.k8s.io: h name different groups; "
            "allowed is one",
            id="two labels",
        ),
        pytest.param(
            {**by("g", "2"), LABELS: {names.POD_GROUP_LABEL: "g"}},
            "label scheduling.x-k8s.io/pod-group and annotation berth.dev/pod-group both name a group; allowed is one",
            id="label and annotation",
        ),
        pytest.param(
            {ANNOTATIONS: {f"{GANG}name": "g"}},
            f"annotation {GANG}name: annotation {GANG}min-available must be set, too",
            id="no minimum in the words of another system",
        ),
        pytest.param(
            {ANNOTATIONS: {**by("g", "2")[ANNOTATIONS], f"{GANG}name": "h", f"{GANG}min-available": "2"}},
            f"annotation {GANG}name and annotation berth.dev/pod-group: g differ; write one of the two",
            id="two groups in the words of two systems",
        ),
        pytest.param(
            {ANNOTATIONS: {"scheduling.k8s.io/group-name": "g"}, LABELS: {names.POD_GROUP_LABEL: "h"}},
            "annotation scheduling.k8s.io/group-name and label scheduling.x-k8s.io/pod-group: h differ; write one of "
            "the two",
            id="two objects",
        ),
        pytest.param(by("", "2"), 'annotation berth.dev/pod-group: ""; allowed is the name of the group', id="no name"),
        pytest.param(
            by(None, "2"), 'annotation berth.dev/pod-group: ""; allowed is the name of the group', id="minimum alone"
        ),
        pytest.param(
            by("g", None),
            "annotation berth.dev/pod-group: annotation berth.dev/pod-group-min-member must be set, too",
            id="no minimum",
        ),
        *(
            pytest.param(
                by("g", text),
                f'annotation berth.dev/pod-group-min-member: "{text}"; allowed are whole numbers from 1 to 2147483647',
                id=f"minimum {text!r}",
            )
            for text in ("", "0", "-1", "1.5", "two", " 2", "²", "2147483648", "1" * 5000, "0" * 10 + "1" * 5000)
        ),
    ],
)
def test_an_ambiguous_gang_is_reported(fields: Raw, message: str) -> None:
    pending = pods.pending(pod(**fields))
    assert pending.error == messages.cut(message)
    assert pending.gang is None
    assert pods.charge(pod(**fields, on="node")).gang is None


@pytest.mark.parametrize("label", [names.POD_GROUP_LABEL, names.OLD_POD_GROUP_LABEL])
def test_a_missing_pod_group_is_reported_with_the_label_that_the_pod_has(label: str) -> None:
    waiting = pods.pending(pod(labels={label: "g"}))
    tracker = GangTracker(timeout=60)
    assert waiting.gang is not None
    tracker.wait(waiting, waiting.gang)
    list(tracker.unready(0))
    [(problem, _)] = tracker.unready(SETTLE)
    assert problem == (
        "PodGroup ns/g does not exist: create it in the API group scheduling.x-k8s.io, or remove the "
        f"label {label} from its pods"
    )


@pytest.mark.parametrize("written", ["2", 1.5, -1, [2]])
def test_a_minimum_of_another_form_is_a_problem_of_the_group(written: object) -> None:
    raw = pod_group()
    raw["spec"] |= {"minMember": written, "scheduleTimeoutSeconds": "soon"}
    parsed = groups.group(raw)
    assert parsed.problem == f"PodGroup ns/g: spec.minMember: {written}; allowed are whole numbers from 1"
    assert (parsed.minimum, parsed.timeout) == (0, 0.0)


@pytest.mark.parametrize("minimum", [None, 0])
def test_a_pod_group_that_needs_no_member_is_ignored(minimum: int | None) -> None:
    parsed = groups.group(pod_group(minimum=minimum))
    assert parsed.problem == "PodGroup ns/g: spec.minMember: 0; allowed are whole numbers from 1"


@pytest.mark.parametrize(
    ("timeout", "seconds"), [pytest.param(None, 0, id="none"), pytest.param(0, 0, id="0"), pytest.param(7, 7, id="7")]
)
def test_the_timeout_of_a_pod_group(timeout: int | None, seconds: float) -> None:
    parsed = groups.group(pod_group(timeout=timeout))
    assert parsed.timeout == seconds
    assert (parsed.name, parsed.uid, parsed.minimum, parsed.problem) == ("ns/g", "uid-group-g", 2, "")


@pytest.mark.parametrize(
    ("phase", "formed"),
    [
        *((each, False) for each in ("", "Pending", "PreScheduling", "Scheduling", "Unknown")),
        *((each, True) for each in ("Scheduled", "Running", "Finished", "Failed")),
    ],
)
def test_a_phase_shows_whether_a_group_has_formed(phase: str, *, formed: bool) -> None:
    assert groups.group(pod_group(status={"phase": phase})).formed == formed


VOLCANO = next(kind for kind in TABLE.pod_groups if kind.group == "scheduling.volcano.sh")


def test_the_minimum_of_another_systems_group_counts_and_the_rest_is_answered() -> None:
    raw = pod_group(minimum=3, status={"phase": "Running"})
    raw["spec"] |= {"minTaskMember": {"ps": 1, "worker": 2}, "minResources": {"cpu": "3"}, "unknown": 1}
    parsed = groups.group(raw, VOLCANO)
    assert (parsed.name, parsed.minimum, parsed.problem) == ("ns/g", 3, "")
    assert parsed.notes == (
        "PodGroup ns/g of scheduling.volcano.sh: spec.minTaskMember has no effect; Berth counts all members of a "
        "group together: its parts have no minimum of their own; spec.minResources has no effect; a waiting group "
        "holds nothing, and Berth places members by their own requests; spec.unknown has no effect"
    )
    assert not parsed.formed  # the phase is that of its own scheduler
    assert groups.group(pod_group(), VOLCANO).notes == groups.group(raw).notes == ""


@pytest.mark.parametrize("phase", ["", "Pending", "Inqueue", "Running"])
def test_the_phase_that_volcanos_scheduler_writes_does_not_matter(phase: str) -> None:
    """Volcano's controller creates no pods before the phase is Inqueue. Once there are pods, the gang is decided."""
    group = groups.group(pod_group(status={"phase": phase} if phase else {}), VOLCANO)
    assert (group.minimum, group.formed, group.problem) == (2, False, "")


@pytest.mark.parametrize("name", ["scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", "pod-group-name"])
def test_a_missing_pod_group_is_reported_with_the_annotation_that_the_pod_has(name: str) -> None:
    membership = pods.pending(pod(annotations={name: "g"})).gang
    assert membership == Membership(group="ns/g")
    assert membership.word == f"annotation {name}"


def test_of_a_pod_that_has_ended_little_is_kept() -> None:
    gang = {f"{GANG}name": "h", f"{GANG}min-available": "2"}
    raw = pod(annotations={**gang, "big": "x"}, status={"phase": "Failed"}, metadata={"resourceVersion": "7"})
    assert groups.transform_ended(raw)["metadata"]["annotations"] == gang
    raw = pod(labels={names.POD_GROUP_LABEL: "g", "app": "x"}, annotations={"big": "x"}, status={"phase": "Failed"})
    raw["metadata"]["resourceVersion"] = "7"
    kept = groups.transform_ended(raw)
    assert kept["metadata"]["labels"] == {names.POD_GROUP_LABEL: "g"}
    assert kept["metadata"]["annotations"] == {}
    assert kept["metadata"]["uid"] == "uid-pod"
    assert set(kept) == {"metadata", "spec", "status"}
    assert groups.of_placed(kept) == Membership(group="ns/g")


def test_a_gang_whose_members_change_one_by_one_is_put_into_the_queue_once() -> None:
    cluster = Cluster(grace=20.0)
    members = [pod(f"m{number}", **by("g", "2")) for number in range(10)]
    for member in members:
        cluster.put_pending(member)
    unit = cluster.queue.pop(0.0)
    assert unit is not None
    assert unit.size == 10
    # Each unit that is put has all members, so n units of n members would cost n * n.
    assert sum(cluster.queue.incoming.values()) == 10
    for member in members:
        cluster.remove_pending(member["metadata"]["uid"])
    assert cluster.queue.pop(0.0) is None
    assert sum(cluster.queue.incoming.values()) == 10
