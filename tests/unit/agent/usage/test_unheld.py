"""Pods that use cards without holding them: what counts as holding, and that two readings must show it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from berth_agent.kubelet.admission import pods
from berth_agent.kubelet.admission.mirror import Holding
from berth_agent.kubelet.admission.units import Units
from berth_agent.readings import Process, Reading
from berth_agent.usage.unheld import ALLOWANCE, UnheldUses
from berth_api.device import MAX_DEVICES, DeviceSpec

GI = 2**30
UID = "1f2e3d4c-5b6a-4788-9900-aabbccddeeff"
STATIC = "0123456789abcdef0123456789abcdef"
OF_STATIC = {"kubernetes.io/config.hash": STATIC, "kubernetes.io/config.mirror": STATIC}
WHOLE, SHARED, INSTANCE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
OWN_NAMESPACE = "agents"
UNKNOWN = "GPU-0-7"
"""An id as other device plugins of NVIDIA's cards make them."""


def spec(*ids: str) -> DeviceSpec:
    mig = {
        "enabled": True,
        "instances": [{"id": "MIG-1", "profile": "1g.10gb", "gpuInstance": 7, "computeInstance": 0, "memory": "9Gi"}],
    }
    cards = [{"type": "gpu", "minor": minor, "id": name} for minor, name in enumerate(ids)]
    return DeviceSpec.model_validate(
        {"devices": [{**card, **({"mig": mig} if card["id"] == "GPU-1" else {})} for card in cards]}
    )


def pod(*requests: Mapping[str, str], init: Mapping[str, str] | None = None, **more: Any) -> pods.Pod:
    """Return a pod whose containers c0, c1 … request these; `gpu` is its allocation, `more` is of its spec."""
    status = more.pop("status", {})
    annotations = dict(more.pop("annotations", {}))
    if "gpu" in more:
        annotations["scheduling.koordinator.sh/device-allocated"] = json.dumps({"gpu": more.pop("gpu")})
    containers = [{"name": f"c{place}", "resources": {"limits": limits}} for place, limits in enumerate(requests)]
    first = [] if init is None else [{"name": "init", "resources": {"limits": init}}]
    metadata = {"uid": UID, "namespace": "ns", "name": "p", **more.pop("metadata", {}), "annotations": annotations}
    spec_ = {"containers": containers, "initContainers": first, **more}
    return pods.of_object({"metadata": metadata, "spec": spec_, "status": status})


def given(*ids: str, container: str = "c0") -> Holding:
    return Holding(uid=UID, namespace="ns", pod="p", container=container, ids=ids)


def share(card: str, **fields: Any) -> dict[str, Any]:
    return {"minor": 0, "id": card, "resources": {"kubernetes.io/gpu-core": "50"}, **fields}


