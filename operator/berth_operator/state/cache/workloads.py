"""Workloads of Kueue with the AdmissionCheck `berth.dev/fits-devices`, as the API server shows them."""

from collections.abc import Collection

from berth_operator.core.values.quota_workload import QuotaWorkload
from berth_operator.state.cache.listener import Listener


class Workloads:
    """The Workloads by key, and the Workloads that have changed since the last query."""

    def __init__(self, *, listener: Listener) -> None:
        self._listener = listener
        self.by_key: dict[str, QuotaWorkload] = {}
        """namespace/name -> Workload."""
        self._changed: dict[str, None] = {}

    def put(self, workload: QuotaWorkload) -> None:
        """Add or update a Workload."""
        if self.by_key.get(workload.key) != workload:
            self.by_key[workload.key] = workload
            self._change(workload.key)

    def remove(self, key: str) -> None:
        """Remove a Workload."""
        if self.by_key.pop(key, None) is not None:
            self._change(key)

    def take_changed(self) -> Collection[str]:
        """Return the keys of the Workloads that have changed since the last call, the first change first."""
        changed, self._changed = self._changed, {}
        return changed

    def _change(self, key: str) -> None:
        self._changed[key] = None
        self._listener.work_ready()
