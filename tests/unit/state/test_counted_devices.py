"""Resources of other vendors: counted on nodes without an agent, and allocated by cards where an agent reports them."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api import names
from berth_api.request import GpuVendor, Kinds
from berth_operator.core.advice import new_nodes
from berth_operator.core.advice.explanation import explain
from berth_operator.core.decision.cycle import Failure, Placement, decide, feasible
from berth_operator.core.decision.gang import decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import pods
from tests.objects.builders import (
    FPGA,
    GPU,
    NVIDIA,
    bare_node,
    charge,
    decided,
    device,
    entry,
    gang,
    lease,
    pod,
    popped,
    whole,
)

Raw = dict[str, Any]

AMD: Final = "amd.com/gpu"
DCU: Final = "dcu.com/gpu"
OFFERED: Final = 8
SELECTS_TWO: Final = '{"gpu": {"selector": {"matchLabels": {"two": "yes"}}}}'
Sign = Literal["nothing", "a Lease", "a pod", "a Device", "a Device of AMD"]


def agent(node: str, namespace: str = names.AGENT_SYSTEM, name: str = names.AGENT) -> Raw:
    """Return the agent's pod on a node."""
    raw = pod(f"agent-{node}", {}, on=node, labels={names.APP_NAME: name}, schedulerName="default-scheduler")
    raw["metadata"]["namespace"] = namespace
    return raw


def add(to: Cluster, name: str, sign: Sign, offered: Mapping[str, int]) -> None:
    """Add a node whose device plugins offer these resources, with a sign of an agent."""
    to.node_cache.put_node(bare_node(name, offered=offered))
    if sign == "a Lease":
        to.node_cache.put_lease(lease(name))
    elif sign == "a pod":
        to.put_bound(agent(name))
    elif sign != "nothing":
        labels = {names.VENDOR_LABEL: "amd"} if sign == "a Device of AMD" else {}
        to.node_cache.put_device(device(name, *map(entry, range(OFFERED)), labels=labels))


def cluster(**nodes: Sign) -> Cluster:
    """Return nodes that each offer eight cards of AMD, with their signs of an agent."""
    made = Cluster(grace=20.0, clock=lambda: 0.0)
    for name, sign in nodes.items():
        add(made, name, sign, {AMD: OFFERED})
    return made


def outcome_of(of: Cluster, raw: Raw) -> Placement | Failure:
    of.put_pending(raw)
    [outcome] = decided(of)
    return outcome


SIGNS: Final = st.sampled_from(("nothing", "a Lease", "a pod", "a Device", "a Device of AMD"))
AMOUNTS: Final = st.dictionaries(st.sampled_from((AMD, DCU, NVIDIA)), st.integers(1, OFFERED))
REQUESTS: Final = st.sampled_from(({AMD: 1}, {AMD: 3}, {DCU: 2}, {NVIDIA: 1}, {AMD: 1, FPGA: 100}, {GPU: 100}))
ANNOTATIONS: Final = st.sampled_from(({}, {}, {names.MODEL_GLOBS: "*MI300*"}))


@given(st.lists(st.tuples(SIGNS, AMOUNTS), min_size=1, max_size=6), REQUESTS, ANNOTATIONS)
def test_a_resource_is_counted_exactly_where_no_agent_is(
    nodes: list[tuple[Sign, Mapping[str, int]]], requests: Mapping[str, int], annotations: Mapping[str, str]
) -> None:
    made = Cluster(grace=20.0, clock=lambda: 0.0)
    for number, (sign, offered) in enumerate(nodes):
        add(made, f"n{number}", sign, offered)
    waits = pods.pending(pod("a", requests, annotations=annotations))
    fits = feasible(made.fleet, waits.request)
    is_counted = requests.keys() <= {AMD, DCU} and not annotations
    for number, (sign, offered) in enumerate(nodes):
        if sign in ("nothing", "a Lease", "a pod"):
            enough = all(offered.get(name, 0) >= amount for name, amount in requests.items())
            expected = sign == "nothing" and is_counted and enough and not waits.error
            assert bool(fits[made.fleet.rows[f"n{number}"]]) == expected


