"""The operator's own metrics; names end in their unit."""

from typing import Final

from prometheus_client import Counter, Gauge

DECISIONS: Final = Counter("berth_decisions_total", "Pods decided, by result", ["result"])
BINDS: Final = Counter("berth_binds_total", "Bindings answered, by outcome", ["outcome"])
GANGS_UNDONE: Final = Counter("berth_gangs_undone_total", "Gangs that could not be bound as a whole in time")
VICTIMS: Final = Counter("berth_preemption_victims_total", "Pods told to leave for others of higher priority")
EVICTIONS: Final = Counter("berth_evictions_total", "Pods evicted from cards that failed for good")
REPORTS_LOST: Final = Counter("berth_reports_lost_total", "Events and conditions given up", ["what"])
PLUGIN_FAILURES: Final = Counter(
    "berth_plugin_failures_total", "Decisions at which a plug-in failed, by type", ["type"]
)
DRIFTED: Final = Gauge("berth_drifted_pods", "Pods that hold other devices than they were allocated")
REWRITES: Final = Counter("berth_allocations_rewritten_total", "Allocations that say since what kubelet gave instead")
STATUS_WRITES: Final = Counter("berth_status_writes_total", "Status writes, by object", ["object"])
STATUS_CONFLICTS: Final = Counter("berth_status_conflicts_total", "Status writes refused because another owns a field")
CONFIGURATION_VALID: Final = Gauge("berth_configuration_valid", "0 while the configuration file is refused")
CONFIGURATION: Final = Gauge("berth_configuration_info", "1 for the configuration in use", ["hash"])
WAITING_FOR_FENCE: Final = Gauge(
    "berth_waiting_for_fence", "1 while this replica is elected and waits for the API server to load the fence"
)
LEADING: Final = Gauge("berth_leading", "1 while this replica decides")
