"""The command without a name: run the operator."""

import asyncio
import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog
import uvloop

from berth_api import names
from berth_api.plugins import PluginError
from berth_api.request import GpuVendor
from berth_base import logs, request_metrics, start
from berth_base.start import StartError
from berth_client import served
from berth_client.credentials import CredentialsError
from berth_client.served import NotServedError
from berth_operator.apis.serving import listening
from berth_operator.clients.kube import KubeClient
from berth_operator.clients.leader import COPIES, LeaderElection, RestoredError, TermLostError
from berth_operator.core.plugins import NO_GPUS, DevicePlugin
from berth_operator.metrics import counters
from berth_operator.metrics import metrics_server as metrics
from berth_operator.metrics.gauges import GAUGES
from berth_operator.settings import device_plugins
from berth_operator.settings.configuration import Configuration, ConfigurationError
from berth_operator.settings.flags import Settings

if TYPE_CHECKING:
    from berth_operator.app import App

Plugins = Mapping[str, DevicePlugin]

NAME: Final = "berth-operator"
OTHERS: Final = ("BERTH_AGENT_", "BERTH_WEBHOOK_", "BERTH_API_", "BERTH_CLEANUP_")
"""Prefixes of the variables of other programs."""

COLLECT: Final = (5_000, 10, 160)
"""Thresholds of `gc`: net new objects before a collection, and collections before a collection of older objects.

Nearly all objects of pods stay, so collections of old objects are rare. Collections of young objects scan few at a
time, at most 50,000, because they block the loop: 400,000 took 95 ms.
"""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def operate(
    settings: Settings, configuration: Configuration, plugins: Plugins, gpus: Mapping[str, GpuVendor] = NO_GPUS
) -> int:
    """Run the operator until its end; return the exit status."""
    running = asyncio.current_task()
    assert running is not None  # noqa: S101 - a coroutine runs in a task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    try:
        async with contextlib.AsyncExitStack() as stack:
            # A client of its own, so that renewals never queue behind a thousand binds.
            lease_client = await KubeClient.connect(settings.kubeconfig, "berth-operator/election", limit=COPIES)
            lease_client.observe = request_metrics.observe
            lease_client.refused = GAUGES.writes
            stack.callback(lease_client.close)
            lease_client.check_for_kopf()
            await served.check(lease_client, names.API_VERSION, ("Device", "GpuPod", names.LEADER_LEASE))
            election = LeaderElection(
                lease_client,
                namespace=settings.namespace,
                name=settings.lease,
                identity=settings.identity,
                address=settings.visibility_endpoint,
                lease_duration=settings.lease_duration,
                renew_deadline=settings.renew_deadline,
                retry_period=settings.retry_period,
            )
            elected = asyncio.create_task(election.run())
            try:
                # Most of the program. Loading it takes half of the pause after a takeover, so it runs during it.
                app = await asyncio.to_thread(importlib.import_module, "berth_operator.app")
                gc.freeze()
                gc.set_threshold(*COLLECT)
                gc.enable()
                client = await KubeClient.connect(settings.kubeconfig, "berth-operator")
                client.observe = request_metrics.observe
                client.versions.on_earlier = election.doubt
                client.known_renewal = lambda: election.known_renewal
                client.refused = GAUGES.writes
                stack.callback(client.close)
                kubernetes = await served.minor_version(client)
                operator: App | None = None

                async def stop() -> None:
                    if operator is not None:
                        await operator.life.stop()

                # What it stops need not end before the LeaderLease is released.
                stack.push_async_callback(stop)
                while True:
                    operator = app.App(
                        settings=settings,
                        configuration=configuration,
                        plugins=plugins,
                        gpus=gpus,
                        client=client,
                        election=election,
                        kubernetes=kubernetes,
                    )
                    await _run_until_restored(operator, election, elected)
                    await stop()
                    operator = None
                    client.versions.forget()
                    # Most of the earlier state was exempt from collection.
                    gc.unfreeze()
                    gc.collect()
            finally:
                # The LeaderLease is released after all that used the term has stopped.
                elected.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await elected
    except asyncio.CancelledError:
        log.info("asked to end")
    except ExceptionGroup as group:
        lost, others = group.split(TermLostError)
        if others is not None:
            raise others from None
        reason = "; ".join(map(str, lost.exceptions)) if lost is not None else ""
        log.warning("ending, so that a new start reads everything again", reason=reason)
        return 1
    return 0


async def _run_until_restored(operator: "App", election: LeaderElection, elected: asyncio.Task[None]) -> None:
    """Run the operator until the API server has shown an earlier state, and agrees with itself again.

    Until then kopf serves probes.
    """
    try:
        await operator.life.run(elected)
    except ExceptionGroup as group:
        _, others = group.split((RestoredError, TermLostError))
        if others is not None or group.subgroup(RestoredError) is None:
            raise
    log.warning("deciding nothing until the API server agrees with itself; then all is listed again")
    counters.EARLIER_STATES.inc()
    counters.DECISIONS_PAUSED.set(1)
    settled = asyncio.create_task(election.settled())
    try:
        await asyncio.wait((settled, elected), return_when=asyncio.FIRST_COMPLETED)
    finally:
        settled.cancel()
        counters.DECISIONS_PAUSED.set(0)
    if elected.done():
        await elected


def main(arguments: Sequence[str]) -> None:
    """Start the operator; a mistake of the user ends it with one line and status 2."""
    start.show_version(NAME, arguments)
    try:
        settings = start.read(Settings, arguments)
        configuration = settings.configuration()
        plugins = device_plugins.installed()
        gpus = device_plugins.gpu_resources(plugins)
        listening.check(settings)
        logs.configure(form=settings.log_format, level=settings.log_level)
        profiles = {
            name: {
                "weights": dict(policy.weights),
                "disabled_filters": sorted(policy.switched_off),
                "card_strategy": policy.card_strategy,
                "claim_strategy": policy.claim_strategy,
                "preemption": policy.preemption,
                "reserve_after": policy.reserve_after,
                "gang_topology_keys": policy.gang_topology_keys,
                "gang_keep_partial": policy.gang_keep_partial,
            }
            for name, policy in configuration.policies.items()
        }
        logs.started(
            settings, os.environ, others=OTHERS, hash=configuration.hash, profiles=profiles, plugins=sorted(plugins)
        )
        metrics.start(settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            sys.exit(runner.run(operate(settings, configuration, plugins, gpus)))
    except (StartError, ConfigurationError, PluginError, CredentialsError, NotServedError) as error:
        start.give_up(NAME, str(error))
