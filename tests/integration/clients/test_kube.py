"""The client's calls on the real API server."""

import pytest

from berth_client.errors import ApiError, Unreachable
from berth_client.objects import Object
from berth_operator.clients import kube
from devcluster import Arena
from tests.stand_ins.proxy import FaultProxy


def binding(pod: str, uid: str) -> Object:
    metadata = {"name": pod, "uid": uid, "annotations": {"berth.dev/epoch": "1"}}
    return {"metadata": metadata, "target": {"kind": "Node", "name": "nowhere"}}


async def test_a_bind_gives_node_and_annotations_and_only_once(admin: kube.KubeClient, arena: Arena) -> None:
    uid = arena.create([arena.pod("p")])[0]["metadata"]["uid"]
    await admin.bind(arena.namespace, "p", binding("p", uid))
    pod = await admin.get_pod(arena.namespace, "p")
    assert pod["spec"]["nodeName"] == "nowhere"
    assert pod["metadata"]["annotations"]["berth.dev/epoch"] == "1"
    with pytest.raises(ApiError, match="409 Conflict"):
        await admin.bind(arena.namespace, "p", binding("p", uid))


async def test_conditions_merge_by_type(admin: kube.KubeClient, arena: Arena) -> None:
    arena.create([arena.pod("p")])
    for kind in ("PodScheduled", "berth.dev/Other"):
        patch = {"status": {"conditions": [{"type": kind, "status": "False", "reason": "R"}]}}
        await admin.patch_pod_status(arena.namespace, "p", patch)
    pod = await admin.get_pod(arena.namespace, "p")
    assert {each["type"] for each in pod["status"]["conditions"]} == {"PodScheduled", "berth.dev/Other"}


async def test_an_event_is_made(admin: kube.KubeClient, arena: Arena) -> None:
    [pod] = arena.create([arena.pod("p")])
    event = {
        "metadata": {"name": "p.1"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Normal",
        "reason": "Scheduled",
        "action": "Binding",
        "reportingController": "berth-scheduler",
        "reportingInstance": "test",
        "regarding": {
            "kind": "Pod",
            "namespace": arena.namespace,
            "name": "p",
            "uid": pod["metadata"]["uid"],
        },
        "note": "bound",
    }
    await admin.create_event(arena.namespace, event)
    path = f"/apis/events.k8s.io/v1/namespaces/{arena.namespace}/events/p.1"
    assert (await admin.request("GET", path))["reason"] == "Scheduled"


async def test_apply_never_takes_a_field_unless_forced(admin: kube.KubeClient, arena: Arena) -> None:
    path = f"/api/v1/namespaces/{arena.namespace}/configmaps/c"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "1"}}
    await admin.apply(path, body, "one")
    theirs = {**body, "data": {"k": "2"}}
    with pytest.raises(ApiError, match="409 Conflict"):
        await admin.apply(path, theirs, "two")
    await admin.apply(path, theirs, "two", force=True)
    assert (await admin.request("GET", path))["data"] == {"k": "2"}
    assert (await admin.merge_patch(path, {"data": {"k": "3"}}))["data"] == {"k": "3"}


async def test_a_lost_answer_is_unreachable_and_the_bind_stands(
    proxied: kube.KubeClient, proxy: FaultProxy, arena: Arena
) -> None:
    uid = arena.create([arena.pod("p")])[0]["metadata"]["uid"]
    lost = proxy.lose("POST", r"/binding$", count=1)
    with pytest.raises(Unreachable):
        await proxied.bind(arena.namespace, "p", binding("p", uid))
    assert (await proxied.get_pod(arena.namespace, "p"))["spec"]["nodeName"] == "nowhere"
    assert len(lost.caught) == len(proxy.sent("POST", r"/binding$")) == 1  # the client does not send it again
