"""The extender over HTTP: requests as kube-scheduler sends them, and requests that it never sends."""

import contextlib
import io
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp.test_utils import TestServer
from prometheus_client import REGISTRY

from berth_operator.apis.extender.extender_server import PATH, VERBS, ExtenderServer
from berth_operator.apis.extender.protocol import MAX_BYTES
from berth_operator.core.decision.extender import NOT_BEST, UNKNOWN
from tests.component.extender.extender_stage import HALF, WHOLE, Raw, Stage, asking
from tests.component.world import World
from tests.objects.builders import A100, NVIDIA, device, entry, half, node, pod, whole

H100 = "NVIDIA H100 80GB HBM3"
NODES = ("two", "one", "h100", "full", "bare", "down")
MODEL = "nvidia-gpu-scheduler/gpu.model"
NO_DEVICE = "node(s) have no Device"
LWS: Raw = {
    "labels": {"leaderworkerset.sigs.k8s.io/name": "x", "leaderworkerset.sigs.k8s.io/group-index": "0"},
    "annotations": {"leaderworkerset.sigs.k8s.io/size": "2"},
}
NOT_READY = "node(s) were not ready"
NO_ROOM = "node(s) have too few free GPUs (1 requested with gpu-core 100 and gpu-memory-ratio 100)"


@dataclass
class Served:
    """A stage, and its HTTP server."""

    stage: Stage
    server: ExtenderServer
    url: str
    session: aiohttp.ClientSession

    async def post(self, verb: str, body: bytes | Raw) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.session.post(f"{self.url}{PATH}/{verb}", data=data) as answer:
            return answer.status, orjson.loads(await answer.read())


def furnished() -> World:
    """Return a world with nodes of every kind: free, of another model, full, without a Device, not ready."""
    world = World()
    world.add_node("two", cards=2)
    world.add_node("one")
    world.cluster.node_cache.put_node(node("h100"))
    world.cluster.node_cache.put_device(device("h100", entry(model=H100)))
    world.add_node("full")
    world.submit(pod("low", WHOLE, on="full", allocated=whole(0), schedulerName="default-scheduler"))
    world.add_node("half")
    world.submit(pod("share", HALF, on="half", allocated=half(0), schedulerName="default-scheduler"))
    world.cluster.node_cache.put_node(node("bare"))
    world.add_node("down", conditions=[{"type": "Ready", "status": "False"}])
    return world


@contextlib.asynccontextmanager
async def served(world: World | None = None, **options: Any) -> AsyncIterator[Served]:
    stage = Stage(world or furnished(), **options)
    server = ExtenderServer(leads=lambda: stage.world.term is not None)
    server.extender = stage.extender
    async with (
        stage.world.running(),
        TestServer(server.application()) as http,
        aiohttp.ClientSession() as session,
    ):
        yield Served(stage, server, str(http.make_url("")).rstrip("/"), session)


def request_for(raw: Raw, *names: str) -> Raw:
    return {"Pod": raw, "Nodes": None, "NodeNames": list(names)}


def filtered(*names: str, failed: Raw | None = None, never: Raw | None = None, error: str = "") -> Raw:
    return {
        "Nodes": None,
        "NodeNames": list(names),
        "FailedNodes": failed or {},
        "FailedAndUnresolvableNodes": never or {},
        "Error": error,
    }


def everywhere(reason: str, *names: str) -> Raw:
    return filtered(never=dict.fromkeys(names or ("two", "one"), reason))


def model(name: str, key: str = MODEL) -> Raw:
    return asking(annotations={key: name})


def of_model(wanted: str, hint: str = "") -> str:
    there = f"models: {A100}, {H100}"
    return f"node(s) have too few healthy GPUs of model {wanted} (1 requested; {there}{hint})"


def without(raw: Raw, *path: str) -> Raw:
    """Return a copy of an object without a field."""
    first, *rest = path
    if not rest:
        return {key: value for key, value in raw.items() if key != first}
    return {**raw, first: without(raw[first], *rest)}


