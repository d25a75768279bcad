"""Pass changes of the state to the loops and reports that act on them."""

import asyncio
from collections.abc import Callable

from berth_operator.binding.reports.attempts import Attempts
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.views import StatusKind
from berth_operator.state.objects.devices import DeviceRecord


class Notifier:
    """The `Listener` of a process that schedules; created before the state and the loops that use the state."""

    def __init__(self, *, reporter: Reporter, attempts: Attempts, mark: Callable[[StatusKind, str], None]) -> None:
        """Create a notifier. `mark` is called with each object whose status may need a write."""
        self.work = asyncio.Event()
        """Wakes the scheduling loop."""
        self.drift = asyncio.Event()
        """Wakes the `DriftKeeper`."""
        self._reporter, self._attempts, self._mark = reporter, attempts, mark

    def work_ready(self) -> None:
        """Wake the scheduling loop."""
        self.work.set()

    def status_changed(self, kind: StatusKind, name: str) -> None:
        """Mark the object for the status writer."""
        self._mark(kind, name)

    def drift_changed(self) -> None:
        """Wake the `DriftKeeper`."""
        self.drift.set()

    def allocation_unknown(self, charge: Charge) -> None:
        """Report that the pod's allocation is unknown."""
        self._reporter.unknown(charge)

    def faults_changed(self, before: DeviceRecord | None, after: DeviceRecord) -> None:
        """Report the devices that failed or recovered."""
        self._reporter.faults_changed(before, after)

    def pod_settled(self, uid: str) -> None:
        """Drop the pod's reports, and the number of its attempts."""
        self._attempts.forget(uid)
        self._reporter.dismiss(uid)

    def nomination_withdrawn(self, pod: PendingPod) -> None:
        """Report that no node is nominated for the pod."""
        self._reporter.nominated_node_changed(pod)
