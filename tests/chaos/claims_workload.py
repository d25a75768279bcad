"""Pods by name and by ResourceClaim on the same cards, and pods of kube-scheduler on its own pool and on Berth's.

The pods by claim are single pods, gangs, pods that preempt others, and pods with an extended resource of a DeviceClass.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from devcluster import Arena
from devcluster.control_plane.api import Manifest
from tests.chaos.auditor import GANG, GANG_SIZE
from tests.chaos.claims_auditor import CONTENDER, OF_CLASS, OTHER
from tests.chaos.claims_site import BY_NAME, CONTENDED, claim
from tests.chaos.live import Live, LivePod
from tests.chaos.workload import GANG_MEMBERS, HIGH, PREFIX, SHARES, TWO, WHOLE, Workload

LIFE: Final = (0.5, 3.0)
"""Range of the seconds from a pod's bind to its end."""
DOOMED: Final = 3.0
"""Seconds for which a pod waits whose claim is deleted, perhaps before it is bound."""
DELETION: Final = 0.3
"""Longest time in seconds from the creation of such a pod to the deletion of its claim."""
BY_CLAIM: Final = "claim-"
"""Part of the names of Berth's pods with claims."""
SUCCEEDED: Final = {"status": {"phase": "Succeeded"}}


class ClaimsWorkload(Workload):
    """The pods of one run; a context manager."""

    def __init__(self, *, arena: Arena, live: Live, seed: int) -> None:
        super().__init__(arena=arena, live=live, seed=seed)
        self._lives = defaultdict(lambda: self._chance.uniform(*LIFE))
        self._doomed: dict[str, float] = {}
        """Pod whose claim is deleted -> when it ends, bound or not, by the monotonic clock."""
        self._deletions: dict[str, float] = {}
        """Claim -> when it is deleted."""
        self._succeeded: set[str] = set()
        """UIDs of pods that ended by themselves, and are deleted in the next turn."""

    # --- arrivals ---------------------------------------------------------------------------------------------

    def _next(self) -> list[Manifest]:
        name = f"{PREFIX}{next(self._numbers)}"
        is_contended = self._quota // 3 <= self.created < 2 * self._quota // 3
        kinds: list[tuple[float, Callable[[str], list[Manifest]]]] = [
            (40, self._by_name),
            (30, self._by_template),
            (6, self._gang_by_template),
            (6, self._preempting),
            (8, self._by_class),
            (7, self._sharing),
            (7, self._with_deleted_claim),
            (10, self._of_other),
            (15 if is_contended else 0, self._of_contender),
        ]
        [kind] = self._chance.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
        return kind(name)

    def _create(self, manifest: Manifest) -> None:
        super()._create(manifest)
        if manifest["kind"] != "Pod":
            self.created -= 1

    def _by_name(self, name: str) -> list[Manifest]:
        requests: Mapping[str, str] = self._chance.choice((WHOLE, WHOLE, TWO, *SHARES))
        return [
            self._arena.pod(name, requests=requests, limits=requests, nodeSelector={**self._arena.labels, **BY_NAME})
        ]

    def _by_template(self, name: str) -> list[Manifest]:
        templates = self._chance.choice((["one"], ["one"], ["two"], ["first"], ["all"], ["one", "one"]))
        return [self._with_claims(name, [{"resourceClaimTemplateName": each} for each in templates])]

    def _gang_by_template(self, name: str) -> list[Manifest]:
        annotations = {GANG: name, GANG_SIZE: str(GANG_MEMBERS)}
        source = {"resourceClaimTemplateName": "one"}
        members = range(GANG_MEMBERS)
        return [self._with_claims(f"{name}-{member}", [source], annotations=annotations) for member in members]

    def _preempting(self, name: str) -> list[Manifest]:
        source = {"resourceClaimTemplateName": self._chance.choice(("one", "two"))}
        return [self._with_claims(name, [source], priorityClassName=HIGH)]

    def _by_class(self, name: str) -> list[Manifest]:
        requests = {OF_CLASS: self._chance.choice("112")}
        own = f"{PREFIX}{BY_CLAIM}{name.removeprefix(PREFIX)}"
        return [self._arena.pod(own, requests=requests, limits=requests)]

    def _sharing(self, name: str) -> list[Manifest]:
        """Return a claim and two pods that use it."""
        pods = [self._with_claims(f"{name}-{number}", [{"resourceClaimName": name}]) for number in range(2)]
        return [self._claim(name), *pods]

    def _with_deleted_claim(self, name: str) -> list[Manifest]:
        now = time.monotonic()
        pod = self._with_claims(name, [{"resourceClaimName": name}])
        self._deletions[name] = now + self._chance.uniform(0, DELETION)
        self._doomed[pod["metadata"]["name"]] = now + DOOMED
        return [self._claim(name), pod]

    def _of_other(self, name: str) -> list[Manifest]:
        """Return a pod of kube-scheduler; the taint alone keeps it from Berth's pools."""
        source = {"resourceClaimTemplateName": OTHER}
        return [self._with_claims(name, [source], scheduler_name="default-scheduler")]

    def _of_contender(self, name: str) -> list[Manifest]:
        source = {"resourceClaimTemplateName": CONTENDER}
        selector = {**self._arena.labels, **CONTENDED}
        return [self._with_claims(name, [source], scheduler_name="default-scheduler", nodeSelector=selector)]

    def _claim(self, name: str) -> Manifest:
        metadata = {"name": name, "namespace": self._arena.namespace}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": claim()}

    def _with_claims(self, name: str, sources: Sequence[Mapping[str, str]], **options: Any) -> Manifest:
        claims = [{"name": f"gpu-{number}", **source} for number, source in enumerate(sources)]
        own = name if "scheduler_name" in options else f"{PREFIX}{BY_CLAIM}{name.removeprefix(PREFIX)}"
        pod = self._arena.pod(own, resourceClaims=claims, **options)
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": each["name"]} for each in claims]}
        return pod

    # --- ends -------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        now = time.monotonic()
        for name in [name for name, due in self._deletions.items() if now > due]:
            self._arena.delete("resourceclaims", name)
            del self._deletions[name]
        self._leave_as_gangs()
        for pod in self._live.pods.values():
            if pod.gang:
                continue
            if pod.uid in self._succeeded or now > self._doomed.get(pod.name, now):
                self._end(pod)
            elif self._is_due(pod):
                self._finish(pod)

    def _finish(self, pod: LivePod) -> None:
        """End a bound pod: by itself, or by its deletion."""
        if self._chance.random() < 0.3:
            self._arena.merge("pods", pod.name, SUCCEEDED, subresource="status")
            self._succeeded.add(pod.uid)
        else:
            self._end(pod)
