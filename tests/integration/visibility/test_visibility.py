"""The visibility API through the real aggregator: kubectl, access, the relay of a standby, and a change of leaders.

What it answers about a wait is compared with what ends the wait by `tests/component/answers/test_wait_answers.py`, in
random clusters; here is one change of each kind of object.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from berth_api import names
from devcluster import DevclusterError, waiting
from devcluster.building import programs
from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.operator.world import PROMPT, World, gpu
from tests.integration.visibility.conftest import API, GROUP, SERVED, Installation

WHOLE = {"kubernetes.io/gpu": "100"}
MANY = {"kubernetes.io/gpu": "800"}
FORGED = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
ANONYMOUS: dict[str, str] = {}
BAD = {"Authorization": "Bearer bad"}
FAIL_OVER = 30.0
"""Longest time in seconds from a leader's end until the next one answers, on a busy machine."""


@pytest.fixture(scope="module")
def scene(installation: Installation) -> str:
    """Place a pod, let one wait, and another one in a namespace of others; return the node."""
    world, other = installation.world, f"{installation.arena.namespace}-other"
    [node] = world.nodes(1, gpus=2)
    world.pod("holds", WHOLE)
    world.bound("holds")
    world.pod("waits", MANY)
    installation.api.post("/api/v1/namespaces", {"metadata": {"name": other}})
    account = f"/api/v1/namespaces/{other}/serviceaccounts/default"
    world.wait(lambda: installation.api.exists(account), what="the other namespace")
    pod = installation.arena.pod("secret", requests=MANY, limits=MANY)
    installation.api.post(f"/api/v1/namespaces/{other}/pods", {**pod, "metadata": {"name": "secret"}})
    world.wait(lambda: set(installation.names("queue")) == {"waits", "secret"}, what="both waiting pods")
    world.wait(lambda: installation.names("fleet") == [node], what="the node")
    return node


def test_kubectl_reads_every_resource(installation: Installation, scene: str) -> None:
    kubectl, namespace = installation.arena.cluster.kubectl, installation.arena.namespace

    def is_discovered() -> bool:
        return "Holder" in kubectl("api-resources", f"--api-group={GROUP}", "--cached=false")

    waiting.until(is_discovered, what="discovery")
    # A standby replica relays what the leader answers.
    for replica in (installation.standby, installation.leader):
        installation.pass_on_to(replica)
        header, row = kubectl("get", "fleet").splitlines()
        assert header.split() == ["NAME", "STATE", "GPUS", "UNUSED", "UNHEALTHY", "MODELS"]
        assert row.split()[:5] == [scene, "Ready", "2", "1", "0"]
        header, row = kubectl("get", "holders", "-n", namespace).splitlines()
        assert header.split() == ["NAME", "NODE", "DEVICES", "OWNER", "SINCE"]
        assert row.split()[:3] == ["holds", scene, "gpu"]
        header, row = kubectl("get", "queue", "-n", namespace).splitlines()
        assert header.split() == ["NAME", "POSITION", "STATE", "PRIORITY", "WAITING", "REQUESTS"]
        assert [row.split()[place] for place in (0, 1, 2, 5)] == [
            "waits",
            "1",
            "unschedulable",
            "kubernetes.io/gpu=800",
        ]
        assert len(kubectl("get", "queue", "-A").splitlines()) == 3
        explained = json.loads(kubectl("get", "--raw", f"{API}/namespaces/{namespace}/pods/waits/explanation"))
        assert (explained["state"], explained["fitsWhenEmpty"], explained["queue"]["of"]) == ("Waiting", 0, 2)
        assert explained["groups"][0]["nodes"] == [scene]
        assert "too few healthy GPUs" in explained["message"]
        bound = json.loads(kubectl("get", "--raw", f"{API}/namespaces/{namespace}/pods/holds/explanation"))
        assert (bound["state"], bound["message"]) == ("Bound", f"bound to {scene} with GPU 0")

    def is_explained() -> bool:
        try:
            return "waitingSeconds" in kubectl("explain", "queue", f"--api-version={GROUP}/v1alpha1")
        except DevclusterError:
            return False

    waiting.until(is_explained, what="the API server to read the schemas, which it does in the background")


