"""Pods as the API server sends them: parsed at the edge, and never a reason to crash."""

import json
from typing import Any

import pytest

from berth_api import names
from berth_api.admission.injection import VARIABLE
from berth_operator.core.values.charge import NOT_STARTED
from berth_operator.state.objects import pods
from tests.objects.builders import (
    A100,
    CORE,
    FPGA,
    GPU,
    MEMORY,
    NVIDIA,
    RATIO,
    RDMA,
    SHARED,
    container,
    grant,
    half,
    label,
    listens,
    pod,
    whole,
)

Raw = dict[str, Any]

NPU_CORE, NPU_CPU = "huawei.com/npu-core", "huawei.com/npu-cpu"
PART_OF_NPU = "a part of an NPU (huawei.com/npu-core by a template)"


# --- waiting pods -----------------------------------------------------------------------------------------------


def test_a_pod_that_waits_is_read_with_all_that_scheduling_reads() -> None:
    raw = pod(
        "a",
        {"cpu": "500m", GPU: "50"},
        nodeSelector={"b": "2", "a": "1"},
        tolerations=[{"key": "k", "operator": "Exists", "tolerationSeconds": 300}, {}],
        priority=7,
        schedulerName="mine",
        labels={names.GENIUS_PRIORITY: "-3"},
        annotations={names.MODEL_EXACT: A100},
    )
    pending = pods.pending(raw)
    assert (pending.key, pending.uid, pending.priority, pending.weight, pending.error) == ("ns/a", "uid-a", 7, -3, "")
    assert pending.scheduler == "mine"
    request = pending.request
    assert request.resources == (("cpu", 500), (GPU, 50), ("pods", 1))
    assert request.plugin_requests == ((GPU, 50),)
    assert dict(request.devices.parts[0].amounts) == {"gpu-core": 50, "gpu-memory-ratio": 50}
    assert request.node_selector == (label("a", "In", "1"), label("b", "In", "2"))
    assert request.node_affinity is None
    assert [(toleration.key, toleration.operator, toleration.effect) for toleration in request.tolerations] == [
        ("k", "Exists", ""),
        ("", "Equal", ""),
    ]
    assert request.model.exact == A100
    assert [(share.container, share.first, share.end) for share in request.shares] == [("main", 0, 1)]
    assert request.unsupported == ()


@pytest.mark.parametrize(("name", "text"), [(names.GPU_SUBDEVICES, "never"), (names.MIXED_GPUS, "true")])
def test_pods_that_accept_different_gpus_are_of_different_classes(name: str, text: str) -> None:
    first, second = (pods.pending(pod("a", {NVIDIA: "2"}, annotations=each)) for each in ({}, {name: text}))
    assert first.request != second.request


