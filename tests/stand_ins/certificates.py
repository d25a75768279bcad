"""A certificate authority for tests of TLS."""

import contextlib
import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from devcluster.control_plane import certificates

LOOPBACK = "127.0.0.1"


class Authority:
    """Signs certificates of servers on loopback and of clients."""

    def __init__(
        self, folder: Path, name: str = "authority", *, signer: Self | None = None, is_bare: bool = False
    ) -> None:
        """Write its certificate to a file.

        Args:
            folder: where the files are.
            name: its common name.
            signer: the authority that signs its certificate; by default itself.
            is_bare: whether its certificates lack key usage and key identifiers, as those of old clusters.
        """
        self._folder, self._name, self._is_bare = folder, name, is_bare
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = (signer or self)._build(name, self._key.public_key(), names=[LOOPBACK], is_authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str, *, names: Sequence[str] = (LOOPBACK,), lives: bool = True) -> Path:
        """Write a certificate for this common name and its key to one file; return the file.

        Args:
            name: the common name.
            names: addresses and DNS names of the server.
            lives: whether it is valid today, or has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._build(name, key.public_key(), names=names, is_authority=False, lives=lives)
        file = self._folder / f"{self._name}-{name}.pem"
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(certificate.public_bytes(Encoding.PEM) + pem)
        return file

    def client(self, certificate: Path | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority, with its certificate."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    def _build(
        self, name: str, key: ec.EllipticCurvePublicKey, *, names: Sequence[str], is_authority: bool, lives: bool = True
    ) -> x509.Certificate:
        now, hour = datetime.now(UTC), timedelta(hours=1)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(self._name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * hour)
            .not_valid_after(now + hour if lives else now - hour)
            .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not self._is_bare:
            builder = certificates.identified(builder, key, self._key.public_key(), is_authority=is_authority)
        return builder.sign(self._key, hashes.SHA256())


def _alternative(name: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
