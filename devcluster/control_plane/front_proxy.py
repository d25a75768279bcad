"""The client certificate by which the API server shows aggregated API servers that a request comes from it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from devcluster.processes import state

NAME: Final = "front-proxy-client"
"""The certificate's common name, as kubeadm has it."""
AUTHORITY: Final = "front-proxy-ca.crt"
CERTIFICATE: Final = "front-proxy-client.crt"
KEY: Final = "front-proxy-client.key"
_LIFETIME: Final = timedelta(days=365)


def write(folder: Path) -> None:
    """Write an authority, and the certificate and key that it signed, as PEM."""
    folder.mkdir(exist_ok=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _builder("front-proxy-ca", "front-proxy-ca", authority_key)
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    client = _builder(NAME, "front-proxy-ca", key)
    client = client.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    for file, builder in ((AUTHORITY, authority), (CERTIFICATE, client)):
        signed = builder.sign(authority_key, hashes.SHA256())
        (folder / file).write_bytes(signed.public_bytes(Encoding.PEM))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    state.write_private(folder / KEY, pem.decode())


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        subject_name=_name(subject),
        issuer_name=_name(issuer),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(minutes=1),
        not_valid_after=now + _LIFETIME,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
