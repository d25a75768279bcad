"""Certificates of servers and clients on this machine."""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_LIFETIME: Final = timedelta(days=365)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    """Return a certificate of a key, yet to be extended and signed; subject and issuer are common names."""
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        subject_name=_name(subject),
        issuer_name=_name(issuer),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(minutes=1),
        not_valid_after=now + _LIFETIME,
    )


def identified(
    certificate: x509.CertificateBuilder,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePublicKey,
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    """Add what clients that check certificates strictly require: key usage and the identifiers of both keys.

    Such clients are Python 3.13 and later, by default.
    """
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        certificate.add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def signed(certificate: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a certificate, signed by a key, as PEM."""
    return certificate.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def private(key: ec.EllipticCurvePrivateKey) -> str:
    """Return a private key as PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def self_signed(names: Sequence[str]) -> tuple[bytes, str]:
    """Return a server's certificate for DNS names, which is its own authority, and its key, both as PEM."""
    key = new_key()
    certificate = builder(names[0][:64], names[0][:64], key)  # a common name has no more characters
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    certificate = certificate.add_extension(alternatives, critical=False)
    certificate = certificate.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = identified(certificate, key.public_key(), key.public_key(), is_authority=True)
    return signed(certificate, key), private(key)


def encoded(certificate: bytes) -> str:
    """Return a certificate as the field `caBundle` has it."""
    return base64.b64encode(certificate).decode()


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