def seeing(name: str = "main") -> Raw:
    path = f"metadata.annotations['{name}{names.VISIBLE_SUFFIX}']"
    return {"name": VARIABLE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


HAMI = {"nvidia.com/gpumem": "3000", SHARED: "2"}
"""Words of another system after admission."""


def test_words_of_another_system_are_cards_that_kubelet_does_not_count() -> None:
    raw = pod("a", containers=[container(requests={"cpu": "1", **HAMI}, env=[seeing()])], bare=True)
    request = pods.pending(raw).request
    assert request.resources == (("cpu", 1000), (SHARED, 2), ("pods", 1))
    assert request.plugin_requests == ((SHARED, 2),)
    [part] = request.devices.parts
    assert (part.count, part.amounts) == (2, (("gpu-memory", 3000 * 2**20),))
    assert [(share.container, share.first, share.end) for share in request.shares] == [("main", 0, 2)]
    assert request.uninjected == ()
    charge = pods.charge(bound(raw, {"gpu": [*half(0)["gpu"], *half(1)["gpu"]]}))
    assert [(grant.minor, grant.amounts) for grant in charge.grants] == [(0, part.amounts), (1, part.amounts)]


def bound(raw: Raw, allocated: Raw) -> Raw:
    annotations = {**raw["metadata"]["annotations"], names.EPOCH: "1", names.ALLOCATED: json.dumps(allocated)}
    return {"metadata": {**raw["metadata"], "annotations": annotations}, "spec": {**raw["spec"], "nodeName": "node"}}


def test_a_pod_that_kubelet_would_give_devices_as_well_has_not_been_admitted_by_us() -> None:
    """A device plugin of the node would allocate it, because no policy has replaced it."""
    requests = {"nvidia.com/gpumem": "3000", NVIDIA: "2"}
    for env in ([], [seeing()]):
        raw = pod("a", containers=[container(requests=requests, env=env)], bare=True)
        assert pods.pending(raw).request.uninjected == ("main",)
    assert pods.pending(pod("a", containers=[container(requests={NVIDIA: "2"})])).request.uninjected == ()


def test_amounts_in_annotations_are_charged_as_they_were_allocated() -> None:
    """An annotation can be changed at any time, so what it says later does not count."""
    raw = pod("a", annotations={"gpu-fraction": "0.5"})
    [part] = pods.pending(raw).request.devices.parts
    assert part.amounts == (("gpu-memory-ratio", 50),)
    raw["metadata"]["annotations"] = {"gpu-fraction": "0.1"}
    charge = pods.charge(bound(raw, half()))
    assert dict(charge.grants[0].amounts)["gpu-memory-ratio"] == 50


def test_of_another_schedulers_pod_the_cards_are_unknown() -> None:
    raw = pod("a", {"nvidia.com/gpumem": "3000"}, on="node", schedulerName="x", bare=True)
    assert pods.charge(raw).unknown == ("gpu",)


MPS = {"annotations": {names.ISOLATION_KEY: "mps"}}
OF_HAMI = {"labels": {names.ISOLATION: "HAMi-core"}}


@pytest.mark.parametrize(
    ("requests", "read", "fields", "unlimited"),
    [
        pytest.param({GPU: "50"}, "", {}, (), id="nothing is asked for"),
        pytest.param({GPU: "50"}, "", OF_HAMI, ("main",), id="a label asks for it"),
        pytest.param({GPU: "50"}, "memory-limit-0", OF_HAMI, (), id="a label asks for it, and gets it"),
        pytest.param({GPU: "50"}, "", MPS, ("main",), id="an annotation asks for it"),
        pytest.param({GPU: "50", names.MPS_RESOURCE: "1"}, "mps-memory-limit", MPS, (), id="and gets it"),
        pytest.param({GPU: "50", names.MPS_RESOURCE: "1"}, "", {}, ("main",), id="the resource alone"),
        pytest.param({GPU: "50"}, "", {"annotations": {names.ISOLATION_KEY: "none"}, **OF_HAMI}, (), id="none"),
        pytest.param({GPU: "100"}, "", MPS, (), id="a whole card"),
        pytest.param({NVIDIA: "1"}, "", MPS, (), id="kubelet's"),
    ],
)
def test_a_share_that_asks_for_limits_needs_them(
    requests: dict[str, str], read: str, fields: Raw, unlimited: tuple[str, ...]
) -> None:
    path = f"metadata.annotations['main.devices.berth.dev/{read}']"
    env = [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}] if read else []
    raw = pods.transform(pod("a", containers=[container(requests=requests, env=env)], **fields))
    assert pods.pending(raw).request.unlimited == unlimited


@pytest.mark.parametrize("mode", ["mps", "hami-core", ""])
def test_the_isolation_of_a_bound_pod_is_that_of_its_spec(mode: str) -> None:
    """Annotations and labels can be changed at any time."""
    more = {f"berth.dev/{mode}": "1"} if mode else {}
    raw = pod("a", {GPU: "50", **more}, **MPS)
    assert pods.pending(raw).request.isolation == mode
    assert pods.charge(bound(raw, half())).isolation == mode


