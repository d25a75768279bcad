"""Rows in the visibility API's form, computed only from objects of the API server."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from berth_api import names
from berth_kubectl.commands import explain, top
from berth_kubectl.errors import ReadError
from berth_kubectl.reading import explanations, fleet, holders, queue, views
from berth_kubectl.reading.following import ATTEMPTS, PAUSE, Collection
from berth_kubectl.reading.resources import DEVICES, EXPLAINED_PODS, PODS
from berth_kubectl.reading.session import Session, Source
from berth_kubectl.transport import kubectl
from berth_kubectl.transport.request import Request
from tests.objects.builders import whole
from tests.objects.kubectl_objects import A100, GI, WHOLE, condition, raw_card, raw_device, raw_node, raw_pod

PROFILE = "or give a profile of Berth this name"
NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
FREE = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory": "40Gi", "kubernetes.io/gpu-memory-ratio": "50"}
ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def annotated(**grants: list[dict[str, Any]]) -> dict[str, Any]:
    return {"annotations": {ALLOCATED: json.dumps(grants)}}


# --- the fleet --------------------------------------------------------------------------------------------------


def test_a_card_has_what_the_device_says() -> None:
    use = {"type": "gpu", "minor": 0, "free": FREE, "holders": [{"uid": "a"}, {"uid": "a"}, {"uid": "b"}]}
    card = raw_card(topology={"nodeID": 1, "pcieID": "pci:1"}, links=[{"minor": 1, "type": "NVLink", "count": 12}])
    [row] = fleet.rows([raw_device("n", card, raw_card(1), uses=[use])], {"n": raw_node("n")})
    first, second = row["devices"]
    assert (first["total"], first["free"], first["users"]) == (
        WHOLE,
        {"gpu-core": 50, "gpu-memory": 40 * GI, "gpu-memory-ratio": 50},
        3,
    )
    assert (first["numaNode"], first["pcie"], first["links"]) == (1, "pci:1", {"GPU-1": "NVLink x12"})
    assert (second["numaNode"], second["links"], second["free"]) == (-1, {}, {})
    assert row["models"] == {A100: 2}


def test_instances_are_counted_by_profile() -> None:
    instances = [{"id": f"MIG-{i}", "profile": "1g.10gb+me"} for i in range(3)]
    use = {"type": "gpu", "minor": 0, "free": {"nvidia.com/mig-1g.10gb.me": 1}}
    [row] = fleet.rows([raw_device("n", raw_card(mig={"enabled": True, "instances": instances}), uses=[use])], None)
    [card] = row["devices"]
    assert card["total"] == {"nvidia.com/mig-1g.10gb.me": 3}
    assert [instance["free"] for instance in card["mig"]] == [True, False, False]


def test_a_failed_card_says_once_what_ends_its_fault() -> None:
    said = {"message": "Xid 79: GPU has fallen off the bus"}
    conditions = [
        condition("Healthy", "False", reason="Xid79", **said),
        condition("Xid79", reason="UntilReboot", **said),
    ]
    for listed, message in (
        (conditions, "UntilReboot: Xid 79: GPU has fallen off the bus"),
        (conditions[:1], "Xid79: Xid 79: GPU has fallen off the bus"),
        ([], ""),
    ):
        [row] = fleet.rows([raw_device("n", raw_card(health=False, conditions=listed))], None)
        assert row["devices"][0]["message"] == message


def test_a_card_that_is_not_given_by_name_says_why() -> None:
    use = {"type": "gpu", "minor": 0, "barred": "listed by driver gpu.nvidia.com in pool n"}
    [row] = fleet.rows([raw_device("n", raw_card(), raw_card(1), uses=[use])], None)
    shown = [(card["healthy"], card["message"], card.get("barred")) for card in row["devices"]]
    assert shown == [(False, use["barred"], use["barred"]), (True, "", None)]


def test_a_card_shows_how_many_pods_use_it_and_do_not_hold_it() -> None:
    reported = {"status": {"unheld": [{"id": "GPU-1", "pod": name} for name in "pq"]}}
    [row] = fleet.rows([{**raw_device("n", raw_card(), raw_card(1)), **reported}], None)
    assert [card.get("unheld") for card in row["devices"]] == [None, 2]


def test_a_card_that_is_gone_and_still_held_has_a_row() -> None:
    use = {"type": "gpu", "minor": -1, "id": "GPU-gone", "free": {}, "holders": [{"uid": "a"}]}
    [row] = fleet.rows([raw_device("n", uses=[use])], None)
    [card] = row["devices"]
    assert (card["id"], card["healthy"], card["users"], card["message"]) == (
        "GPU-gone",
        False,
        1,
        "no longer there, and pods hold it",
    )


@pytest.mark.parametrize(
    ("conditions", "ready", "reporting", "blocked"),
    [
        ([condition("Ready"), condition("Accounted")], True, True, ""),
        ([condition("Ready", "Unknown", reason="AgentNotHeard", message="silent")], False, False, "silent"),
        ([condition("Ready", "False", message="no driver")], False, True, "no driver"),
        ([condition("Ready"), condition("Accounted", "False", message="pod a/b")], True, True, "pod a/b"),
        ([], False, True, "no leader has read its Device yet"),
    ],
)
def test_the_state_of_a_node(conditions: list[Any], ready: bool, reporting: bool, blocked: str) -> None:
    [row] = fleet.rows([raw_device("n", conditions=conditions)], {"n": raw_node("n", unschedulable=True)})
    assert (row["ready"], row["reporting"], row["blocked"], row["schedulable"]) == (ready, reporting, blocked, False)


def test_taints_that_keep_pods_away_are_listed_and_nodes_are_in_the_order_of_their_numbers() -> None:
    taints = [
        {"key": "team", "value": "ml", "effect": "NoSchedule"},
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": fleet.CORDON, "effect": "NoSchedule"},
    ]
    devices = [raw_device(name, raw_card()) for name in ("node-10", "node-2")]
    rows = fleet.rows(devices, {"node-2": raw_node("node-2", taints=taints)})
    assert [(row["metadata"]["name"], row.get("taints")) for row in rows] == [
        ("node-2", ["team=ml:NoSchedule"]),
        ("node-10", None),
    ]


def test_a_pod_of_unknown_allocation_blocks_the_cards_that_the_status_marks() -> None:
    cards, uses = (
        [{**raw_card(), "type": kind} for kind in ("gpu", "rdma")],
        [{"type": "gpu", "minor": 0, "blocked": True}, {"type": "rdma", "minor": 0}],
    )
    unknown = [condition("Ready"), condition("Accounted", "False", message="no gpu is allocated: pod a/b")]
    [row] = fleet.rows([raw_device("n", *cards, uses=uses, conditions=unknown)], None)
    assert [card.get("blocked") for card in row["devices"]] == ["no gpu is allocated: pod a/b", ""]
    driver = [condition("Ready", "False", message="no driver"), condition("DriverLoaded", "False")]
    [row] = fleet.rows([raw_device("n", *cards, uses=uses, conditions=driver)], None)
    assert [card.get("blocked") for card in row["devices"]] == ["no driver", ""]


# --- holders ----------------------------------------------------------------------------------------------------


def test_a_pod_holds_what_its_allocation_names() -> None:
    grants = [
        {"minor": 3, "id": "MIG-1", "resources": {"nvidia.com/mig-1g.10gb": "1"}, "extension": {"parent": "GPU-0"}}
    ]
    template = {"labels": {"pod-template-hash": "77"}}
    owner = {"ownerReferences": [{"kind": "ReplicaSet", "name": "web-77", "controller": True}]}
    pod = raw_pod(
        "a",
        metadata={**annotated(gpu=grants), **template, **owner},
        spec={"nodeName": "n", "activeDeadlineSeconds": 60},
        status={"startTime": "2026-01-01T00:00:00Z"},
    )
    drifted = {
        "metadata": {"namespace": "team", "name": "a"},
        "status": {"conditions": [condition("Consistent", "False")]},
    }
    waiting = raw_pod("b", metadata=annotated(gpu=grants))
    [row] = holders.rows([waiting, pod], devices=[raw_device("n", raw_card())], gpu_pods=[drifted])
    [part] = row["devices"]
    assert (part["minor"], part["model"], part["amounts"]) == (3, A100, {"nvidia.com/mig-1g.10gb": 1})
    assert (row["owner"], row["endsBy"], row["drifted"]) == (
        {"kind": "Deployment", "name": "web"},
        "2026-01-01T00:01:00Z",
        True,
    )


def test_what_a_pod_uses_above_its_share_is_what_the_device_of_its_node_says() -> None:
    grants = [{"minor": 0, "id": "GPU-0", "resources": {"kubernetes.io/gpu-core": "50"}}]
    pod = raw_pod("a", metadata=annotated(gpu=grants), spec={"nodeName": "n"})
    use = {"type": "gpu", "minor": 0, "podUID": pod["metadata"]["uid"], "memory": "52Gi", "limit": "no quantity"}
    reported = {"status": {"exceeding": [use, {**use, "podUID": "other"}]}}
    devices = [{**raw_device(name, raw_card()), **reported} for name in ("n", "elsewhere")]
    [row] = holders.rows([pod], devices=devices)
    assert row["exceeding"] == [{"type": "gpu", "minor": 0, "memory": 52 * 2**30, "limit": 0}]


def test_models_come_from_gpu_pods_where_devices_may_not_be_read() -> None:
    grants = [{"minor": 0, "id": "GPU-9", "resources": {"kubernetes.io/gpu-core": "100"}}]
    gpu_pod = {"metadata": {"namespace": "team", "name": "a"}, "spec": {"cards": [{"id": "GPU-9", "model": A100}]}}
    [row] = holders.rows([raw_pod("a", metadata=annotated(gpu=grants), spec={"nodeName": "n"})], gpu_pods=[gpu_pod])
    assert row["devices"][0]["model"] == A100


def test_an_allocation_that_cannot_be_read_names_no_device() -> None:
    pod = raw_pod("a", metadata={"annotations": {ALLOCATED: "{"}}, spec={"nodeName": "n"})
    [row] = holders.rows([pod])
    assert row["devices"] == []


# --- the queue --------------------------------------------------------------------------------------------------


def test_pods_wait_by_priority_and_age() -> None:
    pods = [
        raw_pod("young", metadata={"creationTimestamp": "2026-01-01T00:00:30Z"}),
        raw_pod("old", metadata={"labels": {"scheduling.x-k8s.io/pod-group": "ring"}}),
        raw_pod("high", metadata={"creationTimestamp": "2026-01-01T00:00:40Z"}, spec={"priority": 5}),
        raw_pod("bound", spec={"nodeName": "n"}),
        raw_pod("foreign", spec={"schedulerName": "default-scheduler"}),
        raw_pod("ending", metadata={"deletionTimestamp": "2026-01-01T00:00:40Z"}),
    ]
    rows = queue.rows(pods, schedulers={"berth-scheduler"}, now=NOW)
    assert [(row["metadata"]["name"], row["waitingSeconds"], row["position"]) for row in rows] == [
        ("high", 20, 0),
        ("old", 60, 0),
        ("young", 30, 0),
    ]
    assert rows[1]["gang"] == {"name": "ring"}


def test_requests_are_those_of_the_whole_pod() -> None:
    requests = {"cpu": "1", "memory": "1Gi", "kubernetes.io/gpu": "50", "nvidia.com/gpu": "2"}
    spec = {"containers": [{"name": "main", "resources": {"requests": requests}}]}
    assert queue.requests_of(spec) == {"cpu": 1000, "memory": GI, "kubernetes.io/gpu": 50, "nvidia.com/gpu": 2}


# --- explanations -----------------------------------------------------------------------------------------------


VOLCANO = 'Berth does not schedule pods of schedulerName "volcano"'
HALF = {"kubernetes.io/gpu": "50"}


def allocated(text: str) -> dict[str, Any]:
    """Return the metadata of a pod with this allocation."""
    return {"annotations": {names.ALLOCATED: text}}


@pytest.mark.parametrize(
    ("pod", "state", "message"),
    [
        (raw_pod("a", status={"conditions": [condition("PodScheduled", "False", message="0/1")]}), "Waiting", "0/1"),
        (raw_pod("a"), "Waiting", "it has no condition PodScheduled yet: no operator has decided it"),
        (
            raw_pod("a", spec={"nodeName": "n"}),
            "Bound",
            "bound to n; it holds no device, because it requests none",
        ),
        (
            raw_pod("a", spec={"nodeName": "n", "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}),
            "Bound",
            "bound to n; its devices are those of ResourceClaim mine",
        ),
        (
            raw_pod("a", spec={"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": HALF}}]}),
            "Bound",
            "bound to n",
        ),
        (
            raw_pod("a", spec={"nodeName": "n"}, metadata=allocated(orjson.dumps(whole(0, 1)).decode())),
            "Bound",
            "bound to n with GPU 0; GPU 1",
        ),
        (
            raw_pod("a", spec={"nodeName": "n"}, metadata=allocated("{")),
            "Bound",
            "bound to n with an allocation that cannot be read",
        ),
        (raw_pod("a", spec={"schedulingGates": [{"name": "g"}]}), "Gated", "waits for its scheduling gates: g"),
        (
            raw_pod("a", spec={"schedulerName": "other"}),
            "NotManaged",
            'Berth does not schedule pods of schedulerName "other"',
        ),
        (
            raw_pod("a", spec={"schedulerName": "volcano"}, metadata={"annotations": {"gpu-fraction": "0.5"}}),
            "NotManaged",
            (
                f"{VOLCANO}: it has annotation gpu-fraction; "
                "write spec.schedulerName: berth-scheduler, or give a profile of Berth "
                "this name to leave the pods unchanged"
            ),
        ),
        (
            raw_pod("a", spec={"schedulerName": "berth-schedular"}),
            "NotManaged",
            'Berth does not schedule pods of schedulerName "berth-schedular" (did you mean berth-scheduler?)',
        ),
    ],
)
def test_what_the_condition_alone_says(pod: Any, state: str, message: str) -> None:
    explanation = explanations.of_pod(pod, {"berth-scheduler"}, NOW - timedelta(seconds=1))
    assert (explanation["state"], explanation["message"]) == (state, message)


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        (
            "other",
            {},
            "; no scheduler has tried it for a minute, so no scheduler other seems to run: start it, " + PROFILE,
        ),
        ("other", {"conditions": [condition("PodScheduled", "False")]}, ""),
        (
            "default-scheduler",
            {},
            "; no scheduler has tried it for a minute, so no scheduler default-scheduler seems to run: start it",
        ),
    ],
)
def test_a_scheduler_that_seems_not_to_run_is_named(name: str, status: Any, message: str) -> None:
    pod = raw_pod("a", spec={"schedulerName": name}, status=status)
    explanation = explanations.of_pod(pod, {"berth-scheduler"}, NOW)
    assert explanation["message"] == f'Berth does not schedule pods of schedulerName "{name}"{message}'


def test_the_selector_of_a_workload_as_text() -> None:
    expressions = [
        {"key": "b", "operator": "In", "values": ["1", "2"]},
        {"key": "c", "operator": "NotIn", "values": ["3"]},
        {"key": "d", "operator": "Exists"},
        {"key": "e", "operator": "DoesNotExist"},
    ]
    selector = {"matchLabels": {"a": "0"}, "matchExpressions": expressions}
    assert explanations.selector(selector) == "a=0,b in (1,2),c notin (3),d,!e"


def test_of_a_workload_the_first_that_waits_is_explained() -> None:
    pods = [raw_pod("bound", spec={"nodeName": "n"}), raw_pod("b"), raw_pod("a", spec={"priority": 1})]
    first = explanations.first_waiting(pods)
    assert first is not None
    assert first["metadata"]["name"] == "a"
    assert explanations.first_waiting(pods[:1]) is None


# --- errors -----------------------------------------------------------------------------------------------------


class Answers:
    """Answers requests by their paths; a small implementation of the API, with no state."""

    def __init__(self, **answers: Any) -> None:
        self.server_date = "Thu, 01 Jan 2026 00:00:00 GMT"
        self._answers = answers

    def get_all(self, requests: Any) -> list[Any]:
        """Return the answer of each path's last part; a kind that is not there is not found."""
        missing = ReadError("the server could not find the requested resource", status=404)
        return [self._answers.get(request.path.rpartition("/")[2], missing) for request in requests]


