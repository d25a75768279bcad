"""Prepare and release claims for MIG instances, whole cards and shares, while the programs are killed.

CLAIMS, SEED, WORKERS (claims at a time) and KILLS (probability of a kill before or in a call, in percent) are
environment variables of `python -m tests.chaos.partitions_storm`, and the last line is JSON. Other faults are half as
probable as kills.

A client takes kubelet's place and keeps its order: Prepare before containers start, again until it succeeds, and
Unprepare after the last pod has ended. Claims and pods are real objects. A small allocator chooses devices from the
published ResourceSlices, and keeps their counters and capacities. Now and then another scheduler gives what is taken.
"""

import asyncio
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from grpc import aio

from berth_agent.kubelet.channel import open_channel
from berth_agent.kubelet_api import dra_pb2 as messages
from berth_agent.kubelet_api.registration_pb2 import InfoRequest, RegistrationStatus
from berth_agent.kubelet_api.registration_pb2_grpc import RegistrationStub
from berth_api.names import CARDS_KEY, DRA_DRIVER, PARTITIONS_KEY
from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError
from tests.bench import figures
from tests.bench.resources.agent import opened
from tests.chaos import device_auditor
from tests.chaos.node_faults import NodeFaults
from tests.chaos.partitions_auditor import CORES, Auditor, Part
from tests.nvml import mig_profiles
from tests.nvml.fixture import NvmlFixture, a30, a100_40, h100, with_profiles
from tests.objects.resource_claims import allocated
from tests.programs import forking
from tests.programs.processes import Process
from tests.stand_ins.kubelet import Kubelet
from tests.stand_ins.pod_resources import PodResourcesServer

GROUP: Final = "/apis/resource.k8s.io/v1"
SERVICE: Final = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
MESSAGES: Final[Mapping[str, tuple[Any, Any]]] = {
    "Prepare": (messages.NodePrepareResourcesRequest, messages.NodePrepareResourcesResponse),
    "Unprepare": (messages.NodeUnprepareResourcesRequest, messages.NodeUnprepareResourcesResponse),
}
"""Request and answer by call."""
KUBELETS_NEXT_TRY: Final = 90.0
STUCK: Final = KUBELETS_NEXT_TRY + 30.0
"""Seconds after the first call, or after the last fault, by which a call must succeed."""
RETRY: Final = 1.0
"""Seconds until the client tries again, which is sooner than kubelet."""
CALL_SECONDS: Final = 45.0
"""Seconds after which kubelet gives up a call."""
WORKERS: Final = 5
KILL_SHARE: Final = 0.06
"""Probability of a kill before or in a call."""
PUBLISHED_SECONDS: Final = 120.0
LEFT_SECONDS: Final = 70.0
"""Seconds in which what no claim has must go: the driver looks for it every 30 s."""
ROUND: Final = 100
"""Claims after which all end, and nothing may be left."""
DOWN_SECONDS: Final = 2.0
"""Longest time until a program that was killed is started again."""
LOGS: Final = 10
"""Logs that are kept of the last processes of each program."""
CRASHES: Final = 12
"""A partition needs up to three calls of NVML that change something, and two to destroy it."""


class UnansweredError(Exception):
    """A call to the driver failed."""


@dataclass(slots=True, kw_only=True)
class Program:
    """A program that is started again whenever it was killed."""

    kind: str
    command: Sequence[str]
    environment: Mapping[str, str]
    process: Process | None = None
    starts: int = 0
    start_at: float = 0.0
    """By the clock of the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A device that the allocator chose for a claim."""

    device: str
    part: Part
    counters: Mapping[tuple[str, str], int]
    """What it takes, by counter set and counter; a device without counters takes itself."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the result."""


