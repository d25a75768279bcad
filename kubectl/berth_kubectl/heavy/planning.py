"""`simulate` and `advise`: run the operator's functions on what the user may read through kubectl."""

import argparse
import asyncio
import functools
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from berth_api.plugins import PluginError
from berth_client.errors import ApiError, CallError, Unreachable
from berth_kubectl.errors import ANSWERED, NEGATIVE, CommandError, ReadError
from berth_kubectl.printing.output import Output
from berth_kubectl.transport.proxy import Proxy
from berth_kubectl.transport.request import Request
from berth_operator.commands import effective, preparing, reports, tables
from berth_operator.commands.effective import Effective, Given
from berth_operator.commands.errors import InputError
from berth_operator.commands.planning import Planner
from berth_operator.commands.preparing import Inputs, Origin
from berth_operator.settings.configuration import ConfigurationError
from berth_operator.state.watches import snapshot

PAGE: Final = "2000"
"""Objects of a page: few requests, in the memory of a desktop."""
READS: Final = "it lists all that scheduling reads: nodes, Devices, pods, volumes, claims, budgets and more"


def of_snapshot(options: argparse.Namespace) -> tuple[Planner, str]:
    """Return a planner of the snapshot that the options name, and a note about settings that are assumed.

    Raises:
        CommandError: a file is invalid.
    """
    return _planner(options, preparing.of_file(Path(options.snapshot)))


def of_cluster(options: argparse.Namespace, proxy: Proxy) -> tuple[Planner, str]:
    """Return a planner of what scheduling reads of the cluster, and a note about settings that are assumed.

    Raises:
        CommandError: a list could not be read, or a file is invalid.
    """
    get = functools.partial(_get_page, proxy)

    def read(into: snapshot.Snapshot, settings: Effective) -> None:
        taken = snapshot.taken(get, node_selector=settings.node_selector, agent_namespace=settings.agent_namespace)
        asyncio.run(into.put_all(taken))

    try:
        return _planner(options, Origin(ask=lambda namespaces: asyncio.run(effective.ask(get, namespaces)), read=read))
    except CallError as error:
        why = error.message if isinstance(error, ApiError) else str(error)
        raise CommandError(f"{why}; {READS}") from error


def _planner(options: argparse.Namespace, origin: Origin) -> tuple[Planner, str]:
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    inputs = Inputs(
        file=options.file or "",
        pod=_pod(options),
        settings=Given(
            config=Path(options.config) if options.config else None,
            genius_priorities=options.genius_priorities,
            trusted_schedulers=options.trusted_schedulers,
            node_selector=options.node_selector,
            agent_namespace=options.agent_namespace,
            memory_units=options.memory_units,
            gpu_vendors=options.gpu_vendors,
        ),
        namespace=options.namespace,
    )
    try:
        return preparing.planner(inputs, origin)
    except (InputError, ConfigurationError, PluginError) as error:
        raise CommandError(str(error)) from error


def _pod(options: argparse.Namespace) -> str:
    """Return namespace/name of the pod of the cluster that a command is about; empty for none."""
    pod: str = getattr(options, "pod", "")
    return pod if not pod or "/" in pod else f"{options.namespace}/{pod}"


def simulate(options: argparse.Namespace, plan: Planner, to: Output) -> int:
    """Print whether and where the pods of a workload would fit.

    Raises:
        CommandError: the file has no pods, and nothing else is asked.
    """
    answer = plan.simulate(options.without)
    if not (answer.pods or answer.left_out or options.waiting or options.without):
        why = "; ".join((f"{options.file}: no Pod, and no workload that makes pods", *answer.notes))
        raise CommandError(why)
    report = reports.of_simulation(answer)
    if to.form:
        to.document(report)
    else:
        tables.show_simulation(report, tables.console(), waiting=options.waiting)
    return ANSWERED if answer.fits else NEGATIVE


def advise(options: argparse.Namespace, plan: Planner, to: Output) -> int:
    """Print which pods to move so that a pod fits."""
    try:
        report = reports.of_advice(*plan.advise(_pod(options)))
    except InputError as error:
        raise CommandError(str(error)) from error
    if to.form:
        to.document(report)
    else:
        tables.show_advice(report, tables.console())
    return ANSWERED if report["fits"] else NEGATIVE


async def _get_page(proxy: Proxy, path: str, params: Mapping[str, str]) -> Any:
    request = Request(path=path, query=tuple({**params, "limit": PAGE}.items()))
    try:
        return await asyncio.to_thread(proxy.get, request)
    except ReadError as error:
        if not error.status:
            raise Unreachable(str(error)) from error
        raise ApiError(error.status, error.reason, str(error)) from error
