"""`berth-operator cleanup`: its settings and its process."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from berth_api import names
from berth_api.values.printing import printable, printable_lines
from berth_base import start
from berth_base.start import StartError
from berth_client.credentials import CredentialsError
from berth_operator.clients import logins
from berth_operator.clients.kube import KubeClient
from berth_operator.commands.cleanup.sequence import CONCURRENT, Cleanup, CleanupError, Order

NAME: Final = "berth-operator cleanup"
FAILED: Final = 1


class CleanupSettings(BaseSettings):
    """Stop Berth, and remove from the cluster what it wrote to Nodes; run this before the manifests are deleted.

    docs/uninstall.md describes it. It may be run again at any time. The exit status is 1 if a step failed or, with
    --drain, pods have not ended in time. `--version` prints the version.
    """

    model_config = SettingsConfigDict(
        env_prefix="BERTH_CLEANUP_",
        cli_prog_name=NAME,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        use_attribute_docstrings=True,
        frozen=True,
    )

    namespace: str = "berth-system"
    """Namespace of Berth's programs, except the agents."""

    agent_namespace: str = names.AGENT_SYSTEM
    """Namespace of the agents."""

    node_selector: str = ""
    """Label selector of the nodes to clean, like the operator's. For clusters with several operators."""

    drain: bool = False
    """Whether to wait until no pod needs the capacity that stays on nodes for running pods, and then to remove that,
    too."""

    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds to wait until Berth's programs have ended and then, with --drain, until those pods have ended: for each
    of the two."""

    delete_crds: bool = False
    """Whether to delete Berth's CRDs, and with them all Devices, GpuPods and LeaderLeases. PodGroups are deleted only
    if their CRD is Berth's, not scheduler-plugins'."""

    kubeconfig: Path | None = None
    """Kubeconfig file. Default, like kubectl's: $KUBECONFIG, ~/.kube/config or the pod's service account."""


def main(arguments: Sequence[str]) -> int:
    """Clean up; return the exit status."""
    start.show_version(NAME, arguments)
    try:
        settings = start.read(CleanupSettings, arguments)
        return asyncio.run(_run(settings))
    except (StartError, CredentialsError) as error:
        start.give_up(NAME, str(error))


async def _run(settings: CleanupSettings) -> int:
    # Berth's own user agent: the API server derives the field manager from it, so capacity that stays remains Berth's.
    client = await KubeClient.connect(
        logins.usual_kubeconfig(settings.kubeconfig), "berth-operator/cleanup", limit=CONCURRENT
    )
    order = Order(
        namespace=settings.namespace,
        agent_namespace=settings.agent_namespace,
        node_selector=settings.node_selector,
        drain=settings.drain,
        seconds=settings.timeout,
        delete_definitions=settings.delete_crds,
    )
    try:
        has_ended = await Cleanup(api=client, order=order, say=_say).run()
    except CleanupError as error:
        sys.stderr.write("".join(f"{NAME}: {line}\n" for line in printable_lines(str(error)).splitlines()))
        return FAILED
    finally:
        client.close()
    if not has_ended:
        sys.stderr.write(f"{NAME}: nodes still keep capacity for the pods above; run this command again\n")
        return FAILED
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()
