"""ResourceClaims allocated by an installed chart, with its operator's rights: `make test-versions`."""

from http import HTTPStatus
from typing import Any, Final

import pytest

from devcluster import waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.objects.resource_claims import NVIDIA_DRIVER
from tests.release.site import PODS, Site

GROUP: Final = "/apis/resource.k8s.io/v1"
CLAIM: Final = f"{GROUP}/namespaces/default/resourceclaims/gpu"
NODE: Final = "node-0"
VALUES: Final = {"crds": {"install": False}, "claims": {"drivers": [NVIDIA_DRIVER]}}


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.37"], indirect=True)
def test_a_claim_is_allocated_and_released(site: Site, version: str) -> None:
    start(site, webhook=version == "1.34")
    publish(site)
    waiting.until(lambda: is_created(site), what="the pod to be admitted")
    pod = site.running("by-claim")
    assert pod["spec"]["nodeName"] == NODE
    [result] = devices(site)
    assert (result["driver"], result["pool"], result["device"]) == (NVIDIA_DRIVER, NODE, "gpu-3")
    [reserved] = status(site)["reservedFor"]
    assert reserved["uid"] == pod["metadata"]["uid"]
    site.api.delete(f"{PODS}/by-claim", grace_seconds=0)
    waiting.until(lambda: not status(site), what="the claim to be released")
    # Its finalizer goes after its status, by a write of its own.
    waiting.until(lambda: not site.api.get(CLAIM)["metadata"].get("finalizers"), what="the finalizer to be gone")


def start(site: Site, *, webhook: bool) -> None:
    """Install the chart with the driver as Berth's, and start its programs."""
    site.run("crds", "apply")
    site.install(VALUES)
    if webhook:
        site.start_webhook()
    site.start_agent()
    site.start_operator()


def publish(site: Site) -> None:
    """List the last of a node's first four cards, as its driver does, with a class and a claim of one."""
    cards = waiting.until(lambda: cards_of(site), what="the Device") or []
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    device = {"name": "gpu-3", "attributes": {"uuid": {"string": cards[3]["id"]}}}
    spec = {"driver": NVIDIA_DRIVER, "nodeName": NODE, "pool": pool, "devices": [device]}
    site.api.post(f"{GROUP}/resourceslices", {"metadata": {"name": "gpus"}, "spec": spec})
    selector = {"cel": {"expression": f'device.driver == "{NVIDIA_DRIVER}"'}}
    site.api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    claim = {"metadata": {"name": "gpu"}, "spec": {"devices": {"requests": requests}}}
    site.api.post(CLAIM.rpartition("/")[0], claim)


def cards_of(site: Site) -> list[Manifest]:
    """Return the cards in a node's Device; none before it is there."""
    path = f"/apis/berth.dev/v1alpha1/devices/{NODE}"
    cards: list[Manifest] = site.api.get(path)["spec"]["devices"] if site.api.exists(path) else []
    return cards


def is_created(site: Site) -> bool:
    """Create a pod with the claim; return whether it was admitted, by the webhook where there is one."""
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {
        "schedulerName": "berth-scheduler",
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
    }
    try:
        site.api.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "by-claim"}, "spec": spec})
    except ApiError as error:
        if error.status != HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        return False  # the webhook does not answer yet
    return True


def status(site: Site) -> dict[str, Any]:
    """Return the claim's status."""
    found: dict[str, Any] = site.api.get(CLAIM).get("status") or {}
    return found


def devices(site: Site) -> list[Manifest]:
    """Return what is allocated to the claim."""
    results: list[Manifest] = status(site)["allocation"]["devices"]["results"]
    return results
