"""The site of an audit of ResourceClaims: Berth's pools, a pool of kube-scheduler, and a pool that both serve.

All programs are real: a control plane with DeviceTaintRules, kube-scheduler, the resource claim controller, two
operators, and agents. Only the driver is simulated. It lists each card in the slice of its node, under a name that
stays when the card gets another minor.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import Arena, Cluster
from devcluster.additions import fleet, installation
from tests.chaos import workload
from tests.chaos.claims_auditor import CONTENDER, OF_CLASS, OTHER, SCHEDULER
from tests.chaos.control_plane import ETCD, ControlPlane
from tests.chaos.history import DEVICES_AND_CLAIMS, STORES_JSON, Recorder, within
from tests.chaos.live import Live
from tests.chaos.machines import CARDS, HEARTBEAT, OFFERED, Machine
from tests.chaos.replicas import Replica, Replicas
from tests.chaos.site import replica
from tests.integration.operator.test_pool_taints import ARGUMENTS, COMPONENT, RULES
from tests.integration.operator.world import World
from tests.objects.resource_claims import NVIDIA_DRIVER
from tests.programs import fence
from tests.stand_ins.proxy import FaultProxy

GROUP: Final = "/apis/resource.k8s.io/v1"
BY_NAME: Final = {"audit.example.com/by-name": "yes"}
"""Label of the nodes to which pods by name go."""
CONTENDED: Final = {"audit.example.com/contended": "yes"}
"""Label of the node whose pool kube-scheduler uses as well, at times."""
ACCOUNT: Final = "operator"
FLAGS: Final[Mapping[str, object]] = {
    "lease_duration": 7,
    "renew_deadline": 5,
    "retry_period": 0.5,
    "takeover_pause": 1.0,
    "agent_grace": 2.0,
    "taint_own_pools": True,
    "scheduler_names": None,
}
TOLERATION: Final = {"key": "berth.dev/own-pool", "operator": "Exists"}

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsSite:
    """The parts of one run."""

    arena: Arena
    world: World
    live: Live
    recorder: Recorder
    replicas: Replicas
    machines: Sequence[Machine]
    driver: "Driver"
    pools: Sequence[str]
    """Berth's pools."""

    def check(self) -> None:
        """Raise the error that ended one of the parts."""
        self.recorder.check()
        self.replicas.check()