def having(raw: Raw, value: Any, *path: str) -> Raw:
    """Return a copy of an object with another value of a field."""
    first, *rest = path
    return {**raw, first: having(raw[first], value, *rest) if rest else value}


GOOD = {"filter": request_for(asking(), "one"), "prioritize": request_for(asking(), "one")} | {
    "preempt": {"Pod": asking(), "NodeNameToMetaVictims": {}},
    "bind": {"PodName": "p", "PodNamespace": "ns", "PodUID": "uid-p", "Node": "one"},
}


# --- what cannot be read: 400 ---------------------------------------------------------------------------------------

BROKEN = {
    "an empty body": b"",
    "half of it": b'{"Pod": {',
    "a list": b"[]",
    "no UTF-8": b'{"Pod": "\xff"}',
    "no number of JSON": b'{"Pod": NaN}',
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
async def test_a_body_that_is_no_json_object_is_refused(verb: str, body: bytes) -> None:
    async with served() as extender:
        status, answer = await extender.post(verb, body)
    assert status == 400
    assert answer["message"].startswith("the body")


WRONG_PODS = {
    "no pod": (lambda good: without(good, "Pod"), "Pod: must be an object, not missing"),
    "an empty pod": (lambda good: having(good, {}, "Pod"), "Pod.metadata: must be an object, not missing"),
    "no name": (lambda good: without(good, "Pod", "metadata", "name"), "Pod.metadata.name: must be a string"),
    "no namespace": (lambda good: without(good, "Pod", "metadata", "namespace"), "Pod.metadata.namespace: must be"),
    "no UID": (lambda good: without(good, "Pod", "metadata", "uid"), "Pod.metadata.uid: must be a string"),
    "a huge UID": (lambda good: having(good, "u" * 129, "Pod", "metadata", "uid"), "must have 1 to 128 characters"),
    "a path for a name": (lambda good: having(good, "../x", "Pod", "metadata", "name"), 'not "../x"'),
    "no containers": (lambda good: without(good, "Pod", "spec", "containers"), "Pod.spec.containers: must be a list"),
    "a number in requests": (
        lambda good: having(good, [{"name": "c", "resources": {"requests": 5}}], "Pod", "spec", "containers"),
        "Pod: is no valid pod",
    ),
    "a text as priority": (lambda good: having(good, "high", "Pod", "spec", "priority"), "must be a whole number"),
    "a list as scheduler": (lambda good: having(good, ["x"], "Pod", "spec", "schedulerName"), "must be a string"),
    "a list as nominated node": (
        lambda good: having(good, {"nominatedNodeName": ["x"]}, "Pod", "status"),
        "Pod.status.nominatedNodeName: must be a string, not a list",
    ),
}


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
@pytest.mark.parametrize(("change", "message"), WRONG_PODS.values(), ids=WRONG_PODS)
async def test_a_request_without_a_valid_pod_is_refused(verb: str, change: Callable[[Raw], Raw], message: str) -> None:
    async with served() as extender:
        status, answer = await extender.post(verb, change(GOOD[verb]))
        assert extender.stage.reserved() == {}
    assert (status, message in answer["message"]) == (400, True), answer


WRONG_FIELDS = {
    "names in a text": ("filter", "one", ("NodeNames",), "NodeNames: must be a list, not a string"),
    "a number as a name": ("prioritize", [1], ("NodeNames",), "NodeNames: must have only strings"),
    "victims in a list": ("preempt", ["a"], ("NodeNameToMetaVictims",), "NodeNameToMetaVictims: must be an object"),
    "victims of a node in a list": ("preempt", {"a": [1]}, ("NodeNameToMetaVictims",), "NodeNameToMetaVictims.a: must"),
    "a victim without UID": (
        "preempt",
        {"a": {"Pods": [{}]}},
        ("NodeNameToMetaVictims",),
        "Pods.UID: must be a string",
    ),
    "a number as a UID": ("bind", 5, ("PodUID",), "PodUID: must be a string, not a number"),
    "a path as a name": ("bind", "a/../../b", ("PodName",), 'PodName: must be a name of Kubernetes, not "a/../../b"'),
    "no namespace": ("bind", "", ("PodNamespace",), 'PodNamespace: must be a name of Kubernetes, not ""'),
    "a list as a node": ("bind", ["one"], ("Node",), "Node: must be a string, not a list"),
}


@pytest.mark.parametrize(("verb", "value", "path", "message"), WRONG_FIELDS.values(), ids=WRONG_FIELDS)
async def test_a_field_of_the_wrong_type_is_refused(verb: str, value: Any, path: Sequence[str], message: str) -> None:
    async with served() as extender:
        status, answer = await extender.post(verb, having(GOOD[verb], value, *path))
    assert (status, message in answer["message"]) == (400, True), answer


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "Nodes: must be an object, not a list"),
        ({"items": {}}, None),
        ({"items": {"a": 1}}, "Nodes.items: must be a list, not an object"),
        ({"items": [1]}, "Nodes.items: must be an object, not a number"),
        ({"items": [{}]}, "Nodes.items.metadata: must be an object, not missing"),
        ({"items": [{"metadata": {"name": True}}]}, "Nodes.items.metadata.name: must be a string, not a boolean"),
    ],
)
async def test_whole_nodes_of_the_wrong_type_are_refused(nodes: Any, message: str | None) -> None:
    async with served() as extender:
        status, answer = await extender.post("filter", {"Pod": asking(), "Nodes": nodes})
    assert (status, answer.get("message")) == ((200, None) if message is None else (400, message))


