"""Answer kubelet for the scheduler: prefer the annotated devices, and refuse what no waiting pod explains.

kubelet admits one pod at a time. Before each answer, the agent reads kubelet's records, which show who got the last
allocation. The agent does not read them while kubelet waits for the answer to an Allocate. kubelet could then count
devices as free that it is about to allocate.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NoReturn, Protocol

import structlog

from berth_agent.event_writer import DEVICES_REFUSED, InvolvedObject
from berth_agent.kubelet.admission import choice
from berth_agent.kubelet.admission.checkpoint import CheckpointData
from berth_agent.kubelet.admission.choice import DefaultPreference, PreferenceRequest, Proposal
from berth_agent.kubelet.admission.mirror import ContainerReport, Holding, Mirror, PendingAllocation
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.admission.snapshot import Ids
from berth_agent.kubelet.admission.units import Units
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError
from berth_agent.readings import ClaimedByContainer
from berth_api.device import ClaimedDevice
from berth_api.values import keys

LIST_SECONDS: Final = 1.0
"""Kubelet admits nothing while it waits for us."""
NAMED: Final = 3
"""Pods that a refusal names."""
LISTED: Final = 16
"""Devices that it names of each."""
QUIET: Final = 0.5
"""Seconds without a new pod after which the scheduler is expected to know that the agent is leaving."""
STOPPED_SECONDS: Final = 10.0
"""Seconds between two looks for pods that are being deleted and have stopped. Two looks in a row must show it, because
kubelet may be starting a pod whose deletion it has not seen."""
POLL: Final = 0.05
"""Seconds between two looks for waiting pods."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class UnavailableError(Exception):
    """Kubelet or the API server does not answer."""


class KubeletClient(Protocol):
    """The PodResources API."""

    @property
    def claim_users(self) -> tuple[ClaimedByContainer, ...]:
        """Return the devices of ResourceClaims that each container had by the last answer, sorted by device."""
        ...

    async def list_containers(self) -> tuple[ContainerReport, ...]:
        """Return what kubelet allocated to containers.

        Raises:
            UnavailableError: it does not answer.
        """
        ...


class PodSource(Protocol):
    """The pods of the node on the API server."""

    async def pods(self) -> tuple[list[Pod], int]:
        """List the node's pods at quorum, with the version of the list.

        Raises:
            UnavailableError: it does not answer.
        """
        ...


class EventSink(Protocol):
    """Events about pods."""

    def warn(self, involved: InvolvedObject, reason: str, message: str) -> None:
        """Have an Event created. Kubelet does not wait for it."""
        ...


class CheckpointStore(Protocol):
    """The checkpoint of the previous run."""

    def load(self) -> CheckpointData:
        """Return the data of the last run."""
        ...

    def is_changed(self) -> bool:
        """Return whether another program removed or changed the data since they were saved."""
        ...

    def save(self, *, pending: Iterable[PendingAllocation], holdings: Iterable[Holding], units: Units) -> None:
        """Save the data.

        Raises:
            OSError: it cannot be written.
        """
        ...