def test_kubectl_berth_reads_it(installation: Installation, scene: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "BERTH_KUBECTL": str(programs.ensure(["kubectl"])["kubectl"]),
        "KUBECONFIG": str(installation.arena.cluster.kubeconfig),
    }

    def run(line: str, status: int = 0) -> list[list[str]]:
        command = [sys.executable, "-m", "berth_kubectl", *line.split()]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
        assert (ended.returncode, ended.stderr) == (status, ""), line  # a note would say that the API is not used
        return [row.split() for row in ended.stdout.splitlines()]

    place = f"-n {installation.arena.namespace}"
    assert run(f"who {place} --no-headers")[0][1:5] == ["holds", scene, "1", "gpu:0"]
    assert [row[:4] for row in run("queue -A --no-headers")] == [
        ["1", installation.arena.namespace, "waits", "Unschedulable"],
        ["2", f"{installation.arena.namespace}-other", "secret", "Unschedulable"],
    ]
    assert [row[3:5] for row in run("free --no-headers")] == [["2", "1"]]
    assert [row[:7] for row in run(f"devices {scene} --no-headers")] == [
        [scene, "Ready", "gpu", str(minor), "NVIDIA-A100-SXM4-80GB", "Healthy", str(1 - minor)] for minor in (0, 1)
    ]
    text = [" ".join(row) for row in run(f"explain waits {place}")]
    assert text[1] == "State: Waiting (position 1 of 2 in the queue)"
    assert "Fits: not now; on no node even if empty" in text
    new = f"New node: another node like {scene} would not help; a node like {scene} with 8 GPUs would end the wait"
    assert new in text
    assert run(f"explain holds {place}")[1] == ["State:", "Bound"]
    # The profile and the limit that are shown are the operator's.
    pod = installation.arena.pod("first", requests=WHOLE, limits=WHOLE)
    workload = tmp_path / "workload.yaml"
    workload.write_text(json.dumps({**pod, "metadata": {"name": "first", "labels": {"genius/priority": "7"}}}))
    refused = [" ".join(row) for row in run(f"simulate -f {workload} {place}", status=1)]
    assert "allowed in namespace" in "".join(refused)
    assert "2 other pod(s) wait already and are decided with them; --waiting lists them." in refused


# --- access -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("scene")
def test_only_who_may_gets_an_answer(installation: Installation) -> None:
    namespace = installation.arena.namespace
    mine, others = f"{API}/namespaces/{namespace}", f"{API}/namespaces/{namespace}-other"
    paths = {
        "my queue": f"{mine}/queue",
        "my holders": f"{mine}/holders",
        "my pod": f"{mine}/pods/waits/explanation",
        "my settings": f"{mine}/pods/-/explanation?settings=true",
        "another queue": f"{others}/queue",
        "another pod": f"{others}/pods/secret/explanation",
        "no pod": f"{mine}/pods/none/explanation",
        "every queue": f"{API}/queue",
        "every holder": f"{API}/holders",
        "fleet": f"{API}/fleet",
        "other settings": f"{others}/pods/-/explanation?settings=true",
        "all settings": f"{API}/fleet?settings=true",
    }
    viewer, stranger = installation.user("viewer", "berth-visibility-view"), installation.user("stranger")
    admin = {"Authorization": f"Bearer {installation.arena.cluster.token}"}
    waiting.until(lambda: installation.ask(paths["my queue"], viewer)[0] == 200, what="the role to be bound")
    allowed = {"my queue", "my holders", "my pod", "my settings"}
    expected = {
        "admin": (admin, {name: 404 if name == "no pod" else 200 for name in paths}),
        "viewer": (viewer, {name: 200 if name in allowed else 404 if name == "no pod" else 403 for name in paths}),
        "stranger": (stranger, dict.fromkeys(paths, 403)),
        "anonymous": (ANONYMOUS, dict.fromkeys(paths, 403)),
        "forged": (FORGED, dict.fromkeys(paths, 403)),
        "forged by a viewer": (
            {**viewer, **FORGED},
            {name: 200 if name in allowed else 404 if name == "no pod" else 403 for name in paths},
        ),
        "bad token": (BAD, dict.fromkeys(paths, 401)),
    }
    for user, (headers, statuses) in expected.items():
        answers = {name: installation.ask(path, headers) for name, path in paths.items()}
        assert {name: answer[0] for name, answer in answers.items()} == statuses, user
        if user != "admin":
            assert "secret" not in json.dumps([answers[name] for name in allowed])
    # At the replicas themselves, names of users in headers mean nothing.
    for replica in (installation.leader, installation.standby):
        for headers in (ANONYMOUS, FORGED, BAD):
            assert {installation.ask(path, headers, replica=replica)[0] for path in paths.values()} == {401}
        forged = {**viewer, **FORGED}
        answers = {name: installation.ask(path, forged, replica=replica) for name, path in paths.items()}
        assert {name: answer[0] for name, answer in answers.items()} == expected["viewer"][1]


# --- leaders ----------------------------------------------------------------------------------------------------


