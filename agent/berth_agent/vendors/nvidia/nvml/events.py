"""Wait for events of the cards in a separate thread, because the wait blocks.

The thread that owns NVML creates sets and registers cards. The waiting thread only waits, and returns its set at its
end. If a wait fails, all cards are unwatched until a new set has waited once without an error.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from berth_agent.vendors.nvidia.nvml import library
from berth_agent.vendors.nvidia.nvml.library import Handle, NvmlError, NvmlEvent

WAIT: Final = 1000
"""Milliseconds that one wait takes when nothing happens; so long may closing the session have to wait for it."""
SHORT_WAIT: Final = 100
"""The same where MIG instances are made on demand: the session is closed for each, while a pod waits for it."""
PATIENCE: Final = 5.0
"""Seconds after which a wait that does not come back is left to itself: it hangs in the driver."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

ReportEvent = Callable[[str, NvmlEvent | None], None]
"""Called from the waiting thread with a card's UUID and event, or without an event if waiting fails or recovers."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Wait:
    """One set of events and the thread that waits for it."""

    events: Handle
    cards: Mapping[int, str]
    """UUIDs by the addresses of their handles."""
    stopped: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class EventWatcher:
    """The events of the cards that answer now."""

    def __init__(self, *, report: ReportEvent, milliseconds: int = WAIT) -> None:
        """Set who gets the events, and how long one wait takes when nothing happens."""
        self._report_event = report
        self._milliseconds = milliseconds
        self._wait: _Wait | None = None
        self._watched: frozenset[str] = frozenset()
        self._silent: set[str] = set()
        self.failure = ""
        """Why no events are received; empty while they are."""
        self.unregistered: Mapping[str, str] = {}
        """Why the events of single cards are not, by their UUIDs."""

    def follow(self, cards: Mapping[str, Handle]) -> None:
        """Wait for the events of these cards from now on; for use in the owner's thread.

        Raises:
            NvmlError: the session is lost.
        """
        is_waiting = self._wait is not None and self._wait.thread is not None and self._wait.thread.is_alive()
        if is_waiting and self._watched == cards.keys() and not self.unregistered:
            return
        previous, self._wait = self._wait, None
        self._watched = frozenset(cards)
        if cards:
            self._begin(cards)
        # Only now, so that no event falls between the two.
        _end(previous)

    def end(self) -> None:
        """End the waiting; for use in the owner's thread, before it closes the session."""
        previous, self._wait = self._wait, None
        _end(previous)

    def stop(self) -> None:
        """Report nothing from now on."""
        self._report_event = lambda _card, _event: None
        if self._wait:
            self._wait.stopped.set()

    def _begin(self, cards: Mapping[str, Handle]) -> None:
        try:
            events = library.event_set()
        except NvmlError as error:
            if error.lost_session:
                raise
            self.failure = str(error)
            return
        problems = {uuid: self._register(uuid, handle, events) for uuid, handle in cards.items()}
        self.unregistered = {uuid: problem for uuid, problem in problems.items() if problem}
        wait = self._wait = _Wait(events=events, cards={library.address(card): uuid for uuid, card in cards.items()})
        wait.thread = threading.Thread(target=self._serve, args=(wait,), name="nvml-events", daemon=True)
        wait.thread.start()

    def _register(self, uuid: str, handle: Handle, events: Handle) -> str:
        """Register one card, and return what went wrong. Cards without events are not unhealthy for that."""
        try:
            if library.unless_unsupported(default=False, function=library.register, of=(handle, events)):
                return ""
        except NvmlError as error:
            return str(error)
        if uuid not in self._silent:
            self._silent.add(uuid)
            _log.warning("GPU does not report Xids; its health comes from readings alone", gpu=uuid)
        return ""

    def _serve(self, wait: _Wait) -> None:
        try:
            while not wait.stopped.is_set():
                event = library.wait(wait.events, self._milliseconds)
                if event:
                    # If the affected card is unknown, all cards are affected: the event must not be lost.
                    self._report_event(wait.cards.get(library.address(event.handle), ""), event)
                if wait.stopped.is_set():
                    break
                works_again, self.failure = bool(self.failure), ""
                if works_again and not event:
                    self._report_event("", None)
        except NvmlError as error:
            if not wait.stopped.is_set():
                was_known, self.failure = bool(self.failure), str(error)
                if not was_known:
                    _log.error(
                        "GPU events unavailable; all GPUs count as unhealthy until they are back", error=self.failure
                    )
                    self._report_event("", None)
        library.free(wait.events)


def _end(wait: _Wait | None) -> None:
    if wait and wait.thread:
        wait.stopped.set()
        wait.thread.join(PATIENCE)
