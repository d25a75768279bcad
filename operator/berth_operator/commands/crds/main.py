"""The command and its calls to the API server."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from berth_api import crd, names
from berth_base import start
from berth_client.credentials import CredentialsError
from berth_client.errors import ApiError, CallError
from berth_client.objects import Object
from berth_operator.clients import logins
from berth_operator.clients.kube import KubeClient

NAME: Final = "berth-operator crds"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLL_SECONDS: Final = 0.2


class DefinitionClient(Protocol):
    """Reads and writes definitions on the API server."""

    async def get(self, path: str, /) -> Object:
        """Return an object."""

    async def apply(self, path: str, body: Mapping[str, Any], field_manager: str, /, *, force: bool) -> Object:
        """Apply an object's fields."""


class DefinitionsError(Exception):
    """The definitions are not in force. The text shows which ones and why."""


def main(arguments: Sequence[str]) -> int:
    """Apply the definitions and wait until the API server has established them; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        asyncio.run(_run(options))
    except (CredentialsError, CallError, DefinitionsError) as error:
        start.give_up(NAME, str(error))
    return 0


async def _run(options: argparse.Namespace) -> None:
    client = await KubeClient.connect(logins.usual_kubeconfig(options.kubeconfig), "berth-operator/crds", limit=4)
    try:
        await apply(client, options.timeout)
    finally:
        client.close()


async def apply(client: DefinitionClient, seconds: float) -> None:
    """Apply every definition, and wait until all are established.

    Definitions of other projects and of later versions of Berth stay unchanged.

    Raises:
        CallError: the API server refused a call or did not answer.
        DefinitionsError: the API server has not accepted the names of a kind in time.
    """
    applied: list[str] = []
    for definition in crd.definitions().values():
        name, existing = definition["metadata"]["name"], None
        try:
            existing = await client.get(f"{DEFINITIONS}/{name}")
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        if existing is not None and crd.is_foreign(existing):
            _report(f"{name} is not Berth's: it is used as it is")
            continue
        if existing is not None and crd.is_newer(existing, definition):
            # For example after a rollback by GitOps. The earlier definition would drop fields of stored objects.
            _report(f"{name} is of a later version of Berth: it stays, because definitions only grow")
            continue
        # Forced, because `kubectl apply -f crds/` may have written the same fields before.
        await client.apply(f"{DEFINITIONS}/{name}", definition, names.OPERATOR, force=True)
        _report(f"{name} {'created' if existing is None else 'applied'}")
        applied.append(name)
    try:
        async with asyncio.timeout(seconds):
            for name in applied:
                while True:
                    conditions = (await client.get(f"{DEFINITIONS}/{name}")).get("status", {}).get("conditions") or ()
                    if ("Established", "True") in (
                        (condition["type"], condition["status"]) for condition in conditions
                    ):
                        break
                    await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise DefinitionsError(
            f"the API server has not established {name} within {seconds:g} s; "
            f"`kubectl describe crd {name}` shows the reason"
        ) from None


def _report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in the arguments as one line."""

    def error(self, message: str) -> NoReturn:
        """End the program."""
        start.give_up(self.prog, message)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = _Parser(prog=NAME, description="Berth's CustomResourceDefinitions, as this version defines them.")
    parser.add_argument(
        "action",
        choices=["apply"],
        help="create or update them; CRDs of a later version and a PodGroup CRD of scheduler-plugins stay unchanged",
    )
    parser.add_argument(
        "--kubeconfig", type=Path, help="kubeconfig file (default: $KUBECONFIG, ~/.kube/config or this pod's account)"
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds until all are established (default: 60)")
    return parser
