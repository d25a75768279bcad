"""A stolen token of one node's agent takes no name of a GpuPod that another node's agent needs."""

from http import HTTPStatus
from typing import Final, NamedTuple

import pytest

from berth_agent.publishing.gpupods import body
from berth_api.objects import gpupod
from berth_api.objects.gpupod import GpuPodSpec
from devcluster import Arena
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.attacks.accounts import Accounts

ROUNDS: Final = 10


class Nodes(NamedTuple):
    """The agents of two nodes, one of whose tokens is stolen, and the pods of the other."""

    stolen: str
    robbed: str
    thief: Api
    agent: Api
    pods: list[Manifest]


@pytest.fixture(scope="module")
def nodes(arena: Arena, accounts: Accounts) -> Nodes:
    stolen, robbed = arena.nodes(2)
    thief, agent = accounts.client("berth-agent", node=stolen), accounts.client("berth-agent", node=robbed)
    accounts.wait(thief, f"/api/v1/nodes/{stolen}", {"metadata": {"labels": {"example.com/a": "b"}}})
    pods = arena.create([arena.pod(f"p{number}", nodeName=robbed) for number in range(ROUNDS)])
    return Nodes(stolen, robbed, thief, agent, pods)


def gpu_pod(arena: Arena, pod: Manifest, named: str, node: str) -> Manifest:
    """Return what an agent of a node applies for a pod, under the name of a node."""
    metadata = pod["metadata"]
    spec = GpuPodSpec(node_name=node, pod_uid=metadata["uid"])
    made = body((arena.namespace, gpupod.name_of(metadata["name"], node)), spec)
    made["metadata"]["name"] = gpupod.name_of(metadata["name"], named)
    return made


def apply(by: Api, manifest: Manifest) -> HTTPStatus:
    """Write a GpuPod as agents do; return the status of the answer."""
    try:
        by.apply(manifest)
    except ApiError as error:
        return HTTPStatus(error.status)
    return HTTPStatus.OK


def test_a_thief_that_takes_names_in_a_loop_never_keeps_the_right_agent_from_writing(
    arena: Arena, nodes: Nodes
) -> None:
    """Each of its tries comes right before that of the right agent, and again after it."""
    forged = [gpu_pod(arena, pod, nodes.robbed, nodes.stolen) for pod in nodes.pods]
    right = [gpu_pod(arena, pod, nodes.robbed, nodes.robbed) for pod in nodes.pods]
    answers = [
        (apply(nodes.thief, false), apply(nodes.agent, true), apply(nodes.thief, false), apply(nodes.agent, true))
        for false, true in zip(forged, right, strict=True)
    ]
    assert set(answers) == {(HTTPStatus.FORBIDDEN, HTTPStatus.OK) * 2}
    written = {each["metadata"]["name"]: each["spec"]["nodeName"] for each in arena.list("gpupods")}
    assert written == {each["metadata"]["name"]: nodes.robbed for each in right}


def test_of_another_node_s_pod_a_thief_writes_under_its_own_node_alone(arena: Arena, nodes: Nodes) -> None:
    """The operator deletes that, and the right agent can write."""
    [pod, *_] = nodes.pods
    assert apply(nodes.thief, gpu_pod(arena, pod, nodes.stolen, nodes.stolen)) == HTTPStatus.OK
    assert apply(nodes.agent, gpu_pod(arena, pod, nodes.robbed, nodes.robbed)) == HTTPStatus.OK