class Node:
    """A node with three cards, on which one pod's processes use card 0 unless a test sets `used`."""

    def __init__(self, proc: Path) -> None:
        self.spec = spec("GPU-0", "GPU-1", "GPU-2")
        self.used = {0: [60 * GI]}
        """Minor of a card -> bytes that each process of the pod uses."""
        self.units = Units()
        self.uses = UnheldUses(proc=proc, own_namespace=OWN_NAMESPACE)
        self._proc = proc
        self.runs()

    def runs(self, uid: str = UID) -> None:
        for pid in range(8):
            (self._proc / str(pid)).mkdir(exist_ok=True)
            (self._proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{uid}/c\n")

    def read(self) -> Reading:
        listed = {
            minor: tuple(Process(pid=pid, memory=memory) for pid, memory in enumerate(used))
            for minor, used in self.used.items()
        }
        return Reading(spec=self.spec, findings=(), processes=listed)

    def see(
        self, *listed: pods.Pod, holdings: Sequence[Holding] = (), reading: Reading | None = None
    ) -> list[tuple[str, int, str]]:
        """Take a reading; return the pods that are reported, each with the card and its memory."""
        reading = reading or self.read()
        self.units = self.units.joined(Units.of(reading.spec))
        self.uses.observe(reading, listed, holdings, self.units)
        return [(use.id, use.minor, str(use.memory)) for use in self.uses.confirmed]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("listed", "holdings"),
    [
        pytest.param(pod({}), [], id="without any request"),
        pytest.param(
            pod({"rdma/hca": "1", "koordinator.sh/rdma": "100", "cpu": "4"}), [], id="with other devices alone"
        ),
        pytest.param(pod({"aliyun.com/gpu-mem": "0"}), [], id="with a request for nothing"),
        pytest.param(pod({}, gpu=[share("GPU-2")]), [], id="with a share of another card"),
        pytest.param(pod({"kubernetes.io/gpu-core": "50"}, gpu=[share("GPU-2")]), [], id="with such a request"),
        pytest.param(pod({WHOLE: "1"}), [given("GPU-2")], id="that kubelet gave another card"),
        pytest.param(
            pod({WHOLE: "1"}, gpu=[share("GPU-0")]), [given("GPU-2")], id="that was allocated it, and not given"
        ),
        pytest.param(pod({WHOLE: "1"}, gpu=[share("")]), [given("GPU-2")], id="whatever its annotation says"),
        pytest.param(pod({SHARED: "1"}), [given("GPU-2::3")], id="with a replica of another card"),
        pytest.param(pod({INSTANCE: "1"}), [given("MIG-1")], id="with an instance of another card"),
        pytest.param(pod({WHOLE: "1"}, {WHOLE: "1"}), [given("GPU-1"), given("GPU-2", container="c1")], id="of two"),
    ],
)
def test_a_pod_that_does_not_hold_a_card_is_reported(node: Node, listed: pods.Pod, holdings: list[Holding]) -> None:
    assert node.see(listed, holdings=holdings) == []
    assert node.see(listed, holdings=holdings) == [("GPU-0", 0, "60Gi")]
    [use] = node.uses.confirmed
    assert (use.type, use.namespace, use.pod, use.pod_uid) == ("gpu", "ns", "p", UID)


@pytest.mark.parametrize(
    ("listed", "holdings"),
    [
        pytest.param(pod({WHOLE: "1"}), [given("GPU-0")], id="by kubelet, of any scheduler"),
        pytest.param(pod({WHOLE: "1"}, gpu=[share("GPU-2")]), [given("GPU-0")], id="by kubelet in place of another"),
        pytest.param(pod({WHOLE: "2"}), [given("GPU-0", "GPU-2")], id="as one of two"),
        pytest.param(pod({}, {WHOLE: "1"}), [given("GPU-0", container="c1")], id="by another container"),
        pytest.param(pod({}, init={WHOLE: "1"}), [given("GPU-0", container="init")], id="by an init container"),
        pytest.param(pod({SHARED: "1"}), [given("GPU-0::3")], id="by a replica"),
        pytest.param(pod({}, gpu=[share("GPU-0")]), [], id="by a share"),
        pytest.param(pod({}, gpu=[share("GPU-0::1")]), [], id="by an allocated replica"),
        pytest.param(pod({WHOLE: "1"}), [], id="for all that is known: kubelet has not said it"),
        pytest.param(pod({WHOLE: "2"}), [given("GPU-2")], id="as far as known: kubelet has said a part"),
        pytest.param(pod({WHOLE: "1"}, init={WHOLE: "2"}), [given("GPU-2")], id="as far as known: of init"),
        pytest.param(pod({WHOLE: "1"}), [given(UNKNOWN)], id="for all that is known: by another plugin's id"),
        pytest.param(pod({"nvidia.com/a100": "1"}), [], id="maybe, by a renamed resource"),
        pytest.param(pod({"aliyun.com/gpu-mem": "8"}), [], id="maybe, by another plugin"),
        pytest.param(pod({}, init={"tencent.com/vcuda-core": "8"}), [], id="maybe, by another plugin, init"),
        pytest.param(pod({}, resourceClaims=[{"name": "c"}]), [], id="maybe, by a claim"),
        pytest.param(
            pod({"example.com/h100": "1"}, status={"extendedResourceClaimStatus": {"resourceClaimName": "c"}}),
            [],
            id="maybe, by a resource of a DeviceClass",
        ),
        pytest.param(pod({}, gpu=[{**share(""), "minor": 0}]), [], id="maybe: an allocation without ids"),
        pytest.param(pod({}, gpu="broken"), [], id="maybe: an allocation that cannot be read"),
        pytest.param(pod({}, metadata={"namespace": OWN_NAMESPACE}), [], id="as MPS' daemon may"),
    ],
)
def test_a_pod_that_holds_a_card_or_may_hold_it_is_not_reported(
    node: Node, listed: pods.Pod, holdings: list[Holding]
) -> None:
    for _ in range(3):
        assert node.see(listed, holdings=holdings) == []


