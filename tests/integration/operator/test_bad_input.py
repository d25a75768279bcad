"""Invalid input gets a clear message on its own object, and changes nothing else.

There is one row for each way by which a message gets to its pod. tests/unit/api/test_request.py and test_mistakes.py,
tests/unit/koordinator and tests/unit/core/filters have all the messages.

One operator serves the whole table. In addition to each row's objects, there are bystanders: a bound pod, a pod with
its own mistake, two nodes and their Devices. After the row, their resourceVersions are unchanged.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.operator import world as words
from tests.integration.operator.world import World

K, KOORDINATOR = "kubernetes.io/", "koordinator.sh/"
SCHEDULING = "scheduling.koordinator.sh/"
ONE_CARD: Final = {"nvidia.com/gpu": "1"}
NO_NODE: Final = "0/3 nodes are available: "
WITH_DEVICE: Final = NO_NODE + "1 node(s) have no Device, "


@pytest.fixture(scope="module")
def table(module_world: World) -> World:
    """Return a world with the bystanders, and a third node without a Device, for the Devices of rows."""
    module_world.arena.nodes(3)
    _, second, _ = _nodes(module_world)
    for node in _nodes(module_world)[:2]:
        module_world.device(node, [words.gpu(minor) for minor in range(4)])
        module_world.wait_sum(node, K + "gpu", "400")
    module_world.pod("bystander", ONE_CARD, nodeSelector={"kubernetes.io/hostname": second})
    module_world.bound("bystander")
    module_world.wait(lambda: module_world.events("bystander", "Scheduled"), what="its Event")
    module_world.wait_allocated(second, "1")
    module_world.pod("mistaken", {K + "gpu": "150"})
    module_world.waits("mistaken")
    module_world.wait(lambda: module_world.events("mistaken"), what="its Event")
    return module_world


@pytest.fixture
def rows(table: World) -> Iterator[World]:
    """Return the table's world; check after each row that nothing but the row's own objects changed."""
    before = _versions(table)
    yield table
    assert _versions(table) == before
    assert table.bound_names() == {"bystander"}
    for name in {each["metadata"]["name"] for each in table.arena.list("pods")} - {"bystander", "mistaken"}:
        table.remove(name)
    suspect = _nodes(table)[2]
    table.arena.delete("devices", suspect)
    table.wait(lambda: not table.allocatable(suspect), what="the row's sums to go")


def _nodes(world: World) -> list[str]:
    return sorted(each["metadata"]["name"] for each in world.arena.list("nodes", labelSelector=world.arena.selector))


def _versions(world: World) -> dict[str, str]:
    """Return the resourceVersions of all bystanders."""
    first, second, _ = _nodes(world)
    objects = [world.arena.get("pods", name) for name in ("bystander", "mistaken")]
    objects += [world.arena.get(kind, name) for kind in ("nodes", "devices") for name in (first, second)]
    return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"] for each in objects}


# --- pods with invalid requests ---------------------------------------------------------------------------------


def pod_row(name: str, requests: dict[str, str], message: str, **options: Any) -> Any:
    """Return a row: requests and other fields, and the start of the pod's message, as plain text."""
    return pytest.param(requests, options, message, id=name)


def annotated(name: str, key: str, value: str, message: str) -> Any:
    """Return a row of one card and an annotation."""
    return pod_row(name, ONE_CARD, message, annotations={key: value})


def labelled(name: str, key: str, value: str, message: str) -> Any:
    """Return a row of one card and a label."""
    return pod_row(name, ONE_CARD, message, labels={key: value})


PART_OR_WHOLE: Final = "allowed are 1 to 100 (part of a card) or multiples of 100"
CLAIM_VOLUME: Final = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}

