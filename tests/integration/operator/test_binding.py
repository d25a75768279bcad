"""A bound pod's annotations record what it got: node, cards, amounts, each container's view, the term.

tests/unit/api/test_request.py and tests/unit/koordinator have all ways of requesting cards, and test_model.py models.
"""

import re

import pytest

from tests.integration.operator import world as words
from tests.integration.operator.world import World

K, KOORDINATOR = "kubernetes.io/", "koordinator.sh/"
GIB_80 = "80Gi"


def card(core: int | None, memory: str, ratio: int, prefix: str = K) -> dict[str, str]:
    """Return a pod's grant of one card."""
    parts = {"gpu-core": core, "gpu-memory": memory, "gpu-memory-ratio": ratio}
    return {prefix + name: str(amount) for name, amount in parts.items() if amount is not None}


WHOLE = card(100, GIB_80, 100)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param({"nvidia.com/gpu": "1"}, [WHOLE], id="whole"),
        pytest.param(
            {K + "gpu.shared": "2", K + "gpu-core": "60", K + "gpu-memory": "32Gi"},
            [card(30, "16Gi", 20)] * 2,
            id="shared-core-memory",
        ),
        pytest.param({KOORDINATOR + "gpu": "50"}, [card(50, "40Gi", 50, KOORDINATOR)], id="other-prefix"),
    ],
)
def test_pod_gets_the_cards_it_asks_for(
    shared: World, requests: dict[str, str], expected: list[dict[str, str]]
) -> None:
    [node] = shared.nodes()

    shared.pod("p", requests)

    pod = shared.bound("p")
    cards = words.allocation(pod)["gpu"]
    ids = {each["minor"]: each["id"] for each in shared.shown(node)["spec"]["devices"] if each["type"] == "gpu"}
    assert pod["spec"]["nodeName"] == node
    assert [each["resources"] for each in cards] == expected
    assert len({each["minor"] for each in cards}) == len(expected)
    assert [each["id"] for each in cards] == [ids[each["minor"]] for each in cards]
    annotations = pod["metadata"]["annotations"]
    assert annotations[f"main.{words.VISIBLE}"].split(",") == [each["id"] for each in cards]
    assert annotations[words.EPOCH] == _term(shared)
    # Kubernetes copies a Binding's labels to its pod: the fence's mark, and the node's place, which it has added.
    labels = shared.arena.get("nodes", node)["metadata"]["labels"]
    place = {key: labels[key] for key in labels if key.startswith("topology.kubernetes.io/")}
    assert len(place) == 2
    assert pod["metadata"]["labels"] == {"berth.dev/fenced-by": shared.arena.lease_name, **place}


def _term(world: World) -> str:
    return str(world.arena.get("leaderleases", world.arena.lease_name)["spec"]["term"])


def test_model_decides_the_card(shared: World) -> None:
    shared.nodes(gpus=2)
    [mixed] = shared.nodes(profile=["a100", "a100", "t4"], gpus=3)

    shared.pod("p", {K + "gpu": "50"}, annotations={"berth.dev/gpu-model": "*h100*, *T4"})

    pod = shared.bound("p")
    assert (pod["spec"]["nodeName"], words.minors(pod)) == (mixed, [2])
    assert words.allocation(pod)["gpu"][0]["resources"] == card(50, "7680Mi", 50)


def test_cards_nics_and_fpgas_come_together(shared: World) -> None:
    shared.nodes(rdma=2, fpga=1)

    shared.pod("p", {"nvidia.com/gpu": "2", K + "rdma": "200", K + "fpga": "30"})

    allocated = words.allocation(shared.bound("p"))
    assert {kind: len(cards) for kind, cards in allocated.items()} == {"gpu": 2, "rdma": 2, "fpga": 1}
    assert [each["resources"] for each in allocated["rdma"]] == [{K + "rdma": "100"}] * 2
    assert allocated["fpga"][0]["resources"] == {K + "fpga": "30"}


def test_each_container_sees_its_own_cards(shared: World) -> None:
    shared.nodes()
    containers = [
        {"name": name, "image": "none", "resources": {"limits": limits, "requests": limits}}
        for name, limits in {"one": {"nvidia.com/gpu": "1"}, "two": {"nvidia.com/gpu": "2"}, "none": {}}.items()
    ]

    shared.arena.create([shared.arena.pod("p", containers=containers)])

    pod = shared.bound("p")
    ids = [each["id"] for each in words.allocation(pod)["gpu"]]
    visible = {key: value for key, value in pod["metadata"]["annotations"].items() if key.endswith(words.VISIBLE)}
    assert visible == {f"one.{words.VISIBLE}": ids[0], f"two.{words.VISIBLE}": ",".join(ids[1:])}


