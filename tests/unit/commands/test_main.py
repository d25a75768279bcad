"""The commands as users run them: a workload and a snapshot as input, tables or JSON and an exit code as output."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api import names
from berth_operator.commands import snapshots
from berth_operator.commands.main import main
from berth_operator.core.advice.defragmentation import CLAIMING, OF_CLAIM
from berth_operator.core.decision.policy import Policy
from berth_operator.settings import rendering
from berth_operator.settings.configuration import Configuration
from tests.claims.objects import request
from tests.objects.builders import A100_BYTES, device, entry, half, lease, node, pod, pod_group, whole
from tests.objects.resource_claims import NVIDIA_DRIVER, allocated, gpu, resource_slice

Raw = dict[str, Any]
CARD = {"nvidia.com/gpu": "1"}
SHARE = {"kubernetes.io/gpu": "50"}
NPU = {"example.com/npu": "1"}
NPUS = {"example.com/npu": 2, "example.com/bad": 1}
SCHEDULER = {"schedulerName": names.SCHEDULER}
NOT_OURS = 'because the nodes of its pods are not known: Berth does not schedule pods of schedulerName "kai-scheduler"'
OWNED = {"ownerReferences": [{"kind": "ReplicaSet", "name": "rs", "uid": "1", "controller": True}]}
MIRROR = {"ownerReferences": [{"kind": "Node", "name": "a", "uid": "1", "controller": True}]}


class Desk:
    """A folder with a workload and a snapshot in it, and the output of commands."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.snapshot, self.workload = folder / "cluster.jsonl", folder / "w.yaml"
        self.config = folder / "berth.yaml"
        self._lines = [snapshots.head()]
        self.write()

    def nodes(self, **cards: int) -> "Desk":
        for name, count in cards.items():
            self.put("nodes", node(name)).put("devices", device(name, *(entry(minor) for minor in range(count))))
            self.put("leases", lease(name))
        return self

    def put(self, of: str, *objects: Raw) -> "Desk":
        self._lines += [snapshots.line(of, obj) for obj in objects]
        self.write()
        return self

    def write(self, *more: bytes) -> None:
        self.snapshot.write_bytes(b"".join([*self._lines, *more]))

    def with_workload(self, *documents: Raw) -> "Desk":
        self.workload.write_text(yaml.safe_dump_all(documents))
        return self

    def run(self, command: str, *more: str, file: bool = True) -> tuple[int, str, str]:
        """Return status, output and errors, without the note that a snapshot has no settings of an operator."""
        arguments = [command, "--snapshot", str(self.snapshot), *(["-f", str(self.workload)] if file else []), *more]
        status = main(arguments)
        captured = self._capture.readouterr()
        note, of_settings, rest = captured.err.partition("\n")
        if "note: the operator's settings are not known: the snapshot does not have them; assumed are" not in note:
            return status, captured.out, captured.err
        assert of_settings
        return status, captured.out, rest

    def json(self, command: str, *more: str, file: bool = True) -> tuple[int, Raw]:
        status, out, err = self.run(command, "-o", "json", *more, file=file)
        assert err == ""
        return status, json.loads(out)


@pytest.fixture
def desk(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capfd)


def requesting(name: str, requests: Mapping[str, Any], **fields: Any) -> Raw:
    """Return the document of a Pod that requests resources."""
    spec = {"containers": [{"name": "main", "resources": {"limits": dict(requests)}}], **fields.pop("spec", {})}
    return {"kind": "Pod", "metadata": {"name": name, **fields}, "spec": spec}


def placed(report: Raw, of: str = "pods") -> dict[str, str]:
    """Return each pod's node and GPUs, or the reason why it has none."""
    return {pod["pod"]: pod.get("reason") or f"{pod['node']} {pod['devices'].get('gpu', [])}" for pod in report[of]}


# --- claims -----------------------------------------------------------------------------------------------------

GPU_CLASS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
OWN_POOLS = {
    "apiVersion": "config.berth.dev/v1alpha1",
    "kind": "BerthSchedulerConfiguration",
    "profiles": [{"schedulerName": names.SCHEDULER}],
    "claims": {"drivers": [NVIDIA_DRIVER]},
}


def template(name: str = "one", count: int = 1, **metadata: Any) -> Raw:
    spec = {"spec": {"devices": {"requests": [request(count=count)]}}}
    return {"kind": "ResourceClaimTemplate", "metadata": {"name": name, **metadata}, "spec": spec}


def by_claim(name: str, of: str = "resourceClaimTemplateName", claim: str = "one") -> Raw:
    return requesting(name, {}, spec={"resourceClaims": [{"name": "gpu", of: claim}]})


@pytest.fixture
def with_driver(desk: Desk) -> Desk:
    """Return a desk with two nodes whose two cards a driver lists, in a pool of Berth."""
    desk.config.write_text(yaml.safe_dump(OWN_POOLS))
    for name in ("a", "b"):
        desk.nodes(**{name: 2}).put("resource slices", resource_slice(gpu(0), gpu(1), node=name))
    return desk.put("device classes", GPU_CLASS)


