"""Everything in a run: a control plane, two operators, agents, pods, and the recorder that sees all."""

import contextlib
import functools
import http.client
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import Arena, Cluster, waiting
from devcluster.additions import agents, fleet
from devcluster.control_plane.api import ApiError, Manifest
from tests.attacks.accounts import ADDED_KEYS, OPERATOR, Accounts
from tests.chaos import machines as machines_module
from tests.chaos import workload as workload_module
from tests.chaos.clock import Clock
from tests.chaos.control_plane import ETCD, ControlPlane
from tests.chaos.figures import Figures
from tests.chaos.findings import Finding
from tests.chaos.history import BERTHS, STORES_JSON, Recorder, Source, within
from tests.chaos.live import Live, LivePod
from tests.chaos.machines import PROBE_MODEL, Machines, Park
from tests.chaos.replicas import Replica, Replicas
from tests.chaos.workload import Failed, Workload
from tests.integration.operator.world import World
from tests.programs import fence
from tests.stand_ins.proxy import FaultProxy

PAUSE: Final = 1.0
"""The default pause of a new leader."""
GANG_TIMEOUT: Final = 20.0
DEVICES: Final = "/apis/berth.dev/v1alpha1/devices"
HISTORY: Final = "history.jsonl"
MISUSES: Final = "misuses.jsonl"
"""Which pods used cards that they did not hold, in the folder of a run."""
ROOT: Final = Path(__file__).parents[2]
FENCE: Final = Path("manifests/base/fence.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The operator under test: ours, or a copy of the tree that was broken."""

    tree: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables with which Python runs the operator of that tree."""


OURS: Final = Build()


def _no_flags(_arena: Arena, _folder: Path) -> Mapping[str, object]:
    return {}


def _no_arguments(_folder: Path) -> Sequence[str]:
    return ()


def _no_surroundings(_arena: Arena) -> Sequence[Manifest]:
    return ()


def _nothing_more(_site: "Site") -> Sequence[str]:
    return ()


def _nothing_known(_folder: Path) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit by more rules has found, and figures for the last line."""

    findings: Sequence[Finding] = ()
    figures: Mapping[str, object] = field(default_factory=dict)


def _not_audited(_folder: Path) -> Audit:
    return Audit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What happens on a site: its nodes and pods, what of it is recorded, and flags of the programs."""

    park: Park = field(default_factory=Park)
    workload: type[Workload] = Workload
    sources: Sequence[Source] = ()
    """What is recorded in addition to pods, LeaderLeases and Events."""
    flags: Callable[[Arena, Path], Mapping[str, object]] = _no_flags
    """Returns flags of the operator, for an arena and the folder of the run."""
    surroundings: Callable[[Arena], Iterable[Manifest]] = _no_surroundings
    """Returns what others have in the cluster from the start, in admission and priority levels."""
    arguments: Callable[[Path], Sequence[str]] = _no_arguments
    """Returns arguments of the API server, for the folder of the run."""
    addition: Callable[["Site"], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    """Returns what runs in addition, until the site is closed."""
    limits: Callable[[Path], Mapping[str, Any]] = _nothing_known
    """Returns what the audit of `tests.chaos.auditor` has to know besides, for the folder of the run."""
    epilogue: Callable[["Site"], Sequence[str]] = _nothing_more
    """Happens after the last event, when all pods have left; returns what is wrong then. It may end the history."""
    audit: Callable[[Path], Audit] = _not_audited
    """Audits the recorded run by more rules."""


CHAOS: Final = Scene()


@dataclass(kw_only=True, slots=True)
class Site:
    """The parts of one run."""

    cluster: Cluster
    control_plane: ControlPlane
    arena: Arena
    world: World
    live: Live
    recorder: Recorder
    replicas: Replicas
    machines: Machines
    agent_proxy: FaultProxy
    workload: Workload
    figures: Figures = field(default_factory=Figures)
    excused: set[str] = field(default_factory=set)
    """Names of processes that a fault may have broken."""
    failures: list[str] = field(default_factory=list)
    """Faults that did not end in time."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    # --- probes -----------------------------------------------------------------------------------------------

    def probe(self, *, node: str = "", share: int = 10, **spec: Any) -> str:
        """Create a pod for which there is room on any node, or on one; return its name."""
        name = f"probe-{next(self._numbers)}"
        limits = {"kubernetes.io/gpu": str(share)}
        # Another scheduler's pods may take all cores of a node, and come back as often as they are evicted.
        requests = {"cpu": "0", **limits}
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        annotations = {workload_module.MODEL: PROBE_MODEL}
        manifest = self.arena.pod(name, requests=requests, limits=limits, annotations=annotations, **spec)
        self.insist(lambda: self.arena.create([manifest]))
        return name

    def until_probed(self, *, node: str = "") -> LivePod:
        """Wait until a new probe is bound, and delete it; return it."""
        name = self.probe(node=node)
        try:
            return self.live.until_bound(name, details=lambda: self._state_of(name))
        finally:
            if (known := self.live.pods.get(name)) is not None:
                self.remove(known)

    def _state_of(self, name: str) -> str:
        """Return what the API server shows of a pod, and who leads."""
        try:
            pod = self.arena.get("pods", name)
        except Failed as error:
            return str(error)
        conditions = [each.get("message", each["type"]) for each in pod["status"].get("conditions", ())]
        on = f"{pod['spec'].get('nodeName', '')} {pod['spec'].get('nodeSelector', '')}"
        return f"on {on}: {conditions}, leader {self.live.holder!r}, recorded up to {self.recorder.number}"

    def remove(self, pod: LivePod) -> None:
        """Delete a pod."""
        self.workload.ended.add(pod.uid)
        self.insist(lambda: self.arena.delete("pods", pod.name, grace_seconds=0))

    def insist(self, call: Any) -> None:
        """Send a request until it succeeds, or its object exists already."""

        def is_done() -> bool:
            try:
                call()
            except ApiError as error:
                return error.status == http.client.CONFLICT
            except Failed:
                return False
            return True

        waiting.until(is_done, what="an answer of the API server", poll=0.05)

    # --- measures ---------------------------------------------------------------------------------------------

    def measure_failover(self, kind: str, since: float) -> None:
        """Record how long after a leader's failure the next pod is bound."""
        self.figures.failovers.append((kind, self.until_probed().bound_at - since))

    def until_served(self, path: str = DEVICES) -> float:
        """Wait until the API server is ready and serves an object; return when, by the monotonic clock."""
        waiting.until(lambda: self.control_plane.serves(path), what=f"{path} to be served", poll=0.05)
        return time.monotonic()

    def undo(self) -> None:
        """Undo what a fault may have left when it failed."""
        for proxy in (self.agent_proxy, *(each.proxy for each in self.replicas.all())):
            proxy.clear()
        for process in self.world.processes.started:
            if process.exit_code is None:
                process.resume()

    def check(self) -> None:
        """Raise the error that ended one of the parts."""
        self.recorder.check()
        self.replicas.check()
        self.workload.check()


@contextlib.contextmanager
def opened(
    folder: Path, *, timing: Mapping[str, object], seed: int, build: Build = OURS, scene: Scene = CHAOS
) -> Iterator[Site]:
    """Start everything, and stop it at the end; the folder keeps the history and the logs."""
    with contextlib.ExitStack() as stack:
        arguments = [STORES_JSON, *scene.arguments(folder)]
        cluster = stack.enter_context(Cluster(extra_args={"kube-apiserver": arguments}))
        cluster.install_crds(fleet.CRDS)
        agents.apply_rights(cluster, {"added": json.dumps(ADDED_KEYS)})
        arena = Arena(cluster=cluster, folder=folder)
        arena.lease_name = OPERATOR  # its role names it
        arena.open()
        cluster.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", workload_module.priority_class())
        control_plane = stack.enter_context(ControlPlane(cluster))
        live = Live()
        port, sources = control_plane.port(ETCD), [*within(arena.namespace, BERTHS), *scene.sources]
        recorder = stack.enter_context(Recorder(port=port, sources=sources, file=folder / HISTORY, take=live.take))
        world = World(arena=arena, folder=folder)
        stack.callback(world.close)
        open_proxy = functools.partial(FaultProxy, server=cluster.server, ca_file=cluster.ca_file, folder=folder)
        agent_proxy = stack.enter_context(open_proxy())
        login = agent_proxy.kubeconfig(token_of(world.processes.agents.kubeconfig))
        machines = Machines(world, login, scene.park)
        accounts = Accounts(arena)
        accounts.open()
        account = accounts.operator()
        arena.apply(scene.surroundings(arena))
        arena.apply(
            fence.fence(
                namespace=arena.namespace,
                lease=arena.lease_name,
                service_account=OPERATOR,
                suffix=arena.id,
                file=build.tree / FENCE,
            )
        )
        own = [replica(stack.enter_context(open_proxy()), number, account, folder) for number in range(2)]
        flags = {"takeover_pause": PAUSE, "gang_timeout": GANG_TIMEOUT, "agent_grace": machines_module.GRACE, **timing}
        flags |= scene.flags(arena, folder)
        replicas = stack.enter_context(
            Replicas(replicas=own, processes=world.processes, live=live, flags=flags, environment=build.environment)
        )
        workload = stack.enter_context(scene.workload(arena=arena, live=live, seed=seed))
        site = Site(
            cluster=cluster,
            control_plane=control_plane,
            arena=arena,
            world=world,
            live=live,
            recorder=recorder,
            replicas=replicas,
            machines=machines,
            agent_proxy=agent_proxy,
            workload=workload,
        )
        stack.enter_context(scene.addition(site))
        yield site


def replica(proxy: FaultProxy, number: int, account: Path, folder: Path) -> Replica:
    """Return a replica that reaches the API server through a proxy, as an account of which this is the kubeconfig."""
    clock = Clock(folder / f"clock-{number}")
    return Replica(number=number, proxy=proxy, clock=clock, kubeconfig=proxy.kubeconfig(token_of(account)))


def token_of(kubeconfig: Path) -> str:
    """Return the token in a kubeconfig."""
    token: str = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    return token
