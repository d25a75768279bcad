"""An installation with a few faults, as `kubectl berth doctor` reads it from a stand-in, by the paths of the lists."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from berth_kubectl.doctor.cluster import DENYING
from berth_kubectl.doctor.facts import Installation
from berth_kubectl.doctor.gathering import sources
from berth_kubectl.heavy import definitions
from tests.objects.kubectl_objects import condition, raw_card, raw_device, raw_node

NODES: Final = ("gpu-0000", "gpu-0001", "gpu-0002", "gpu-0003")
SILENT: Final = ("gpu-0002",)
LATE: Final = timedelta(minutes=42)
LASTS: Final = 86400
"""Seconds of all other Leases: no program renews them."""

Raw = dict[str, Any]


def documents(version: str = "", *, nodes: Sequence[str] = NODES, silent: Collection[str] = SILENT) -> dict[str, Raw]:
    """Return the lists by path; `version` is the operator's, by default that of this program.

    Of the nodes that have a Device, some are silent; one more node has none.
    """
    lists = {**_programs(version or definitions.own_version()), **_nodes(nodes, silent), **_cluster()}
    paths = {name: source.request.path for name, source in sources(Installation()).items()}
    answers: dict[str, Raw] = {path: {"items": lists[name]} for name, path in paths.items() if name in lists}
    return {**answers, "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}}


def _nodes(names: Sequence[str], silent: Collection[str]) -> dict[str, list[Raw]]:
    without = raw_node(f"gpu-{len(names):04d}", labels={"nvidia.com/gpu.present": "true"})
    return {
        "leases": [_lease(name, late=LATE, lasts=15) if name in silent else _lease(name) for name in names],
        "devices": [raw_device(name, raw_card()) for name in names],
        "nodes": [*(raw_node(name) for name in names), without],
    }


def _programs(version: str) -> dict[str, list[Raw]]:
    return {
        "leaderleases": [_lease("berth-operator")],
        "deployments": [_workload("berth-operator", version)],
        "daemonsets": [_workload("berth-agent", version)],
    }


def _cluster() -> dict[str, list[Raw]]:
    bindings = [
        _named(name, spec={"validationActions": ["Deny"], "paramRef": {"name": "berth-operator"}}) for name in DENYING
    ]
    unavailable = condition("Available", "False", message="no response from https://10.96.0.7:443: connection refused")
    return {
        "customresourcedefinitions": list(definitions.wanted()),
        "validatingadmissionpolicies": [_named(name) for name in DENYING],
        "validatingadmissionpolicybindings": bindings,
        "mutatingadmissionpolicies": [_named("berth-injection")],
        "mutatingadmissionpolicybindings": [_named("berth-injection")],
        "mutatingwebhookconfigurations": [],
        "validatingwebhookconfigurations": [],
        "services": [],
        "endpointslices": [],
        "apiservices": [
            _named(
                "v1.nvidia-gpu-scheduler",
                spec={
                    "group": "nvidia-gpu-scheduler",
                    "version": "v1",
                    "service": {"namespace": "berth-system", "name": "berth-api"},
                },
                status={"conditions": [unavailable]},
            )
        ],
    }


def _named(name: str, **fields: Any) -> Raw:
    return {"metadata": {"name": name}, **fields}


def _lease(name: str, *, late: timedelta = timedelta(), lasts: int = LASTS) -> Raw:
    moment = (datetime.now(tz=UTC) - late).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"name": name, "managedFields": [{"manager": "berth", "time": moment}]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": lasts, "renewTime": moment},
    }


def _workload(name: str, version: str) -> Raw:
    return _named(name, spec={"template": {"spec": {"containers": [{"image": f"berth.dev/{name}:{version}"}]}}})
