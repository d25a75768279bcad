"""The provider of `berth.dev/rdma`: the device files of the RDMA NICs that a container's pod holds.

Kubelet does not say for which pod it allocates units. So Allocate answers with a new name of a CDI device, and the
agent writes what the name stands for before the container starts. By then kubelet's checkpoint says whose the units
are, and the pod's allocation names its NICs.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

from berth_agent import files
from berth_agent.conditions import Finding
from berth_agent.inventory.discovery import rdma
from berth_agent.inventory.discovery.rdma import CharDevice
from berth_agent.isolation.provider import AnyUnit, ListPods, NodeView, ProviderStatus
from berth_agent.kubelet import allocations
from berth_agent.kubelet.admission.admission import UnavailableError
from berth_agent.kubelet.admission.pods import NCCL_IB_HCA, Pod
from berth_agent.kubelet.allocations import CHECKPOINT, Allocation
from berth_agent.kubelet.device_plugin import cdi_folder
from berth_agent.kubelet_api.deviceplugin_pb2 import CDIDevice, ContainerAllocateResponse
from berth_agent.vendor import RefusedError
from berth_api import names
from berth_api.allocation import Grant
from berth_api.device import DeviceSpec
from berth_api.names import RDMA, RDMA_RESOURCE
from berth_api.request import CARD

COUNT: Final = 500
"""Units of a node: more than containers with NICs run there. The number does not depend on the NICs, because a NIC is
away while a pod has it in its network namespace."""
FILE: Final = "berth.dev-rdma-{}.json"
GRACE: Final = 60.0
"""Seconds for which a specification stays: the pod may be new, and the watch later than kubelet's."""

LAG: Final = 300.0
"""Seconds for which a pod holds its NICs although the watch of pods has never shown it. After that, the pod was deleted
before the watch could show it."""

