"""The client certificate with which the API server proves to aggregated API servers that it sends a request."""

from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from devcluster.control_plane import certificates
from devcluster.processes import state

NAME: Final = "front-proxy-client"
"""The certificate's common name, as kubeadm has it."""
AUTHORITY: Final = "front-proxy-ca.crt"
CERTIFICATE: Final = "front-proxy-client.crt"
KEY: Final = "front-proxy-client.key"


def write(folder: Path) -> None:
    """Write an authority, and the certificate and key that it signed, as PEM."""
    folder.mkdir(exist_ok=True)
    authority_key, key = certificates.new_key(), certificates.new_key()
    authority = certificates.builder("front-proxy-ca", "front-proxy-ca", authority_key)
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    public = authority_key.public_key()
    authority = certificates.identified(authority, public, public, is_authority=True)
    client = certificates.builder(NAME, "front-proxy-ca", key)
    client = client.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    client = certificates.identified(client, key.public_key(), public, is_authority=False)
    for file, certificate in ((AUTHORITY, authority), (CERTIFICATE, client)):
        (folder / file).write_bytes(certificates.signed(certificate, authority_key))
    state.write_private(folder / KEY, certificates.private(key))
