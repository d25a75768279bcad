"""A listener that records its calls."""

from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.listener import NoListener
from berth_operator.state.cache.views import StatusKind


class Recorder(NoListener):
    """Records all calls since the last `clear`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self.work = self.drifts = 0
        self.changed: list[tuple[StatusKind, str]] = []
        self.unknown: list[Charge] = []
        self.settled: list[str] = []
        self.withdrawn: list[PendingPod] = []

    def names(self, kind: StatusKind) -> list[str]:
        """Return the names of the objects of a kind whose status changed, in order."""
        return [name for changed, name in self.changed if changed is kind]

    def work_ready(self) -> None:
        self.work += 1

    def status_changed(self, kind: StatusKind, name: str) -> None:
        self.changed.append((kind, name))

    def drift_changed(self) -> None:
        self.drifts += 1

    def allocation_unknown(self, charge: Charge) -> None:
        self.unknown.append(charge)

    def pod_settled(self, uid: str) -> None:
        self.settled.append(uid)

    def nomination_withdrawn(self, pod: PendingPod) -> None:
        self.withdrawn.append(pod)
