"""The workloads of a team: its namespace, and what Kueue and Berth did with them."""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from devcluster import Cluster, waiting
from devcluster.additions import installation
from devcluster.control_plane.api import Manifest
from tests.kueue import audit

T = TypeVar("T")
EXAMPLES: Final = Path(__file__).parents[2] / "manifests/examples/kueue"
DEADLINE: Final = 60.0
WORKLOADS: Final = "/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/workloads"
HOSTNAME: Final = "kubernetes.io/hostname"
RUNS_ON: Final = {"pod-complete.stage.kwok.x-k8s.io/delay": "1h"}
"""Kwok lets the pods of a Job complete at once."""
CONTROLLERS: Final = (
    *("trainjobs", "trainingruntimes", "jobsets", "leaderworkersets"),
    *("jobs", "deployments", "statefulsets"),
)
BACKGROUND: Final = {"propagationPolicy": "Background"}
"""A Job that is deleted without it leaves its pods and its Workload."""
CHECK: Final = "fits-devices"
CARD: Final = 80 * 2**30
"""Bytes of memory of the example's cards."""


def apply_queues(cluster: Cluster, name: str) -> None:
    """Apply an example of queues; it replaces those of the one before."""
    for manifest in installation.documents(EXAMPLES / f"{name}.yaml"):
        cluster.api.apply(manifest)