PODS = [
    # Amounts that no card has.
    pod_row("gpu-150", {K + "gpu": "150"}, f"invalid request: {K}gpu: 150; {PART_OR_WHOLE}"),
    # Amounts that cannot be meant.
    pod_row("memory-20", {K + "gpu-memory": "20"}, f"invalid request: {K}gpu-memory: 20; allowed are whole bytes, "),
    annotated(
        "misspelt", "berth.dev/gpu-modle", "*A100*", "invalid request: annotation berth.dev/gpu-modle: did you mean "
    ),
    # Combinations that have no meaning.
    pod_row(
        "two-vendors",
        {**ONE_CARD, "amd.com/gpu": "1"},
        "invalid request: amd.com/gpu: 1, nvidia.com/gpu: 1 is not a request for GPUs; ",
    ),
    pod_row(
        "both-prefixes",
        {K + "gpu": "50", KOORDINATOR + "gpu": "50"},
        f"invalid request: {KOORDINATOR}gpu and {K}gpu are the same resource; request one of them",
    ),
    # Shares that cannot be divided evenly.
    pod_row(
        "shared-uneven",
        {K + "gpu.shared": "3", K + "gpu-memory-ratio": "100"},
        f"invalid request: {K}gpu-memory-ratio: 100, {K}gpu.shared: 3; allowed are multiples of 3, up to 100 on each",
    ),
    # Annotations and labels.
    annotated(
        "hint-broken", SCHEDULING + "device-allocate-hint", "{", "invalid request: annotation scheduling.koordin"
    ),
    annotated(
        "partition-valid",
        SCHEDULING + "gpu-partition-spec",
        "{}",
        f"{WITH_DEVICE}2 node(s) have no partition table of GPUs",
    ),
    annotated(
        "globs-empty", "berth.dev/gpu-model", " , ", 'invalid request: berth.dev/gpu-model: "," names no model; '
    ),
    labelled(
        "priority-word", "genius/priority", "high", 'invalid request: label genius/priority: "high" is not a whole'
    ),
    labelled(
        "genius-number",
        "genius/gpu-number",
        "1",
        "invalid request: label genius/gpu-number and resource nvidia.com",
    ),
    pod_row(
        "genius-each",
        {},
        'invalid request: label genius/gpu-memory-each: "8Gi"; allowed are whole numbers from 1 to',
        labels={"genius/gpu-memory-each": "8Gi"},
    ),
    labelled("gang-label", "scheduling.x-k8s.io/pod-group", "g", "PodGroup arena-"),
    annotated(
        "gang-annotation",
        "berth.dev/pod-group",
        "g",
        "invalid request: annotation berth.dev/pod-group: annotation berth.dev/pod-group-min-member must be set, too",
    ),
    pod_row(
        "topology-of-two",
        {"nvidia.com/gpu": "2"},
        f"{WITH_DEVICE}2 node(s) have too few healthy GPUs with NVLinks among all of them (at most 1 of 2)",
        annotations={"berth.dev/gpu-topology": "nvlink"},
    ),
    pod_row("volume-claim", ONE_CARD, f'{NO_NODE}persistentvolumeclaim "data" not found', volumes=[CLAIM_VOLUME]),
    # Amounts that no cluster has.
    pod_row(
        "cards-1e15",
        {"nvidia.com/gpu": "1000000000000000"},
        f"{WITH_DEVICE}2 node(s) have too few healthy GPUs (1000000000000000 requested",
    ),
    pod_row(
        "cards-9e18",
        {"nvidia.com/gpu": "9223372036854775807"},
        "invalid request: nvidia.com/gpu: 9223372036854775807; allowed are amounts below 9007199254740992 (container ",
    ),
    pod_row(
        "sum-150",
        {},
        f"invalid request: {K}gpu: 150; {PART_OR_WHOLE} (the sum of 70 in container a and 80 in container b)",
        containers=[
            {"name": name, "image": "none", "resources": {"limits": {K + "gpu": amount}}}
            for name, amount in (("a", "70"), ("b", "80"))
        ],
    ),
    pod_row(
        "own-domain", {"berth.dev/gpu": "1"}, f"{NO_NODE}3 Insufficient berth.dev/gpu. no node has berth.dev/gpu ("
    ),
    pod_row(
        "no-such-vendor", {"amd.com/gpu": "1"}, f"{NO_NODE}1 Insufficient amd.com/gpu, 2 node(s) have no GPUs of AMD"
    ),
]


@pytest.mark.parametrize(("requests", "options", "message"), PODS)
def test_bad_pod_is_told_and_not_bound(rows: World, requests: dict[str, str], options: Any, message: str) -> None:
    rows.pod("row", requests, **options)

    reported = rows.waits("row")
    assert reported.startswith(message), reported
    [event] = rows.wait(lambda: rows.events("row"), what="the Event")
    assert (event["reason"], event["message"]) == ("FailedScheduling", rows.message("row"))


# --- what the API server refuses --------------------------------------------------------------------------------


