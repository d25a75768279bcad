"""Pods of a month: single ones, gangs, Deployments that roll without spare cards, Jobs, and pods of kube-scheduler.

kube-controller-manager runs Deployments and Jobs, and kwok ends the pods of Jobs. This module acts as the controller of
gangs, which replaces lost members. Kinds of events in `tests.chaos.faults.rollouts` change all of them.
"""

import copy
import http.client
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, Self

from devcluster import Arena
from devcluster.control_plane.api import ApiError, Manifest
from tests.chaos.auditor import GANG, GANG_SIZE
from tests.chaos.fitting import PREEMPTING
from tests.chaos.live import Live, LivePod
from tests.chaos.machines import MONTH, WORKLOAD_MODEL
from tests.chaos.workload import HIGH, MODEL, PREFIX, TWO, WHOLE, Workload

LIFE: Final = (4.0, 18.0)
"""Range of the seconds from a pod's bind to its end."""
GANG_LIFE: Final = (30.0, 80.0)
MEMBERS: Final = (2, 3, 3, 4)
PATIENCE: Final = 200.0
"""Seconds after which the user of a pod that waits gives up."""
QUIET: Final = 40.0
"""Seconds after which the audit expects that each reason is true, and a margin."""
LONGEST_REST: Final = 90.0
DRAIN: Final = 120.0
LOW: Final = "berth-chaos-low"
LOW_PRIORITY: Final = -1
MIDDLE: Final = "berth-chaos-middle"
MIDDLE_PRIORITY: Final = 500
HIGHEST: Final = "berth-chaos-highest"
HIGHEST_PRIORITY: Final = 2000
CONTENDED: Final = {f"{MONTH}/contended": "yes"}
"""Label of the node that kube-scheduler fills up with pods of a low priority."""
FOR_LARGE: Final = {f"{MONTH}/large": "yes"}
"""Label of the node of the Deployment LARGE."""
WEB: Final = "web"
LARGE: Final = "large"
URGENT: Final = "urgent"
NEIGHBOUR: Final = "neighbour"
WEB_PODS: Final = 4
NEIGHBOURS: Final = 20
"""Pods of one core; the node has 16."""
QUOTA: Final = "cards"
BUDGET: Final = "web"
LOOSE: Final = "1000"
JOB_DELAY: Final = "pod-complete.stage.kwok.x-k8s.io/delay"
DEPLOYMENTS: Final = "apps/v1"
HALF: Final = {"kubernetes.io/gpu": "50"}