# --- filter ---------------------------------------------------------------------------------------------------------

FILTERED = {
    "one node": (request_for(asking(), "one"), filtered("one")),
    "the best of all, with a reason for each other": (
        request_for(asking(), *NODES),
        filtered(
            "two",
            failed={"one": NOT_BEST, "h100": NOT_BEST, "full": NO_ROOM},
            never={"bare": NO_DEVICE, "down": NOT_READY},
        ),
    ),
    "keys in lower case": (
        {"pod": asking(), "nodenames": ["one"]},
        filtered("one"),
    ),
    "keys in upper case": ({"POD": asking(), "NODENAMES": ["one"]}, filtered("one")),
    "keys in camel case": ({"pod": asking(), "nodeNames": ["one"], "nodes": None}, filtered("one")),
    "unknown keys": ({**request_for(asking(), "one"), "Extra": {"a": [1]}}, filtered("one")),
    "a name twice": (request_for(asking(), "full", "full", "one", "one"), filtered("one", failed={"full": NO_ROOM})),
    "an unknown node": (request_for(asking(), "ghost", "one"), filtered("one", never={"ghost": UNKNOWN})),
    "only unknown nodes": (request_for(asking(), "g1", "g2"), everywhere(UNKNOWN, "g1", "g2")),
    "an empty name": (request_for(asking(), ""), everywhere(UNKNOWN, "")),
    "no names": (request_for(asking()), filtered(error="the request names no nodes")),
    "neither names nor nodes": ({"Pod": asking()}, filtered(error="the request names no nodes")),
    "a full node": (request_for(asking(), "full"), filtered(failed={"full": NO_ROOM})),
    "a node without a Device": (request_for(asking(), "bare"), everywhere(NO_DEVICE, "bare")),
    "a node that is not ready": (request_for(asking(), "down"), everywhere(NOT_READY, "down")),
    "the model": (
        request_for(model(H100), "one", "h100"),
        filtered("h100", never={"one": of_model(H100)}),
    ),
    "the model in other letters and with spaces": (
        request_for(model(f"  {H100.lower()} "), "one", "h100"),
        filtered("h100", never={"one": of_model(H100.lower())}),
    ),
    "a part of the model's name": (
        request_for(model("H100"), "h100"),
        everywhere(
            of_model("H100", f'; {MODEL} is the whole name; for a part of it use berth.dev/gpu-model: "*H100*"'), "h100"
        ),
    ),
    "a pattern of models": (
        request_for(model("*H100*", "berth.dev/gpu-model"), "one", "h100"),
        filtered("h100", never={"one": of_model("*H100*")}),
    ),
    "more cards than any node has": (
        request_for(asking(requests={NVIDIA: 3}), "two", "one"),
        everywhere("node(s) have too few healthy GPUs (3 requested, at most 2 on a node)"),
    ),
    "two cards": (
        request_for(asking(requests={NVIDIA: 2}), "one", "two"),
        filtered("two", never={"one": "node(s) have too few healthy GPUs (2 requested, at most 1 on a node)"}),
    ),
    "a share": (request_for(asking(requests=HALF), "one"), filtered("one")),
    "limits alone": (
        request_for(
            having(
                asking(), [{**asking()["spec"]["containers"][0], "resources": {"limits": WHOLE}}], "spec", "containers"
            ),
            "one",
        ),
        filtered("one"),
    ),
    "no scheduler name": (request_for(without(asking(), "spec", "schedulerName"), "one"), filtered("one")),
    "no devices": (request_for(pod("p", {"cpu": 1}, schedulerName="default-scheduler"), "x"), filtered("x")),
    "another scheduler": (
        request_for(asking(schedulerName="berth-scheduler"), "one", "two"),
        everywhere('the extender takes no pods with schedulerName "berth-scheduler"; allowed are default-scheduler'),
    ),
    "an invalid request": (
        request_for(asking(requests={"koordinator.sh/gpu-core": 250}), "one", "two"),
        None,
    ),
    "a member of a gang": (
        request_for(asking(labels={"scheduling.x-k8s.io/pod-group": "g"}), "one", "two"),
        everywhere("PodGroup ns/g: gangs cannot be scheduled through the extender; use schedulerName: berth-scheduler"),
    ),
    "a pod whose controller defines a gang": (
        request_for(asking(**LWS), "one"),
        filtered("one"),
    ),
    "labels alone": (
        request_for(asking(requests={}, labels={"genius/gpu-number": "1"}), "one", "two"),
        everywhere(
            "the pod requests GPUs by labels alone, which kube-scheduler cannot count; "
            "use schedulerName: berth-scheduler"
        ),
    ),
    "resource claims": (
        request_for(asking(resourceClaims=[{"name": "c"}]), "one", "two"),
        everywhere("pod uses spec.resourceClaims, which Berth does not support"),
    ),
    "its nominated node": (
        request_for(asking(status={"nominatedNodeName": "two"}), "one", "two"),
        filtered("two", failed={"one": NOT_BEST}),
    ),
    "a pod that is bound": (
        request_for(asking("low"), "one"),
        filtered(error="pod ns/low is already bound to full"),
    ),
    "a cordoned selection, which kube-scheduler has checked": (
        request_for(asking(nodeSelector={"no": "node"}, tolerations=[]), "one"),
        filtered("one"),
    ),
    "claims, which kube-scheduler binds": (
        request_for(asking(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]), "one"),
        filtered("one"),
    ),
}


