"""Berth on a real node: cards of the NVML fixture, the agent as kubelet's device plugin, the operator, the policies.

with Stage(node, arena, folder, gpus=[a100(0), a100(1)]) as stage:
    stage.submit({"nvidia.com/gpu": "1"}, "one", "two")
    stage.hold("one", "two")         # they run with the devices of their annotations
"""

import asyncio
import os
import stat
import subprocess
import sys
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import grpc.aio

from berth_agent.kubelet_api import podresources_pb2 as resources
from berth_agent.kubelet_api.podresources_pb2_grpc import PodResourcesListerStub
from berth_api.allocation import REPLICA_MARK
from berth_api.objects import gpupod
from devcluster import Arena
from devcluster.control_plane.api import Manifest
from devcluster.control_plane.nodes import Strings
from devcluster.real_node import RealNode
from tests.integration.operator import world
from tests.node.boxes import box
from tests.nvml.fixture import Gpu, NvmlFixture
from tests.programs.policies import policies
from tests.programs.processes import Process, Processes

GPU: Final = "nvidia.com/gpu"
SHARE: Final = "kubernetes.io/gpu"
"""In percent of a card; injection sets the variables of its containers."""
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
PATIENCE: Final = 120.0
"""Seconds within which anything must happen that has no bound of its own: the machine may be busy."""
CRASH_LINES: Final = 400
"""Of a daemon's log, where a test fails: what a crash of kubelet says first stands far above its end."""
NULL: Final = os.makedev(1, 3)
"""The device that stands for cards: every machine has it."""

Held = Mapping[tuple[str, str, str], Sequence[str]]


