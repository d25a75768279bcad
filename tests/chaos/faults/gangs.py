"""What the controller of a gang does late in its life, and places that a pod of higher priority takes from another."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from devcluster.control_plane.api import Manifest
from tests.chaos.auditor import GANG, GANG_SIZE
from tests.chaos.faults.base import Family
from tests.chaos.life_workload import HALF, HIGHEST, JOB_DELAY, MIDDLE
from tests.chaos.live import LivePod
from tests.chaos.machines import CARDS, WORKLOAD_MODEL
from tests.chaos.workload import HIGH, MODEL, WHOLE

LABEL: Final = "app"
NEVER: Final = "24h"
STARVES: Final = "no nodes are reserved for gangs"
"""In the message of a gang that has waited as long as a pod waits for a reservation."""
HELD: Final = "chaos.berth.dev/held"
"""A finalizer."""
LOST: Final = "freed capacity was lost"
"""In the message of a pod whose preemption backs off."""


class Gangs(Family):
    """Events about gangs that began long ago, and about pods that evict others for the same place."""

    weights: ClassVar[Mapping[str, int]] = {
        "last_runner_lost": 4,
        "minimum_edited": 4,
        "place_given_away": 4,
        "large_gang_waits": 2,
    }

    def last_runner_lost(self) -> None:
        """Remove a member of a Job's gang that has succeeded, then the other member. The Job's next pod has to run."""
        name, arena, insist = self._name("finishing"), self.site.arena, self.site.insist
        annotations = {**_gang(name, 2), JOB_DELAY: NEVER}
        template = self._template(name, HALF, annotations, restartPolicy="Never", priorityClassName=HIGH)
        spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": template}
        self._create("batch/v1", "Job", name, spec)
        first, second = self._until_running(name, 2)
        insist(lambda: arena.merge("pods", first.name, {"status": {"phase": "Succeeded"}}, subresource="status"))
        self._end(first)
        self.site.live.until(lambda: first not in self._pods(name), what=f"{first.name} to be gone")
        self._end(second)
        self.site.live.until(lambda: second not in self._pods(name), what=f"{second.name} to be gone")
        self._until_running(name, 1)
        self._remove("jobs", name)

    def minimum_edited(self) -> None:
        """Create a Deployment whose gang has a higher minimum than the Deployment has replicas, and correct it."""
        name = self._name("edited")
        self._deploy(name, self._template(name, HALF, _gang(name, 2), priorityClassName=HIGH))
        self.site.live.until(lambda: self._pods(name), what=f"a pod of {name}")
        self.last(0.5, 3.0)
        change = {"spec": {"template": {"metadata": {"annotations": _gang(name, 1)}}}}
        self.site.insist(lambda: self.site.arena.merge("deployments", name, change))
        self._until_running(name, 1)
        self._remove("deployments", name)

    def place_given_away(self) -> None:
        """Create pods of a higher priority that take the place of a waiting pod, once for each card of a node.

        A finalizer keeps the pod's victims until the end.
        """
        node = self.chance.choice(self.site.machines.simulated[1:])
        low, middle, high = self._name("low"), self._name("middle"), self._name("high")
        place = {"kubernetes.io/hostname": node}
        self._hold_cards(low, nodeSelector=place)
        self._deploy(middle, self._template(middle, WHOLE, priorityClassName=HIGH, nodeSelector=place))
        self._until_nominated(middle, 1)
        self._deploy(high, self._template(high, WHOLE, priorityClassName=HIGHEST, nodeSelector=place), replicas=0)
        for count in range(1, CARDS + 1):
            change = {"spec": {"replicas": count}}
            self.site.insist(lambda change=change: self.site.arena.merge("deployments", high, change))
            self._until_nominated(high, count)
            self.last(0.3, 0.6)
        for pod in self._pods(middle):
            if LOST in str(pod.raw["status"]):
                self.site.failures.append(f"{pod.name}: a place that Berth gave away counts as lost")
        self._remove_held(low)
        self._until_running(high, CARDS)
        self._remove("deployments", high)
        self._until_running(middle, 1)
        self._remove("deployments", middle)

    def large_gang_waits(self) -> None:
        """Want all cards of two nodes for a gang while small pods come and go, until it runs or knows what helps."""
        name = self._name("large-gang")
        requests = {"nvidia.com/gpu": str(CARDS)}
        self._deploy(name, self._template(name, requests, _gang(name, 2)), replicas=2)

        def is_told() -> bool:
            pods = self._pods(name)
            return len(pods) == 2 and all(pod.node or STARVES in str(pod.raw["status"]) for pod in pods)

        self.site.live.until(is_told, what=f"{name} to run, or to know what helps")
        self._remove("deployments", name)

    # --- objects ----------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        return f"{kind}-{self.chance.randrange(10**9)}"

    def _template(
        self, name: str, requests: Mapping[str, str], annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> Manifest:
        metadata = {"labels": {LABEL: name}, "annotations": {MODEL: WORKLOAD_MODEL, **(annotations or {})}}
        pod = self.site.arena.pod(name, requests=requests, limits=requests, **spec)
        return {"metadata": metadata, "spec": pod["spec"]}

    def _deploy(self, name: str, template: Manifest, *, replicas: int = 1) -> None:
        spec = {"replicas": replicas, "selector": {"matchLabels": {LABEL: name}}, "template": template}
        self._create("apps/v1", "Deployment", name, spec)

    def _hold_cards(self, name: str, **spec: Any) -> None:
        """Create pods for all cards of a node, and wait until most of them have what they can get."""
        for number in range(CARDS):
            template = self._template(name, WHOLE, priorityClassName=MIDDLE, **spec)
            metadata = {**template["metadata"], "name": f"{name}-{number}", "finalizers": [HELD]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
            self.site.insist(lambda pod=pod: self.site.arena.create([pod]))
        self.site.live.until(lambda: any(pod.node for pod in self._pods(name)), what=f"a pod of {name} to be bound")
        self.last(1.0, 2.0)

    def _remove_held(self, name: str) -> None:
        for pod in self._pods(name):
            self.site.insist(
                lambda pod=pod: self.site.arena.merge("pods", pod.name, {"metadata": {"finalizers": None}})
            )
            self._end(pod)
        self.site.live.until(lambda: not self._pods(name), what=f"the pods of {name} to be gone")

    def _create(self, version: str, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.site.insist(lambda: self.site.arena.create([manifest]))

    def _remove(self, plural: str, name: str) -> None:
        """Delete a controller and its pods."""
        self.site.insist(lambda: self.site.arena.delete(plural, name))
        for pod in self._pods(name):
            self._end(pod)
        self.site.live.until(lambda: not self._pods(name), what=f"the pods of {name} to be gone")

    def _end(self, pod: LivePod) -> None:
        self.site.workload.ended.add(pod.uid)
        self.site.insist(lambda: self.site.arena.delete("pods", pod.name, grace_seconds=0))

    # --- pods -------------------------------------------------------------------------------------------------

    def _pods(self, name: str) -> Sequence[LivePod]:
        """Return the pods of a controller."""
        pods = self.site.live.pods.values()
        return [pod for pod in pods if pod.raw["metadata"].get("labels", {}).get(LABEL) == name]

    def _until_nominated(self, name: str, count: int) -> None:
        """Wait until a number of a controller's pods have a node, or a place that victims leave."""

        def have_places() -> bool:
            pods = self._pods(name)
            return len(pods) == count and all(pod.node or pod.raw["status"].get("nominatedNodeName") for pod in pods)

        self.site.live.until(have_places, what=f"{count} pods of {name} to have a place")

    def _until_running(self, name: str, count: int) -> Sequence[LivePod]:
        """Wait until a number of a controller's pods run, and no other one; return them, the first index first."""

        def running() -> Sequence[LivePod]:
            pods = self._pods(name)
            is_done = len(pods) == count and all(pod.raw["status"].get("phase") == "Running" for pod in pods)
            return sorted(pods, key=lambda pod: pod.name) if is_done else ()

        return self.site.live.until(running, what=f"{count} pods of {name} to run")


def _gang(name: str, size: int) -> Mapping[str, str]:
    return {GANG: name, GANG_SIZE: str(size)}