def test_isolation_and_mig_instances_in_one_pod_are_not_supported() -> None:
    raw = pod("a", {"nvidia.com/mig-1g.10gb": "1", names.MPS_RESOURCE: "1"})
    assert pods.pending(raw).request.unsupported == ("isolation of shares with slices or MIG instances in one pod",)


def test_a_bound_member_of_a_gang_has_the_key_that_it_had_while_it_waited() -> None:
    labels = {names.POD_GROUP_LABEL: "g"}
    for annotations in ({}, {names.MODEL_GLOBS: "*A100*"}, {names.MIXED_GPUS: "true"}):
        fields: Raw = {"labels": labels, "annotations": annotations, "nodeSelector": {"pool": "x"}}
        pending = pods.pending(pod("a", {NVIDIA: "1"}, **fields))
        charge = pods.charge(pod("a", {NVIDIA: "1"}, on="node", allocated=whole(0), **fields))
        assert charge.alike_key == pending.request.alike_key
        assert (charge.alike_key is None) is (names.MIXED_GPUS in annotations)
    assert pods.charge(pod("a", {NVIDIA: "1"}, on="node", allocated=whole(0))).alike_key is None


def test_the_last_message_is_read_from_the_pods_condition() -> None:
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/1 nodes are available: 1 node(s) were not ready.",
    }
    others = [{"type": "Ready", "status": "False", "message": "x"}]
    assert pods.pending(pod(status={"conditions": [*others, scheduled]})).last_message == scheduled["message"]


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({}, id="no status"),
        pytest.param({"conditions": None}, id="null conditions"),
        pytest.param({"conditions": [{"type": "PodScheduled", "status": "True", "message": "x"}]}, id="scheduled"),
        pytest.param({"conditions": [{"type": "PodScheduled", "status": "False"}]}, id="no message"),
    ],
)
def test_a_pod_without_a_condition(status: Raw) -> None:
    assert pods.pending(pod(status=status)).last_message == ""


BAD = [
    pytest.param({"annotations": {name: text}}, f"annotation {name}: {words}", id=f"{name.rpartition('/')[2]}, {id_}")
    for name in (names.ALLOCATE_HINT, names.JOINT_ALLOCATE, names.PARTITION_SPEC)
    for text, words, id_ in (
        ("", "not JSON", "empty"),
        ("{", "not JSON", "cut off"),
        ("yes", "not JSON", "a word"),
        ('{"gpu": NaN}', "not JSON", "not a number"),
        ("[" * 5000, "not JSON", "deep"),
        ("[]", "not a JSON object", "a list"),
        ("null", "not a JSON object", "null"),
        ('"x"', "not a JSON object", "a text"),
    )
] + [
    pytest.param({"labels": {names.GENIUS_PRIORITY: "high"}}, "genius/priority", id="priority, a word"),
    pytest.param({"labels": {names.GENIUS_PRIORITY: ""}}, "genius/priority", id="priority, empty"),
    pytest.param({"labels": {names.GENIUS_PRIORITY: "1.5"}}, "genius/priority", id="priority, a part"),
    pytest.param({"annotations": {names.MODEL_GLOBS: ","}}, "berth.dev/gpu-model", id="model, no glob"),
    pytest.param({"annotations": {names.MODEL_EXACT: "x" * 2000}}, "gpu.model: 2000 characters", id="model, long"),
    pytest.param({"labels": {names.MODEL_REGEX: "("}}, "genius/gpu-model", id="model, no expression"),
    pytest.param({"requests": {GPU: "-1"}}, f"spec.containers[0].resources.requests.{GPU}", id="negative"),
    pytest.param({"requests": {GPU: "many"}}, f"spec.containers[0].resources.requests.{GPU}", id="a word for a number"),
    pytest.param({"annotations": {names.ISOLATION_KEY: "yes"}}, "mps, hami-core, required, none", id="isolation"),
    pytest.param({"overhead": {"cpu": "x"}}, "spec.overhead.cpu", id="overhead"),
    pytest.param({"resources": {"requests": {"cpu": "x"}}}, "spec.resources.requests.cpu", id="the pod's own"),
]


