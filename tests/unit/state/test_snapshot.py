"""The data that a snapshot keeps of objects: enough to decide the same, and no private data."""

import asyncio
import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from berth_api import names
from berth_api.admission import injection
from berth_api.words import KUBERNETES_GROUPS, TABLE
from berth_client.errors import ApiError
from berth_operator.core.advice import summary
from berth_operator.core.values import releases
from berth_operator.state.objects import affinity, budgets, devices, groups, kubelet, nodes, pods, volumes
from berth_operator.state.watches import snapshot, sources
from berth_operator.state.watches.snapshot import Snapshot, kept
from tests import manifests_of_others
from tests.differential import generate, on_volumes
from tests.differential.draft import Draft
from tests.objects.builders import (
    condition,
    container,
    device,
    entry,
    gpu_pod,
    half,
    held,
    kubernetes_group,
    lease,
    node,
    owner,
    pod,
    pod_group,
)

Raw = dict[str, Any]
SCENARIOS = 200
HALF = {"kubernetes.io/gpu": "50"}
VISIBLE = f"main{names.VISIBLE_SUFFIX}"
LIMIT = {
    "name": "CUDA_DEVICE_MEMORY_LIMIT_0",
    "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['main{names.LIMIT_PREFIX.format('memory')}0']"}},
}