class Team:
    """The workloads of a namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.api, self.namespace = cluster.api, namespace
        self.folder = cluster.folder

    def job(self, name: str, limits: Mapping[str, str], *, pods: int = 1, node: str = "", **metadata: Any) -> Manifest:
        """Create a Job whose pods run until they are deleted, on a `node`; `metadata` is that of its template."""
        annotations = {**RUNS_ON, **metadata.pop("annotations", {})}
        template = {
            "metadata": {**metadata, "annotations": annotations},
            "spec": {**spec(limits), "restartPolicy": "Never", "nodeSelector": {HOSTNAME: node} if node else {}},
        }
        body = {"parallelism": pods, "completions": pods, "template": template}
        return self._post("jobs", {"metadata": {"name": name}, "spec": body})

    def elastic_job(self, name: str, limits: Mapping[str, str], *, pods: int) -> None:
        """Create a Job that may grow and shrink by its `parallelism`."""
        template = {"metadata": {"annotations": RUNS_ON}, "spec": {**spec(limits), "restartPolicy": "Never"}}
        metadata = {"name": name, "annotations": {"kueue.x-k8s.io/elastic-job": "true"}}
        self._post("jobs", {"metadata": metadata, "spec": {"parallelism": pods, "template": template}})

    def pod(self, name: str, limits: Mapping[str, str], **metadata: Any) -> Manifest:
        """Create a pod without an owner."""
        return self._post("pods", {"metadata": {"name": name, **metadata}, "spec": spec(limits)})

    def replicated(self, kind: str, name: str, limits: Mapping[str, str], *, pods: int) -> Manifest:
        """Create a Deployment or StatefulSet."""
        labels = {"app": name}
        template = {"metadata": {"labels": labels, "annotations": RUNS_ON}, "spec": spec(limits)}
        body = {"replicas": pods, "selector": {"matchLabels": labels}, "template": template}
        return self._post(f"{kind.lower()}s", {"metadata": {"name": name}, "spec": body})

    def job_set(self, name: str, jobs: Mapping[str, Manifest]) -> Manifest:
        """Create a JobSet with these Jobs' specs by name."""
        replicated = [{"name": each, "template": {"spec": body}} for each, body in jobs.items()]
        return self._post("jobsets", {"metadata": {"name": name}, "spec": {"replicatedJobs": replicated}})

    def leader_worker_set(self, name: str, limits: Mapping[str, str], *, groups: int, size: int) -> Manifest:
        """Create a LeaderWorkerSet with so many groups of so many pods."""
        template = {"size": size, "workerTemplate": {"spec": spec(limits)}}
        body = {"replicas": groups, "leaderWorkerTemplate": template}
        return self._post("leaderworkersets", {"metadata": {"name": name}, "spec": body})

    def runtime(self, name: str, **metadata: Any) -> None:
        """Create a runtime of the trainer whose pods start together; `metadata` is that of its template."""
        annotations = {**RUNS_ON, **metadata.pop("annotations", {})}
        container = {**spec({})["containers"][0], "name": "node"}
        template = {
            "metadata": {**metadata, "annotations": annotations},
            "spec": {**spec({}), "containers": [container], "restartPolicy": "Never"},
        }
        labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
        job = {"metadata": {"labels": labels}, "spec": {"template": template}}
        body = {
            "mlPolicy": {"numNodes": 1},
            "podGroupPolicy": {"coscheduling": {"scheduleTimeoutSeconds": 60}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}},
        }
        self._post("trainingruntimes", {"metadata": {"name": name}, "spec": body})

    def train_job(self, name: str, limits: Mapping[str, str], *, runtime: str, pods: int) -> Manifest:
        """Create a TrainJob with so many pods by a runtime."""
        trainer = {"numNodes": pods, "resourcesPerNode": spec(limits)["containers"][0]["resources"]}
        body = {"runtimeRef": {"name": runtime, "kind": "TrainingRuntime"}, "trainer": trainer}
        return self._post("trainjobs", {"metadata": {"name": name}, "spec": body})

    def objects(self, plural: str) -> list[Manifest]:
        """Return the objects of a kind."""
        return list(self.api.get(self._path(plural))["items"])

    def replica_set(self) -> Manifest:
        """Return the only ReplicaSet."""
        [replica_set] = self.api.get(self._path("replicasets"))["items"]
        return dict(replica_set)

    def update(self, plural: str, name: str, patch: Manifest) -> None:
        """Merge a patch into an object."""
        self.api.merge(self._path(plural, name), patch)

    def delete_job(self, name: str, plural: str = "jobs") -> None:
        """Delete a Job, or what has pods like one, with its pods."""
        self.api.request("DELETE", self._path(plural, name), body=BACKGROUND)

    def pods(self) -> list[Manifest]:
        """Return the pods that are not being deleted."""
        pods = self.api.get(self._path("pods"))["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def bound(self) -> list[Manifest]:
        """Return those of these pods that have a node."""
        return [pod for pod in self.pods() if pod["spec"].get("nodeName")]

    def workloads(self) -> list[Manifest]:
        """Return Kueue's Workloads."""
        return list(self.api.get(WORKLOADS.format(self.namespace))["items"])

    def rows(self) -> dict[str, audit.Row]:
        """Return the audit's row of each admitted workload, by its owner's name, or its own if that has several."""
        names = {each["metadata"]["name"]: each["metadata"]["ownerReferences"][0]["name"] for each in self.workloads()}
        owners = Counter(names.values())
        rows = audit.rows(self.workloads(), self.pods(), card=CARD)
        return {names[row.name] if owners[names[row.name]] == 1 else row.name: row for row in rows}

    def wait_bound(self, count: int) -> list[Manifest]:
        """Wait until so many pods are bound; return them."""

        def all_bound() -> list[Manifest] | None:
            pods = self.bound()
            return pods if len(pods) == count else None

        return self.until(all_bound, f"{count} pods to be bound") or []

    def wait_reason(self, name: str) -> str:
        """Wait until the workload of a Job or pod has no quota; return Kueue's message."""

        def refused() -> str:
            conditions = [
                condition
                for each in self.workloads()
                if each["metadata"]["ownerReferences"][0]["name"] == name
                for condition in each.get("status", {}).get("conditions", ())
            ]
            pending = [each for each in conditions if each["type"] == "QuotaReserved" and each["status"] == "False"]
            return pending[0]["message"] if pending else ""

        return self.until(refused, f"{name} to wait for quota")

    def until(self, predicate: Callable[[], T], what: str) -> T:
        """Wait for a condition; a failure shows the end of Kueue's log."""
        return waiting.until(predicate, deadline=DEADLINE, what=what, poll=0.2, details=self._end_of_log)

    def _end_of_log(self) -> str:
        return "\n".join((self.folder / "kueue.log").read_text(errors="replace").splitlines()[-15:])

    def clear(self) -> None:
        """Delete all workloads, and wait until Kueue has forgotten them."""
        for plural in CONTROLLERS:
            with contextlib.suppress(LookupError):  # a cluster without this controller
                self.api.request("DELETE", self._path(plural), body=BACKGROUND)
        self.until(lambda: not self.api.get(self._path("replicasets"))["items"], "the ReplicaSets to be gone")
        self.api.delete(self._path("pods"), grace_seconds=0)
        self.until(
            lambda: not (self.api.get(self._path("pods"))["items"] or self.workloads()), "all workloads to be gone"
        )

    def _post(self, plural: str, manifest: Manifest) -> Manifest:
        resource = self.api.resource(plural)
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        return self.api.post(self._path(plural), {**head, **manifest})

    def _path(self, plural: str, name: str | None = None) -> str:
        return self.api.resource(plural).path(namespace=self.namespace, name=name)


def spec(limits: Mapping[str, str]) -> Manifest:
    """Return the spec of a pod of Berth's with one container."""
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": dict(limits)}
    container = {"name": "main", "image": "none", "resources": resources}
    return {"schedulerName": "berth-scheduler", "containers": [container]}


def node_names(cluster: Cluster) -> list[str]:
    """Return the names of the nodes in order."""
    return sorted(each["metadata"]["name"] for each in cluster.api.get("/api/v1/nodes")["items"])


def hold(cluster: Cluster, node: str, name: str, limits: Mapping[str, str]) -> None:
    """Hold cards of a node by a pod that Kueue does not hold, until `release`; wait until it has them."""
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    pods = cluster.api.resource("pods")
    cluster.api.post(
        pods.path(namespace="default"), {**head, "spec": {**spec(limits), "nodeSelector": {HOSTNAME: node}}}
    )
    path = pods.path(namespace="default", name=name)
    waiting.until(lambda: cluster.api.get(path)["spec"].get("nodeName"), deadline=DEADLINE, what=name, poll=0.2)


def release(cluster: Cluster) -> None:
    """End the pods of `hold`."""
    cluster.api.delete(cluster.api.resource("pods").path(namespace="default"), grace_seconds=0)


def entry(team: Team, job: str) -> Manifest:
    """Return the entry of the check in the unfinished Workload of a Job; empty while there is none."""
    for each in team.workloads():
        status = each.get("status", {})
        is_finished = any(one["type"] == "Finished" for one in status.get("conditions", ()))
        if each["metadata"]["ownerReferences"][0]["name"] == job and not is_finished:
            return next((dict(one) for one in status.get("admissionChecks", ()) if one["name"] == CHECK), {})
    return {}
