"""The webhook's certificate: from files that somebody else renews, or made here and shared through a Secret.

What is made here signs itself, and the API server is told to trust it (`caBundle`). All replicas serve what the Secret
holds. It is renewed when a third of its time is left, and its predecessor stays trusted until the next renewal: a
replica that still serves the old one, and an API server that has not yet heard of the new one, both understand.
"""

import base64
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from berth_client.client import STRATEGIC
from berth_client.errors import ApiError
from berth_operator.clients.kube import KubeClient

SKEW: Final = timedelta(minutes=5)
"""By how much others' clocks may be behind."""
TRIES: Final = 5
"""Of renewing at the same time as another replica."""
WEBHOOK: Final = "injection.berth.dev"
"""The name of the webhook in its configuration."""


class Source(Protocol):
    """Where the certificate comes from."""

    async def current(self) -> bytes:
        """Return the certificate and its key, as PEM."""


class CertificateError(Exception):
    """There is no certificate; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A certificate in files, which cert-manager or somebody else renews."""

    certificate: Path
    key: Path

    async def current(self) -> bytes:
        """Read it.

        Raises:
            CertificateError: a file cannot be read.
        """
        try:
            return self.certificate.read_bytes() + self.key.read_bytes()
        except OSError as error:
            raise CertificateError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    def is_due(self, now: datetime) -> bool:
        """Return whether less than a third of its time is left, or it cannot be read."""
        try:
            found = x509.load_pem_x509_certificate(self.certificate)
        except ValueError:
            return True
        begun, ends = found.not_valid_before_utc, found.not_valid_after_utc
        return now > ends - (ends - begun) / 3


def issue(host: str, now: datetime, lifetime: timedelta) -> Pair:
    """Make a certificate for a host's name or address that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "berth-webhook")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - min(SKEW, lifetime))
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    return Pair(
        certificate=builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _utc() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A certificate of our own, in a Secret that all replicas share."""

    api: KubeClient
    namespace: str
    secret: str
    configuration: str
    """Name of the MutatingWebhookConfiguration that must trust it."""
    host: str
    """By what name the API server calls the webhook."""
    lifetime: timedelta
    now: Callable[[], datetime] = _utc

    async def current(self) -> bytes:
        """Return it, renewed where that is due, once the API server is told to trust it.

        Raises:
            CertificateError: other replicas renew it all the time.
            ApiError: the API server refused something.
            Unreachable: it did not answer.
        """
        for _ in range(TRIES):
            known = await self._read()
            pair = _pair(known)
            secret = await self._renew(known, pair) if pair.is_due(self.now()) else known
            if secret is not None:
                await self._trust(secret["data"]["ca.crt"])
                pair = _pair(secret)
                return pair.certificate + pair.key
        raise CertificateError(f"Secret {self.namespace}/{self.secret} changed {TRIES} times while it was renewed")

    async def _read(self) -> dict[str, Any]:
        try:
            return await self.api.get(self._path)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return {}

    async def _renew(self, known: dict[str, Any], before: Pair) -> dict[str, Any] | None:
        """Put a new one into the Secret; None if another replica was faster."""
        made = issue(self.host, self.now(), self.lifetime)
        data = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": made.certificate + before.certificate}
        metadata = known.get("metadata") or {"name": self.secret, "namespace": self.namespace}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": metadata,
            "data": {name: base64.b64encode(each).decode() for name, each in data.items()},
        }
        method, path = ("PUT", self._path) if known else ("POST", self._secrets)
        try:
            renewed: dict[str, Any] = await self.api.request(method, path, body=body)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return None
        return renewed

    async def _trust(self, bundle: str) -> None:
        """Tell the API server what to trust, if it does not know it yet."""
        path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{self.configuration}"
        found = await self.api.request("GET", path)
        if any(each["clientConfig"].get("caBundle") != bundle for each in found.get("webhooks") or ()):
            body = {"webhooks": [{"name": WEBHOOK, "clientConfig": {"caBundle": bundle}}]}
            await self.api.request("PATCH", path, body=body, content_type=STRATEGIC)

    @property
    def _secrets(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    @property
    def _path(self) -> str:
        return f"{self._secrets}/{self.secret}"


def _pair(secret: dict[str, Any]) -> Pair:
    data = secret.get("data") or {}
    certificate, key = (base64.b64decode(data.get(name) or "") for name in ("tls.crt", "tls.key"))
    return Pair(certificate=certificate, key=key)