class Admission:
    """The admission of one node."""

    def __init__(
        self,
        *,
        kubelet: KubeletClient,
        server: PodSource,
        events: EventSink,
        memory: CheckpointStore,
        running: Callable[[], frozenset[str]],
        default_preference: DefaultPreference = choice.first_available,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mirror = Mirror()
        self.default_preference = default_preference
        """Chooses among devices that no pod has."""
        self.known = asyncio.Event()
        """Set when the node's pods are known."""
        self.changed = asyncio.Event()
        """Set when something may have changed."""
        self.answers: bool | None = None
        """Whether kubelet answered the last query; None before the first one."""
        self.has_news = False
        """Whether the last refresh may have found something new."""
        self._kubelet = kubelet
        self._server = server
        self._events = events
        self._memory = memory
        self._running = running
        self._clock = clock
        self._lock = asyncio.Lock()
        self._proposal: Proposal | None = None
        self._failure = ""
        self._unsaved = ""
        """Why the checkpoint could not be written last; empty if it could."""
        self._idle: frozenset[str] = frozenset()
        """UIDs of the pods that had stopped at the last look."""
        self._look_at = 0.0
        """When to look again."""
        self._reports: tuple[ContainerReport, ...] | None = None
        """What kubelet reported last."""
        self.claim_users: tuple[ClaimedByContainer, ...] = ()
        """The devices of ResourceClaims in this report, for each container."""

    @property
    def claimed(self) -> tuple[ClaimedDevice, ...]:
        """Return the devices of ResourceClaims that containers had by kubelet's last answer, each once, sorted."""
        return tuple(dict.fromkeys(user.device for user in self.claim_users))

    # --- what the device plugin asks ---------------------------------------------------------------------------

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str]:
        """Propose devices for the container that kubelet is admitting; fewer than `size` where there are no more."""
        request = PreferenceRequest(resource=resource, available=available, must=must_include, size=size)
        async with self._lock:
            await self._read_kubelet()
            self.mirror.release_offered(resource, frozenset(available).difference(must_include))
            await self._release_ended()
            proposal = self._propose(request)
            if proposal is None or not self._is_sure(proposal, size):
                await self._list_pods()
                proposal = self._propose(request)
            self._proposal = proposal
            if proposal is None:
                return choice.prefer_unclaimed(self.mirror.snapshot(), request, self.default_preference)
            return sorted(proposal.ids)

    async def admit(self, resource: str, ids: Sequence[str]) -> None:
        """Admit that kubelet allocates these devices to a container.

        Raises:
            AllocationRefusedError: neither a waiting pod nor a static pod can be the pod that gets them.
        """
        requested = frozenset(ids)
        async with self._lock:
            key = choice.explain(self.mirror.snapshot(), resource, requested, self._proposal)
            if key is None:
                is_listed = await self._list_pods()
                snapshot = self.mirror.snapshot()
                key = choice.explain(snapshot, resource, requested, self._proposal)
                if key is None and is_listed and choice.is_for_static_pod(snapshot, resource, requested):
                    _log.info("allocated to a static pod", resource=resource, ids=_listed(sorted(requested)))
                    self.changed.set()
                    return
            if key is None:
                self._refuse(resource, requested)
            self.mirror.record_allocation(key, resource, requested, self._clock())
            self._save()
            self.changed.set()

    def withheld(self) -> frozenset[str]:
        """Return the ids of the cards that are reported to kubelet as unhealthy."""
        return self.mirror.snapshot().withheld()

    @property
    def is_ready(self) -> bool:
        """Return whether the node's pods are known, and kubelet answered when it was asked last."""
        return self.known.is_set() and self.answers is True

    async def until_admitted(self) -> None:
        """Wait until kubelet has requested devices for every bound pod, and no pod has arrived for a moment.

        A pod for which kubelet never requests devices would block forever, so limit the wait.
        """
        quiet_since = self._clock()
        while self._clock() - quiet_since < QUIET:
            await asyncio.sleep(POLL)
            snapshot = self.mirror.snapshot()
            if any(snapshot.is_waiting(pod) and not snapshot.is_late(pod) for pod in snapshot.pods):
                quiet_since = self._clock()

    # --- what the reporter of usage asks ---------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read the pods' devices from kubelet and the machine. `has_news` reports whether they may have changed."""
        async with self._lock:
            await self._read_kubelet()
            is_open = self.mirror.has_lingering or not self.mirror.is_confirmed
            await self._release_ended()
            await self._see_stopped()
            self.has_news = self.changed.is_set() or is_open
            self.changed.clear()
            if self.has_news or self._unsaved or self._memory.is_changed():
                self._save()

    def replace_pods(self, pods: list[Pod], version: int) -> None:
        """Replace the node's pods by a list; the first list also restores the checkpoint."""
        self.mirror.replace(pods, version)
        if not self.known.is_set():
            self.known.set()
            saved = self._memory.load()
            self.mirror.restore(saved.pending, saved.holdings, self._clock())
            self.mirror.units = saved.units.joined(self.mirror.units)
        self.changed.set()

    # --- how ----------------------------------------------------------------------------------------------------

    def _propose(self, request: PreferenceRequest) -> Proposal | None:
        return choice.propose(self.mirror.snapshot(), request, self.default_preference)

    def _is_sure(self, proposal: Proposal, size: int) -> bool:
        """Return whether a proposal rests on the annotation of a pod that is new to kubelet.

        With stale pods, a card may look free that another annotation names, and a deleted pod may still be there.
        """
        pod = self.mirror.pod(proposal.key.uid)
        is_own = len(proposal.ids) == size and proposal.ids <= frozenset(pod.granted)
        return is_own and not self.mirror.snapshot().is_late(pod)

    async def _read_kubelet(self) -> None:
        asked_at = self._clock()
        try:
            reports = await self._kubelet.list_containers()
        except UnavailableError as error:
            if str(error) != self._failure:
                _log.warning("PodResources not read, will try again", reason=str(error))
            self.answers, self._failure = False, str(error)
            return
        if self.answers is False:
            _log.info("kubelet answers again")
            self.mirror.reorder()
        if (reports, self._kubelet.claim_users) != (self._reports, self.claim_users):
            self.changed.set()
        self.answers, self._failure, self._reports, self.claim_users = True, "", reports, self._kubelet.claim_users
        self.mirror.apply_reports(reports, asked_at)

    async def _release_ended(self) -> None:
        """Release the devices of containers that do not run any more."""
        if self.mirror.has_lingering:
            self.mirror.release_ended(await asyncio.to_thread(self._running))

    def restore_stopped(self, uids: Iterable[str]) -> None:
        """Restore the UIDs of the pods that had stopped, from the last run in the same boot."""
        self.mirror.stopped = self._idle = frozenset(uids)

    async def _see_stopped(self) -> None:
        """Look for pods that are being deleted and have stopped, as long as there are pods that are being deleted."""
        if not self.is_ready or self._clock() < self._look_at:
            return
        before, self._idle = self._idle, frozenset()
        if self.mirror.has_deleting:
            self._look_at = self._clock() + STOPPED_SECONDS
            claiming = {keys.join(user.device.namespace, user.pod) for user in self.claim_users}
            self._idle = self.mirror.idle(await asyncio.to_thread(self._running), claiming)
        if (stopped := self._idle & before) != self.mirror.stopped:
            self.mirror.stopped = stopped
            self.changed.set()

    async def _list_pods(self) -> bool:
        """List the pods: kubelet may know one that our watch has not delivered yet. Return whether that succeeded."""
        try:
            async with asyncio.timeout(LIST_SECONDS):
                pods, version = await self._server.pods()
        except (UnavailableError, TimeoutError) as error:
            _log.warning("pods of the node not listed, going by what is known", reason=str(error) or "no answer")
            return False
        # While the list was on its way, the watch may have delivered later events, which it does not repeat. It has
        # then delivered all that the list shows.
        if version >= self.mirror.version:
            self.replace_pods(pods, version)
        return True

    def _save(self) -> None:
        if not self.is_ready:
            # What the last run left has yet to be read, or is all that there is.
            return
        try:
            self._memory.save(
                pending=self.mirror.pending, holdings=self.mirror.saved_holdings(), units=self.mirror.units
            )
        except OSError as error:
            if str(error) != self._unsaved:
                _log.error("checkpoint not written: a restart now forgets what kubelet was promised", reason=str(error))
            self._unsaved = str(error)
        else:
            self._unsaved = ""

    def _refuse(self, resource: str, ids: Ids) -> NoReturn:
        snapshot = self.mirror.snapshot()
        waiting = {candidate.pod.uid: candidate.pod for candidate in snapshot.pending_containers(resource, len(ids))}
        named = list(waiting.values())[:NAMED]
        waiting_pods = "; ".join(f"{pod.key} was given {_listed(pod.granted) or 'none'}" for pod in named)
        text = f"{resource} {_listed(sorted(ids))}: no pod that waits on this node can be given these" + (
            f" ({waiting_pods})" if waiting_pods else f", and none waits for {len(ids)} of them"
        )
        _log.error("kubelet was refused", resource=resource, ids=_listed(sorted(ids)), waiting=waiting_pods)
        for pod in waiting.values():
            self._events.warn(InvolvedObject("Pod", pod.namespace, pod.name, pod.uid), DEVICES_REFUSED, text)
        raise AllocationRefusedError(text)


def _listed(ids: Sequence[str]) -> str:
    """Return ids for a message, up to a number."""
    rest = f" and {len(ids) - LISTED} more" if len(ids) > LISTED else ""
    return ", ".join(ids[:LISTED]) + rest
