"""One agent process plays a fleet: Devices and Leases of many nodes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devcluster import Arena

Start = Callable[..., Any]
Write = Callable[..., Path]

NODES = 60
"""More than an agent writes at once."""


def lease(arena: Arena, namespace: str, node: str) -> dict[str, Any] | None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{node}"
    return arena.cluster.api.get(path) if arena.cluster.api.exists(path) else None


def simulated(start: Start, fleet: Path, *options: str) -> Any:
    return start("--inventory", "simulated", "--fleet", str(fleet), *options)


def test_many_nodes_are_published(arena: Arena, start: Start, fleet_file: Write) -> None:
    nodes = [{"metadata": {"name": f"{arena.id}-f{n}", "labels": {"fleet": arena.id}}} for n in range(NODES)]
    arena.cluster.api.create_all("/api/v1/nodes", nodes)
    fleet = fleet_file(f"- {{names: '{arena.id}-f[0-{NODES - 1}]', profile: a100, gpus: 8, rdma: 4}}")
    agent = simulated(start, fleet, "--renew-interval", "4", "--lease-duration", "40")
    try:
        arena.wait(lambda: agent.log.count("Device published") == NODES, what="the Devices")
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{agent.lease_namespace}/leases"
        arena.wait(lambda: len(arena.cluster.api.get(leases)["items"]) == NODES, what="the Leases")
        mine = [each for each in arena.list("devices") if each["metadata"]["name"].startswith(f"{arena.id}-f")]
        assert [len(each["spec"]["devices"]) for each in mine] == [12] * NODES
    finally:
        agent.end()
        arena.cluster.api.delete("/api/v1/nodes", labelSelector=f"fleet={arena.id}")


def test_leases_are_created_renewed_and_left_to_expire(arena: Arena, start: Start, fleet_file: Write) -> None:
    alive, dead = arena.nodes(2)
    fleet = fleet_file(f"- {{names: {alive}, profile: t4, gpus: 1}}", f"- {{names: {dead}, profile: t4, gpus: 1}}")
    agent = simulated(start, fleet, "--pod-name", "berth-agent-x")
    namespace = agent.lease_namespace
    first = arena.wait(lambda: lease(arena, namespace, alive), what="a Lease")
    assert first is not None
    assert (first["spec"]["holderIdentity"], first["spec"]["leaseDurationSeconds"]) == ("berth-agent-x", 5)
    assert first["metadata"]["ownerReferences"][0]["name"] == alive

    def renewed(node: str, since: dict[str, Any]) -> bool:
        now = lease(arena, namespace, node)
        return now is not None and now["spec"]["renewTime"] > since["spec"]["renewTime"]

    arena.wait(lambda: renewed(alive, first), deadline=3, what="a renewal")
    fleet_file(f"- {{names: {alive}, profile: t4, gpus: 1}}", f"- {{names: {dead}, heartbeat: false}}")
    arena.wait(lambda: not arena.get("devices", dead)["spec"].get("devices"), what="the changed fleet")
    last = lease(arena, namespace, dead)
    assert last is not None
    beating = lease(arena, namespace, alive)
    assert beating is not None
    time.sleep(1.5)
    assert lease(arena, namespace, dead) == last
    assert renewed(alive, beating)


def test_a_card_of_the_fleet_turns_unhealthy_while_the_agent_runs(
    arena: Arena, start: Start, fleet_file: Write
) -> None:
    (node,) = arena.nodes(1)
    line = f"- {{names: {node}, profile: l4, gpus: 4, unhealthy: %s}}"
    simulated(start, fleet_file(line % "[]"))
    arena.wait(lambda: arena.cluster.api.exists(f"/apis/berth.dev/v1alpha1/devices/{node}"), what="the Device")
    fleet_file(line % "[2]")

    def health() -> list[bool]:
        return [card["health"] for card in arena.get("devices", node)["spec"]["devices"]]

    arena.wait(lambda: health() == [True, True, False, True], what="the unhealthy card")


def test_an_api_server_that_is_away_is_waited_for(arena: Arena, start: Start, fleet_file: Write) -> None:
    (node,) = arena.nodes(1)
    kubeconfig = arena.folder / "wrong.kubeconfig"
    kubeconfig.write_text(arena.cluster.kubeconfig.read_text().replace(arena.cluster.server, "https://127.0.0.1:1"))
    fleet = fleet_file(f"- {{names: {node}, profile: t4, gpus: 1}}")
    agent = simulated(start, fleet, "--kubeconfig", str(kubeconfig))
    arena.wait(lambda: agent.log.count("API server not read") > 1, what="two tries")
    assert agent.stop() == 0
    assert "Traceback" not in agent.log
