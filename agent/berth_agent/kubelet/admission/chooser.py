"""Answers kubelet in the name of the scheduler: proposes the annotated devices, and refuses what nobody can explain.

Before each answer it asks kubelet what it recorded, which tells who got what was promised last: kubelet admits one
pod at a time. It does not ask while kubelet waits for the answer to an Allocate: kubelet may then take devices that
it is about to give out for free ones.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog

from berth_agent.kubelet.admission import choice
from berth_agent.kubelet.admission.checkpoint import Saved
from berth_agent.kubelet.admission.choice import Peer, Proposal, Question
from berth_agent.kubelet.admission.mirror import Holding, Mirror, Promise, Told
from berth_agent.kubelet.admission.picture import Ids
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.admission.units import Units
from berth_agent.kubelet.device_plugin.chooser import RefusedError

LIST_SECONDS: Final = 1.0
"""Kubelet admits nothing while it waits for us."""
NAMED: Final = 3
"""Pods that a refusal names."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Away(Exception):  # noqa: N818 -- what happens, not what went wrong with us
    """Somebody does not answer."""


class Kubelet(Protocol):
    """Who tells what containers have."""

    async def told(self) -> tuple[Told, ...]:
        """Ask kubelet.

        Raises:
            Away: it does not answer.
        """
        ...


class Server(Protocol):
    """Who tells what pods there are, and tells people about them."""

    async def pods(self) -> tuple[list[Pod], int]:
        """List the node's pods at quorum, with the version of the list.

        Raises:
            Away: it does not answer.
        """
        ...

    async def warn(self, pods: Sequence[Pod], text: str) -> None:
        """Say on the pods that kubelet was refused; a failure is logged."""
        ...


class Memory(Protocol):
    """What survives."""

    def load(self) -> Saved:
        """Give what the last run left."""
        ...

    def save(self, *, promises: Iterable[Promise], holdings: Iterable[Holding], units: Units) -> None:
        """Keep this.

        Raises:
            OSError: it cannot be kept.
        """
        ...