class Watcher:
    """A watch by kubectl, through the API server."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.frames: list[Manifest] = []

    def next(self) -> tuple[str, str]:
        """Return type and name of the next frame."""
        assert self._process.stdout is not None
        self.frames.append(json.loads(self._process.stdout.readline()))
        return self.frames[-1]["type"], self.frames[-1]["object"]["metadata"]["name"]

    def until(self, event: str, name: str) -> None:
        """Read frames up to one; before it, other rows may change, such as by a report about their pod."""
        while self.next() != (event, name):
            assert self.frames[-1]["type"] == "MODIFIED"

    @property
    def version(self) -> str:
        """Return the version of the last frame."""
        version: str = self.frames[-1]["object"]["metadata"]["resourceVersion"]
        return version

    def ended(self) -> None:
        """Wait until the watch has ended."""
        self._process.communicate(timeout=FAIL_OVER)


@contextmanager
def watching(installation: Installation, resource: str) -> Iterator[Watcher]:
    kubectl = str(programs.ensure(["kubectl"])["kubectl"])
    kubeconfig = f"--kubeconfig={installation.arena.cluster.kubeconfig}"
    command = [kubectl, kubeconfig, "get", "--raw", f"{API}/{resource}?watch=true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            yield Watcher(running)
        finally:
            running.kill()


def test_watches_end_with_the_leader_and_the_next_one_has_the_right_rows(
    installation: Installation, scene: str
) -> None:
    world = installation.world
    # The replica that receives the requests stays: its watches are relayed.
    installation.pass_on_to(installation.standby)
    with watching(installation, "queue") as queue, watching(installation, "fleet") as fleet:
        assert {queue.next(), queue.next()} == {("ADDED", "waits"), ("ADDED", "secret")}
        assert fleet.next() == ("ADDED", scene)
        world.pod("later", MANY)
        queue.until("ADDED", "later")
        world.pod("holds-too", WHOLE)
        while fleet.next() and [device["users"] for device in fleet.frames[-1]["object"]["devices"]] != [1, 1]:
            assert fleet.frames[-1]["type"] == "MODIFIED"
        installation.leader.process.kill()
        queue.ended()
        fleet.ended()
    world.arena.delete("pods", "waits", grace_seconds=0)
    waiting.until(installation.is_available, deadline=FAIL_OVER, what="the next leader's answer")
    for resource, watcher in (("queue", queue), ("fleet", fleet)):
        with pytest.raises(ApiError, match="too old resource version") as caught:
            next(installation.api.watch(f"{API}/{resource}", version=watcher.version, seconds=60))
        assert caught.value.status == 410
    world.wait(lambda: set(installation.names("queue")) == {"secret", "later"}, what="the rows of the next leader")
    assert set(installation.names("holders")) == {"holds", "holds-too"}


# --- what would end a wait --------------------------------------------------------------------------------------

TAINT: Final = {"key": "example.com/x", "value": "", "effect": "NoSchedule"}
GANG: Final = {"annotations": {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "2"}}
STORAGE: Final = {"storageClassName": "by-hand", "accessModes": ["ReadWriteOnce"]}
SIZE: Final = {"storage": "1Gi"}
DATA: Final = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A pod that waits for one node, and a change of that."""

    said: str
    """What the API answers about the change, of {node}."""
    change: Callable[[World, str, str], object]
    """Makes it, from the case and its node."""
    ends: bool = True
    node: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the node's spec."""
    requests: Mapping[str, str] = field(default_factory=lambda: WHOLE)
    pod: Mapping[str, Any] = field(default_factory=dict)


def merged(**body: Any) -> Callable[[World, str, str], object]:
    """Return a change of the node."""
    return lambda world, _, node: world.arena.merge("nodes", node, body)


def add_node(world: World, case: str, *_: object, **spec: Any) -> str:
    """Add a node with a card; the label by which the case's pods select it comes last."""
    [node] = world.arena.nodes(1, capacity={"cpu": "2"})
    world.device(node, [gpu(0) | {"id": f"GPU-{node}"}])
    world.arena.merge("nodes", node, {"metadata": {"labels": {"case": case}}, "spec": spec})
    return node


def add_pod(world: World, case: str, name: str, wait: Wait) -> None:
    """Create a pod for the case's nodes."""
    selector = {"case": case, **wait.pod.get("nodeSelector", {})}
    world.pod(name, wait.requests, **{**wait.pod, "nodeSelector": selector})


def more_cpu(world: World, _: str, node: str) -> None:
    amounts = {"capacity": {"cpu": "3"}, "allocatable": {"cpu": "3"}}
    world.arena.merge("nodes", node, {"status": amounts}, subresource="status")


