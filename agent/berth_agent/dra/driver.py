"""The driver of one node: its slices, its sockets and its claims, in step with the node's cards, pods and label.

The label `berth.dev/cards` of the Node decides how the node's cards are given, and the driver ensures that no card is
given in both ways. With `claims`, slices list the cards that no pod has by name, and kubelet's device API gets no card
that is free. A card of which a pod has an instance or a replica stays with the device API, with all its free parts,
until no pod has any. Otherwise, slices list nothing, and the device API gets the cards of which no claim has any part.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from berth_agent.boot import boot_id
from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.dra import devices
from berth_agent.dra.calls import CallMetrics
from berth_agent.dra.checkpoint import ClaimCheckpoint
from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.preparation import NodeState, Preparation
from berth_agent.dra.publisher import SlicePublisher
from berth_agent.dra.service import DriverService, HealthFeed
from berth_agent.dra.sockets import DriverSockets
from berth_agent.inventory import sysfs
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError
from berth_agent.kubelet.device_plugin.registration import CrashCounter, ServingError
from berth_agent.readings import Reading
from berth_agent.vendor import HandOver
from berth_api import names
from berth_api.allocation import visible
from berth_api.device import DeviceSpec
from berth_client.client import ApiClient

CHECK_INTERVAL: Final = 1.0
"""Seconds between two looks whether the sockets are still there."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ClaimDriver:
    """The driver `gpu.berth.dev` of this node."""

    def __init__(
        self,
        settings: Settings,
        *,
        client: ApiClient,
        hand_over: HandOver,
        owner: Callable[[], Mapping[str, Any] | None],
        held: Callable[[], frozenset[str] | None],
        is_current: Callable[[], bool],
    ) -> None:
        """Set its parts.

        Args:
            settings: the agent's settings.
            client: the API server.
            hand_over: how containers get the cards, by CDI.
            owner: returns the owner reference to the Node, or None while the Node is unknown.
            held: returns the UUIDs of what pods had by name at last, or None before the pods are known.
            is_current: returns whether kubelet answered when it was asked last.
        """
        self._settings = settings
        self._hand_over = hand_over
        self._held = held
        self._is_current = is_current
        self._publisher = SlicePublisher(client=client, node=settings.node_name, owner=owner)
        self._health = HealthFeed()
        self.metrics: Final = CallMetrics()
        self._checkpoint = ClaimCheckpoint(settings.checkpoint.parent)
        self.claims: Final = Preparation(
            api=client,
            store=self._checkpoint,
            cdi_folder=settings.cdi_folder,
            pool=settings.node_name,
            boot=boot_id(settings.proc_root),
            state=self._state,
        )
        self._spec: DeviceSpec | None = None
        self._roots: dict[str, str] = {}
        self._devices: dict[str, ListedDevice] = {}
        self._by_claims: bool | None = None
        self._sockets: DriverSockets | None = None
        self._failure = ""
        self._is_damaged = False
        """Whether a damaged checkpoint was kept."""

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call the listener when a claim got or released devices."""
        self.claims.on_change = listener

    async def update(self, reading: Reading, labels: Mapping[str, str]) -> None:
        """List the cards of a reading from now on, as the Node's labels say."""
        await self.claims.load()
        self._is_damaged = await asyncio.to_thread(self._checkpoint.aside.exists)
        is_known = self.claims.cards() is not None
        self.metrics.set_prepared(self._settings.node_name, len(self.claims) if is_known else None)
        held = self._held() if self._is_current() else None
        places = {device.topology.bus_id for device in reading.spec.devices if device.topology} - self._roots.keys()
        if places:
            self._roots |= await asyncio.to_thread(_roots, self._settings.sysfs_root, places)
        listed = devices.listed(reading.spec, reading.facts, roots=self._roots)
        self._spec, self._devices = reading.spec, {device.name: device for device in listed}
        self._by_claims = labels.get(names.CARDS_KEY) == names.CARDS_BY_CLAIMS
        self._health.update(
            {(self._settings.node_name, device.name): device.message or device.fault for device in listed}
        )
        if held is not None:
            taken = self._cards(held)
            self._publisher.publish([device for device in listed if self._by_claims and device.card not in taken])

    def withheld(self) -> frozenset[str]:
        """Return the UUIDs of the cards that kubelet's device API must not give."""
        if self._spec is None:
            return frozenset()
        cards = {device.id for device in self._spec.devices if device.type == names.GPU}
        if self._by_claims and self._held() is not None:
            # Also while kubelet restarts: a pod whose card turns unhealthy can neither be restarted nor admitted again.
            return self._unheld()
        return self._claimed() & cards

    def refuse_claimed(self, units: Sequence[str]) -> None:
        """Refuse to kubelet's device API units of cards that claims hold.

        Raises:
            AllocationRefusedError: a claim holds the card of a unit, also in part.
        """
        claimed = self._claimed()
        for unit in units:
            if self._cards(frozenset([visible(unit)])) & claimed:
                raise AllocationRefusedError(f"{unit}: its card is prepared for a ResourceClaim")

    def view(self, reading: Reading) -> Reading:
        """Return the reading with the condition of the driver."""
        problems = list(self._problems())
        finding = Finding(
            type=names.CLAIMS_SERVED,
            ok=not problems,
            reason=problems[0][0] if problems else "Registered",
            message="; ".join(message for _, message in problems),
        )
        return replace(reading, findings=(*reading.findings, finding))

    def _problems(self) -> Iterator[tuple[str, str]]:
        """Yield the reason and the message of each problem, the worst first."""
        if self.claims.failure:
            yield "CheckpointUnreadable", self.claims.failure
        if self._sockets is None or not self._sockets.registration.is_registered:
            failure = self._sockets.registration.failure if self._sockets else self._failure
            yield "NotRegistered", failure or "kubelet has not registered the driver yet"
        if self._publisher.failure:
            yield "SlicesNotWritten", self._publisher.failure
        if self._is_damaged:
            what = "the checkpoint of claims was damaged, so the agent may not know all claims that hold cards"
            yield "CheckpointDamaged", f"{what}: drain the node, and delete {self._checkpoint.aside}"

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Serve kubelet and keep the slices until the tasks are cancelled; the slices stay."""
        tasks.create_task(self._publisher.run())
        tasks.create_task(self._serve())

    async def _serve(self) -> None:
        """Serve kubelet until cancelled.

        Raises:
            CrashLoopError: the sockets break again and again.
        """
        crashes = CrashCounter()
        while True:
            service = DriverService(claims=self.claims, health=self._health, metrics=self.metrics)
            sockets = DriverSockets(self._settings.kubelet_folder, service)
            try:
                await sockets.start()
                self._sockets, self._failure = sockets, ""
                while True:
                    await asyncio.sleep(CHECK_INTERVAL)
                    if sockets.broken:
                        break
                _log.warning("a socket of the driver of claims is gone; serving again")
                crashes.count(asyncio.get_running_loop().time(), what=f"the sockets of {names.DRA_DRIVER}")
            except ServingError as error:
                if str(error) != self._failure:
                    _log.error("the driver of claims cannot be served, will try again", error=str(error))
                self._failure = str(error)
            finally:
                self._sockets = None
                await sockets.stop()
            await asyncio.sleep(CHECK_INTERVAL)

    def _state(self) -> NodeState | None:
        held, spec = self._held(), self._spec
        if held is None or spec is None or not self._is_current():
            return None
        return NodeState(devices=self._devices, by_name=held, access=lambda: self._hand_over.access(spec))

    def _claimed(self) -> frozenset[str]:
        """Return the UUIDs of the cards that claims hold, or may hold while the record of claims cannot be read."""
        claimed = self.claims.cards()
        return self._unheld() if claimed is None else claimed

    def _unheld(self) -> frozenset[str]:
        """Return the UUIDs of the cards that no pod has by name."""
        devices = self._spec.devices if self._spec else ()
        cards = frozenset(device.id for device in devices if device.type == names.GPU)
        return cards - self._cards(self._held() or frozenset())

    def _cards(self, held: frozenset[str]) -> frozenset[str]:
        """Return the UUIDs of the cards on which these cards and instances lie."""
        cards = {device.id: device.card for device in self._devices.values()}
        return frozenset(cards.get(device, device) for device in held)


def _roots(sysfs_root: Path, places: set[str]) -> dict[str, str]:
    return {place: sysfs.pcie_root(sysfs_root, place) for place in places}
