"""One random sequence of events in a cluster's life, and what the operator does about them, in virtual time."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from berth_api import names
from berth_client.errors import ApiError, Unreachable
from berth_operator.core.values.quota_workload import PodSet, QuotaWorkload
from tests.component.extender.extender_stage import HALF, WHOLE, asking
from tests.component.world import LostError, Raw
from tests.objects.builders import NVIDIA, pod, pod_group, waiting
from tests.sequences.site import HOSTNAME, RACK, Site

LWS: Final = "leaderworkerset.sigs.k8s.io/"
EVENTS: Final = 40
"""Events of a sequence."""
PAUSES: Final = (0.0, 0.0, 0.0, 0.2, 1.0, 5.0, 15.0)
"""Seconds between two events."""
END: Final = 20.0
"""Seconds after the last event."""
SETTLED: Final = 5.0
"""Seconds after the last event of a term."""
PRIORITIES: Final = (0, 0, 0, 5, 10)
RACKS: Final = ("r1", "r2")
FAULTS: Final[tuple[Callable[[], Exception], ...]] = (
    lambda: ApiError(409, "Conflict", "no"),
    lambda: ApiError(422, "Invalid", "no"),
    lambda: ApiError(500, "InternalError", "no"),
    lambda: Unreachable("no"),
    lambda: LostError("no"),
)


@dataclass(slots=True)
class Sequence:
    """One random sequence, and the record of what became of it."""

    seed: int
    record: list[str] = field(default_factory=list)
    site: Site = field(init=False)
    choice: random.Random = field(init=False)
    numbers: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> list[str]:
        """Run the events under one leader after another; return the record, a line each."""
        self.choice, self.site = random.Random(self.seed), Site()
        left = EVENTS
        for number in range(self.choice.randint(2, 5)):
            self.site.add_node(
                f"n{number}", self.choice.choice((1, 2, 4)), self.choice.choice(RACKS), of_claims=self._is(0.2)
            )
        while left > 0:
            term = self.choice.randint(5, 40)
            async with self.site.world.running():
                for _ in range(min(left, term)):
                    self._event()
                    await asyncio.sleep(self.choice.choice(PAUSES))
                left -= term
                # A pod that was just deleted has an attempt until its Binding is answered.
                await asyncio.sleep(END if left <= 0 else SETTLED)
                inherited = self.site.world.left()
            self._note("lease", inherited.model_dump(mode="json", by_alias=True))
            self.site.lead(inherited)
        return self._recorded()

    def _event(self) -> None:
        events: tuple[tuple[Callable[[], None], float], ...] = (
            (self._pod, 8),
            (self._gang, 3),
            (self._leader, 2),
            (self._workers, 2),
            (self._claim, 2),
            (self._workload, 2),
            (self._of_kube_scheduler, 3),
            (self._delete, 5),
            (self._end, 3),
            (self._refuse, 2),
            (self._add_node, 1),
            (self._remove_node, 0.5),
            (self._break_card, 1),
        )
        [event] = self.choice.choices([each for each, _ in events], [weight for _, weight in events])
        event()

    def _pod(self) -> None:
        requests = self.choice.choice(
            ({NVIDIA: "1"}, {NVIDIA: "2"}, {NVIDIA: "4"}, {"cpu": "6"}, {"kubernetes.io/gpu": "30"})
        )
        fields: Raw = {"priority": self.choice.choice(PRIORITIES)}
        if self._is(0.2):
            fields["activeDeadlineSeconds"] = self.choice.choice((20, 200))
        if self._is(0.2):
            fields["nodeSelector"] = {HOSTNAME: f"n{self.choice.randrange(4)}"}
        self.site.world.submit(pod(self._name("p"), requests, **fields))

    def _gang(self) -> None:
        size, group = self.choice.randint(2, 5), self._name("g")
        self.site.group(pod_group(group, size, timeout=self.choice.choice((20, 600))))
        labels, priority = {names.POD_GROUP_LABEL: group}, self.choice.choice(PRIORITIES)
        cards = self.choice.choice(("1", "1", "2"))
        missing = self._is(0.1)
        self.site.world.submit(
            *(
                pod(f"{group}-{each}", {NVIDIA: cards}, labels=labels, priority=priority)
                for each in range(size - missing)
            )
        )

    def _leader(self) -> None:
        """Create the first pod of a group whose others come once it has a node."""
        name, size = self._name("l"), self.choice.randint(2, 5)
        self.site.world.submit(self._member(name, 0, size))

    def _workers(self) -> None:
        """Create the other pods of a group whose first pod has a node."""
        for name, raw in list(self.site.api.pods.items()):
            metadata = raw["metadata"]
            if name.startswith("l") and name.endswith("-0-0") and raw["spec"].get("nodeName"):
                size, owner = int(metadata["annotations"][f"{LWS}size"]), metadata["labels"][f"{LWS}name"]
                others = [self._member(owner, number, size) for number in range(1, size)]
                self.site.world.submit(*(each for each in others if each["metadata"]["name"] not in self.site.api.pods))

    def _member(self, owner: str, number: int, size: int) -> Raw:
        labels = {f"{LWS}name": owner, f"{LWS}group-index": "0", f"{LWS}worker-index": str(number)}
        annotations = {f"{LWS}size": str(size), f"{LWS}exclusive-topology": RACK}
        return pod(f"{owner}-0-{number}", {NVIDIA: "1"}, labels=labels, annotations=annotations)

    def _claim(self) -> None:
        name = self._name("c")
        self.site.claims.change(name)
        used = [{"name": name, "resourceClaimName": name}]
        self.site.world.submit(pod(self._name("pc"), {"cpu": "1"}, resourceClaims=used))

    def _workload(self) -> None:
        """Request places for a workload of Kueue, create the pods of one, or end one."""
        known = self.site.workloads
        if known and self._is(0.5):
            key = self.choice.choice(sorted(known))
            name = key.removeprefix("ns/")
            annotations = {names.WORKLOAD: name, names.POD_SET: "main"}
            made = f"{name}-{self.numbers}"
            self.numbers += 1
            self.site.world.submit(pod(made, {NVIDIA: "1"}, annotations=annotations))
            return
        if known and self._is(0.3):
            key = self.choice.choice(sorted(known))
            del known[key]
            self.site.world.cluster.workloads.remove(key)
            return
        name, count = self._name("w"), self.choice.randint(1, 4)
        pods = (waiting(request={NVIDIA: 1}),) * count
        made_set = PodSet(name="main", pods=pods)
        priority = self.choice.choice(PRIORITIES)
        key = f"ns/{name}"
        known[key] = QuotaWorkload(
            key=key, uid=f"uid-{name}", check="fits", has_quota=True, pod_sets=(made_set,), priority=priority
        )
        self.site.world.cluster.workloads.put(known[key])

    def _of_kube_scheduler(self) -> None:
        """Filter the nodes for a pod by the extender, and bind it, evict for it, or forget it."""
        stage, api = self.site.stage, self.site.api
        raw = asking(self._name("k"), self.choice.choice((WHOLE, HALF)), priority=self.choice.choice(PRIORITIES))
        name = raw["metadata"]["name"]
        self.site.foreign[name] = stage.create(raw)
        found = stage.filter(raw)
        self._note("filter", name, sorted(found.names), dict(found.failed), dict(found.unresolvable))
        if found.names and self._is(0.8):
            self._start(self._bound_by_extender(raw, min(found.names)))
        elif found.failed:
            held: dict[str, list[str]] = {node: [] for node in sorted(found.failed)}
            for bound, node in sorted(api.bound().items()):
                priority = api.pods[bound]["spec"].get("priority", 0)
                if node in held and priority < raw["spec"]["priority"]:
                    held[node].append(f"uid-{bound}")
            victims = {node: uids for node, uids in held.items() if uids}
            if victims:
                self._note("preempt", name, stage.preempt(raw, victims))

    async def _bound_by_extender(self, raw: Raw, node: str) -> None:
        self._note("extender", raw["metadata"]["name"], node, await self.site.stage.bind(raw, node))

    def _delete(self) -> None:
        if pods := sorted(self.site.api.pods):
            self.site.leave([self.choice.choice(pods)])

    def _end(self) -> None:
        if bound := sorted(self.site.api.bound()):
            name = self.choice.choice(bound)
            self.site.world.end(name)
            self.site.leave([name])

    def _refuse(self) -> None:
        """Fail the next calls for a pod that comes soon."""
        call = self.choice.choice(("bind", "bind", "condition", "delete"))
        name = f"p{self.numbers + self.choice.randrange(3)}"
        faults = [self.choice.choice(FAULTS)() for _ in range(self.choice.randint(1, 3))]
        self.site.api.faults.setdefault(f"{call} {name}", []).extend(faults)

    def _add_node(self) -> None:
        self.site.add_node(self._name("n"), self.choice.choice((1, 2, 4)), self.choice.choice(RACKS), of_claims=False)

    def _remove_node(self) -> None:
        if len(self.site.nodes) > 1:
            name = self.choice.choice(sorted(self.site.nodes))
            self.site.leave([each for each, on in sorted(self.site.api.bound().items()) if on == name])
            self.site.remove_node(name)

    def _break_card(self) -> None:
        name = self.choice.choice(sorted(self.site.nodes))
        self.site.break_card(name, self.choice.randrange(len(self.site.cards[name])))

    def _recorded(self) -> list[str]:
        """Return what was recorded, with what the API server has seen, each in its order."""
        api = self.site.api
        for at, name, body in api.binds:
            self._note("bind", round(at, 3), name, body["target"]["name"], body["metadata"]["annotations"])
        for at, name, condition in api.patches:
            said = (condition.get("type"), condition.get("status"), condition.get("reason"), condition.get("message"))
            self._note("condition", round(at, 3), name, *said)
        for nomination in api.nominations:
            self._note("nomination", *nomination)
        for at, name in [*api.deletes, *api.evictions]:
            self._note("delete", round(at, 3), name)
        for name, raw in sorted(self.site.claims.claims.items()):
            allocation = dict((raw.get("status") or {}).get("allocation") or {})
            # It comes from the real clock.
            allocation.pop("allocationTimestamp", None)
            self._note("claim", name, allocation, (raw.get("status") or {}).get("reservedFor"))
        return self.record

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _note(self, kind: str, *what: Any) -> None:
        self.record.append(json.dumps([kind, *what], sort_keys=True, default=str))

    def _name(self, prefix: str) -> str:
        self.numbers += 1
        return f"{prefix}{self.numbers}"

    def _is(self, share: float) -> bool:
        return self.choice.random() < share
