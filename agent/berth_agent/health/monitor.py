"""Track the faults of all devices and apply them to readings.

Events add faults at any time. Readings add, renew and end them. The Device on the server is the memory across restarts
of the agent. So faults are applied to a node only after they were restored from its Device.
"""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from berth_agent.health import annotations, catalogue, rules
from berth_agent.health.annotations import NamedDevices
from berth_agent.health.faults import Fault, FaultEvent, faults_of, mark
from berth_agent.health.rules import Faults
from berth_agent.readings import Reading
from berth_api import names
from berth_api.device import DeviceInfo, DeviceSpec
from berth_api.names import GPU

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

_CORDON: Final = Fault(kind=catalogue.CORDONED, message=f"cordoned by the annotation {names.CORDONED_DEVICES}")
_NO_ANSWER: Final = Fault(kind=catalogue.NO_ANSWER, message="the GPU does not answer")


@dataclass(slots=True, kw_only=True)
class _Node:
    """What is known of one node."""

    faults: dict[str, Faults] = field(default_factory=dict)
    """Faults of GPUs, by their UUIDs."""
    devices: Sequence[DeviceInfo] | None = None
    """Devices of the last reading that had all cards, first those of the Device; None before the Device was read."""


class HealthMonitor:
    """The health of the devices of any number of nodes."""

    def __init__(self, *, boot_id: str, quiet: float, clock: Callable[[], float]) -> None:
        self._boot_id = boot_id
        self._quiet = quiet
        self._clock = clock
        self._nodes: dict[str, _Node] = {}

    def knows(self, node: str) -> bool:
        """Return whether the faults of a node were restored."""
        return self._node(node).devices is not None

    def restore(self, node: str, spec: DeviceSpec) -> None:
        """Restore the faults that the Device of a node lists (an empty spec: there is none), unless of another boot."""
        same_boot = not spec.boot_id or not self._boot_id or spec.boot_id == self._boot_id
        gpus = tuple(device for device in spec.devices if device.type == GPU) if same_boot else ()
        known, now = self._node(node), self._clock()
        earlier = {gpu.id: rules.restored(faults_of(gpu), now=now) for gpu in gpus if not gpu.health}
        known.devices = gpus
        known.faults = {gpu: {**earlier.get(gpu, {}), **known.faults.get(gpu, {})} for gpu in earlier | known.faults}

    def is_new(self, fault_event: FaultEvent) -> bool:
        """Return whether an event reports a fault that its GPU does not have yet, or asks for a reading."""
        known = self._node(fault_event.node).faults.get(fault_event.card, {})
        return not fault_event.faults or any(fault.kind not in known for fault in fault_event.faults)

    def record_event(self, fault_event: FaultEvent) -> None:
        """Add the faults of an event, or renew them; `apply_faults` shows them."""
        faults = self._node(fault_event.node).faults
        for fault in fault_event.faults:
            known = faults.get(fault_event.card, {})
            if fault.kind not in known:
                _log.warning(
                    "GPU has a fault",
                    node=fault_event.node,
                    gpu=fault_event.card,
                    fault=fault.kind,
                    message=fault.message,
                )
            faults[fault_event.card] = rules.with_fault(known, fault, now=self._clock())

    def observe(self, readings: Mapping[str, Reading]) -> None:
        """Update the faults by new readings; call it once for each reading.

        A card that was not read keeps its faults: nothing was observed of it.
        """
        for name, reading in readings.items():
            node = self._node(name)
            for device in reading.spec.devices:
                if device.type != GPU:
                    continue
                known, fresh = node.faults.get(device.id, {}), faults_of(device)
                if not known and not fresh:
                    continue
                reset = device.id in reading.reset
                faults = rules.after_reading(known, fresh, now=self._clock(), quiet=self._quiet, reset=reset)
                for kind in known.keys() - faults.keys():
                    _log.info("GPU fault ended", gpu=device.id, fault=kind)
                node.faults[device.id] = faults
            if node.devices is not None and _has_all_cards(reading):
                node.devices = reading.spec.devices

    def apply_faults(self, name: str, reading: Reading, *, device_annotations: Mapping[str, str]) -> Reading:
        """Return the reading with all known faults; the same object if there are none to add.

        Args:
            name: of the node.
            reading: as its inventory gave it.
            device_annotations: of its Device.
        """
        node = self._node(name)
        devices = _listed(node, reading)
        named = {
            annotation: annotations.read(device_annotations.get(annotation, ""), devices) for annotation in ANNOTATIONS
        }
        cordoned = named[names.CORDONED_DEVICES].devices
        marked = [_marked(device, node, cordoned=(device.type, device.minor) in cordoned) for device in devices]
        problems = annotations.findings(named)
        if not problems and len(marked) == len(reading.spec.devices) and all(map(operator.is_, marked, devices)):
            return reading
        spec = reading.spec.model_copy(update={"devices": marked})
        if len(marked) > len(reading.spec.devices) and not spec.boot_id:
            # A reading without cards may have none, and their faults must end with this boot.
            spec = spec.model_copy(update={"boot_id": self._boot_id})
        return replace(reading, spec=spec, findings=(*reading.findings, *problems))

    def named(self, name: str, reading: Reading, text: str) -> NamedDevices:
        """Return the devices of a node that an annotation names."""
        return annotations.read(text, _listed(self._node(name), reading))

    def clear_faults(self, name: str, reading: Reading, devices: Collection[annotations.Key]) -> None:
        """Clear the faults of these devices, which people call recovered."""
        node = self._node(name)
        for device in _listed(node, reading):
            if (device.type, device.minor) in devices and node.faults.pop(device.id, {}):
                _log.info("faults cleared by annotation", node=name, gpu=device.id)

    def _node(self, name: str) -> _Node:
        return self._nodes.setdefault(name, _Node())


ANNOTATIONS: Final = (names.CORDONED_DEVICES, names.RECOVERED_DEVICES)


def _marked(device: DeviceInfo, node: _Node, *, cordoned: bool) -> DeviceInfo:
    reported = {fault.kind: fault for fault in faults_of(device)}
    known = {kind: observed.fault for kind, observed in node.faults.get(device.id, {}).items()}
    cordon = {_CORDON.kind: _CORDON} if cordoned else {}
    faults = {**reported, **known, **cordon}
    return device if faults == reported else mark(device, faults.values())


def _listed(node: _Node, reading: Reading) -> list[DeviceInfo]:
    """Return the devices of a reading, and the GPUs listed before that do not answer, as unhealthy.

    A card that does not answer cannot be identified. While there is such a card, all missing cards stay listed: the
    Device is the memory of their faults.
    """
    listed = list(reading.spec.devices)
    if _has_all_cards(reading):
        return listed
    keys = {device.id for device in listed} | {(device.type, device.minor) for device in listed}
    missing = [
        device
        for device in node.devices or ()
        if device.type == GPU and not keys & {device.id, (device.type, device.minor)}
    ]
    return [*listed, *(mark(device, [_NO_ANSWER]) for device in missing)]


def _has_all_cards(reading: Reading) -> bool:
    return all(finding.ok for finding in reading.findings if finding.type == names.INVENTORY_READ)