def refused(name: str, change: Callable[[Manifest], None], pattern: str) -> Any:
    """Return a row: a change that makes a valid object invalid, and a pattern of the API server's refusal."""
    return pytest.param(change, pattern, id=name)


def card(**fields: Any) -> Callable[[Manifest], None]:
    """Return a change of the Device's first card."""

    def change(device: Manifest) -> None:
        device["spec"]["devices"][0].update(fields)

    return change


def amount(value: Any, name: str = K + "gpu-memory") -> Callable[[Manifest], None]:
    """Return a change of a quantity of the first card."""
    return lambda device: device["spec"]["devices"][0]["resources"].update({name: value})


def cards(*entries: Manifest) -> Callable[[Manifest], None]:
    """Return a change that replaces the cards."""
    return lambda device: device["spec"].update({"devices": list(entries)})


REFUSED_DEVICES = [
    refused("same-minor-twice", cards(words.gpu(0), words.gpu(0, id="GPU-other")), r"spec.devices\[1\].*[Dd]uplicate"),
    refused("negative-quantity", amount(-1), "should be greater than or equal to 0"),
    refused("negative-text", amount("-80Gi"), "should match"),
    refused("malformed-quantity", amount("80 Gi"), "should match"),
    refused("word-quantity", amount("much"), "should match"),
    refused("quantity-long", amount("1" * 33), "Too long|should match|may not be more than 32"),
    refused("quantity-list", amount([80]), "must be of type (integer|string)|Invalid value"),
    refused("type-no-word", card(type="T P U"), "should match"),
    refused("type-missing", lambda device: device["spec"]["devices"][0].pop("type"), "type.*(Required|missing)"),
    refused("id-missing", lambda device: device["spec"]["devices"][0].pop("id"), r"devices\[0\].id: Required"),
    refused("id-empty", card(id=""), r"devices\[0\].id.*should be at least 1 chars"),
    refused("id-long", card(id="x" * 129), r"devices\[0\].id: Too long"),
    refused("model-long", card(model="x" * 257), r"devices\[0\].model: Too long"),
    refused("minor-negative", card(minor=-1), r"devices\[0\].minor.*greater than or equal to 0"),
    refused("minor-large", card(minor=65536), r"devices\[0\].minor.*less than or equal to 65535"),
    refused("health-word", card(health="yes"), "must be of type boolean|Invalid value|expected boolean"),
    refused("label-long", card(labels={"a": "x" * 64}), r"labels.a: Too long"),
    refused(
        "too-many-cards",
        cards(*(words.gpu(minor) for minor in range(257))),
        "spec.devices: Too many: 257: must have at most 256 items",
    ),
    refused("too-many-links", card(links=[{"minor": 1, "type": "NVLink"}] * 65), "links: Too many: 65"),
    refused("link-malformed", card(links=[{"minor": 1, "type": "two ropes"}]), r"links\[0\].type in body should match"),
    refused("no-spec", lambda device: device.pop("spec"), "spec: Required value"),
]


@pytest.mark.parametrize(("change", "pattern"), REFUSED_DEVICES)
def test_bad_device_is_refused(rows: World, change: Callable[[Manifest], None], pattern: str) -> None:
    device = _device(rows)
    change(device)

    with pytest.raises(ApiError) as refusal:
        rows.api.post("/apis/berth.dev/v1alpha1/devices", device)

    assert refusal.value.status in (400, 422)
    assert re.search(pattern, str(refusal.value)), refusal.value


def _device(world: World) -> Manifest:
    return {
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Device",
        "metadata": {"name": _nodes(world)[2]},
        "spec": {"devices": [words.gpu(0), words.gpu(1)]},
    }


@pytest.mark.parametrize(
    ("name", "value", "pattern"),
    [
        pytest.param(K + "gpu", "-50", "must be greater than or equal to 0", id="negative"),
        pytest.param("nvidia.com/gpu", "1500m", "must be an integer", id="fraction-of-a-card"),
        pytest.param(K + "gpu-memory", "20 Gi", "quantities must match", id="malformed"),
        pytest.param(K + "gpu", "half", "quantities must match", id="word"),
    ],
)
def test_bad_quantity_of_a_pod_is_refused(rows: World, name: str, value: str, pattern: str) -> None:
    with pytest.raises(ApiError, match=pattern) as refusal:
        rows.pod("row", {name: value})

    assert refusal.value.status in (400, 422)


