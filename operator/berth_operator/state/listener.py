"""Who is called when the state changes."""

from typing import Protocol

from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.state.views import StatusKind


class Listener(Protocol):
    """Is called in the scheduler's loop, in the middle of a change: it must return at once and change no state."""

    def work_ready(self) -> None:
        """A pod may be decided."""

    def status_changed(self, kind: StatusKind, name: str) -> None:
        """The status of an object may have to be written."""

    def drift_changed(self) -> None:
        """A pod began or ceased to hold other devices than it was allocated."""

    def allocation_unknown(self, charge: Charge) -> None:
        """The allocation of a bound pod is missing or not trusted."""

    def pod_settled(self, uid: str) -> None:
        """A pod no longer waits for a node."""

    def nomination_withdrawn(self, pod: PendingPod) -> None:
        """A pod no longer waits for a node in particular."""


class NoListener:
    """Ignores all changes: for a state that is only read."""

    def work_ready(self) -> None:
        """Do nothing."""

    def status_changed(self, kind: StatusKind, name: str) -> None:
        """Do nothing."""

    def drift_changed(self) -> None:
        """Do nothing."""

    def allocation_unknown(self, charge: Charge) -> None:
        """Do nothing."""

    def pod_settled(self, uid: str) -> None:
        """Do nothing."""

    def nomination_withdrawn(self, pod: PendingPod) -> None:
        """Do nothing."""
