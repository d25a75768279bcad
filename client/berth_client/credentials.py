"""Where the API server is and who we are: by a kubeconfig, or the service account of the pod.

It knows what works without a program or provider beside it: tokens, token files and client certificates. Whatever else
a kubeconfig asks for is an error with the field's name, for a login that is half understood fails later, and says less.
"""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import yaml
from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
UNKNOWN: Final = "extra_forbidden"
"""What pydantic calls the mistake of a field that a model lacks."""


class CredentialsError(Exception):
    """The kubeconfig, or the service account of the pod, cannot be used."""


class UnknownLoginError(CredentialsError):
    """The kubeconfig is sound as far as it is understood, and asks for what only others know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to reach an API server; files are read when they are used."""

    server: str
    """URL without a slash at its end."""
    authority: Path | bytes | None = None
    """Whom the server's certificate must come from; None for those that the system trusts."""
    verified: bool = True
    """Whether the server's certificate is looked at."""
    server_name: str | None = None
    """Name in the server's certificate, where it is not that of the URL."""
    certificate: Path | bytes | None = None
    key: Path | bytes | None = None
    token: Path | str | None = None

    def authorization(self) -> dict[str, str]:
        """Give the header of a request sent now: a token file is read for each, so no rotation is missed.

        Raises:
            OSError: the token file cannot be read.
        """
        found = self.token.read_text() if isinstance(self.token, Path) else self.token or ""
        token = found.strip()
        return {"Authorization": f"Bearer {token}"} if token else {}


def load(kubeconfig: Path | None, *, pod: Path = SERVICE_ACCOUNT) -> Login:
    """Read a kubeconfig, or the service account in the folder `pod` where none is named.

    Raises:
        UnknownLoginError: it asks for what only others know, or there are several.
        CredentialsError: it cannot be used.
    """
    if kubeconfig is None:
        return _tried(of_pod(os.environ, pod))
    file = kubeconfig.expanduser()
    try:
        return _tried(of_kubeconfig(yaml.safe_load(file.read_bytes()), file.parent))
    except UnknownLoginError as error:
        raise UnknownLoginError(f"{kubeconfig}: {error}") from error
    except FileNotFoundError as error:
        if os.pathsep in str(kubeconfig):
            raise UnknownLoginError(f"{kubeconfig}: not supported; supported is a single kubeconfig") from error
        raise CredentialsError(f"{kubeconfig}: no such kubeconfig") from error
    except (CredentialsError, OSError, yaml.YAMLError) as error:
        raise CredentialsError(f"{kubeconfig}: {error}") from error


def tls(login: Login) -> ssl.SSLContext:
    """Make the TLS settings: the cluster's authority, our certificate.

    Raises:
        CredentialsError: a certificate or key cannot be used.
    """
    try:
        context = _trusting(login.authority)
        if login.certificate and login.key:
            with _file(login.certificate) as certificate, _file(login.key) as key:
                context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        raise CredentialsError(f"certificates of {login.server}: {error}") from error
    if not login.verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _trusting(authority: Path | bytes | None) -> ssl.SSLContext:
    if isinstance(authority, bytes):
        return ssl.create_default_context(cadata=authority.decode())
    return ssl.create_default_context(cafile=authority)


@contextlib.contextmanager
def _file(pem: Path | bytes) -> Iterator[Path]:
    """Give the file of a certificate or key; TLS takes nothing else."""
    if isinstance(pem, Path):
        yield pem
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        yield Path(file.name)


def _tried(login: Login) -> Login:
    """Tell at the start, in one line, of a token that cannot be read."""
    try:
        if isinstance(login.token, Path) and not login.authorization():
            raise CredentialsError(f"{login.token}: the token is empty")
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"no token: {error}") from error
    return login


def of_pod(environment: Mapping[str, str], folder: Path) -> Login:
    """Give the login of a pod, as kubelet tells it.

    Raises:
        CredentialsError: this is no pod with a service account.
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
    """Read what the current context of a kubeconfig says; relative paths are seen from its folder.

    Raises:
        UnknownLoginError: it asks for what only others know.
        CredentialsError: it cannot be used.
    """
    if not isinstance(document, dict):
        raise CredentialsError("not a kubeconfig")
    context = _entry(_Context, document, "context", document.get("current-context"))
    cluster = _entry(_Cluster, document, "cluster", context.cluster)
    user = _entry(_User, document, "user", context.user) if context.user else _User()
    if bool(user.client_certificate_data or user.client_certificate) != bool(user.client_key_data or user.client_key):
        raise CredentialsError(f"users[{context.user}]: of client-certificate and client-key one is missing")
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
    """Read the entry of this name; entries that nobody names are not looked at."""
    listed = document.get(f"{kind}s")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    entry = next((each.get(kind) for each in found if each.get("name") == name), None)
    if not name or entry is None:
        raise CredentialsError(f"{kind}s: none is named {name!r}" if name else "current-context: is not set")
    try:
        return shape.model_validate(entry)
    except ValidationError as error:
        told = "; ".join(_plain(f"{kind}s[{name}]", each) for each in error.errors())
        unknown = all(each["type"] == UNKNOWN for each in error.errors())
        raise (UnknownLoginError if unknown else CredentialsError)(told) from error


def _plain(where: str, mistake: ErrorDetails) -> str:
    field = ".".join(map(str, (where, *mistake["loc"])))
    if mistake["type"] == UNKNOWN:
        return f"{field}: not supported; supported are token, tokenFile and client certificates"
    return f"{field}: {mistake['msg'].removeprefix('Value error, ')}"
