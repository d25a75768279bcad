"""GpuPods on the API server: what one refusal delays."""

from typing import Any, cast

import pytest

from berth_agent.publishing.gpupods import GpuPods
from berth_api.objects.gpupod import GpuPodSpec
from berth_client.client import ApiClient
from berth_client.errors import ApiError, CallError, Unreachable

PATH = "/apis/berth.dev/v1alpha1/namespaces/{}/gpupods/p"


class Server:
    """Records writes; `errors` are the answers to applies, by path."""

    def __init__(self, **errors: CallError) -> None:
        self.errors = {PATH.format(namespace): error for namespace, error in errors.items()}
        self.applied: list[str] = []
        self.deleted: list[str] = []

    async def apply(self, path: str, _body: Any, _manager: str) -> dict[str, Any]:
        if path in self.errors:
            raise self.errors[path]
        self.applied.append(path)
        return {"metadata": {"uid": path}}

    async def delete(self, path: str, **_options: str) -> None:
        self.deleted.append(path)


def wanted(*namespaces: str) -> dict[tuple[str, str], GpuPodSpec]:
    return {(each, "p"): GpuPodSpec(node_name="n", pod_uid=each) for each in namespaces}


@pytest.mark.parametrize(
    ("error", "applied", "deleted"),
    [
        pytest.param(ApiError(403, "Forbidden", "terminating"), ["old", "b"], ["old"], id="refused"),
        pytest.param(Unreachable("no answer"), ["old"], [], id="no answer"),
    ],
)
async def test_a_refused_gpu_pod_delays_no_other(error: CallError, applied: list[str], deleted: list[str]) -> None:
    server = Server(a=error)
    gpu_pods = GpuPods(client=cast("ApiClient", server), node="n")
    await gpu_pods.apply(wanted("old"))
    with pytest.raises(type(error)):
        await gpu_pods.apply(wanted("a", "b"))
    assert server.applied == [PATH.format(each) for each in applied]
    assert server.deleted == [PATH.format(each) for each in deleted]
    server.errors.clear()
    await gpu_pods.apply(wanted("a", "b"))
    assert {PATH.format("a"), PATH.format("b")} <= set(server.applied)
