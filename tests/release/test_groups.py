"""Kubernetes' own PodGroups, with the rights of an installed chart: `make test-versions`."""

from typing import Any, Final

import pytest

from devcluster import waiting
from devcluster.control_plane.api import Manifest
from tests.release.site import PODS, Site

GROUPS: Final = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
VALUES: Final = {"crds": {"install": False}}


@pytest.fixture
def api_server_flags() -> list[str]:
    """Return the flags by which an API server of 1.37 serves PodGroups."""
    gates = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
    return [f"--feature-gates={gates}", "--runtime-config=scheduling.k8s.io/v1beta1=true"]


@pytest.mark.parametrize("version", ["1.37"], indirect=True)
def test_a_group_is_bound_as_a_whole_and_shows_it(site: Site, version: str) -> None:
    assert version == "1.37"
    site.run("crds", "apply")
    site.install(VALUES)
    site.start_operator()
    create(site, "g-0", "g", cpu="1")
    waiting.until(lambda: "waiting for pods's pod group" in message(site, "g-0"), what="the wait for the group")
    create_group(site, "g", minimum=2)
    waiting.until(lambda: "waiting for members: 1 of 2" in message(site, "g-0"), what="the wait for members")
    create(site, "g-1", "g", cpu="1")
    assert site.running("g-0")["spec"]["nodeName"]
    assert site.running("g-1")["spec"]["nodeName"]
    waiting.until(lambda: shown(site, "g") == ("True", "Scheduled"), what="the condition of the group")

    create_group(site, "large", minimum=2)
    for name in ("large-0", "large-1"):
        create(site, name, "large", cpu="9000")
    waiting.until(lambda: shown(site, "large") == ("False", "Unschedulable"), what="the condition of the other group")
    assert site.api.get(f"{GROUPS}/large")["status"]["conditions"][0]["message"]


def create_group(site: Site, name: str, *, minimum: int) -> None:
    """Create a PodGroup of the gang policy."""
    spec = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
    body = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
    site.api.post(GROUPS, body)


def create(site: Site, name: str, group: str, *, cpu: str) -> None:
    """Create a pod of a group."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    spec = {
        "schedulerName": "berth-scheduler",
        "containers": [container],
        "schedulingGroup": {"podGroupName": group},
    }
    site.api.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def message(site: Site, name: str) -> str:
    """Return why a pod waits."""
    found = condition(site.api.get(f"{PODS}/{name}"), "PodScheduled")
    return str(found.get("message", ""))


def shown(site: Site, group: str) -> tuple[str, str]:
    """Return status and reason of a group's condition."""
    found = condition(site.api.get(f"{GROUPS}/{group}"), "PodGroupInitiallyScheduled")
    return str(found.get("status", "")), str(found.get("reason", ""))


def condition(raw: Manifest, kind: str) -> dict[str, Any]:
    """Return a condition of an object; empty if it has none of this type."""
    conditions: list[dict[str, Any]] = (raw.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})
