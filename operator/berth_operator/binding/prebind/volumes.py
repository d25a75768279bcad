"""Bind a pod's VolumeClaims before the pod itself.

For each claim that waits for its first consumer, the decision has chosen a volume, or a node for which a volume is to
be provisioned. This module writes the choice to the API server. Kubernetes' volume controller and the drivers do the
rest, which takes up to minutes. Until then, the pod's charge and its volumes stay assumed.

Each write names the resourceVersion that the decision was based on. So a claim or volume that changed in between is not
overwritten. A failure is not rolled back: the claim will be bound, and the pod's next decision takes that into account.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from berth_api.values import keys
from berth_client.errors import CallError
from berth_operator.binding.prebind.changes import Changes, GoneError, PreBindError
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.fleet.volume_choice import matching_mask
from berth_operator.core.values.storage import Volume, VolumeClaim
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects.volumes import SELECTED_NODE

BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
"""Annotation that marks a volume as bound by a controller, not reserved by a user."""


class VolumeClaimPatcher(Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def merge_patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Patch an object by JSON merge patch."""


class VolumeError(PreBindError):
    """A pod's claims could not be bound."""


class VolumeBinder:
    """Binds the claims of many pods concurrently."""

    def __init__(self, *, api: VolumeClaimPatcher, cluster: Cluster, timeout: float) -> None:
        self._api, self._cluster, self._timeout = api, cluster, timeout
        self._volumes = cluster.fleet.volumes
        self._changes = Changes()
        self._writes: dict[str, asyncio.Task[int]] = {}
        """Path -> the write of a bind in progress; other pods that share the claim await it."""

    def changed(self, claim: str) -> None:
        """Wake the binds that wait for a claim, because it or its volume changed."""
        self._changes.changed(claim)

    def end(self) -> None:
        """End all binds in progress, because the process ends."""
        self._changes.end()

    async def bind(self, placement: Placement, leads: Callable[[], bool]) -> None:
        """Write the placement's volumes, and wait until its claims are bound.

        Args:
            placement: a placement that is assumed.
            leads: returns whether we still lead.

        Raises:
            VolumeError: a claim could not be bound, or not in time.
            GoneError: the pod is gone, or our term has ended.
        """
        begun: list[str] = []
        try:
            async with asyncio.timeout(self._timeout):
                written = await self._write(placement, leads, begun)
                claims = {*(key for key, _ in placement.volumes.bindings), *placement.volumes.provisions}
                await self._changes.wait_until(lambda: self._is_done(placement, written, leads), claims)
        except TimeoutError:
            raise VolumeError(f"binding volumes: not done within {self._timeout:g} s") from None
        except CallError as error:
            raise VolumeError(f"binding volumes: {error}") from error
        finally:
            for path in begun:
                del self._writes[path]

    def check(self, placement: Placement) -> None:
        """Check that the volumes of the pod's claims, which may have been bound for other pods, are usable on its node.

        Raises:
            VolumeError: the node affinity of a volume excludes the node.
        """
        for use in placement.pod.request.mounts.claims:
            if volume := self._claim(use.claim).volume:
                self._check_node_affinity(placement, self._volume(volume))

    # --- writing ----------------------------------------------------------------------------------------------

    async def _write(self, placement: Placement, leads: Callable[[], bool], begun: list[str]) -> dict[str, int]:
        """Write all claims and volumes; return the version of each, and add the paths of the writes to `begun`."""
        written: dict[str, int] = {}
        for key, name in placement.volumes.bindings:
            self._check(placement, leads)
            volume, claim = self._volume(name), self._claim(key)
            if not (volume.is_for(claim) and volume.claim_uid):
                # Reserve the volume for the claim.
                metadata: dict[str, Any] = {"resourceVersion": volume.version}
                if not volume.is_for(claim):
                    metadata["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
                namespace, claim_name = keys.split(claim.key)
                ref = {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": namespace,
                    "name": claim_name,
                    "uid": claim.uid,
                    "resourceVersion": claim.version,
                }
                patch = {"metadata": metadata, "spec": {"claimRef": ref}}
                written[name] = await self._write_once(f"/api/v1/persistentvolumes/{name}", patch, begun)
        for key in placement.volumes.provisions:
            self._check(placement, leads)
            claim = self._claim(key)
            if claim.selected_node != placement.node:
                namespace, name = keys.split(key)
                path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
                metadata = {"resourceVersion": claim.version, "annotations": {SELECTED_NODE: placement.node}}
                written[key] = await self._write_once(path, {"metadata": metadata}, begun)
        return written

    async def _write_once(self, path: str, body: dict[str, Any], begun: list[str]) -> int:
        """Write a patch, or await the same write by another pod; return the new version."""
        if path not in self._writes:
            self._writes[path] = asyncio.create_task(self._patch(path, body))
            # Retrieve the exception here: the pods that wait may be gone when the write fails.
            self._writes[path].add_done_callback(lambda task: task.cancelled() or task.exception())
            begun.append(path)
        return await asyncio.shield(self._writes[path])

    async def _patch(self, path: str, body: dict[str, Any]) -> int:
        patched = await self._api.merge_patch(path, body)
        return int(patched["metadata"]["resourceVersion"])

    # --- waiting ----------------------------------------------------------------------------------------------

    def _is_done(self, placement: Placement, written: dict[str, int], leads: Callable[[], bool]) -> bool:
        """Return whether the watch shows all claims as bound; raise VolumeError if a claim can no longer be bound."""
        self._check(placement, leads)
        all_bound = True
        for key, name in placement.volumes.bindings:
            volume, claim = self._volume(name), self._claim(key)
            if int(volume.version or 0) < written.get(name, 0):
                all_bound = False  # what the watch shows is older than what we wrote
                continue
            self._check_node_affinity(placement, volume)
            if not volume.claim_uid:
                raise VolumeError(f'binding volumes: ClaimRef got reset for pv "{name}"')
            all_bound = all_bound and claim.bound
        for key in placement.volumes.provisions:
            claim = self._claim(key)
            if int(claim.version or 0) < written.get(key, 0):
                all_bound = False
                continue
            if claim.selected_node != placement.node:
                # A provisioner that fails removes or changes the annotation.
                raise VolumeError(f'binding volumes: provisioning failed for PVC "{keys.split(key)[1]}"')
            if claim.volume:
                provisioned = self._volumes.volumes.get(claim.volume)
                if provisioned is None:
                    all_bound = False  # the watch of volumes is behind
                    continue
                self._check_node_affinity(placement, provisioned)
            all_bound = all_bound and claim.bound
        return all_bound

    # --- what must hold meanwhile -----------------------------------------------------------------------------

    def _check(self, placement: Placement, leads: Callable[[], bool]) -> None:
        if self._changes.ended or not leads() or placement.pod.uid not in self._cluster.pending:
            raise GoneError
        if placement.node not in self._cluster.node_cache.nodes:
            raise VolumeError(f'binding volumes: node "{placement.node}" is gone')

    def _check_node_affinity(self, placement: Placement, volume: Volume) -> None:
        fleet = self._cluster.fleet
        if not matching_mask(fleet, volume.affinity)[fleet.rows[placement.node]]:
            raise VolumeError(
                f'binding volumes: pv "{volume.name}" node affinity doesn\'t match node "{placement.node}"'
            )

    def _claim(self, key: str) -> VolumeClaim:
        if (claim := self._volumes.claims.get(key)) is None:
            raise VolumeError(f'binding volumes: persistentvolumeclaim "{keys.split(key)[1]}" not found')
        return claim

    def _volume(self, name: str) -> Volume:
        if (volume := self._volumes.volumes.get(name)) is None:
            raise VolumeError(f'binding volumes: persistentvolume "{name}" not found')
        return volume