@pytest.mark.parametrize(("fields", "words"), BAD)
def test_bad_input_is_reported_by_its_field_and_leaves_the_pod_waiting(fields: Raw, words: str) -> None:
    pending = pods.pending(pod(**fields))
    assert words in pending.error
    assert not pending.request.devices


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        pytest.param({"schedulingGroup": {"x": 1}}, "spec.schedulingGroup without podGroupName", id="scheduling group"),
        pytest.param({"requests": {NPU_CORE: "10", RATIO: "50"}}, PART_OF_NPU, id="a part of an NPU"),
        pytest.param(
            {"requests": {SHARED: "1", NPU_CORE: "4", NPU_CPU: "2", MEMORY: "1Gi"}}, PART_OF_NPU, id="an NPU template"
        ),
    ],
)
def test_what_cannot_be_honoured_is_named(fields: Raw, name: str) -> None:
    pending = pods.pending(pod(**fields))
    assert pending.request.unsupported == (name,)
    assert pending.error == ""


@pytest.mark.parametrize("name", ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"])
def test_parts_of_cards_cannot_lie_together_with_others(name: str) -> None:
    annotations = {names.JOINT_ALLOCATE: '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'}
    pending = pods.pending(pod("a", {name: "1", RDMA: "1"}, annotations=annotations))
    assert f"annotation {names.JOINT_ALLOCATE} with slices or MIG instances" in pending.request.unsupported


@pytest.mark.parametrize(
    ("raw", "gated"),
    [
        pytest.param(pod(), False, id="free"),
        pytest.param(pod(schedulingGates=[]), False, id="no gate left"),
        pytest.param(pod(schedulingGates=[{"name": "x"}]), True, id="gated"),
        pytest.param(pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), True, id="being deleted"),
    ],
)
def test_a_pod_is_not_to_be_scheduled(raw: Raw, *, gated: bool) -> None:
    assert pods.is_gated(raw) is gated


VOID = {"name": VARIABLE, "value": "void"}


def test_unread_fields_are_dropped() -> None:
    plain, literal = {"name": "PLAIN", "value": "1"}, {"name": VARIABLE, "value": "all"}
    raw = pod("a", metadata={"managedFields": [1]}, initContainers=[container("i", env=[plain])])
    raw["spec"]["containers"][0] |= {"env": [plain, literal], "command": ["x"], "ports": [{"hostPort": 1}]}
    kept = pods.transform(raw)
    assert "managedFields" not in kept["metadata"]
    assert set(kept["spec"]["containers"][0]) == {"name", "resources", "ports", "env"}
    assert kept["spec"]["containers"][0]["env"] == [literal]
    assert kept["spec"]["initContainers"][0] == {"name": "i", "resources": {"requests": {}}, "env": [VOID]}


# --- charges ----------------------------------------------------------------------------------------------------


def test_a_bound_pod_takes_its_requests_of_the_cards_that_its_annotation_names() -> None:
    charge = pods.charge(pod("a", {"cpu": "2", GPU: "50"}, on="node", allocated=half(3)))
    assert (charge.uid, charge.pod, charge.node) == ("uid-a", "ns/a", "node")
    assert charge.resources == (("cpu", 2000), (GPU, 50), ("pods", 1))
    assert charge.plugin_requests == ((GPU, 50),)
    assert charge.grants == (grant(3, core=50, ratio=50),)
    assert charge.unknown == ()


def test_a_pod_that_asks_for_no_device_holds_none_whatever_is_written_on_it() -> None:
    charge = pods.charge(pod("a", {"cpu": "1"}, on="node", claims=whole(0)))
    assert (charge.grants, charge.unknown) == ((), ())


OURS = {names.EPOCH: "3"}


