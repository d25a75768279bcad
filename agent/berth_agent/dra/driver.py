"""The driver of one node: its slices, its sockets and its claims, in step with the node's cards, pods and label.

The label `berth.dev/cards` of the Node decides how the node's cards are given, and the driver ensures that no card is
given twice. `modes` has the rules. With `claims`, a card of which a pod has an instance or a replica stays with the
device API, with all its free parts, until no pod has any. The same holds for RDMA NICs, if the agent gives them: no pod
gets the device files of a NIC that a claim holds.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from berth_agent.boot import boot_id
from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.dra import devices, modes, nics, on_demand, partitions
from berth_agent.dra.checkpoint import ClaimCheckpoint
from berth_agent.dra.devices import ListedDevice
from berth_agent.dra.endpoint import DriverEndpoint
from berth_agent.dra.forgotten import ForgottenClaims
from berth_agent.dra.modes import Mode
from berth_agent.dra.on_demand import PartitionsOnDemand
from berth_agent.dra.partitions import PartitionedCard
from berth_agent.dra.preparation import NO_PROCESS, NodeState, Preparation
from berth_agent.dra.publisher import SlicePublisher
from berth_agent.dra.renewal import NodeDevices
from berth_agent.dra.shares import MIB
from berth_agent.inventory import sysfs
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError
from berth_agent.readings import ClaimedByContainer, ClaimedPart, Reading
from berth_agent.vendor import HandOver, PartitionableCard
from berth_api import names
from berth_api.allocation import visible
from berth_api.device import ClaimedDevice, DeviceSpec
from berth_client.client import ApiClient
from berth_client.errors import CallError


class ClaimDriver:
    """The driver `gpu.berth.dev` of this node."""

    def __init__(
        self,
        settings: Settings,
        *,
        client: ApiClient,
        hand_over: HandOver,
        endpoint: DriverEndpoint,
        owner: Callable[[], Mapping[str, Any] | None],
        held: Callable[[], frozenset[str] | None],
        is_current: Callable[[], bool],
        by_claim: Callable[[], Sequence[ClaimedDevice]] = tuple,
        foreign: Callable[[Reading], frozenset[int]] = lambda _: frozenset(),
        lingering: Callable[[], Collection[str]],
        has_shares: bool = False,
        has_partitions: bool = True,
        on_demand: PartitionsOnDemand | None = None,
    ) -> None:
        """Set its parts.

        Args:
            settings: the agent's settings.
            client: the API server.
            hand_over: how containers get the cards, by CDI.
            endpoint: what kubelet sees of the driver.
            owner: returns the owner reference to the Node, or None while the Node is unknown.
            held: returns the ids of what pods had by name at last, or None before the pods are known.
            is_current: returns whether kubelet answered when it was asked last.
            by_claim: returns the devices of claims that containers had by kubelet's last answer.
            foreign: returns the minors of the cards that processes of a reading use which still run, and are of no pod.
            lingering: returns the UIDs of the pods that have gone and still have processes; reads procfs.
            has_shares: whether claims may have shares of this vendor's cards.
            has_partitions: whether partitions can be made on cards of this vendor.
            on_demand: makes partitions of cards; None if nothing does.
        """
        self._settings = settings
        self._hand_over = hand_over
        self._held_by_watch = held
        self._is_current = is_current
        self._by_claim = by_claim
        self._foreign = foreign
        self._has_shares = has_shares
        self._has_partitions = has_partitions
        self._reading: Reading | None = None
        self._publisher = SlicePublisher(client=client, node=settings.node_name, owner=owner)
        self._endpoint = endpoint
        self.metrics: Final = endpoint.metrics
        self.claims: Final = Preparation(
            api=client,
            store=ClaimCheckpoint(settings.checkpoint.parent),
            cdi_folder=settings.cdi_folder,
            pool=settings.node_name,
            boot=boot_id(settings.proc_root),
            state=self._state,
            partitions=on_demand,
            lingering=lingering,
        )
        self._on_demand = on_demand
        self._is_opened = False
        """Whether the Node's label opens its cards for partitions on demand."""
        self._unopened = ""
        """Why it does not; empty if it does, or if there is none."""
        self._undivided: frozenset[str] = frozenset()
        """UUIDs of the cards whose partitions come and go with claims."""
        self._forgotten = ForgottenClaims(
            self.claims,
            api=client,
            pool=settings.node_name,
            by_claim=lambda: by_claim() if is_current() else None,
            lingering=lingering,
        )
        self._spec: DeviceSpec | None = None
        self._roots: dict[str, str] = {}
        self._devices: dict[str, ListedDevice] = {}
        self._mode = self._requested = Mode.NAME
        self._misspelt = ""
        """The message about a label that requests no mode."""
        self.refusal = ""
        """Why the cards are not given as the label says; empty if they are."""
        self.unseen_nics: Callable[[], frozenset[str]] = frozenset
        """Returns the PCI addresses of the NICs of pods that the watch of pods does not show yet."""
        self.shown: list[ListedDevice] = []
        """The devices that slices list, as of the last reading with known pods."""

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call the listener when a claim got or released devices."""
        self.claims.on_change = listener

    def on_partition(self, listener: Callable[[], object]) -> None:
        """Call the listener when the cards must be read again."""
        if self._on_demand:
            self._on_demand.on_change = listener

    async def update(self, reading: Reading, labels: Mapping[str, str]) -> None:
        """List the cards of a reading from now on, as the Node's labels say."""
        places = {device.topology.bus_id for device in reading.spec.devices if device.topology} - self._roots.keys()
        if places:
            self._roots |= await asyncio.to_thread(_roots, self._settings.sysfs_root, places)
        self._requested, self._misspelt = modes.mode_of(labels), modes.misspelt(labels)
        label = labels.get(names.PARTITIONS_KEY)
        unopened = self._unopened_by(label)
        self._is_opened = label is not None and not unopened
        self._unopened = f"label {names.PARTITIONS_KEY}={label} has no effect: {unopened}" if unopened else ""
        opened = self._on_demand.opened() if self._on_demand and self._is_opened else {}
        used = self._used()
        listed, cards = self._list(reading, opened)
        # Until it is known what the driver has, the slices of an earlier agent stay.
        self.refusal, is_decided = "", not self._unlisted()
        if self._requested is not Mode.NAME:
            try:
                self.refusal = await self._refused(reading)
            except CallError as error:
                # The slices of an earlier agent stay as they are.
                kept = "shares" if self._requested is Mode.SHARES else "taints"
                self.refusal, is_decided = f"it is not known whether the API server keeps {kept}: {error}", False
        self._mode = Mode.NAME if self.refusal and is_decided else self._requested
        await self.claims.load()
        if self._used() != used:
            # Claims were recovered whose partitions must not be listed as instances of others.
            listed, cards = self._list(reading, opened)
        self.claims.renew(self._present)
        is_known = self.claims.cards() is not None
        self.metrics.set_prepared(self._settings.node_name, len(self.claims.held) if is_known else None)
        held = self._held() if self._is_current() else None
        self._endpoint.health.update(
            {(self._settings.node_name, name): device.message or device.fault for name, device in self._devices.items()}
        )
        if held is not None and is_decided:
            self.shown = modes.shown(self._mode, listed, by_name=self._cards(held))
            healthy = {device.id for device in self.shown if not device.fault}
            self._publisher.publish(self.shown, {id_: card for id_, card in cards.items() if id_ in healthy})

    def _list(
        self, reading: Reading, opened: Mapping[str, PartitionableCard]
    ) -> tuple[tuple[ListedDevice, ...], dict[str, PartitionedCard]]:
        """Return the devices of a reading, and what can be made on opened cards, by UUID."""
        used = self._used()
        self._undivided = used | opened.keys()
        spec = on_demand.whole(reading.spec, self._undivided)
        hidden = used - opened.keys()
        if self._unlisted():
            # What is on them may be ours or of others.
            hidden |= {card.id for card in reading.spec.devices if card.mig and card.mig.enabled}
        listed = devices.listed(spec, reading.facts, roots=self._roots, hidden=hidden)
        if self._settings.nics:
            listed += nics.listed(reading.spec, roots=self._roots)
        wholes = [device for device in listed if device.id in opened]
        made = {device.id: partitions.on_card(device, opened[device.id]) for device in wholes}
        cards = {card: partitioned for card, partitioned in made.items() if partitioned}
        makeable = [one for device in wholes if device.id in cards for one in cards[device.id].makeable(device)]
        self._reading = reading
        self._spec, self._devices = reading.spec, {device.name: device for device in (*listed, *makeable)}
        return listed, cards

    async def _refused(self, reading: Reading) -> str:
        """Return why the node's cards cannot be given as the label says; empty if they can.

        Raises:
            CallError: it is not known.
        """
        if self._requested is not Mode.BOTH and self._publisher.keeps_taints is False:
            await self._publisher.probe()
        if self._requested is Mode.CLAIMS:
            return ""
        if self._requested is Mode.SHARES:
            if not self._has_shares:
                return "cards of this vendor cannot be shared by claim"
            if not reading.offered:
                return "another device plugin offers the cards, so they cannot be shared by claim"
            await self._publisher.probe(shares=True)
            dropped = (
                "the API server drops shares of devices, as before Kubernetes 1.36, so a card is of one claim alone"
            )
            return "" if self._publisher.keeps_shares else dropped
        if not self._settings.device_plugin:
            return "the agent does not offer the node's cards to kubelet (--device-plugin)"
        if not self._settings.dra_own_pools:
            return f"the pools of {names.DRA_DRIVER} are not Berth's: add it to claims.drivers (--dra-own-pools)"
        await self._publisher.probe()
        return (
            "" if self._publisher.keeps_taints else "the API server drops taints of devices, as before Kubernetes 1.36"
        )

    def _unopened_by(self, label: str | None) -> str:
        """Return why a label does not open the node's cards for partitions; empty if it does, or if there is none."""
        if label is None:
            return ""
        if label != names.PARTITIONS_ON_ALL:
            return f"its only value is {names.PARTITIONS_ON_ALL}"
        if self._requested is not Mode.CLAIMS:
            return f"it needs {names.CARDS_KEY}={Mode.CLAIMS}"
        if not self._has_partitions:
            return "partitions cannot be made on cards of this vendor"
        if self._on_demand is None:
            return NO_PROCESS
        if not self._settings.device_plugin:
            return "the agent does not offer the node's cards to kubelet (--device-plugin), and another plugin may"
        return ""

    def _unlisted(self) -> str:
        """Return why cards in the mode of partitions, and partitions, are not listed; empty if they are."""
        return self._on_demand.unknown if self._on_demand and self._is_opened else ""

    def _used(self) -> frozenset[str]:
        """Return the UUIDs of the cards on which partitions were made, or may be made now."""
        held = self.claims.held.values()
        claimed = frozenset(device.card for claim in held for device in claim.devices if device.is_made)
        return claimed | self._on_demand.used() if self._on_demand else claimed

    def undivided(self, reading: Reading) -> Reading:
        """Return the reading without the partitions that are made on demand: no pod gets them by name.

        So the cards on which they are count as whole, and are withheld.
        """
        return replace(reading, spec=on_demand.whole(reading.spec, self._undivided))

    def withheld(self) -> frozenset[str]:
        """Return the UUIDs of the cards that kubelet's device API must not give."""
        if self._spec is None:
            return frozenset()
        cards = {device.id for device in self._spec.devices if device.type == names.GPU}
        if self._mode in (Mode.CLAIMS, Mode.SHARES) and self._held() is not None:
            # Also while kubelet restarts: a pod whose card turns unhealthy can neither be restarted nor admitted again.
            return self._unheld() & cards
        return self._claimed() & cards

    def refuse_claimed(self, units: Sequence[str]) -> None:
        """Refuse to kubelet's device API units of cards, or NICs by their PCI addresses, that claims hold.

        Raises:
            AllocationRefusedError: a claim holds the card of a unit, also in part, or may hold it.
        """
        if self._spec is None:
            # Which instances are on which card is not known yet.
            raise AllocationRefusedError("the node's cards are not known yet")
        claimed = self._claimed()
        for unit in units:
            if self._cards(frozenset([visible(unit)])) & claimed:
                raise AllocationRefusedError(f"{unit}: its card is prepared for a ResourceClaim")

    def parts(self, users: Iterable[ClaimedByContainer]) -> tuple[ClaimedPart, ...]:
        """Return what containers have of GPUs by the devices of their claims, apart from admin access.

        Left out is what is not known: instances that the last reading lacks, and claims whose records are lost.
        """
        claims = {(claim.namespace, claim.name): claim for claim in self.claims.held.values()}
        instances = {
            instance.id: instance
            for card in (self._spec.devices if self._spec else ())
            for instance in (card.mig.instances if card.mig else ())
        }
        return tuple(
            ClaimedPart(
                namespace=claim.namespace,
                pod=user.pod,
                container=user.container,
                key=f"{claim.name}/{number}",
                card=device.card,
                instance=instances.get(device.id),
                memory=device.share.memory * MIB if device.share else None,
                cores=device.share.cores if device.share else 0,
            )
            for user in users
            if user.device.driver == names.DRA_DRIVER
            and (claim := claims.get((user.device.namespace, user.device.claim))) is not None
            for number, device in enumerate(claim.devices)
            if device.device == user.device.device and device.type == names.GPU and not device.admin
            # A claim that was recovered from kubelet's report names no request, and no share.
            if device.request and device.card and (device.id == device.card or device.id in instances)
        )

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
        if self.claims.unwritten:
            yield "ClaimsNotWritten", self.claims.unwritten
        if self._forgotten.problem:
            yield "ProcessesLeft", self._forgotten.problem
        if self.claims.withdrawn:
            yield "DeviceGone", f"{self.claims.withdrawn}. If this lasts, delete the pods of the claim"
        if not self._endpoint.is_registered:
            yield "NotRegistered", self._endpoint.failure or "kubelet has not registered the driver yet"
        if self.refusal:
            effect = "has no effect, and pods get cards by name"
            if self._mode is not Mode.NAME:
                effect = "has no effect yet, and ResourceSlices stay as they are"
            message = f"label {names.CARDS_KEY}={self._requested} {effect}: {self.refusal}"
            yield "SharesRefused" if self._requested is Mode.SHARES else "BothRefused", message
        if self._misspelt:
            yield "CardsRefused", self._misspelt
        if self._publisher.failure:
            yield "SlicesNotWritten", self._publisher.failure
        if self._unopened:
            yield "PartitionsRefused", self._unopened
        if self._on_demand is None and any(one.is_made for held in self.claims.held.values() for one in held.devices):
            yield "PartitionsRefused", f"claims have partitions, and cannot be released: {NO_PROCESS}"
        elif self.claims.undestroyed:
            yield "PartitionsRefused", self.claims.undestroyed
        # A node without cards has no library that the process could ask.
        has_cards = any(device.type == names.GPU for device in self._spec.devices) if self._spec else False
        asked = self._on_demand if self._is_opened or has_cards else None
        if asked and (problems := asked.problems(opened=self._is_opened)):
            yield "PartitionsRefused", "; ".join(problems)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Answer kubelet and keep the slices until the tasks are cancelled; the slices stay."""
        tasks.create_task(self._publisher.run())
        tasks.create_task(self._forgotten.run())
        if self._on_demand:
            tasks.create_task(self._on_demand.run(self.claims.destroy_left))
        self._endpoint.begin(self.claims)

    def _state(self) -> NodeState | None:
        held, spec = self._held(), self._spec
        if held is None or spec is None or self._reading is None or not self._is_current():
            return None
        foreign = self._foreign(self._reading)
        return NodeState(
            devices=self._devices,
            by_name=held,
            access=lambda: self._hand_over.access(spec),
            nic_edits=self._nic_edits,
            by_claim=self._by_claim(),
            foreign=frozenset(
                device.id for device in spec.devices if device.type == names.GPU and device.minor in foreign
            ),
            card_of=_card_of(spec),
            unlisted=self._unlisted(),
            divided=frozenset(
                device.id
                for device in spec.devices
                if device.mig and device.mig.enabled and device.id in self._undivided
            ),
        )

    def _present(self) -> NodeDevices | None:
        """Return the devices of the last reading; None if the GPU driver did not answer."""
        reading = self._reading
        if reading is None or not all(one.ok for one in reading.findings if one.type == names.DRIVER_LOADED):
            return None
        spec = reading.spec
        return NodeDevices(
            access=lambda: self._hand_over.access(spec), nic_edits=self._nic_edits, card_of=_card_of(spec)
        )

    def _nic_edits(self, address: str) -> Mapping[str, Any]:
        return nics.edits(self._settings.sysfs_root, address)

    def _held(self) -> frozenset[str] | None:
        """Return the ids of what pods have by name, or None before the pods are known."""
        held = self._held_by_watch()
        return None if held is None else held | self.unseen_nics()

    def _claimed(self) -> frozenset[str]:
        """Return the ids of the cards that claims hold, or may hold while the record of claims cannot be read."""
        claimed = self.claims.cards()
        return self._unheld() if claimed is None else claimed | self._used()

    def _unheld(self) -> frozenset[str]:
        """Return the ids of the cards and NICs that no pod has by name."""
        devices = self._spec.devices if self._spec else ()
        cards = frozenset(device.id for device in devices if device.type in (names.GPU, names.RDMA))
        return cards - self._cards(self._held() or frozenset())

    def _cards(self, held: frozenset[str]) -> frozenset[str]:
        """Return the ids of the cards on which these cards and instances lie, and of the NICs of these functions."""
        on_card = _card_of(self._spec) if self._spec else {}
        cards = {**on_card, **{device.id: device.card for device in self._devices.values()}}
        return frozenset(cards.get(device, device) for device in held)


def _card_of(spec: DeviceSpec) -> dict[str, str]:
    """Return the UUID of the card of each card and MIG instance, by UUID; `_devices` lacks those made on demand."""
    cards = [device for device in spec.devices if device.type == names.GPU]
    instances = {instance.id: card.id for card in cards if card.mig for instance in card.mig.instances}
    return {card.id: card.id for card in cards} | instances


def _roots(sysfs_root: Path, places: set[str]) -> dict[str, str]:
    return {place: sysfs.pcie_root(sysfs_root, place) for place in places}