FORBIDDEN = ReadError('devices.berth.dev is forbidden: User "jane" cannot list resource "devices"', status=403)


def test_a_missing_right_is_named_with_its_role() -> None:
    session = Session(api=Answers(devices=FORBIDDEN))
    with pytest.raises(ReadError) as caught:
        views.first_of(session, views.fleets())
    needs = 'this needs the right to list "devices.berth.dev" in the whole cluster'
    assert str(caught.value).endswith(f"{needs}; the ClusterRole berth-devices-view has it")


def test_rights_have_the_names_of_rbac() -> None:
    right = EXPLAINED_PODS.right("get", "team", "explanation")
    assert str(right).startswith('the right to get "pods/explanation.visibility.berth.dev" in the namespace team')
    assert DEVICES.right("list", "team").namespace == ""


def test_the_visibility_api_comes_first_and_is_left_where_it_has_no_leader() -> None:
    visible = {"metadata": {"name": "seen"}}
    devices: dict[str, Any] = {"items": [raw_device("n", raw_card())]}
    nodes: dict[str, Any] = {"items": []}
    session = Session(api=Answers(fleet={"items": [visible]}, devices=devices, nodes=nodes))
    view, lists = views.first_of(session, views.fleets())
    assert [row["metadata"]["name"] for row in view.rows(lists, NOW)] == ["seen"]

    no_leader = ReadError("no leader since 10 s", status=503)
    session = Session(api=Answers(fleet=no_leader, devices=devices, nodes=FORBIDDEN))
    view, lists = views.first_of(session, views.fleets())
    assert [row["metadata"]["name"] for row in view.rows(lists, NOW)] == ["n"]
    assert session.notes == ["the visibility API is not used: no leader since 10 s"]