class Stage:
    """One real node with Berth; a context manager.

    Attributes:
        machine: the cards; change them at will.
        agent: the agent as it runs now.
        operator: the operator as it runs now.
    """

    injection: ClassVar[Strings] = {}
    """Expressions of the policy that injects, by the names of its variables."""

    def __init__(self, node: RealNode, arena: Arena, folder: Path, *, gpus: Sequence[Gpu], **options: object) -> None:
        """Describe it; `options` are those of the agent, beyond what makes it speak for this node."""
        self.node, self.arena = node, arena
        self.machine = NvmlFixture(folder, gpus=list(gpus))
        self.agent: Process
        self.operator: Process
        self._processes = Processes(arena=arena, folder=folder)
        self._options = {"device_list_strategy": "envvar,cdi-cri", "device_plugin": True, **options}
        self._folder = folder
        self._policies: list[Manifest] = []

    def __enter__(self) -> Self:
        self.machine.write()
        self._make_device_nodes()
        self._policies = self.arena.apply(policies("injection.yaml", self.arena, self.injection))
        try:
            self.start_operator()
            self.start_agent()
            self.wait(self.is_injected, what="the injection to be in force")
            self.wait(self.is_on_offer, what="the cards on offer")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            # Shown by pytest where the test failed.
            daemons = "\n".join(
                f"--- {name}\n{self.node.tail(name, lines=CRASH_LINES)}" for name in ("kubelet", "containerd")
            )
            sys.stdout.write(f"{self._processes.tails()}\n{daemons}\n")
        self.close()

    def close(self) -> None:
        """End everything, kubelet's pods too: they would start without their devices."""
        for policy in self._policies:
            self.arena.cluster.api.delete(self.arena.cluster.api.path_of(policy))
        self._processes.close()
        self.node.clear()
        self.arena.delete("devices", self.node.name)

    @property
    def checkpoint(self) -> Path:
        """The agent's checkpoint of pods; the one of claims is in the same folder."""
        return self._folder / "checkpoint.json"

    @property
    def _gives_device_nodes(self) -> bool:
        return "cdi-cri" in str(self._options["device_list_strategy"])

    # --- its programs -------------------------------------------------------------------------------------------

    def start_operator(self, **options: Any) -> None:
        """Start an operator and wait until it leads; `options` are its flags."""
        # Without the flag of other tests, by which nothing need be injected.
        self.operator = self._processes.operator(require_injection=None, genius_priorities="*=1000", **options)

    def start_agent(self, **options: object) -> None:
        """Start the agent; `options` override those of the stage."""
        own = {
            "kubelet_socket": self.node.device_plugins / "kubelet.sock",
            "pod_resources_socket": self.node.pod_resources,
            "checkpoint": self.checkpoint,
            "cdi_folder": self.node.cdi,
            "nvidia_dev_root": self._folder,
            "dev_folder": self._folder / "dev",
            "poll_interval": 1.0,
        }
        self.agent = self._processes.node_agent(self.node.name, self.machine, **{**own, **self._options, **options})

    def _make_device_nodes(self) -> None:
        (self._folder / "dev").mkdir()
        for name in ("nvidiactl", "nvidia-uvm"):
            self.make_node(name)
        for gpu in self.machine.gpus:
            self.make_device_node(gpu)

    def make_device_node(self, gpu: Gpu) -> None:
        """Make what stands for a card under /dev."""
        self.make_node(f"nvidia{gpu.minor}")

    def make_node(self, name: str) -> None:
        """Make a node under /dev."""
        os.mknod(self._folder / "dev" / name, stat.S_IFCHR | 0o666, NULL)

    def is_injected(self) -> bool:
        probe = self.pod("probe", {SHARE: "50"})
        # The policy that refuses shares without the variable may be in force before the one that injects it.
        made = self.arena.admitted_or_none(probe)
        return made is not None and VISIBLE in str(made["spec"]["containers"])

    def is_on_offer(self) -> bool:
        """Return whether kubelet has devices to allocate, and the agent and the Node agree."""
        if not self._options["device_plugin"]:
            return world.condition(self.device(), "Ready").get("status") == "True"
        units, withheld = self.units(), self.device().get("status", {}).get("withheld", ())
        if not units or len(withheld) == len(self.machine.gpus):
            return False
        return all(self.node.allocatable(name) == count for name, count in units.items())

    def cleanup(self) -> str:
        """Run the cleanup of an uninstall on this node; return what it printed."""
        options = (f"--namespace={self.arena.namespace}", f"--node-selector={self.arena.selector}")
        login = f"--kubeconfig={self.arena.cluster.kubeconfig}"
        command = [sys.executable, "-m", "berth_operator", "cleanup", login, *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def written(self) -> Mapping[str, str]:
        """Return the labels and the capacity of the Node that Berth writes, by key."""
        node = self.arena.get("nodes", self.node.name)
        keys = {**node["metadata"]["labels"], **node["status"]["capacity"], **node["status"]["allocatable"]}
        foreign = {*self.arena.labels, GPU}  # kubelet writes the resource
        return {
            key: value
            for key, value in keys.items()
            if key.startswith((SHARE, "koordinator.sh", "nvidia.com/"))
            or (".berth.dev" in key or key.startswith("berth.dev") or "koordinator" in key)
            if key not in foreign
        }

    # --- pods ---------------------------------------------------------------------------------------------------

    def pod(self, name: str, limits: Strings, **fields: Any) -> Manifest:
        """Return the manifest of a pod that this node can run."""
        return box(self.arena, name, limits=limits, **fields)

    def submit(self, limits: Strings, *names: str, **fields: Any) -> None:
        """Create pods that ask for the same."""
        self.arena.create([self.pod(name, limits, **fields) for name in names])

    def read(self, name: str) -> Manifest:
        """Read a pod."""
        return self.arena.get("pods", name)

    def remove(self, *names: str) -> None:
        """Delete pods and wait until they are gone."""
        for name in names:
            self.arena.delete("pods", name)
        self.wait(lambda: not set(names) & self.names(), what=f"{', '.join(names)} to go")

    def names(self) -> set[str]:
        """Return the names of all pods."""
        return {pod["metadata"]["name"] for pod in self.arena.list("pods")}

    def entries(self, name: str) -> list[Manifest]:
        """Return the ids of the GPUs in a pod's allocation."""
        return world.allocation(self.read(name))["gpu"]

    def cards(self, name: str) -> list[int]:
        """Return the minors of a pod's cards."""
        return sorted({entry["minor"] for entry in self.entries(name)})

    def restarts(self, name: str) -> int:
        """Return how often a pod's container was started again."""
        return sum(statu["restartCount"] for statu in self.read(name)["status"].get("containerStatuses", []))

    def events(self, reason: str) -> list[Manifest]:
        """Return the Events of one reason on all pods."""
        return [event for event in self.arena.list("events") if event["reason"] == reason]

    def waits(self, name: str) -> bool:
        """Return whether a pod reports why it is not placed."""
        return world.condition(self.read(name), "PodScheduled").get("status") == "False"

    def phases(self) -> dict[str, str]:
        """Return the phase of each pod."""
        return {pod["metadata"]["name"]: pod["status"].get("phase", "") for pod in self.arena.list("pods")}

    def wait(self, predicate: Any, *, what: str, deadline: float = PATIENCE) -> Any:
        """Wait for a condition."""
        return self.arena.wait(predicate, deadline=deadline, what=what)

    # --- what became of them ------------------------------------------------------------------------------------

    def hold(self, *names: str, deadline: float = PATIENCE) -> None:
        """Wait until pods run and every word about their devices agrees: allocation, kubelet, GpuPod, container.

        Raises:
            WaitError: they do not; it says which words differ.
        """
        for name in names:
            self.wait(lambda name=name: self.is_running(name), what=f"{name} to run", deadline=deadline)
        self.arena.wait(
            lambda: not self.differences(*names),
            what="agreement",
            deadline=deadline,
            details=lambda: "\n".join(self.differences(*names)),
        )

    def is_running(self, name: str) -> bool:
        """Return whether a pod's containers all run.

        Raises:
            AssertionError: it failed.
        """
        pod = self.read(name)
        phase = pod["status"].get("phase")
        if phase == "Failed":
            raise AssertionError(f"{name}: {pod['status'].get('reason')}: {pod['status'].get('message')}")
        listed = pod["status"].get("containerStatuses", [])
        return bool(listed) and all("running" in status["state"] for status in listed)

    def differences(self, *names: str) -> list[str]:
        """Return in what pods disagree with their allocations."""
        held = self.held()
        return [f"{name}: {text}" for name in names for text in self._differences(self.read(name), held)]

    def _differences(self, pod: Manifest, held: Held) -> list[str]:
        name = pod["metadata"]["name"]
        entries = world.allocation(pod)["gpu"]
        allocated = sorted(entry["id"] for entry in entries)
        container = self.node.container(pod)
        # A container sees a whole card, whichever of its replicas it holds.
        visible = sorted(unit.partition(REPLICA_MARK)[0] for unit in allocated)
        problems = _unlike("the environment", container.environment.get(VISIBLE, "").split(","), visible)
        if not _is_kubelets(pod):
            return problems
        granted = [unit for key, units in held.items() if key[0] == name for unit in units]
        problems += _unlike("PodResources", granted, allocated) + self._of_gpu_pod(name, allocated)
        nodes = [device for device in container.devices if device.removeprefix("nvidia").isdigit()]
        if self._gives_device_nodes:
            problems += _unlike("/dev", nodes, [f"nvidia{entry['minor']}" for entry in entries])
        return problems

    def _of_gpu_pod(self, name: str, allocated: Sequence[str]) -> list[str]:
        own = gpupod.name_of(name, self.node.name)
        reported = next((each for each in self.arena.list("gpupods") if each["metadata"]["name"] == own), None)
        if reported is None:
            return ["it has no GpuPod"]
        ids = [device["id"] for one in reported["spec"]["containers"] for device in one["devices"]]
        consistent = world.condition(reported, "Consistent")
        problems = [] if consistent.get("status") == "True" else [f"its GpuPod is not Consistent: {consistent}"]
        return problems + _unlike("its GpuPod", ids, allocated)

    def held(self) -> Held:
        """Return what PodResources lists for this arena's pods: the units by pod, container and resource."""
        answer = asyncio.run(self._ask("List", resources.ListPodResourcesRequest()))
        held: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
        for pod in answer.pod_resources:
            for container in pod.containers:
                # Units of one resource may come in several entries.
                for devices in container.devices:
                    held[pod.name, container.name, devices.resource_name] += devices.device_ids
        return held

    def healthy(self) -> dict[str, set[str]]:
        """Return the units that kubelet may give, by resource."""
        answer = asyncio.run(self._ask("GetAllocatableResources", resources.AllocatableResourcesRequest()))
        units: defaultdict[str, set[str]] = defaultdict(set)
        for devices in answer.devices:
            units[devices.resource_name].update(devices.device_ids)
        return units

    def units(self) -> dict[str, int]:
        """Return how many units kubelet may give, by resource."""
        return {resource: len(units) for resource, units in self.healthy().items()}

    async def _ask(self, method: str, request: Any) -> Any:
        async with grpc.aio.insecure_channel(f"unix://{self.node.pod_resources}") as channel:
            answer: Awaitable[Any] = getattr(PodResourcesListerStub(channel), method)(request)
            return await answer

    def device(self) -> Manifest:
        """Return the node's Device; empty if there is none yet."""
        listed = self.arena.list("devices")
        return next((device for device in listed if device["metadata"]["name"] == self.node.name), {})

    def annotate(self, annotation: str, value: str) -> None:
        """Annotate the node's Device."""
        self.arena.merge("devices", self.node.name, {"metadata": {"annotations": {annotation: value}}})

    def free(self) -> list[int]:
        """Return the minors of the cards that are free and healthy on the Device; none before the operator's status."""
        uses = self.device().get("status", {}).get("devices", ())
        return [use["minor"] for use in uses if use["free"]["kubernetes.io/gpu-core"] == "100"]


def _unlike(what: str, found: Sequence[str], expected: Sequence[str]) -> list[str]:
    """Return a message if something names other devices than it should; nothing if not."""
    return [] if sorted(found) == sorted(expected) else [f"{what} says {sorted(found)}, not {sorted(expected)}"]


def _is_kubelets(pod: Manifest) -> bool:
    """Return whether kubelet gives a pod its devices."""
    return any(name.startswith("nvidia.com/") for name in pod["spec"]["containers"][0]["resources"]["limits"])