def test_pods_with_templates_are_placed_and_the_rest_has_the_reason(with_driver: Desk) -> None:
    desk = with_driver
    desk.with_workload(template(count=2), *(by_claim(f"p{number}") for number in range(3)))
    status, report = desk.json("simulate", "--config", str(desk.config))
    assert status == 1
    given = [pod.get("claims") or pod["reason"] for pod in report["pods"]]
    devices = [[f"{NVIDIA_DRIVER}/{name}/gpu-{minor}" for minor in range(2)] for name in "ab"]
    assert given[:2] == [{f"default/p{number}-gpu": devices[number]} for number in range(2)]
    assert given[2].startswith("0/2 nodes are available: 2 cannot allocate all claims.")
    assert [pod["devices"] for pod in report["pods"][:2]] == [{"gpu": [0, 1]}] * 2
    assert report["notes"] == []
    _, table, _ = desk.run("simulate", "--config", str(desk.config))
    assert f"default/p0-gpu: {devices[0][0]},{devices[0][1]}" in table


def test_a_template_of_the_cluster_is_used_and_a_missing_one_is_noted(with_driver: Desk) -> None:
    desk = with_driver
    desk.put("resource claim templates", template("there", namespace="default"))
    desk.with_workload(by_claim("p", claim="there"), by_claim("q", claim="missing"))
    _, report = desk.json("simulate", "--config", str(desk.config))
    by_pod = {pod["pod"]: pod for pod in report["pods"]}
    assert by_pod["default/p"]["fits"]
    assert 'pod "default/q": ResourceClaim not created yet' in by_pod["default/q"]["reason"]
    [note] = report["notes"]
    assert note.endswith("document 2 (Pod q): there is no ResourceClaimTemplate default/missing")