@pytest.mark.parametrize(("body", "expected"), FILTERED.values(), ids=FILTERED)
async def test_filter(body: Raw, expected: Raw | None) -> None:
    async with served() as extender:
        status, answer = await extender.post("filter", body)
        assert status == 200
        if expected is not None:
            assert answer == expected
        reserved = extender.stage.reserved()
    assert reserved == ({"p": answer["NodeNames"][0]} if answer["NodeNames"] not in ([], ["x"]) else {})


async def test_an_invalid_request_is_refused_on_all_nodes() -> None:
    body, _ = FILTERED["an invalid request"]
    async with served() as extender:
        _, answer = await extender.post("filter", body)
    assert set(answer["FailedAndUnresolvableNodes"]) == {"one", "two"}
    assert all(each.startswith("invalid request: ") for each in answer["FailedAndUnresolvableNodes"].values())


async def test_a_pod_that_would_see_all_gpus_is_refused() -> None:
    async with served() as extender:
        _, answer = await extender.post("filter", request_for(asking(bare=True), "one"))
    [reason] = answer["FailedAndUnresolvableNodes"].values()
    assert reason.startswith("NotInjected: ")


@pytest.mark.parametrize("items", ["items", "Items"])
async def test_whole_nodes_are_answered_as_they_came(items: str) -> None:
    whole_nodes = [{**node(name), "spec": {"podCIDR": f"10.0.{number}.0/24"}} for number, name in enumerate(NODES)]
    async with served() as extender:
        _, answer = await extender.post("filter", {"Pod": asking(), "Nodes": {items: whole_nodes}, "NodeNames": None})
    assert answer["Nodes"] == {"items": [whole_nodes[0]]}
    assert answer["NodeNames"] is None
    assert {*answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]} == {*NODES} - {"two"}