def kinds_with(name: str, *, shared: bool = True) -> Kinds:
    return Kinds(gpus={name: GpuVendor(name="example", cards=(name,), shared=shared)})


@pytest.mark.parametrize("sign", ["nothing", "a Device", "a Device of example"])
def test_an_added_vendor_is_counted_and_allocated_like_a_built_in_one(sign: str) -> None:
    name = "example.com/gpu"
    of = Cluster(grace=20.0, clock=lambda: 0.0, fleet=Fleet(kinds=kinds_with(name)))
    of.node_cache.put_node(bare_node("n", offered={name: 4}))
    if sign != "nothing":
        labels = {names.VENDOR_LABEL: "example"} if sign == "a Device of example" else {}
        of.node_cache.put_device(device("n", *map(entry, range(4)), labels=labels))
        of.node_cache.put_lease(lease("n"))
    outcome = outcome_of(of, pod("a", {name: 2}))
    if sign == "a Device":
        assert isinstance(outcome, Failure)
        assert outcome.message.startswith("0/1 nodes are available: 1 node(s) have no GPUs of example")
    else:
        assert isinstance(outcome, Placement)
        assert [grant.minor for grant in outcome.grants] == ([] if sign == "nothing" else [0, 1])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("request_of", [{"kubernetes.io/gpu": 50}, {"kubernetes.io/gpu": 100}, {"example.com/gpu": 1}])
def test_cards_that_kubelet_alone_gives_are_requested_by_their_vendors_resource(
    request_of: Mapping[str, int], *, shared: bool
) -> None:
    name = "example.com/gpu"
    of = Cluster(grace=20.0, clock=lambda: 0.0, fleet=Fleet(kinds=kinds_with(name, shared=shared)))
    of.node_cache.put_node(bare_node("n", offered={name: 4, "kubernetes.io/gpu": 400}))
    of.node_cache.put_device(device("n", *map(entry, range(4)), labels={names.VENDOR_LABEL: "example"}))
    of.node_cache.put_lease(lease("n"))
    outcome = outcome_of(of, pod("a", request_of))
    if shared or name in request_of:
        assert isinstance(outcome, Placement)
        return
    assert isinstance(outcome, Failure)
    reason = "1 node(s) have GPUs of example, which pods request by example.com/gpu"
    assert outcome.message.startswith(f"0/1 nodes are available: {reason}")


@pytest.mark.parametrize(
    ("requests", "annotations", "expected"),
    [
        pytest.param({AMD: 1}, {}, [0], id="an undivided card"),
        pytest.param(
            {AMD: 2},
            {},
            "too few healthy GPUs that match the mode of cards without partitions (2",
            id="partitions are no cards",
        ),
        pytest.param({"amd.com/cpx_nps4": 2}, {}, [1, 2], id="partitions"),
        pytest.param(
            {"amd.com/cpx_nps4": 1}, {names.ALLOCATE_HINT: SELECTS_TWO}, [2], id="a selector of the user's, too"
        ),
        pytest.param(
            {"amd.com/cpx_nps4": 3}, {}, "that match the partition mode cpx_nps4 (3 requested", id="too few partitions"
        ),
        pytest.param(
            {"amd.com/dpx_nps1": 1}, {}, "that match the partition mode dpx_nps1 (1 requested", id="of another mode"
        ),
    ],
)
def test_partitions_are_allocated_by_their_mode(
    requests: Mapping[str, int], annotations: Mapping[str, str], expected: list[int] | str
) -> None:
    of = Cluster(grace=20.0, clock=lambda: 0.0)
    of.node_cache.put_node(bare_node("n", offered=dict.fromkeys(requests, OFFERED)))
    mode = {names.DEVICE_PARTITION: "cpx_nps4"}
    cards = [entry(0), entry(1, labels=mode), entry(2, labels={**mode, "two": "yes"})]
    of.node_cache.put_device(device("n", *cards, labels={names.VENDOR_LABEL: "amd"}))
    of.node_cache.put_lease(lease("n"))
    outcome = outcome_of(of, pod("a", requests, annotations=annotations))
    if isinstance(expected, list):
        assert isinstance(outcome, Placement)
        assert [grant.minor for grant in outcome.grants] == expected
    else:
        assert isinstance(outcome, Failure)
        assert expected in outcome.message


