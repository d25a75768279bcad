"""What containers really have of a node's cards, compared with what claims, annotations and kubelet say.

It reads the containers' own /dev, and shares no code with the agent. It also says what the Device must say.
"""

import contextlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import orjson

from berth_api.names import DRA_DRIVER
from devcluster.control_plane.api import Manifest
from devcluster.errors import DevclusterError
from devcluster.waiting import WaitError
from tests.chaos import device_auditor
from tests.integration.operator import world
from tests.node.dra_driver import SLICES
from tests.node.stage import Stage


@dataclass(kw_only=True)
class Findings:
    """What a run found wrong, in words."""

    double: list[str] = field(default_factory=list)
    """Cards of two containers, and containers with another card than the pod's."""
    stuck: list[str] = field(default_factory=list)
    """Pods that did not start or end in time."""
    leftover: list[str] = field(default_factory=list)
    """What was left of pods that have ended."""
    untrue: list[str] = field(default_factory=list)
    """What the Device said that was not true, although nothing had happened for a while."""


def claim_of(pod: Manifest) -> str:
    """Return the name of a pod's claim; empty if it has none."""
    if extended := pod["status"].get("extendedResourceClaimStatus"):
        return str(extended["resourceClaimName"])
    statuses = pod["status"].get("resourceClaimStatuses") or [{}]
    return str(statuses[0].get("resourceClaimName", ""))


def audit(stage: Stage, findings: Findings, when: str) -> None:
    """Compare all containers that run with what their pods should have."""
    uuids = {f"nvidia{gpu.minor}": gpu.uuid for gpu in stage.machine.gpus}
    owners: dict[str, str] = {}
    pods = [pod for pod in stage.arena.list("pods") if has_started(pod)]
    by_name = {pod["metadata"]["name"] for pod in pods if not claim_of(pod)}
    # A kubelet that has just started reports nothing yet. What it does not report at all is found below.
    with contextlib.suppress(WaitError):
        stage.wait(lambda: by_name <= {pod for pod, _, _ in stage.held()}, what="kubelet to report the pods by name")
    held = stage.held()
    for pod in pods:
        name = pod["metadata"]["name"]
        try:
            nodes = stage.node.container(pod).devices
        except (DevclusterError, FileNotFoundError, ProcessLookupError):
            # It ended meanwhile.
            continue
        cards = {uuids[node] for node in nodes if node in uuids}
        for card in cards:
            if card in owners:
                findings.double.append(f"{when}: {name} and {owners[card]} both have {card}")
            owners[card] = name
        wanted = _of_claim(stage, claim_of(pod)) if claim_of(pod) else _of_annotation(pod)
        granted = {unit for key, units in held.items() if key[0] == name for unit in units}
        if cards != wanted or (not claim_of(pod) and granted != wanted):
            findings.double.append(f"{when}: {name} has {sorted(cards)}, of kubelet {sorted(granted)}, not {wanted}")


def real(stage: Stage, *, on_demand: Collection[str]) -> device_auditor.Facts:
    """Return what the Device must say while nothing changes; `on_demand` as in `device_auditor.facts`."""
    uuids = {f"nvidia{gpu.minor}": gpu.uuid for gpu in stage.machine.gpus}
    held: dict[str, set[str]] = {}
    claimed: set[tuple[str, str]] = set()
    for pod in filter(has_started, stage.arena.list("pods")):
        if claim := claim_of(pod):
            claimed |= {(claim, result["device"]) for result in _results(stage, claim)}
        else:
            nodes = stage.node.container(pod).devices
            held[pod["metadata"]["name"]] = {uuids[node] for node in nodes if node in uuids}
    return device_auditor.facts(stage.machine, on_demand=on_demand, held=held, claimed=claimed)


def has_started(pod: Manifest) -> bool:
    """Return whether all containers of a pod run."""
    statuses = pod["status"].get("containerStatuses") or []
    return bool(statuses) and all("running" in status["state"] for status in statuses)


def leftovers(stage: Stage) -> list[str]:
    """Return what is left when no pod runs: CDI files, entries of checkpoints, sockets, slices of other cards."""
    files = [path.name for path in stage.node.cdi.iterdir() if f"{DRA_DRIVER}-claim" in path.name]
    own = stage.checkpoint.with_name("claims.json")
    entries = list(orjson.loads(own.read_bytes())["claims"]) if own.exists() else []
    kubelets = orjson.loads((stage.node.root / "dra_manager_state").read_bytes())
    known = [str(claim["ClaimUID"]) for claim in orjson.loads(kubelets["Data"])["ClaimInfoStateList"]]
    return [*files, *entries, *known, *sockets(stage)[1:]]


def sockets(stage: Stage) -> list[str]:
    """Return the paths of the driver's registration sockets."""
    return [str(path) for path in (stage.node.root / "plugins_registry").glob(f"*{DRA_DRIVER}*")]


def listed(stage: Stage) -> list[str]:
    """Return the names of the devices in the driver's slices."""
    items = stage.node.cluster.api.get(SLICES, fieldSelector=f"spec.driver={DRA_DRIVER}")["items"]
    counts = Counter(device["name"] for one in items for device in one["spec"].get("devices", ()))
    return sorted(counts.elements())


def _of_claim(stage: Stage, name: str) -> set[str]:
    devices = {result["device"] for result in _results(stage, name)}
    return {gpu.uuid for gpu in stage.machine.gpus if gpu.uuid.lower() in devices}


def _results(stage: Stage, claim: str) -> list[Manifest]:
    results: list[Manifest] = stage.arena.get("resourceclaims", claim)["status"]["allocation"]["devices"]["results"]
    return results


def _of_annotation(pod: Manifest) -> set[str]:
    return {entry["id"] for entry in world.allocation(pod)["gpu"]}
