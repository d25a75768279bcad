"""The operator's client of the API server: login, and the calls for pods and Events.

Leader election has its own client, so that renewals never queue behind a thousand binds.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

from berth_client.client import MERGE, METADATA, STRATEGIC, ApiClient
from berth_client.credentials import Login
from berth_client.objects import Object
from berth_operator.clients import logins

MAX_WATCHES: Final = 1024
"""Two for each profile and one for each kind. A watch beyond the limit would wait until another one ends."""


class KubeClient(ApiClient):
    """Requests to one API server as one user."""

    @classmethod
    async def connect(cls, kubeconfig: Path | None, user_agent: str, *, limit: int = 64) -> Self:
        """Log in by a kubeconfig, or in-cluster without one; `limit` connections for requests at most.

        Raises:
            CredentialsError: the login cannot be used.
        """
        return cls.of(await logins.load(kubeconfig), user_agent=user_agent, limit=limit, watches=MAX_WATCHES)

    def check_for_kopf(self) -> None:
        """Check that kopf can use our login; raise CredentialsError if not."""
        logins.check_for_kopf(self._tokens.login)

    async def credentials(self) -> tuple[Login, str | None]:
        """Return our current login and Authorization header for kopf, which opens its own session."""
        authorization = await self._tokens.authorization()
        return self._tokens.login, authorization

    async def get_pod(self, namespace: str, name: str) -> Object:
        """Read a pod at quorum."""
        return await self.get(_pod(namespace, name))

    known_renewal: Callable[[], str] = staticmethod(lambda: "")
    """Returns the field manager of Bindings, with which the fence refuses an API server with an earlier state."""

    async def bind(self, namespace: str, name: str, binding: Object) -> None:
        """Bind a pod to its node, together with its annotations."""
        manager = self.known_renewal()
        params = {"fieldManager": manager} if manager else None
        await self.request("POST", f"{_pod(namespace, name)}/binding", params=params, body=binding, decode=False)

    async def annotate_pod(self, pod: Object, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod; a 409 if it has changed since it was read."""
        metadata = pod["metadata"]
        same = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        patch = {"metadata": {**same, "annotations": dict(annotations)}}
        await self._patch(_pod(metadata["namespace"], metadata["name"]), patch, MERGE)

    async def patch_pod_status(self, namespace: str, name: str, patch: Object) -> None:
        """Patch a pod's status by strategic merge. Lists such as conditions merge by their key."""
        await self._patch(f"{_pod(namespace, name)}/status", patch, STRATEGIC)

    async def delete_pod(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        """Delete a pod if it still has this UID; a 409 if it was replaced by another of the same name.

        A dry run deletes nothing, and is refused as the deletion would be.
        """
        await self.delete(_pod(namespace, name), uid=uid, dry_run=dry_run)

    async def evict_pod(self, namespace: str, name: str, uid: str) -> None:
        """Evict a pod if it still has this UID; a 429 if a PodDisruptionBudget forbids it for now."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        await self.request("POST", f"{_pod(namespace, name)}/eviction", body=body, decode=False)

    async def create_event(self, namespace: str, event: Object) -> None:
        """Create an events.k8s.io/v1 Event."""
        await self.request("POST", _events(namespace), body=event, decode=False)

    async def patch_event(self, namespace: str, name: str, patch: Object) -> None:
        """Patch an events.k8s.io/v1 Event."""
        await self._patch(f"{_events(namespace)}/{name}", patch, MERGE)

    async def _patch(self, path: str, patch: Object, content_type: str) -> None:
        """Patch an object; the answer has its metadata alone, as a pod may have a megabyte."""
        await self.request("PATCH", path, body=patch, content_type=content_type, accept=METADATA, decode=False)


def _pod(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _events(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