def bind_a_claim(world: World, *_: str) -> None:
    volume = world.arena.id
    reference = {"namespace": world.arena.namespace, "name": "data"}
    source = {"capacity": SIZE, "hostPath": {"path": "/none"}, "claimRef": reference}
    claimed = {"volumeName": volume, "resources": {"requests": SIZE}}
    made = (("PersistentVolume", volume, source), ("PersistentVolumeClaim", "data", claimed))
    world.arena.apply(
        [
            {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": {**STORAGE, **spec}}
            for kind, name, spec in made
        ]
    )


WAITS: Final[Mapping[str, Wait]] = {
    "tainted": Wait(
        said="removing the taint example.com/x:NoSchedule from {node} would end the wait",
        change=merged(spec={"taints": []}),
        node={"taints": [TAINT]},
    ),
    "cordoned": Wait(
        said="uncordoning {node} would end the wait",
        change=merged(spec={"unschedulable": None}),
        node={"unschedulable": True},
    ),
    "labelled": Wait(
        said="the label pool=b on {node} would end the wait",
        change=merged(metadata={"labels": {"pool": "b"}}),
        pod={"nodeSelector": {"pool": "b"}},
    ),
    "cpu": Wait(said="1 cpu more on {node} would end the wait", change=more_cpu, requests={**WHOLE, "cpu": "3"}),
    "held": Wait(
        said="the end of pod held-holder on {node} would end the wait",
        change=lambda world, case, _: world.remove(f"{case}-holder"),
    ),
    "claim": Wait(
        said='PersistentVolumeClaim "data", bound to a volume that every node reaches would end the wait',
        change=bind_a_claim,
        pod={"volumes": [DATA]},
    ),
    "gang": Wait(
        said="1 more member of pod group {namespace}/g like gang (1 of 2 exist) would end the wait",
        change=lambda world, case, _: add_pod(world, case, "gang-more", WAITS[case]),
        requests={"cpu": "1"},
        pod=GANG,
    ),
    # Last of those that end: a new node wakes others, too.
    "held-too": Wait(said="another node like {node} would end the wait", change=add_node),
    "another-label": Wait(
        said="another node like {node} would not help",
        change=add_node,
        ends=False,
        pod={"nodeSelector": {"pool": "b"}},
    ),
    "wrong": Wait(
        said="only a corrected pod, created again, can be placed",
        change=add_node,
        ends=False,
        requests={"kubernetes.io/gpu": "150"},
    ),
}
HELD: Final = ("held", "held-too")


@pytest.mark.usefixtures("scene")
def test_a_change_that_is_said_to_end_a_wait_ends_it_and_others_do_not(installation: Installation) -> None:
    world, arena = installation.world, installation.arena
    nodes = {case: add_node(world, case, **wait.node) for case, wait in WAITS.items()}
    for case in HELD:
        add_pod(world, case, f"{case}-holder", WAITS[case])
        world.bound(f"{case}-holder")
    for case, wait in WAITS.items():
        add_pod(world, case, case, wait)

    def is_said(case: str) -> bool:
        said = WAITS[case].said.format(node=nodes[case], namespace=arena.namespace)
        explanation = installation.api.get(f"{API}/namespaces/{arena.namespace}/pods/{case}/explanation")
        return any(each["message"].startswith(said) for each in explanation.get("remedies", ()))

    for case in WAITS:
        world.wait(partial(is_said, case), deadline=PROMPT, what=f"{case}: {WAITS[case].said}")
    # What does not help comes first: once the others are bound, it has been tried, too.
    for case, wait in sorted(WAITS.items(), key=lambda item: item[1].ends):
        wait.change(world, case, nodes[case])
        if wait.ends:
            world.bound(case, deadline=PROMPT)
    assert not world.bound_names() & {case for case, wait in WAITS.items() if not wait.ends}


def test_a_namespace_is_deleted_while_no_replica_leads(installation: Installation) -> None:
    api, arena = installation.api, installation.arena
    lease = f"/apis/berth.dev/v1alpha1/namespaces/{arena.namespace}/leaderleases/{arena.lease_name}"
    for replica in (installation.leader, installation.standby):
        replica.process.kill()
    # The replica that led has just been killed, and no other may take its place.
    api.merge(lease, {"spec": {"leaseDurationSeconds": 3600}})
    replica = installation.start(installation.leader.port)
    replica.process.logged(SERVED)

    installation.pass_on_to(replica, is_answered=False)
    status, body = installation.ask(f"{API}/fleet", {"Authorization": f"Bearer {arena.cluster.token}"})
    assert (status, body["reason"]) == (503, "ServiceUnavailable")
    assert "does not answer; a leader was last heard of at 20" in body["message"]
    doomed = f"/api/v1/namespaces/{arena.namespace}-other"
    api.delete(doomed)
    waiting.until(lambda: not api.exists(doomed), what="the namespace to be gone")