async def test_five_thousand_names_get_one_node_or_a_reason_each() -> None:
    names = [f"n{number}" for number in range(5000)]
    async with served() as extender:
        _, answer = await extender.post("filter", request_for(asking(), *names, "one"))
        assert answer == filtered("one")
        _, answer = await extender.post("filter", request_for(asking("q"), *names, "full"))
        assert answer == filtered(never=dict.fromkeys(names, UNKNOWN), failed={"full": NO_ROOM})


async def test_several_nodes_only_if_set() -> None:
    async with served(nodes=2) as extender:
        _, answer = await extender.post("filter", request_for(asking(), "two", "one", "full"))
    assert answer == filtered("two", "one", failed={"full": NO_ROOM})


# --- prioritize -----------------------------------------------------------------------------------------------------

SCORED = {
    "the best has ten": ("policy", asking(requests=HALF), ("two", "half"), [1, 10]),
    "nodes that do not fit have none": ("policy", asking(), ("full", "one", "down"), [0, 10, 0]),
    "an unknown node has none": ("policy", asking(), ("ghost", "one"), [0, 10]),
    "equal nodes have ten": ("policy", asking(), ("one", "h100"), [10, 10]),
    "no devices": ("policy", pod("p", {"cpu": 1}, schedulerName="default-scheduler"), ("one", "two"), [0, 0]),
    "a gang": ("policy", asking(labels={"scheduling.x-k8s.io/pod-group": "g"}), ("one", "two"), [0, 0]),
    "no node fits": ("policy", asking(), ("full", "ghost"), [0, 0]),
    "no names": ("policy", asking(), (), []),
    "free cards of the model": ("free-cards", model(A100), ("two", "one", "h100", "full", "ghost"), [2, 1, 0, 0, 0]),
    "free cards without a model": ("free-cards", asking(), ("two", "one"), [0, 0]),
}


@pytest.mark.parametrize(("score", "raw", "names", "expected"), SCORED.values(), ids=SCORED)
async def test_prioritize(score: str, raw: Raw, names: Sequence[str], expected: Sequence[int]) -> None:
    async with served(score=score) as extender:
        body = request_for(raw, *names, *names)
        assert await extender.post("prioritize", body) == (
            200,
            [{"Host": name, "Score": points} for name, points in zip(names, expected, strict=True)],
        )


async def test_the_scores_of_free_cards_are_limited() -> None:
    world = World()
    world.add_node("large", cards=16)
    async with served(world, score="free-cards") as extender:
        _, answer = await extender.post("prioritize", request_for(model(A100), "large"))
    assert answer == [{"Host": "large", "Score": 10}]