@pytest.mark.parametrize(
    ("shown", "old"),
    [
        (views.fleets(), "what is held and free is from then, and still counts pods deleted since"),
        (views.holding("ml"), "DRIFTED and EXCEEDED are from then; the list of pods is current"),
        (views.queues("ml", ["berth-scheduler"]), "no pod is decided meanwhile, and MESSAGE is from then"),
    ],
)
def test_what_no_leader_keeps_up_to_date_has_its_age(shown: Any, old: str) -> None:
    lists: dict[str, Any] = {
        "devices": {"items": [raw_device("n", raw_card())]},
        **{name: {"items": []} for name in ("nodes", "pods", "gpupods")},
    }
    notes = {"2025-12-31T23:50:00Z": [f"no operator has led for 10m: {old}"], "2025-12-31T23:59:58Z": []}
    for renewed, expected in notes.items():
        lease = {"metadata": {"name": "berth-operator"}, "spec": {"renewTime": renewed, "leaseDurationSeconds": 15}}
        session = Session(api=Answers(**lists, leaderleases={"items": [lease]}))
        session.api.server_date = "Thu, 01 Jan 2026 00:00:00 GMT"
        views.first_of(session, shown)
        assert session.notes == expected


def test_a_condition_has_its_age_without_a_leader() -> None:
    old = {"metadata": {}, "spec": {"renewTime": "2025-12-31T23:50:00Z", "leaseDurationSeconds": 15}}
    session = Session(api=Answers(a=raw_pod("a"), events={"items": []}, leaderleases={"items": [old]}), namespace="ns")
    session.api.server_date = "Thu, 01 Jan 2026 00:00:00 GMT"
    explain.explain(session, explain.target("a"), frozenset({"berth-scheduler"}))
    assert session.notes[-1] == "no operator has led for 10m: its condition is from then"


