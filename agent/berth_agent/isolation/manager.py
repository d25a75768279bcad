"""Keep the providers' resources in step with the node, and keep kubelet informed of them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from berth_agent.conditions import Finding
from berth_agent.configuration.options import KUBELET_SOCKET
from berth_agent.configuration.settings import Settings
from berth_agent.isolation.nics import NicProvider, RefuseClaimed
from berth_agent.isolation.provider import ListPods, NodeView, Provider, offer
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.device_plugin.handler import Service
from berth_agent.kubelet.device_plugin.plugin_server import OnRefusal, PluginServer
from berth_agent.kubelet.device_plugin.registration import ServingError
from berth_agent.kubelet.device_plugin.servers import PluginServers
from berth_agent.readings import Reading

CHECK_INTERVAL: Final = 2.0
"""Seconds between two checks of the providers. A check may run a program of the driver twice."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class IsolationManager:
    """The providers of this node and the servers of their resources."""

    def __init__(
        self,
        providers: Sequence[Provider],
        *,
        kubelet: str,
        pods: Callable[[], Iterable[Pod]],
        check_interval: float = CHECK_INTERVAL,
    ) -> None:
        self._providers = providers
        self._pods = pods
        self._check_interval = check_interval
        self._reading: Reading | None = None
        self._labels: Mapping[str, str] = {}
        self._findings: tuple[Finding, ...] = ()
        self._offered: set[str] = set()
        """Resources that were offered: kubelet refuses to start containers again whose resource is gone."""
        self._wake = asyncio.Event()
        folder = Path(kubelet or KUBELET_SOCKET).parent
        self._servers = PluginServers(
            kubelet=Path(kubelet) if kubelet else None,
            make=lambda service: PluginServer(
                service, folder=folder, with_numa=False, changed=self._wake.set, refused=self.on_refusal
            ),
        )
        self.on_change: Callable[[], object] = lambda: None
        """Called when a condition changed."""
        self.on_refusal: OnRefusal = lambda _resource, _why: None
        """Called when kubelet is refused units."""

    def update(self, reading: Reading, labels: Mapping[str, str]) -> None:
        """Follow a reading of the node, and the labels of its Node."""
        self._reading, self._labels = reading, labels

    def refuse_claimed(self, refuse: RefuseClaimed) -> None:
        """Refuse the NICs that ResourceClaims hold from now on."""
        for provider in self._providers:
            if isinstance(provider, NicProvider):
                provider.refuse_claimed = refuse

    def unseen_nics(self, pods: Iterable[Pod]) -> frozenset[str]:
        """Return the PCI addresses of the NICs of pods that are not among these, the pods that the watch shows."""
        providers = (provider for provider in self._providers if isinstance(provider, NicProvider))
        return frozenset(address for provider in providers for address in provider.unseen(pods))

    def view(self, reading: Reading) -> Reading:
        """Return the reading with the conditions of the providers."""
        return replace(reading, findings=(*reading.findings, *self._findings))

    async def run(self) -> None:
        """Serve kubelet until cancelled, and remove the sockets at the end.

        Raises:
            CrashLoopError: the sockets break again and again.
        """
        try:
            while True:
                await self._round()
                await self._servers.pause(self._wake, self._check_interval)
        finally:
            await self._servers.stop()

    async def _round(self) -> None:
        if self._reading is None:
            return
        node = NodeView(spec=self._reading.spec, labels=self._labels, pods=tuple(self._pods()))
        findings: list[Finding] = []
        services = []
        for provider in self._providers:
            status = await provider.check(node)
            findings += status.findings
            # It is served from when it can give something, as long as it is wanted.
            if not status.wanted:
                self._offered.discard(provider.resource)
            elif status.healthy or provider.resource in self._offered:
                self._offered.add(provider.resource)
                units = offer(provider.resource, provider.count(node.spec), healthy=status.healthy)
                services.append(Service(offer=units, handler=provider))
        try:
            await self._servers.keep(services)
        except (ServingError, OSError) as error:
            findings = [
                replace(finding, ok=False, reason="NotRegistered", message=str(error)) if finding.ok else finding
                for finding in findings
            ]
        if tuple(findings) == self._findings:
            return
        self._findings = tuple(findings)
        for finding in findings:
            _log.info(finding.type, ok=finding.ok, reason=finding.reason, message=finding.message)
        self.on_change()


def of(
    settings: Settings,
    *,
    vendors_providers: Sequence[Provider],
    pods: Callable[[], Iterable[Pod]],
    list_pods: ListPods,
) -> IsolationManager | None:
    """Return the manager of the providers of the node's vendor and of those that the settings request; None if none."""
    providers = [*vendors_providers]
    if settings.nics:
        providers.append(
            NicProvider(
                sysfs=settings.sysfs_root,
                kubelet=Path(settings.kubelet_socket or KUBELET_SOCKET).parent,
                cdi_folder=settings.cdi_folder,
                list_pods=list_pods,
                names_nics=settings.nccl_ib_hca,
            )
        )
    return IsolationManager(providers, kubelet=settings.kubelet_socket, pods=pods) if providers else None
