"""A server's certificate: files that cert-manager or another program renews, or self-signed and shared in a Secret.

Berth writes its self-signed certificate to the objects that make the API server call Berth, so that the API server
trusts it. The field is `caBundle` of webhook configurations and APIServices. All replicas serve the certificate in the
Secret. It is renewed when a third of its lifetime is left. The previous certificate stays trusted until the next
renewal, because some replicas may still serve it, and some API servers may not have read the new bundle yet.
"""

import base64
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from berth_client.client import STRATEGIC
from berth_client.errors import ApiError
from berth_client.objects import Object
from berth_operator.clients.kube import KubeClient

SKEW: Final = timedelta(minutes=5)
"""How far the clocks of API servers may be behind ours."""
TRIES: Final = 5
"""Attempts to renew the certificate while other replicas renew it, too."""
KEY_USAGE: Final = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
"""Of a self-signed certificate: in handshakes, and as its own authority."""
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_API_SERVICES: Final = "/apis/apiregistration.k8s.io/v1/apiservices"


class Source(Protocol):
    """A source of the certificate."""

    async def current(self) -> bytes:
        """Return the certificate and its key, as PEM."""


class CertificateError(Exception):
    """The certificate cannot be read or renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A certificate in files, which cert-manager or another program renews."""

    certificate: Path
    key: Path | None = None
    """By default in the certificate's file."""

    async def current(self) -> bytes:
        """Read the certificate and its key, as PEM.

        Raises:
            CertificateError: a file cannot be read.
        """
        try:
            return self.certificate.read_bytes() + (b"" if self.key is None else self.key.read_bytes())
        except OSError as error:
            raise CertificateError(str(error)) from error


class Trusting(Protocol):
    """An object with the bundle by which the API server trusts us."""

    @property
    def path(self) -> str:
        """Return its path on the API server."""

    def change(self, current: Object, bundle: str) -> Object | None:
        """Return a strategic merge patch that sets the bundle; None if it is set."""


@dataclass(frozen=True, slots=True)
class Webhooks:
    """All webhooks of a configuration."""

    kind: Literal["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
    name: str

    @property
    def path(self) -> str:
        """Return the configuration's path."""
        return f"{_ADMISSION}/{self.kind}/{self.name}"

    def change(self, current: Object, bundle: str) -> Object | None:
        """Return a patch of all webhooks; None if all of them have the bundle."""
        webhooks = current.get("webhooks") or ()
        if all(webhook["clientConfig"].get("caBundle") == bundle for webhook in webhooks):
            return None
        return {"webhooks": [{"name": webhook["name"], "clientConfig": {"caBundle": bundle}} for webhook in webhooks]}


@dataclass(frozen=True, slots=True)
class ApiService:
    """An APIService, through which the API server forwards requests."""

    name: str

    @property
    def path(self) -> str:
        """Return its path."""
        return f"{_API_SERVICES}/{self.name}"

    def change(self, current: Object, bundle: str) -> Object | None:
        """Return a patch; None if it has the bundle."""
        return None if current["spec"].get("caBundle") == bundle else {"spec": {"caBundle": bundle}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    def is_due(self, now: datetime) -> bool:
        """Return whether less than a third of the certificate's lifetime is left, or it cannot be read."""
        try:
            certificate = x509.load_pem_x509_certificate(self.certificate)
        except ValueError:
            return True
        begun, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return now > ends - (ends - begun) / 3


def issue(host: str, now: datetime, lifetime: timedelta, *, of_client: bool = False) -> Pair:
    """Return a new self-signed certificate for a host name or address; `of_client` if clients show it, too."""
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if of_client else [])]
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # OpenSSL looks authorities up by their names, and finds but one of several with the same.
    own = (x509.NameAttribute(NameOID.COMMON_NAME, "berth"), x509.NameAttribute(NameOID.SERIAL_NUMBER, f"{serial:x}"))
    name = x509.Name(own)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - min(SKEW, lifetime))
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        # Required by clients that check certificates strictly, such as Python 3.13 and later by default.
        .add_extension(KEY_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
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
    trusting: Sequence[Trusting] = ()
    """The objects that get the bundle. At least one exists, if any are named."""
    component: str = ""
    """The folder in `manifests/components` that has them."""
    host: str
    """Host name or address at which the API server calls us."""
    lifetime: timedelta
    of_client: bool = False
    """Whether replicas also show it when they call each other."""
    now: Callable[[], datetime] = _utc

    async def current(self) -> bytes:
        """Return the certificate, renewed if due, after writing it to the objects that must trust it.

        Raises:
            CertificateError: an object does not exist, other replicas changed the Secret at each attempt, or the Secret
                has no bundle.
            ApiError: the API server refused a request.
            Unreachable: the API server did not answer.
        """
        pair, _ = await self.current_with_bundle()
        return pair.certificate + pair.key

    async def current_with_bundle(self) -> tuple[Pair, str]:
        """Do the same, and return the certificate with the bundle (PEM) that verifies it; raises the same errors."""
        for _ in range(TRIES):
            known = await self._read(self._path)
            pair = _pair(known)
            secret = await self._renew(known, pair) if pair.is_due(self.now()) else known
            if secret is not None:
                # Only the certificates, as PEM without anything else, are trusted.
                try:
                    certificates = x509.load_pem_x509_certificates(_decoded(secret, "ca.crt"))
                except ValueError as error:
                    what = f"Secret {self.namespace}/{self.secret}: ca.crt has no certificates"
                    raise CertificateError(f"{what}; delete the Secret to renew it") from error
                bundle = "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)
                if self.trusting and not any(
                    [await self._write(secret["data"]["ca.crt"], obj) for obj in self.trusting]
                ):
                    paths = ", ".join(obj.path for obj in self.trusting)
                    raise CertificateError(f"there is none of {paths}; apply manifests/components/{self.component}")
                return _pair(secret), bundle
        raise CertificateError(f"Secret {self.namespace}/{self.secret} changed {TRIES} times while it was renewed")

    async def _read(self, path: str) -> dict[str, Any]:
        """Return an object; empty if there is none."""
        try:
            return await self.api.get(path)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return {}

    async def _renew(self, known: dict[str, Any], before: Pair) -> dict[str, Any] | None:
        """Write a new certificate to the Secret and return the Secret; None if another replica was faster."""
        pair = issue(self.host, self.now(), self.lifetime, of_client=self.of_client)
        data = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": pair.certificate + before.certificate}
        metadata = known.get("metadata") or {"name": self.secret, "namespace": self.namespace}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": metadata,
            "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
        }
        method, path = ("PUT", self._path) if known else ("POST", self._secrets)
        try:
            renewed: dict[str, Any] = await self.api.request(method, path, body=body)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return None
        return renewed

    async def _write(self, bundle: str, trusting: Trusting) -> bool:
        """Write the bundle to an object, unless the object already has it; return whether the object exists."""
        current = await self._read(trusting.path)
        if current and (body := trusting.change(current, bundle)) is not None:
            await self.api.request("PATCH", trusting.path, body=body, content_type=STRATEGIC)
        return bool(current)

    @property
    def _secrets(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    @property
    def _path(self) -> str:
        return f"{self._secrets}/{self.secret}"


def _pair(secret: dict[str, Any]) -> Pair:
    return Pair(certificate=_decoded(secret, "tls.crt"), key=_decoded(secret, "tls.key"))


def _decoded(secret: dict[str, Any], name: str) -> bytes:
    """Return a value of a Secret; empty if there is none."""
    return base64.b64decode((secret.get("data") or {}).get(name) or "")