async def test_a_reservation_does_not_count_against_its_own_pod() -> None:
    async with served(nodes=2) as extender:
        await extender.post("filter", request_for(asking(), "one", "two"))
        _, answer = await extender.post("prioritize", request_for(asking(), "one", "two"))
    assert answer == [{"Host": "one", "Score": 10}, {"Host": "two", "Score": 10}]


async def test_whole_nodes_are_scored_by_their_names() -> None:
    async with served() as extender:
        _, answer = await extender.post("prioritize", {"Pod": asking(), "Nodes": {"items": [node("one")]}})
    assert answer == [{"Host": "one", "Score": 10}]


# --- preempt --------------------------------------------------------------------------------------------------------


def victims(**nodes: Sequence[str]) -> Raw:
    return {node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0} for node, uids in nodes.items()}


PREEMPTED = {
    "the victim frees what is needed": ("NodeNameToMetaVictims", victims(full=["uid-low"]), victims(full=["uid-low"])),
    "another victim is needed": ("NodeNameToMetaVictims", victims(full=["other"]), victims(full=["other", "uid-low"])),
    "keys in lower case": (
        "nodenametometavictims",
        {"full": {"pods": [{"uid": "uid-low"}]}},
        victims(full=["uid-low"]),
    ),
    "whole pods": (
        "NodeNameToVictims",
        {"full": {"Pods": [{"metadata": {"uid": "uid-low", "name": "low"}}], "NumPDBViolations": 0}},
        victims(full=["uid-low"]),
    ),
    "no evictions help on this node": ("NodeNameToMetaVictims", victims(bare=["u"], down=["u"], ghost=["u"]), {}),
    "a node where it fits": ("NodeNameToMetaVictims", victims(one=["u"]), victims(one=["u"])),
    "a victim twice": ("NodeNameToMetaVictims", victims(full=["uid-low", "uid-low"]), victims(full=["uid-low"])),
    "no victims": ("NodeNameToMetaVictims", victims(one=[]), {}),
    "null victims": ("NodeNameToMetaVictims", {"one": {"Pods": None}}, {}),
    "no nodes": ("NodeNameToMetaVictims", {}, {}),
    "null nodes": ("NodeNameToMetaVictims", None, {}),
}


@pytest.mark.parametrize(("key", "proposed", "expected"), PREEMPTED.values(), ids=PREEMPTED)
async def test_preempt(key: str, proposed: Any, expected: Raw) -> None:
    async with served() as extender:
        answer = await extender.post("preempt", {"Pod": asking(priority=5), key: proposed})
    assert answer == (200, {"NodeNameToMetaVictims": expected})


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(asking(priority=5, labels={"scheduling.x-k8s.io/pod-group": "g"}), id="a gang"),
        pytest.param(asking("low", priority=5), id="bound"),
        pytest.param(asking(priority=5, schedulerName="other"), id="another scheduler"),
    ],
)
async def test_nobody_is_evicted_for_a_pod_that_is_refused(raw: Raw) -> None:
    async with served() as extender:
        answer = await extender.post("preempt", {"Pod": raw, "NodeNameToMetaVictims": victims(full=["uid-low"])})
    assert answer == (200, {"NodeNameToMetaVictims": {}})


# --- bind -----------------------------------------------------------------------------------------------------------

BOUND = {
    "a pod that was filtered": ({}, ""),
    "keys in lower case": ("lower", ""),
    "another node that fits": ({"Node": "two"}, ""),
    "a pod without devices": ({"PodName": "plain", "PodUID": "uid-plain"}, ""),
    "an unknown node": ({"Node": "ghost"}, f"node ghost no longer fits: {UNKNOWN}"),
    "a full node": ({"Node": "full"}, f"node full no longer fits: {NO_ROOM}"),
    "a node without a Device": ({"Node": "bare"}, f"node bare no longer fits: {NO_DEVICE}"),
    "another UID": ({"PodUID": "other"}, "pod ns/p has UID uid-p, not other"),
    "an unknown pod": ({"PodName": "q", "PodUID": "q"}, "pod ns/q cannot be read: "),
    "the UID of another pod": (
        {"PodName": "q"},
        "pod ns/q has another UID than uid-p, which is that of ns/p",
    ),
    "a pod that is bound": ({"PodName": "low", "PodUID": "uid-low"}, "pod ns/low is already bound to full"),
}


