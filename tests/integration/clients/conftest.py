"""Clients of one arena: as administrator, as the operator's account, and through a faulty network."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_client.errors import ApiError
from berth_client.objects import Object
from berth_operator.clients import kube
from devcluster import Arena, Cluster, waiting
from tests.programs import fence
from tests.stand_ins.proxy import FaultProxy

POLICIES = "/apis/admissionregistration.k8s.io/v1"
ACCOUNT = "operator"
ACTIVE_SECONDS = 120.0
"""Until the API server has loaded a policy; it looks for new kinds, such as that of its parameter, every 30 s."""


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[kube.KubeClient]:
    client = await kube.KubeClient.connect(cluster.kubeconfig, "berth-test/admin")
    yield client
    client.close()


@pytest.fixture
async def proxied(cluster: Cluster, proxy: FaultProxy) -> AsyncIterator[kube.KubeClient]:
    client = await kube.KubeClient.connect(proxy.kubeconfig(cluster.token), "berth-test/proxied")
    yield client
    client.close()


@dataclass(kw_only=True)
class Fenced:
    """An arena with a fence of its own for the binds of one account."""

    arena: Arena
    kubeconfig: Path
    client: kube.KubeClient
    pods: int = 0

    def pod(self) -> str:
        self.pods += 1
        name = f"p{self.pods}"
        self.arena.create([self.arena.pod(name)])
        return name

    def binding(self, pod: str, *, term: object = None, label: str | None = None) -> Object:
        metadata: dict[str, Any] = {"name": pod}
        if label is not None:
            metadata["labels"] = {"berth.dev/fenced-by": label}
        if term is not None:
            metadata["annotations"] = {"berth.dev/epoch": str(term)}
        return {"metadata": metadata, "target": {"kind": "Node", "name": "nowhere"}}

    async def bind(
        self,
        *,
        client: kube.KubeClient | None = None,
        term: object = None,
        label: str | None = None,
        pod: str | None = None,
    ) -> int:
        """Bind a pod, a new one unless named; return the HTTP status, 201 if it is accepted."""
        pod = pod or self.pod()
        binding = self.binding(pod, term=term, label=label)
        try:
            await (client or self.client).bind(self.arena.namespace, pod, binding)
        except ApiError as error:
            return error.status
        return 201

    async def until_active(self, *, term: object, label: str | None) -> None:
        """Wait until the API server has compiled the policies, which takes a second, or more on a busy machine."""

        async def is_refused() -> bool:
            return await self.bind(term=term, label=label) != 201

        await waiting.until_async(is_refused, deadline=ACTIVE_SECONDS, what="the policies to be in force")


@pytest.fixture
async def fenced(arena: Arena) -> AsyncIterator[Fenced]:
    kubeconfig = arena.service_account(ACCOUNT, "cluster-admin")
    client = await kube.KubeClient.connect(kubeconfig, "berth-test/operator")
    own = Fenced(arena=arena, kubeconfig=kubeconfig, client=client)
    documents = fence.fence(namespace=arena.namespace, lease=arena.lease_name, service_account=ACCOUNT, suffix=arena.id)
    try:
        arena.apply(documents)
        await own.until_active(term=1, label=None)
        await own.until_active(term=1, label=arena.lease_name)
        yield own
    finally:
        for document in documents:
            arena.cluster.api.delete(arena.cluster.api.path_of(document))
        client.close()


def manifests(name: str) -> list[dict[str, Any]]:
    """Return the documents of one file of manifests/base."""
    path = Path(__file__).parents[3] / "manifests/base" / name
    return list(yaml.safe_load_all(path.read_text()))
