"""Kueue's kinds without Kueue: its definitions in a cluster, and its transitions of Workloads, made by a test."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from berth_client import times
from devcluster import Arena, Cluster
from devcluster.building import programs
from tests.objects import kueue_objects
from tests.objects.kueue_objects import API, CHECK, assignment, check_state, condition

Raw = dict[str, Any]

PATH: Final = f"/apis/{API}"
KINDS: Final = ("workloads", "resourceflavors", "admissionchecks", "localqueues", "clusterqueues")
_PRESERVED: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def install(cluster: Cluster, folder: Path) -> None:
    """Install Kueue's definitions of the pinned version, in v1beta2 alone: nothing converts between versions here.

    Of Workloads the schema of templates is left out: it is that of pods, and takes the API server seconds to load. The
    definitions stay for all tests that share the cluster.
    """
    if cluster.api.exists(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workloads.{API.partition('/')[0]}"):
        return
    source = programs.source("kueue") / "config/components/crd/bases"
    folder.mkdir()
    for kind in KINDS:
        definition = yaml.safe_load((source / f"kueue.x-k8s.io_{kind}.yaml").read_text())
        spec = definition["spec"]
        spec["versions"] = [each for each in spec["versions"] if each["name"] == "v1beta2"]
        spec.pop("conversion", None)
        if kind == "workloads":
            properties = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            properties["podSets"]["items"]["properties"]["template"] = _PRESERVED
        (folder / f"{kind}.yaml").write_text(yaml.safe_dump(definition))
    before = set(cluster.api.shared)
    cluster.install_crds(folder)
    cluster.api.shared.intersection_update(before)


class Kueue:
    """What Kueue's controllers do to the Workloads of an arena, one step at a time."""

    def __init__(self, arena: Arena, *, check: str = CHECK) -> None:
        self.arena, self.api, self.check = arena, arena.cluster.api, check
        self.flavor = f"flavor-{arena.id}"

    def open(self) -> None:
        """Create the AdmissionCheck, and a ResourceFlavor for the nodes of the arena."""
        self.api.apply(_stored(kueue_objects.admission_check(self.check)))
        self.api.apply(_stored(kueue_objects.flavor(self.flavor, self.arena.labels)))

    def close(self) -> None:
        """Delete what was created."""
        self.api.delete(f"{self._namespaced()}")
        for kind, name in (("admissionchecks", self.check), ("resourceflavors", self.flavor)):
            self.api.delete(f"{PATH}/{kind}/{name}")

    def _namespaced(self) -> str:
        return f"{PATH}/namespaces/{self.arena.namespace}/workloads"

    def path(self, name: str) -> str:
        """Return the path of a Workload."""
        return f"{self._namespaced()}/{name}"

    def create(self, name: str, *pod_sets: Raw, **fields: Any) -> Raw:
        """Create a Workload that waits for quota, with the check as Kueue adds it."""
        raw = kueue_objects.workload(name, *pod_sets, **fields)
        created = self.api.post(self._namespaced(), {**raw, "metadata": {"name": name}})
        self.set_status(name, {"admissionChecks": [self.pending()]})
        return created

    def pending(self, message: str = "") -> Raw:
        """Return the entry of a check that is not decided."""
        return check_state(name=self.check, message=message)

    def reserve(self, name: str, *, since: str = kueue_objects.TIME) -> None:
        """Reserve quota for a Workload."""
        sets = self.api.get(self.path(name))["spec"]["podSets"]
        assigned = [assignment(each["name"], flavor=self.flavor, count=each["count"]) for each in sets]
        admission = {"clusterQueue": "queue", "podSetAssignments": assigned}
        conditions = [condition("QuotaReserved", since=since), condition("Evicted", status="False", since=since)]
        self.set_status(name, {"admission": admission, "conditions": conditions})

    def submit(self, name: str, *pod_sets: Raw, **fields: Any) -> Raw:
        """Create a Workload and reserve quota for it."""
        created = self.create(name, *pod_sets, **fields)
        self.reserve(name)
        return created

    def evict(self, name: str) -> None:
        """Evict a Workload and take its quota, as Kueue does after Retry: the check is Pending again."""
        entry = self.entry(name)
        count = {"retryCount": entry.get("retryCount", 0) + 1} if entry["state"] == "Retry" else {}
        checks = [self.pending("Reset to Pending after eviction") | count]
        conditions = [condition("QuotaReserved", status="False"), condition("Evicted")]
        self.set_status(name, {"admissionChecks": checks, "conditions": conditions, "admission": None})

    def admit(self, name: str) -> None:
        """Admit a Workload whose check is Ready."""
        conditions = self.api.get(self.path(name))["status"]["conditions"]
        # A new leader keeps no places of what was admitted long ago.
        admitted = condition("Admitted", since=times.time(times.now()))
        self.set_status(name, {"conditions": [*conditions, admitted]})

    def set_status(self, name: str, status: Raw) -> None:
        """Write the status as Kueue's account does."""
        self.api.merge(f"{self.path(name)}/status", {"status": status})

    def entry(self, name: str) -> Raw:
        """Return the entry of our check."""
        checks: Sequence[Raw] = self.api.get(self.path(name))["status"]["admissionChecks"]
        return next(each for each in checks if each["name"] == self.check)

    def state(self, name: str) -> str:
        """Return the state of our check."""
        return str(self.entry(name)["state"])

    def active(self) -> str:
        """Return the status of the condition Active of our AdmissionCheck; empty without one."""
        status = self.api.get(f"{PATH}/admissionchecks/{self.check}").get("status") or {}
        return next((str(each["status"]) for each in status.get("conditions", ()) if each["type"] == "Active"), "")


def _stored(raw: Raw) -> Raw:
    """Return an object without what the API server sets."""
    return {**raw, "metadata": {"name": raw["metadata"]["name"]}}
