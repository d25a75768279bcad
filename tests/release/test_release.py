"""The chart, installed by the real Helm on real API servers: `make chart-e2e`, `make test-versions`."""

import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from devcluster import waiting
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.integration.clients.test_cleanup import differences, dump
from tests.objects.resource_claims import NVIDIA_DRIVER
from tests.programs import chart
from tests.release.site import AGENTS, NAMESPACE, PODS, Site

DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
API_SERVICES: Final = "/apis/apiregistration.k8s.io/v1/apiservices"
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
VISIBILITY: Final = "/apis/visibility.berth.dev/v1alpha1"
SWITCHED: Final = {
    f"{API_SERVICES}/v1.nvidia-gpu-scheduler": False,
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/berth-operator-visibility": True,
    f"/apis/apps/v1/namespaces/{AGENTS}/daemonsets/berth-mps": False,
    f"{ADMISSION}/mutatingadmissionpolicies/berth-isolation": False,
    f"{ADMISSION}/validatingadmissionpolicies/berth-isolation": False,
}
"""Objects that a value switches, and whether they are there by default."""
POD_GROUP: Final = "podgroups.scheduling.x-k8s.io"
ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
VISIBLE: Final = "metadata.annotations['main.devices.berth.dev/visible']"
ROOT: Final = Path(__file__).parents[2]
BY_HAND: Final = {"crds": {"install": False}}
"""Nothing runs in the pods of these nodes, so the Jobs do nothing."""


@pytest.mark.parametrize("version", ["1.30", "1.36", "1.37"], indirect=True)
def test_a_pod_is_bound_and_the_cluster_is_left_as_it_was(site: Site, version: str) -> None:
    before = dump(site.api)
    site.run("crds", "apply")
    install_and_bind(site, version)
    site.stop()
    site.run("cleanup", f"--namespace={NAMESPACE}", "--delete-crds")
    site.helm("uninstall", "berth", "--no-hooks")
    site.api.delete(f"/api/v1/namespaces/{NAMESPACE}")
    waiting.until(lambda: not differences(before, dump(site.api)), what="the cluster as it was before")


def test_a_pod_is_bound_after_an_installation_in_the_place_of_another(site: Site, version: str) -> None:
    site.run("crds", "apply")
    install_and_bind(site, version)
    site.stop()
    site.helm("uninstall", "berth", "--no-hooks", "--wait")
    install_and_bind(site, version)


def install_and_bind(site: Site, version: str) -> None:
    """Install the chart, start its programs and see them bind a pod; print how long it took."""
    begin = time.monotonic()
    # Kubernetes 1.30 serves no claims of this version: an operator that is to allocate them does all else.
    site.install({**BY_HAND, "claims": {"drivers": [NVIDIA_DRIVER]}} if version == "1.30" else BY_HAND)
    if version == "1.30":
        site.start_webhook()
    site.start_agent()
    site.start_operator()
    leading = time.monotonic()
    waiting.until(lambda: is_admitted(site), what="the pod to be routed and injected")
    pod = site.running("half")
    bound = time.monotonic()
    waiting.until(lambda: holders(site) == ["half"], what="the visibility API to answer")
    sys.stdout.write(f"\nKubernetes {version}: {bound - begin:.1f} s from helm, {bound - leading:.1f} s from leading\n")
    assert pod["metadata"]["annotations"][ALLOCATED]
    assert pod["spec"]["nodeName"] in {"node-0", "node-1"}
    site.api.delete(f"{PODS}/half", grace_seconds=0)
    assert [site.may_label_device(node, agent_of="node-0") for node in ("node-0", "node-1")] == [True, False]


def holders(site: Site) -> list[str]:
    """Return the pods that hold devices, as the visibility API shows them; none while it does not answer."""
    try:
        return [row["metadata"]["name"] for row in site.api.get(f"{VISIBILITY}/holders")["items"]]
    except ApiError:
        return []