def test_top_says_why_the_visibility_api_does_not_answer() -> None:
    message = str(top.unanswered(ReadError("service unavailable", status=503)))
    assert message == (
        "the visibility API does not answer now, and live metrics come from it; usually no replica of the operator "
        "leads: kubectl berth doctor says more (service unavailable)"
    )


def test_an_error_of_the_server_is_no_reason_to_read_something_else() -> None:
    session = Session(api=Answers(fleet=ReadError("broken", status=500), devices={"items": []}, nodes={"items": []}))
    with pytest.raises(ReadError, match="broken"):
        views.first_of(session, views.fleets())


@pytest.mark.parametrize(
    ("stderr", "status", "message"),
    [
        ('Error from server (NotFound): pods "a" not found\n', 404, 'pods "a" not found'),
        ("Error from server (Forbidden): no\n", 403, "no"),
        ('error: context "a" does not exist\n', 0, 'context "a" does not exist'),
        ("Unable to connect: refused\nE1122 15:04:05.678901 1 memcache.go:1] x\n", 0, "Unable to connect: refused"),
        ("", 0, "kubectl failed"),
    ],
)
def test_what_kubectl_writes_is_one_line(stderr: str, status: int, message: str) -> None:
    error = kubectl.failure(stderr)
    assert (error.status, str(error)) == (status, message)


