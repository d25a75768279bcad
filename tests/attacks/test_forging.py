"""No kind of write and no subresource sets, changes or removes a protected key of a bound pod, by any account."""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

from devcluster import Arena
from devcluster.control_plane.api import Api, ApiError
from tests.attacks.accounts import Accounts

ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
PROTECTED: Final = {
    ALLOCATED: "{}",
    "berth.dev/epoch": "1",
    "main.devices.berth.dev/visible": "GPU-1",
    "main.devices.berth.dev/memory-limit-0": "1",
}
ABSENT: Final = "other.devices.berth.dev/visible"
CHANGES: Final[Mapping[str, tuple[str, str | None]]] = {
    **{f"change {key}": (key, "forged") for key in PROTECTED},
    **{f"remove {key}": (key, None) for key in PROTECTED},
    "set": (ABSENT, "GPU-2"),
}
SUBRESOURCES: Final = ("", "/status", "/ephemeralcontainers", "/resize")
PATCHES: Final = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


@pytest.fixture(scope="module")
def bound(arena: Arena, accounts: Accounts) -> Mapping[str, Any]:
    """Return a pod with all protected annotations, which the operator bound."""
    [node] = arena.nodes(1)
    operator, agent = accounts.client("berth-operator"), accounts.client("berth-agent", node=node)
    accounts.wait(agent, f"/api/v1/nodes/{node}", {"metadata": {"labels": {"example.com/a": "b"}}})
    # It never runs: kwok's nodes cannot resize running pods.
    arena.create([arena.pod("forged", annotations={"pod-ready.stage.kwok.x-k8s.io/delay": "1h"})])
    body = {"metadata": {"name": "forged", "annotations": PROTECTED}, "target": {"kind": "Node", "name": node}}
    operator.post(f"{path(arena)}/binding", body)
    return arena.get("pods", "forged")


def path(arena: Arena) -> str:
    return f"/api/v1/namespaces/{arena.namespace}/pods/forged"


def written(pod: Mapping[str, Any], key: str, value: str | None) -> dict[str, Any]:
    """Return the whole pod with another value of an annotation."""
    annotations = {name: text for name, text in {**pod["metadata"]["annotations"], key: value}.items() if text}
    metadata = {**pod["metadata"], "annotations": annotations}
    metadata.pop("resourceVersion")
    return {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": metadata}


def patch(kind: str, key: str, value: str | None) -> Any:
    """Return a patch that sets an annotation, or removes it."""
    if kind == "json":
        target = f"/metadata/annotations/{key.replace('/', '~1')}"
        return [{"op": "remove", "path": target} if value is None else {"op": "add", "path": target, "value": value}]
    body: dict[str, Any] = {"metadata": {"annotations": {key: value}}}
    return {"apiVersion": "v1", "kind": "Pod", **body} if kind == "apply" else body


class Write(NamedTuple):
    """A way to write an object."""

    body: Any
    content_type: str
    method: str = "PATCH"
    query: Mapping[str, str] = MappingProxyType({})


def writes(pod: Mapping[str, Any], key: str, value: str | None) -> dict[str, Write]:
    """Return every way to give an annotation of a pod another value."""
    ways = {"update": Write(written(pod, key, value), "application/json", method="PUT")}
    ways |= {kind: Write(patch(kind, key, value), PATCHES[kind]) for kind in PATCHES}
    ways["apply"] = ways["apply"]._replace(query={"fieldManager": "forger", "force": "true"})
    if value is None:
        del ways["apply"]  # it removes no field that another manager owns
    return ways


def refused_or_ignored(api: Api, url: str, write: Write) -> bool:
    """Return whether a dry run is forbidden, or leaves the annotations as they are."""
    query = {"dryRun": "All", **write.query}
    try:
        answer = api.request(write.method, url, body=write.body, query=query, content_type=write.content_type)
    except ApiError as error:
        if error.status == HTTPStatus.FORBIDDEN and "only Berth's scheduler says" in str(error):
            return True
        raise
    annotations = answer["metadata"]["annotations"]
    return {key: annotations.get(key) for key in (*PROTECTED, ABSENT)} == {**PROTECTED, ABSENT: None}


@pytest.mark.parametrize("subresource", SUBRESOURCES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_bound_pod_keeps_what_the_scheduler_wrote(
    arena: Arena, bound: Mapping[str, Any], change: str, subresource: str
) -> None:
    key, value = CHANGES[change]
    api, url = arena.cluster.api, path(arena) + subresource
    outcomes = {kind: refused_or_ignored(api, url, write) for kind, write in writes(bound, key, value).items()}
    assert outcomes == dict.fromkeys(outcomes, True)
