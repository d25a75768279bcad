"""`berth-operator simulate`, `advise`, `snapshot`, `migrate` and `defragment`: commands for users.

Only `defragment` writes: it nominates a node for a pod, and the operator does the rest.

Exit status: 0 if all pods fit, 1 if some do not, 2 if an input is invalid or cannot be read. `migrate` ends with 0 if
nothing is lost, 1 if something is lost or impossible, 2 if something could not be read.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final, NoReturn

import orjson
import structlog

from berth_api import arguments
from berth_api.plugins import PluginError
from berth_api.values.printing import printable, printable_lines
from berth_base import start
from berth_client import served
from berth_client.credentials import CredentialsError
from berth_client.errors import ApiError, CallError
from berth_operator.clients import logins
from berth_operator.clients.kube import KubeClient
from berth_operator.commands import defragmenting, effective, preparing, reports, snapshots, tables
from berth_operator.commands.effective import Given, Served
from berth_operator.commands.errors import InputError
from berth_operator.commands.migrate import live, running
from berth_operator.commands.migrate.live import ListedKind, Lists, UnreadList
from berth_operator.commands.planning import Planner
from berth_operator.commands.preparing import Inputs, Origin
from berth_operator.core.decision.cycle import Failure
from berth_operator.settings.configuration import ConfigurationError
from berth_operator.state.watches import snapshot

ALL_FIT: Final = 0
SOME_DO_NOT: Final = 1
NOT_ASKED: Final = 2


def main(arguments: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    options = parser().parse_args(arguments)
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    try:
        status: int = options.answer(options)
    except (InputError, ConfigurationError, PluginError, CallError) as error:
        sys.stderr.write(f"berth-operator {options.command}: {printable_lines(str(error))}\n")
        return NOT_ASKED
    return status


# --- the commands -------------------------------------------------------------------------------------------


def _simulate(options: argparse.Namespace) -> int:
    answer = _planner(options).simulate(options.without)
    report, write = reports.of_simulation(answer), tables.console()
    _print_json(report) if options.output == "json" else tables.show_simulation(report, write, waiting=options.waiting)
    return ALL_FIT if answer.fits else SOME_DO_NOT


def _advise(options: argparse.Namespace) -> int:
    plan = _planner(options)
    pod, advice = plan.advise(options.pod)
    report = reports.of_advice(pod, advice, plan.claims(pod))
    _print_json(report) if options.output == "json" else tables.show_advice(report, tables.console())
    return ALL_FIT if report["fits"] else SOME_DO_NOT


def _defragment(options: argparse.Namespace) -> int:
    """Show which pods would be moved. Unless it is a dry run, the operator then moves them."""
    pod, advice, first = _planner(options).defragment(options.pod, options.at_once)
    report, write = reports.of_defragmentation(pod, advice, first), tables.console()
    _print_json(report) if options.output == "json" else tables.show_defragmentation(report, write)
    if options.dry_run or not first or isinstance(advice.result, Failure):
        return ALL_FIT if report["fits"] and (first or not advice.moves) else SOME_DO_NOT
    node = advice.result.node

    async def move() -> tuple[bool, str]:
        async with _client(options) as client:
            return await defragmenting.make_room(client, pod, node, timeout=options.timeout)

    is_done, message = asyncio.run(move())
    sys.stderr.write(f"{printable(message)}\n")
    return ALL_FIT if is_done else SOME_DO_NOT


def _snapshot(options: argparse.Namespace) -> int:
    """Write the lines of all objects; none is written unless all could be read."""

    async def read() -> list[bytes]:
        answer = await _served(options, ())
        given = Given(node_selector=options.node_selector, agent_namespace=options.agent_namespace)
        settings = effective.combined(given, answer)
        taken = _taken(options, settings.node_selector, settings.agent_namespace)
        return [
            snapshots.operator(answer.settings, node_selector=settings.node_selector, now=time.time()),
            *[snapshots.line(kind, obj) async for kind, obj in taken],
        ]

    lines = asyncio.run(read())
    sys.stdout.buffer.writelines([snapshots.head(), *lines])
    return ALL_FIT


def _migrate(options: argparse.Namespace) -> int:
    async def get_all(paths: Sequence[str]) -> list[live.Object | UnreadList]:
        answers: list[live.Object | UnreadList] = []
        async with _client(options) as client:
            for path in paths:
                try:
                    answers.append(await client.get(path, {}))
                except ApiError as error:
                    answers.append(UnreadList(why=error.message, missing=error.status == HTTPStatus.NOT_FOUND))
        return answers

    def read(kinds: Sequence[ListedKind]) -> Lists:
        return live.read(lambda paths: asyncio.run(get_all(paths)), kinds, options.namespace)

    return running.run(options, read)


def _planner(options: argparse.Namespace) -> Planner:
    inputs = Inputs(
        file=options.file or "",
        pod=options.pod,
        settings=Given(
            config=options.config,
            genius_priorities=options.genius_priorities,
            trusted_schedulers=options.trusted_schedulers,
            node_selector=options.node_selector,
            agent_namespace=options.agent_namespace,
            memory_units=options.memory_units,
            gpu_vendors=options.gpu_vendors,
        ),
        namespace=options.namespace,
        min_age=options.min_age,
    )
    if options.snapshot:
        origin = preparing.of_file(options.snapshot)
    else:
        origin = Origin(
            ask=lambda namespaces: asyncio.run(_served(options, namespaces)),
            read=lambda into, settings: asyncio.run(
                into.put_all(_taken(options, settings.node_selector, settings.agent_namespace))
            ),
        )
    plan, note = preparing.planner(inputs, origin)
    if note:
        sys.stderr.write(f"berth-operator {options.command}: note: {printable(note)}\n")
    return plan


async def _served(options: argparse.Namespace, namespaces: Collection[str]) -> Served:
    async with _client(options) as client:
        return await effective.ask(client.get, namespaces)


async def _taken(
    options: argparse.Namespace, node_selector: str, agent_namespace: str
) -> AsyncIterator[tuple[str, snapshot.Object]]:
    async with _client(options) as client:
        if (minor := await served.minor_version(client)) is not None:
            yield snapshot.VERSION, {"metadata": {}, "minor": minor}
        taken = snapshot.taken(client.get, node_selector=node_selector, agent_namespace=agent_namespace)
        async for kind_and_object in taken:
            yield kind_and_object


@asynccontextmanager
async def _client(options: argparse.Namespace) -> AsyncIterator[KubeClient]:
    login = logins.usual_kubeconfig(options.kubeconfig)
    try:
        client = await KubeClient.connect(login, "berth-operator/commands", limit=4)
    except CredentialsError as error:
        raise InputError(str(error)) from error
    try:
        yield client
    finally:
        client.close()


def _print_json(report: reports.Report) -> None:
    sys.stdout.buffer.write(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")


# --- arguments ----------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in the arguments as one line."""

    def error(self, message: str) -> NoReturn:
        """End the program."""
        start.give_up(self.prog, message)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the commands."""
    parser = _Parser(
        prog="berth-operator",
        description="Commands about a cluster; docs/simulation.md and docs/defragmentation.md explain them.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    cluster = _Parser(add_help=False)
    cluster.add_argument(
        "--kubeconfig", type=Path, help="kubeconfig file (default: $KUBECONFIG, ~/.kube/config or this pod's account)"
    )
    scheduling = _Parser(add_help=False, parents=[cluster])
    scheduling.add_argument("--node-selector", help="label selector of the nodes to use, like the operator's")
    scheduling.add_argument("--agent-namespace", help="namespace of the agents' Leases, like the operator's")
    asking = _Parser(add_help=False, parents=[scheduling])
    asking.add_argument("--snapshot", type=Path, help="read a file that `snapshot` wrote, not the live cluster")
    asking.add_argument("--config", type=Path, help="BerthSchedulerConfiguration file (default: the operator's)")
    asking.add_argument(
        "--trusted-schedulers", help="other schedulers whose allocations are trusted, like the operator's"
    )
    asking.add_argument(
        "--genius-priorities", help="the highest genius/priority of each namespace, like the operator's"
    )
    asking.add_argument("--memory-units", help="the unit of memory in other systems' resources, like the operator's")
    asking.add_argument("--gpu-vendors", help="the vendors of GPUs for kubernetes.io/gpu, like the operator's")
    asking.add_argument("-n", "--namespace", default="default", help="namespace of objects that name none")
    asking.add_argument("-o", "--output", choices=["table", "json"], default="table")
    asking.set_defaults(min_age=0.0, file="", pod="")

    simulate = commands.add_parser(
        "simulate", parents=[asking], help="show whether and where pods would fit, and what would stay free"
    )
    arguments.simulate(simulate)
    simulate.set_defaults(answer=_simulate)

    advise = commands.add_parser("advise", parents=[asking], help="show which few pods to move so that a pod fits")
    which = advise.add_mutually_exclusive_group(required=True)
    which.add_argument("-f", "--file", help="the pod: YAML or JSON, - for standard input")
    which.add_argument("--pod", default="", help="namespace/name of a pod that waits in the cluster")
    advise.set_defaults(answer=_advise)

    move = commands.add_parser(
        "defragment", parents=[asking], help="move the few pods that allow it so that a pod fits"
    )
    move.add_argument("--pod", required=True, help="namespace/name of a pod that waits in the cluster")
    move.add_argument("--dry-run", action="store_true", help="only show which pods would be moved")
    move.add_argument(
        "--at-once", type=_positive, default=1, help="pods to move at once, like the operator's --defragment"
    )
    move.add_argument("--min-age", type=float, default=600.0, help="seconds, like the operator's --defragment-min-age")
    move.add_argument("--timeout", type=float, default=600.0, help="seconds to wait until the pod is bound")
    move.set_defaults(answer=_defragment)

    migrate = commands.add_parser(
        "migrate",
        parents=[cluster],
        help="convert manifests of other systems to Berth's names, and show how to move a cluster",
    )
    arguments.migrate(migrate)
    migrate.add_argument("-n", "--namespace", default="", help="namespace of the live cluster (default: all)")
    migrate.add_argument(
        "--cluster", dest="takeover", action="store_true", help="show how to move the live cluster, node by node"
    )
    migrate.add_argument("--memory-units", help="the unit of memory in other systems' resources, like the operator's")
    migrate.set_defaults(answer=_migrate)

    take = commands.add_parser("snapshot", parents=[scheduling], help="write what scheduling reads, as JSON lines")
    take.set_defaults(answer=_snapshot)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f'"{text}"; allowed are whole numbers from 1')
    return int(text)