@pytest.mark.parametrize(
    ("condition", "pattern"),
    [
        pytest.param({"status": "Perhaps"}, 'Unsupported value: "Perhaps"', id="status"),
        pytest.param({"reason": ""}, "reason", id="reason"),
        pytest.param({"lastTransitionTime": "yesterday"}, "date-time", id="time"),
        pytest.param({"message": "x" * 4097}, "Too long", id="message"),
    ],
)
def test_bad_condition_is_refused(rows: World, condition: dict[str, str], pattern: str) -> None:
    rows.api.post("/apis/berth.dev/v1alpha1/devices", _device(rows))
    good = {
        "type": "DriverLoaded",
        "status": "True",
        "reason": "Fine",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }

    with pytest.raises(ApiError, match=pattern):
        rows.arena.merge(
            "devices", _nodes(rows)[2], {"status": {"conditions": [{**good, **condition}]}}, subresource="status"
        )


# --- Devices with contradictions --------------------------------------------------------------------------------


def contradiction(name: str, change: Callable[[Manifest], None], message: str, *, left: int = 1) -> Any:
    """Return a row: a change to a valid Device of two cards, its message, and how many cards stay usable."""
    return pytest.param(change, message, left, id=name)


CONTRADICTIONS = [
    contradiction(
        "same-id-twice",
        cards(words.gpu(0, id="GPU-x"), words.gpu(1, id="GPU-x")),
        "spec.devices[0].id: GPU-x is used more than once among the gpu devices; spec.devices[1].id: GPU-x is used",
        left=0,
    ),
    contradiction(
        "core-50",
        amount(50, K + "gpu-core"),
        "spec.devices[0].resources.kubernetes.io/gpu-core: 50; allowed is 100 for a card",
    ),
    contradiction(
        "link-to-nowhere",
        card(links=[{"minor": 7, "type": "NVLink", "count": 4}]),
        "spec.devices[0].links: minor 7 is not another gpu device of this node",
    ),
]


@pytest.mark.parametrize(("change", "message", "left"), CONTRADICTIONS)
def test_device_that_contradicts_itself_is_told(
    rows: World, change: Callable[[Manifest], None], message: str, left: int
) -> None:
    node = _nodes(rows)[2]
    device = _device(rows)
    change(device)
    rows.renew(node, seconds=3600)

    rows.api.post("/apis/berth.dev/v1alpha1/devices", device)

    reported = rows.wait_condition(node, "Valid", "False")
    assert reported.startswith(message), reported
    assert rows.shown(node)["status"]["healthy"] == left
    # Its valid cards can be allocated, the others cannot; a pod that requests both waits.
    rows.pod("row", {"nvidia.com/gpu": "2"}, nodeSelector={"kubernetes.io/hostname": node})
    assert f"1 node(s) have too few healthy GPUs (2 requested, at most {left} on a node)" in rows.waits("row")
    # The pod is bound as soon as the Device is corrected.
    rows.arena.merge("devices", node, {"spec": {"devices": [words.gpu(0, health=False), words.gpu(1, health=False)]}})
    rows.wait_condition(node, "Valid", "True")


# --- nodes that lack something ----------------------------------------------------------------------------------


def test_unreadable_quantity_of_a_node_stops_nothing(rows: World) -> None:
    suspect = _nodes(rows)[2]
    absurd = {"capacity": {"example.com/wand": "9E"}, "allocatable": {"example.com/wand": "9E"}}
    rows.arena.merge("nodes", suspect, {"status": absurd}, subresource="status")

    rows.pod("row", {K + "gpu": "150"})

    assert rows.waits("row").startswith("invalid request")
    gone = {"capacity": {"example.com/wand": None}, "allocatable": {"example.com/wand": None}}
    rows.arena.merge("nodes", suspect, {"status": gone}, subresource="status")


def test_pod_whose_status_was_emptied_waits_as_before(rows: World) -> None:
    node = _nodes(rows)[2]
    rows.pod("row", ONE_CARD, nodeSelector={"kubernetes.io/hostname": node})
    rows.waits("row", "1 node.s. have no Device")
    rows.arena.merge("pods", "row", {"status": {"phase": None, "conditions": None}}, subresource="status")
    assert "phase" not in rows.arena.get("pods", "row")["status"]

    rows.device(node, [])

    rows.waits("row", "1 .*too few healthy GPUs .1 requested")
