"""Each filter passes the right nodes, and counts the others under the right reason."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_api.request import Kind, Kinds
from berth_api.request.model import of_pod
from berth_api.values.selectors import Requirement
from berth_operator.core import filters
from berth_operator.core.claims.objects import slices
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import (
    cordon,
    declared_features,
    devices,
    dynamic_resources,
    host_ports,
    injected,
    isolation,
    node_affinity,
    node_ready,
    node_selector,
    resources,
    supported,
    taints,
)
from berth_operator.core.filters.reasons import count_reasons
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import CardInfo, NodeInfo
from berth_operator.core.values.request import HostPort, NodeTerm, PodRequest, Taint, Toleration
from berth_operator.core.values.verdict import Verdict
from tests.objects.builders import (
    A100,
    A100_BYTES,
    CORE,
    FPGA,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    RATIO,
    RDMA,
    SHARED,
    T4,
    T4_BYTES,
    add,
    asks,
    card,
    cards,
    charge,
    grant,
    inventory,
    label,
    listens,
    node_info,
    other_card,
)
from tests.objects.resource_claims import gpu, resource_slice

A = Taint(key="a", value="1")
B = Taint(key="b", effect="NoExecute")
SOFT = Taint(key="c", effect="PreferNoSchedule")
GONE = Taint(key="node.kubernetes.io/not-ready")
SILENT = Taint(key="node.kubernetes.io/unreachable")


def passing(module: Any, fleet: Fleet, request: PodRequest) -> set[str]:
    mask = module.passes(fleet, request) & fleet.present
    return {name for name, row in fleet.rows.items() if mask[row]}


def reasons(module: Any, fleet: Fleet, request: PodRequest) -> dict[str, int]:
    rejected = fleet.present & ~module.passes(fleet, request)
    return dict(count_reasons(module.reasons(fleet, request, rejected))) if rejected.any() else {}


def nodes(*infos: NodeInfo) -> Fleet:
    """Return nodes without devices."""
    fleet = Fleet()
    for info in infos:
        fleet.put_node(info)
    return fleet


# --- dynamic resource allocation --------------------------------------------------------------------------------

CLASS = (
    "node(s) provide nvidia.com/gpu only by DeviceClass gpu.example.com (Berth allocates ResourceClaims only from "
    "pools in claims.drivers or claims.pools of its configuration)"
)


@pytest.mark.parametrize(
    ("provided", "offered", "wanted", "expected"),
    [
        pytest.param(NVIDIA, {}, {NVIDIA: 1}, {CLASS: 1}, id="by a DeviceClass alone"),
        pytest.param(NVIDIA, {NVIDIA: 0}, {NVIDIA: 1}, {CLASS: 1}, id="the plugin has left"),
        pytest.param(NVIDIA, {NVIDIA: 1}, {NVIDIA: 9}, {}, id="by a device plugin, if too little of it"),
        pytest.param(NVIDIA, {}, {"example.com/x": 1}, {}, id="another resource"),
        pytest.param("example.com/x", {}, {NVIDIA: 1}, {}, id="another DeviceClass"),
        pytest.param("koordinator.sh/gpu", {}, {"koordinator.sh/gpu": 50}, {}, id="what Berth counts on cards"),
    ],
)
def test_extended_resources_of_device_classes(
    provided: str, offered: dict[str, int], wanted: dict[str, int], expected: dict[str, int]
) -> None:
    fleet = Fleet()
    add(fleet, node_info(offered=offered), inventory(card()))
    fleet.set_device_classes({provided: "gpu.example.com"})
    # No slice lists a device for the node.
    assert reasons(dynamic_resources, fleet, asks(wanted)) == {}
    fleet.claims.put_slice(slices.read(resource_slice(gpu(0))))
    assert reasons(dynamic_resources, fleet, asks(wanted)) == expected
    fleet.set_device_classes({})
    assert dynamic_resources.passes(fleet, asks(wanted)) is fleet.present


# --- filters on nodes -------------------------------------------------------------------------------------------


def tolerates(**fields: str) -> Toleration:
    return Toleration(**fields)


def term(*labels: Requirement, names: tuple[Requirement, ...] = ()) -> NodeTerm:
    return NodeTerm(labels=labels, names=names)


def node_with(fields: Mapping[str, Any]) -> NodeInfo:
    return node_info(**fields)


def named(operator: str, name: str) -> NodeTerm:
    return term(names=(label("metadata.name", operator, name),))


NOT_READY = "node(s) were not ready"
CORDONED = "node(s) were unschedulable"
UNTOLERATED = "node(s) had untolerated taint(s)"
X, Y = label("zone", "In", "x"), label("zone", "In", "y")
NOT_NAMED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
MISMATCH = "node(s) didn't match Pod's node affinity/selector"
LABELS = {"zone": "x", "disk": "", "cores": "12", "far": "9223372036854775807", "farther": "9223372036854775808"}

AFFINITY_CASES = [
    pytest.param(node_affinity, asks(affinity=terms), node_info(labels=LABELS), reason, id=f"affinity: {id_}")
    for terms, reason, id_ in (
        (None, "", "none"),
        ([], MISMATCH, "no term"),
        ([term()], MISMATCH, "an empty term"),
        ([term(X)], "", "In"),
        ([term(label("zone", "In", "y", "x"))], "", "In, one of two"),
        ([term(Y)], MISMATCH, "In, another value"),
        ([term(label("none", "In", ""))], MISMATCH, "In, no such label is not an empty one"),
        ([term(label("disk", "In", ""))], "", "In, an empty one"),
        ([term(label("zone", "NotIn", "x", "y"))], MISMATCH, "NotIn"),
        ([term(label("zone", "NotIn", "y"))], "", "NotIn, another value"),
        ([term(label("none", "NotIn", "x"))], "", "NotIn, no such label"),
        ([term(label("disk", "Exists"))], "", "Exists, empty"),
        ([term(label("none", "Exists"))], MISMATCH, "Exists, no such label"),
        ([term(label("disk", "DoesNotExist"))], MISMATCH, "DoesNotExist, empty"),
        ([term(label("none", "DoesNotExist"))], "", "DoesNotExist"),
        ([term(label("cores", "Gt", "11"))], "", "Gt"),
        ([term(label("cores", "Gt", "12"))], MISMATCH, "Gt, equal"),
        ([term(label("cores", "Lt", "13"))], "", "Lt"),
        ([term(label("cores", "Lt", "12"))], MISMATCH, "Lt, equal"),
        ([term(label("cores", "Gt", "2"))], "", "Gt, as numbers and not as texts"),
        ([term(label("none", "Gt", "0"))], MISMATCH, "Gt, no such label"),
        ([term(label("none", "Lt", "0"))], MISMATCH, "Lt, no such label"),
        ([term(label("zone", "Gt", "0"))], MISMATCH, "Gt, no number"),
        ([term(label("zone", "Lt", "0"))], MISMATCH, "Lt, no number"),
        ([term(label("cores", "Lt", "1_000"))], MISMATCH, "Lt, a bound that only Python reads"),
        ([term(label("far", "Gt", "0"))], "", "Gt, 64 bits"),
        ([term(label("farther", "Gt", "0"))], MISMATCH, "Gt, more than 64 bits"),
        ([term(X, label("disk", "Exists"))], "", "two conditions"),
        ([term(X, label("none", "Exists"))], MISMATCH, "two conditions, one fails"),
        ([term(X, Y)], MISMATCH, "two conditions that exclude each other"),
        ([term(Y), term(X)], "", "two terms, one matches"),
        ([term(Y), term()], MISMATCH, "two terms, one empty"),
        ([named("In", "node")], "", "name"),
        ([named("In", "other")], NOT_NAMED, "another name"),
        ([named("NotIn", "other")], "", "not another name"),
        ([named("NotIn", "node")], MISMATCH, "not this name"),
        ([term(X, names=named("In", "node").names)], "", "name and label"),
        ([term(Y, names=named("In", "node").names)], MISMATCH, "name and another label"),
        ([term(X, names=named("In", "other").names)], NOT_NAMED, "label and another name"),
    )
]

READY_CASES = [
    pytest.param(node_ready, asks(tolerations=tolerations), node_with(node), reason, id=f"ready: {id_}")
    for tolerations, node, reason, id_ in (
        ([], {}, "", "it is"),
        ([], {"ready": False}, NOT_READY, "not"),
        ([tolerates(key=GONE.key, operator="Exists")], {"ready": False}, "", "not, but tolerated"),
        (
            [tolerates(key=GONE.key, operator="Exists", effect="NoExecute")],
            {"ready": False},
            NOT_READY,
            "not, and tolerated only while it runs",
        ),
        ([], {"unreachable": True}, NOT_READY, "unreachable"),
        ([tolerates(key=SILENT.key, operator="Exists")], {"unreachable": True}, "", "unreachable, but tolerated"),
        ([tolerates(key=SILENT.key, operator="Exists")], {"ready": False}, NOT_READY, "not, unreachable tolerated"),
        ([tolerates(key=GONE.key, operator="Exists")], {"unreachable": True}, NOT_READY, "unreachable, not tolerated"),
    )
]
TAINT_CASES = [
    pytest.param(filter_, asks(tolerations=tolerations), node_with(node), reason, id=f"{filter_.NAME}: {id_}")
    for filter_, tolerations, node, reason, id_ in (
        (cordon, [], {}, "", "none"),
        (cordon, [], {"cordoned": True}, CORDONED, "cordoned"),
        (cordon, [tolerates(operator="Exists")], {"cordoned": True}, "", "all is tolerated"),
        (
            cordon,
            [tolerates(key=cordon.TAINT.key, operator="Exists", effect="NoSchedule")],
            {"cordoned": True},
            "",
            "tolerated by name",
        ),
        (cordon, [], {"taints": [cordon.TAINT]}, CORDONED, "gone, but its taint is not yet"),
        (taints, [], {}, "", "none"),
        (taints, [], {"taints": [A]}, UNTOLERATED, "one"),
        (taints, [], {"taints": [B]}, UNTOLERATED, "no value"),
        (taints, [], {"taints": [SOFT]}, "", "only a preference"),
        (taints, [], {"taints": [cordon.TAINT]}, "", "the cordon's is not counted twice"),
        (taints, [tolerates(key="a", value="1")], {"taints": [A]}, "", "equal"),
        (taints, [tolerates(key="a", value="2")], {"taints": [A]}, UNTOLERATED, "another value"),
        (taints, [tolerates(key="a", operator="Exists")], {"taints": [A]}, "", "any value"),
        (taints, [tolerates(operator="Exists", effect="NoExecute")], {"taints": [A]}, UNTOLERATED, "another effect"),
        (taints, [tolerates(operator="Exists")], {"taints": [A, B]}, "", "everything is tolerated"),
        (taints, [tolerates(operator="Equal")], {"taints": [Taint(key="a")]}, UNTOLERATED, "no key and no operator"),
        (taints, [tolerates(key="a", operator="Gt", value="1")], {"taints": [A]}, UNTOLERATED, "behind a gate"),
        (taints, [tolerates(key="a", value="1")], {"taints": [A, B]}, UNTOLERATED, "one of two"),
    )
]
SELECTOR_CASES = [
    pytest.param(node_selector, asks(selector=selector), node_info(labels=labels), reason, id=f"selector: {id_}")
    for selector, labels, reason, id_ in (
        (None, None, "", "none"),
        ({"zone": "x", "disk": "ssd"}, {"zone": "x", "disk": "ssd", "more": ""}, "", "all"),
        ({"zone": "x", "disk": "ssd"}, {"zone": "x"}, MISMATCH, "one is missing"),
        ({"zone": "x"}, {"zone": "y"}, MISMATCH, "another value"),
        ({"zone": ""}, None, MISMATCH, "empty"),
    )
]
FEATURE_CASES = [
    pytest.param(declared_features, asks(features=wanted), node_info(features=declared), reason, id=f"features: {id_}")
    for wanted, declared, reason, id_ in (
        ([], [], "", "none needed"),
        (["x"], ["y", "x"], "", "declared"),
        (["x", "y"], ["x"], "node(s) didn't match Pod's required features", "one is missing"),
        (["x"], [], "node(s) didn't match Pod's required features", "none declared"),
    )
]
RESOURCE_CASES = [
    pytest.param(resources, asks(wanted), node_with(node), reason, id=f"resources: {id_}")
    for wanted, node, reason, id_ in (
        ({"cpu": 64_000}, {}, "", "all of it"),
        ({"cpu": 64_001}, {}, "Insufficient cpu", "cpu"),
        ({"memory": 513 * GI}, {}, "Insufficient memory", "memory"),
        (None, {"pods": 0}, "Too many pods", "pods"),
        ({"example.com/x": 1}, {}, "Insufficient example.com/x", "unheard of"),
        ({"example.com/x": 2}, {"more": {"example.com/x": 2}}, "", "extended"),
        ({GPU: 800}, {}, "", "devices are not counted here"),
        ({"cpu": 2**53}, {}, "Insufficient cpu", "absurd"),
        ({"ephemeral-storage": 2}, {}, "Insufficient ephemeral-storage", "disk"),
        ({"hugepages-2Mi": 2}, {"more": {"hugepages-2Mi": 2}}, "", "huge pages"),
    )
]

OF_MPS = {names.ISOLATION_KEY: "mps"}
MPS_ALONE = "node(s) share GPUs by MPS alone (label berth.dev/isolation: mps)"
NOT_MPS = "node(s) don't share GPUs by MPS (label berth.dev/isolation: mps)"
ISOLATION_CASES = [
    pytest.param(isolation, asks(wanted, isolation=mode), node_info(labels=labels), reason, id=f"isolation: {id_}")
    for wanted, mode, labels, reason, id_ in (
        ({RDMA: 50}, "", OF_MPS, "", "no GPUs"),
        ({GPU: 50}, "", {}, "", "no mode"),
        ({GPU: 50}, "mps", OF_MPS, "", "MPS"),
        ({GPU: 50}, "mps", {names.ISOLATION_KEY: "none"}, NOT_MPS, "not labelled"),
        ({GPU: 100}, "", OF_MPS, MPS_ALONE, "whole card"),
        ({NVIDIA: 1}, "", OF_MPS, MPS_ALONE, "kubelet's"),
        ({"nvidia.com/mig-1g.10gb": 1}, "", OF_MPS, MPS_ALONE, "MIG"),
        ({GPU: 50}, "", OF_MPS, MPS_ALONE, "a share without it"),
        ({GPU: 50}, "hami-core", OF_MPS, MPS_ALONE, "HAMi-core"),
    )
]


def not_limited(remedy: str) -> str:
    return (
        "NotInjected: container main is not limited to its share "
        f"(install the component isolation, or remove {remedy}, then create the pod again)"
    )


UNSUPPORTED = "pod uses hostPort and spec.resourceClaims, which Berth does not support"
NOT_INJECTED = (
    "NotInjected: NVIDIA_VISIBLE_DEVICES of container main, log is not Berth's "
    "(apply manifests/base/injection.yaml or the webhook, then create the pod again)"
)
VGPU_MODE = "the annotation nvidia.com/vgpu-mode"
POD_CASES = [
    pytest.param(filter_, wanted, node_info(), reason, id=f"{filter_.NAME}: {id_}")
    for filter_, wanted, reason, id_ in (
        (supported, asks(), "", "nothing special"),
        (supported, asks(unsupported=["hostPort", "spec.resourceClaims"]), UNSUPPORTED, "not"),
        (injected, asks(), "", "all well"),
        (injected, asks(uninjected=["main", "log"]), NOT_INJECTED, "not"),
        (injected, asks(unlimited=["main"]), not_limited("the request for isolation"), "not limited"),
        (
            injected,
            replace(asks(unlimited=["main"]), limited_by=VGPU_MODE),
            not_limited(VGPU_MODE),
            "not limited by a word",
        ),
    )
]
NODE_CASES = [
    *POD_CASES,
    *ISOLATION_CASES,
    *READY_CASES,
    *TAINT_CASES,
    *SELECTOR_CASES,
    *AFFINITY_CASES,
    *FEATURE_CASES,
    *RESOURCE_CASES,
]


@pytest.mark.parametrize(("module", "request_", "node", "reason"), NODE_CASES)
def test_a_filter_passes_a_node_or_explains_why_not(
    module: Any, request_: PodRequest, node: NodeInfo, reason: str
) -> None:
    fleet = nodes(node)
    assert passing(module, fleet, request_) == (set() if reason else {"node"})
    assert reasons(module, fleet, request_) == ({reason: 1} if reason else {})


OF_PODS = ("topology-spread", "pod-affinity", "pod-anti-affinity", "existing-anti-affinity")
ELSEWHERE = (
    "devices",
    "dynamic-resources",
    "resource-claims",
    "host-ports",
    "measured-memory",
    "namespace-limits",
    "kubelet-admission",
    *OF_PODS,
)
"""Filters that need more than a node: the first are tested in this file, the rest among pods;
those of volumes have tests of their own."""


@pytest.mark.parametrize(
    "module",
    [pytest.param(each, id=each.NAME) for each in Policy().unmounted if each.NAME not in ELSEWHERE],
)
def test_every_filter_has_a_passing_and_a_failing_case(module: Any) -> None:
    assert {bool(case.values[3]) for case in NODE_CASES if case.values[0] is module} == {True, False}


@pytest.mark.parametrize(
    ("labels", "held", "wanted", "reason"),
    [
        pytest.param(OF_MPS, "mps", "mps", "", id="its own mode"),
        pytest.param(OF_MPS, "", "mps", "node(s) have GPUs held by pods without MPS", id="labelled since"),
        pytest.param({}, "mps", "", "node(s) have GPUs held by pods with MPS", id="not labelled any more"),
        pytest.param({}, "hami-core", "", "", id="HAMi-core next to whole cards"),
    ],
)
def test_a_node_changes_its_mode_once_the_pods_of_the_other_one_have_left(
    labels: dict[str, str], held: str, wanted: str, reason: str
) -> None:
    fleet = Fleet()
    add(fleet, node_info(labels=labels), inventory(*cards(2)))
    request_ = asks({GPU: 50}, isolation=wanted)
    for holder in ({"grants": (grant(0, core=50, ratio=50),)}, {"unknown": ("gpu",)}):
        fleet.charge(Charge(uid="x", pod="ns/x", node="node", isolation=held, **holder))
        assert reasons(isolation, fleet, request_) == ({reason: 1} if reason else {})
        assert passing(isolation, fleet.copy(), request_) == passing(isolation, fleet, request_)
    fleet.charge(charge("without", resources=(("cpu", 1),), isolation=held))
    fleet.release("x")
    assert passing(isolation, fleet, request_) == {"node"}
    # Where nothing has MPS, the filter costs nothing.
    assert (isolation.passes(fleet, request_) is fleet.present) == (wanted != "mps")


def test_a_filter_that_does_not_concern_a_pod_returns_the_fleets_own_mask() -> None:
    fleet, plain = world(card()), asks({"cpu": 1})
    minding = {each.NAME for each in Policy().unmounted if each.passes(fleet, plain) is not fleet.present}
    # Filters that apply to every pod.
    assert minding == {"node-ready", "cordon", "resources"}


def test_a_value_that_comes_later_is_judged_too() -> None:
    fleet = Fleet()
    wanted = asks(affinity=[term(label("cores", "Gt", "8"))])
    add(fleet, node_info("a", labels={"cores": "4"}))
    assert passing(node_affinity, fleet, wanted) == set()
    add(fleet, node_info("b", labels={"cores": "16"}))
    assert passing(node_affinity, fleet, wanted) == {"b"}
    fleet.put_node(node_info("b", labels={"cores": "4"}))
    assert passing(node_affinity, fleet, wanted) == set()


def test_nodes_are_judged_by_their_own_labels_however_many_come() -> None:
    fleet = Fleet()
    wanted = asks(affinity=[term(X), named("In", "node-3"), named("In", "gone")])
    for i in range(40):
        add(fleet, node_info(f"node-{i}", labels={"zone": "x" if i % 10 == 0 else "y"}))
        passing(node_affinity, fleet, wanted)
    fleet.remove_node("node-20")
    assert passing(node_affinity, fleet, wanted) == {"node-0", "node-3", "node-10", "node-30"}


def test_a_resource_that_a_policy_keeps_off_nodes_names_the_setting() -> None:
    npu = Kind(name="npu", resources={"example.com/npu": 1})
    fleet = Fleet(kinds=Kinds(added=(npu,)))
    for name in ("a", "b"):
        add(fleet, node_info(name))
    fleet.set_refused("a", {"npu"})
    refused = (
        "node(s) do not have example.com/npu (policy berth-operator-writes refuses it: add it to the chart's value "
        "operator.pluginResources, or to plugins in manifests/base/limits.yaml)"
    )
    assert reasons(resources, fleet, asks({"example.com/npu": 1})) == {refused: 1, "Insufficient example.com/npu": 1}


def test_a_pod_that_asks_for_nothing_fits_where_too_much_is_taken() -> None:
    fleet = nodes(node_info("node", cpu=0))
    fleet.charge(charge("pod", resources=(("cpu", 1), ("memory", 2**53), ("pods", 1))))
    assert passing(resources, fleet, asks()) == {"node"}
    assert passing(resources, fleet, asks({"cpu": 1})) == set()


def test_reading_an_unknown_resource_changes_nothing() -> None:
    fleet = nodes(node_info("node"))
    before = dict(fleet.resources)
    passing(resources, fleet, asks({"example.com/x": 1}))
    assert fleet.resources == before


ANY, ONE, OTHER = listens(), listens(address="10.0.0.1"), listens(address="10.0.0.2")


@pytest.mark.parametrize(
    ("wanted", "taken", "is_free"),
    [
        pytest.param([], [ANY], True, id="none wanted"),
        pytest.param([ANY], [], True, id="none taken"),
        pytest.param([ANY], [ANY], False, id="all addresses, twice"),
        pytest.param([ANY], [ONE], False, id="all addresses, and one is taken"),
        pytest.param([ONE], [ANY], False, id="one address, and all are taken"),
        pytest.param([ONE], [ONE], False, id="one address, twice"),
        pytest.param([ONE], [OTHER], True, id="two addresses"),
        pytest.param([ONE], [OTHER, ANY], False, id="two addresses, and all are taken"),
        pytest.param([listens(81)], [ANY], True, id="another port"),
        pytest.param([listens(protocol="UDP")], [ANY], True, id="another protocol"),
        pytest.param([listens(81), ONE], [ANY], False, id="one of two"),
        pytest.param([listens(address="::")], [ONE], True, id="all addresses of the newer protocol are one address"),
        pytest.param([listens(address="::")], [ANY], False, id="which all addresses include"),
    ],
)
def test_host_ports_are_free_or_the_filter_explains(
    wanted: list[HostPort], taken: list[HostPort], *, is_free: bool
) -> None:
    fleet = nodes(node_info())
    for i, port in enumerate(taken):
        fleet.charge(charge(f"pod-{i}", ports=(port,)))
    assert passing(host_ports, fleet, asks(ports=wanted)) == ({"node"} if is_free else set())
    reason = "node(s) didn't have free ports for the requested pod ports"
    assert reasons(host_ports, fleet, asks(ports=wanted)) == ({} if is_free else {reason: 1})


def test_a_port_is_free_when_the_last_pod_that_listens_leaves() -> None:
    fleet = nodes(node_info("node"))
    for name in ("first", "second"):
        fleet.charge(charge(name, ports=(ANY,)))
    fleet.release("uid-first")
    assert passing(host_ports, fleet, asks(ports=[ONE])) == set()
    fleet.release("uid-second")
    assert passing(host_ports, fleet, asks(ports=[ONE])) == {"node"}


def test_ports_are_those_of_their_node_however_many_come() -> None:
    fleet = Fleet()
    fleet.charge(charge("pod", node="node-0", ports=(ANY,)))
    for i in range(40):
        add(fleet, node_info(f"node-{i}"))
    assert passing(host_ports, fleet, asks(ports=[ANY])) == {f"node-{i}" for i in range(1, 40)}


# --- the devices filter -----------------------------------------------------------------------------------------


def world(*card_infos: CardInfo, held: Sequence[Charge] = (), fresh: bool = True, vendor: str = "nvidia") -> Fleet:
    """Return a node with these cards, and with pods that hold parts of them."""
    fleet = Fleet()
    add(fleet, node_info(), inventory(*card_infos, vendor=vendor), fresh=fresh)
    for each in held:
        fleet.charge(each)
    return fleet


def used(on: int = 1, **amounts: int) -> Fleet:
    """Return a node with cards, and with a pod that holds this much of the first."""
    return world(*cards(on), held=[charge("pod", grant(0, "gpu", **amounts))])


def busy(*wanted: str, count: int = 1) -> str:
    return f"too few free GPUs ({count} requested with {' and '.join(wanted)})"


BARE, WHOLE, EIGHT = nodes(node_info()), world(card()), world(*cards(8))
MIXED = world(card(0), card(1, memory=T4_BYTES, model=T4))
HALF: dict[str, Any] = {"core": 50, "ratio": 50}
FULL: dict[str, Any] = {"core": 100, "ratio": 100}
A_NIC = world(card(), other_card("rdma"))
UNKNOWN = world(*cards(8), held=[charge("lost", unknown=("gpu",))])
UNKNOWN_NIC = world(*cards(8), held=[charge("lost", unknown=("rdma",))])
NIC_IN_USE = world(other_card("rdma"), held=[charge("pod", grant(0, "rdma", rdma=60))])
LESS = asks({MEMORY: A100_BYTES - A100_BYTES // 2 + 1})
NOT_A100 = asks({GPU: 50}, model=of_pod({names.MODEL_GLOBS: "*H100*"}, {}))
ANY_A100 = asks({GPU: 50}, model=of_pod({names.MODEL_GLOBS: "*a100*"}, {}))
NPU: dict[str, Any] = {"huawei.com/npu-core": 10, RATIO: 50}
NO_H100 = f"too few healthy GPUs of model {NOT_A100.model} (1 requested; models: {A100})"
TOO_SMALL = "GPUs with too little memory (at most 8Gi of 20Gi)"

OF_AMD = "GPUs of AMD, which pods request by amd.com/gpu"
DEVICE_CASES = {
    "no device asked, none there": (asks(), BARE, ""),
    "no Device": (asks({NVIDIA: 1}), BARE, "no Device"),
    "not ready": (asks({NVIDIA: 1}), world(card(), fresh=False), "a Device that is not ready (agent never heard)"),
    "not ready matters only for devices": (asks(), world(card(), fresh=False), ""),
    "one card": (asks({NVIDIA: 1}), WHOLE, ""),
    "all cards": (asks({NVIDIA: 8}), EIGHT, ""),
    "more than there are": (asks({NVIDIA: 9}), EIGHT, "too few healthy GPUs (9 requested, at most 8 on a node)"),
    "an unhealthy card": (asks({NVIDIA: 1}), world(card(healthy=False)), "too few healthy GPUs (1 requested)"),
    "an empty Device": (asks({NVIDIA: 1}), world(), "too few healthy GPUs (1 requested)"),
    "another vendor": (asks({NVIDIA: 1}), world(card(), vendor="amd"), "no GPUs of NVIDIA"),
    "no such vendor": (asks({"amd.com/gpu": 1}), WHOLE, "no GPUs of AMD"),
    "a share of AMD's card": (asks({GPU: 50}), world(card(), vendor="amd"), OF_AMD),
    "memory of AMD's card": (asks({MEMORY: 20 * GI}), world(card(), vendor="amd"), OF_AMD),
    "whole cards of AMD": (asks({GPU: 200}), world(card(0), card(1), vendor="amd"), OF_AMD),
    "Koordinator's names": (
        asks({"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}),
        world(card(), vendor="amd"),
        OF_AMD,
    ),
    "AMD's own resource": (asks({"amd.com/gpu": 1}), world(card(), vendor="amd"), ""),
    "an unknown vendor": (
        asks({GPU: 50}),
        world(card(), vendor="other"),
        "GPUs of other, which pods do not get by kubernetes.io/gpu",
    ),
    "cards without such cores": (asks(NPU), world(card(), vendor="huawei"), "GPUs that are too small"),
    "model": (ANY_A100, WHOLE, ""),
    "another model": (NOT_A100, WHOLE, NO_H100),
    "by memory": (asks({MEMORY: 80 * 10**9}), WHOLE, ""),
    "too little memory": (asks({MEMORY: 20 * GI}), world(card(memory=8 * GI)), TOO_SMALL),
    "too little memory on the second card": (
        asks({SHARED: 2, MEMORY: 40 * GI}),
        world(card(0, memory=40 * GI), card(1, memory=8 * GI)),
        TOO_SMALL,
    ),
    "the larger of two unequal cards": (asks({MEMORY: T4_BYTES + 1}), MIXED, ""),
    "the smaller of two unequal cards": (
        asks({SHARED: 2, MEMORY: 4 * T4_BYTES}),
        MIXED,
        "GPUs with too little memory (at most 16Gi of 32Gi)",
    ),
    "the other half": (asks({GPU: 50}), used(**HALF), ""),
    "more than the other half": (asks({GPU: 51}), used(**HALF), busy("gpu-core 51", "gpu-memory-ratio 51")),
    "a whole card that is half taken": (asks({NVIDIA: 1}), used(**HALF), busy("gpu-core 100", "gpu-memory-ratio 100")),
    "a whole card with a pod that holds a byte": (
        asks({CORE: 10, RATIO: 100}),
        used(memory=1),
        busy("gpu-core 10", "gpu-memory-ratio 100"),
    ),
    "a whole card with a pod that holds nothing that it asks for": (
        asks({RATIO: 100}),
        used(npu_cpu=1),
        busy("gpu-memory-ratio 100"),
    ),
    "bytes that are taken by ratio": (LESS, used(**HALF), busy(f"gpu-memory {A100_BYTES - A100_BYTES // 2 + 1}")),
    "a ratio whose bytes are taken": (
        asks({RATIO: 1}),
        used(memory=A100_BYTES, ratio=99),
        busy("gpu-memory-ratio 1"),
    ),
    "core that is taken": (asks({GPU: 1}), used(core=100, memory=1), busy("gpu-core 1", "gpu-memory-ratio 1")),
    "the other card": (asks({GPU: 100}), used(2, **FULL), ""),
    "two cards of which one is taken": (
        asks({GPU: 200}),
        used(2, **FULL),
        busy("gpu-core 100", "gpu-memory-ratio 100", count=2),
    ),
    "a pod that may hold any card": (asks({GPU: 50}), UNKNOWN, "pods whose GPU allocation is unknown"),
    "a pod that may hold another device": (asks({GPU: 50}), UNKNOWN_NIC, ""),
    "a NIC": (asks({RDMA: 100}), A_NIC, ""),
    "no NIC": (asks({RDMA: 100}), WHOLE, "too few healthy RDMA devices (1 requested)"),
    "half an FPGA": (asks({FPGA: 50}), world(other_card("fpga")), ""),
    "a NIC that is taken": (asks({RDMA: 50}), NIC_IN_USE, "too few free RDMA devices (1 requested with rdma 50)"),
    "both": (asks({NVIDIA: 1, RDMA: 100}), A_NIC, ""),
    "both, but too few NICs": (
        asks({NVIDIA: 1, RDMA: 200}),
        A_NIC,
        "too few healthy RDMA devices (2 requested, at most 1 on a node)",
    ),
}
"""What is asked for, of which node, and what nodes have that do not pass."""


@pytest.mark.parametrize(("request_", "fleet", "reason"), DEVICE_CASES.values(), ids=DEVICE_CASES)
def test_cards_pass_or_the_filter_explains_why_not(request_: PodRequest, fleet: Fleet, reason: str) -> None:
    assert passing(devices.BUILT_IN, fleet, request_) == (set() if reason else {"node"})
    assert reasons(devices.BUILT_IN, fleet, request_) == ({f"node(s) have {reason}": 1} if reason else {})


def test_the_largest_memory_is_that_of_the_nodes_that_are_too_small() -> None:
    fleet = Fleet()
    add(fleet, node_info("small"), inventory(card(memory=8 * GI)))
    add(fleet, node_info("busy"), inventory(card(model=A100)))
    fleet.charge(charge("pod", grant(0, ratio=100), node="busy"))
    add(fleet, node_info("gone"), inventory(card(memory=12 * GI)))
    fleet.remove_node("gone")
    assert reasons(devices.BUILT_IN, fleet, asks({MEMORY: 20 * GI})) == {
        "node(s) have GPUs with too little memory (at most 8Gi of 20Gi)": 1,
        "node(s) have too few free GPUs (1 requested with gpu-memory 20Gi)": 1,
    }


PLUGINS = [
    *("NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit", "VolumeRestrictions"),
    *("NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity"),
    # Last, because its feature gate appends it.
    "NodeDeclaredFeatures",
]
"""kube-scheduler's plugins that filter, in its order (getDefaultPlugins of 1.36)."""


def test_filters_run_in_the_order_of_kube_schedulers_plugins() -> None:
    # The first rejection gives the reason, and decides whether preemption may help. What rejects all nodes comes first.
    # Claims come before what depends on a node's pods: their reasons are more specific.
    plugins = [each.TRAITS.plugin for each in filters.ORDER if each.TRAITS.plugin and not each.TRAITS.of_pod]
    after = PLUGINS.index("NodeAffinity") + 1
    assert list(dict.fromkeys(plugins)) == [*PLUGINS[:after], "DynamicResources", *PLUGINS[after:]]


def test_the_filters_whose_rejections_evictions_may_resolve() -> None:
    assert {each.NAME for each in filters.ORDER if each.VERDICT is Verdict.UNSCHEDULABLE} == {
        *("dynamic-resources", "host-ports", "volume-in-use", "volume-conflicts", "volume-limits", "resources"),
        *("devices", "measured-memory", "topology-spread", "pod-anti-affinity", "existing-anti-affinity"),
    }
