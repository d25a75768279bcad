"""How operator and agent read a kubeconfig and a pod's service account."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_client import credentials
from berth_client.credentials import CredentialsError, Login

FOLDER = Path("/etc/berth")
SERVER = "https://10.0.0.1:6443"
TOKEN = "abc"  # noqa: S105 -- opens nothing


def kubeconfig(*, user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    """Compose one whose current context has this cluster and user, next to others that could not be used."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "here",
        "contexts": [
            {"name": "there", "context": {"cluster": "away", "user": "cloud"}},
            {"name": "here", "context": {"cluster": "own", "user": "agent", "namespace": "default"}},
        ],
        "clusters": [
            {"name": "away", "cluster": {"proxy-url": "http://proxy"}},
            {"name": "own", "cluster": {"server": SERVER, **cluster}},
        ],
        "users": [
            {"name": "cloud", "user": {"exec": {"command": "cloud-login"}}},
            {"name": "agent", "user": user or {}},
        ],
    }


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


@pytest.mark.parametrize(
    ("cluster", "user", "expected"),
    [
        pytest.param({}, {}, Login(server=SERVER), id="nothing"),
        pytest.param({"server": f"{SERVER}/k8s/c-1/"}, {}, Login(server=f"{SERVER}/k8s/c-1"), id="below-a-path"),
        pytest.param({"server": "http://[::1]:80"}, {}, Login(server="http://[::1]:80"), id="without-tls"),
        pytest.param(
            {"certificate-authority": "ca.crt"}, {}, Login(server=SERVER, authority=FOLDER / "ca.crt"), id="ca-file"
        ),
        pytest.param(
            {"certificate-authority": "/ca.crt"}, {}, Login(server=SERVER, authority=Path("/ca.crt")), id="absolute"
        ),
        pytest.param(
            {"certificate-authority": "no", "certificate-authority-data": encoded(b"CA")},
            {},
            Login(server=SERVER, authority=b"CA"),
            id="data-before-file",
        ),
        pytest.param(
            {"insecure-skip-tls-verify": True, "tls-server-name": "kube"},
            {},
            Login(server=SERVER, verified=False, server_name="kube"),
            id="another-name",
        ),
        pytest.param({}, {"token": TOKEN}, Login(server=SERVER, token=TOKEN), id="token"),
        pytest.param({}, {"tokenFile": "token"}, Login(server=SERVER, token=FOLDER / "token"), id="token-file"),
        pytest.param(
            {},
            {"token": "abc", "tokenFile": "/token"},
            Login(server=SERVER, token=Path("/token")),
            id="file-before-token",
        ),
        pytest.param(
            {},
            {"client-certificate": "me.crt", "client-key-data": encoded(b"KEY")},
            Login(server=SERVER, certificate=FOLDER / "me.crt", key=b"KEY"),
            id="certificate",
        ),
        pytest.param(
            {"extensions": [{"name": "x"}], "disable-compression": True}, {}, Login(server=SERVER), id="of-no-matter"
        ),
    ],
)
def test_a_kubeconfig_says_how_to_log_in(cluster: dict[str, Any], user: dict[str, Any], expected: Login) -> None:
    assert credentials.of_kubeconfig(kubeconfig(user=user, **cluster), FOLDER) == expected


UNSUPPORTED = "not supported; supported are token, tokenFile and client certificates"


