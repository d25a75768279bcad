"""Certificates, on both sides."""

from pathlib import Path
from typing import Any

import pytest

from berth_client.client import ApiClient
from berth_client.credentials import Login
from berth_client.errors import Unreachable
from berth_client.tokens import TokenSource
from tests.unit.client.server import Authority, Server


async def get(login: Login) -> dict[str, Any]:
    client = ApiClient.of(TokenSource(login=login), user_agent="berth-test/1")
    try:
        return await client.get("/x")
    finally:
        client.close()


async def test_certificates_of_a_kubeconfig_open_a_server_by_its_name(
    secured: Server, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("agent")
    (tmp_path / "agent.crt").write_bytes(certificate)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    by_data = Login(server=secured.url, server_name="kube", authority=authority.pem, certificate=certificate, key=key)
    by_file = Login(
        server=secured.url,
        server_name="kube",
        authority=tmp_path / "ca.crt",
        certificate=tmp_path / "agent.crt",
        key=key,
    )
    unverified = Login(server=secured.url, verified=False, certificate=certificate, key=key)
    for login in (by_data, by_file, unverified):
        assert (await get(login))["path"] == "/x"


async def test_a_server_of_another_name_or_authority_is_not_trusted(secured: Server, authority: Authority) -> None:
    certificate, key = authority.issue("agent")
    misnamed = Login(server=secured.url, authority=authority.pem, certificate=certificate, key=key)
    strange = Login(server=secured.url, server_name="kube", authority=Authority().pem, certificate=certificate, key=key)
    for login in (misnamed, strange):
        with pytest.raises(Unreachable, match=r"no answer: cannot connect to 127.0.0.1:.*CERTIFICATE_VERIFY_FAILED"):
            await get(login)
    assert secured.seen == []