def of_amd(kinds: Kinds) -> Cluster:
    """Return a node with two cards of AMD."""
    made = Cluster(grace=20.0, clock=lambda: 0.0, fleet=Fleet(kinds=kinds))
    made.node_cache.put_node(bare_node("n", offered={AMD: 2, GPU: 200}))
    cards = [entry(minor, model="AMD Instinct MI210") for minor in (0, 1)]
    made.node_cache.put_device(device("n", *cards, labels={names.VENDOR_LABEL: "amd"}))
    made.node_cache.put_lease(lease("n"))
    return made


def of_both() -> Cluster:
    """Return a node with two cards of AMD, and one with a card of NVIDIA."""
    made = of_amd(Kinds())
    made.node_cache.put_node(bare_node("nvidia", offered={NVIDIA: 1}))
    made.node_cache.put_device(device("nvidia", entry(0)))
    made.node_cache.put_lease(lease("nvidia"))
    return made


def test_after_an_upgrade_pods_keep_the_cards_of_amd_that_earlier_versions_gave_them() -> None:
    placed = outcome_of(of_amd(Kinds(gpu_vendors=frozenset({"*"}))), pod("p", {GPU: 100}))
    assert isinstance(placed, Placement)
    assert [grant.minor for grant in placed.grants] == [0]
    restarted = of_amd(Kinds())
    restarted.put_bound(pod("p", {GPU: 100}, on="n", allocated=whole(0)))
    new = outcome_of(restarted, pod("new", {GPU: 100}))
    assert isinstance(new, Failure)
    assert "node(s) have GPUs of AMD, which pods request by amd.com/gpu" in new.message
    restarted.remove_pending("uid-new")
    both = outcome_of(restarted, pod("both", {AMD: 2}))
    assert isinstance(both, Failure)
    assert "too few free GPUs" in both.message
    restarted.remove_pending("uid-both")
    one = outcome_of(restarted, pod("one", {AMD: 1}))
    assert isinstance(one, Placement)
    assert [grant.minor for grant in one.grants] == [1]


@pytest.mark.parametrize(
    ("requests", "annotations", "expected"),
    [
        pytest.param(
            {NVIDIA: 1},
            {names.MODEL_GLOBS: "*MI210*"},
            "models: NVIDIA A100-SXM4-80GB; there are such GPUs of AMD, which pods request by amd.com/gpu)",
            id="a model of another vendor",
        ),
        pytest.param(
            {AMD: 1}, {names.MODEL_GLOBS: "*H100*"}, "(1 requested; models: AMD Instinct MI210)", id="no such model"
        ),
        pytest.param(
            {AMD: 2},
            {names.GPU_TOPOLOGY: "nvlink"},
            "annotation berth.dev/gpu-topology: nvlink; did you mean xgmi, the links of the requested GPUs?",
            id="links of another vendor",
        ),
    ],
)
def test_a_vendor_is_part_of_the_answer(requests: Raw, annotations: Raw, expected: str) -> None:
    outcome = outcome_of(of_both(), pod("p", requests, annotations=annotations))
    assert isinstance(outcome, Failure)
    assert expected in outcome.message