def test_requests_are_encoded() -> None:
    assert PODS.request("a/b", "..", limit="5", labelSelector="") == Request(
        path="/api/v1/namespaces/a%2Fb/pods/..", query=(("limit", "5"),)
    )
    source = Source(resource=PODS, namespace="a", labels="x in (1,2)")
    assert source.request.target == "/api/v1/namespaces/a/pods?labelSelector=x+in+%281%2C2%29"


# --- watches ----------------------------------------------------------------------------------------------------


def test_a_collection_follows_events() -> None:
    changed = threading.Event()
    collection = Collection(Source(resource=PODS), changed)
    collection.replace([raw_pod("a"), raw_pod("b")])
    for kind, name in (("ADDED", "c"), ("DELETED", "a"), ("BOOKMARK", "z")):
        pod = raw_pod(name, metadata={"resourceVersion": "7"})
        assert collection.apply({"type": kind, "object": pod}) == "7"
    assert [pod["metadata"]["name"] for pod in collection.copy()] == ["b", "c"]
    with pytest.raises(ReadError) as caught:
        collection.apply({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
    assert caught.value.status == 410


class Breaking:
    """Watches that break: each of the first ones after an event, later ones at once."""

    def __init__(self, with_event: int) -> None:
        self.with_event, self.watches = with_event, 0

    def get(self, _request: Request) -> dict[str, Any]:
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    def watch(self, _request: Request, _version: str) -> Iterator[dict[str, Any]]:
        self.watches += 1
        if self.watches <= self.with_event:
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "2"}}}
        raise ReadError("the watch broke")


def test_a_watch_ends_after_failures_in_a_row_not_after_as_many_in_a_day() -> None:
    api, pauses = Breaking(3 * ATTEMPTS), list[float]()
    collection = Collection(Source(resource=PODS), threading.Event(), sleep=pauses.append)
    collection.follow(api)
    assert api.watches == 3 * ATTEMPTS + ATTEMPTS - 1  # the failure after the last event is the first of the row
    assert collection.error == "the watch broke"
    assert pauses == [PAUSE] * api.watches