class LifeWorkload(Workload):
    """The pods of one run; a context manager."""

    def __init__(self, *, arena: Arena, live: Live, seed: int) -> None:
        super().__init__(arena=arena, live=live, seed=seed)
        self._lives = defaultdict(lambda: self._chance.uniform(*LIFE))
        self._gang_lives: dict[str, float] = defaultdict(lambda: self._chance.uniform(*GANG_LIFE))
        self._jobs = 0
        self._manifests: dict[str, Manifest] = {}
        """Gang -> the manifest of its first member."""
        self._replacements = 0
        self._waiting_since: dict[str, float] = {}
        self._is_calm = False
        self._large_cards = 2

    def __enter__(self) -> Self:
        """Create the Deployments, the quota and the budget."""
        priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        first, last = self._nodes()
        self._arena.apply(
            [
                {**priority, "metadata": {"name": LOW}, "value": LOW_PRIORITY},
                {**priority, "metadata": {"name": MIDDLE}, "value": MIDDLE_PRIORITY},
                {**priority, "metadata": {"name": HIGHEST}, "value": HIGHEST_PRIORITY},
                self._quota_of(LOOSE),
                self._budget(1),
                self._deployment(WEB, WEB_PODS, TWO),
                self._deployment(LARGE, 1, _cards(2), nodeSelector=FOR_LARGE),
                self._deployment(URGENT, 0, {"cpu": "4", **WHOLE}, priorityClassName=HIGH, nodeSelector=CONTENDED),
                self._neighbour(),
            ]
        )
        for node, labels in ((first, CONTENDED), (last, FOR_LARGE)):
            self._arena.merge("nodes", node, {"metadata": {"labels": labels}})
        return super().__enter__()

    def _nodes(self) -> tuple[str, str]:
        names = [each["metadata"]["name"] for each in self._arena.list("nodes", labelSelector=self._arena.selector)]
        return min(names), max(names)

    # --- what kinds of events change --------------------------------------------------------------------------

    def roll(self, name: str = WEB) -> None:
        """Change the template of a Deployment, as a new version does."""
        version = {"metadata": {"annotations": {f"{MONTH}/version": str(time.monotonic_ns())}}}
        self._arena.merge("deployments", name, {"spec": {"template": version}})

    def scale(self, name: str, replicas: int) -> None:
        """Set the number of a Deployment's pods."""
        self._arena.merge("deployments", name, {"spec": {"replicas": replicas}})

    def set_stubborn(self, *, is_stubborn: bool) -> None:
        """Set whether the pods of kube-scheduler tolerate the taint by which Berth keeps a place."""
        tolerations = [{"key": PREEMPTING, "operator": "Exists"}] if is_stubborn else []
        self._arena.merge("deployments", NEIGHBOUR, {"spec": {"template": {"spec": {"tolerations": tolerations}}}})

    def roll_large(self) -> None:
        """Change how many cards the pod of a Deployment has, on a node that has too few for both versions."""
        self._large_cards = 5 - self._large_cards
        deployment = self._arena.get("deployments", LARGE)
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        container["resources"] = {each: _cards(self._large_cards) for each in ("requests", "limits")}
        self._arena.merge("deployments", LARGE, {"spec": {"template": {"spec": {"containers": [container]}}}})

    def is_large_stuck(self) -> bool:
        """Return whether that Deployment has two pods: the new one waits for the cards of the old one."""
        return len(self._of(LARGE)) > 1

    def unstick_large(self) -> None:
        """Delete the old pods of that Deployment, as its owner does in the end."""
        for pod in self._of(LARGE):
            if pod.node:
                self._end(pod)

    def start_job(self, *, pods: int, parallel: int, seconds: int) -> None:
        """Create a Job whose pods end by themselves."""
        self._jobs += 1
        template = self._template(f"job-{self._jobs}", WHOLE, restartPolicy="Never")
        template["metadata"]["annotations"][JOB_DELAY] = f"{seconds}s"
        spec = {"completions": pods, "parallelism": parallel, "ttlSecondsAfterFinished": 5, "template": template}
        self._arena.apply(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"job-{self._jobs}"}, "spec": spec}
        )

    def formed_gang(self) -> list[LivePod]:
        """Return the members of a gang that has formed, all of which run; empty if there is none."""
        gangs: dict[str, list[LivePod]] = defaultdict(list)
        for pod in self._live.pods.values():
            if pod.gang and pod.node and not pod.is_leaving:
                gangs[pod.gang].append(pod)
        whole = [members for name, members in sorted(gangs.items()) if len(members) >= self._size(name) > 1]
        return self._chance.choice(whole) if whole else []

    def _size(self, gang: str) -> int:
        manifest = self._manifests.get(gang)
        return int(manifest["metadata"]["annotations"][GANG_SIZE]) if manifest else 0

    def finish(self, pod: LivePod, phase: str) -> None:
        """Let a pod end by itself."""
        self._arena.merge("pods", pod.name, {"status": {"phase": phase}}, subresource="status")

    def end(self, pod: LivePod) -> None:
        """Delete a pod."""
        self._end(pod)

    def replace(self, gang: str) -> None:
        """Create a new member of a gang."""
        manifest = copy.deepcopy(self._manifests[gang])
        self._replacements += 1
        manifest["metadata"]["name"] = f"{gang}-new-{self._replacements}"
        self._arena.create([manifest])

    def set_quota(self, cards: str) -> None:
        """Set how many cards the pods of the namespace may request."""
        self._arena.apply(self._quota_of(cards))

    def set_budget(self, unavailable: int) -> None:
        """Set how many pods of the Deployment may be unavailable."""
        self._arena.apply(self._budget(unavailable))

    def rest(self) -> None:
        """Create and end no pods until nothing has happened to one for some time."""
        self._is_calm = True
        try:
            end, since, before = time.monotonic() + LONGEST_REST, time.monotonic(), self._states()
            while time.monotonic() < min(end, since + QUIET):
                time.sleep(1.0)
                if (now := self._states()) != before:
                    since, before = time.monotonic(), now
        finally:
            self._is_calm = False

    def _states(self) -> object:
        return {(pod.uid, pod.node, pod.is_leaving, _phase(pod)) for pod in self._live.pods.values()}

    def drain(self) -> None:
        """Delete all pods and what creates them."""
        for name in (WEB, LARGE, URGENT, NEIGHBOUR):
            self._arena.delete("deployments", name)
        for job in self._arena.list("jobs"):
            self._arena.delete("jobs", job["metadata"]["name"])
        self._quota = self.created
        end = time.monotonic() + DRAIN
        while pods := self._live.pods.values():
            if time.monotonic() > end:
                raise TimeoutError(f"{len(pods)} pods have not left")
            for pod in pods:
                self._end(pod)
            time.sleep(0.5)

    def _of(self, name: str) -> list[LivePod]:
        return [pod for pod in self._live.pods.values() if pod.raw["metadata"].get("labels", {}).get("app") == name]

    # --- arrivals and ends ------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        if not self._is_calm:
            try:
                super()._arrive()
            except ApiError as error:
                if error.status != http.client.FORBIDDEN:
                    raise
                self._backlog.append(self._backlog.pop(0))  # the quota is used up; smaller ones may be allowed

    def _next(self) -> list[Manifest]:
        name, kind = f"{PREFIX}{next(self._numbers)}", self._chance.random()
        cpu = {"cpu": self._chance.choice(("100m", "500m", "1"))}
        if kind < 0.10:
            return self._gang(name)
        if kind < 0.17:
            return [self._pod(name, {**cpu, **WHOLE}, priorityClassName=HIGH)]
        if kind < 0.27:
            return [self._pod(name, {**cpu, **TWO})]
        if kind < 0.67:
            return [self._pod(name, {**cpu, **WHOLE})]
        if kind < 0.90:
            return [self._pod(name, {**cpu, **HALF})]
        return [self._pod(name, cpu)]

    def _gang(self, name: str) -> list[Manifest]:
        size = self._chance.choice(MEMBERS)
        annotations = {GANG: name, GANG_SIZE: str(size)}
        requests = self._chance.choice((WHOLE, HALF, {"cpu": "1", **WHOLE}, _cards(3)))
        members = [self._pod(f"{name}-{member}", requests, annotations) for member in range(size)]
        self._manifests[name] = members[0]
        return members

    def until_arrived(self) -> None:
        """Wait until the quota has arrived, and then rest."""
        super().until_arrived()
        self.rest()

    def _leave(self) -> None:
        if self._is_calm:
            return
        super()._leave()
        now = time.monotonic()
        for pod in self._live.pods.values():
            since = self._waiting_since.setdefault(pod.uid, now)
            if pod.name.startswith(PREFIX) and not pod.node and not pod.is_leaving and now - since > PATIENCE:
                self._end(pod)

    def _leave_as_gangs(self) -> None:
        gangs: dict[str, list[LivePod]] = defaultdict(list)
        for pod in self._live.pods.values():
            if pod.gang.startswith(PREFIX):
                gangs[pod.gang].append(pod)
        now = time.monotonic()
        for name, members in gangs.items():
            bound = [pod.bound_at for pod in members if pod.node]
            if bound and now > min(bound) + self._gang_lives[name]:
                for pod in members:
                    self._end(pod)

    # --- manifests --------------------------------------------------------------------------------------------

    def _deployment(self, name: str, replicas: int, requests: Mapping[str, str], **spec: Any) -> Manifest:
        return {
            "apiVersion": DEPLOYMENTS,
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": self._template(name, requests, **spec),
            },
        }

    def _neighbour(self) -> Manifest:
        deployment = self._deployment(
            NEIGHBOUR, NEIGHBOURS, {"cpu": "1"}, priorityClassName=LOW, nodeSelector=CONTENDED
        )
        deployment["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
        deployment["spec"]["template"]["spec"]["tolerations"] = [{"key": PREEMPTING, "operator": "Exists"}]
        return deployment

    def _template(self, name: str, requests: Mapping[str, str], **spec: Any) -> Manifest:
        pod = self._arena.pod(name, requests=requests, limits=requests, labels={"app": name}, **spec)
        return {"metadata": {"labels": {"app": name}, "annotations": {MODEL: WORKLOAD_MODEL}}, "spec": pod["spec"]}

    def _quota_of(self, cards: str) -> Manifest:
        spec = {"hard": {"requests.nvidia.com/gpu": cards}}
        return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}, "spec": spec}

    def _budget(self, unavailable: int) -> Manifest:
        spec = {"maxUnavailable": unavailable, "selector": {"matchLabels": {"app": WEB}}}
        return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": BUDGET}, "spec": spec}


def _cards(count: int) -> Mapping[str, str]:
    return {"nvidia.com/gpu": str(count)}


def _phase(pod: LivePod) -> str:
    return str((pod.raw.get("status") or {}).get("phase", ""))