@pytest.mark.parametrize(
    ("used", "reported"), [([ALLOWANCE], 0), ([ALLOWANCE + 1], 1), ([ALLOWANCE // 2] * 2, 0), ([ALLOWANCE // 2] * 3, 1)]
)
def test_what_monitoring_uses_is_allowed(node: Node, used: list[int], reported: int) -> None:
    node.used = {0: used}
    node.see(pod({}))
    assert len(node.see(pod({}))) == reported


def test_two_readings_in_a_row_must_show_it(node: Node) -> None:
    reading = node.read()
    assert node.see(pod({}), reading=reading) == []
    # What was read once is looked at again whenever pods change.
    assert node.see(pod({}), reading=replace(reading, spec=node.spec)) == []
    node.used = {}
    assert node.see(pod({})) == []
    node.used = {0: [2 * GI]}
    assert node.see(pod({})) == []
    assert node.see(pod({})) == [("GPU-0", 0, "2Gi")]
    assert node.see(pod({WHOLE: "1"}), holdings=[given("GPU-0")]) == []


def test_processes_that_outlive_their_pod_are_reported_on_and_no_others(node: Node) -> None:
    assert [node.see() for _ in range(3)] == [[], [], []]
    node.see(pod({}))
    assert node.see() == [("GPU-0", 0, "60Gi")]
    node.used = {0: [30 * GI]}
    assert node.see() == [("GPU-0", 0, "30Gi")]
    node.used = {}
    assert node.see() == []


def test_a_static_pod_is_known_by_kubelet_s_own_uid(node: Node) -> None:
    node.runs(STATIC)
    listed = pod({}, annotations=OF_STATIC)
    node.see(listed)
    assert node.see(listed) == [("GPU-0", 0, "60Gi")]
    assert node.uses.confirmed[0].pod_uid == UID


def test_a_restart_ends_no_report(node: Node, tmp_path: Path) -> None:
    node.see(pod({}))
    node.see(pod({}))
    published, node.uses = node.uses.confirmed, UnheldUses(proc=tmp_path, own_namespace=OWN_NAMESPACE)
    node.uses.restore(published)
    assert node.see(pod({})) == [("GPU-0", 0, "60Gi")]


def test_what_has_ended_is_not_reported_while_the_driver_lists_nothing_again(node: Node, tmp_path: Path) -> None:
    node.runs(STATIC)
    static = pod({}, annotations=OF_STATIC)
    node.see(static)
    reading = node.read()
    assert node.see(static, reading=reading) == node.see(static, reading=reading) == [("GPU-0", 0, "60Gi")]
    (tmp_path / "0/cgroup").unlink()
    assert node.see(reading=reading) == []


def test_their_number_is_bounded(node: Node, tmp_path: Path) -> None:
    node.uses = UnheldUses(proc=tmp_path, own_namespace=OWN_NAMESPACE)
    uids = [f"{number:08x}-5b6a-4788-9900-aabbccddeeff" for number in range(MAX_DEVICES + 1)]
    for pid, uid in enumerate(uids):
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{uid}/c\n")
    node.used = {0: [2 * GI for _ in uids]}
    listed = [pod({}, metadata={"uid": uid, "name": f"p{uid}"}) for uid in uids]
    node.see(*listed)
    assert len(node.see(*listed)) == MAX_DEVICES
    names = [use.pod for use in node.uses.confirmed]
    assert names == sorted(names)
