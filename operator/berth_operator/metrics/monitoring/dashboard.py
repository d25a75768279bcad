"""Write the Grafana dashboard and the PrometheusRule.

`python -m berth_operator.metrics.monitoring.dashboard [--check] FOLDER`

FOLDER is `manifests/components`. The dashboard is a table of panels. The PrometheusRule has the rules file's groups.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

UID: Final = "berth"
SCHEMA_VERSION: Final = 39
WIDTH: Final = 24
"""Columns of Grafana's grid."""
HEIGHT: Final = 8
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Kind = Literal["timeseries", "stat", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: its PromQL expressions by legend."""

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    """Grafana's id of a unit."""
    kind: Kind = "timeseries"
    columns: int = 8
    text: str = ""
    """The panel's description, if the title is not enough."""
    stacked: bool = False


def _quantile(quantile: float, name: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f'histogram_quantile({quantile}, sum by ({labels}) (rate({name}_bucket{{job=~"$job"}}[$__rate_interval])))'


def _rate(name: str, by: str, selector: str = "") -> str:
    matchers = ", ".join(filter(None, ('job=~"$job"', selector)))
    return f"sum by ({by}) (rate({name}{{{matchers}}}[$__rate_interval]))"


def _leader(name: str, by: str) -> str:
    """Return a gauge of the leader; of two replicas at a takeover, the higher value."""
    return f'max by ({by}) ({name}{{job=~"$job"}})'


_UNSCHEDULABLE: Final = "scheduler_unschedulable_pods"
_GPUS: Final = "berth_fleet_gpus"
_OLDEST: Final = "berth_pending_pods_oldest_timestamp_seconds"

ROWS: Final[Mapping[str, tuple[Panel, ...]]] = {
    "Overview": (
        Panel(title="Leaders", kind="stat", columns=4, queries={"": 'sum(berth_leading{job=~"$job"})'}),
        Panel(
            title="GPUs allocated",
            kind="stat",
            columns=5,
            unit="percentunit",
            queries={
                "": f'sum(max by (model) ({_GPUS}{{job=~"$job", state="allocated"}})) '
                f"/ sum({_leader(_GPUS, 'model, state')})"
            },
        ),
        Panel(
            title="Pending pods",
            kind="stat",
            columns=5,
            queries={"": f"sum({_leader('berth_pending_pods', 'namespace, reason')})"},
        ),
        Panel(
            title="Oldest pending pod",
            kind="stat",
            columns=5,
            unit="s",
            queries={"": f'time() - min({_OLDEST}{{job=~"$job"}})'},
        ),
        Panel(
            title="Nodes with a silent agent",
            kind="stat",
            columns=5,
            queries={"": 'max(berth_silent_agents{job=~"$job"})'},
        ),
    ),
    "GPUs": (
        Panel(
            title="GPUs by state",
            stacked=True,
            queries={"{{state}}": f"sum by (state) ({_leader(_GPUS, 'model, state')})"},
        ),
        Panel(
            title="Allocation by model",
            unit="percentunit",
            queries={
                "{{model}}": f'max by (model) ({_GPUS}{{job=~"$job", state="allocated"}}) '
                f"/ sum by (model) ({_leader(_GPUS, 'model, state')})"
            },
        ),
        Panel(
            title="Fragmentation",
            unit="percentunit",
            text="Share of the free GPUs that pods with this many whole GPUs cannot get.",
            queries={
                "{{gpus}} GPUs": _leader("berth_fleet_fragmentation_ratio", "gpus"),
                "too little cpu": 'max(berth_fleet_stranded_ratio{job=~"$job"})',
            },
        ),
    ),
    "Pending pods": (
        Panel(title="By queue", stacked=True, queries={"{{queue}}": _leader("scheduler_pending_pods", "queue")}),
        Panel(
            title="By reason",
            stacked=True,
            text="The filter that rejected the nodes which passed all others, or a reason of the pod.",
            queries={"{{reason}}": f"sum by (reason) ({_leader('berth_pending_pods', 'namespace, reason')})"},
        ),
        Panel(
            title="By namespace",
            stacked=True,
            queries={"{{namespace}}": f"sum by (namespace) ({_leader('berth_pending_pods', 'namespace, reason')})"},
        ),
        Panel(
            title="By plugin", queries={"{{plugin}}": f"sum by (plugin) ({_leader(_UNSCHEDULABLE, 'plugin, profile')})"}
        ),
        Panel(
            title="Oldest, by namespace and reason",
            unit="s",
            queries={"{{namespace}} {{reason}}": f'time() - min by (namespace, reason) ({_OLDEST}{{job=~"$job"}})'},
        ),
        Panel(
            title="Time from creation to binding, p90, by GPUs",
            unit="s",
            queries={"{{gpus}}": _quantile(0.9, "berth_pod_waiting_duration_seconds", "gpus")},
        ),
    ),
    "Scheduling": (
        Panel(
            title="Attempts",
            unit="ops",
            queries={"{{result}}": _rate("scheduler_schedule_attempts_total", "result")},
        ),
        Panel(
            title="Attempt duration",
            unit="s",
            queries={
                "p50": _quantile(0.5, "scheduler_scheduling_attempt_duration_seconds"),
                "p99": _quantile(0.99, "scheduler_scheduling_attempt_duration_seconds"),
            },
        ),
        Panel(
            title="Decision duration",
            unit="s",
            queries={
                "p50": _quantile(0.5, "scheduler_scheduling_algorithm_duration_seconds"),
                "p99": _quantile(0.99, "scheduler_scheduling_algorithm_duration_seconds"),
            },
        ),
        Panel(
            title="From the queue to the binding",
            unit="s",
            queries={
                "p50": _quantile(0.5, "scheduler_pod_scheduling_sli_duration_seconds"),
                "p99": _quantile(0.99, "scheduler_pod_scheduling_sli_duration_seconds"),
            },
        ),
        Panel(
            title="Pods into queues",
            unit="ops",
            queries={"{{queue}} {{event}}": _rate("scheduler_queue_incoming_pods_total", "queue, event")},
        ),
        Panel(
            title="Preemption",
            unit="ops",
            queries={
                "attempts": 'sum(rate(scheduler_preemption_attempts_total{job=~"$job"}[$__rate_interval]))',
                "victims": 'sum(rate(scheduler_preemption_victims_sum{job=~"$job"}[$__rate_interval]))',
            },
        ),
        Panel(title="Answers to Bindings", unit="ops", queries={"{{outcome}}": _rate("berth_binds_total", "outcome")}),
        Panel(
            title="Attempts until bound",
            queries={"p90": _quantile(0.9, "scheduler_pod_scheduling_attempts")},
        ),
        Panel(title="State", queries={"{{type}}": _leader("scheduler_cache_size", "type")}),
    ),
    "API server": (
        Panel(
            title="Requests",
            unit="reqps",
            queries={"{{method}} {{code}}": _rate("rest_client_requests_total", "method, code")},
        ),
        Panel(
            title="Request duration, p99",
            unit="s",
            queries={"{{verb}}": _quantile(0.99, "rest_client_request_duration_seconds", "verb")},
        ),
        Panel(
            title="Silence of watches",
            unit="s",
            text="A working watch is heard about once a minute.",
            queries={"{{watch}}": f"time() - {_leader('berth_watch_last_event_timestamp_seconds', 'watch')}"},
        ),
    ),
    "Extender of kube-scheduler": (
        Panel(
            title="Calls",
            unit="reqps",
            queries={"{{verb}} {{result}}": _rate("berth_extender_calls_total", "verb, result")},
        ),
        Panel(
            title="Duration, p99",
            unit="s",
            queries={"{{verb}}": _quantile(0.99, "berth_extender_call_seconds", "verb")},
        ),
        Panel(title="Reserved nodes", queries={"pods": 'max(berth_extender_reservations{job=~"$job"})'}),
    ),
    "What went wrong": (
        Panel(
            title="Drift and evictions",
            queries={
                "drifted pods": 'max(berth_drifted_pods{job=~"$job"})',
                "allocations rewritten": 'sum(increase(berth_allocations_rewritten_total{job=~"$job"}[1h]))',
                "evictions": 'sum(increase(berth_evictions_total{job=~"$job"}[1h]))',
                "gangs undone": 'sum(increase(berth_gangs_undone_total{job=~"$job"}[1h]))',
            },
        ),
        Panel(
            title="Failures",
            queries={
                "plug-in {{type}}": 'sum by (type) (increase(berth_plugin_failures_total{job=~"$job"}[1h]))',
                "lost {{what}}": 'sum by (what) (increase(berth_reports_lost_total{job=~"$job"}[1h]))',
                "status conflicts": 'sum(increase(berth_status_conflicts_total{job=~"$job"}[1h]))',
            },
        ),
        Panel(
            title="Unhealthy GPUs",
            kind="table",
            queries={"": "berth_gpu_healthy == 0"},
        ),
    ),
    "Use of GPUs (agents)": (
        Panel(
            title="SM utilization by namespace",
            unit="percentunit",
            text="Of the GPUs that pods of the namespace hold.",
            queries={
                "{{namespace}}": "avg by (namespace) (max by (node, UUID, namespace) (berth_gpu_pod_info > bool 0) "
                "* on (node, UUID) group_left () max by (node, UUID) (berth_gpu_sm_utilization_ratio))"
            },
        ),
        Panel(
            title="Memory in use",
            unit="percentunit",
            queries={
                "{{model}}": "sum by (model) (berth_gpu_memory_used_bytes) "
                "/ sum by (model) (berth_gpu_memory_total_bytes)"
            },
        ),
        Panel(
            title="GPUs with live metrics, as the operator knows them",
            stacked=True,
            queries={"{{state}}": _leader("berth_gpu_metrics_cards", "state")},
        ),
        Panel(title="Power", unit="watt", queries={"{{model}}": "sum by (model) (berth_gpu_power_watts)"}),
        Panel(
            title="Hottest GPUs",
            unit="celsius",
            queries={"{{node}} {{minor}}": "topk(10, berth_gpu_temperature_celsius)"},
        ),
        Panel(
            title="Xid errors",
            text="In the last hour.",
            queries={
                # The series of an Xid begins with its first error.
                "{{node}} {{minor}} Xid {{xid}}": "increase(berth_gpu_xid_errors_total[1h]) > 0 "
                "or (berth_gpu_xid_errors_total unless berth_gpu_xid_errors_total offset 1h)"
            },
        ),
        Panel(
            title="GPUs that are held and idle",
            text="GPUs that a pod holds, with less than 5 % SM utilization in the last hour.",
            queries={
                "{{namespace}}": "count by (namespace) (max by (node, UUID, namespace) (berth_gpu_pod_info > 0) "
                "* on (node, UUID) group_left () "
                "max by (node, UUID) (avg_over_time(berth_gpu_sm_utilization_ratio[1h]) < 0.05))"
            },
        ),
    ),
}


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the title and each expression of every panel."""
    for row, panels in ROWS.items():
        for panel in panels:
            for expression in panel.queries.values():
                yield f"{row}: {panel.title}", expression


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    jobs = "label_values(berth_leading, job)"
    return {
        "uid": UID,
        "title": "Berth",
        "tags": ["berth", "gpu", "scheduler"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "job",
                    "label": "Operator's job",
                    "type": "query",
                    "datasource": DATASOURCE,
                    "definition": jobs,
                    "query": {"query": jobs, "refId": "jobs"},
                    "refresh": 2,
                    "includeAll": True,
                    "allValue": ".+",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": list(_placed()),
    }


def _placed() -> Iterator[dict[str, Any]]:
    """Yield rows and panels, from left to right and from top to bottom."""
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _at(0, top)}
        left, top = 0, top + 1
        for panel in panels:
            if left + panel.columns > WIDTH:
                left, top = 0, top + HEIGHT
            number += 1
            custom = {"fillOpacity": 20, "stacking": {"mode": "normal" if panel.stacked else "none"}}
            yield {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "description": panel.text,
                "datasource": DATASOURCE,
                "gridPos": _at(left, top, panel.columns, HEIGHT),
                "fieldConfig": {
                    "defaults": {"unit": panel.unit, **({"custom": custom} if panel.kind == "timeseries" else {})},
                    "overrides": [],
                },
                "targets": [
                    {
                        "refId": chr(ord("A") + position),
                        "datasource": DATASOURCE,
                        "expr": expression,
                        "legendFormat": legend or "__auto",
                        "instant": panel.kind != "timeseries",
                        "range": panel.kind == "timeseries",
                        **({"format": "table"} if panel.kind == "table" else {}),
                    }
                    for position, (legend, expression) in enumerate(panel.queries.items())
                ],
            }
            left += panel.columns
        top += HEIGHT


def _at(left: int, top: int, width: int = WIDTH, height: int = 1) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def files(folder: Path) -> dict[Path, str]:
    """Return the files to write, with their texts."""
    rules = (folder / "monitoring" / "rules.yaml").read_text()
    body = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "berth",
            "namespace": "berth-system",
            "labels": {"app.kubernetes.io/part-of": "berth"},
        },
        "spec": yaml.safe_load(rules),
    }
    head = "# The rules of ../monitoring/rules.yaml; written by `make generate`.\n"
    return {
        folder / "monitoring" / "dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
        folder / "monitoring-prometheus-operator" / "prometheus-rule.yaml": head
        + yaml.safe_dump(body, sort_keys=False, width=120),
    }


def main() -> int:
    """Write the files, or with --check compare them; return 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    options = parser.parse_args()
    for file, text in files(options.folder).items():
        if not options.check:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            sys.stderr.write(f"{file} differs from its source: run `make generate`\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
