"""The debug API of real operators: every replica answers. If others can reach it, only authorized users get answers."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import Arena, waiting
from tests.integration.operator import world as words
from tests.integration.operator.world import World

PATH = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"
HALF = {"kubernetes.io/gpu": "50"}
RBAC = Path(__file__).parents[3] / "manifests/components/debug-api/rbac.yaml"

Answer = tuple[int, Any]


class Door:
    """One replica's debug API."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None, token: str = "") -> None:
        self._url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        self._tls, self._headers = tls, {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, path: str = PATH, method: str = "GET") -> Answer:
        """Return status and body of a request."""
        request = urllib.request.Request(self._url + path, method=method, headers=self._headers)  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=10, context=self._tls) as response:  # noqa: S310
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def opened(self) -> "Door":
        """Wait until it answers."""

        def answers() -> bool:
            try:
                self.ask("/")
            except (urllib.error.URLError, ConnectionError):
                return False
            return True

        waiting.until(answers, what=self._url)
        return self

    def node(self, name: str) -> dict[str, Any]:
        """Return a node's summary."""
        status, body = self.ask(f"{PATH}/{name}")
        assert status == 200, body
        return dict(body)


def test_every_replica_returns_the_same(world: World) -> None:
    ports = words.free_ports(2)
    leader_process = world.operator(debug_port=ports[0])
    world.operator(debug_port=ports[1], wait=False)
    world.agent()
    first, second = world.nodes(2, gpus=2)
    world.pod("half", HALF)
    bound = world.bound("half")
    node, [minor] = bound["spec"]["nodeName"], words.minors(bound)
    other = ({first, second} - {node}).pop()
    leader, standby = Door(ports[0]).opened(), Door(ports[1]).opened()

    summary = leader.node(node)
    card = words.allocation(bound)["gpu"][0]
    holder = f"{world.arena.namespace}/half"
    assert summary["allocateSet"] == {"gpu": {holder: {str(minor): card["resources"]}}}
    assert summary["devices"]["gpu"][str(minor)]["id"] == card["id"]
    assert summary["ready"] is True
    assert summary["deviceTotal"]["kubernetes.io/gpu-core"] == "200"
    assert summary["deviceFree"]["kubernetes.io/gpu-core"] == "150"
    assert summary["deviceUsedDetail"]["gpu"][str(minor)] == card["resources"]
    assert summary["deviceTotal"]["kubernetes.io/gpu-memory"] == world.allocatable(node)["kubernetes.io/gpu-memory"]

    # A standby replica has no pods in memory, and answers the same.
    assert standby.node(node) == summary
    assert standby.node(other) == leader.node(other)
    status, everything = standby.ask()
    assert status == 200
    assert {each: everything[each] for each in (node, other)} == {node: summary, other: leader.node(other)}
    # Other tests add and remove nodes of the cluster.
    world.wait(lambda: leader.ask() == standby.ask(), what="the same answer of both for all nodes")

    for door in (leader, standby):
        assert door.ask(f"{PATH}/unheard-of") == (404, {"message": "cannot find node unheard-of"})
        assert door.ask("/apis/v1") == (404, {"message": "Not Found: GET /apis/v1"})
        assert door.ask(PATH, "POST") == (405, {"message": f"Method Not Allowed: POST {PATH}"})

    # After a change of roles it still answers, from the state by which the new leader decides.
    leader_process.stop()
    world.pod("second", HALF)
    world.bound("second")
    expected = {holder, f"{world.arena.namespace}/second"}
    world.wait(lambda: set(standby.node(node)["allocateSet"]["gpu"]) == expected, what="the answer of the new leader")


@pytest.fixture
def reader_role(arena: Arena) -> Iterator[str]:
    """Create the shipped role of readers under a name of its own."""
    [role] = [each for each in yaml.safe_load_all(RBAC.read_text()) if each["kind"] == "ClusterRole"]
    role["metadata"]["name"] = f"{arena.id}-debug-reader"
    arena.cluster.api.apply(role)
    yield role["metadata"]["name"]
    arena.cluster.api.delete(arena.cluster.api.path_of(role))


def test_on_a_reachable_address_only_authorized_users_are_answered(world: World, reader_role: str) -> None:
    arena = world.arena
    [port] = words.free_ports(1)
    certificates = arena.cluster.folder / "certs"
    world.operator(
        debug_address="0.0.0.0",  # noqa: S104 - on purpose
        debug_port=port,
        debug_certificate=certificates / "apiserver.crt",
        debug_key=certificates / "apiserver.key",
    )
    reader, stranger = _token(arena, "reader", reader_role), _token(arena, "stranger", "view")
    tls = ssl.create_default_context(cafile=str(arena.cluster.ca_file))
    door = Door(port, tls=tls, token=reader).opened()
    assert door.ask()[0] == 200
    assert Door(port, tls=tls).ask() == (401, {"message": "a bearer token is required"})
    unknown = Door(port, tls=tls, token=reader[:-1])
    assert unknown.ask() == (401, {"message": "the API server does not know this token"})
    status, body = Door(port, tls=tls, token=stranger).ask()
    assert (status, f":stranger may not get the nonResourceURL /debug{PATH}" in str(body)) == (403, True)
    assert door.ask(f"{PATH}/unheard-of") == (404, {"message": "cannot find node unheard-of"})
    # The role allows these paths only.
    assert door.ask("/metrics")[0] == 403


def _token(arena: Arena, account: str, role: str) -> str:
    """Return the token of a new account with a role."""
    kubeconfig = yaml.safe_load(arena.service_account(account, role).read_text())
    return str(kubeconfig["users"][0]["user"]["token"])
