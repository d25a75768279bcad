"""The operator's login. Like the agent's login, but kubernetes-asyncio reads the kubeconfigs that the agent rejects."""

import os
from pathlib import Path

from berth_client import credentials
from berth_client.credentials import CredentialsError, Login, UnknownLoginError
from berth_client.tokens import TokenSource


async def load(kubeconfig: Path | None) -> TokenSource:
    """Read a kubeconfig, or the service account of this pod without one.

    Raises:
        CredentialsError: the login cannot be used.
    """

    async def read() -> Login:
        return credentials.load(kubeconfig)

    try:
        return TokenSource(login=await read(), renew=read)
    except UnknownLoginError:
        # kubernetes-asyncio takes 0.15 s to load, and in a cluster it is never needed.
        from berth_operator.clients import kubeconfigs  # noqa: PLC0415 - see above

        login, renew = await kubeconfigs.load(str(kubeconfig))
        return TokenSource(login=login, renew=renew)


def usual_kubeconfig(given: Path | None) -> Path | None:
    """Return the kubeconfig that kubectl would use; None for the service account of this pod."""
    if given is not None:
        return given
    if named := os.environ.get("KUBECONFIG"):
        return Path(named)
    usual = Path.home() / ".kube/config"
    return usual if usual.exists() else None


def check_for_kopf(login: Login) -> None:
    """Check that kopf, which opens its own session, can use a login.

    Raises:
        CredentialsError: it cannot.
    """
    if login.server_name:
        raise CredentialsError(
            f'clusters: tls-server-name "{login.server_name}": the operator cannot use it; set `server` to an address '
            "that is in the API server's certificate"
        )
