"""`simulate` and `advise`: the operator's functions on what the user may read, through kubectl."""

import argparse
import asyncio
import functools
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from berth_api import names
from berth_api.plugins import PluginError
from berth_client.errors import ApiError, CallError, Unreachable
from berth_kubectl.errors import ANSWERED, NEGATIVE, CommandError, ReadError
from berth_kubectl.printing.output import Output
from berth_kubectl.transport.proxy import Proxy
from berth_kubectl.transport.request import Request
from berth_operator.commands import preparing, reports, snapshots, tables
from berth_operator.commands.errors import InputError
from berth_operator.commands.planning import Planner
from berth_operator.commands.preparing import Inputs
from berth_operator.settings.configuration import ConfigurationError
from berth_operator.state.watches import snapshot

PAGE: Final = "2000"
"""Objects of a page: few requests, in the memory of a desktop."""
READS: Final = "it lists all that scheduling reads: nodes, Devices, pods, volumes, claims, budgets and more"


def of_snapshot(options: argparse.Namespace) -> Planner:
    """Return a planner of the snapshot that the options name.

    Raises:
        CommandError: a file is invalid.
    """
    return _planner(options, functools.partial(snapshots.load, Path(options.snapshot)))


def of_cluster(options: argparse.Namespace, proxy: Proxy) -> Planner:
    """Return a planner of what scheduling reads of the cluster.

    Raises:
        CommandError: a list could not be read, or a file is invalid.
    """
    taken = snapshot.taken(
        functools.partial(_get_page, proxy),
        node_selector=options.node_selector,
        agent_namespace=names.LEASE_NAMESPACE,
    )
    try:
        return _planner(options, lambda into: asyncio.run(into.put_all(taken)))
    except CallError as error:
        why = error.message if isinstance(error, ApiError) else str(error)
        raise CommandError(f"{why}; {READS}") from error


def _planner(options: argparse.Namespace, read: Callable[[snapshot.Snapshot], None]) -> Planner:
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    inputs = Inputs(
        file=options.file or "",
        config=Path(options.config) if options.config else None,
        trusted_schedulers=options.trusted_schedulers,
        namespace=options.namespace,
    )
    try:
        return preparing.planner(inputs, read)
    except (InputError, ConfigurationError, PluginError) as error:
        raise CommandError(str(error)) from error


def simulate(options: argparse.Namespace, plan: Planner, to: Output) -> int:
    """Print whether and where the pods of a workload would fit."""
    answer = plan.simulate(options.without)
    report = reports.of_simulation(answer)
    if to.form:
        to.document(report)
    else:
        tables.show_simulation(report, tables.console())
    return ANSWERED if answer.fits else NEGATIVE


def advise(options: argparse.Namespace, plan: Planner, to: Output) -> int:
    """Print which pods to move so that a pod fits."""
    try:
        report = reports.of_advice(*plan.advise(f"{options.namespace}/{options.pod}" if options.pod else ""))
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
