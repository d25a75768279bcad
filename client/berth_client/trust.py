"""TLS that trusts what Go programs such as kubectl trust: a chain to an authority, the server's name, and the dates.

OpenSSL checks more than Go, and Python's defaults depend on its version. From 3.13 on, `VERIFY_X509_STRICT` refuses
authorities without key identifiers or key usage, which old clusters have (kubernetes-client/python#2394). Before 3.13,
an intermediate authority is refused if the bundle lacks its root.
"""

import ssl
from pathlib import Path


def client_context(authority: Path | bytes | None = None) -> ssl.SSLContext:
    """Return the TLS settings of a client.

    Args:
        authority: certificates (PEM) of the authorities that sign servers' certificates; by default the authorities of
            the system.

    Raises:
        OSError: the file cannot be read, or there are no certificates.
        ValueError: the certificates are not PEM.
    """
    if isinstance(authority, bytes):
        context = ssl.create_default_context(cadata=authority.decode())
    else:
        context = ssl.create_default_context(cafile=authority)
    trust_like_go(context)
    return context


def trust_like_go(context: ssl.SSLContext) -> None:
    """Make a client trust such servers, or a server trust such clients."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
