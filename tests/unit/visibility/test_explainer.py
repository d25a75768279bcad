"""Explanations in virtual time: the states of pods, what is shown of each, and what a user may request."""

import asyncio
from typing import Any

import orjson
import pytest

from berth_api import names
from berth_client.errors import ApiError
from berth_operator.apis.aggregated.statuses import StatusError
from berth_operator.apis.visibility.explainer import KEPT_SECONDS, RATE, Explainer
from berth_operator.apis.visibility.slices import MAX_WAITING
from berth_operator.binding.reports.recent_binds import RecentBinds
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster
from tests.objects.builders import device, entry, lease, node, pod, pod_group, whole
from tests.objects.resource_claims import ClaimsInTurns, allocated, gpu, resource_slice

pytestmark = pytest.mark.looptime

SCHEDULER = "berth-scheduler"
ONE, MANY = {"kubernetes.io/gpu": "100"}, {"kubernetes.io/gpu": "400"}


class Scene:
    """A cluster with one node of two cards, and the API server's pods."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.cluster = Cluster(grace=1e9, clock=clock, wall=clock)
        self.cluster.node_cache.put_node(node("n1"))
        self.cluster.node_cache.put_device(device("n1", entry(0), entry(1)))
        self.cluster.node_cache.put_lease(lease("n1"))
        self.on_server: dict[str, Any] = {}
        self.reads = 0
        self.policy = Policy(switched_off=frozenset({"injected"}))
        self.binds = RecentBinds()
        self.refusals: dict[str, str] = {}
        self.explainer = Explainer(
            cluster=self.cluster,
            pods=self,
            policy=lambda _: self.policy,
            managed=lambda: {SCHEDULER},
            ranking=self.binds.of,
            refusal=lambda uid: self.refusals.get(uid, ""),
            reservation=lambda _uid: "reserved on n1: 1 of 2 GPUs are free.",
            term=lambda: 1,
        )

    async def get_pod(self, namespace: str, name: str) -> Any:
        assert namespace == "ns"
        self.reads += 1
        await asyncio.sleep(0.01)
        if name not in self.on_server:
            raise ApiError(404, "NotFound", f'pods "{name}" not found')
        return self.on_server[name]

    def add(self, raw: dict[str, Any]) -> None:
        """Show a pod to the operator, if it would be."""
        self.on_server[raw["metadata"]["name"]] = raw
        if raw["spec"].get("nodeName"):
            self.cluster.put_bound(raw)
        elif raw["spec"].get("schedulerName") in (None, SCHEDULER):
            self.cluster.put_pending(raw)

    def park(self, name: str) -> Failure:
        """Decide a pod that fits nowhere."""
        unit = self.cluster.queue.pop(self.cluster.clock())
        assert unit is self.cluster.pending[f"uid-{name}"]
        failure = decide(self.cluster.fleet, self.cluster.pending[unit.uid], self.policy)
        assert isinstance(failure, Failure)
        self.cluster.queue.park(unit, failure)
        return failure

    async def explain(self, name: str, user: str = "ann") -> dict[str, Any]:
        explained: dict[str, Any] = orjson.loads(await self.explainer.explain(user, "ns", name))
        return explained


def remedy(kind: str, answer: str, message: str, *, node: str = "n1", new: bool = False) -> dict[str, Any]:
    return {"kind": kind, "answer": answer, "message": message, "node": node, "newNode": new}


async def test_a_pod_that_fits_nowhere() -> None:
    scene = Scene()
    scene.add(pod("big", MANY))
    failure = scene.park("big")
    explained = await scene.explain("big")
    assert explained.pop("groups") == [
        {
            "reasons": ["node(s) have too few healthy GPUs (4 requested, at most 2 on a node)"],
            "counted": ["node(s) have too few healthy GPUs (4 requested, at most 2 on a node)"],
            "filters": ["devices"],
            "count": 1,
            "nodes": ["n1"],
        }
    ]
    assert explained == {
        "kind": "PodExplanation",
        "apiVersion": "visibility.berth.dev/v1alpha1",
        "metadata": {"name": "big", "namespace": "ns", "uid": "uid-big"},
        "state": "Waiting",
        "message": failure.message,
        "nodes": 1,
        "nearest": [],
        "fitsNow": False,
        "fitsWhenEmpty": 0,
        "newNodeHelps": False,
        "inVain": False,
        "remedies": [
            remedy("NewNode", "DoesNotHelp", "another node like n1 would not help", new=True),
            remedy("NewNode", "Ends", "a node like n1 with 4 GPUs would end the wait", new=True),
        ],
        "outlook": [
            {"title": "Fits", "message": "not now; on no node even if empty", "helps": False},
            {
                "title": "New node",
                "message": "another node like n1 would not help; a node like n1 with 4 GPUs would end the wait",
                "helps": True,
            },
            {
                "title": "Preemption",
                "message": "not possible: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
                "helps": False,
            },
        ],
        "preemption": {
            "possible": False,
            "message": "0/1 nodes are available: 1 No preemption victims found for incoming pod.",
        },
        "queue": {
            "position": 1,
            "of": 1,
            "state": "unschedulable",
            "backoffSeconds": 0.0,
            "wakesOn": [
                "AssignedPodDelete",
                "NodeAdd",
                "NodeUpdateNodeAllocatable",
                "DeviceUpdate",
                "resource.k8s.io/DeviceClassUpdate",
            ],
        },
    }


async def test_a_pod_that_waits_for_another() -> None:
    scene = Scene()
    for minor in (0, 1):
        scene.add(pod(f"held-{minor}", ONE, on="n1", allocated=whole(minor)))
    scene.add(pod("next", ONE))
    scene.park("next")
    explained = await scene.explain("next")
    assert explained["nearest"] == [
        {"node": "n1", "resources": {}, "cards": [{"type": "gpu", "minor": 0, "amounts": {}}]}
    ]
    assert (explained["fitsNow"], explained["fitsWhenEmpty"], explained["newNodeHelps"]) == (False, 1, True)


async def test_a_pod_for_which_another_may_be_evicted() -> None:
    scene = Scene()
    for minor in (0, 1):
        scene.add(pod(f"low-{minor}", ONE, on="n1", allocated=whole(minor), priority=1))
    scene.add(pod("high", ONE, priority=9))
    scene.park("high")
    explained = await scene.explain("high")
    assert explained["preemption"] == {
        "possible": True,
        "message": "1 pod(s) of lower priority on node n1 would be evicted",
    }
    assert "low-" not in orjson.dumps(explained).decode()


async def test_a_gang_by_its_first_member_without_a_place() -> None:
    scene = Scene()
    scene.cluster.gangs.put_group(pod_group("g", 3))
    for name in ("p", "q", "r"):
        scene.add(pod(name, ONE, labels={"pod-group.scheduling.sigs.k8s.io": "g"}))
    explained = await scene.explain("p")
    assert explained["gang"] == {"name": "g", "members": 3, "required": 3, "firstWithoutPlace": "r"}
    assert explained["metadata"]["name"] == "p"
    # The other members hold both cards.
    assert [(near["node"], len(near["cards"])) for near in explained["nearest"]] == [("n1", 1)]
    assert not explained["fitsNow"]


async def test_the_points_of_a_bind_are_shown_while_they_are_kept() -> None:
    scene = Scene()
    scene.add(pod("p", ONE))
    placement = decide(scene.cluster.fleet, scene.cluster.pending["uid-p"], scene.policy)
    assert isinstance(placement, Placement)
    scene.add(pod("p", ONE, on="n1", allocated=whole(0), schedulerName=SCHEDULER))
    lost = {"kept": False, "message": "the leader keeps its last 1,000", "node": "n1", "scores": []}
    assert (await scene.explain("p"))["bind"] == lost
    scene.binds.keep(placement)
    await asyncio.sleep(KEPT_SECONDS)
    bind = (await scene.explain("p"))["bind"]
    assert (bind["kept"], bind["node"], [score["node"] for score in bind["scores"]]) == (True, "n1", ["n1"])
    assert bind["scores"][0]["total"] == pytest.approx(sum(bind["scores"][0]["terms"].values()), abs=0.05)


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({names.EPOCH: "0"}, "the leader has changed since the bind"),
        ({names.EPOCH: "1"}, "the leader keeps its last 1,000"),
        ({}, "Berth did not choose the node"),
    ],
)
async def test_why_the_points_of_a_bind_are_not_kept(annotations: dict[str, str], message: str) -> None:
    scene = Scene()
    scene.add(pod("p", None, on="n1", annotations=annotations, schedulerName=SCHEDULER))
    assert (await scene.explain("p"))["bind"]["message"] == message


GROUP = {"pod-group.scheduling.sigs.k8s.io": "g"}
CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


@pytest.mark.parametrize(
    ("requests", "answer", "message"),
    [
        (
            {"kubernetes.io/gpu": "50"},
            "Ends",
            "2 more members of PodGroup ns/g like p (1 of 3 exist) would end the wait",
        ),
        (
            ONE,
            "Needed",
            "needed first: 2 more members of PodGroup ns/g (1 of 3 exist; members like p would not fit now)",
        ),
    ],
)
async def test_a_member_of_a_gang_whose_others_do_not_exist(requests: Any, answer: str, message: str) -> None:
    scene = Scene()
    scene.cluster.gangs.put_group(pod_group("g", 3))
    scene.add(pod("p", requests, labels=GROUP))
    explained = await scene.explain("p")
    assert explained["remedies"] == [remedy("Member", answer, message, node="")]
    assert (explained["fitsNow"], explained["inVain"], explained["message"]) == (
        False,
        False,
        "PodGroup ns/g: waiting for members: 1 of 3",
    )
    assert explained.keys().isdisjoint({"fitsWhenEmpty", "newNodeHelps"})
    assert explained["queue"]["wakesOn"] == ["UnschedulablePodAdd", "PodGroupAdd", "PodGroupUpdate"]


async def test_a_member_whose_pod_group_does_not_exist() -> None:
    scene = Scene()
    scene.add(pod("p", ONE, labels=GROUP))
    explained = await scene.explain("p")
    [found] = explained["remedies"]
    assert (found["kind"], found["answer"], explained["inVain"]) == ("Claim", "Needed", False)
    assert found["message"].startswith("needed first: a pod group that can be decided (PodGroup ns/g does not ")


WHAT_WOULD_END_A_WAIT = {
    "a model that no node has": (
        {"annotations": {names.MODEL_GLOBS: "*H100*"}},
        ["another node like n1 would not help", "a node like n1 with 1 GPU of model *H100* would end the wait"],
    ),
    "a label that no node has": (
        {"nodeSelector": {"pool": "b"}},
        [
            "another node like n1 would not help",
            "a node like n1 with the label pool=b would end the wait",
            "the label pool=b on n1 would end the wait",
        ],
    ),
    "a claim that does not exist": (
        {"volumes": CLAIM},
        [
            'PersistentVolumeClaim "data", bound to a volume that every node reaches would end the wait',
            "a new node, whatever it has, would not help",
        ],
    ),
    "an invalid request": (
        {"containers": [{"name": "main", "resources": {"requests": {"kubernetes.io/gpu": "150"}}}]},
        None,
    ),
}


@pytest.mark.parametrize(("fields", "expected"), WHAT_WOULD_END_A_WAIT.values(), ids=WHAT_WOULD_END_A_WAIT)
async def test_what_would_end_a_wait(fields: Any, expected: list[str] | None) -> None:
    scene = Scene()
    scene.add(pod("p", ONE, **fields))
    explained = await scene.explain("p")
    messages = [each["message"] for each in explained["remedies"]]
    if expected is None:
        assert explained["inVain"]
        assert messages[0].startswith("only a corrected pod, created again, can be placed (its request is invalid: ")
    else:
        assert (messages, explained["inVain"]) == (expected, False)


def reserved(scene: Scene) -> None:
    scene.add(pod("p", MANY))
    waiting = scene.cluster.pending["uid-p"]
    scene.cluster.nominator._replaced(waiting, reserved_node="n1")


def in_a_gang(scene: Scene) -> None:
    scene.cluster.gangs.put_group(pod_group("g", 3))
    for name in ("p", "q"):
        scene.add(pod(name, ONE, labels={"pod-group.scheduling.sigs.k8s.io": "g"}))


def bound_to_a_card_that_failed(scene: Scene) -> None:
    scene.add(pod("p", ONE, on="n1", allocated=whole(0), schedulerName=SCHEDULER))
    failed = {"type": "Healthy", "status": "False", "reason": "UntilReboot", "message": "Xid 79"}
    failed["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    scene.cluster.node_cache.put_device(
        device("n1", entry(0, health=False, conditions=[failed]), entry(1), generation=2)
    )


def backing_off(scene: Scene) -> None:
    scene.add(pod("p", ONE))
    scene.cluster.queue.back_off(scene.cluster.pending["uid-p"], now=scene.cluster.clock() + 5)


def bound_with_a_claim(scene: Scene, memory: str = "") -> None:
    claims = ClaimsInTurns(scene.cluster)
    claims.put_slice(resource_slice(gpu(1), node="n1"))
    raw = allocated("c", "gpu-1", node="n1", pods=["uid-p"])
    if memory:
        [request] = raw["spec"]["devices"]["requests"]
        request["exactly"]["capacity"] = {"requests": {"memory": memory}}
    claims.put_claim(raw)
    by_claim = [{"name": "c", "resourceClaimName": "c"}]
    scene.add(pod("p", {}, on="n1", schedulerName=SCHEDULER, resourceClaims=by_claim))


def refused(scene: Scene) -> None:
    backing_off(scene)
    scene.refusals["uid-p"] = "decided for n1, refused by webhook/x: no"


GATES = [{"name": "example.com/quota"}, {"name": "example.com/topology"}]
OTHER = {"schedulerName": "default-scheduler"}


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        pytest.param(lambda scene: scene.add(pod("p", ONE)), {"state": "Active", "fitsNow": True,
                     "message": "the pod has not been tried yet"}, id="about to be tried"),
        pytest.param(backing_off, {"state": "BackingOff"}, id="backs off"),
        pytest.param(refused, {"state": "BackingOff", "refusal": "decided for n1, refused by webhook/x: no"},
                     id="refused"),
        pytest.param(reserved, {"reservation": {"node": "n1", "message": "reserved on n1: 1 of 2 GPUs are free."}},
                     id="node reservation"),
        pytest.param(in_a_gang, {"gang": {"name": "g", "members": 2, "required": 3, "firstWithoutPlace": ""},
                     "state": "Waiting"}, id="gang"),
        pytest.param(lambda scene: scene.add(pod("p", ONE, on="n1", allocated=whole(0), schedulerName=SCHEDULER)),
                     {"state": "Bound", "message": "bound to n1 with GPU 0"}, id="bound"),
        pytest.param(bound_with_a_claim, {"state": "Bound", "message": "bound to n1 with GPU 1"}, id="by claim"),
        pytest.param(lambda scene: bound_with_a_claim(scene, "20"),
                     {"state": "Bound", "message": "bound to n1 with GPU 1; ResourceClaim ns/c: request gpu: capacity "
                      "memory: 20 is in bytes; did you mean 20Gi?"}, id="by claim with memory without a unit"),
        pytest.param(bound_to_a_card_that_failed,
                     {"state": "Bound", "message": "bound to n1 with GPU 0; GPU 0 is unhealthy: UntilReboot: Xid 79"},
                     id="bound to a card that failed"),
        pytest.param(lambda scene: scene.add(pod("p", ONE, on="n1", bare=True, schedulerName=SCHEDULER)),
                     {"state": "Bound", "message": "bound to n1; which gpu it holds is not known: its allocation "
                      "cannot be read"}, id="bound without an allocation"),
        pytest.param(lambda scene: scene.add(pod("p", ONE, on="n1", schedulerName=SCHEDULER)),
                     {"state": "Bound", "message": "bound to n1, but not by Berth, so its containers see no GPU: "
                      "delete the pod"}, id="bound by a scheduler of the same name"),
        pytest.param(lambda scene: scene.add(pod("p", ONE, on="n1", **OTHER)),
                     {"state": "NotManaged", "message": 'Berth does not schedule pods of schedulerName '
                      '"default-scheduler": it has kubernetes.io/gpu; write spec.schedulerName: berth-scheduler; '
                      "bound to n1, but not by Berth, so its containers see no GPU: delete the pod"},
                     id="bound by another scheduler without a card"),
        pytest.param(lambda scene: scene.add(pod("p", {"nvidia.com/gpu": "0"}, on="n1", schedulerName=SCHEDULER)),
                     {"state": "Bound", "message": "bound to n1; it holds no device, because it requests none: "
                      "container main has nvidia.com/gpu: 0"}, id="bound without a device"),
        pytest.param(lambda scene: scene.add(pod("p", ONE, schedulerName="berth-schedular")),
                     {"state": "NotManaged", "message": 'Berth does not schedule pods of schedulerName '
                      '"berth-schedular" (did you mean berth-scheduler?)'}, id="a mistyped scheduler"),
        pytest.param(lambda scene: scene.add(pod("p", {"nvidia.com/gpu": "1"}, on="n1", **OTHER)),
                     {"state": "NotManaged", "message": 'Berth does not schedule pods of schedulerName '
                      '"default-scheduler"; bound to n1; which gpu it holds is not known: its allocation cannot be '
                      "read, so no gpu of n1 is allocated until kubelet reports it or the pod ends"},
                     id="bound by another scheduler"),
        pytest.param(lambda scene: scene.add(pod("p", {"nvidia.com/gpumem": "100"}, schedulerName="volcano")),
                     {"state": "NotManaged", "message": 'Berth does not schedule pods of schedulerName "volcano": it '
                      "has nvidia.com/gpumem; write spec.schedulerName: berth-scheduler, or give a profile of "
                      "Berth this name to leave the pods unchanged"}, id="left to Volcano"),
        pytest.param(lambda scene: scene.add(pod("p", schedulerName="other", created="1969-12-31T23:59:00Z")),
                     {"state": "NotManaged", "message": 'Berth does not schedule pods of schedulerName "other"; no '
                      "scheduler has tried it for a minute, so no scheduler other seems to run: start it, "
                      "or give a profile of Berth this name"}, id="a scheduler that does not run"),
        pytest.param(lambda scene: scene.add(pod("p", ONE, **OTHER)), {"state": "NotManaged"}, id="another scheduler"),
        pytest.param(lambda scene: scene.add(pod("p", ONE, schedulerName=SCHEDULER, schedulingGates=GATES)),
                     {"state": "Gated", "message": "scheduling is blocked by gates: example.com/quota, "
                      "example.com/topology"}, id="gates"),
        pytest.param(lambda scene: scene.on_server.update(p=pod("p", schedulerName=SCHEDULER,
                                                                status={"phase": "Succeeded"})),
                     {"state": "NotManaged", "message": "the pod has ended: Succeeded"}, id="ended"),
    ],
)  # fmt: skip
async def test_the_states_of_a_pod(setup: Any, expected: dict[str, Any]) -> None:
    scene = Scene()
    setup(scene)
    explained = await scene.explain("p")
    assert {key: explained[key] for key in expected} == expected
    assert ("queue" in explained) is (explained["state"] in ("Active", "BackingOff", "Waiting"))


@pytest.mark.parametrize(
    ("raw", "code", "message"),
    [
        (None, 404, 'pods "p" not found'),
        (pod("p", schedulerName=SCHEDULER), 503, "the operator has not seen the pod yet"),
    ],
)
async def test_pods_that_are_not_known(raw: Any, code: int, message: str) -> None:
    scene = Scene()
    scene.on_server.update({"p": raw} if raw else {})
    with pytest.raises(StatusError, match=message) as caught:
        await scene.explain("p")
    assert caught.value.code == code


# --- limits -----------------------------------------------------------------------------------------------------


def computed() -> float:
    return float(counters.VISIBILITY_EXPLANATIONS._value.get())


async def test_an_explanation_is_kept_for_a_second() -> None:
    scene, before = Scene(), computed()
    scene.add(pod("p", MANY))
    for _ in range(5):
        await scene.explain("p")
    assert computed() == before + 1
    await asyncio.sleep(KEPT_SECONDS)
    await scene.explain("p")
    assert computed() == before + 2


async def test_a_user_gets_429_beyond_a_rate_and_others_do_not() -> None:
    scene = Scene()
    scene.add(pod("p", MANY))
    for _ in range(int(RATE)):
        await scene.explain("p")
    with pytest.raises(StatusError) as caught:
        await scene.explain("p")
    assert (caught.value.code, caught.value.retry_after) == (429, 1)
    await scene.explain("p", user="bob")
    await asyncio.sleep(1.0)
    await scene.explain("p")


async def test_explanations_are_computed_one_at_a_time_and_few_wait() -> None:
    scene = Scene()
    asked = [
        asyncio.create_task(scene.explain(f"none-{number}", user=str(number))) for number in range(MAX_WAITING + 3)
    ]
    await asyncio.sleep(0.005)
    assert scene.reads == 1
    answers = await asyncio.gather(*asked, return_exceptions=True)
    codes = [int(answer.code) for answer in answers if isinstance(answer, StatusError)]
    assert (codes.count(404), codes.count(429)) == (MAX_WAITING, 3)
