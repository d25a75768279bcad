"""The gangs that controllers define by what they write on their pods."""

import pytest

from berth_api import names
from berth_operator.core.values.request import Membership
from berth_operator.state.objects import groups, pods
from tests.builders import Raw, pod

LWS = "leaderworkerset.sigs.k8s.io/"
KUEUE = "kueue.x-k8s.io/"


def lws(worker: int, size: str = "4", **annotations: str) -> Raw:
    """Return the metadata that LeaderWorkerSet's controller and webhook write on a pod of `vllm`'s second group."""
    labels = {"name": "vllm", "group-index": "1", "worker-index": str(worker), "group-key": "6a0c"}
    written = {"size": size, **annotations, **({"leader-name": "vllm-1"} if worker else {})}
    return {
        "labels": {f"{LWS}{name}": value for name, value in labels.items()},
        "annotations": {f"{LWS}{name.replace('_', '-')}": value for name, value in written.items()},
    }


def kueue(count: str = "3", **annotations: str) -> Raw:
    written = {"total-count": count, **annotations}
    return {
        "labels": {f"{KUEUE}pod-group-name": "sweep", f"{KUEUE}managed": "true"},
        "annotations": {f"{KUEUE}pod-group-{name.replace('_', '-')}": value for name, value in written.items()},
    }


def merged(*parts: Raw) -> Raw:
    return {kind: {name: text for part in parts for name, text in part[kind].items()} for kind in parts[0]}


def gang(kind: str, name: str, minimum: int) -> Membership:
    return Membership(group=f"ns/{name}", minimum=minimum, controller=kind)


GROUP = "LeaderWorkerSet group"
EXPLICIT: Raw = {"labels": {}, "annotations": {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "2"}}
POD_GROUP: Raw = {"labels": {names.POD_GROUP_LABEL: "g"}, "annotations": {}}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param(lws(0), gang(GROUP, "vllm-1", 4), id="leader"),
        pytest.param(lws(3), gang(GROUP, "vllm-1", 4), id="worker"),
        pytest.param(lws(0, size="1"), None, id="a group of one pod"),
        pytest.param(lws(0, exclusive_topology="rack"), None, id="a leader without which there are no workers"),
        pytest.param(lws(1, exclusive_topology="rack"), gang(GROUP, "vllm-1", 3), id="workers of such a leader"),
        pytest.param(lws(1, size="many"), None, id="no number"),
        pytest.param({"labels": {f"{LWS}name": "vllm"}, "annotations": {f"{LWS}size": "4"}}, None, id="no index"),
        pytest.param(kueue(), gang("Kueue pod group", "sweep", 3), id="a pod group of Kueue"),
        pytest.param(kueue(fast_admission="true", serving="true"), None, id="Kueue's StatefulSet"),
        pytest.param(merged(kueue("4"), lws(2)), gang(GROUP, "vllm-1", 4), id="Kueue's LeaderWorkerSet"),
        pytest.param(merged(lws(0), EXPLICIT), Membership(group="ns/g", minimum=2), id="annotations win"),
        pytest.param(merged(lws(0), POD_GROUP), Membership(group="ns/g"), id="a PodGroup wins"),
        pytest.param({"labels": {"app": "web"}, "annotations": {}}, None, id="any other pod"),
    ],
)
def test_the_gang_of_a_controllers_pod(metadata: Raw, expected: Membership | None) -> None:
    assert groups.of_pod(pod(**metadata)) == expected
    assert pods.pending(pod(**metadata)).gang == expected
    assert pods.charge(pod(**metadata, on="node")).gang == expected
    ended = pod(**metadata, metadata={"resourceVersion": "1"}, status={"phase": "Succeeded"})
    assert groups.of_placed(groups.transform_ended(ended)) == expected
