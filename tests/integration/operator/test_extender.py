"""The extender of real operators over TLS: only the leader answers, the Service reaches it, and pods are bound."""

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from demo.audit import audit
from devcluster import waiting
from devcluster.control_plane.api import Manifest
from tests.certificates import Authority
from tests.integration.operator import world as words
from tests.integration.operator.world import World

PATH = "/apis/nvidia-gpu-scheduler/v1/schedule"
WHOLE = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
SERVICE = "berth-extender"
NOT_LEADING = (503, {"message": f"this replica does not lead: POST {PATH}/filter"})


class Door:
    """The extender of one replica, as one client sees it."""

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        self._url, self._tls = f"https://127.0.0.1:{port}{PATH}", tls

    def call(self, verb: str, body: Manifest) -> tuple[int, Any]:
        request = urllib.request.Request(f"{self._url}/{verb}", data=json.dumps(body).encode(), method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=10, context=self._tls) as response:  # noqa: S310 - loopback
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def filter(self, pod: Manifest, *nodes: str) -> list[str]:
        status, answer = self.call("filter", {"Pod": pod, "NodeNames": nodes})
        assert (status, answer["Error"]) == (200, ""), answer
        return list(answer["NodeNames"])

    def bind(self, pod: Manifest, node: str) -> str:
        metadata = pod["metadata"]
        args = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        return str(self.call("bind", {**args, "Node": node})[1]["Error"])


def opened(door: Door) -> Door:
    """Return the door once it answers at all."""

    def answers() -> bool:
        try:
            door.call("filter", {})
        except urllib.error.URLError:
            return False
        return True

    waiting.until(answers, what="the extender")
    return door


def test_the_leader_reserves_and_binds_for_clients_with_a_certificate(world: World, tmp_path: Path) -> None:
    authority, arena, scheduler = Authority(tmp_path), world.arena, f"{world.arena.scheduler_name}-kube"
    certificate, tls = authority.issue("berth"), authority.client(authority.issue("kube-scheduler"))
    ports = words.free_ports(2)
    flags = {
        "extender_certificate": certificate,
        "extender_client_ca": authority.file,
        "extender_clients": "kube-scheduler",
        "extender_schedulers": scheduler,
        "extender_service": f"{arena.namespace}/{SERVICE}",
    }
    world.agent()
    leader_process = world.operator(extender_port=ports[0], pod_ip="192.0.2.1", **flags)
    world.operator(extender_port=ports[1], pod_ip="192.0.2.2", wait=False, **flags)
    first, second = world.nodes(2, gpus=1)
    leader, standby = opened(Door(ports[0], tls)), opened(Door(ports[1], tls))

    pods = [world.pod(f"p{number}", WHOLE, scheduler_name=scheduler) for number in range(4)]
    assert standby.call("filter", {"Pod": pods[0], "NodeNames": [first]}) == NOT_LEADING
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        Door(ports[0], authority.client()).call("filter", {})

    # Two nodes, two reservations; the third pod gets one once a reserved pod is deleted.
    chosen = [leader.filter(each, first, second) for each in pods[:3]]
    assert [*sorted(chosen[:2]), chosen[2]] == [*sorted([[first], [second]]), []]
    world.remove("p0")
    world.wait(lambda: leader.filter(pods[2], first, second) == chosen[0], what="the freed reservation")
    assert leader.bind(pods[1], chosen[1][0]) == ""
    assert words.minors(world.bound("p1")) == [0]

    # A new leader binds what the former one has answered.
    assert endpoint(world) == "192.0.2.1"
    leader_process.stop()
    world.wait(lambda: endpoint(world) == "192.0.2.2", what="the EndpointSlice of the new leader")
    assert standby.bind(pods[2], chosen[0][0]) == ""
    assert words.minors(world.bound("p2")) == [0]
    assert standby.filter(pods[3], first, second) == []
    devices, nodes = [world.shown(each) for each in (first, second)], arena.list("nodes", labelSelector=arena.selector)
    assert not audit(pods=arena.list("pods"), nodes=nodes, devices=devices, scheduler=scheduler)


def endpoint(world: World) -> str:
    """Return the address to which the Service leads."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{world.arena.namespace}/endpointslices/{SERVICE}"
    [only] = world.api.get(path)["endpoints"]
    return str(only["addresses"][0])
