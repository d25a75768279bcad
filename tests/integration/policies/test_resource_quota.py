"""Which requests of devices a ResourceQuota limits, as the documents say."""

from typing import Final

import pytest

from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError

DEADLINE: Final = 30.0
COUNTED: Final = ("nvidia.com/gpu", "koordinator.sh/gpu")
NOT_COUNTED: Final = "kubernetes.io/gpu"


def create(arena: Arena, name: str, amount: str) -> None:
    """Create a pod with so much of a resource, without storing it."""
    container = {"name": "main", "image": "none", "resources": {"limits": {name: amount}}}
    pod = arena.pod("pod", containers=[container], scheduler_name=arena.scheduler_name)
    path = f"/api/v1/namespaces/{arena.namespace}/pods"
    arena.cluster.api.request("POST", path, body=pod, query={"dryRun": "All"})


def test_a_resource_quota_limits_extended_resources_and_none_of_kubernetes(arena: Arena) -> None:
    hard = {f"requests.{name}": "1" for name in (*COUNTED, NOT_COUNTED)}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cards"}, "spec": {"hard": hard}}
    arena.apply(quota)
    used = waiting.until(
        lambda: arena.get("resourcequotas", "cards").get("status", {}).get("used"), deadline=DEADLINE, what="the quota"
    )
    assert used == {f"requests.{name}": "0" for name in COUNTED}
    for name in COUNTED:
        create(arena, name, "1")
        with pytest.raises(ApiError, match="exceeded quota: cards"):
            create(arena, name, "2")
    create(arena, NOT_COUNTED, "2")