DEADLINE: Raw = {"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5}
STARTED = {"startTime": "2026-01-01T00:00:00Z"}
UNSCHEDULABLE = condition("PodScheduled", "False", reason="Unschedulable", message="why")


def pending(raw: Raw) -> Any:
    return replace(pods.pending(raw), annotation_bytes=0)


READERS: dict[str, tuple[str, Callable[[Raw], Any]]] = {
    "/api/v1/persistentvolumeclaims": ("claims", volumes.claim),
    "/api/v1/persistentvolumes": ("volumes", volumes.volume),
    "/apis/storage.k8s.io/v1/storageclasses": ("storage classes", volumes.storage_class),
    "/apis/storage.k8s.io/v1/csistoragecapacities": ("storage capacities", volumes.capacity),
    "/apis/storage.k8s.io/v1/csidrivers": (
        "storage drivers",
        lambda raw: (volumes.tracks_capacity(raw), volumes.is_required_on_nodes(raw)),
    ),
    "/apis/storage.k8s.io/v1/csinodes": ("volume limits", volumes.drivers),
    "/apis/storage.k8s.io/v1/volumeattachments": ("volume attachments", volumes.attachment),
    "/apis/policy/v1/poddisruptionbudgets": ("budgets", budgets.budget),
}


def listed(obj: Raw, namespace: str = "ns") -> Raw:
    """Return an object with what the API server adds."""
    added = {"namespace": namespace, "uid": f"uid-{obj['metadata']['name']}", "resourceVersion": "7"}
    return {**copy.deepcopy(obj), "metadata": {**added, **copy.deepcopy(obj["metadata"])}}


def same(of: str, obj: Raw, *readers: Callable[[Raw], Any]) -> None:
    """Check that an object is read the same after most of it was dropped."""
    for read in readers:
        assert read(kept(of, copy.deepcopy(obj))) == read(copy.deepcopy(obj)), obj


def check(draft: Draft) -> int:
    for raw in draft.nodes:
        same("nodes", nodes.transform(listed(raw)), nodes.info)
    same("pods", pods.transform(listed(draft.probe)), pending)
    for raw in draft.pods:
        same("pods", pods.transform(listed(raw)), pending, pods.charge)
    for path, obj in draft.objects:
        # Namespaced paths name their namespace.
        of, read = READERS[path.replace(f"/namespaces/{draft.namespace}", "")]
        same(of, listed(obj), read)
    return len(draft.objects)


def test_what_is_kept_decides_the_same() -> None:
    objects = sum(check(generate.scenario(3, number, "ns", releases.NEWEST)) for number in range(SCENARIOS))
    assert objects > SCENARIOS // 10


def test_what_scenarios_have_in_common_is_kept_too() -> None:
    for path, obj in on_volumes.OBJECTS:
        of, read = READERS[path]
        same(of, listed(obj), read)


@pytest.mark.parametrize(
    ("of", "obj", "read"),
    [
        pytest.param("devices", device("n", entry(0), labels={names.VENDOR_LABEL: "amd"}), devices.record, id="Device"),
        pytest.param("gpu pods", gpu_pod("p", "GPU-0"), kubelet.gpu_pod, id="GpuPod"),
        pytest.param("nodes", node(boot="b"), nodes.boot_id, id="boot"),
        pytest.param(
            "devices",
            device("n", entry(0), status={"bootID": "b", "held": [held("p", "GPU-0")], "withheld": [0], "foreign": []}),
            lambda raw: devices.record(raw).agent_report,
            id="the report of the agent",
        ),
        pytest.param(
            "device classes",
            {"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/gpu", "selectors": []}},
            lambda raw: raw["spec"]["extendedResourceName"],
            id="DeviceClass",
        ),
        pytest.param("pod groups", pod_group(timeout=5, status={"phase": "Running"}), groups.group, id="PodGroup"),
        *(
            pytest.param(
                sources.name_of(kind),
                {**pod_group(), "spec": {"minMember": 3, **dict.fromkeys(kind.lost, "x")}},
                lambda raw, kind=kind: groups.group(raw, kind),
                id=f"PodGroup of {kind.group}",
            )
            for kind in TABLE.pod_groups
            if not kind.has_status
        ),
        pytest.param(
            sources.name_of(KUBERNETES_GROUPS),
            kubernetes_group(
                minimum=3,
                priority=5,
                topology_key="rack",
                disruption="all",
                conditions=[{"type": "PodGroupInitiallyScheduled", "status": "True", "reason": "Scheduled"}],
            ),
            lambda raw: groups.group(raw, KUBERNETES_GROUPS),
            id="PodGroup of Kubernetes",
        ),
        pytest.param(
            "pods",
            pod(
                requests={"nvidia.com/gpu": "1"},
                annotations={names.MODEL_EXACT: "x", names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "2"},
                status={"nominatedNodeName": "n"},
            ),
            pending,
            id="annotations of a pod that waits",
        ),
        pytest.param("pods", pod(requests=HALF), pending, id="the variable of a share"),
        pytest.param("pods", pod(requests=HALF, bare=True), pending, id="a share without the variable"),
        pytest.param(
            "pods", pod(containers=[container(), container("b", HALF)], bare=True), pending, id="one of two containers"
        ),
        pytest.param("pods", pod(initContainers=[container("i", HALF)]), pending, id="an init container's variable"),
        pytest.param("pods", pod(containers=[container(requests=HALF, env=[LIMIT])]), pending, id="limits"),
        pytest.param("pods", pod(requests=HALF, on="n"), pods.charge, id="a share that sees no card"),
        pytest.param(
            "pods",
            pod(requests=HALF, on="n", annotations={VISIBLE: "GPU-0"}),
            pods.charge,
            id="a share that sees cards",
        ),
        pytest.param(
            "pods",
            pod(containers=[container(requests=HALF, securityContext={"privileged": True})], on="n"),
            pods.charge,
            id="a privileged container",
        ),
        *[
            pytest.param(
                "pods",
                pod(requests=HALF, on="n", ephemeralContainers=[{"name": "debug", "image": "x", "env": env}]),
                pods.charge,
                id=f"an ephemeral container with {len(env)} variables",
            )
            for env in ([], [{"name": injection.VARIABLE, "value": injection.NO_DEVICES}])
        ],
        pytest.param("pods", pod(restartPolicy="Never", **DEADLINE), pending, id="when it ends"),
        pytest.param("pods", pod(on="n", status=STARTED, **DEADLINE), pods.charge, id="when a bound pod ends"),
        pytest.param("pods", pod(status={"conditions": [UNSCHEDULABLE]}), pending, id="since when it waits"),
        pytest.param("pods", pod(hostNetwork=True, hostUsers=False), pending, id="features that it needs"),
        pytest.param("pods", pod(preemptionPolicy="Never", priority=3), pending, id="preemption policy and priority"),
        pytest.param("pods", pod(metadata={"ownerReferences": [owner("set")]}), pending, id="its controller"),
        pytest.param(
            "services",
            {"metadata": {"name": "s", "namespace": "ns"}, "spec": {"selector": {"app": "x"}}},
            affinity.selected,
            id="Service",
        ),
        pytest.param("pods", pod(schedulingGates=[{"name": "g"}]), pods.is_gated, id="gates"),
        pytest.param(
            "pods", pod(requests={"kubernetes.io/gpu": "50"}, on="n", allocated=half()), pods.charge, id="allocation"
        ),
        pytest.param(
            "pods",
            pod(
                requests={"cpu": "1"},
                on="n",
                status={
                    "startTime": "2026-01-01T00:00:00Z",
                    "containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}],
                },
            ),
            pods.charge,
            id="a resize",
        ),
    ],
)
def test_what_no_scenario_has_is_kept(of: str, obj: Raw, read: Callable[[Raw], Any]) -> None:
    reduced = kept(of, copy.deepcopy(obj))
    # Fields that nothing reads are dropped; those that are read are kept.
    assert read(reduced) == read(obj) or (
        of == "devices" and replace(read(reduced), reported=read(obj).reported) == read(obj)
    )


