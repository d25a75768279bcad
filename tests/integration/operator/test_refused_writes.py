"""What an admission policy or a webhook refuses for good: users, administrators and Prometheus see it, and it ends."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from devcluster.building import programs
from devcluster.control_plane.api import ApiError
from tests.differential import evictions
from tests.differential.evictions import ABOVE
from tests.integration.operator import world as words
from tests.integration.operator.world import World, condition
from tests.integration.policies.test_other_webhook import denying, their_webhook

K = "kubernetes.io/"
HALF = {K + "gpu": "50"}
WHOLE = {"nvidia.com/gpu": "1"}
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
MERGE = "application/merge-patch+json"
BINDING = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "none"}, "target": {"kind": "Node", "name": "n"}}
LOW = 0
MESSAGE = "no, for this test"


@contextmanager
def refusing(
    world: World, operation: str, resource: str, *, group: str = "", condition: str = "", reason: str = "Invalid"
) -> Iterator[str]:
    """Apply a policy that refuses these requests, in the arena's namespace or by a condition; yield its name."""
    arena = world.arena
    name = f"no-{operation.lower()}-{resource.replace('/', '-')}-{arena.id}"
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": [resource]}
    own = {"matchLabels": {"kubernetes.io/metadata.name": arena.namespace}}
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": {} if condition else own},
        "matchConditions": [{"name": "own", "expression": condition}] if condition else [],
        "validations": [{"expression": "false", "message": MESSAGE, "reason": reason}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    kinds = {"validatingadmissionpolicies": spec, "validatingadmissionpolicybindings": binding}
    for plural, body in kinds.items():
        arena.cluster.api.post(f"{REGISTRATION}/{plural}", {"metadata": {"name": name}, "spec": body})
    try:
        yield f"validatingadmissionpolicy/{name}"
    finally:
        for plural in reversed(kinds):
            arena.cluster.api.delete(f"{REGISTRATION}/{plural}/{name}")


def in_force(
    world: World, method: str, path: str, body: dict[str, Any], content_type: str = "application/json"
) -> None:
    """Wait until the API server refuses a request, sent as a dry run, by the policy or webhook of this test."""

    def is_refused() -> bool:
        query = {"dryRun": "All"}
        try:
            world.api.request(method, path, body=body, query=query, content_type=content_type)
        except ApiError as error:
            return MESSAGE in str(error)
        return False

    world.wait(is_refused, what="the policy to be in force")


def pods(world: World) -> str:
    return f"/api/v1/namespaces/{world.arena.namespace}/pods"


def refused_writes(world: World) -> list[dict[str, Any]]:
    """Return the leader's record."""
    lease = world.arena.get("leaderleases", world.arena.lease_name)
    record: list[dict[str, Any]] = (lease.get("status") or {}).get("refusedWrites") or []
    return record


def findings(world: World) -> list[dict[str, str]]:
    """Return the doctor's findings about refused writes."""
    arena = world.arena
    place = [f"--system-namespace={arena.namespace}", f"--lease={arena.lease_name}"]
    flags = [*place, f"--kubeconfig={arena.cluster.kubeconfig}"]
    ended = subprocess.run(
        [sys.executable, "-m", "berth_kubectl", "doctor", "-o", "json", *flags],
        env={**os.environ, "BERTH_KUBECTL": str(programs.ensure(["kubectl"])["kubectl"])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    listed: list[dict[str, str]] = json.loads(ended.stdout)["findings"]
    return [finding for finding in listed if finding["check"] == "RefusedWrites"]


def series(port: int) -> list[str]:
    """Return the samples of refused writes of a program."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return [line for line in lines if line.startswith("berth_refused_writes{")]


def test_a_binding_that_a_policy_refuses_is_seen_everywhere_until_it_is_accepted(world: World) -> None:
    [port] = words.free_ports(1)
    world.agent()
    world.operator(metrics_port=port)
    world.nodes(gpus=1)
    with refusing(world, "CREATE", "pods/binding") as policy:
        in_force(world, "POST", f"{pods(world)}/none/binding", BINDING)
        world.pod("p", HALF)
        world.wait(lambda: MESSAGE in world.message("p"), what="the refusal")
        [refused] = world.wait(lambda: refused_writes(world), what="the record")
        assert {name: refused[name] for name in ("verb", "resource", "code", "refuser", "object", "namespaces")} == {
            "verb": "create",
            "resource": "pods/binding",
            "code": HTTPStatus.UNPROCESSABLE_ENTITY,
            "refuser": policy,
            "object": f"{world.arena.namespace}/p",
            "namespaces": [world.arena.namespace],
        }
        [finding] = findings(world)
        assert finding["object"] == policy
        assert f"has refused to create pods/binding (422), in {world.arena.namespace}" in finding["message"]
        assert MESSAGE in finding["message"]
        [line] = series(port)
        labels = f'code="422",refuser="{policy}",resource="pods/binding",scope="namespaced",verb="create"'
        assert line == f"berth_refused_writes{{{labels}}} 1.0"
        [event] = world.wait(lambda: world.events("p", "FailedBinding"), what="the Event")
        assert MESSAGE in event["message"]
    world.bound("p", deadline=words.PROMPT + 60)
    world.wait(lambda: not refused_writes(world), what="the end of the record")
    assert not findings(world)
    assert not series(port)


def test_a_binding_that_a_webhook_refuses_as_if_the_pod_were_gone_is_reported(world: World, tmp_path: Path) -> None:
    world.agent()
    world.operator()
    world.nodes(gpus=1)
    refuses = denying(HTTPStatus.NOT_FOUND, MESSAGE)
    with their_webhook(world.arena, tmp_path, first=True, respond=refuses, resource="pods/binding"):
        in_force(world, "POST", f"{pods(world)}/none/binding", BINDING)
        world.pod("p", HALF)
        world.wait(lambda: MESSAGE in world.message("p"), what="the refusal")
        [event] = world.wait(lambda: world.events("p", "FailedBinding"), what="the Event")
        assert MESSAGE in event["message"]
        [refused] = world.wait(lambda: refused_writes(world), what="the record")
        assert (refused["code"], refused["refuser"]) == (HTTPStatus.NOT_FOUND, "webhook/others.example.com")
    world.bound("p", deadline=words.PROMPT + 60)


def test_without_a_condition_the_event_shows_why_a_pod_waits(world: World) -> None:
    world.agent()
    world.operator()
    world.nodes(gpus=1)
    world.pod("other", {}, scheduler_name="none")
    with refusing(world, "UPDATE", "pods/status") as policy:
        in_force(world, "PATCH", f"{pods(world)}/other/status", {"status": {"message": "x"}}, MERGE)
        world.pod("waits", {"nvidia.com/gpu": "4"})
        event = world.wait(lambda: world.events("waits", "FailedScheduling"), what="the Event")[0]
        assert "too few healthy GPUs" in event["message"]
        assert not condition(world.arena.get("pods", "waits"), "PodScheduled")
        world.wait(lambda: [each["refuser"] for each in refused_writes(world)] == [policy], what="the record")
        assert [finding["object"] for finding in findings(world)] == [policy]


@pytest.fixture
def priorities(world: World) -> Iterator[World]:
    evictions.make_classes(world.arena, (LOW, ABOVE))
    yield world
    evictions.remove_classes(world.arena)


def priority(world: World, value: int) -> dict[str, str]:
    return {"priorityClassName": evictions.class_name(world.arena, value)}


def test_a_pod_that_may_not_be_deleted_is_no_victim_and_has_no_condition(priorities: World) -> None:
    world = priorities
    world.agent()
    world.operator()
    [node] = world.nodes(gpus=1)
    world.pod("low", WHOLE, **priority(world, LOW))
    world.bound("low")
    with refusing(world, "DELETE", "pods") as policy:
        in_force(world, "DELETE", f"{pods(world)}/low", {"dryRun": ["All"]})
        world.pod("high", WHOLE, **priority(world, ABOVE))
        note = f"the API server refuses to delete 1 pod(s) of lower priority ({policy})."
        world.wait(lambda: note in world.message("high"), what="the reason")
        assert "terminating" not in world.message("high")
        assert not condition(world.arena.get("pods", "low"), "DisruptionTarget")
        assert not world.arena.get("pods", "high")["status"].get("nominatedNodeName")
        [refused] = world.wait(lambda: refused_writes(world), what="the record")
        assert (refused["verb"], refused["resource"], refused["refuser"]) == ("delete", "pods", policy)
    world.bound("high", deadline=words.PROMPT + 60)
    world.wait_allocated(node, "1")


def test_an_agent_whose_writes_are_refused_says_so_on_its_device_until_they_are_accepted(world: World) -> None:
    [port] = words.free_ports(1)
    world.agent(metrics_port=port, metrics_address="127.0.0.1", renew_interval=0.5)
    world.operator()
    [node] = world.nodes(gpus=1)
    lease = f"{words.LEASES}/{node}"
    world.wait(lambda: world.api.exists(lease), what="the Lease")
    of_node = f"object.metadata.name == '{node}'"
    with refusing(world, "UPDATE", "leases", group="coordination.k8s.io", condition=of_node) as policy:
        message = world.wait_condition(node, "WritesAccepted", "False")
        assert message.startswith("the API server refuses to patch leases.coordination.k8s.io, 422: ")
        assert MESSAGE in message
        [line] = world.wait(lambda: series(port), what="the series")
        labels = f'code="422",refuser="{policy}",resource="leases.coordination.k8s.io",scope="own",verb="patch"'
        assert line == f"berth_refused_writes{{{labels}}} 1.0"
    world.wait(lambda: not condition(world.shown(node), "WritesAccepted"), what="the condition to go")
    # The agent renders its metrics at most once in some seconds.
    world.wait(lambda: not series(port), what="the series to go")