RefuseClaimed = Callable[[Sequence[str]], object]
"""Raises RefusedError if a ResourceClaim holds one of these NICs, or a part of it."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NicProvider(AnyUnit):
    """Allocates to containers the device files of their pods' NICs."""

    def __init__(
        self, *, sysfs: Path, kubelet: Path, cdi_folder: Path, list_pods: ListPods, names_nics: bool = False
    ) -> None:
        """Set where sysfs, kubelet's folder of device plugins and the folder of CDI specifications are.

        `names_nics` is whether containers get NCCL's variable.
        """
        self.resource = RDMA_RESOURCE
        self._sysfs = sysfs
        self._checkpoint = kubelet / CHECKPOINT
        self._folder = cdi_folder
        self._list_pods = list_pods
        self._names_nics = names_nics
        self._pods: dict[str, Pod] = {}
        self._failure = ""
        self._odd_entries: list[str] = []
        """What is wrong with entries of kubelet's checkpoint, as logged last."""
        self._given: dict[str, tuple[float, frozenset[str]]] = {}
        """UID of a pod -> (until when, the PCI addresses that it has `taken`), until the watch has shown the pod."""
        self.refuse_claimed: RefuseClaimed = lambda _addresses: None

    def count(self, spec: DeviceSpec) -> int:  # noqa: ARG002 - the same for all
        """Return the number of units."""
        return COUNT

    async def check(self, node: NodeView) -> ProviderStatus:
        """Follow the node's pods, and remove the specifications of containers that are gone."""
        self._pods = {pod.uid: pod for pod in node.pods}
        self._forget_seen(node.pods)
        written = list(self._folder.glob(FILE.format("*")))
        if not written and not any(device.type == RDMA for device in node.spec.devices):
            return ProviderStatus(wanted=False, healthy=False)
        self._remove_old(written)
        finding = Finding(type=names.NICS_OFFERED, ok=True, reason="Registered")
        return ProviderStatus(wanted=True, healthy=True, findings=(finding,))

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocateResponse:  # noqa: ARG002
        """Return a new name. No later container has it, so that it never leads to the NICs of another pod."""
        return ContainerAllocateResponse(cdi_devices=[CDIDevice(name=f"{RDMA_RESOURCE}={uuid.uuid4()}")])

    async def before_start(self, ids: Sequence[str]) -> None:
        """Write the specification of the container.

        Raises:
            RefusedError: its pod is not known yet, holds no NIC, or a NIC is not there or given to another pod.
        """
        try:
            entries = self._allocations()
            if _own(entries, ids)[0].pod not in self._pods:
                # The watch may be later than kubelet's. It may also have shown pods that the list does not have yet.
                pods, _ = await self._list_pods()
                self._pods |= {pod.uid: pod for pod in pods}
                # Again: a pod that was served meanwhile comes first. From here to the files, nothing is waited for.
                entries = self._allocations()
            own = _own(entries, ids)
            pod = self._pod(own[0].pod)
            devices = self._devices(pod, self._served(entries))
            for entry in own:
                # Init containers that have ended hand their units on, so that several containers may have them.
                self._write(pod, entry, devices)
        except (UnavailableError, OSError, ValueError) as error:
            raise RefusedError(f"the device files of the pod's NICs: {error}; kubelet tries again") from error

    def unseen(self, pods: Iterable[Pod]) -> frozenset[str]:
        """Return the addresses `taken` by pods that are not among these, the pods that the watch shows."""
        self._forget_seen(pods)
        return frozenset(address for _, given in self._given.values() for address in given)

    def _forget_seen(self, pods: Iterable[Pod]) -> None:
        if self._given:
            now, seen = asyncio.get_running_loop().time(), {pod.uid for pod in pods}
            self._given = {uid: entry for uid, entry in self._given.items() if uid not in seen and now < entry[0]}

    def _pod(self, uid: str) -> Pod:
        if uid not in self._pods:
            raise RefusedError(f"the pod with the UID {uid} is not on this node")
        return self._pods[uid]

    def _served(self, entries: Iterable[Allocation]) -> set[str]:
        """Return the UIDs of the pods that have their NICs: the specification of one of their containers is there."""
        return {
            entry.pod
            for entry in entries
            for name in _device_names(entry)
            if (self._folder / FILE.format(name)).exists()
        }

    def _devices(self, pod: Pod, served: Collection[str]) -> list[CharDevice]:
        """Return the character devices of a pod's NICs, in the order of its allocation."""
        if not pod.nics:
            raise RefusedError(
                f"{pod.key} holds no NIC; only pods that request kubernetes.io/rdma may have {RDMA_RESOURCE}"
            )
        if conflict := _conflict(pod, self._pods.values(), served):
            raise RefusedError(conflict)
        devices: list[CharDevice] = []
        self.refuse_claimed(taken(pod.nics))
        # At once: a claim may be prepared before the watch shows the pod.
        self._given[pod.uid] = asyncio.get_running_loop().time() + LAG, frozenset(taken(pod.nics))
        for address in addresses(pod.nics):
            found = rdma.char_devices(self._sysfs, address)
            if not found:
                raise RefusedError(f"the NIC {address} of {pod.key} has no RDMA device now")
            devices += found
        return [*devices, *rdma.connection_manager(self._sysfs)]

    def _write(self, pod: Pod, entry: Allocation, devices: Sequence[CharDevice]) -> None:
        container = next((container for container in pod.containers if container.name == entry.container), None)
        edits: dict[str, Any] = {"deviceNodes": [rdma.cdi_node(device) for device in devices]}
        if self._names_nics and not (container and container.sets_hca):
            edits["env"] = [f"{NCCL_IB_HCA}={hca(devices)}"]
        for name in _device_names(entry):
            specification = {
                "cdiVersion": cdi_folder.VERSION,
                "kind": RDMA_RESOURCE,
                "devices": [{"name": name, "containerEdits": edits}],
            }
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            file = FILE.format(name)
            files.write(self._folder / file, orjson.dumps(specification), mode=cdi_folder.MODE, draft=f".{file}.draft")

    def _allocations(self) -> list[Allocation]:
        """Return the entries of kubelet's checkpoint with NICs.

        Entries that cannot be read are left out. Otherwise one of them would keep all other containers with NICs from
        starting. Among pods that share a NIC, the order of creation alone decides about the pod of such an entry.
        """
        entries, problems = allocations.read(files.read(self._checkpoint), RDMA_RESOURCE)
        if problems != self._odd_entries:
            self._odd_entries = problems
            for problem in problems:
                _log.warning("an entry of kubelet's checkpoint is left out", error=problem)
        return entries

    def _remove_old(self, written: Iterable[Path]) -> None:
        """Remove the specifications of containers whose pods are gone. Kubelet's checkpoint keeps these for a while."""
        try:
            present = [entry for entry in self._allocations() if entry.pod in self._pods] if written else []
            if written and self._odd_entries:
                # A file may be of the container that such an entry is about.
                return
            kept = {FILE.format(name) for entry in present for name in _device_names(entry)}
            for file in written:
                if file.name not in kept and file.stat().st_mtime < time.time() - GRACE:
                    file.unlink()
        except (OSError, ValueError) as error:
            if str(error) != self._failure:
                _log.warning("old CDI specifications of NICs stay, will try again", error=str(error))
            self._failure = str(error)