@pytest.mark.parametrize("file", manifests_of_others.files(), ids=manifests_of_others.name)
def test_the_words_of_other_systems_are_kept(file: Path) -> None:
    raw = manifests_of_others.pod(file)
    assert pending(kept("pods", raw)) == pending(raw)


PRIVATE = "hunter2"


@pytest.mark.parametrize(
    ("of", "obj"),
    [
        pytest.param(
            "pods", pod(annotations={"kubectl.kubernetes.io/last-applied-configuration": PRIVATE}), id="applied"
        ),
        pytest.param("pods", pod(imagePullSecrets=[{"name": PRIVATE}]), id="pull secrets"),
        pytest.param("pods", pod(volumes=[{"name": "v", "iscsi": {"iqn": "i", "secretRef": PRIVATE}}]), id="volumes"),
        pytest.param("storage classes", {"metadata": {"name": "c"}, "parameters": {"key": PRIVATE}}, id="parameters"),
        pytest.param("nodes", node() | {"metadata": {"name": "n", "annotations": {"x": PRIVATE}}}, id="node"),
        *[
            pytest.param("pods", pod(containers=[{**container(), field: [{"name": "A", "value": PRIVATE}]}]), id=field)
            for field in ("env", "envFrom", "command", "args", "volumeMounts", "livenessProbe", "lifecycle")
        ],
        pytest.param("pods", pod(initContainers=[container(env=[{"name": "A", "value": PRIVATE}])]), id="init env"),
        *[
            pytest.param(
                "pods", pod(containers=[container(env=[{"name": "A", "valueFrom": {of: {"name": PRIVATE}}}])]), id=of
            )
            for of in ("secretKeyRef", "configMapKeyRef")
        ],
        pytest.param(
            "pods",
            pod(ephemeralContainers=[{"name": "d", "env": [{"name": "A", "value": PRIVATE}], "args": [PRIVATE]}]),
            id="ephemeral env",
        ),
        pytest.param(
            "pods",
            pod(
                containers=[
                    container(
                        env=[{"name": injection.VARIABLE, "valueFrom": {"secretKeyRef": {"name": PRIVATE}}}],
                        securityContext={"seLinuxOptions": {"user": PRIVATE}},
                    )
                ],
                bare=True,
            ),
            id="a source of the variable",
        ),
    ],
)
def test_nothing_else_is_kept(of: str, obj: Raw) -> None:
    assert PRIVATE in str(obj)
    assert PRIVATE not in orjson.dumps(kept(of, obj)).decode()


# --- taking and reading -----------------------------------------------------------------------------------------


class Api:
    """Lists, one page each."""

    def __init__(self, objects: Mapping[str, list[Raw]]) -> None:
        self.objects = objects
        self.requests: list[tuple[str, Mapping[str, str]]] = []

    async def get_page(self, path: str, params: Mapping[str, str]) -> Any:
        self.requests.append((path, params))
        selector = params.get("fieldSelector", "")
        phase = "ended" if "status.phase!=Running" in selector else "alive"
        items = self.objects.get(f"{path} {phase}" if path == "/api/v1/pods" else path, [])
        return {"metadata": {"resourceVersion": "1"}, "items": copy.deepcopy(items)}


def member(name: str, phase: str = "Pending", **fields: Any) -> Raw:
    labels, version = {names.POD_GROUP_LABEL: "g"}, {"resourceVersion": "1"}
    status = {"phase": phase}
    return pod(name, labels=labels, metadata=version, schedulerName=names.SCHEDULER, status=status, **fields)


