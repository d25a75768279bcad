"""The API server's address and the program's identity, from a kubeconfig or from the pod's service account.

Tokens, token files and client certificates are supported, because they need no other program or provider. Any other
field of a kubeconfig is an error that names the field. A login that is only partly understood would fail later and with
a worse message.
"""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from berth_base import documents
from berth_base.documents import DocumentError
from berth_client import trust

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
UNKNOWN: Final = "extra_forbidden"
"""Pydantic's type of the error for a field that a model lacks."""


class CredentialsError(Exception):
    """The kubeconfig, or the service account of the pod, cannot be used."""


class UnknownLoginError(CredentialsError):
    """The kubeconfig has fields that are not supported here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to reach an API server; files are read when they are used. Secrets are not in its `repr`."""

    server: str
    """URL without a slash at its end."""
    authority: Path | bytes | None = None
    """Certificates of the authority that signed the server's certificate; None for the system's authorities."""
    verified: bool = True
    """Whether the server's certificate is verified."""
    server_name: str | None = None
    """Name in the server's certificate, if it differs from the URL's name."""
    certificate: Path | bytes | None = None
    key: Path | bytes | None = field(default=None, repr=False)
    token: Path | str | None = field(default=None, repr=False)
    proxy: str | None = field(default=None, repr=False)
    """URL of the HTTP proxy to connect through, with its password if it has one."""

    def authorization(self) -> str | None:
        """Return the Authorization header; a token file is read now.

        Raises:
            OSError: the token file cannot be read.
        """
        text = self.token.read_text() if isinstance(self.token, Path) else self.token or ""
        token = text.strip()
        return f"Bearer {token}" if token else None


def own_namespace(pod: Path = SERVICE_ACCOUNT) -> str:
    """Return the namespace of the pod that this process runs in; empty outside of a pod."""
    try:
        return (pod / "namespace").read_text().strip()
    except FileNotFoundError:
        return ""


def load(kubeconfig: Path | None, *, pod: Path = SERVICE_ACCOUNT) -> Login:
    """Read a kubeconfig, or without one the service account in the folder `pod`.

    Raises:
        UnknownLoginError: the kubeconfig has fields that are not supported here, or there are several kubeconfigs.
        CredentialsError: the login cannot be used.
    """
    if kubeconfig is None:
        return _checked(of_pod(os.environ, pod))
    file = kubeconfig.expanduser()
    try:
        return _checked(of_kubeconfig(documents.read(file.read_bytes()), file.parent))
    except UnknownLoginError as error:
        raise UnknownLoginError(f"{kubeconfig}: {error}") from error
    except FileNotFoundError as error:
        if os.pathsep in str(kubeconfig):
            raise UnknownLoginError(f"{kubeconfig}: not supported; supported is a single kubeconfig") from error
        raise CredentialsError(f"{kubeconfig}: no such kubeconfig") from error
    except (CredentialsError, OSError, DocumentError) as error:
        raise CredentialsError(f"{kubeconfig}: {error}") from error


def tls(login: Login) -> ssl.SSLContext:
    """Return the TLS settings: the cluster's authority, our certificate.

    Raises:
        CredentialsError: a certificate or key cannot be used.
    """
    try:
        context = trust.client_context(login.authority)
        if login.certificate and login.key:
            with _file(login.certificate) as certificate, _file(login.key) as key:
                context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        raise CredentialsError(f"certificates of {login.server}: {error}") from error
    if not login.verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.contextmanager
def _file(pem: Path | bytes) -> Iterator[Path]:
    """Yield the file of a certificate or key; `ssl` accepts only files."""
    if isinstance(pem, Path):
        yield pem
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        yield Path(file.name)


def _checked(login: Login) -> Login:
    """Return the login; raise a `CredentialsError` now if its token cannot be read."""
    try:
        if isinstance(login.token, Path) and not login.authorization():
            raise CredentialsError(f"{login.token}: the token is empty")
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"no token: {error}") from error
    return login


