"""Nodes and Devices show each other's state, and only allowed accounts write them."""

import pytest

from devcluster.control_plane.nodes import is_of_plugin
from tests.integration.operator import world as words
from tests.integration.operator.world import World

K, KOORDINATOR = "kubernetes.io/", "koordinator.sh/"
HALF = {K + "gpu": "50"}
APPLY = "application/apply-patch+yaml"


def test_node_shows_the_sums_of_its_devices_under_both_prefixes(shared: World) -> None:
    [node] = shared.nodes(profile=["a100", "a100", "t4"], gpus=3, rdma=2, fpga=1)
    sums = {
        "gpu": "300",
        "gpu-core": "300",
        "gpu-memory": "175Gi",
        "gpu-memory-ratio": "300",
        "gpu.shared": "300",
        "rdma": "200",
        "fpga": "100",
    }

    shared.wait_sum(node, K + "gpu", "300")

    shown = shared.arena.get("nodes", node)["status"]
    expected = {prefix + name: amount for prefix in (K, KOORDINATOR) for name, amount in sums.items()}
    for field in ("capacity", "allocatable"):
        assert {
            name: amount for name, amount in shown[field].items() if "/" in name and not is_of_plugin(name)
        } == expected
        assert shown[field]["cpu"] == "64"


def test_label_of_the_model_can_select_nodes(shared: World) -> None:
    shared.nodes()
    [mixed] = shared.nodes(profile=["a100", "t4"], gpus=2)
    shared.pod("p", HALF, nodeSelector={"model.berth.dev/Tesla-T4": "1"})

    assert shared.bound("p")["spec"]["nodeName"] == mixed


def test_edit_by_hand_is_mended(shared: World) -> None:
    [node] = shared.nodes(gpus=2)
    shared.wait_sum(node, K + "gpu", "200")

    both = {K + "gpu": "5000"}
    shared.arena.merge("nodes", node, {"status": {"capacity": both, "allocatable": both}}, subresource="status")
    shared.arena.merge("nodes", node, {"metadata": {"labels": {"model.berth.dev/Phantom": "3"}}})

    shared.wait_sum(node, K + "gpu", "200")
    shared.wait(
        lambda: "model.berth.dev/Phantom" not in shared.arena.get("nodes", node)["metadata"]["labels"],
        what="the label to go",
    )


def test_device_shows_what_is_taken_and_free(shared: World) -> None:
    [node] = shared.nodes(gpus=2)
    shared.pod("half", HALF)
    shared.pod("memory", {K + "gpu-memory": "20Gi"})
    shared.wait_allocated(node, "0.75")

    status = shared.shown(node)["status"]

    assert (status["gpus"], status["healthy"], status["model"]) == (2, 2, words.A100)
    uses = {each["minor"]: each for each in status["devices"]}
    assert uses[0]["free"] == {K + "gpu-core": "50", K + "gpu-memory": "20Gi", K + "gpu-memory-ratio": "25"}
    assert sorted(each["name"] for each in uses[0]["holders"]) == ["half", "memory"]
    assert uses[1]["free"] == {K + "gpu-core": "100", K + "gpu-memory": "80Gi", K + "gpu-memory-ratio": "100"}
    assert "holders" not in uses[1] or not uses[1]["holders"]
    printed = shared.arena.cluster.kubectl("get", "devices", node, "--no-headers").split()
    assert printed[:5] == [node, "True", "2", "2", "0.75"]
    header, wide = shared.arena.cluster.kubectl("get", "devices", node, "-o", "wide").splitlines()
    assert header.split()[-3:-1] == ["MEMORY", "DRIVER"]
    assert wide.split()[-3:-1] == ["80Gi", shared.shown(node)["spec"]["driverVersion"]]
    explained = shared.arena.cluster.kubectl("explain", "devices.status")
    assert "Memory of each GPU" in explained
    assert "<no description>" not in explained