class Admission:
    """The admission of one node."""

    def __init__(
        self,
        *,
        kubelet: Kubelet,
        server: Server,
        memory: Memory,
        running: Callable[[], frozenset[str]],
        peer: Peer = choice.in_order,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mirror = Mirror()
        self.peer = peer
        """Chooses among what nobody has."""
        self.known = asyncio.Event()
        """Set when the node's pods are known."""
        self.changed = asyncio.Event()
        """Set when there may be something new to tell."""
        self.answers: bool | None = None
        """Whether kubelet answered when it was asked last; None before the first time."""
        self.has_news = False
        """Whether the last refresh may have found something new."""
        self._kubelet = kubelet
        self._server = server
        self._memory = memory
        self._running = running
        self._clock = clock
        self._turn = asyncio.Lock()
        self._proposal: Proposal | None = None
        self._complaint = ""
        self._told: tuple[Told, ...] | None = None
        """What kubelet said last."""

    # --- what the device plugin asks ---------------------------------------------------------------------------

    async def prefer(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str]:
        """Propose devices for the container that kubelet is admitting; fewer than `size` where there are no more."""
        question = Question(resource=resource, available=available, must=must_include, size=size)
        async with self._turn:
            await self._look()
            self.mirror.offered(resource, frozenset(available).difference(must_include))
            await self._free()
            found = self._propose(question)
            if found is None or not self._is_sure(found, size):
                await self._list()
                found = self._propose(question)
            self._proposal = found
            return sorted(found.ids) if found else choice.remainder(self.mirror.picture(), question, self.peer)

    async def admit(self, resource: str, ids: Sequence[str]) -> None:
        """Let kubelet give these devices to a container.

        Raises:
            RefusedError: no pod that waits can be the one that gets them.
        """
        wanted = frozenset(ids)
        async with self._turn:
            asker = choice.explain(self.mirror.picture(), resource, wanted, self._proposal)
            if asker is None:
                await self._list()
                asker = choice.explain(self.mirror.picture(), resource, wanted, self._proposal)
            if asker is None:
                await self._refuse(resource, wanted)
                return
            self.mirror.promise(asker, resource, wanted, self._clock())
            self._save()
            self.changed.set()

    def withheld(self) -> frozenset[str]:
        """Return the ids of the cards that kubelet must be told to be unhealthy."""
        return self.mirror.picture().withheld()

    @property
    def is_ready(self) -> bool:
        """Tell whether the node's pods are known, and kubelet answered when it was asked last."""
        return self.known.is_set() and self.answers is True

    # --- what the node's keeper asks ---------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Ask kubelet and the machine what pods have; `has_news` says whether anything of it may be new."""
        async with self._turn:
            await self._look()
            is_open = self.mirror.has_left or not self.mirror.is_settled
            await self._free()
            self.has_news = self.changed.is_set() or is_open
            self.changed.clear()
            if self.has_news:
                self._save()

    def listed(self, pods: list[Pod], version: int) -> None:
        """Take a whole list of the node's pods, and with the first what the last run left."""
        self.mirror.replace(pods, version)
        if not self.known.is_set():
            self.known.set()
            saved = self._memory.load()
            self.mirror.recall(saved.promises, saved.holdings, self._clock())
            self.mirror.units = saved.units.joined(self.mirror.units)
        self.changed.set()

    # --- how ----------------------------------------------------------------------------------------------------

    def _propose(self, question: Question) -> Proposal | None:
        return choice.propose(self.mirror.picture(), question, self.peer)

    def _is_sure(self, found: Proposal, size: int) -> bool:
        """Tell whether a proposal rests on the annotation of a pod that is new to kubelet.

        By old news a card is free that another annotation names by now, and a pod is there that is gone.
        """
        pod = self.mirror.pod(found.asker.uid)
        is_own = len(found.ids) == size and found.ids <= frozenset(pod.granted)
        return is_own and not self.mirror.picture().is_late(pod)

    async def _look(self) -> None:
        asked_at = self._clock()
        try:
            told = await self._kubelet.told()
        except Away as error:
            self._complain(str(error))
            self.answers = False
            return
        if self.answers is False:
            _log.info("kubelet answers again")
            self.mirror.reorder()
        if told != self._told:
            self.changed.set()
        self.answers, self._complaint, self._told = True, "", told
        self.mirror.settle(told, asked_at)

    async def _free(self) -> None:
        """Let go of what containers had that do not run any more."""
        if self.mirror.has_left:
            self.mirror.keep_left(await asyncio.to_thread(self._running))

    def _complain(self, reason: str) -> None:
        """Log once that kubelet is away, not at each try."""
        if reason != self._complaint:
            _log.warning("kubelet does not tell what pods have, will try again", reason=reason)
        self._complaint = reason

    async def _list(self) -> None:
        """Look what pods there are: kubelet may know one of which our watch has not told yet."""
        try:
            async with asyncio.timeout(LIST_SECONDS):
                self.listed(*await self._server.pods())
        except (Away, TimeoutError) as error:
            _log.warning("pods of the node not listed, going by what is known", reason=str(error) or "no answer")

    def _save(self) -> None:
        if not self.is_ready:
            # What the last run left has yet to be read, or is all that there is.
            return
        try:
            self._memory.save(promises=self.mirror.promises, holdings=self.mirror.holdings(), units=self.mirror.units)
        except OSError as error:
            _log.error("checkpoint not written: a restart now forgets what kubelet was promised", reason=str(error))

    async def _refuse(self, resource: str, ids: Ids) -> None:
        picture = self.mirror.picture()
        waiting = {turn.pod.uid: turn.pod for turn in picture.turns(resource, len(ids))}
        told = "; ".join(f"{pod.key} was given {', '.join(pod.granted) or 'none'}" for pod in _some(waiting.values()))
        text = f"{resource} {', '.join(sorted(ids))}: no pod that waits on this node can be given these" + (
            f" ({told})" if told else f", and none waits for {len(ids)} of them"
        )
        _log.error("kubelet was refused", resource=resource, ids=sorted(ids), waiting=told)
        await self._server.warn(list(waiting.values()), text)
        raise RefusedError(text)


def _some(pods: Iterable[Pod]) -> list[Pod]:
    return list(pods)[:NAMED]