@pytest.mark.parametrize(
    ("annotations", "labels", "claims", "held"),
    [
        pytest.param(OURS, {names.GENIUS_NUMBER: "1"}, whole(0), (1, ()), id="by label"),
        pytest.param({}, {names.GENIUS_NUMBER: "1"}, whole(0), (0, ()), id="another bound it, with an allocation"),
        pytest.param({}, {names.GENIUS_MEMORY_EACH: "1"}, None, (0, ()), id="another bound it"),
        pytest.param({}, {names.GENIUS_NUMBER: "x"}, "x", (0, ()), id="another bound it, nothing can be read"),
        pytest.param(OURS, {names.GENIUS_NUMBER: "1"}, None, (0, ()), id="the label came after our Binding"),
        pytest.param({}, {names.GENIUS_PRIORITY: "1"}, whole(0), (0, ()), id="priority asks for nothing"),
        pytest.param(OURS, {}, whole(0, 1), (2, ()), id="the label was taken away, the cards were not"),
        pytest.param(OURS, {}, "x", (0, ("gpu",)), id="we gave it some"),
        pytest.param(OURS, {}, None, (0, ()), id="we gave it none"),
    ],
)
def test_what_a_pod_holds_that_asks_by_label(
    annotations: Raw, labels: Raw, claims: Any, held: tuple[int, tuple[str, ...]]
) -> None:
    charge = pods.charge(pod("a", on="node", annotations=annotations, labels=labels, claims=claims, bare=True))
    assert (len(charge.grants), charge.unknown) == held


def test_all_containers_of_a_pod_that_asks_by_label_see_its_cards() -> None:
    raw = pod(containers=[container("a"), container("b")], labels={names.GENIUS_NUMBER: "2"})
    shares = pods.pending(raw).request.shares
    assert [(share.container, share.first, share.end) for share in shares] == [("a", 0, 2), ("b", 0, 2)]


MALFORMED = [
    pytest.param("", id="empty"),
    pytest.param("{", id="cut off"),
    pytest.param("null", id="null"),
    pytest.param('{"gpu": null}', id="no list"),
    pytest.param('{"gpu": [{"minor": -1}]}', id="bad minor"),
    pytest.param('{"gpu": [{"minor": 0}]}', id="no amount"),
    pytest.param('{"gpu": [{"minor": 0, "resources": {"gpu-core": "x"}}]}', id="bad amount"),
    pytest.param('{"gpu": [{"minor": 0, "resources": {"gpu-core": "-1"}}]}', id="negative amount"),
    pytest.param('{"tpu": []}', id="another type"),
    pytest.param('{"gpu": [{"resources": {"gpu-core": 1}}, {"resources": {"gpu-core": 1}}]}', id="a card twice"),
]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_allocation_leaves_unknown_what_the_pod_asked_for(text: str) -> None:
    charge = pods.charge(pod("a", {NVIDIA: "1", RDMA: "100"}, on="node", allocated=text))
    assert (charge.grants, charge.unknown) == ((), ("gpu", "rdma"))


@pytest.mark.parametrize(
    ("requests", "allocated", "unknown"),
    [
        pytest.param({}, None, (), id="no devices"),
        pytest.param({NVIDIA: "1"}, None, ("gpu",), id="no annotation, a GPU"),
        pytest.param({GPU: "50"}, None, ("gpu",), id="no annotation, half a GPU"),
        pytest.param({RDMA: "100", FPGA: "50"}, None, ("rdma", "fpga"), id="no annotation, others"),
        pytest.param({CORE: "150"}, None, ("gpu",), id="a request that means nothing"),
        pytest.param({"nvidia.com/mig-1g.10gb": "1"}, None, ("gpu",), id="MIG"),
        pytest.param({NVIDIA: "1"}, {}, ("gpu",), id="an empty annotation"),
        pytest.param({NVIDIA: "1", RDMA: "100"}, whole(0), ("rdma",), id="one type is missing"),
        pytest.param({NVIDIA: "1"}, whole(0), (), id="all there"),
    ],
)
def test_a_type_without_an_allocation_is_unknown(requests: Raw, allocated: Any, unknown: tuple[str, ...]) -> None:
    assert pods.charge(pod("a", requests, on="node", allocated=allocated, bare=True)).unknown == unknown