@pytest.mark.parametrize(
    ("cluster", "user", "message"),
    [
        pytest.param({}, {"exec": {"command": "x"}}, f"users[agent].exec: {UNSUPPORTED}", id="exec"),
        pytest.param({}, {"auth-provider": {}}, f"users[agent].auth-provider: {UNSUPPORTED}", id="auth-provider"),
        pytest.param(
            {},
            {"username": "a", "password": "secret"},
            f"users[agent].username: {UNSUPPORTED}; users[agent].password: {UNSUPPORTED}",
            id="basic",
        ),
        pytest.param({}, {"as": "admin"}, f"users[agent].as: {UNSUPPORTED}", id="impersonation"),
        pytest.param({"proxy-url": "http://p"}, {}, f"clusters[own].proxy-url: {UNSUPPORTED}", id="proxy"),
        pytest.param({"server": "10.0.0.1"}, {}, "clusters[own].server: must begin with https:// or http://", id="url"),
        pytest.param({"server": None}, {}, "clusters[own].server: Input should be a valid string", id="no-server"),
        pytest.param(
            {},
            {"client-certificate": "x"},
            "users[agent]: set both client-certificate and client-key, or neither",
            id="no-key",
        ),
        pytest.param(
            {},
            {"client-key": "x"},
            "users[agent]: set both client-certificate and client-key, or neither",
            id="key-alone",
        ),
    ],
)
def test_what_an_agent_cannot_use_is_named(cluster: dict[str, Any], user: dict[str, Any], message: str) -> None:
    with pytest.raises(CredentialsError) as raised:
        credentials.of_kubeconfig(kubeconfig(user=user, **cluster), FOLDER)
    assert str(raised.value) == message


def test_no_secret_stands_in_an_error() -> None:
    with pytest.raises(CredentialsError) as raised:
        credentials.of_kubeconfig(kubeconfig(user={"token": ["s3cret"], "client-key-data": "s3cret!"}), FOLDER)
    assert "users[agent].token: " in str(raised.value)
    assert "users[agent].client-key-data: " in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"current-context": ""}, "current-context: is not set", id="no-context"),
        pytest.param({"current-context": "x"}, "contexts: none is named 'x'", id="unknown-context"),
        pytest.param({"clusters": None}, "clusters: none is named 'own'", id="no-clusters"),
        pytest.param({"users": ["agent"]}, "users: none is named 'agent'", id="no-user"),
    ],
)
def test_what_a_kubeconfig_lacks_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CredentialsError) as raised:
        credentials.of_kubeconfig(kubeconfig() | change, FOLDER)
    assert str(raised.value) == message


def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config"
    with pytest.raises(CredentialsError, match=f"{file}: no such kubeconfig"):
        credentials.load(file)
    for text, message in (("[]", "not a kubeconfig"), ("a: [", "line 1, column 5: expected")):
        file.write_text(text)
        with pytest.raises(CredentialsError, match=f"^{file}: {message}"):
            credentials.load(file)


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443"), ("kube", "https://kube:443")],
)
def test_a_pod_logs_in_by_its_service_account(host: str, server: str) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    expected = Login(server=server, authority=FOLDER / "ca.crt", token=FOLDER / "token")
    assert credentials.of_pod(environment, FOLDER) == expected


@pytest.mark.parametrize("environment", [{}, {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": ""}])
def test_outside_a_pod_a_kubeconfig_is_asked_for(environment: dict[str, str]) -> None:
    with pytest.raises(CredentialsError, match=r"^no --kubeconfig, and no pod either"):
        credentials.of_pod(environment, FOLDER)


@pytest.mark.parametrize(("text", "message"), [(None, ": no token: .*No such file"), (" \n", ": the token is empty$")])
def test_a_token_that_cannot_be_read_is_reported_at_the_start(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(kubeconfig(user={"tokenFile": "token"})))
    if text is not None:
        (tmp_path / "token").write_text(text)
    with pytest.raises(CredentialsError, match=message):
        credentials.load(file)


def test_a_token_file_is_read_for_each_request(tmp_path: Path) -> None:
    """Kubelet exchanges it by a link to another folder."""
    link = tmp_path / "token"
    login = Login(server=SERVER, token=link)
    for token in ("one", "two"):
        (tmp_path / token).write_text(f"{token}\n")
        fresh = tmp_path / "fresh"
        fresh.symlink_to(token)
        fresh.rename(link)
        assert login.authorization() == f"Bearer {token}"


@pytest.mark.parametrize(
    "login",
    [
        pytest.param(Login(server=SERVER, authority=b"no certificate"), id="authority"),
        pytest.param(Login(server=SERVER, authority=Path("/none/ca.crt")), id="authority-file"),
        pytest.param(Login(server=SERVER, certificate=b"none", key=b"none"), id="certificate"),
    ],
)
def test_certificates_that_cannot_be_used_are_reported(login: Login) -> None:
    with pytest.raises(CredentialsError, match=f"^certificates of {SERVER}: "):
        credentials.tls(login)