class Node:
    """A node: its cards, its programs, and kubelet's side of their sockets."""

    def __init__(self, arena: Arena, name: str, machine: NvmlFixture, *, mode: str, draws: random.Random) -> None:
        self.arena, self.name, self.machine = arena, name, machine
        self.folder = machine.folder
        self.random = draws
        self._node_faults = NodeFaults(arena, name, machine, cdi=self.folder / "cdi", draws=draws)
        self.kubelet: Kubelet | None = None
        self.resources = PodResourcesServer(self.folder / "resources.sock")
        self.kills = 0
        self.faults = Counter[str]()
        """What else happened."""
        self.disturbed_at = 0.0
        """When a program was killed, or another fault began or ended, last; by the clock of the event loop."""
        self._one_fault = asyncio.Lock()
        self._channel: aio.Channel | None = None
        self.taken: Counter[tuple[str, str]] = Counter()
        """What claims take, by counter set and counter."""
        self.prepared: dict[str, list[Part]] = {}
        self._uids = set[str]()
        """UIDs of the claims that are prepared."""
        labels = {CARDS_KEY: mode}
        boot = self.folder / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("boot-1")
        machine.write()
        options = {
            "kubeconfig": arena.cluster.kubeconfig,
            "node-name": name,
            "kubelet-folder": self.folder / "kubelet",
            "kubelet-socket": self.folder / "plugins/kubelet.sock",
            "pod-resources-socket": self.resources.socket,
            "proc-root": self.folder / "proc",
            "checkpoint": self.folder / "state/checkpoint.json",
            "cdi-folder": self.folder / "cdi",
            # How soon labels are noticed.
            "resync-interval": 1.0,
        }
        environment = {"BERTH_NVML_STATE": str(machine.state), "PYTHONUNBUFFERED": "1"}
        self.programs = []
        if mode == "claims":
            labels[PARTITIONS_KEY] = "all"
            options["dra-partitions"] = self.folder / "partitions"
            command = [
                *(sys.executable, "-m", "berth_agent.vendors.nvidia.partitions"),
                *(f"--state={self.folder / 'record'}", f"--socket={self.folder / 'partitions'}"),
                *(f"--nvml-library={machine.library}", f"--proc={self.folder / 'proc'}"),
            ]
            self.programs.append(Program(kind="partitions", command=command, environment=environment))
        agent = [sys.executable, "-m", "berth_agent", "--device-plugin", "--dra", *machine.agent_options()]
        agent += [f"--{key}={value}" for key, value in options.items()]
        self.programs.append(Program(kind="agent", command=agent, environment=environment))
        arena.merge("nodes", name, {"metadata": {"labels": labels}})
        records = {self.folder / "state/claims.json": "claims", self.folder / "record/partitions.json": "partitions"}
        self.auditor = Auditor(machine, cdi=self.folder / "cdi", records=records)
        has_foreign = [bool(machine.gpu_instances(index)) for index in range(len(machine.gpus))]
        self._on_demand = {gpu.uuid for gpu, foreign in zip(machine.gpus, has_foreign, strict=True) if not foreign}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the programs, each again after its end."""
        (self.folder / "plugins").mkdir()
        self.kubelet = Kubelet(self.folder / "plugins")
        await self.kubelet.start()
        with self.resources:
            keeping = asyncio.create_task(self._keep_running())
            try:
                yield
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
                for program in self.programs:
                    if program.process:
                        program.process.kill()
                await self.kubelet.stop()

    async def _keep_running(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            for program in self.programs:
                if program.process and (code := program.process.exit_code) is not None:
                    self.kills += 1
                    self.disturbed_at = clock()
                    if code != -signal.SIGKILL:
                        text = f"{program.kind} ended with {code}: {program.process.tail()}"
                        self.auditor.findings.stuck.append(text)
                    program.process = None
                    # After a kill of both, they start in any order.
                    program.start_at = clock() + self.random.choice([0.0, self.random.uniform(0, DOWN_SECONDS)])
                if not program.process and clock() >= program.start_at:
                    extra = {}
                    if program.kind == "partitions" and program.starts and self.random.random() < 0.5:
                        # Killed when this call begins, or when it has had its effect.
                        extra["BERTH_NVML_CRASH"] = f"{self.random.randint(1, CRASHES)}{self.random.choice(['', '+'])}"
                    program.process = Process(
                        name=f"{program.kind}-{program.starts % LOGS}",
                        command=program.command,
                        folder=self.folder,
                        environment={**program.environment, **extra},
                        start=forking.spawn,
                    )
                    program.starts += 1
            await asyncio.sleep(0.05)

    def kill_one(self) -> None:
        """Kill one of the programs, if it runs."""
        _kill(self.random.choice(self.programs))

    async def disturb(self) -> None:
        """Inject a fault other than one kill, one at a time; it lasts for seconds."""
        clock = asyncio.get_running_loop().time
        kinds = {**self._node_faults.kinds, "all killed": self._kill_all}
        async with self._one_fault:
            kind = self.random.choice(sorted(kinds))
            self.faults[kind] += 1
            self.disturbed_at = clock()
            await asyncio.to_thread(kinds[kind])
            self.disturbed_at = clock()

    def _kill_all(self) -> None:
        for program in self.programs:
            _kill(program)

    @contextlib.contextmanager
    def in_use(self, claim: messages.Claim, choice: Choice, pods: Sequence[str]) -> Iterator[None]:
        """Have pods use a claim that is prepared."""
        key = (claim.name, DRA_DRIVER, self.name, choice.device)
        names = [(claim.namespace, pod, "main") for pod in pods]
        self.prepared[claim.name] = [choice.part]
        self._uids.add(claim.uid)
        self.resources.claimed = {**self.resources.claimed, **{one: [key] for one in names}}
        yield
        self.resources.claimed = {one: keys for one, keys in self.resources.claimed.items() if one not in names}
        self._uids.remove(claim.uid)
        del self.prepared[claim.name]

    def be_quiet(self, when: str) -> None:
        """Compare the Device and the CDI files with what is true, after a card has failed that no claim has, too."""
        self._compare(when)
        used = {part.card for parts in self.prepared.values() for part in parts}
        gpu = self.random.choice([gpu for gpu in self.machine.gpus if gpu.uuid not in used])
        for has_failed in (True, False):
            self._node_faults.set(gpu, has_failed=has_failed)
            self._compare(f"{when}, {gpu.uuid} {'failed' if has_failed else 'recovered'}")
        self._node_faults.remove_cdi_files()
        self._compare(f"{when}, CDI files were removed")

    def _compare(self, when: str) -> None:
        self.auditor.findings.untrue += [f"{when}: {self.name}: {lie}" for lie in device_auditor.lasting(self._lies)]

    def _lies(self) -> list[str]:
        listed = self.arena.list("devices")
        device = next((device for device in listed if device["metadata"]["name"] == self.name), {})
        claimed = [(claim, name) for keys in self.resources.claimed.values() for claim, _, _, name in keys]
        facts = device_auditor.facts(self.machine, on_demand=self._on_demand, held={}, claimed=claimed)
        lost = [uid for uid in self._uids if not [*(self.folder / "cdi").glob(f"*{uid}*.json")]]
        return device_auditor.lies(device, facts) + [f"the CDI file of the claim {uid} is lost" for uid in lost]

    async def call(self, method: str, claim: messages.Claim) -> None:
        """Call the driver for one claim.

        Raises:
            UnansweredError: it refuses, or does not answer.
        """
        try:
            if self._channel is None:
                self._channel = await self._registered()
            request, response = MESSAGES[method]
            stub = self._channel.unary_unary(
                f"{SERVICE}/Node{method}Resources",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            answer = await stub(request(claims=[claim]), timeout=CALL_SECONDS)
        except (aio.AioRpcError, OSError, aio.UsageError) as error:
            if self._channel:
                channel, self._channel = self._channel, None
                await channel.close()
            raise UnansweredError(str(error)) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            # So does a call end whose channel another one closed.
            raise UnansweredError("the connection was closed") from error
        if refusal := answer.claims[claim.uid].error:
            raise UnansweredError(refusal)

    async def _registered(self) -> aio.Channel:
        """Register the driver whose socket is the newest, as kubelet does, and return a channel to it."""
        registry = self.folder / "kubelet/plugins_registry"
        sockets = (
            sorted(registry.glob("[!.]*.sock"), key=lambda path: path.stat().st_ctime) if registry.is_dir() else []
        )
        if not sockets:
            raise OSError("no driver is there")
        async with open_channel(sockets[-1]) as channel:
            driver = RegistrationStub(channel)
            info = await driver.GetInfo(InfoRequest(), timeout=5)
            await driver.NotifyRegistrationStatus(RegistrationStatus(plugin_registered=True), timeout=5)
        return open_channel(Path(info.endpoint))

    # --- the allocator -------------------------------------------------------------------------------------------

    def choose(self, *, rival: bool) -> Choice | None:
        """Return a device that is free by the published slices, or one that another claim has; None if there is none.

        It first draws the kind: each profile, whole card and share is as likely as the others.
        """
        found = self.arena.cluster.api.get(f"{GROUP}/resourceslices", fieldSelector=f"spec.nodeName={self.name}")
        specs = [one["spec"] for one in found["items"]]
        newest = max((spec["pool"]["generation"] for spec in specs), default=0)
        specs = [spec for spec in specs if spec["pool"]["generation"] == newest]
        if not specs or specs[0]["pool"]["resourceSliceCount"] != len(specs):
            return None
        capacity = {
            (one["name"], counter): int(value["value"])
            for spec in specs
            for one in spec.get("sharedCounters") or ()
            for counter, value in one["counters"].items()
        }
        by_kind: dict[str, list[Choice]] = {}
        for spec in specs:
            for device in spec.get("devices") or ():
                choice = self._share(device) if device.get("allowMultipleAllocations") else _choice(device)
                limits = {key: capacity.get(key, CORES if key[1] == "cores" else 1) for key in choice.counters}
                if device.get("allowMultipleAllocations"):
                    limits[device["name"], "memory"] = _mebibytes(device)
                is_free = all(self.taken[key] + count <= limits[key] for key, count in choice.counters.items())
                has_owner = any(self.taken[key] for key in choice.counters)
                if is_free != rival and (not rival or has_owner) and not device.get("taints"):
                    by_kind.setdefault(choice.part.profile, []).append(choice)
        return self.random.choice(by_kind[self.random.choice(sorted(by_kind))]) if by_kind else None

    def _share(self, device: Mapping[str, Any]) -> Choice:
        memory, cores = self.random.randint(1, _mebibytes(device) // 2), self.random.choice([0, 10, 30])
        return Choice(
            device=device["name"],
            part=Part(card=device["attributes"]["uuid"]["string"], memory=memory, cores=cores),
            counters={(device["name"], "memory"): memory, (device["name"], "cores"): cores},
            fields={"shareID": str(uuid.uuid4()), "consumedCapacity": {"memory": f"{memory}Mi", "cores": f"{cores}"}},
        )


def _kill(program: Program) -> None:
    if program.process and program.process.exit_code is None:
        os.kill(program.process.pid, signal.SIGKILL)


def _choice(device: Mapping[str, Any]) -> Choice:
    attributes, name = device["attributes"], device["name"]
    counters = {
        (one["counterSet"], counter): int(value["value"])
        for one in device.get("consumesCounters") or ()
        for counter, value in one["counters"].items()
    }
    is_instance = attributes["type"]["string"] == "mig"
    slices = [re.fullmatch(r"memory-slice-(\d+)", counter) for _, counter in counters]
    part = Part(
        card=attributes["parentUUID" if is_instance else "uuid"]["string"],
        profile=attributes["profile"]["string"] if is_instance else "",
        slices=frozenset(int(match[1]) for match in slices if match) if is_instance else frozenset(),
    )
    return Choice(device=name, part=part, counters=counters or {(name, ""): 1})


def _mebibytes(device: Mapping[str, Any]) -> int:
    return int(device["capacity"]["memory"]["value"].removesuffix("Mi"))


class Storm:
    """One run."""

    def __init__(
        self,
        arena: Arena,
        nodes: Sequence[Node],
        *,
        claims: int,
        workers: int,
        kill_share: float,
        draws: random.Random,
    ) -> None:
        self.arena, self.nodes = arena, nodes
        self._left, self._workers = claims, workers
        self._round = 0
        self._kill_share = kill_share
        self._tasks = asyncio.TaskGroup()
        self.random = draws
        self.claims = self.rivals = self.refused = self.given_up = 0
        self.by_kind: Counter[str] = Counter()
        self.milliseconds: list[float] = []

    async def run(self) -> None:
        """Have workers prepare and release claims, and look for what is left after each round."""
        while self._left:
            self._round = min(ROUND, self._left)
            self._left -= self._round
            async with asyncio.TaskGroup() as self._tasks:
                for _ in range(self._workers):
                    self._tasks.create_task(self._work())
            for node in self.nodes:
                await self._be_quiet(node)
                await self._expect_nothing(node)
            counts = {kind: len(texts) for kind, texts in self.findings().items()}
            figures.say(f"{self.claims} claims, {sum(node.kills for node in self.nodes)} kills: {counts}")

    async def _expect_nothing(self, node: Node) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + LEFT_SECONDS
        while node.auditor.rest() and clock() < end:  # noqa: ASYNC110 - another process removes it
            await asyncio.sleep(0.5)
        node.auditor.findings.left_over.extend(node.auditor.rest())
        node.auditor.look({})

    async def _work(self) -> None:
        while self._round > 0:
            self._round -= 1
            await self._live()

    async def _live(self) -> None:
        """Allocate a claim, prepare it, use it, and release it."""
        chosen = await self._choose()
        if not chosen:
            return
        node, choice, rival = chosen
        node.taken.update(choice.counters)
        self.claims += 1
        name = f"claim-{self.claims}"
        kind = choice.part.profile or ("share" if choice.part.memory else "whole")
        self.by_kind["rival" if rival else kind] += 1
        pods = [f"{name}-{number}" for number in range(self.random.choice([1, 1, 2, 3]))]
        claim = await asyncio.to_thread(self._create, node, name, pods, choice)
        gives_up = rival or self.random.random() < 0.04
        self._disturb_soon(node)
        if gives_up:
            is_prepared = await self._prepare_once(node, claim, seconds=2.0 if rival else self.random.uniform(0, 0.5))
            self.rivals += rival
            self.refused += rival and not is_prepared
            self.given_up += not rival
        else:
            is_prepared = await self._until_done(node, "Prepare", claim, is_new=bool(choice.part.slices))
        if is_prepared:
            with node.in_use(claim, choice, pods):
                node.auditor.look(node.prepared)
                await asyncio.sleep(self.random.uniform(0, 0.4))
                if self.random.random() < 0.1:
                    # Prepare is repeated, for example after a restart of kubelet.
                    await self._until_done(node, "Prepare", claim)
                node.auditor.look(node.prepared)
        self._disturb_soon(node)
        await self._until_done(node, "Unprepare", claim)
        await asyncio.to_thread(self._delete, name, pods)
        node.taken.subtract(choice.counters)

    async def _choose(self) -> tuple[Node, Choice, bool] | None:
        """Return a node and its device for a claim, and whether another claim has it; None if none is there in time."""
        clock = asyncio.get_running_loop().time
        end = clock() + PUBLISHED_SECONDS
        while clock() < end:
            node = self.random.choices(self.nodes, weights=[4, 1])[0]
            rival = self.random.random() < 0.04
            if choice := node.choose(rival=rival):
                return node, choice, rival
            await asyncio.sleep(0.1)
        self.nodes[0].auditor.findings.stuck.append("no slice has a free device")
        return None

    async def _be_quiet(self, node: Node) -> None:
        """Prepare one claim, and compare what is said of the node with what is true."""
        name = f"quiet-{self.claims}"
        choice = await asyncio.to_thread(waiting.within, lambda: node.choose(rival=False), seconds=device_auditor.QUIET)
        if choice is None:
            node.auditor.findings.stuck.append(f"{name}: no slice of {node.name} has a free device")
            return
        claim = await asyncio.to_thread(self._create, node, name, [name], choice)
        if await self._until_done(node, "Prepare", claim):
            with node.in_use(claim, choice, [name]):
                await asyncio.to_thread(node.be_quiet, name)
        await self._until_done(node, "Unprepare", claim)
        await asyncio.to_thread(self._delete, name, [name])

    def _create(self, node: Node, name: str, pods: Sequence[str], choice: Choice) -> messages.Claim:
        """Create a claim with its pods as a scheduler leaves them before kubelet sees the pods."""
        api, namespace = self.arena.cluster.api, self.arena.namespace
        wanted = allocated(name, choice.device, node=node.name, driver=DRA_DRIVER, **choice.fields)
        path = f"{GROUP}/namespaces/{namespace}/resourceclaims"
        made = api.post(path, {"metadata": {"name": name}, "spec": wanted["spec"]})
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
        spec: dict[str, Any] = {
            "nodeName": node.name,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [container],
        }
        users = [api.post(f"/api/v1/namespaces/{namespace}/pods", self.arena.pod(pod, **spec)) for pod in pods]
        reserved = [
            {"resource": "pods", "name": user["metadata"]["name"], "uid": user["metadata"]["uid"]} for user in users
        ]
        status = {**wanted["status"], "reservedFor": reserved}
        while True:
            try:
                api.request("PUT", f"{path}/{name}/status", body={**made, "status": status})
                break
            except ApiError as error:
                if error.reason != "Conflict":
                    raise
                made = api.get(f"{path}/{name}")
        return messages.Claim(namespace=namespace, uid=made["metadata"]["uid"], name=name)

    def _delete(self, name: str, pods: Sequence[str]) -> None:
        for pod in pods:
            self.arena.delete("pods", pod, grace_seconds=0)
        self.arena.delete("resourceclaims", name)

    def _disturb_soon(self, node: Node) -> None:
        """Perhaps kill a program before a call or during it, or let something else happen to the node."""
        if self.random.random() < self._kill_share:
            asyncio.get_running_loop().call_later(self.random.uniform(0, 0.3), node.kill_one)
        if self.random.random() < self._kill_share / 2:
            self._tasks.create_task(node.disturb())

    async def _prepare_once(self, node: Node, claim: messages.Claim, *, seconds: float) -> bool:
        """Return whether Prepare succeeded in a time after which its pods are deleted."""
        with contextlib.suppress(UnansweredError, TimeoutError):
            async with asyncio.timeout(seconds):
                await node.call("Prepare", claim)
                return True
        return False

    async def _until_done(self, node: Node, method: str, claim: messages.Claim, *, is_new: bool = False) -> bool:
        """Call until the call succeeds, and return whether it did in time."""
        clock = asyncio.get_running_loop().time
        began, tries = clock(), 0
        while True:
            disturbed_at, start, tries = node.disturbed_at, time.perf_counter(), tries + 1
            try:
                await node.call(method, claim)
            except UnansweredError as error:
                if clock() > max(began, node.disturbed_at) + STUCK:
                    node.auditor.findings.stuck.append(f"{method} of {claim.name}: {error}")
                    return False
                await asyncio.sleep(RETRY)
            else:
                if is_new and tries == 1 and node.disturbed_at == disturbed_at:
                    self.milliseconds.append(1000 * (time.perf_counter() - start))
                return True

    def findings(self) -> dict[str, list[str]]:
        """Return what was found on all nodes."""
        every = [asdict(node.auditor.findings) for node in self.nodes]
        return {kind: [text for one in every for text in one[kind]] for kind in every[0]}

    def summary(self) -> dict[str, Any]:
        """Return the figures."""
        milliseconds = self.milliseconds or [0.0]
        return {
            "claims": self.claims,
            "kinds": dict(sorted(self.by_kind.items())),
            "rivals_refused": self.refused,
            "given_up": self.given_up,
            "kills": sum(node.kills for node in self.nodes),
            "faults": dict(sum((node.faults for node in self.nodes), Counter[str]())),
            **{kind: len(texts) for kind, texts in self.findings().items()},
            "measured": len(self.milliseconds),
            "p50_ms": round(figures.quantile(milliseconds, 0.5)),
            "p99_ms": round(figures.quantile(milliseconds, 0.99)),
        }


async def storm(
    arena: Arena, folder: Path, *, claims: int, seed: int, workers: int = WORKERS, kill_share: float = KILL_SHARE
) -> Storm:
    """Run a storm in a folder whose path is short, and return it."""
    draws = random.Random(seed)
    kinds = {"claims": opened_cards(), "shares": [h100(0), h100(1)]}
    nodes = []
    for name, (mode, gpus) in zip(arena.nodes(2), kinds.items(), strict=True):
        (folder / mode).mkdir()
        machine = NvmlFixture(folder / mode, gpus=gpus, event_poll_ms=1000)
        if mode == "claims":
            add_foreign(machine)
        nodes.append(Node(arena, name, machine, mode=mode, draws=draws))
    async with contextlib.AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(node.running())
        end = asyncio.get_running_loop().time() + PUBLISHED_SECONDS
        while not all(node.choose(rival=False) for node in nodes):
            if asyncio.get_running_loop().time() > end:
                raise TimeoutError("\n".join(p.process.tail() for node in nodes for p in node.programs if p.process))
            await asyncio.sleep(0.5)
        run = Storm(arena, nodes, claims=claims, workers=workers, kill_share=kill_share, draws=draws)
        await run.run()
    return run


def opened_cards() -> list[Any]:
    """Return cards of three models with MIG, and one more for foreign instances."""
    hopper = [with_profiles(h100(index), mig_profiles.H100_80) for index in (0, 1, 4)]
    earlier = [replace(card, mig_mode=True, mig_pending=True) for card in (a100_40(2), a30(3))]
    return [*hopper[:2], *earlier, hopper[2]]


def add_foreign(machine: NvmlFixture) -> None:
    """Make instances of others on the last card: one that is complete, and one without a compute instance."""
    by_name = {profile.name: profile for profile in mig_profiles.H100_80}
    last = len(machine.gpus) - 1
    machine.write()
    machine.add_instance(last, by_name["3g.40gb"], 0)
    machine.add_instance(last, by_name["1g.10gb"], 5, complete=False)


def main() -> None:
    """Run a long storm."""
    claims, seed = figures.number("CLAIMS", 3000), figures.number("SEED", 1)
    workers, kills = figures.number("WORKERS", WORKERS), figures.number("KILLS", round(100 * KILL_SHARE))
    with opened() as arena, tempfile.TemporaryDirectory(prefix="berth-") as folder:
        run = asyncio.run(storm(arena, Path(folder), claims=claims, seed=seed, workers=workers, kill_share=kills / 100))
    texts = [text for found in run.findings().values() for text in found]
    for text in texts:
        figures.say(text)
    figures.result({"chaos": "partitions", "seed": seed, "workers": workers, **run.summary()})
    sys.exit(bool(texts))


if __name__ == "__main__":
    main()
