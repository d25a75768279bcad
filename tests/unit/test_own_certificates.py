"""Our own certificates pass the check that Python 3.13 and later make by default."""

import contextlib
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from berth_operator.apis.serving.certificates import issue
from devcluster.control_plane import certificates, front_proxy
from tests.stand_ins.certificates import LOOPBACK, Authority

SELF_SIGNED = {
    "operator": issue("berth.svc", datetime.now(UTC), timedelta(days=1)).certificate,
    "devcluster": certificates.self_signed(["controller.svc"])[0],
}


@pytest.mark.parametrize("pem", SELF_SIGNED.values(), ids=SELF_SIGNED)
def test_a_self_signed_certificate_names_its_key_and_what_it_is_for(pem: bytes) -> None:
    """OpenSSL checks no certificate strictly that is its own authority. Other libraries may."""
    extensions = x509.load_pem_x509_certificate(pem).extensions
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature
    assert usage.key_cert_sign
    own = extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == own


def shake_hands(*, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Do a handshake in memory; raise an SSLError if a side rejects the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname=LOOPBACK),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for side in sides * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert sides[1].version() == "TLSv1.3"


def context(purpose: ssl.Purpose, *, trusted: Path, certificate: Path, key: Path | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cafile=trusted)
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(certificate, key)
    return made


def test_front_proxies_and_the_authority_of_tests_pass_on_both_sides(tmp_path: Path) -> None:
    authority, proxies = Authority(tmp_path), tmp_path / "proxies"
    front_proxy.write(proxies)
    shake_hands(
        server=context(
            ssl.Purpose.CLIENT_AUTH, trusted=proxies / front_proxy.AUTHORITY, certificate=authority.issue("server")
        ),
        client=context(
            ssl.Purpose.SERVER_AUTH,
            trusted=authority.file,
            certificate=proxies / front_proxy.CERTIFICATE,
            key=proxies / front_proxy.KEY,
        ),
    )
