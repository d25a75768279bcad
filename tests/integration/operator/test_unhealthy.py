"""A card that fails under a running pod: the pod would survive a kubelet restart, and no other pod gets the card."""

from collections import Counter

from berth_api.resources import quantity
from devcluster.control_plane.nodes import is_of_plugin
from tests.integration.operator import world as words
from tests.integration.operator.world import World

K = "kubernetes.io/"
HALF = {K + "gpu": "50"}


def refused_by_kubelet(world: World, node: str) -> list[str]:
    """Return the resources of which kubelet, after a restart, would find less than the node's pods request."""
    status = world.arena.get("nodes", node)["status"]
    requested: Counter[str] = Counter()
    for pod in world.arena.list("pods"):
        if pod["spec"].get("nodeName") == node:
            for container in pod["spec"]["containers"]:
                for name, amount in (container["resources"].get("requests") or {}).items():
                    requested[name] += quantity.parse_milli(amount)
    return [
        f"{field} {name}"
        for field in ("capacity", "allocatable")
        for name, amount in requested.items()
        # Berth does not set the resources of a device plugin.
        if not is_of_plugin(name) and quantity.parse_milli(status[field].get(name, "0")) < amount
    ]


def test_pod_on_a_failed_card_survives_and_others_avoid_it(shared: World) -> None:
    [node] = shared.nodes(gpus=2)
    shared.pod("runs", HALF)
    shared.wait_sum(node, K + "gpu", "200")
    assert words.minors(shared.bound("runs")) == [0]

    shared.change(node, unhealthy=[0])

    on = ("Device", "Node")
    shared.wait(lambda: [reported(shared, node, kind) for kind in on] == [["DeviceUnhealthy"]] * 2, what="the Events")
    # One healthy card, and what the pod holds of the other.
    shared.wait_sum(node, K + "gpu", "150")
    assert shared.allocatable(node)[K + "gpu-memory"] == "120Gi"
    assert refused_by_kubelet(shared, node) == []
    shared.wait(lambda: shared.shown(node)["status"]["healthy"] == 1, what="the Device to count one healthy card")
    shared.pods(["x", "y", "z"], HALF)
    shared.wait(lambda: len(shared.bound_names()) == 3, what="both halves of the healthy card to be taken")
    taken = sorted(shared.bound_names() - {"runs"})
    assert [words.minors(shared.bound(name)) for name in taken] == [[1], [1]]
    [left] = {"x", "y", "z"} - set(taken)
    shared.waits(left, "too few free GPUs")
    assert refused_by_kubelet(shared, node) == []

    shared.change(node, unhealthy=[])

    assert words.minors(shared.bound(left, deadline=words.PROMPT)) == [0]
    shared.wait_sum(node, K + "gpu", "200")
    assert refused_by_kubelet(shared, node) == []
    assert [reported(shared, node, kind) for kind in on] == [["DeviceUnhealthy", "DeviceHealthy"]] * 2


def reported(world: World, node: str, kind: str) -> list[str]:
    """Return the reasons of the operator's Events on a Device or Node, oldest first."""
    events = world.api.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    about = [
        each
        for each in events
        if (each["regarding"]["kind"], each["regarding"]["name"]) == (kind, node)
        and each.get("reportingController") == "berth-operator"
    ]
    return [each["reason"] for each in sorted(about, key=lambda each: each["eventTime"])]


def test_card_that_vanishes_under_a_pod_is_not_given_again_when_it_returns(shared: World) -> None:
    [node] = shared.arena.nodes()
    shared.device(node, [words.gpu(0), words.gpu(1)])
    shared.pod("runs", HALF)
    assert words.minors(shared.bound("runs")) == [0]

    shared.device(node, [words.gpu(1)])

    shared.wait_sum(node, K + "gpu", "150")
    assert refused_by_kubelet(shared, node) == []
    shared.pod("whole", {"nvidia.com/gpu": "1"})
    assert words.minors(shared.bound("whole")) == [1]
    shared.pod("second", {"nvidia.com/gpu": "1"})
    shared.waits("second")
    shared.device(node, [words.gpu(0), words.gpu(1)])
    shared.waits("second", "too few free GPUs")
    shared.pod("half", HALF)
    assert words.minors(shared.bound("half")) == [0]
    assert "second" not in shared.bound_names()