def test_absurd_requests_of_a_bound_pod_are_cut_off() -> None:
    raw = pod("a", on="node", containers=[container(requests={"memory": "8Ei"})] * 1500)
    assert dict(pods.charge(raw).resources)["memory"] < 2**63


def test_a_bound_pod_takes_what_it_still_holds_while_it_shrinks() -> None:
    status = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}
    charge = pods.charge(pods.transform(pod("a", {"cpu": "2"}, on="node", status=status)))
    assert dict(charge.resources)["cpu"] == 3000


def test_of_a_container_s_status_only_what_it_holds_is_kept() -> None:
    container_status = {"name": "main", "resources": {}, "allocatedResources": {}, "imageID": "x", "state": {}}
    kept = pods.transform(
        pod(
            status={
                "containerStatuses": [container_status],
                "initContainerStatuses": [container_status],
                "phase": "Running",
            }
        )
    )
    assert {
        tuple(shown) for kind in ("containerStatuses", "initContainerStatuses") for shown in kept["status"][kind]
    } == {("name", "resources", "allocatedResources")}


def ports(*hosts: Raw, **fields: Any) -> Raw:
    return container(ports=[{"containerPort": 1, **host} for host in hosts], **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"containers": [ports({}), container()]}, (), id="container port"),
        pytest.param({"containers": [container(ports=None)], "initContainers": None}, (), id="null"),
        pytest.param({"containers": [ports({"hostPort": 80})]}, (listens(),), id="host port"),
        pytest.param(
            {"containers": [ports({"hostPort": 80, "hostIP": "10.0.0.1", "protocol": "UDP"})]},
            (listens(80, "10.0.0.1", "UDP"),),
            id="address and protocol",
        ),
        pytest.param(
            {"containers": [ports({"hostPort": 81}), ports({"hostPort": 80}, {"hostPort": 81})]},
            (listens(80), listens(81)),
            id="each once, in order",
        ),
        pytest.param({"initContainers": [ports({"hostPort": 80})]}, (), id="an init container's"),
        pytest.param(
            {"initContainers": [ports({"hostPort": 80}, restartPolicy="Always")]}, (listens(),), id="a sidecar's"
        ),
    ],
)
def test_host_ports_are_read_alike_of_pods_that_wait_and_pods_that_are_bound(fields: Raw, expected: Any) -> None:
    assert pods.pending(pod(**fields)).request.ports == expected
    assert pods.charge(pod(on="node", **fields)).ports == expected


# --- replicas are parsed once -------------------------------------------------------------------------------------


def _replica(number: int, **fields: Any) -> Raw:
    token = {"name": f"kube-api-access-{number}", "projected": {"sources": []}}
    return pods.transform(pod(f"a-{number}", {NVIDIA: "1"}, hostname=f"a-{number}", volumes=[token], **fields))


def test_replicas_share_one_request() -> None:
    assert pods.pending(_replica(1)).request is pods.pending(_replica(2)).request


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"labels": {"app": "b"}}, id="label"),
        pytest.param({"annotations": {names.MODEL_EXACT: "x"}}, id="annotation that is read"),
        pytest.param({"metadata": {"namespace": "other"}}, id="namespace"),
        pytest.param({"tolerations": [{"operator": "Exists"}]}, id="spec"),
        pytest.param({"overhead": {"cpu": "1"}}, id="overhead"),
    ],
)
def test_what_scheduling_reads_distinguishes_pods(fields: Any) -> None:
    assert pods.pending(_replica(1)).request != pods.pending(_replica(1, **fields)).request


