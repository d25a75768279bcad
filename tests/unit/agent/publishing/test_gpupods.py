"""GpuPods on the API server: their names, the replacement of older agents' GpuPods, and what one refusal delays."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from berth_agent.publishing.gpupods import GpuPods
from berth_api.objects.gpupod import MAX_NAME, GpuPodSpec
from berth_client.client import ApiClient
from berth_client.errors import ApiError, CallError, Unreachable
from berth_client.refusals import BACKOFF

PATH = "/apis/berth.dev/v1alpha1/namespaces/{}/gpupods/p.n"


class Server:
    """Records writes; `errors` are the answers to writes, by path."""

    def __init__(self, *listed: dict[str, Any], **errors: CallError) -> None:
        self.listed = list(listed)
        self.errors = {PATH.format(namespace): error for namespace, error in errors.items()}
        self.applied: list[str] = []
        self.owners: list[str] = []
        self.deleted: list[str] = []
        self.now = 0.0

    async def read_list(self, _path: str, _params: Any, *, read: Callable[[Any], Any]) -> tuple[list[Any], str]:
        return list(map(read, self.listed)), "1"

    async def apply(self, path: str, body: Any, _manager: str, *, force: bool) -> dict[str, Any]:
        assert force
        if path in self.errors:
            raise self.errors[path]
        self.applied.append(path)
        self.owners += [owner["name"] for owner in body["metadata"]["ownerReferences"]]
        return {"metadata": {"uid": path}}

    async def delete(self, path: str, **_options: str) -> None:
        if path in self.errors:
            raise self.errors[path]
        self.deleted.append(path)


def of(server: Server, node: str = "n") -> GpuPods:
    return GpuPods(client=cast("ApiClient", server), node=node, clock=lambda: server.now)


def wanted(*namespaces: str) -> dict[tuple[str, str], GpuPodSpec]:
    return {(namespace, "p"): GpuPodSpec(node_name="n", pod_uid=namespace) for namespace in namespaces}


@pytest.mark.parametrize(
    ("error", "applied", "deleted"),
    [
        pytest.param(ApiError(403, "Forbidden", "no right"), ["old", "b"], ["old"], id="refused"),
        pytest.param(ApiError(500, "InternalError", "failed calling webhook"), ["old", "b"], ["old"], id="webhook"),
        pytest.param(Unreachable("no answer"), ["old"], [], id="no answer"),
    ],
)
async def test_a_refused_gpu_pod_delays_no_other(error: CallError, applied: list[str], deleted: list[str]) -> None:
    server = Server(a=error)
    gpu_pods = of(server)
    await gpu_pods.apply(wanted("old"))
    with pytest.raises(type(error)):
        await gpu_pods.apply(wanted("a", "b"))
    assert server.applied == [PATH.format(namespace) for namespace in applied]
    assert server.deleted == [PATH.format(namespace) for namespace in deleted]
    server.errors.clear()
    if error.status == HTTPStatus.FORBIDDEN:
        with pytest.raises(ApiError):
            await gpu_pods.apply(wanted("a", "b"))
        assert PATH.format("a") not in server.applied, "it pauses after a refusal"
        server.now += BACKOFF.first
    await gpu_pods.apply(wanted("a", "b"))
    assert {PATH.format("a"), PATH.format("b")} <= set(server.applied)


@pytest.mark.parametrize(
    "error", [ApiError(403, "Forbidden", "no"), ApiError(500, "InternalError", "webhook")], ids=str
)
async def test_a_gpu_pod_that_cannot_be_deleted_delays_no_other(error: ApiError) -> None:
    server = Server()
    gpu_pods = of(server)
    await gpu_pods.apply(wanted("a", "b", "c"))
    server.errors[PATH.format("a")] = error
    with pytest.raises(ApiError):
        await gpu_pods.apply({})
    assert server.deleted == [PATH.format("b"), PATH.format("c")]
    server.errors.clear()
    server.now += BACKOFF.first
    await gpu_pods.apply({})
    assert server.deleted[2:] == [PATH.format("a")]


def gpu_pod(name: str, node: str = "n") -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"nodeName": node, "podUID": "ns"}}


async def test_a_gpu_pod_of_an_older_agent_is_replaced() -> None:
    """It has the pod's name; that of another node with the same label stays."""
    server = Server(gpu_pod("p"), gpu_pod("q", node="n-other"))
    gpu_pods = of(server)
    await gpu_pods.resync()
    await gpu_pods.apply(wanted("ns"))
    assert (server.applied, server.owners) == ([PATH.format("ns")], ["p"])
    assert server.deleted == [PATH.format("ns").removesuffix(".n")]
    await gpu_pods.apply(wanted("ns"))
    assert (len(server.applied), len(server.deleted)) == (1, 1)


async def test_a_pod_whose_gpu_pod_would_have_too_long_a_name_delays_no_other_and_is_logged_once() -> None:
    server = Server()
    gpu_pods = of(server)
    pods = {("ns", letter * length): wanted("ns")["ns", "p"] for letter, length in (("x", 252), ("y", 251))}
    with capture_logs() as logs:
        for _ in range(3):
            await gpu_pods.apply(pods)
    assert [len(path.rpartition("/")[2]) for path in server.applied] == [MAX_NAME]
    assert [(line["gpu_pod"], line["most"]) for line in logs if line["log_level"] == "warning"] == [
        (f"ns/{'x' * 252}.n", MAX_NAME)
    ]
