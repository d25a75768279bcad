"""Withhold the cards of ResourceClaims while the driver is off.

The driver can be switched off while pods with claims run, also by a downgrade of the chart. Without it, no call of
kubelet releases these claims. So their cards are withheld from kubelet's device API while containers have them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from berth_agent.boot import boot_id
from berth_agent.configuration.settings import Settings
from berth_agent.dra import devices, nics, partitions, recovery
from berth_agent.dra.checkpoint import AbsentError, ClaimCheckpoint, DamagedError, HeldClaim
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError
from berth_api.allocation import visible
from berth_api.device import ClaimedDevice, DeviceSpec
from berth_api.names import GPU

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class LeftClaims:
    """What claims still have on a node."""

    def __init__(
        self,
        settings: Settings,
        *,
        spec: Callable[[], DeviceSpec | None],
        by_claim: Callable[[], Iterable[ClaimedDevice] | None],
        clock: Callable[[], float],
        lingering: Callable[[], Collection[str]],
    ) -> None:
        """Read the records of claims.

        Args:
            settings: the agent's settings.
            spec: returns the node's devices, None before the first reading.
            by_claim: returns what containers have of claims, None while kubelet does not answer.
            clock: returns the time in seconds.
            lingering: returns the UIDs of the pods that have gone and still have processes; reads procfs.
        """
        self._pool = settings.node_name
        self._spec = spec
        self._by_claim = by_claim
        self._clock = clock
        boot = boot_id(settings.proc_root)
        claims = _recorded(settings.checkpoint.parent, settings.cdi_folder).values()
        current = [claim for claim in claims if not claim.is_over(boot)]
        keys = [(claim.namespace, claim.name, device) for claim in current for device in claim.devices]
        self._cards = {(space, name, device.device): device.card for space, name, device in keys if not device.admin}
        self._monitored = {(space, name, device.device) for space, name, device in keys if device.admin}
        """Devices that claims have with admin access, which keep them from no other."""
        self._devices = set(self._cards)
        """What claims have: recorded or reported, and not ended."""
        self._ended = recovery.EndedDevices(lingering=lingering)
        if self._cards:
            _log.warning("the driver of claims is off; cards of its claims are withheld while containers have them")

    def withheld(self) -> frozenset[str]:
        """Return the UUIDs of the cards that kubelet's device API must not give."""
        spec = self._spec()
        return self._held() & frozenset(device.id for device in (spec.devices if spec else ()) if device.type == GPU)

    def refuse(self, units: Sequence[str]) -> None:
        """Refuse units of cards, or NICs by their PCI addresses, that claims have.

        Raises:
            AllocationRefusedError: a claim has the card or NIC of a unit, also in part.
        """
        held = self._held()
        cards = {device.id: device.card for device in self._listed()} if held else {}
        for unit in map(visible, units):
            if cards.get(unit, unit) in held:
                raise AllocationRefusedError(f"{unit}: a ResourceClaim has its card, and the driver of claims is off")

    def _held(self) -> frozenset[str]:
        """Return the ids of cards and NICs that claims have: those that kubelet reports, or may report."""
        reported = self._by_claim()
        self._devices |= recovery.own(reported or (), self._pool) - self._monitored
        self._devices -= self._ended.among(self._devices, reported, pool=self._pool, now=self._clock())
        if not self._devices:
            return frozenset()
        by_name = {device.name: device.card for device in self._listed()}
        cards = {device.card for device in self._listed()}
        return frozenset(
            self._cards.get(key) or by_name.get(key[2]) or partitions.card_of(key[2], cards) for key in self._devices
        )

    def _listed(self) -> Iterable[devices.ListedDevice]:
        spec = self._spec()
        return (*devices.listed(spec, None, roots={}), *nics.listed(spec, roots={})) if spec else ()


def _recorded(folder: Path, cdi_folder: Path) -> Mapping[str, HeldClaim]:
    try:
        return ClaimCheckpoint(folder).load()
    except (OSError, DamagedError) as error:
        known = error.claims if isinstance(error, DamagedError) else {}
        if not isinstance(error, AbsentError):
            _log.warning("checkpoint of claims not read; their CDI files and kubelet decide", error=str(error))
    try:
        return {**recovery.from_files(cdi_folder, boot=""), **known}
    except OSError as error:
        _log.warning("CDI files of claims not read; kubelet decides", error=str(error))
        return known
