"""A small HTTP server on loopback that acts as an API server, and an authority for its certificates."""

import datetime as dt
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Start = Callable[..., Awaitable["Server"]]


class Server:
    """Answers with `handler`; remembers the requests."""

    def __init__(self) -> None:
        self.handler: Handler = self.echo
        self.seen: list[web.BaseRequest] = []
        self.bodies: list[Any] = []
        self.url = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(orjson.loads(await request.read() or b"null"))
        return await self.handler(request)

    async def echo(self, request: web.BaseRequest) -> web.Response:
        """Answer with the request."""
        answer = {"method": request.method, "path": request.path_qs, "body": self.bodies[-1]}
        return web.json_response({**answer, "headers": dict(request.headers)})

    def always(self, status: int, body: Any = b"", **headers: str) -> None:
        """Return one answer from now on."""

        async def answer(_request: web.BaseRequest) -> web.Response:
            data = body if isinstance(body, bytes) else orjson.dumps(body)
            return web.Response(status=status, body=data, headers=headers)

        self.handler = answer


class Authority:
    """Issues certificates."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.pem = self._sign(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Return a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key.public_key(), x509.SubjectAlternativeName([x509.DNSName(name)]))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate, private

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType) -> bytes:
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


async def started(runners: list[web.ServerRunner], tls: ssl.SSLContext | None = None) -> Server:
    """Start a server, and add its runner to those that the caller ends."""
    made = Server()
    runner = web.ServerRunner(web.Server(made.handle), shutdown_timeout=0.1)
    runners.append(runner)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    made.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    return made
