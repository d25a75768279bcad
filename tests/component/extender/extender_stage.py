"""A stage for tests of the extender: a world with an extender, and requests as kube-scheduler sends them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from berth_api.admission.routing import DEFAULT
from berth_operator.apis.extender.extender import Extender, ExtenderOptions
from berth_operator.apis.extender.protocol import BindArgs, FilterResult, NodeArgs, PreemptArgs
from berth_operator.apis.extender.waiting import ForeignWaitingPods
from berth_operator.core.decision.policy import Policy
from tests.component.world import World
from tests.objects.builders import pod

Raw = dict[str, Any]
WHOLE: Final = {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100}
HALF: Final = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}


def asking(name: str = "p", requests: Mapping[str, Any] = WHOLE, **fields: Any) -> Raw:
    """Return a pod of kube-scheduler that requests a GPU."""
    return pod(name, requests, **{"schedulerName": DEFAULT, **fields})


def nodes_of(raw: Raw, *names: str) -> NodeArgs:
    """Return a request for filter or prioritize."""
    return NodeArgs(pod=raw, names=list(names))


class Stage:
    """A world with an extender whose watch is driven by the test."""

    def __init__(self, world: World, policy: Callable[[str], Policy] = lambda _: Policy(), **options: Any) -> None:
        self.world, self.waiting = world, ForeignWaitingPods()
        self.extender = Extender(
            cluster=world.cluster,
            binds=world.scheduler,
            pods=world.api,
            reporter=world.reporter,
            policy=policy,
            term=lambda: world.term,
            is_waiting=self.waiting.__contains__,
            options=ExtenderOptions(**{"schedulers": frozenset({DEFAULT}), "lease": "berth", **options}),
        )
        self.waiting.on_gone = self.extender.pod_gone
        [(_, self.watch)] = self.waiting.sources([DEFAULT]).values()

    def create(self, raw: Raw) -> Raw:
        """Create a pod of kube-scheduler on the API server, and show it on the watch."""
        self.world.api.pods[raw["metadata"]["name"]] = raw
        self.watch.apply("ADDED", raw)
        return raw

    def delete(self, raw: Raw) -> None:
        """Delete a pod that waits."""
        del self.world.api.pods[raw["metadata"]["name"]]
        self.watch.apply("DELETED", raw)

    def filter(self, raw: Raw, *names: str) -> FilterResult:
        """Call filter with these nodes, or with all."""
        return self.extender.filter(nodes_of(raw, *(names or self.world.fleet.rows)))

    def preempt(self, raw: Raw, victims: Mapping[str, Sequence[str]]) -> dict[str, tuple[list[str], int]]:
        """Call preempt; return {node: (UIDs of victims, violations)}."""
        answer = self.extender.preempt(PreemptArgs(pod=raw, victims=victims))
        return {node: (list(each.uids), each.violations) for node, each in answer.items()}

    async def bind(self, raw: Raw, node: str, **fields: str) -> str:
        """Call bind; return its error."""
        metadata = raw["metadata"]
        args = {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"], "node": node}
        return await self.extender.bind(BindArgs(**{**args, **fields}))

    def reserved(self) -> dict[str, str]:
        """Return {pod: node} of all that is charged and not bound on the API server."""
        bound = self.world.api.bound()
        charges = self.world.fleet.charges.values()
        return {name: each.node for each in charges if (name := each.pod.removeprefix("ns/")) not in bound}
