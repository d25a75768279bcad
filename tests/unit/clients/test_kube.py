"""The operator's calls, and how it logs in."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web

from berth_base import start
from berth_client.client import MERGE, METADATA
from berth_client.credentials import CredentialsError, Login
from berth_operator.clients import logins
from berth_operator.clients.kube import KubeClient
from berth_operator.commands import operate
from berth_operator.controllers.handlers.connection import Connection
from berth_operator.settings.flags import Settings
from tests.unit.client.server import Server, started

TOKEN = {"token": "one"}


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    runners: list[web.ServerRunner] = []
    yield await started(runners)
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def client(server: Server, tmp_path: Path) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(kubeconfig(tmp_path, server.url, **TOKEN), "berth-test/1")
    yield client
    client.close()


def kubeconfig(folder: Path, server: str, *, proxy: str = "", **user: Any) -> Path:
    path = folder / "kubeconfig"
    cluster = {"server": server, **({"proxy-url": proxy} if proxy else {})}
    content = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return path


async def test_a_pod_s_status_is_patched_by_strategic_merge(client: KubeClient, server: Server) -> None:
    await client.patch_pod_status("ns", "p", {})
    (request,) = server.seen
    assert request.path == "/api/v1/namespaces/ns/pods/p/status"
    assert request.headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert request.headers["Accept"] == METADATA


async def test_a_pod_is_annotated_as_it_was_read(client: KubeClient, server: Server) -> None:
    read = {"metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}}
    await client.annotate_pod(read, {"x": "y"})
    (request,) = server.seen
    assert (request.method, request.path, request.content_type) == ("PATCH", "/api/v1/namespaces/ns/pods/p", MERGE)
    assert server.bodies == [{"metadata": {"uid": "u", "resourceVersion": "7", "annotations": {"x": "y"}}}]


async def test_each_profile_of_many_has_its_watches(client: KubeClient, server: Server) -> None:
    async def silent(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    server.handler = silent
    streams = [client.stream(f"/{number}", {}, idle_timeout=5) for number in range(100)]
    assert await asyncio.gather(*map(anext, streams)) == [b""] * 100
    for stream in streams:
        await stream.aclose()


async def test_the_proxy_of_a_kubeconfig_is_used(server: Server, tmp_path: Path) -> None:
    behind = kubeconfig(tmp_path, "http://api.example/one", proxy=server.url, **TOKEN)
    client = await KubeClient.connect(behind, "berth-test/1")
    assert (await client.get("/api"))["headers"]["Host"] == "api.example"
    client.close()


async def test_a_login_that_cannot_be_renewed_goes_on_with_the_old_token(server: Server, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    plugin.write_text(f"#!/bin/sh\necho '{orjson.dumps({**answer, 'status': {'token': 'good'}}).decode()}'\n")
    plugin.chmod(0o700)
    run = {"command": str(plugin), "apiVersion": answer["apiVersion"], "args": []}
    login = await logins.load(kubeconfig(tmp_path, server.url, exec=run))
    assert await login.authorization() == "Bearer good"
    plugin.write_text("#!/bin/sh\nexit 1\n")
    login.refused()
    assert await login.authorization() == "Bearer good"


async def test_of_several_kubeconfigs_each_says_a_part(server: Server, tmp_path: Path) -> None:
    whole = yaml.safe_load(kubeconfig(tmp_path, server.url, **TOKEN).read_text())
    parts = [tmp_path / "first", tmp_path / "second"]
    parts[0].write_text(yaml.safe_dump({**whole, "users": []}))
    parts[1].write_text(yaml.safe_dump({"users": whole["users"]}))
    client = await KubeClient.connect(Path(":".join(map(str, parts))), "berth-test/1")
    assert (await client.get("/"))["headers"]["Authorization"] == "Bearer one"
    client.close()


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"exec": {"apiVersion": "v1"}}, "ConfigException: exec: malformed request. missing key 'command'"),
        ({"exec": {"apiVersion": "v1", "command": "/none"}}, "FileNotFoundError"),
        ({"exec": {"apiVersion": "v1", "command": "true", "env": "x"}}, "TypeError"),
        ({"exec": {"apiVersion": "v1", "command": "true", "args": 3}}, "AttributeError"),
        ({"auth-provider": {"name": "oidc"}}, "ValueError: oidc: missing configuration"),
        ({"client-key": "x"}, "set both client-certificate and client-key, or neither"),
    ],
)
async def test_a_login_that_cannot_be_used_names_its_file(tmp_path: Path, user: dict[str, Any], message: str) -> None:
    path = kubeconfig(tmp_path, "https://10.0.0.1", **user)
    with pytest.raises(CredentialsError, match=f"^{path}: .*{message}"):
        await logins.load(path)


def test_kopf_gets_the_same_login() -> None:
    login = Login(
        server="https://kube",
        verified=False,
        proxy="http://p",
    )
    info = Connection.of(login, None)
    assert (info.server, info.proxy_url, info.token) == ("https://kube", "http://p", None)
    assert info.as_ssl_context().verify_mode is ssl.CERT_NONE
    info = Connection.of(login, "Bearer secret")
    assert (info.scheme, info.token) == ("Bearer", "secret")


async def test_the_operator_refuses_a_login_that_kopf_cannot_use(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "https://10.0.0.1", **TOKEN)
    content = yaml.safe_load(path.read_text())
    content["clusters"][0]["cluster"]["tls-server-name"] = "kubernetes"
    path.write_text(yaml.safe_dump(content))
    settings = start.read(Settings, [f"--kubeconfig={path}"])
    with pytest.raises(CredentialsError, match='tls-server-name "kubernetes": the operator cannot use it'):
        await operate.operate(settings, settings.configuration(), {})


def test_what_only_unusual_logins_need_is_not_loaded_at_the_start() -> None:
    program = (
        "import berth_operator.commands.operate, berth_operator.app, sys; print('kubernetes_asyncio' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"
