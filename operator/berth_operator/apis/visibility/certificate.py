"""The certificate that all replicas share. They serve it, and show it when they relay requests to each other.

The certificate is self-signed, and only replicas have its key. So a client that shows a certificate from the bundle is
a replica. After a renewal, a replica keeps showing the previous certificate until the others have read the new bundle.
"""

import asyncio
import ssl
import tempfile
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from berth_client import trust
from berth_operator.apis.serving.certificates import Pair, Shared

PERIODS: Final = 2.0
"""Periods of the others' checks after which all have the new bundle."""


class ReplicaCertificate:
    """The shared certificate as a source for the server, and as the identity of replicas."""

    def __init__(self, shared: Shared, *, period: float) -> None:
        """Create a source whose replicas read the Secret every `period` seconds."""
        self._shared, self._period = shared, period
        self._bundle = ""
        self._trusted: frozenset[bytes] = frozenset()
        self._shown: Pair | None = None
        self._client_tls: ssl.SSLContext | None = None

    async def current(self) -> bytes:
        """Return the certificate and its key, as PEM; raises the errors of `Shared.current`."""
        pair, bundle = await self._shared.current_with_bundle()
        if bundle != self._bundle:
            self._bundle, self._client_tls = bundle, None
            certificates = x509.load_pem_x509_certificates(bundle.encode())
            self._trusted = frozenset(certificate.public_bytes(Encoding.DER) for certificate in certificates)
        if self._shown is None:
            self._show(pair)
        elif self._shown != pair:
            asyncio.get_running_loop().call_later(PERIODS * self._period, self._show, pair)
        return pair.certificate + pair.key

    @property
    def bundle(self) -> str:
        """Return the certificates (PEM) by which replicas trust each other."""
        return self._bundle

    def is_replica(self, certificate: bytes | None) -> bool:
        """Return whether a client's certificate (DER), which TLS has verified, is one of ours."""
        return certificate is not None and certificate in self._trusted

    def client_tls(self) -> ssl.SSLContext | None:
        """Return the TLS of a client that is a replica; None until there is a certificate."""
        if self._client_tls is None and self._shown is not None:
            tls = trust.client_context(self._bundle.encode())
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "tls.pem"
                file.touch(mode=0o600)
                file.write_bytes(self._shown.certificate + self._shown.key)
                tls.load_cert_chain(file)
            self._client_tls = tls
        return self._client_tls

    def _show(self, pair: Pair) -> None:
        self._shown, self._client_tls = pair, None