def test_a_volume_that_matters_is_each_replicas_own() -> None:
    claims = [pod(name, volumes=[{"name": "v", "ephemeral": {}}]) for name in ("a", "b")]
    one, two = (pods.pending(claim).request.mounts.claims for claim in claims)
    assert (one[0].claim, two[0].claim) == ("ns/a-v", "ns/b-v")


# --- priorities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "preempts", "nominated_node"),
    [
        pytest.param({}, True, "", id="by default"),
        pytest.param({"preemptionPolicy": "PreemptLowerPriority"}, True, "", id="PreemptLowerPriority"),
        pytest.param({"preemptionPolicy": "Never"}, False, "", id="Never"),
        pytest.param({"status": {"nominatedNodeName": "node"}}, True, "node", id="nominated"),
    ],
)
def test_which_pods_a_waiting_pod_may_preempt(fields: dict[str, Any], *, preempts: bool, nominated_node: str) -> None:
    pending = pods.pending(pods.transform(pod("a", priority=7, **fields)))
    assert (pending.priority, pending.preempts, pending.nominated_node) == (7, preempts, nominated_node)


def test_how_important_a_placed_pod_is() -> None:
    fresh = pods.charge(pods.transform(pod("a", on="node")))
    assert (fresh.priority, fresh.started) == (0, NOT_STARTED)
    old = pods.charge(pods.transform(pod("a", on="node", priority=-5, status={"startTime": "1970-01-01T00:01:00Z"})))
    assert (old.priority, old.started) == (-5, 60)


def test_kubelet_allocates_none_of_what_a_class_provides_as_the_binding_records_it_and_not_the_status() -> None:
    mapping = {"containerName": "main", "resourceName": NVIDIA, "requestName": "r"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [mapping]}}
    annotations = {names.EPOCH: "1", f"main{names.BY_CLASS_SUFFIX}": NVIDIA}
    recorded = pod("a", {NVIDIA: 1}, on="node", annotations=annotations, status=status)
    forged = pod("b", {NVIDIA: 1}, on="node", annotations={names.EPOCH: "1"}, status=status)
    theirs = pod("c", {NVIDIA: 1}, on="node", status=status, schedulerName="default-scheduler")
    assert [dict(pods.charge(each).plugin_requests) for each in (recorded, forged, theirs)] == [{}, {NVIDIA: 1}, {}]
    # But it counts the pods as users of what the node's device plugin offers.
    assert all(dict(pods.charge(each).resources)[NVIDIA] == 1 for each in (recorded, forged, theirs))
    assert pods.charge(recorded).unknown == ()


@pytest.mark.parametrize("kubernetes", [36, 37])
def test_what_kubelet_reports_of_resources_that_a_claim_provides_is_no_device_by_name(kubernetes: int) -> None:
    """kubelet reports them of containers, and from 1.36 on as a sum of the pod."""
    reported = {"allocatedResources": {NVIDIA: "1", "cpu": "1"}, "resources": {"requests": {NVIDIA: "1", "cpu": "2"}}}
    mapping = {"containerName": "main", "resourceName": NVIDIA, "requestName": "container-0-request-0"}
    status = {
        "extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": [mapping]},
        "containerStatuses": [{"name": "main", **reported}],
        **reported,
    }
    annotations = {names.EPOCH: "1", f"main{names.BY_CLASS_SUFFIX}": NVIDIA}
    ours = pod("a", {NVIDIA: 1, "cpu": "1"}, on="node", annotations=annotations, status=status)
    theirs = pod("b", {NVIDIA: 1, "cpu": "1"}, on="node", status=status, schedulerName="default-scheduler")
    for charge in (pods.charge(each, kubernetes=kubernetes) for each in (ours, theirs)):
        assert (charge.unknown, dict(charge.plugin_requests)) == ((), {})
        assert {name: amount for name, amount in charge.resources if amount and name != "pods"} == {
            "cpu": 2000,
            NVIDIA: 1,
        }
