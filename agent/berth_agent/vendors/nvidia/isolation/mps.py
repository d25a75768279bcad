"""The provider of `berth.dev/mps`: it mounts the daemon's folder, and before each start applies Berth's limits."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from berth_agent.conditions import Finding
from berth_agent.isolation.provider import AnyUnit, ListPods, NodeView, ProviderStatus
from berth_agent.kubelet.admission.admission import UnavailableError
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet_api.deviceplugin_pb2 import ContainerAllocateResponse, Mount
from berth_agent.vendor import RefusedError
from berth_agent.vendors.nvidia.hand_over import resources
from berth_agent.vendors.nvidia.isolation import limits
from berth_agent.vendors.nvidia.isolation.control import PIPE_DIRECTORY, ControlError, MpsControl
from berth_agent.vendors.nvidia.isolation.daemon import MpsDaemon
from berth_api import names
from berth_api.names import GPU, MPS_RESOURCE
from berth_api.values import listing
from berth_client import times

MODE: Final = "mps"
"""The value of the Node's label."""
PIPE: Final = "/run/berth/mps"
"""The daemon's folder, as containers see it."""
NAMED: Final = 10
"""Pods that a condition names."""


class MpsProvider(AnyUnit):
    """Allocates to containers the MPS daemon of the node."""

    def __init__(self, *, folder: Path, program: str, list_pods: ListPods) -> None:
        self.resource = MPS_RESOURCE
        self._folder = folder
        self._daemon = MpsDaemon(MpsControl(program=program, folder=folder))
        self._list_pods = list_pods
        self._node: NodeView | None = None
        self._listed: dict[str, Pod] = {}
        """UID -> pod in the last list that the watch has not shown since: the watch may be later than kubelet."""
        self._listed_for: set[str] = set()
        """Units whose pods the list had."""

    async def check(self, node: NodeView) -> ProviderStatus:
        """Set the limits of the containers that are there, and see whether the daemon answers."""
        self._node = node
        shown = {pod.uid for pod in node.pods}
        self._listed = {uid: pod for uid, pod in self._listed.items() if uid not in shown}
        shared = any(True for _ in limits.sharing(node.pods))
        if not shared and node.labels.get(names.ISOLATION_KEY) != MODE:
            return ProviderStatus(wanted=False, healthy=False)
        try:
            await self._ensure()
            await self._daemon.look_for_lost_servers()
        except ControlError as error:
            ended = _running(node.pods, before=None)
            message = f"{error}; containers with shares wait for their start" + (
                f"; running with errors: {ended}" if ended else ""
            )
            finding = Finding(type=names.MPS_SERVING, ok=False, reason="NotRunning", message=message)
            return ProviderStatus(wanted=True, healthy=False, findings=(finding,))
        finding = Finding(type=names.MPS_SERVING, ok=True, reason="Serving")
        if ended := _running(node.pods, before=self._daemon.since):
            moment = datetime.fromtimestamp(self._daemon.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            message = (
                "the daemon or its server ended; "
                f"processes of CUDA that began before {moment} get errors: restart {ended}"
            )
            finding = Finding(type=names.MPS_SERVING, ok=True, reason="Restarted", message=message)
        return ProviderStatus(wanted=True, healthy=True, findings=(finding,))

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocateResponse:  # noqa: ARG002
        """Return the daemon's folder. Whether the daemon answers is asked before the start, which is tried again."""
        self._listed_for.difference_update(ids)
        return ContainerAllocateResponse(
            envs={PIPE_DIRECTORY: PIPE},
            mounts=[Mount(container_path=PIPE, host_path=str(self._folder), read_only=True)],
        )

    async def before_start(self, ids: Sequence[str]) -> None:
        """Set limits that suffice for the container.

        Raises:
            RefusedError: the daemon does not answer, or the container is not known yet.
        """
        try:
            if not self._listed_for.issuperset(ids):
                pods, _ = await self._list_pods()
                self._listed = {pod.uid: pod for pod in pods}
                self._listed_for.update(ids)
            await self._ensure()
        except (ControlError, UnavailableError) as error:
            raise RefusedError(
                f"a container with a share by MPS must not start without the MPS daemon and its limits: {error}; "
                "kubelet tries again (docs/mps.md)"
            ) from error

    async def _ensure(self) -> None:
        if self._node is None:
            raise ControlError("the agent has not read the node's cards yet")
        if divided := [
            card.minor for card in self._node.spec.devices if card.type == GPU and resources.is_divided(card)
        ]:
            raise ControlError(f"cards {', '.join(map(str, divided))} are in MIG mode: MPS numbers other devices then")
        known = {**self._listed, **{pod.uid: pod for pod in self._node.pods}}
        await self._daemon.ensure(limits.largest(known.values(), self._node.spec))


def _running(pods: Iterable[Pod], *, before: float | None) -> str:
    """List the pods with a container that shares by MPS and runs, since before a time in seconds if one is given."""
    running = {
        pod.key
        for pod, container in limits.sharing(pods)
        if (started := pod.started_at.get(container.name))
        # Kubelet reports whole seconds.
        # Without a known time, it may have run for long.
        and (before is None or times.seconds(started, 0) < int(before))
    }
    return listing.first_of(sorted(running), NAMED)
