"""What a real API server takes of the agent's objects, and what an agent does if it refuses the Device for good."""

import itertools
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from berth_agent import cluster
from berth_agent.publishing import gpupods
from berth_agent.publishing.publish import FROZEN_SECONDS, device_body, status_body
from berth_agent.readings import Reading
from berth_api import names
from berth_client import credentials
from berth_client.client import ApiClient
from devcluster import Arena
from devcluster.building import programs
from devcluster.control_plane.api import ApiError
from tests.integration.agent.conftest import node_events
from tests.integration.agent.test_agent_fleet import lease, simulated
from tests.nvml.fixture import NvmlFixture, a100
from tests.objects.optional_fields import CONDITION, GPU_POD, SPEC, USE, without_each

Start = Callable[..., Any]
Write = Callable[..., Path]

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture
async def client(arena: Arena) -> AsyncIterator[ApiClient]:
    made = cluster.client_of(credentials.load(arena.cluster.kubeconfig), timeout=60.0, connections=2)
    yield made
    made.close()


async def test_each_optional_field_may_be_none(client: ApiClient, arena: Arena) -> None:
    [node] = arena.nodes()
    [owner] = arena.create([arena.pod("p")])
    path, key = f"{cluster.DEVICES}/{node}", (arena.namespace, f"p.{node}")
    for _, spec in [("", SPEC), *without_each(SPEC)]:
        body = device_body(node, reading=Reading(spec=spec, findings=()), cards=spec.devices, owners=[])
        await client.apply(path, body, names.AGENT, force=True)
    for _, condition in [("", CONDITION), *without_each(CONDITION)]:
        await client.apply(
            f"{path}/status", status_body(node, conditions=[condition], use=USE), names.AGENT, force=True
        )
    for _, pod in [("", GPU_POD), *without_each(GPU_POD)]:
        body = gpupods.body(key, pod.model_copy(update={"node_name": node, "pod_uid": owner["metadata"]["uid"]}))
        await client.apply(gpupods._path(key), body, names.AGENT, force=True)


@contextmanager
def refused(arena: Arena, node: str) -> Iterator[None]:
    """Refuse all changes of the spec of a Device, and none of its status."""
    name = f"no-devices-{arena.id}"
    rule = {"apiGroups": [names.GROUP], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["devices"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "own", "expression": f'object.metadata.name == "{node}"'}],
        "validations": [{"expression": "object.spec == oldObject.spec", "message": "no, for this test"}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    kinds = {"validatingadmissionpolicies": spec, "validatingadmissionpolicybindings": binding}
    for plural, body in kinds.items():
        arena.cluster.api.post(f"{REGISTRATION}/{plural}", {"metadata": {"name": name}, "spec": body})
    try:
        yield
    finally:
        for plural in reversed(kinds):
            arena.cluster.api.delete(f"{REGISTRATION}/{plural}/{name}")


def is_in_force(arena: Arena, node: str) -> bool:
    """Return whether a change of the Device's spec is refused. A policy is in force a few seconds after it was made."""
    change = {"spec": {"driverVersion": "another"}}
    try:
        arena.cluster.api.merge(f"{cluster.DEVICES}/{node}?dryRun=All", change)
    except ApiError:
        return True
    return False


def test_a_device_that_is_refused_is_reported_on_the_node(arena: Arena, start_nvml: Start, tmp_path: Path) -> None:
    (node,) = arena.nodes(1)
    fixture = NvmlFixture(tmp_path, gpus=[a100(0), a100(1)])
    agent = start_nvml(node, fixture)
    arena.wait(lambda: arena.cluster.api.exists(f"{cluster.DEVICES}/{node}"), what="the Device")
    with refused(arena, node):
        arena.wait(lambda: is_in_force(arena, node), what="the policy")
        fixture.lose(1)
        arena.wait(lambda: "no, for this test" in agent.log, what="the refusal")
        assert node_events(arena, node) == [], "an upgrade may change policies before or after the agents"
        [event] = arena.wait(
            lambda: node_events(arena, node), deadline=FROZEN_SECONDS + 60, what="the Event on the Node"
        )
        assert (event["type"], event["reason"], event["metadata"]["namespace"]) == (
            "Warning",
            "WritesRefused",
            "default",
        )
        assert event["message"].startswith("the API server refuses to patch devices.berth.dev, 422: ")
        assert event["message"].endswith("no, for this test")
        time.sleep(3)
        assert len(node_events(arena, node)) == 1
        kubectl = [str(programs.ensure(["kubectl"])["kubectl"]), f"--kubeconfig={arena.cluster.kubeconfig}"]
        described = subprocess.run([*kubectl, "describe", "node", node], capture_output=True, text=True, check=True)
        assert "WritesRefused" in described.stdout


def test_a_node_whose_device_is_refused_says_so_and_ends_its_lease(
    arena: Arena, start: Start, fleet_file: Write
) -> None:
    (node,) = arena.nodes(1)
    line = f"- {{names: {node}, profile: l4, gpus: 2, unhealthy: %s}}"
    agent = simulated(start, fleet_file(line % "[]"))
    arena.wait(lambda: lease(arena, agent.lease_namespace, node), what="the Lease")
    arena.wait(lambda: arena.cluster.api.exists(f"/apis/berth.dev/v1alpha1/devices/{node}"), what="the Device")

    def health() -> list[bool]:
        return [card["health"] for card in arena.get("devices", node)["spec"]["devices"]]

    def messages() -> str:
        conditions = arena.get("devices", node).get("status", {}).get("conditions", [])
        return "".join(each["message"] for each in conditions if each["type"] == names.WRITES_ACCEPTED)

    def is_refused() -> bool:
        fleet_file(line % f"[{next(cards)}]")
        arena.wait(lambda: "no, for this test" in agent.log or health().count(False), what="a write")
        return "no, for this test" in agent.log

    cards = itertools.cycle(range(2))
    arena.wait(lambda: health() == [True, True], what="the cards")
    with refused(arena, node):
        # A policy is in force a few seconds after it was created.
        arena.wait(is_refused, what="the refusal")
        fleet_file(line % "[0, 1]")
        arena.wait(
            lambda: "the Lease is not renewed" in agent.log, deadline=FROZEN_SECONDS + 30, what="the end of the Lease"
        )
        assert "no, for this test" in messages()
        last = lease(arena, agent.lease_namespace, node)
    arena.wait(lambda: health() == [False, False], deadline=90, what="the unhealthy cards")
    arena.wait(lambda: lease(arena, agent.lease_namespace, node) != last, what="a renewal")
    arena.wait(lambda: not messages(), what="the end of the condition")
