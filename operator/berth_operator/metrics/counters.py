"""The operator's own metrics. Their names end in the unit."""

from collections.abc import Callable
from functools import cache
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

BINDS: Final = Counter("berth_binds_total", "Bindings answered, by outcome", ["outcome"])
GANGS_UNDONE: Final = Counter("berth_gangs_undone_total", "Gangs that could not be bound as a whole in time")
EVICTIONS: Final = Counter("berth_evictions_total", "Pods evicted from cards that need a reset or a reboot")
MOVED: Final = Counter("berth_moved_pods_total", "Pods evicted to make room for a pod that fits nowhere")
DEFRAGMENTATIONS: Final = Counter(
    "berth_defragmentations_total", "Pods for which others were moved, by outcome", ["outcome"]
)
REPORTS_LOST: Final = Counter("berth_reports_lost_total", "Events and conditions that could not be written", ["what"])
PLUGIN_FAILURES: Final = Counter(
    "berth_plugin_failures_total", "Decisions in which a plug-in failed, by device type", ["type"]
)
NODE_RESERVATIONS: Final = Gauge("berth_node_reservations", "Node reservations of pods that have waited long")
RESERVED_FREE_DEVICES: Final = Gauge(
    "berth_node_reservations_free_devices", "Free devices that are kept for node reservations, by type", ["type"]
)
VAIN_RESERVATIONS: Final = Counter(
    "berth_node_reservations_in_vain_total", "Node reservations that ended because nothing was freed for 15 minutes"
)
PROMISED_PLACES: Final = Gauge("berth_promised_places", "Places that are promised to pods that do not exist yet")
CHECK_ANSWERS: Final = Counter(
    "berth_admission_check_answers_total", "Answers of the AdmissionCheck, by state", ["state"]
)
LOST_PLACES: Final = Counter(
    "berth_promised_places_lost_total", "Workloads and gangs that lost promised places, for which there were no others"
)
PREEMPTION_PLACES_LOST: Final = Counter(
    "berth_preemption_places_lost_total", "Sets of victims whose place was lost before the pod ran for which they left"
)
PREEMPTION_BACKOFFS: Final = Gauge(
    "berth_preemption_backoffs", "Controllers, pods and gangs for which no pods are preempted because places were lost"
)
DRIFTED: Final = Gauge("berth_drifted_pods", "Pods that hold other devices than they were allocated")
DOUBLED_CARDS: Final = Gauge("berth_doubled_cards", "Cards that two pods hold though only one may")
REWRITES: Final = Counter("berth_allocations_rewritten_total", "Allocations rewritten to the devices that kubelet gave")
STATUS_WRITES: Final = Counter("berth_status_writes_total", "Status writes, by object", ["object"])
STATUS_CONFLICTS: Final = Counter(
    "berth_status_conflicts_total", "Status writes that failed, such as for a field of another manager"
)
CONFIGURATION_VALID: Final = Gauge("berth_configuration_valid", "0 while the configuration file is invalid")
CONFIGURATION: Final = Gauge("berth_configuration_info", "1 for the configuration in use", ["hash"])
EARLIER_STATES: Final = Counter(
    "berth_earlier_states_total", "Times that the API server showed an earlier state, after which all is listed again"
)
DECISIONS_PAUSED: Final = Gauge(
    "berth_decisions_paused", "1 while this replica waits because the API server has shown an earlier state"
)
WAITING_FOR_FENCE: Final = Gauge(
    "berth_waiting_for_fence", "1 while this replica is elected and waits for the API server to load the fence"
)
GPU_METRICS_CARDS: Final = Gauge(
    "berth_gpu_metrics_cards", "GPUs that Devices list, by whether recent metrics of them are known", ["state"]
)
GPU_METRICS_STALE: Final = Gauge(
    "berth_gpu_metrics_stale", "1 while no recent metrics of any GPU are known, though a source is configured"
)
GPU_METRICS_REFRESHES: Final = Counter(
    "berth_gpu_metrics_refreshes_total", "Reads of GPU metrics, by result", ["result"]
)
GPU_METRICS_DROPPED: Final = Counter(
    "berth_gpu_metrics_dropped_total", "Samples of GPUs that were not used, by reason", ["reason"]
)
KOPF_FAILURES: Final = Counter(
    "berth_kopf_failures_total", "Failures of kopf, which writes statuses; it is started again"
)
VISIBILITY_RENDERS: Final = Counter(
    "berth_visibility_renders_total", "Renderings of the visibility API, by resource", ["resource"]
)
VISIBILITY_EXPLANATIONS: Final = Counter(
    "berth_visibility_explanations_total", "Explanations of pods that were computed for the visibility API"
)
VISIBILITY_FAILURES: Final = Counter(
    "berth_visibility_failures_total",
    "Failures of the visibility API, by what they ended: a rendering, a request or the server, which starts again",
    ["part"],
)
VISIBILITY_REFUSED: Final = Counter(
    "berth_visibility_refused_connections_total", "Connections to the visibility API beyond its limits"
)
VISIBILITY_WATCHES: Final = Gauge(
    "berth_visibility_watches", "Watches that this replica serves or relays for the visibility API"
)
LEADING: Final = Gauge("berth_leading", "1 while this replica leads")
EXTENDER_CALLS: Final = Counter(
    "berth_extender_calls_total", "Calls of the extender, by verb and result", ["verb", "result"]
)
EXTENDER_SECONDS: Final = Histogram(
    "berth_extender_call_seconds",
    "Time from a read request of the extender to its answer, by verb",
    ["verb"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
EXTENDER_RESERVATIONS: Final = Gauge("berth_extender_reservations", "Pods for which the extender has reserved a node")
WAITING: Final = Histogram(
    "berth_pod_waiting_duration_seconds",
    "Time from the creation of a pod until it is bound, by number of GPUs",
    ["gpus"],
    buckets=(1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600),
)

# Otherwise a rate would miss the first one: a series that appears with 1 has not grown.
for _outcome in ("bound", "gone", "refused", "fenced"):
    BINDS.labels(_outcome)
for _state in ("Pending", "Ready", "Retry", "Rejected"):
    CHECK_ANSWERS.labels(_state)
for _outcome in ("completed", "dropped"):
    DEFRAGMENTATIONS.labels(_outcome)
REPORTS_LOST.labels("event")


@cache
def waiting_of(gpus: str) -> Callable[[float], None]:
    """Return what observes how long pods with this number of GPUs waited."""
    return WAITING.labels(gpus).observe