def test_deleted_device_takes_its_sums_along_but_not_what_pods_hold(shared: World) -> None:
    [node] = shared.arena.nodes()
    shared.device(node, [words.gpu(0), words.gpu(1)])
    shared.pod("runs", HALF)
    shared.bound("runs")
    shared.wait_sum(node, K + "gpu", "200")

    shared.arena.delete("devices", node)

    shared.wait_sum(node, K + "gpu", "50")
    shared.pod("p", {"nvidia.com/gpu": "2"})
    assert shared.waits("p") == "0/1 nodes are available: 1 node(s) have no Device."
    shared.remove("p")
    # It comes back: the half that still runs is charged, so two whole cards are not free.
    shared.device(node, [words.gpu(0), words.gpu(1)])
    shared.wait_sum(node, K + "gpu", "200")
    shared.pod("q", {"nvidia.com/gpu": "2"})
    shared.waits("q", "too few free GPUs")
    shared.remove("runs")
    shared.bound("q", deadline=words.PROMPT)

    shared.arena.delete("devices", node)
    shared.remove("q")

    shared.wait(lambda: not shared.allocatable(node), what="the sums to go")
    shared.wait(
        lambda: not any("berth" in name for name in _labels(shared, node) if name != "devcluster.berth.dev/arena"),
        what="the labels to go",
    )


def _labels(world: World, node: str) -> dict[str, str]:
    labels: dict[str, str] = world.arena.get("nodes", node)["metadata"]["labels"]
    return labels


def test_deleted_node_takes_its_device_along(shared: World) -> None:
    gone, stays = shared.nodes(2, gpus=1)
    shared.pod("first", {"nvidia.com/gpu": "1"}, nodeSelector={"kubernetes.io/hostname": gone})
    shared.bound("first")

    shared.forget(gone)
    shared.arena.delete("nodes", gone)

    # The node controller discovers new kinds, such as Devices, every 30 s.
    shared.wait(lambda: not shared.shown(gone), what="the garbage collector")
    shared.pod("p", {"nvidia.com/gpu": "1"})
    assert shared.bound("p")["spec"]["nodeName"] == stays
    shared.pod("q", {"nvidia.com/gpu": "1"})
    assert shared.waits("q") == (
        "0/1 nodes are available: "
        "1 node(s) have too few free GPUs (1 requested with gpu-core 100 and gpu-memory-ratio 100)."
    )


def test_node_that_returns_has_its_devices_again(shared: World) -> None:
    [node] = shared.arena.nodes()
    shared.device(node, [words.gpu(0)])
    shared.pod("first", {"nvidia.com/gpu": "1"})
    shared.bound("first")

    shared.arena.delete("nodes", node)
    shared.pod("p", HALF)
    shared.waits("p", "no nodes available to schedule pods")
    shared.arena.cluster.create_nodes([node], labels=shared.arena.labels)

    # Its Device outlived it, and pods that ran there may still run.
    shared.wait(lambda: shared.arena.get("nodes", node), what="the node")
    if "first" in shared.bound_names():
        # The second reason of `p` would be reported ten seconds after its first.
        shared.pod("q", HALF)
        shared.waits("q", "0/1 nodes are available")
        shared.remove("first")
    shared.bound("p")


# --- owners of fields -----------------------------------------------------------------------------------------


def test_agent_and_operator_own_their_conditions(shared: World) -> None:
    [node] = shared.nodes()
    shared.wait(
        lambda: (
            {each["type"] for each in shared.shown(node)["status"]["conditions"]}
            == words.AGENT_TYPES | words.OPERATOR_TYPES
        ),
        what="all conditions",
    )

    assert _owned_conditions(shared, node) == {
        "berth-agent": words.AGENT_TYPES,
        "berth-operator": words.OPERATOR_TYPES,
    }


def _owned_conditions(world: World, node: str) -> dict[str, set[str]]:
    managers: dict[str, set[str]] = {}
    for entry in world.arena.get("devices", node)["metadata"]["managedFields"]:
        keys = entry["fieldsV1"].get("f:status", {}).get("f:conditions", {})
        types = {key.split('"')[3] for key in keys if key.startswith("k:")}
        if types:
            managers.setdefault(entry["manager"], set()).update(types)
    return managers


@pytest.mark.parametrize("taken", ["Ready", "DriverLoaded"])
def test_condition_that_another_manager_took_is_taken_back_and_others_stay(shared: World, taken: str) -> None:
    [node] = shared.nodes()
    before = words.condition(shared.shown(node), taken)
    condition = {"status": "False", "reason": "ByHand", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = [{**condition, "type": taken}, {**condition, "type": "Audited"}]
    shared.api.request(
        "PATCH",
        f"/apis/berth.dev/v1alpha1/devices/{node}/status",
        body={
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "Device",
            "metadata": {"name": node},
            "status": {"conditions": conditions},
        },
        query={"fieldManager": "somebody", "force": "true"},
        content_type=APPLY,
    )
    shared.wait(lambda: words.condition(shared.shown(node), taken)["reason"] == before["reason"], what="the condition")
    assert words.condition(shared.shown(node), "Audited")["reason"] == "ByHand"
