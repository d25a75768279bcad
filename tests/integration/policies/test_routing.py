"""Pods that request Berth's devices and name no scheduler, on the real API server: routed, injected or refused."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth_api.admission import injection, routing
from devcluster import Arena, DevclusterError, waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.objects.builders import FPGA, GPU, MEMORY, NVIDIA, RDMA, SHARED

HALF = {GPU: "50"}
NUMBER = "genius/gpu-number"
DEFAULT = "default-scheduler"
AMD = "amd.com/gpu"
CLAIMS = [{"name": "nic", "resourceClaimTemplateName": "nic"}]
OPT_OUT = "berth.dev/routing"


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena, enforce: Callable[[str, Callable[[], bool]], None]) -> None:
    named_berth = arena.pod(requests=HALF, limits=HALF)
    enforce("injection.yaml", lambda: "env" in arena.admitted(named_berth)["spec"]["containers"][0])
    probe = forgetful(arena, HALF)
    enforce("routing.yaml", lambda: is_routed(arena, probe) and arena.refusal({**probe, **named(probe)}) != "")


@pytest.fixture
def by_devices(arena: Arena) -> Iterator[None]:
    """Label the namespace so that pods with any name that Berth serves are routed."""
    probe = forgetful(arena, {NVIDIA: "1"})
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {OPT_OUT: "devices"}}})
    waiting.until(lambda: is_routed(arena, probe), what="the namespace to have opted in")
    yield
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {OPT_OUT: None}}})
    waiting.until(lambda: not is_routed(arena, probe), what="the namespace to have opted out")


def named(probe: Manifest) -> Manifest:
    return {"spec": {**probe["spec"], "nodeName": "n"}}


def forgetful(arena: Arena, requests: dict[str, str], **fields: Any) -> Manifest:
    """Return a pod without `schedulerName`."""
    manifest = arena.pod(requests=requests, limits=requests, **fields)
    del manifest["spec"]["schedulerName"]
    return manifest


def is_routed(arena: Arena, manifest: Manifest) -> bool:
    try:
        return bool(arena.admitted(manifest)["spec"]["schedulerName"] == arena.scheduler_name)
    except ApiError:
        return False


@pytest.mark.parametrize(
    ("requests", "fields"),
    [
        pytest.param(HALF, {}, id="a share"),
        pytest.param({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}, {}, id="koordinator"),
        pytest.param({SHARED: "2", MEMORY: "8Gi"}, {}, id="spread"),
        pytest.param({RDMA: "50"}, {}, id="a NIC"),
        pytest.param({FPGA: "50"}, {}, id="an FPGA"),
        pytest.param({}, {"labels": {NUMBER: "1"}}, id="by label"),
        pytest.param(HALF, {"schedulerName": DEFAULT}, id="the default is named"),
        pytest.param(HALF, {"schedulerName": ""}, id="an empty name"),
    ],
)
def test_a_pod_that_forgets_its_scheduler_is_routed_and_injected(
    arena: Arena, requests: dict[str, str], fields: dict[str, Any]
) -> None:
    spec = {key: value for key, value in fields.items() if key != "labels"}
    manifest = forgetful(arena, requests, labels=fields.get("labels"), **spec)
    pod = arena.admitted(manifest)
    assert pod["spec"]["schedulerName"] == arena.scheduler_name
    # As if it had named Berth.
    assert (
        pod["spec"]["containers"][0]["env"]
        == (
            arena.admitted({**manifest, "spec": {**manifest["spec"], "schedulerName": arena.scheduler_name}})["spec"][
                "containers"
            ][0]["env"]
        )
    )
    assert not injection.lacking(pod["spec"], fields.get("labels") or {})


@pytest.mark.parametrize(
    ("requests", "fields", "scheduler"),
    [
        pytest.param({NVIDIA: "1"}, {}, DEFAULT, id="kubelet's"),
        pytest.param({NVIDIA: "1"}, {"labels": {NUMBER: "1"}}, DEFAULT, id="kubelet's, with a label"),
        pytest.param({"cpu": "1"}, {}, DEFAULT, id="no device"),
        pytest.param({GPU: "0"}, {}, DEFAULT, id="an amount of zero"),
        pytest.param({}, {"labels": {"genius/priority": "1"}}, DEFAULT, id="a priority"),
        pytest.param(HALF, {"scheduler_name": "volcano"}, "volcano", id="another scheduler"),
        pytest.param({NVIDIA: "1"}, {"nodeName": "n"}, DEFAULT, id="kubelet's, on a node"),
    ],
)
def test_other_pods_are_neither_routed_nor_injected_nor_refused(
    arena: Arena, requests: dict[str, str], fields: dict[str, Any], scheduler: str
) -> None:
    manifest = arena.pod(requests=requests, limits=requests, **{"scheduler_name": DEFAULT, **fields})
    spec = arena.admitted(manifest)["spec"]
    assert (spec["schedulerName"], "env" in spec["containers"][0]) == (scheduler, False)


@pytest.mark.parametrize("scheduler", [DEFAULT, "berth", "volcano"])
def test_a_pod_that_names_its_node_is_refused(arena: Arena, scheduler: str) -> None:
    name = arena.scheduler_name if scheduler == "berth" else scheduler
    message = arena.refusal(arena.pod(requests=HALF, limits=HALF, scheduler_name=name, nodeName="node-a"))
    assert (
        'spec.nodeName: "node-a" bypasses the scheduler, so no device would be allocated for kubernetes.io/gpu'
        in message
    )
    assert f"write spec.schedulerName: {arena.scheduler_name} and, to keep the node, spec.nodeSelector" in message
    by_label = arena.pod(labels={NUMBER: "1"}, scheduler_name=name, nodeName="node-a")
    assert f"allocated for {NUMBER}; remove spec.nodeName" in arena.refusal(by_label)


def test_a_mirror_pod_of_a_node_is_shown(arena: Arena) -> None:
    """Kubelet runs the static pod in any case."""
    manifest = arena.pod("mirror", requests=HALF, limits=HALF, scheduler_name=DEFAULT, nodeName="node-a")
    text = json.dumps({**manifest, "spec": {**manifest["spec"], "automountServiceAccountToken": False}})

    def create(*groups: str) -> str:
        user = ["--as=system:node:node-a", *(f"--as-group={each}" for each in groups)]
        return arena.cluster.kubectl("create", *user, "--dry-run=server", "-o", "name", "-f", "-", input=text)

    assert create("system:masters", "system:nodes") == "pod/mirror\n"
    with pytest.raises(DevclusterError, match="bypasses the scheduler"):
        create("system:masters")


@pytest.mark.usefixtures("opted_out")
def test_a_namespace_that_opts_out_is_told_what_to_write(arena: Arena) -> None:
    message = arena.refusal(forgetful(arena, {**HALF, RDMA: "1"}))
    for part in (
        'spec.schedulerName: "default-scheduler" (also if it is not set) allocates no device for ',
        "kubernetes.io/rdma",
        f"; write spec.schedulerName: {arena.scheduler_name}",
    ):
        assert part in message
    explicit = arena.admitted(arena.pod(requests=HALF, limits=HALF))
    assert "env" in explicit["spec"]["containers"][0]
    assert arena.refusal(forgetful(arena, {NVIDIA: "1"})) == ""


@pytest.fixture
def opted_out(arena: Arena) -> Iterator[None]:
    manifest = forgetful(arena, HALF)
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {OPT_OUT: "disabled"}}})
    waiting.until(lambda: arena.refusal(manifest), what="the namespace to have opted out")
    yield
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {OPT_OUT: None}}})
    waiting.until(lambda: is_routed(arena, manifest), what="the namespace to be routed again")


def test_pods_of_a_daemon_set_are_routed(arena: Arena) -> None:
    arena.nodes(1)
    container = {"name": "main", "image": "none", "resources": {"limits": HALF}}
    template = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [container], "nodeSelector": arena.labels}}
    metadata = {"name": "d", "namespace": arena.namespace}
    spec = {"selector": {"matchLabels": {"app": "d"}}, "template": template}
    arena.create([{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}])
    [pod] = waiting.until(lambda: arena.list("pods", labelSelector="app=d"), what="the DaemonSet's pod")
    assert pod["spec"]["schedulerName"] == arena.scheduler_name
    arena.delete("daemonsets", "d")


def test_large_pods_are_within_the_budget(arena: Arena) -> None:
    requests = {f"example.com/resource-{number}": "1" for number in range(20)}
    containers = [{"name": f"c{n}", "image": "none", "resources": {"limits": requests}} for n in range(1000)]
    last = {"name": "last", "image": "none", "resources": {"limits": {**requests, **HALF}}}
    for listed, scheduler in ((containers, DEFAULT), ([*containers[:100], last], arena.scheduler_name)):
        assert arena.admitted(forgetful(arena, {}, containers=listed))["spec"]["schedulerName"] == scheduler


AMOUNTS = st.dictionaries(
    st.sampled_from([*sorted(injection.RESOURCES), RDMA, FPGA, "cpu", NVIDIA, "kubernetes.io/gpus"]),
    st.sampled_from(["0", "1", "50"]),
    max_size=2,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    amounts=st.lists(AMOUNTS, min_size=1, max_size=3),
    initial=st.integers(0, 2),
    labels=st.sampled_from([{}, {}, {NUMBER: "1"}, {"genius/gpu-model": "A100"}]),
)
def test_python_says_the_same(
    arena: Arena, amounts: list[dict[str, str]], initial: int, labels: dict[str, str]
) -> None:
    listed = [{"name": f"c{n}", "image": "none", "resources": {"limits": each}} for n, each in enumerate(amounts)]
    initial = min(initial, len(listed) - 1)
    sent = forgetful(arena, {}, labels=labels, containers=listed[initial:], initContainers=listed[:initial])
    pod = arena.admitted(sent)
    # Kubernetes' defaults apart, what the API server got: requests are as the limits.
    bare = {**pod, "spec": {**pod["spec"], "schedulerName": DEFAULT}}
    assert routing.is_routed(bare) is (pod["spec"]["schedulerName"] == arena.scheduler_name)


OFFERED = sorted({*injection.RESOURCES, NVIDIA, "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", AMD, "cpu"})


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    amounts=st.dictionaries(st.sampled_from(OFFERED), st.sampled_from(["0", "1"]), max_size=2),
    scheduler=st.sampled_from([DEFAULT, DEFAULT, "other"]),
    claims=st.sampled_from([[], CLAIMS]),
)
@pytest.mark.usefixtures("by_devices")
def test_a_namespace_routes_by_the_names_of_device_plugins(
    arena: Arena, amounts: dict[str, str], scheduler: str, claims: list[dict[str, str]]
) -> None:
    sent = forgetful(arena, amounts, resourceClaims=claims)
    sent["spec"]["schedulerName"] = scheduler
    made = arena.admitted(sent)
    bare = {**made, "spec": {**made["spec"], "schedulerName": scheduler}}
    expected = routing.routed(routing.routed_by_devices(bare, arena.scheduler_name), arena.scheduler_name)
    assert made["spec"]["schedulerName"] == expected["spec"]["schedulerName"]
    if scheduler == DEFAULT and amounts.get(NVIDIA) == "1" and not claims:
        assert made["spec"]["schedulerName"] == arena.scheduler_name


@pytest.mark.usefixtures("by_devices")
def test_a_pod_with_claims_stays_with_kube_scheduler(arena: Arena) -> None:
    with_claims = forgetful(arena, {NVIDIA: "2"}, resourceClaims=CLAIMS)
    assert arena.admitted(with_claims)["spec"]["schedulerName"] == DEFAULT
    # No other scheduler would allocate these devices.
    assert is_routed(arena, forgetful(arena, HALF, resourceClaims=CLAIMS))