def test_a_pod_that_asks_by_label_gets_cards_that_all_its_containers_see(shared: World) -> None:
    shared.nodes()
    containers = [{"name": name, "image": "none"} for name in ("one", "two")]
    labels = {"genius/gpu-number": "2", "genius/gpu-memory-each": "1024"}

    shared.arena.create([shared.arena.pod("p", containers=containers, labels=labels)])

    pod = shared.bound("p")
    cards = words.allocation(pod)["gpu"]
    assert [each["resources"][K + "gpu-memory"] for each in cards] == ["1Gi", "1Gi"]
    ids = ",".join(each["id"] for each in cards)
    visible = {key: value for key, value in pod["metadata"]["annotations"].items() if key.endswith(words.VISIBLE)}
    assert visible == {f"one.{words.VISIBLE}": ids, f"two.{words.VISIBLE}": ids}


def test_pod_without_devices_gets_no_allocation(shared: World) -> None:
    [plain] = shared.arena.nodes()
    shared.nodes()  # once the operator knows this node, it knows those that were made before

    shared.pod("p", {"cpu": "1"})

    pod = shared.bound("p")
    assert pod["spec"]["nodeName"] == plain  # nodes with devices are avoided
    assert set(pod["metadata"]["annotations"]) == {words.EPOCH}


def test_every_bound_pod_gets_one_scheduled_event(shared: World) -> None:
    shared.nodes(2)
    names = [f"p{number}" for number in range(30)]

    shared.pods(names, {K + "gpu": "50"})

    for name in names:
        shared.bound(name)
    shared.wait(lambda: all(shared.events(name, "Scheduled") for name in names), what="the Events")
    for name in names:
        [event] = shared.events(name)
        assert (event["type"], event["reportingComponent"]) == ("Normal", shared.arena.scheduler_name)
        assert event["message"].startswith(
            f"Successfully assigned {shared.arena.namespace}/{name} to {shared.arena.id}"
        )
        assert re.search(r" with GPU [0-7] \(core 50, memory 40Gi\)$", event["message"])


def test_no_card_is_given_twice(shared: World) -> None:
    nodes = shared.nodes(2, gpus=4)
    names = [f"p{number}" for number in range(24)]

    shared.pods(names, {K + "gpu": "50"})

    shared.wait(lambda: len(shared.bound_names()) == 16, what="16 halves of 8 cards to be taken")
    pods = [each for each in shared.arena.list("pods") if each["spec"].get("nodeName")]
    halves = [(each["spec"]["nodeName"], words.minors(each)[0]) for each in pods]
    assert {place: halves.count(place) for place in halves} == {
        (node, minor): 2 for node in nodes for minor in range(4)
    }
    for name in set(names) - shared.bound_names():
        assert "2 node(s) have too few free GPUs" in shared.waits(name)


def test_pods_of_other_schedulers_take_cpu_but_are_not_bound(shared: World) -> None:
    [node] = shared.nodes()
    shared.pod("foreign", {"cpu": "60"}, nodeName=node, scheduler_name="somebody-else")
    shared.close_node(node, {}, why="1 Insufficient cpu", requests={"cpu": "8"})
    shared.pod("alien", {"cpu": "1"}, scheduler_name="no-scheduler")

    shared.pod("p", {"cpu": "8"})

    assert "1 Insufficient cpu" in shared.waits("p")
    shared.remove("foreign")
    shared.bound("p", deadline=words.PROMPT)
    assert shared.bound_names() == {"p"}
    assert not shared.message("alien")


def test_gated_pod_waits_for_its_gates(shared: World) -> None:
    shared.nodes()
    shared.pod("gated", {"nvidia.com/gpu": "1"}, schedulingGates=[{"name": "example.com/later"}])
    shared.pod("free", {"nvidia.com/gpu": "1"})
    shared.bound("free")
    assert shared.bound_names() == {"free"}

    shared.arena.merge("pods", "gated", {"spec": {"schedulingGates": None}})

    shared.bound("gated", deadline=words.PROMPT)