@pytest.mark.parametrize(("fields", "error"), BOUND.values(), ids=BOUND)
async def test_bind(fields: Raw | str, error: str) -> None:
    body = {**GOOD["bind"], **fields} if isinstance(fields, dict) else {k.lower(): v for k, v in GOOD["bind"].items()}
    async with served() as extender:
        extender.stage.create(pod("plain", {"cpu": 1}, schedulerName="default-scheduler"))
        extender.stage.create(raw := asking())
        await extender.post("filter", request_for(raw, "one"))
        status, answer = await extender.post("bind", body)
        bound = {name: on for name, on in extender.stage.world.api.bound().items() if name in ("p", "q", "plain")}
    assert (status, answer["Error"][: len(error)] if error else answer["Error"]) == (200, error)
    named = {key.lower(): value for key, value in body.items()}
    assert bound == ({} if error else {named["podname"]: named["node"]})


async def test_a_binding_has_the_devices_and_the_term() -> None:
    async with served() as extender:
        extender.stage.create(raw := asking())
        await extender.post("filter", request_for(raw, "one"))
        assert await extender.post("bind", GOOD["bind"]) == (200, {"Error": ""})
        [(_, _, binding)] = extender.stage.world.api.binds
    metadata = binding["metadata"]
    assert (metadata["uid"], metadata["labels"]) == ("uid-p", {"berth.dev/fenced-by": "berth"})
    assert metadata["annotations"]["berth.dev/epoch"] == "1"
    [gpu] = orjson.loads(metadata["annotations"]["scheduling.koordinator.sh/device-allocated"])["gpu"]
    assert (gpu["minor"], gpu["id"]) == (0, "GPU-0")


# --- access and limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
async def test_only_the_leader_answers(verb: str) -> None:
    async with served() as extender:
        extender.stage.world.term = None
        assert await extender.post(verb, GOOD[verb]) == (
            503,
            {"message": f"this replica does not lead: POST {PATH}/{verb}"},
        )
        extender.stage.world.term, extender.server.extender = 1, None
        assert (await extender.post(verb, GOOD[verb]))[0] == 503


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", f"{PATH}/filter", 405), ("POST", f"{PATH}/score", 404), ("POST", "/", 404)]
)
async def test_other_paths_and_methods_do_not_exist(method: str, path: str, status: int) -> None:
    async with served() as extender, extender.session.request(method, extender.url + path) as answer:
        assert (answer.status, "message" in orjson.loads(await answer.read())) == (status, True)


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with served() as extender:
        body = io.BytesIO(b" " * (MAX_BYTES + 1))
        async with extender.session.post(f"{extender.url}{PATH}/filter", data=body) as answer:
            assert answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            message = orjson.loads(await answer.read())["message"]
            assert message == f"the body has more than {MAX_BYTES} bytes, which is the most"


async def test_calls_are_counted() -> None:
    def count(verb: str, result: str) -> float:
        labels = {"verb": verb, "result": result}
        return REGISTRY.get_sample_value("berth_extender_calls_total", labels) or 0.0

    cases = [("filter", "ok"), ("filter", "no node"), ("filter", "refused"), ("bind", "error")]
    before = {case: count(*case) for case in cases}
    async with served() as extender:
        await extender.post("filter", GOOD["filter"])
        await extender.post("filter", request_for(asking("q"), "full"))
        await extender.post("filter", b"")
        await extender.post("bind", {**GOOD["bind"], "Node": "full"})
    assert {case: count(*case) - before[case] for case in cases} == dict.fromkeys(cases, 1.0)