class Driver:
    """A DRA driver, as the API server sees it."""

    def __init__(self, world: World) -> None:
        self._api, self._namespace = world.api, world.arena.namespace
        self._slices: dict[str, Raw] = {}
        expression = f'device.driver == "{NVIDIA_DRIVER}"'
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        for name, more in ((NVIDIA_DRIVER, {}), ("of-nodes", {"extendedResourceName": OF_CLASS})):
            self._api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": name}, "spec": {**spec, **more}})
        for name, template in templates().items():
            path = f"{GROUP}/namespaces/{self._namespace}/resourceclaimtemplates"
            self._api.post(path, {"metadata": {"name": name}, "spec": template})

    def lists(self, node: str, cards: Sequence[str]) -> None:
        """List the cards of a node by their UUIDs."""
        devices = [
            {"name": f"gpu-{number}", "attributes": {"uuid": {"string": card}, "pair": {"int": number // 2}}}
            for number, card in enumerate(cards)
        ]
        pool = {"name": node, "generation": 0, "resourceSliceCount": 1}
        self._slices[node] = {"driver": NVIDIA_DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        self.publish(node)

    def publish(self, node: str) -> None:
        """List the same devices again in a new generation, as a driver that is started again."""
        spec = self._slices[node]
        spec["pool"]["generation"] += 1
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        self._api.apply({**kind, "metadata": {"name": f"{node}-gpus"}, "spec": spec})


def templates() -> Mapping[str, Raw]:
    """Return the specs of the templates, by name: what can be requested, and by which scheduler."""
    all_of_pair = _exactly(allocationMode="All", selectors=[{"cel": {"expression": _PAIR}}])
    first = {"name": "gpu", "firstAvailable": [_wanted(name="three", count=3), _wanted(name="one")]}
    tolerant = _exactly(tolerations=[TOLERATION])
    return {
        "one": {"spec": claim(_exactly())},
        "two": {"spec": claim(_exactly(count=2))},
        "first": {"spec": claim(first)},
        "all": {"spec": claim(all_of_pair)},
        OTHER: {"metadata": {"labels": {SCHEDULER: OTHER}}, "spec": claim(_exactly())},
        CONTENDER: {"metadata": {"labels": {SCHEDULER: CONTENDER}}, "spec": claim(tolerant)},
    }


_PAIR: Final = f'device.attributes["{NVIDIA_DRIVER}"].pair == 0'


def claim(request: Raw | None = None) -> Raw:
    """Return the spec of a claim."""
    return {"devices": {"requests": [request or _exactly()]}}


def _exactly(**fields: Any) -> Raw:
    return {"name": "gpu", "exactly": _wanted(**fields)}


def _wanted(**fields: Any) -> Raw:
    return {"deviceClassName": NVIDIA_DRIVER, **fields}


@contextlib.contextmanager
def opened(folder: Path, history: Path) -> Iterator[ClaimsSite]:
    """Start everything, and stop it at the end; the history and the logs are kept."""
    with contextlib.ExitStack() as stack:
        arguments = {**ARGUMENTS, "kube-apiserver": [*ARGUMENTS["kube-apiserver"], STORES_JSON]}
        cluster = stack.enter_context(Cluster(extra_args=arguments))
        cluster.install_crds(fleet.CRDS)
        installation.create_namespaces(cluster)
        arena = Arena(cluster=cluster, folder=folder)
        arena.open()
        cluster.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", workload.priority_class())
        live = Live()
        port = stack.enter_context(ControlPlane(cluster)).port(ETCD)
        sources = [*within(arena.namespace), *DEVICES_AND_CLAIMS]
        recorder = stack.enter_context(Recorder(port=port, sources=sources, file=history, take=live.take))
        world = World(arena=arena, folder=folder)
        stack.callback(world.close)
        machines, contended, theirs = _nodes(world)
        pools = [*(each.node for each in machines), contended]
        driver = Driver(world)
        for node in (*pools, theirs):
            cards = world.arena.get("devices", node)["spec"]["devices"]
            driver.lists(node, [each["id"] for each in cards])
        flags = {**FLAGS, "config": _configuration(arena, folder, pools)}
        own = _replicas(stack, cluster, arena, folder)
        replicas = stack.enter_context(
            Replicas(replicas=own, processes=world.processes, live=live, flags=flags, environment={})
        )
        world.wait(lambda: len(world.api.get(RULES)["items"]) == len(pools), what="the taints of Berth's pools")
        yield ClaimsSite(
            arena=arena,
            world=world,
            live=live,
            recorder=recorder,
            replicas=replicas,
            machines=machines,
            driver=driver,
            pools=pools,
        )


def _nodes(world: World) -> tuple[Sequence[Machine], str, str]:
    """Return two nodes whose cards are renumbered, one whose pool both schedulers serve, and one of kube-scheduler."""
    named = world.arena.nodes(2, labels=BY_NAME, capacity=OFFERED)
    [contended] = world.arena.nodes(1, labels=CONTENDED, capacity=OFFERED)
    [theirs] = world.arena.nodes(1, capacity=OFFERED)
    world.fleet = {name: {"profile": ["a100"] * CARDS} for name in (contended, theirs)}
    world.change(contended)
    world.agent(**HEARTBEAT)
    machines = [Machine(world, name, number) for number, name in enumerate(named)]
    world.wait(lambda: all(world.shown(name) for name in (*named, contended, theirs)), what="the Devices")
    return machines, contended, theirs


def _configuration(arena: Arena, folder: Path, pools: Sequence[str]) -> Path:
    file = folder / "berth.yaml"
    profile = {"schedulerName": arena.scheduler_name, "plugins": {"filters": {"disabled": ["injected"]}}}
    configuration = {
        "apiVersion": "config.berth.dev/v1alpha1",
        "kind": "BerthSchedulerConfiguration",
        "profiles": [profile],
        "claims": {"pools": [f"{NVIDIA_DRIVER}/{pool}" for pool in pools]},
    }
    file.write_text(yaml.safe_dump(configuration))
    return file


def _replicas(stack: contextlib.ExitStack, cluster: Cluster, arena: Arena, folder: Path) -> list[Replica]:
    """Return two replicas of an account whose Bindings and status writes are fenced."""
    account = arena.service_account(ACCOUNT, "cluster-admin")
    names = {"namespace": arena.namespace, "lease": arena.lease_name, "service_account": ACCOUNT, "suffix": arena.id}
    for file in (fence.FENCE, fence.OF_CLAIMS):
        arena.apply(fence.fence(**names, file=file))
    [owner_of_taints, _] = yaml.safe_load_all((COMPONENT / "rbac.yaml").read_text())
    arena.apply([owner_of_taints])
    open_proxy = functools.partial(FaultProxy, server=cluster.server, ca_file=cluster.ca_file, folder=folder)
    return [replica(stack.enter_context(open_proxy()), number, account, folder) for number in range(2)]
