"""Passes changes of the state on to the loops and reports that act on them."""

import asyncio
from collections.abc import Callable

from berth_operator.binding.reporter import Reporter
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.state.views import StatusKind


class Notifier:
    """The `Listener` of a process that schedules; it exists before the state and all that act on it."""

    def __init__(self, *, reporter: Reporter, mark: Callable[[StatusKind, str], None]) -> None:
        """`mark` is called with an object whose status may have to be written."""
        self.work = asyncio.Event()
        """Wakes the scheduling loop."""
        self.drift = asyncio.Event()
        """Wakes the `DriftKeeper`."""
        self._reporter, self._mark = reporter, mark

    def work_ready(self) -> None:
        """Wake the scheduling loop."""
        self.work.set()

    def status_changed(self, kind: StatusKind, name: str) -> None:
        """Mark the object's status as to be written."""
        self._mark(kind, name)

    def drift_changed(self) -> None:
        """Wake the `DriftKeeper`."""
        self.drift.set()

    def allocation_unknown(self, charge: Charge) -> None:
        """Report the pod."""
        self._reporter.unknown(charge)

    def pod_settled(self, uid: str) -> None:
        """Drop the pod's reports."""
        self._reporter.dismiss(uid)

    def nomination_withdrawn(self, pod: PendingPod) -> None:
        """Report that no node is nominated for the pod."""
        self._reporter.nominated(pod)