@pytest.mark.parametrize(
    ("requests", "annotations", "expected"),
    [
        pytest.param({NVIDIA: 1}, {names.MODEL_GLOBS: "*MI210*"}, [], id="a model that only another vendor has"),
        pytest.param({NVIDIA: 2}, {}, ["with 2 GPUs of NVIDIA"], id="another vendor"),
        pytest.param(
            {"amd.com/cpx_nps4": 1}, {}, ["with 1 GPU of AMD in the partition mode cpx_nps4"], id="another mode"
        ),
    ],
)
def test_a_vendor_is_part_of_a_node_that_would_help(requests: Raw, annotations: Raw, expected: list[str]) -> None:
    of = of_both()
    of.put_pending(pod("p", requests, annotations=annotations))
    request, order = of.pending["uid-p"].request, Policy().filters_of(of.pending["uid-p"].request)
    found = [variant.what for variant in new_nodes.variants(of.fleet, request, order, "n")]
    assert [what for what in found if "GPU" in what] == expected


def test_what_is_counted_is_given_by_kubelet_and_never_twice() -> None:
    of = cluster(a="nothing")
    for number in range(4):
        placed = outcome_of(of, pod(f"p{number}", {AMD: 2}))
        assert isinstance(placed, Placement)
        assert placed.grants == ()
    waits = outcome_of(of, pod("late", {AMD: 1}))
    assert isinstance(waits, Failure)
    assert waits.message == f"0/1 nodes are available: 1 Insufficient {AMD}."
    assert waits.condition == "Unschedulable"
    of.remove_bound("uid-p0")
    assert popped(of.queue) is not None


@pytest.mark.parametrize("sign", ["a Lease", "a pod", "a Device"])
def test_it_waits_for_the_cards_of_an_agent(sign: Sign) -> None:
    outcome = outcome_of(cluster(a=sign), pod("a", {AMD: 1}))
    reason = "node(s) have no GPUs of AMD" if sign == "a Device" else "node(s) have no Device"
    assert isinstance(outcome, Failure)
    assert outcome.message.startswith(f"0/1 nodes are available: 1 {reason}")


def test_an_agent_that_leaves_wakes_the_pods_that_are_counted_then() -> None:
    of = cluster(a="a pod")
    assert isinstance(outcome_of(of, pod("a", {AMD: 1})), Failure)
    assert popped(of.queue) is None
    of.remove_bound("uid-agent-a")
    assert popped(of.queue) is not None


@pytest.mark.parametrize("fields", [{"namespace": "ns"}, {"name": "other"}])
def test_a_tenants_pod_is_no_agent(fields: Raw) -> None:
    of = cluster(a="nothing")
    of.put_bound(agent("a", **fields))
    assert isinstance(outcome_of(of, pod("a", {AMD: 1})), Placement)


def test_a_plugin_that_comes_ends_the_wait_as_in_kube_scheduler() -> None:
    of = Cluster(grace=20.0, clock=lambda: 0.0)
    of.node_cache.put_node(bare_node("a"))
    outcome = outcome_of(of, pod("a", {AMD: 1}))
    assert isinstance(outcome, Failure)
    assert f"1 Insufficient {AMD}" in outcome.message
    of.node_cache.put_node(bare_node("a", offered={AMD: 1}))
    assert popped(of.queue) is not None


def test_gangs_answers_and_limits_follow() -> None:
    of = cluster(a="nothing", b="a Device")
    members = [pods.pending(pod(f"m{number}", {AMD: 4})) for number in range(3)]
    placed = decide_gang(of.fleet, gang(*members[:2]), Policy())
    assert isinstance(placed, list)
    assert [placement.node for placement in placed] == ["a", "a"]
    assert isinstance(decide_gang(of.fleet, gang(*members), Policy()), Failure)
    for amount, nodes in ((8, 1), (9, 0)):
        waits = pods.pending(pod("waits", {AMD: amount}))
        of.fleet.charge(charge("held", node="a", resources=((AMD, 1),)))
        assert explain(of.fleet, waits, Policy()).fits_when_empty == nodes
    of.fleet.set_namespace_limits({"ns": {"gpu": 1600}})
    limited = decide(of.fleet, members[0], Policy())
    assert isinstance(limited, Failure)
    assert f"namespace ns has limits, and what a device plugin gives of {AMD} is not counted" in limited.message