def is_admitted(site: Site) -> bool:
    """Create the pod; delete it again unless the policies, or the webhook, already route and inject it."""
    try:
        pod = site.create_pod("half", "50")
    except ApiError:  # the webhook does not answer yet
        return False
    [container] = pod["spec"]["containers"]
    read = [each["valueFrom"]["fieldRef"]["fieldPath"] for each in container.get("env", ())]
    if (pod["spec"]["schedulerName"], read) == ("berth-scheduler", [VISIBLE]):
        return True
    site.api.delete(f"{PODS}/half", grace_seconds=0)
    waiting.until(lambda: not site.api.exists(f"{PODS}/half"), what="the pod to be gone")
    return False


def test_upgrade_and_rollback(site: Site) -> None:
    """Helm waits for the hooks' Jobs and for the Deployments; on these nodes their pods succeed and run at once."""
    site.cluster.install_crds(ROOT / "crds")
    before = dump(site.api)
    site.install({}, "--wait", "--timeout=120s")
    assert hooks(site.api) == []
    first = site.spec("berth-operator")
    apis = {"listWatchApi": {"enabled": True}, "visibility": {"enabled": False}}
    isolation = {"mps": {"enabled": True}, "hamiCore": {"enabled": True, "image": "berth.dev/hami-core:1"}}
    values = {"operator": {"replicas": 1}, "routing": {"enabled": False}, "isolation": isolation, **apis}
    values["nics"] = {"enabled": True, "ncclIbHca": True, "resources": {"nvidia.com/hostdev": 100}}
    site.helm("upgrade", "berth", chart.CHART, "--wait", "--timeout=120s", values=values)
    assert '"replicas": 1' in site.spec("berth-operator")
    assert served(site.api) == {path: not by_default for path, by_default in SWITCHED.items()}
    site.helm("rollback", "berth", "1", "--wait", "--timeout=120s")
    assert site.spec("berth-operator") == first
    assert served(site.api) == SWITCHED
    site.helm("uninstall", "berth", "--wait", "--timeout=120s")
    site.api.delete(f"/api/v1/namespaces/{NAMESPACE}")
    waiting.until(lambda: not differences(before, dump(site.api)), what="the cluster as it was before")


def served(api: Api) -> dict[str, bool]:
    """Return which of the switched objects are there."""
    return {path: api.exists(path) for path in SWITCHED}


def hooks(api: Api) -> list[str]:
    """Return what is left of hooks that have succeeded."""
    paths = [
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
        f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    ]
    found = [each["metadata"]["name"] for path in paths for each in api.get(path)["items"]]
    return [name for name in found if name in {"berth-crds", "berth-cleanup"}]


def test_the_jobs_account_applies_the_definitions_and_leaves_a_foreign_one(site: Site) -> None:
    site.cluster.kubectl("create", "namespace", NAMESPACE)
    objects = chart.rendered(namespace=NAMESPACE)
    for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding"):
        site.api.apply(objects[f"{kind}/berth-crds"])
    foreign = site.api.post(DEFINITIONS, foreign_pod_group())
    [container] = objects["Job/berth-crds"]["spec"]["template"]["spec"]["containers"]

    printed = site.run(*container["args"], kubeconfig=site.account("berth-crds"))
    assert f"{POD_GROUP} is not Berth's: it is used as it is" in printed
    assert site.api.get(f"{DEFINITIONS}/{POD_GROUP}")["spec"] == foreign["spec"]
    assert "devices.berth.dev created" in printed
    assert "devices.berth.dev applied" in site.run(*container["args"], kubeconfig=site.account("berth-crds"))

    site.run("cleanup", f"--namespace={NAMESPACE}", "--delete-crds")
    assert not site.api.exists(f"{DEFINITIONS}/devices.berth.dev")
    assert site.api.get(f"{DEFINITIONS}/{POD_GROUP}")["spec"] == foreign["spec"]


def foreign_pod_group() -> Manifest:
    """Return a definition of PodGroups as scheduler-plugins install it."""
    schema: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    kinds = {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": POD_GROUP, "annotations": approved},
        "spec": {"group": "scheduling.x-k8s.io", "scope": "Namespaced", "names": kinds, "versions": [version]},
    }