def addresses(nics: Iterable[Grant]) -> list[str]:
    """Return the PCI addresses of the functions that a pod may use: virtual functions where it holds some."""
    functions = ([function.bus_id for function in nic.functions] or [nic.id] for nic in nics)
    return list(dict.fromkeys(address for listed in functions for address in listed))


def taken(nics: Iterable[Grant]) -> list[str]:
    """Return the PCI addresses that no claim may have: of the functions that a pod may use, then of their NICs.

    A claim gets no part of a NIC of which a pod has another part by name. While a function is in a pod's network
    namespace, no reading shows which NIC it belongs to, so the NIC must be among these.
    """
    listed = list(nics)
    return list(dict.fromkeys(filter(None, (*addresses(listed), *(nic.id for nic in listed)))))


def hca(devices: Iterable[CharDevice]) -> str:
    """Return the value of NCCL_IB_HCA that matches exactly these RDMA devices: `=mlx5_0,mlx5_1`."""
    return "=" + ",".join(dict.fromkeys(device.rdma for device in devices if device.rdma))


def _own(entries: Iterable[Allocation], ids: Sequence[str]) -> list[Allocation]:
    """Return the entries that have some of these units.

    Raises:
        RefusedError: there is none.
    """
    own = [entry for entry in entries if not entry.ids.isdisjoint(ids)]
    if not own:
        raise RefusedError("kubelet's checkpoint does not have the container yet")
    return own


def _device_names(entry: Allocation) -> list[str]:
    """Return the names of CDI devices in the answer to Allocate, without their kind."""
    return [device.partition("=")[2] for device in entry.cdi_devices]


def _conflict(pod: Pod, pods: Iterable[Pod], served: Collection[str]) -> str:
    """Return why a pod cannot have its NICs next to pods that come before it; empty if it can.

    Pods that have their NICs come first, then the others in the order of their creation. This order alone would not
    do: it is known to a second, and a pod may run before that has passed.
    """
    in_order = sorted(pods, key=lambda other: (other.uid not in served, other.created, other.uid))
    for other in takewhile(lambda earlier: earlier.uid != pod.uid, in_order):
        if other.ended:
            continue
        for nic in pod.nics:
            for held in other.nics:
                shared = held.id == nic.id and bool(set(held.handles) & set(nic.handles))
                too_much = held.id == nic.id and _amount(held) + _amount(nic) > CARD
                if shared or too_much:
                    return f"the NIC {nic.id} of {pod.key} was also given to {other.key}, which comes before it"
    return ""


def _amount(nic: Grant) -> int:
    return dict(nic.amounts).get(RDMA, 0)
