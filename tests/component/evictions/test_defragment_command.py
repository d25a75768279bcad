"""`berth-operator defragment` requests that pods are moved and waits for the result, under virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from berth_operator.commands.defragmenting import NOBODY_ACTS, make_room
from berth_operator.commands.errors import InputError
from tests.component.world import refusal
from tests.objects.builders import Raw, waiting

pytestmark = pytest.mark.looptime

POD = waiting("big")


class Pods:
    """One pod in memory, which an operator changes after some time."""

    def __init__(self, operator: Callable[["Pods"], None] = lambda _pods: None, after: float = 5.0) -> None:
        self.pod: Raw | None = {"metadata": {"uid": POD.uid}, "spec": {}, "status": {"conditions": []}}
        self.nominated: list[Any] = []
        asyncio.get_running_loop().call_later(after, operator, self)

    async def get_pod(self, namespace: str, name: str) -> Raw:
        assert (namespace, name) == ("ns", "big")
        if self.pod is None:
            raise refusal(404)
        return self.pod

    async def patch_pod_status(self, namespace: str, name: str, patch: Raw) -> None:
        assert (namespace, name, patch["metadata"]) == ("ns", "big", {"uid": POD.uid})
        assert self.pod is not None
        self.nominated.append(patch["status"]["nominatedNodeName"])
        self.pod["status"] |= patch["status"]

    def show(self, message: str) -> None:
        assert self.pod is not None
        self.pod["status"]["conditions"] = [{"type": "PodScheduled", "message": message}]


def bind(pods: Pods) -> None:
    assert pods.pod is not None
    pods.pod["spec"]["nodeName"] = "a"


def give_up(pods: Pods) -> None:
    assert pods.pod is not None
    pods.show("0/2 nodes are available")
    pods.pod["status"]["nominatedNodeName"] = None


def delete(pods: Pods) -> None:
    pods.pod = None


def replace_pod(pods: Pods) -> None:
    pods.pod = {"metadata": {"uid": "another"}, "spec": {}, "status": {}}


def act(pods: Pods) -> None:
    pods.show("0/2 nodes are available defragmentation: node a is reserved; 1 pod(s) have yet to be moved")


@pytest.mark.parametrize(
    ("operator", "done", "message", "nominated"),
    [
        pytest.param(bind, True, "ns/big was bound to a", ["a"], id="bound"),
        pytest.param(
            give_up,
            False,
            "ns/big: no room could be made on a; its Events say why. It waits: 0/2 nodes are available",
            ["a"],
            id="given up",
        ),
        pytest.param(delete, False, "ns/big was deleted", ["a"], id="deleted"),
        pytest.param(replace_pod, False, "ns/big was deleted", ["a"], id="replaced"),
        pytest.param(
            lambda _pods: None,
            False,
            "ns/big: no operator moves pods; is it started with --defragment?",
            ["a", None],
            id="no operator acts",
        ),
        pytest.param(
            act, False, "ns/big has not been bound within 100 s; the operator continues", ["a"], id="it takes longer"
        ),
    ],
)
async def test_what_becomes_of_a_request(
    operator: Callable[[Pods], None], *, done: bool, message: str, nominated: list[Any]
) -> None:
    pods = Pods(operator)
    assert await make_room(pods, POD, "a", timeout=100) == (done, message)
    assert pods.nominated == nominated
    assert NOBODY_ACTS < 100


async def test_a_pod_for_which_pods_already_leave_is_left_alone() -> None:
    pods = Pods()
    with pytest.raises(InputError, match="ns/big already has the nominated node b"):
        await make_room(pods, waiting("big", nominated_node="b"), "a", timeout=1)
    assert pods.nominated == []
