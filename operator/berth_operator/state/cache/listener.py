"""The interface that the state calls when it changes."""

from typing import Protocol

from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.views import StatusKind
from berth_operator.state.objects.devices import DeviceRecord


class Listener(Protocol):
    """Called in the scheduler's loop, in the middle of a change; must return at once and must not change the state."""

    def work_ready(self) -> None:
        """Handle that a pod may be decided."""

    def status_changed(self, kind: StatusKind, name: str) -> None:
        """Handle that the status of an object may have to be written."""

    def drift_changed(self) -> None:
        """Handle that a pod began or ceased to hold other devices than it was allocated."""

    def faults_changed(self, before: DeviceRecord | None, after: DeviceRecord) -> None:
        """Handle that a Device reports other faults than before; `before` is None the first time."""

    def allocation_unknown(self, charge: Charge) -> None:
        """Handle that the allocation of a bound pod is missing or not trusted."""

    def pod_settled(self, uid: str) -> None:
        """Handle that a pod no longer waits for a node."""

    def nomination_withdrawn(self, pod: PendingPod) -> None:
        """Handle that a pod's nomination was withdrawn."""


class NoListener:
    """Ignores all changes, for a state that is only read."""

    def work_ready(self) -> None:
        """Do nothing."""

    def status_changed(self, kind: StatusKind, name: str) -> None:
        """Do nothing."""

    def drift_changed(self) -> None:
        """Do nothing."""

    def faults_changed(self, before: DeviceRecord | None, after: DeviceRecord) -> None:
        """Do nothing."""

    def allocation_unknown(self, charge: Charge) -> None:
        """Do nothing."""

    def pod_settled(self, uid: str) -> None:
        """Do nothing."""

    def nomination_withdrawn(self, pod: PendingPod) -> None:
        """Do nothing."""