def of_pod(environment: Mapping[str, str], folder: Path) -> Login:
    """Return the login of a pod, from the variables and files that kubelet provides.

    Raises:
        CredentialsError: this is not a pod with a service account.
    """
    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    if not host or not port:
        raise CredentialsError("no --kubeconfig, and no pod either: KUBERNETES_SERVICE_HOST and _PORT are not set")
    bracketed = f"[{host}]" if ":" in host else host
    return Login(server=f"https://{bracketed}:{port}", authority=folder / "ca.crt", token=folder / "token")


# --- kubeconfig -------------------------------------------------------------------------------------------------


def _is_url(text: str) -> str:
    if not text.startswith(("https://", "http://")):
        raise ValueError("must begin with https:// or http://")
    return text.rstrip("/")


class _Fields(BaseModel):
    """One entry of a kubeconfig."""

    model_config = ConfigDict(extra="forbid", alias_generator=lambda name: name.replace("_", "-"), frozen=True)


class _Cluster(_Fields):
    server: Annotated[str, AfterValidator(_is_url)]
    certificate_authority: Path | None = None
    certificate_authority_data: Base64Bytes | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    disable_compression: bool = False
    extensions: Any = None


class _User(_Fields):
    client_certificate: Path | None = None
    client_certificate_data: Base64Bytes | None = None
    client_key: Path | None = None
    client_key_data: Base64Bytes | None = None
    token: str | None = None
    token_file: Path | None = Field(default=None, alias="tokenFile")
    extensions: Any = None


class _Context(_Fields):
    cluster: str
    user: str = ""
    namespace: str = ""
    extensions: Any = None


_F = TypeVar("_F", bound=_Fields)
Kind = Literal["cluster", "user", "context"]


def of_kubeconfig(document: Any, folder: Path) -> Login:
    """Return the login of a kubeconfig's current context; relative paths start from its folder.

    Raises:
        UnknownLoginError: the kubeconfig has fields that are not supported here.
        CredentialsError: the kubeconfig cannot be used.
    """
    if not isinstance(document, dict):
        raise CredentialsError("not a kubeconfig")
    context = _entry(_Context, document, "context", document.get("current-context"))
    cluster = _entry(_Cluster, document, "cluster", context.cluster)
    user = _entry(_User, document, "user", context.user) if context.user else _User()
    if bool(user.client_certificate_data or user.client_certificate) != bool(user.client_key_data or user.client_key):
        raise CredentialsError(f"users[{context.user}]: set both client-certificate and client-key, or neither")
    return Login(
        server=cluster.server,
        authority=cluster.certificate_authority_data or _below(folder, cluster.certificate_authority),
        verified=not cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        certificate=user.client_certificate_data or _below(folder, user.client_certificate),
        key=user.client_key_data or _below(folder, user.client_key),
        token=_below(folder, user.token_file) or user.token,
    )


def _below(folder: Path, path: Path | None) -> Path | None:
    return folder / path if path else None


def _entry(shape: type[_F], document: Mapping[str, Any], kind: Kind, name: Any) -> _F:
    """Read the entry of this name; the current context names no other, so no other is read."""
    listed = document.get(f"{kind}s")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    entry = next((entry.get(kind) for entry in entries if entry.get("name") == name), None)
    if not name or entry is None:
        raise CredentialsError(f"{kind}s: none is named {name!r}" if name else "current-context: is not set")
    try:
        return shape.model_validate(entry)
    except ValidationError as error:
        text = "; ".join(_plain(f"{kind}s[{name}]", problem) for problem in error.errors())
        is_unknown = all(problem["type"] == UNKNOWN for problem in error.errors())
        raise (UnknownLoginError if is_unknown else CredentialsError)(text) from error


def _plain(entry: str, problem: ErrorDetails) -> str:
    field = ".".join(map(str, (entry, *problem["loc"])))
    if problem["type"] == UNKNOWN:
        return f"{field}: not supported; supported are token, tokenFile and client certificates"
    return f"{field}: {problem['msg'].removeprefix('Value error, ')}"