async def test_a_snapshot_equals_what_the_api_server_returns() -> None:
    foreign = pod("foreign", schedulerName="default-scheduler")
    api = Api(
        {
            "/api/v1/nodes": [node("n")],
            "/apis/berth.dev/v1alpha1/devices": [device("n", entry(0), entry(1))],
            "/apis/coordination.k8s.io/v1/namespaces/leases/leases": [lease("n")],
            "/api/v1/pods alive": [
                pod("p", {"kubernetes.io/gpu": "50"}, on="n", allocated=half(0)),
                member("m"),
                foreign,
            ],
            "/api/v1/pods ended": [
                member("done", "Succeeded", on="n"),
                pod("old", metadata={"resourceVersion": "1"}, status={"phase": "Failed"}),
            ],
            f"{names.POD_GROUP_API}/{names.POD_GROUPS}": [pod_group(minimum=2)],
            "/apis/scheduling.k8s.io/v1/priorityclasses": [{"metadata": {"name": "high"}, "value": 5}],
        }
    )
    lines = [each async for each in snapshot.taken(api.get_page, node_selector="pool=x", agent_namespace="leases")]
    assert {of for of, _ in lines} < snapshot.KEPT.keys()
    assert dict(api.requests)["/api/v1/nodes"]["labelSelector"] == "pool=x"
    assert [obj["metadata"]["name"] for of, obj in lines if of == "ended pods"] == ["done"]

    restored = Snapshot(grace=10, schedulers=[names.SCHEDULER])
    for of, obj in lines:
        restored.put(of, orjson.loads(orjson.dumps(kept(of, obj))))
    cluster = restored.cluster
    summarized = summary.summary(cluster.fleet, "n")
    assert summarized is not None
    assert (summarized["ready"], summarized["deviceFree"]["kubernetes.io/gpu-core"]) == (True, "150")
    assert restored.placed.keys() == {"uid-p"}
    assert restored.priority_classes["high"]["value"] == 5
    # Of two members one has succeeded: the other is ready to be decided. Pods of other schedulers are left out.
    assert {unit.uid for unit in [cluster.queue.pop(0.0)] if unit} == {"PodGroup ns/g"}
    assert cluster.queue.pop(0.0) is None


async def test_every_kind_that_is_read_is_kept() -> None:
    api = Api({})
    assert [each async for each in snapshot.taken(api.get_page, node_selector="", agent_namespace="leases")] == []
    # Pods are two kinds, and the operator is not listed.
    assert len({path for path, _ in api.requests}) == len(snapshot.KEPT) - 3


async def test_few_lists_are_under_way_at_the_same_time() -> None:
    running, most = 0, 0

    async def get_page(_: str, __: Mapping[str, str]) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    assert [each async for each in snapshot.taken(get_page, node_selector="", agent_namespace="leases")] == []
    assert most == snapshot.AT_ONCE


async def test_the_next_page_is_asked_for_while_objects_are_put() -> None:
    pages = {"": "second", "second": "third", "third": ""}
    restored, put_before = Snapshot(grace=10, schedulers=[]), list[int]()

    async def get_page(path: str, params: Mapping[str, str]) -> Any:
        if path != "/api/v1/nodes":
            return {"metadata": {"resourceVersion": "1"}, "items": []}
        at = params.get("continue", "")
        put_before.append(len(restored.cluster.node_cache.nodes))
        # An answer takes some iterations of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        items = [node(f"n{at}{number}") for number in range(10 * snapshot.TURN)]
        return {"metadata": {"resourceVersion": "1", "continue": pages[at]}, "items": items}

    await restored.put_all(snapshot.taken(get_page, node_selector="", agent_namespace="leases"))
    assert len(put_before) == len(pages)
    assert put_before[2] < 10 * snapshot.TURN


async def test_a_refused_list_ends_the_others() -> None:
    ended: list[str] = []

    async def get_page(path: str, _: Mapping[str, str]) -> Any:
        if path == "/api/v1/nodes":
            raise ApiError(403, "Forbidden", "nodes is forbidden")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(path)

    with pytest.raises(ApiError, match="nodes is forbidden"):
        await anext(aiter(snapshot.taken(get_page, node_selector="", agent_namespace="leases")))
    assert len(ended) >= snapshot.AT_ONCE - 1
    assert len(asyncio.all_tasks()) == 1