def test_pods_that_share_a_claim_go_where_it_can_be_used(with_driver: Desk) -> None:
    desk = with_driver
    shared = {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": {"requests": [request()]}}}
    desk.with_workload(shared, *(by_claim(f"p{number}", "resourceClaimName", "c") for number in range(3)))
    status, report = desk.json("simulate", "--config", str(desk.config))
    assert status == 0
    assert len({pod["node"] for pod in report["pods"]}) == 1


def test_an_extended_resource_by_a_class_of_the_file(with_driver: Desk) -> None:
    desk = with_driver
    by_name = {**GPU_CLASS, "spec": {"extendedResourceName": "example.com/gpu"}}
    desk.with_workload(by_name, requesting("p", {"example.com/gpu": 2}))
    status, report = desk.json("simulate", "--config", str(desk.config))
    assert status == 0
    assert len(report["pods"][0]["claims"]["example.com/gpu"]) == 2


def test_advice_names_what_claims_find_and_moves_no_pods_with_claims(with_driver: Desk) -> None:
    desk = with_driver
    held = allocated("held", "gpu-0", node="a", pods=["uid-t"])
    used = [{"name": "gpu", "resourceClaimName": "held"}]
    desk.put("resource claims", held, allocated("other", "gpu-1", node="b"))
    desk.put("pods", pod("t", on="a", metadata=OWNED, resourceClaims=used, schedulerName=names.SCHEDULER))
    desk.with_workload(template(count=2), by_claim("p"))
    status, report = desk.json("advise", "--config", str(desk.config))
    assert status == 1
    [sentence] = report["requests"]
    assert sentence == (
        "request gpu of default/p-gpu needs 2 device(s) of one node and finds 1 on a; of 4 it does not find "
        "2 allocated to other claims"
    )
    desk.with_workload(requesting("q", {"kubernetes.io/gpu": 200}))
    _, report = desk.json("advise", "--config", str(desk.config))
    why = {pod["pod"]: pod["why"] for pod in report["fixed"]}
    assert why["ns/resourceclaim/held"] == OF_CLAIM
    assert why.get("ns/t", CLAIMING) == CLAIMING


def test_a_claim_that_cannot_be_read_is_invalid_input(with_driver: Desk) -> None:
    desk = with_driver
    broken = template()
    broken["spec"]["spec"]["devices"]["requests"] = [{"name": "gpu", "exactly": {"count": "two"}}]
    desk.with_workload(broken, by_claim("p"))
    status, _, err = desk.run("simulate", "--config", str(desk.config))
    assert status == 2
    assert "count" in err


ALLOCATOR = """
from berth_api.request import Kind
from berth_operator.core.allocators import simple
from berth_operator.core.plugins import DevicePlugin

class Fails:
    passes, could_pass, reasons = map(staticmethod, (simple.passes, simple.could_pass, simple.reasons))

    def choose(self, *_, **__):
        raise ZeroDivisionError("division by zero")

npu = DevicePlugin(kind=Kind(name="npu", resources={"example.com/npu": 1}))
bad = DevicePlugin(kind=Kind(name="bad", resources={"example.com/bad": 1}), allocator=Fails())
"""
POINTS = "[berth.device_allocators]\nnpu = berth_npus:npu\nbad = berth_npus:bad\n"


@pytest.fixture
def plugged(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a desk with a node of two NPUs and a device whose plug-in fails, with both plug-ins installed."""
    installed = tmp_path / "site" / "berth_npus-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: berth-npus\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(POINTS)
    (installed.parent / "berth_npus.py").write_text(ALLOCATOR)
    monkeypatch.syspath_prepend(installed.parent)
    devices = [
        {"type": kind, "minor": n, "id": f"{kind}-{n}", "health": True} for kind in ("npu", "bad") for n in (0, 1)
    ]
    return desk.put("nodes", node("a", sums=NPUS)).put("devices", device("a", *devices)).put("leases", lease("a"))


@pytest.mark.parametrize("trusted", ["", "volcano,koord-scheduler"])
def test_pods_of_a_trusted_scheduler_hold_what_their_allocation_says(desk: Desk, trusted: str) -> None:
    desk.nodes(a=1)
    theirs = pod("p", {"kubernetes.io/gpu": "50"}, on="a", claims=half(0), schedulerName="koord-scheduler", bare=True)
    desk.put("pods", theirs).with_workload(requesting("q", {"kubernetes.io/gpu": "50"}))
    status, _ = desk.json("simulate", f"--trusted-schedulers={trusted}")
    assert status == (0 if trusted else 1)


def test_a_unit_of_a_resource_that_has_none_is_refused(desk: Desk) -> None:
    desk.nodes(a=1).with_workload(requesting("q", CARD))
    assert desk.run("simulate", "--memory-units=aliyun.com/gpu-mem=1Mi")[0] == 0
    status, _, err = desk.run("simulate", "--memory-units=cpu=1Mi")
    assert status == 2
    assert '--memory-units: "cpu"; allowed are nvidia.com/gpumem, ' in err


# --- simulate -----------------------------------------------------------------------------------------------------


def test_all_fit(desk: Desk) -> None:
    desk.nodes(a=2).with_workload(requesting("one", CARD), requesting("two", CARD, namespace="theirs"))
    status, report = desk.json("simulate")
    assert (status, report["fits"]) == (0, True)
    assert placed(report) == {"default/one": "a [0]", "theirs/two": "a [1]"}
    [devices] = report["devices"]
    assert (devices["node"], devices["type"], devices["cards"], devices["idle"]) == (
        "a",
        "gpu",
        2,
        {"before": 2, "after": 0},
    )
    assert devices["free"]["before"]["kubernetes.io/gpu-core"] == "200"
    assert devices["free"]["after"]["kubernetes.io/gpu-core"] == "0"
    [total] = report["totals"]
    assert total == {name: value for name, value in devices.items() if name != "node"}


def test_some_do_not_fit(desk: Desk) -> None:
    desk.nodes(a=1).with_workload(requesting("one", CARD), requesting("two", CARD))
    status, report = desk.json("simulate", "-n", "ml")
    assert (status, report["fits"]) == (1, False)
    assert placed(report)["ml/two"].startswith("0/1 nodes are available: 1 node(s) have too few free GPUs")


def test_pods_that_wait_already_come_before(desk: Desk) -> None:
    desk.nodes(a=1).put("pods", pod("older", CARD, **SCHEDULER), pod("foreign", CARD, schedulerName="kai"))
    status, report = desk.with_workload(requesting("new", CARD)).json("simulate")
    assert status == 1
    assert placed(report, "waiting") == {"ns/older": "a [0]"}
    # Pods outside the workload do not change the exit code.
    desk.with_workload()
    assert desk.json("simulate")[0] == 0


@pytest.mark.parametrize(
    ("minimum", "size", "status", "message"),
    [
        pytest.param(2, 2, 0, "a [", id="fits"),
        pytest.param(3, 3, 1, "PodGroup default/g: 2 of the 3 required members fit", id="does not fit"),
        pytest.param(3, 2, 1, "PodGroup default/g: waiting for members: 2 of 3", id="lacks members"),
    ],
)
def test_gangs(desk: Desk, minimum: int, size: int, status: int, message: str) -> None:
    group = {"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": minimum}}
    template = {
        "metadata": {"labels": {names.POD_GROUP_LABEL: "g"}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": CARD}}]},
    }
    job = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"parallelism": size, "template": template}}
    desk.nodes(a=2).with_workload(job, group)
    found_status, report = desk.json("simulate")
    assert found_status == status
    assert len(report["pods"]) == size
    assert all(text.startswith(message) for text in placed(report).values())


def test_a_group_may_be_in_another_namespace(desk: Desk) -> None:
    group = {"kind": "PodGroup", "metadata": {"name": "g", "namespace": "theirs"}, "spec": {"minMember": 1}}
    pod = requesting("p", CARD, namespace="theirs", labels={names.POD_GROUP_LABEL: "g"})
    assert desk.nodes(a=1).with_workload(group, pod).json("simulate")[0] == 0


def test_a_gang_of_the_cluster_is_completed(desk: Desk) -> None:
    labels = {names.POD_GROUP_LABEL: "g"}
    done = pod("done", labels=labels, on="a", status={"phase": "Succeeded"}, schedulerName=names.SCHEDULER)
    desk.nodes(a=1).put("pod groups", pod_group()).put("ended pods", done)
    desk.with_workload(requesting("last", CARD, namespace="ns", labels=labels))
    assert placed(desk.json("simulate")[1]) == {"ns/last": "a [0]"}


def test_a_gated_pod_waits(desk: Desk) -> None:
    desk.nodes(a=1).with_workload(requesting("p", CARD, spec={"schedulingGates": [{"name": "g"}]}))
    status, report = desk.json("simulate")
    assert (status, placed(report)) == (1, {"default/p": "waits for its scheduling gates: g"})


def test_an_invalid_request_is_reported_with_its_pod(desk: Desk) -> None:
    desk.nodes(a=1).with_workload(requesting("p", {"kubernetes.io/gpu": "150"}))
    status, report = desk.json("simulate")
    assert (status, placed(report)["default/p"][:17]) == (1, "invalid request: ")


def test_pods_may_be_thought_away(desk: Desk) -> None:
    holders = [pod(f"job-{minor}", CARD, on="a", allocated=whole(minor)) for minor in range(2)]
    desk.nodes(a=2, b=1).put("pods", *holders, pod("stays", CARD, on="b", allocated=whole(0))).with_workload(
        requesting("p", CARD)
    )
    assert desk.json("simulate")[0] == 1
    status, report = desk.json("simulate", "--without", "ns/job-*")
    assert (status, report["emptiedNodes"], report["unusedNodes"]) == (0, [], [])
    desk.with_workload()
    _, report = desk.json("simulate", "--without", "ns/job-0", "--without", "ns/job-1")
    assert (report["emptiedNodes"], report["unusedNodes"]) == (["a"], ["a"])


def test_classes_order_and_namespaces_count(desk: Desk) -> None:
    desk.nodes(a=1).put("priority classes", {"metadata": {"name": "high"}, "value": 9})
    urgent = {"kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 99}
    pods = [requesting(name, CARD, spec={"priorityClassName": name}) for name in ("high", "urgent")]
    _, report = desk.with_workload(*pods, urgent).json("simulate")
    assert placed(report)["default/urgent"] == "a [0]"
    # In the order of the workload.
    assert list(placed(report)) == ["default/high", "default/urgent"]


def test_a_profile_decides(desk: Desk) -> None:
    desk.put("nodes", {**node("a"), "spec": {"unschedulable": True}}).with_workload(requesting("p", {"cpu": "1"}))
    assert desk.json("simulate")[0] == 1
    profile = {"schedulerName": "mine", "plugins": {"filters": {"disabled": ["cordon", "taints"]}}}
    head = {"apiVersion": "config.berth.dev/v1alpha1", "kind": "BerthSchedulerConfiguration"}
    desk.config.write_text(yaml.safe_dump({**head, "profiles": [profile]}))
    assert desk.json("simulate", "--config", str(desk.config))[0] == 0


def test_devices_of_plug_ins_are_decided_and_counted(plugged: Desk) -> None:
    allocated = '{"npu": [{"minor": 0, "resources": {"kubernetes.io/npu": "100"}}]}'
    plugged.put("pods", pod("there", NPU, on="a", allocated=allocated, **SCHEDULER))
    status, report = plugged.with_workload(requesting("one", NPU), requesting("two", NPU)).json("simulate")
    assert status == 1
    one, two = report["pods"]
    assert one["devices"] == {"npu": [1]}
    assert "1 node(s) have too few free NPUs (1 requested with npu 100)" in two["reason"]
    [devices] = [device for device in report["devices"] if device["type"] == "npu"]
    assert (devices["cards"], devices["idle"]) == (2, {"before": 1, "after": 0})
    assert (devices["free"]["before"], devices["free"]["after"]) == (
        {"kubernetes.io/npu": "100"},
        {"kubernetes.io/npu": "0"},
    )
    _, out, _ = plugged.run("simulate")
    assert "npu 1" in out


def test_a_gated_pod_with_a_request_of_a_plug_in_waits(plugged: Desk) -> None:
    gated = requesting("one", {"example.com/npu": "2"}, spec={"schedulingGates": [{"name": "quota"}]})
    status, report = plugged.with_workload(gated).json("simulate")
    assert status == 1
    assert placed(report) == {"default/one": "waits for its scheduling gates: quota"}


@pytest.mark.parametrize("command", ["simulate", "advise"])
def test_a_plug_in_failure_is_reported_on_the_pod(plugged: Desk, command: str) -> None:
    status, report = plugged.with_workload(requesting("one", {"example.com/bad": "1"})).json(command)
    failure = "plug-in bad of berth-npus failed in choose: ZeroDivisionError: division by zero"
    assert (status, (report["pods"][0] if command == "simulate" else report)["reason"]) == (1, failure)


def test_a_plug_in_that_cannot_be_used_ends_the_command(plugged: Desk, tmp_path: Path) -> None:
    (tmp_path / "site" / "berth_npus-1.0.dist-info" / "entry_points.txt").write_text(POINTS.replace(":npu", ":no"))
    status, out, err = plugged.with_workload(requesting("one", NPU)).run("simulate")
    assert (status, out) == (2, "")
    assert err.startswith("berth-operator simulate: plug-in npu of berth-npus: berth_npus:no cannot be loaded")


def test_notes_are_shown(desk: Desk) -> None:
    desk.nodes(a=1).put("pods", pod("p", CARD, on="a", allocated=whole(0)))
    _, report = desk.with_workload(requesting("p", {"cpu": "1"}, namespace="ns"), {"kind": "Secret"}).json("simulate")
    assert report["notes"] == [
        f"{desk.workload}: document 2: Secret None is left out: it makes no pods here",
        "there already, and simulated once more: ns/p",
    ]


def test_pods_of_other_schedulers_are_counted_where_they_are_and_never_refused(desk: Desk) -> None:
    theirs = {"schedulerName": "kai-scheduler", "nodeName": "a"}
    desk.nodes(a=2, b=1).with_workload(
        requesting("bound", {"cpu": "60"}, spec=theirs),
        requesting("unknown", CARD, spec={"schedulerName": "kai-scheduler"}),
        requesting("ours", {**CARD, "cpu": "8"}),
    )
    status, report = desk.json("simulate")
    assert (status, placed(report)) == (0, {"default/ours": "b [0]"})
    assert report["notes"] == [
        f"{desk.workload}: document 1 (Pod bound) is counted on a, which it names",
        f"{desk.workload}: document 2 (Pod unknown) is left out, {NOT_OURS}",
    ]


def test_a_new_pod_group_is_younger_than_what_waits(desk: Desk) -> None:
    desk.nodes(a=1).put("pods", pod("older", CARD, **SCHEDULER))
    group = {"kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 1}}
    member = requesting("m", CARD, labels={names.POD_GROUP_LABEL: "g"})
    _, report = desk.with_workload(group, member).json("simulate")
    assert placed(report, "waiting") == {"ns/older": "a [0]"}


def test_what_others_evict_is_not_promised(desk: Desk) -> None:
    desk.nodes(a=1).put("pods", pod("low", CARD, on="a", allocated=whole(0)))
    _, report = desk.with_workload(requesting("high", CARD, spec={"priority": 5})).json("simulate")
    assert report["pods"][0]["reason"].endswith(" preemption: ns/low would be evicted from node a.")
    assert [note for note in report["notes"] if note.startswith("1 pod(s) would be evicted: what waits may fit once")]


def test_a_snapshot_has_the_settings_of_the_operator(desk: Desk) -> None:
    profiles = rendering.document(Configuration(policies={"mine": Policy()}))
    settings = {"kind": "OperatorSettings", "configuration": profiles, "geniusPriorities": {"*": 2}}
    desk._lines.append(snapshots.operator({**settings, "trustedSchedulers": []}, now=0.0))
    desk.nodes(a=1).with_workload(requesting("p", CARD, labels={names.GENIUS_PRIORITY: "2"}))
    arguments = ["simulate", "--snapshot", str(desk.snapshot), "-f", str(desk.workload)]
    assert (main(arguments), desk._capture.readouterr().err) == (0, "")


def test_the_tables(desk: Desk) -> None:
    holder, waiting = pod("h", CARD, on="b", allocated=half(0)), pod("w", {"cpu": "1"}, schedulerName=names.SCHEDULER)
    desk.nodes(a=1, b=1, idle=1).put("pods", holder, waiting)
    desk.with_workload(
        *(requesting(f"p{number}", CARD) for number in range(3)), {"kind": "Secret", "metadata": {"name": "[s]"}}
    )
    assert ["ns/w"] not in [line.split()[:1] for line in desk.run("simulate")[1].splitlines()]
    assert "1 other pod(s) wait already and are decided with them; --waiting lists them." in desk.run("simulate")[1]
    status, out, err = desk.run("simulate", "--waiting", "--without", "ns/h")
    assert (status, err) == (0, "")
    # Equal cards are taken in the order of the rows; a pod without any goes to one of the equal nodes, by its name.
    cells = [line.split() for line in out.splitlines() if line]
    assert ["default/p0", "a", "gpu", "0"] in cells
    assert "3 of 3 pods would get a place." in out
    assert [line[1] in {"a", "b", "idle"} for line in cells if line[0] == "ns/w"] == [True]
    assert any(line[:2] == ["all", "nodes"] and "→" in line for line in cells)
    assert "Secret [s] is left out" in out
    desk.with_workload(requesting("p", {"kubernetes.io/gpu": "50"}))
    out = desk.run("simulate", "--without", "ns/h")[1]
    assert "(1 more stay as they are)" in out
    assert "gpu-core 100 → 50" in out
    assert "Nodes whose devices no pod would use: " in out


@pytest.mark.parametrize("command", ["simulate", "advise"])
def test_tables_show_what_looks_like_markup(desk: Desk, command: str) -> None:
    desk.nodes(a=1).with_workload(requesting("p", CARD, annotations={names.MODEL_GLOBS: "[hH]100"}))
    assert "1 node(s) have too few healthy GPUs of model [hH]100" in desk.run(command)[1]


@pytest.mark.parametrize("command", ["simulate", "advise"])
def test_tables_show_no_control_characters_of_a_file(desk: Desk, command: str) -> None:
    hostile = "[hH]100\x1b]0;owned\x07\x9b2J\u202e"
    desk.nodes(a=1).with_workload(requesting("p", CARD, annotations={names.MODEL_GLOBS: hostile}))
    output = desk.run(command)[1]
    assert "too few healthy GPUs of model [hH]100 ]0;owned  2J" in output
    assert "".join(output.split("\n")).isprintable()


def test_an_error_shows_no_control_characters_of_a_file(desk: Desk) -> None:
    desk.nodes(a=1).with_workload(requesting("p", CARD, spec={"priorityClassName": "\x1b[31mred"}))
    status, _, error = desk.run("simulate")
    assert status == 2
    assert 'priorityClassName: " [31mred" does not exist' in error
    assert "\x1b" not in error


# --- advise -------------------------------------------------------------------------------------------------------


def crowded(desk: Desk, **owner: Any) -> Desk:
    """Return a node where a pod of one card blocks a pod of two, and a node where the small pod would fit."""
    desk.nodes(a=2, b=1).put("pods", pod("x", CARD, on="a", allocated=whole(0), metadata=owner, **SCHEDULER))
    return desk.with_workload(requesting("big", {"nvidia.com/gpu": "2"}))


def test_advice(desk: Desk) -> None:
    status, report = crowded(desk, **OWNED).json("advise")
    assert (status, report["fits"], report["node"], report["devices"]) == (0, True, "a", {"gpu": [0, 1]})
    assert report["moves"] == [
        {"pod": "ns/x", "from": {"node": "a", "devices": {"gpu": [0]}}, "to": {"node": "b", "devices": {"gpu": [0]}}}
    ]
    out = desk.run("advise")[1]
    assert "default/big would get a gpu 0,1." in out
    assert ["ns/x", "a", "gpu", "0", "b", "gpu", "0"] in [line.split() for line in out.splitlines()]


def test_advice_moves_shares(desk: Desk) -> None:
    desk.nodes(a=1, b=1).put(
        "pods",
        *[
            pod(name, SHARE, on=name, allocated=half(0), metadata=owner, **SCHEDULER)
            for name, owner in (("a", OWNED), ("b", {}))
        ],
        pod("waits", {"kubernetes.io/gpu": "100"}, **SCHEDULER),
    )
    status, report = desk.json("advise", "--pod", "ns/waits", file=False)
    assert (status, [move["pod"] for move in report["moves"]]) == (0, ["ns/a"])
    assert report["moves"][0]["to"] == {"node": "b", "devices": {"gpu": [0]}}


def test_a_share_that_waits_is_simulated_as_it_was_created(desk: Desk) -> None:
    desk.nodes(a=1).put("pods", *[pod(name, SHARE, bare=name == "bare", **SCHEDULER) for name in ("injected", "bare")])
    waiting = {pod["pod"]: pod for pod in desk.with_workload().json("simulate")[1]["waiting"]}
    assert waiting["ns/injected"]["fits"]
    assert "NotInjected" in waiting["ns/bare"]["reason"]


@pytest.mark.parametrize("owner", [{}, MIRROR], ids=["without owner", "mirror pod"])
def test_advice_never_moves_pods_without_a_controller(desk: Desk, owner: Mapping[str, Any]) -> None:
    status, report = crowded(desk, **owner).json("advise")
    assert (status, report["moves"]) == (1, [])
    assert report["fixed"] == [{"pod": "ns/x", "node": "a", "why": "no controller would create it again"}]
    out = desk.run("advise")[1]
    assert "default/big fits nowhere: 0/2 nodes are available" in out
    assert "In the way, but cannot be moved:" in out


def test_advice_moves_pods_of_plug_ins(plugged: Desk) -> None:
    plugged.put("nodes", node("b", labels={"kind": "b"}, sums=NPUS)).put("leases", lease("b"))
    plugged.put("devices", device("b", {"type": "npu", "minor": 0, "id": "npu-b", "health": True}))
    allocated = '{"npu": [{"minor": 0, "resources": {"kubernetes.io/npu": "100"}}]}'
    plugged.put("pods", pod("mover", NPU, on="b", allocated=allocated, metadata=OWNED, **SCHEDULER))
    status, report = plugged.with_workload(requesting("one", NPU, spec={"nodeSelector": {"kind": "b"}})).json("advise")
    assert (status, report["node"], report["devices"]) == (0, "b", {"npu": [0]})
    assert [(move["pod"], move["to"]) for move in report["moves"]] == [
        ("ns/mover", {"node": "a", "devices": {"npu": [0]}})
    ]


def test_advice_respects_budgets(desk: Desk) -> None:
    crowded(desk, **OWNED)
    budget = {
        "metadata": {"name": "b", "namespace": "ns"},
        "spec": {"selector": {}},
        "status": {"disruptionsAllowed": 0},
    }
    status, report = desk.put("budgets", budget).json("advise")
    assert (status, report["fixed"][0]["why"]) == (1, "its PodDisruptionBudget lets none go")


def test_advice_for_one_that_waits(desk: Desk) -> None:
    crowded(desk, **OWNED).put("pods", pod("waits", {"nvidia.com/gpu": "2"}, **SCHEDULER))
    status, report = desk.json("advise", "--pod", "ns/waits", file=False)
    assert (status, report["pod"], len(report["moves"])) == (0, "ns/waits", 1)


GATES = {"schedulingGates": [{"name": "quota"}, {"name": "topology"}]}


@pytest.mark.parametrize(
    ("there", "message"),
    [
        pytest.param(None, "there is no pod ns/p, or it has ended", id="none"),
        pytest.param({**SCHEDULER, **GATES}, "ns/p does not wait yet: waits for its scheduling gates: quota, topology",
                     id="gates"),
        pytest.param({**SCHEDULER, "on": "a"}, "ns/p does not wait: it is bound to a", id="bound"),
        pytest.param({**SCHEDULER, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
                     "ns/p does not wait: it is being deleted", id="being deleted"),
        pytest.param({"schedulerName": "default-scheduler"},
                     'ns/p: Berth does not schedule pods of schedulerName "default-scheduler"', id="another scheduler"),
        pytest.param({"schedulerName": "berth-schedular", **GATES}, 'ns/p: Berth does not schedule pods of '
                     'schedulerName "berth-schedular" (did you mean berth-scheduler?)', id="a mistyped scheduler"),
    ],
)  # fmt: skip
def test_advice_for_a_pod_that_does_not_wait_is_one_error_about_it(desk: Desk, there: Raw | None, message: str) -> None:
    desk.nodes(a=1).put("pods", pod("other", CARD, **SCHEDULER), *([pod("p", CARD, **there)] if there else []))
    status, out, err = desk.run("advise", "--pod", "ns/p", file=False)
    assert (status, out, err) == (2, "", f"berth-operator advise: {message}\n")


def test_advice_for_a_workload_with_gates(desk: Desk) -> None:
    desk.nodes(a=1).with_workload(requesting("p", CARD, spec=GATES))
    message = "default/p would not wait yet: waits for its scheduling gates: quota, topology"
    assert desk.run("advise") == (2, "", f"berth-operator advise: {message}\n")


@pytest.mark.parametrize("command", ["simulate", "advise"])
def test_a_priority_that_the_operator_refuses_is_refused(desk: Desk, command: str) -> None:
    desk.nodes(a=1).with_workload(requesting("p", CARD, labels={names.GENIUS_PRIORITY: "7"}))
    status, report = desk.json(command)
    message = 'invalid request: label genius/priority: "7"; allowed in namespace default are whole numbers up to 0 '
    reason = (report["pods"][0] if command == "simulate" else report)["reason"]
    assert (status, reason) == (1, f"{message}(the operator's --genius-priorities)")
    assert desk.json(command, "--genius-priorities=default=7")[0] == 0


def test_a_place_kept_for_another_is_not_given_away(desk: Desk) -> None:
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z", **OWNED}
    desk.nodes(a=1).put("pods", pod("low", CARD, on="a", allocated=whole(0), metadata=leaving))
    desk.put("pods", pod("high", CARD, priority=5, status={"nominatedNodeName": "a"}, **SCHEDULER))
    assert desk.with_workload(requesting("p", CARD)).json("advise")[0] == 1
    assert desk.json("advise", "--pod", "ns/high", file=False)[0] == 0


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        pytest.param([], "the workload has 0 pods; allowed is one", id="none"),
        pytest.param(
            [requesting("a", CARD), requesting("b", CARD)], "the workload has 2 pods; allowed is one", id="two"
        ),
        pytest.param(
            [requesting("a", CARD, annotations={names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "1"})],
            "default/a is a member of pod group default/g: advice is for pods that are decided by themselves",
            id="of a gang",
        ),
    ],
)
def test_advice_is_for_single_pods(desk: Desk, documents: Sequence[Raw], message: str) -> None:
    status, out, err = desk.nodes(a=1).with_workload(*documents).run("advise")
    assert (status, out, err) == (2, "", f"berth-operator advise: {message}\n")


def test_a_search_that_gave_up_says_so(desk: Desk) -> None:
    desk.nodes(a=40)
    holders = [
        pod(f"p{minor}", CARD, on="a", allocated=whole(minor), metadata=OWNED, **SCHEDULER) for minor in range(40)
    ]
    status, out, _ = desk.put("pods", *holders).with_workload(requesting("big", {"nvidia.com/gpu": "40"})).run("advise")
    assert status == 1
    assert "Not looked at: sets of more than 8 pods" in out


# --- defragment ---------------------------------------------------------------------------------------------------


MOVABLE = {names.MOVABLE: "true"}


def movable(desk: Desk, *names_of_movable: str) -> Desk:
    """Return three nodes, two of them with a pod of one card, and a pod that needs two cards."""
    desk.nodes(a=2, b=2)
    for name in ("a", "b"):
        annotations = MOVABLE if name in names_of_movable else {}
        placed = pod(name, CARD, on=name, allocated=whole(0), metadata=OWNED, annotations=annotations, **SCHEDULER)
        desk.put("pods", placed)
    return desk.put("pods", pod("waits", {"nvidia.com/gpu": "2"}, **SCHEDULER))


def test_only_pods_that_allow_it_are_moved(desk: Desk) -> None:
    status, report = movable(desk, "b").json("defragment", "--pod", "ns/waits", "--dry-run", file=False)
    assert (status, [move["pod"] for move in report["moves"]], report["first"]) == (0, ["ns/b"], ["ns/b"])
    assert report["fixed"] == [
        {"pod": "ns/a", "node": "a", "why": 'neither it nor its namespace has the annotation berth.dev/movable: "true"'}
    ]
    assert (
        "First these pods have to be moved" in desk.run("defragment", "--pod", "ns/waits", "--dry-run", file=False)[1]
    )


def test_a_namespace_allows_it_for_its_pods(desk: Desk) -> None:
    namespace = {"metadata": {"name": "ns", "annotations": MOVABLE}}
    status, report = (
        movable(desk).put("namespaces", namespace).json("defragment", "--pod", "ns/waits", "--dry-run", file=False)
    )
    assert (status, len(report["moves"])) == (0, 1)


def test_a_plan_without_any_pod_that_allows_it(desk: Desk) -> None:
    status, report = movable(desk).json("defragment", "--pod", "ns/waits", file=False)
    assert (status, report["moves"], report["first"]) == (1, [], [])


def test_pods_that_cannot_be_moved_one_at_a_time_are_shown(desk: Desk) -> None:
    # a leaves its node for what b leaves on the other, and b takes the rest.
    annotations = {"metadata": OWNED, "annotations": MOVABLE, **SCHEDULER}
    two = {"nvidia.com/gpu": "2"}
    desk.put("nodes", node("a", labels={"host": "a"}), node("b"))
    desk.put("devices", *(device(name, entry(0), entry(1)) for name in ("a", "b")))
    desk.put("leases", lease("a"), lease("b"))
    desk.put("pods", pod("x", two, on="a", allocated=whole(0, 1), **annotations))
    desk.put("pods", pod("y", CARD, on="b", allocated=whole(0), **annotations))
    desk.put("pods", pod("waits", CARD, nodeSelector={"host": "a"}, **SCHEDULER))
    command = ("defragment", "--pod", "ns/waits", "--dry-run")
    status, out, _ = desk.run(*command, file=False)
    assert (status, "not so many at once are allowed" in out) == (1, True)
    assert desk.run(*command, "--at-once=2", file=False)[0] == 0


def test_a_number_of_pods_that_is_none(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        desk.run("defragment", "--pod", "ns/waits", "--at-once=0", file=False)
    assert '"0"; allowed are whole numbers from 1' in capfd.readouterr().err


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param(b"{", "line 2: not JSON", id="no JSON"),
        pytest.param(b"[]", 'line 2: not of the form {"of": "nodes", "object": {', id="another form"),
        pytest.param(
            b'{"of": "secrets", "object": {}}', 'line 2: of: "secrets"; allowed: nodes, devices', id="unknown"
        ),
        pytest.param(
            b'{"of": "nodes", "object": {}}', "line 2: cannot be read as one of the nodes: KeyError", id="no node"
        ),
    ],
)
def test_a_mistake_in_a_snapshot_is_reported(desk: Desk, line: bytes, message: str) -> None:
    desk.with_workload().write(line)
    status, out, err = desk.run("simulate")
    assert (status, out) == (2, "")
    assert err.startswith(f"berth-operator simulate: {desk.snapshot}: {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "line 1: not a snapshot; it begins with", id="empty"),
        pytest.param(b'{"kind":"BerthSnapshot","version":2}', "line 1: not a snapshot", id="another version"),
        pytest.param(None, "No such file", id="missing"),
    ],
)
def test_what_is_no_snapshot_is_reported(desk: Desk, content: bytes | None, message: str) -> None:
    desk.with_workload()
    desk.snapshot.unlink() if content is None else desk.snapshot.write_bytes(content)
    status, _, err = desk.run("simulate")
    assert (status, message in err, str(desk.snapshot) in err) == (2, True, True)


def test_a_mistake_in_the_workload_is_reported(desk: Desk) -> None:
    spread = [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    for documents, message in (
        ([requesting("a", CARD), requesting("a", CARD)], "document 2 (Pod a): there is a second pod default/a"),
        (
            [requesting("a", CARD, spec={"topologySpreadConstraints": spread})],
            "document 1 (Pod a): spec cannot be read: KeyError",
        ),
    ):
        status, out, err = desk.nodes().with_workload(*documents).run("simulate")
        assert (status, out) == (2, "")
        assert err.startswith(f"berth-operator simulate: {desk.workload}: {message}")


def test_a_row_of_a_pipe_is_one_line_without_blanks_at_its_end(desk: Desk) -> None:
    selector = {"example.com/a-long-name-of-a-label": "x" * 60}
    pods = [requesting("a", CARD), requesting("b", CARD, spec={"nodeSelector": selector})]
    _, out, _ = desk.nodes(a=1).with_workload(*pods).run("simulate")
    assert [line for line in out.splitlines() if line != line.rstrip()] == []
    [row] = [line for line in out.splitlines() if "/b " in line]
    assert "1 node(s) didn't match Pod's node affinity/selector" in row
    assert row.endswith("Preemption is not helpful for scheduling.")


def test_missing_files_are_reported(desk: Desk) -> None:
    status, _, err = desk.run("simulate")
    assert (status, err) == (2, f"berth-operator simulate: {desk.workload}: No such file or directory\n")
    status, _, err = desk.with_workload().run("simulate", "--config", "/nowhere")
    assert (status, err) == (2, "berth-operator simulate: /nowhere: No such file or directory\n")


def test_the_workload_may_come_by_standard_input(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump(requesting("p", CARD))))
    status, report = desk.nodes(a=1).json("simulate", "-f", "-", file=False)
    assert (status, placed(report)) == (0, {"default/p": "a [0]"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such kubeconfig"),
        ("", "not a kubeconfig"),
        ("clusters: [{}]", "current-context: is not set"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_reported(
    desk: Desk, tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    assert main(["snapshot", "--kubeconfig", str(path)]) == 2
    status, out, err = main(["snapshot", "--kubeconfig", str(path)]), *desk._capture.readouterr()
    assert (status, out.count("{"), f"{path}: {message}" in err) == (2, 0, True)


def test_memory_is_shown_in_binary_units(desk: Desk) -> None:
    _, report = desk.nodes(a=1).with_workload().json("simulate")
    assert report["totals"][0]["free"]["after"]["kubernetes.io/gpu-memory"] == f"{A100_BYTES // 1024}Ki"
    # Users do not need the exact number of bytes.
    assert "gpu-memory 79.35Gi" in desk.run("simulate")[1]


def test_a_line_has_only_what_scheduling_reads() -> None:
    secret = {"name": "PASSWORD", "value": "secret"}
    line = snapshots.line("pods", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "env": [secret]}]}})
    assert b"secret" not in line
    assert b'"name":"c"' in line


def test_pods_of_another_scheduler_alone_get_no_place(desk: Desk) -> None:
    desk.nodes(a=1).with_workload(requesting("p", CARD, spec={"schedulerName": "kai-scheduler"}))
    status, out, _ = desk.run("simulate")
    assert (status, "Nothing was decided: another scheduler places all pods of the workload." in out) == (1, True)
    assert "0 of 0" not in out
