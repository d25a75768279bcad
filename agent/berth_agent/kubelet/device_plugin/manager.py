"""Keep the offers to kubelet in step with the node's devices, the options and the withheld devices.

The manager gets each reading. It checks for a new kubelet once a second, and continuously while no kubelet watches. The
continuous check is needed because a starting kubelet rejects, for good, each pod that it finds before the plugin is
registered. A check costs one system call. Unlike inotify, it misses nothing if kubelet's folder itself is created
again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from berth_agent.conditions import Finding
from berth_agent.configuration.options import KUBELET_SOCKET, OptionsError
from berth_agent.configuration.settings import Settings
from berth_agent.kubelet.device_plugin.cdi_folder import CdiFolder
from berth_agent.kubelet.device_plugin.chooser import Chooser, NoPreference
from berth_agent.kubelet.device_plugin.gpus import GpuHandler
from berth_agent.kubelet.device_plugin.handler import Service
from berth_agent.kubelet.device_plugin.plugin_server import OnRefusal, PluginServer
from berth_agent.kubelet.device_plugin.registration import ServingError
from berth_agent.kubelet.device_plugin.servers import PluginServers
from berth_agent.kubelet.device_plugin.takeover import MAX_REGISTRATIONS
from berth_agent.readings import Reading
from berth_agent.vendor import HandOver, MisconfiguredError, Offers
from berth_api import names
from berth_api.device import DeviceSpec

CHECK_INTERVAL: Final = 1.0
"""Seconds between two looks for a new kubelet."""

_TAKEN: Final = (
    "kubelet calls another device plugin for {resources}, which registered after the agent: kubelet gave, or may give, "
    f"units that are not from the agent. The agent registers again at most {MAX_REGISTRATIONS} times an hour. Remove "
    "the other device plugin from the node, then restart the agent"
)

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class InitError(Exception):
    """There is nothing to offer at the start, and `--fail-on-init-error` makes that the end."""


class PluginManager:
    """The device plugin of this node."""

    def __init__(
        self, settings: Settings, *, hand_over: HandOver, chooser: Chooser, check_interval: float = CHECK_INTERVAL
    ) -> None:
        self._settings = settings
        self._check_interval = check_interval
        self._chooser = chooser
        self._hand_over = hand_over
        self._spec: DeviceSpec | None = None
        self._offers = Offers()
        self._failure = ""
        self._restart = False
        self._wake = asyncio.Event()
        self._findings: tuple[Finding, ...] = ()
        self._cdi = CdiFolder(settings.cdi_folder)
        kubelet = Path(settings.kubelet_socket) if settings.kubelet_socket else None
        self._servers = PluginServers(kubelet=kubelet, make=self._server)
        self._kubelet_ready = False
        """Whether kubelet can allocate devices."""
        self._is_leaving = False
        self.on_kubelet: Callable[[], object] = lambda: None
        """Called when kubelet can allocate devices, or cannot any more."""
        self.on_refusal: OnRefusal = lambda _resource, _why: None
        """Called when kubelet is refused units."""
        self.kept_for_claims: Callable[[], frozenset[str]] = frozenset
        """Returns the UUIDs of the cards that only ResourceClaims may get."""
        self._kept: frozenset[str] = frozenset()
        self.refuse_claimed: Callable[[Sequence[str]], object] = lambda _ids: None
        """Raises AllocationRefusedError if a ResourceClaim holds the card of one of these units."""

    # --- for the agent ------------------------------------------------------------------------------------

    def update(self, reading: Reading) -> None:
        """Offer the devices of a reading from now on."""
        if self._spec is None:
            self._failure = _failure(reading, self._hand_over)
        # GPUs that another plugin offers are none of ours.
        spec = reading.spec if reading.offered else reading.spec.model_copy(update={"devices": []})
        if spec != self._spec:
            self._spec = spec
            self._wake.set()
        kept = self.kept_for_claims()
        if kept != self._kept:
            self._kept = kept
            self._wake.set()

    def view(self, reading: Reading) -> Reading:
        """Return the reading as pods are to see it: with replicas of cards, and with the condition of the plugin."""
        if reading.offered:
            spec = self._hand_over.shown(reading.spec)
            if isinstance(self._chooser, NoPreference) and spec.replica_choice == "scheduler":
                spec = spec.model_copy(update={"replica_choice": "kubelet"})
        else:
            spec = reading.spec
        return replace(reading, spec=spec, findings=(*reading.findings, *self._findings))

    def with_withheld(self, reading: Reading) -> Reading:
        """Return the reading with the GPUs that kubelet cannot give.

        These are all GPUs while kubelet would refuse pods that request some (decision 19).
        """
        if reading.use is None or not reading.offered:
            return reading
        cards = {device.minor: device.id for device in reading.spec.devices if device.type == "gpu"}
        withheld = set(cards)
        if self._kubelet_ready and not self._is_leaving:
            kept = self.kept_for_claims()
            by_claims = (minor for minor, card in cards.items() if card in kept)
            withheld = {*reading.use.withheld, *by_claims, *self._servers.minors_given_by_others & cards.keys()}
        return replace(reading, use=replace(reading.use, withheld=tuple(sorted(withheld))))

    def leave(self) -> None:
        """Report all GPUs as withheld from now on: the agent is about to end."""
        self._is_leaving = True

    def check(self) -> None:
        """Check that there was something to offer at the start, if the options require it.

        Raises:
            InitError: there was not.
        """
        if self._failure and self._hand_over.fails_without_cards:
            raise InitError(f"--fail-on-init-error is set: {self._failure}")

    def best(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Choose among units that may all be allocated; there must be at least `size`."""
        offer = next((candidate for candidate in self._offers.offers if candidate.resource == resource), None)
        if offer is None or self._spec is None:
            return [*must_include, *available][:size]
        return self._hand_over.access(self._spec).prefer(offer, available, must_include, size)

    def refresh(self) -> None:
        """Offer at once all devices that are not withheld."""
        self._wake.set()

    def reload(self) -> None:
        """Reload the configuration file, and serve and register again."""
        self._restart = True
        self._wake.set()

    @property
    def offers(self) -> Offers:
        """What kubelet is offered now."""
        return self._offers

    @property
    def renames(self) -> bool:
        """Whether replicas of cards are a resource of their own."""
        return self._hand_over.renames

    # --- its life -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Offer devices until cancelled, and remove the sockets at the end.

        Raises:
            CrashLoopError: the sockets break again and again.
        """
        try:
            while True:
                await self._round()
                self._check_kubelet()
                await self._servers.pause(self._wake, self._check_interval)
        finally:
            # The CDI specification stays: containers may be restarted while no agent runs.
            await self._servers.stop()

    def _check_kubelet(self) -> None:
        can_give = self._servers.watched and self._servers.settled and not self._servers.taken
        if can_give != self._kubelet_ready:
            self._kubelet_ready = can_give
            self.on_kubelet()

    async def _round(self) -> None:
        if self._restart:
            await self._reload()
        if self._spec is None:
            return
        try:
            await self._offer(self._spec)
        except MisconfiguredError as error:
            self._set_condition(ok=False, reason="Misconfigured", message=str(error))
        except (ServingError, OSError) as error:
            self._set_condition(ok=False, reason="NotRegistered", message=str(error))
        else:
            if taken := ", ".join(self._servers.taken):
                self._set_condition(ok=False, reason="OtherPlugin", message=_TAKEN.format(resources=taken))
            elif self._offers.offers:
                self._set_condition(ok=True, reason="Registered" if self._settings.kubelet_socket else "Served")
            else:
                message = "the node has no GPU, or none that can be offered"
                self._set_condition(ok=False, reason="NoDevices", message=message)

    async def _offer(self, spec: DeviceSpec) -> None:
        # In each round: a channel or device node may appear long after the cards.
        access = self._hand_over.access(spec)
        try:
            access.check()
            withheld = self._chooser.withheld() | self.kept_for_claims()
            offers = self._hand_over.offers(spec, withheld=withheld)
        except MisconfiguredError:
            self._offers = Offers()
            await self._servers.keep(())
            raise
        for warning in set(offers.warnings).difference(self._offers.warnings):
            _log.warning("not offered", why=warning)
        self._offers = offers
        self._cdi.write(access.cdi())
        handler = GpuHandler(context=access, chooser=self._chooser, refuse_claimed=self.refuse_claimed)
        await self._servers.keep(Service(offer=offer, handler=handler) for offer in offers.offers)

    async def _reload(self) -> None:
        self._restart = False
        try:
            self._hand_over.reload()
        except OptionsError as error:
            _log.error("configuration not read; the last one stays", error=str(error))
            return
        await self._servers.stop()

    def _server(self, service: Service) -> PluginServer:
        def watch_changed() -> None:
            self._check_kubelet()
            self._wake.set()

        return PluginServer(
            service,
            folder=Path(self._settings.kubelet_socket or KUBELET_SOCKET).parent,
            with_numa=self._settings.numa_to_kubelet,
            changed=watch_changed,
            refused=self.on_refusal,
        )

    def _set_condition(self, *, ok: bool, reason: str, message: str = "") -> None:
        finding = Finding(type=names.DEVICES_OFFERED, ok=ok, reason=reason, message=message)
        if (finding,) != self._findings:
            self._findings = (finding,)
            offered = {offer.resource: len(offer.units) for offer in self._offers.offers}
            _log.info(names.DEVICES_OFFERED, ok=ok, reason=reason, message=message, offered=offered)


def _failure(reading: Reading, hand_over: HandOver) -> str:
    """Return why there is nothing to offer; empty where there is."""
    for finding in reading.findings:
        if finding.type == names.DRIVER_LOADED and not finding.ok:
            return f"the driver is not loaded: {finding.reason} {finding.message}".strip()
    try:
        hand_over.offers(reading.spec)
    except MisconfiguredError as error:
        return str(error)
    return ""
