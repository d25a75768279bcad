"""Gangs whose members have ResourceClaims: all members are placed where placing one after another would fail."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import NOT_FINISHED, decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster
from tests.claims.objects import exactly, first_available, request
from tests.objects.builders import every_pod, gang, node, pod
from tests.objects.resource_claims import NVIDIA_DRIVER, ClaimsInTurns, allocated, listed, resource_slice
from tests.unit.core.fleet.test_fleet import arrays

Raw = dict[str, Any]
TURN = 8_000
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
SOFT, HARD = "soft", "hard"


def of_model(*models: str) -> str:
    """Return the selector of devices of these models."""
    return " || ".join(f'device.attributes["{NVIDIA_DRIVER}"].model == "{model}"' for model in models)


class Racks:
    """Nodes with devices of models, each in a pool of its own, and a gang."""

    def __init__(self, nodes: Mapping[str, Sequence[str]], *, cpu: str = "64") -> None:
        self.cluster = Cluster(grace=20.0, clock=lambda: 100.0)
        self.cluster.set_own_pools(OwnPools(drivers=frozenset({NVIDIA_DRIVER})))
        self.to = ClaimsInTurns(self.cluster)
        self.pods = every_pod(self.cluster)
        self.to.put_class({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}})
        for name, models in nodes.items():
            self.cluster.node_cache.put_node(node(name, labels={HOST: name}, allocatable={"cpu": cpu}))
            devices = [listed(f"d{place}", {"model": each}) for place, each in enumerate(models)]
            self.to.put_slice(resource_slice(*devices, node=name))
        self.members: list[PendingPod] = []

    def put_claim(self, name: str, *requests: Raw, **devices: Any) -> None:
        spec = {"devices": {"requests": list(requests), **devices}}
        self.to.put_claim({"metadata": {"name": name, "namespace": "ns", "uid": f"uid-claim-{name}"}, "spec": spec})

    def member(self, *requests: Raw, claims: Sequence[str] = (), cpu: str = "1", **fields: Any) -> None:
        """Add a member with a claim of these requests, and others by name."""
        name = f"m{len(self.members)}"
        if requests:
            self.put_claim(name, *requests)
        used = [{"name": each, "resourceClaimName": each} for each in (*([name] if requests else []), *claims)]
        amounts = {"cpu": cpu, **fields.pop("amounts", {})}
        self.cluster.put_pending(pod(name, amounts, **{"resourceClaims": used, **fields}))
        self.members.append(self.cluster.pending[f"uid-{name}"])

    def decided(self, minimum: int | None = None, **fields: Any) -> list[Placement] | Failure:
        """Decide about the gang in one turn of the loop, which has counted the devices before."""
        self.cluster.fleet.claims.supply.work.refill(TURN)
        return decide_gang(self.cluster.fleet, gang(*self.members, minimum=minimum, **fields), Policy())

    def placed(self, minimum: int | None = None, **fields: Any) -> dict[str, str]:
        """Return the node of each member that is placed."""
        outcome = self.decided(minimum, **fields)
        assert not isinstance(outcome, Failure), outcome.message
        return {each.pod.name: each.node for each in outcome}

    def message(self) -> str:
        outcome = self.decided()
        assert isinstance(outcome, Failure)
        return outcome.message


def devices(placements: Sequence[Placement] | Failure) -> dict[str, list[str]]:
    """Return {claim: node/device} of what the members' claims get."""
    assert not isinstance(placements, Failure), placements.message
    return {
        one.claim.name: [f"{result.device.id.pool}/{result.device.id.device}" for result in one.results]
        for placement in placements
        for one in placement.claims.allocations
    }


def test_eight_members_with_eight_devices_each_leave_the_nodes_that_some_of_them_need() -> None:
    hard, soft = {f"a{i}": [HARD] * 8 for i in range(4)}, {f"b{i}": [SOFT] * 8 for i in range(4)}
    racks = Racks(hard | soft)
    for where in [""] * 4 + [of_model(HARD)] * 4:
        racks.member(request(count=8, where=where))
    placed = racks.placed()
    assert {placed[f"m{i}"] for i in range(4)} == soft.keys()
    assert {placed[f"m{i}"] for i in range(4, 8)} == hard.keys()
    assert racks.cluster.fleet.claims.supply.work.unfinished is False


def test_members_on_one_node_leave_the_devices_that_others_need() -> None:
    racks = Racks({"n": [HARD, SOFT, SOFT]})
    for where in ("", of_model(SOFT, HARD), of_model(HARD)):
        racks.member(request(where=where))
    placements = racks.decided()
    assert devices(placements)["m2"] == ["n/d0"]
    assert len(Counter(each for got in devices(placements).values() for each in got)) == 3


def test_the_fleet_and_the_claims_are_left_as_they_were() -> None:
    racks = Racks({"n": [HARD, SOFT]})
    racks.put_claim("shared", request())
    racks.member(claims=["shared"])
    racks.member(claims=["shared"])
    racks.member(request(where=of_model(HARD)))
    fleet = racks.cluster.fleet
    before, claims = arrays(fleet), dict(fleet.claims.claims)
    assert devices(racks.decided()) == {"shared": ["n/d1"], "m2": ["n/d0"]}
    assert all((one == other).all() for one, other in zip(arrays(fleet), before, strict=True))
    assert fleet.claims.claims == claims
    assert not fleet.charges
    assert not fleet.claims.supply.holdings.allocated.devices


def test_a_member_goes_where_a_claim_is_allocated_and_another_leaves_it_the_devices() -> None:
    racks = Racks({"a": [HARD, SOFT], "b": [SOFT, SOFT]}, cpu="2")
    racks.to.put_claim(allocated("held", "d1", node="b"))
    racks.member(request())
    racks.member(request(where=of_model(SOFT)), claims=["held"])
    assert racks.placed() == {"m0": "a", "m1": "b"}


def test_members_that_share_a_claim_go_to_one_node() -> None:
    racks = Racks({"a": [SOFT] * 3, "b": [SOFT] * 2})
    racks.put_claim("shared", request(count=2))
    for _ in range(2):
        racks.member(request(), claims=["shared"])
    racks.member(claims=["shared"])
    racks.member(request(count=1, where=of_model(SOFT)))
    # Three members need four devices on one node, which none has.
    assert "required members fit" in racks.message()
    racks.to.put_slice(resource_slice(*[listed(f"d{i}", {"model": SOFT}) for i in range(4)], node="b"))
    placed = racks.placed()
    assert placed == {"m0": "b", "m1": "b", "m2": "b", "m3": "a"}


def test_the_first_subrequests_are_given_as_far_as_all_fit() -> None:
    racks = Racks({"n": [HARD, SOFT, SOFT]})
    either = first_available("r", exactly(where=of_model(HARD)), exactly(count=2, where=of_model(SOFT)))
    racks.member(either)
    racks.member(request(where=of_model(HARD)))
    assert devices(racks.decided()) == {"m0": ["n/d1", "n/d2"], "m1": ["n/d0"]}


def test_counters_are_taken_once() -> None:
    racks = Racks({"n": []})
    counters = [{"name": "set", "counters": {"memory": {"value": "3"}}}]
    uses = {"whole": "3", "half": "2", "part-0": "1", "part-1": "1"}
    parts = [
        listed(
            name,
            {"model": name.partition("-")[0]},
            consumesCounters=[{"counterSet": "set", "counters": {"memory": {"value": value}}}],
        )
        for name, value in uses.items()
    ]
    racks.to.put_slice(resource_slice(*parts, node="n", count=2))
    counted = resource_slice(node="n", count=2, name="counters")
    racks.to.put_slice({**counted, "spec": {**counted["spec"], "sharedCounters": counters}})
    racks.member(request())
    racks.member(request(where=of_model("half")))
    assert devices(racks.decided()) == {"m0": ["n/part-0"], "m1": ["n/half"]}
    racks.member(request())
    assert "of the 3 required members fit" in racks.message()


def test_members_get_alike_devices_if_enough_nodes_have_them() -> None:
    racks = Racks({"a": [HARD] * 2, "b": [SOFT] * 2, "c": [HARD] * 2, "d": [SOFT], "e": [HARD, SOFT]})
    for _ in range(2):
        racks.member(request(count=2))
    assert set(racks.placed().values()) == {"a", "c"}
    racks.member(request(count=2))
    # No three nodes with two of one model each.
    assert set(racks.placed().values()) > {"b"}


def test_members_that_come_later_get_what_the_others_have() -> None:
    racks = Racks({"a": [HARD] * 2, "b": [SOFT] * 2, "c": [HARD] * 2, "d": [SOFT] * 2})
    racks.to.put_claim(allocated("held", "d0", node="a"))
    racks.to.put_claim(allocated("other", "d0", node="b"))
    racks.member(request(count=2))
    assert racks.placed(nodes=("b",), placed=1) == {"m0": "d"}
    assert racks.placed(nodes=("a",), placed=1) == {"m0": "c"}


def test_alike_devices_are_of_the_first_subrequest_that_suffices() -> None:
    racks = Racks({"a": [SOFT] * 2, "b": [SOFT] * 2, "c": [HARD] * 3, "d": [HARD] * 3})
    for _ in range(2):
        racks.member(
            first_available("r", exactly(count=2, where=of_model(HARD)), exactly(count=2, where=of_model(SOFT)))
        )
    assert set(racks.placed().values()) == {"c", "d"}


def test_alike_devices_come_before_a_narrow_domain() -> None:
    racks = Racks({})
    for name, rack, model in (("a", "r0", HARD), ("b", "r0", SOFT), ("c", "r1", HARD), ("d", "r1", HARD)):
        racks.cluster.node_cache.put_node(node(name, labels={HOST: name, ZONE: rack}, allocatable={"cpu": "64"}))
        racks.to.put_slice(resource_slice(listed("d0", {"model": model}), node=name))
    for _ in range(2):
        racks.member(request())
    assert set(racks.placed().values()) == {"c", "d"}
    racks.member(request())
    assert set(racks.placed().values()) == {"a", "c", "d"}


def test_extended_resources_by_a_class_leave_the_devices_that_claims_need() -> None:
    racks = Racks({"n": [HARD, SOFT]})
    racks.member(amounts={"example.com/gpu": "1"})
    racks.member(request(where=of_model(HARD)))
    placements = racks.decided()
    assert devices(placements)["m1"] == ["n/d0"]
    assert not isinstance(placements, Failure)
    [extended] = [placement for placement in placements if placement.pod.name == "m0"]
    assert extended.claims.by_class == {"example.com/gpu"}


def test_members_that_must_be_apart_are_placed_apart() -> None:
    racks = Racks({"a": [HARD] * 2, "b": [SOFT] * 2, "c": [SOFT] * 2})
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "g"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for where in ("", "", of_model(HARD)):
        racks.member(request(where=where), affinity=apart, labels={"app": "g"})
    assert sorted(racks.placed().values()) == ["a", "b", "c"]


def test_members_that_are_not_needed_are_left_out_if_not_all_fit() -> None:
    racks = Racks({"n": [HARD, HARD, SOFT]})
    racks.member(request(count=2, where=of_model(HARD)))
    for _ in range(2):
        racks.member(request(where=of_model(HARD)))
    assert racks.placed(minimum=2).keys() == {"m1", "m2"}


def test_all_members_are_in_one_domain_of_the_topology_key() -> None:
    racks = Racks({"a": [HARD, SOFT], "b": [HARD, HARD, SOFT]})
    for where in ("", of_model(HARD), of_model(HARD)):
        racks.member(request(where=where))
    assert set(racks.placed(topology_key=HOST).values()) == {"b"}


def test_a_gang_of_many_members_is_placed_though_a_turn_has_less_work_left() -> None:
    racks = Racks({f"n{i}": [SOFT] * 2 for i in range(100)})
    for _ in range(200):
        racks.member(request())
    while isinstance(racks.decided(), Failure):
        assert racks.cluster.fleet.claims.supply.work.unfinished
    assert len(racks.placed()) == 200


def test_a_gang_whose_members_fit_on_few_nodes_is_placed_after_some_turns() -> None:
    racks = Racks({f"n{i:03}": [HARD, SOFT] for i in range(150)} | {"y": [SOFT] * 2, "z": [SOFT] * 2})
    alike = [{"requests": ["gpu"], "matchAttribute": f"{NVIDIA_DRIVER}/model"}]
    for name in ("c", "d"):
        racks.put_claim(name, request(count=2), constraints=alike)
        racks.member(claims=[name])
    turns = 1
    while isinstance(racks.decided(), Failure):
        assert racks.cluster.fleet.claims.supply.work.unfinished
        turns += 1
    assert turns > 1
    assert set(racks.placed().values()) == {"y", "z"}


# --- the bound --------------------------------------------------------------------------------------------------


def hard_to_fill(nodes: int) -> Racks:
    """Return nodes that each could take two members of several sizes, but not all of them together."""
    racks = Racks({f"n{i}": [SOFT] * 10 for i in range(nodes)})
    for count in [6, 4, 5] * (2 * nodes // 3) + [5]:
        racks.member(request(count=count))
    return racks


def test_a_search_that_ends_at_its_bound_says_so_and_is_not_made_again_in_the_next_turn() -> None:
    racks = hard_to_fill(12)
    racks.decided()
    assert racks.message().endswith(NOT_FINISHED)
    assert racks.message() == racks.message()
    assert not racks.cluster.fleet.claims.supply.work.unfinished


def test_a_search_that_has_tried_everything_does_not() -> None:
    racks = Racks({f"n{i}": [SOFT] * 8 for i in range(64)})
    for _ in range(65):
        racks.member(request(count=8))
    while "not compared" in (message := racks.message()):
        pass
    assert NOT_FINISHED not in message


# --- all placements by hand ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Want:
    """What a member wants: devices of some models, all of one model if `alike`, or else the second."""

    count: int
    models: frozenset[str]
    alike: bool
    cpu: int
    otherwise: int = 0
    """The number of devices of any model that do as well, for `firstAvailable`; 0 for none."""
    shared: bool = False
    """Whether the claim that others share is used as well."""


WANTS = st.builds(
    Want,
    count=st.integers(1, 3),
    models=st.sampled_from([frozenset({SOFT}), frozenset({HARD}), frozenset({SOFT, HARD})]),
    alike=st.booleans(),
    cpu=st.integers(1, 2),
    otherwise=st.sampled_from([0, 0, 1, 2]),
    shared=st.sampled_from([False, False, True]),
)
Nodes = list[tuple[str, ...]]
NODES = st.lists(st.lists(st.sampled_from([SOFT, HARD]), max_size=4).map(tuple), min_size=1, max_size=3)


@st.composite
def cut(draw: st.DrawFn) -> tuple[Nodes, list[Want]]:
    """Return nodes and members that fit, and take most of what there is: one after the other they often do not."""
    nodes, wants = draw(NODES), []
    for models in nodes:
        free, cpu = draw(st.permutations(range(len(models)))), 3
        while free and cpu and draw(st.integers(0, 5)):
            taken = [free.pop() for _ in range(draw(st.integers(1, min(3, len(free)))))]
            held = frozenset(models[each] for each in taken)
            allowed = draw(st.sampled_from([held, frozenset({SOFT, HARD})]))
            alike = len(held) == 1 and draw(st.booleans())
            wants.append(Want(count=len(taken), models=allowed, alike=alike, cpu=draw(st.integers(1, min(2, cpu)))))
            cpu -= wants[-1].cpu
    return nodes, draw(st.permutations(wants[:5]))


def of_scenario(nodes: Sequence[Sequence[str]], wants: Sequence[Want]) -> Racks:
    racks = Racks({f"n{place}": models for place, models in enumerate(nodes)}, cpu="3")
    racks.put_claim("shared", request(where=of_model(HARD)))
    for place, want in enumerate(wants):
        asked = exactly(want.count, where=of_model(*sorted(want.models)))
        one = (
            first_available("r", asked, exactly(want.otherwise)) if want.otherwise else {"name": "r", "exactly": asked}
        )
        alike = [{"requests": ["r"], "matchAttribute": f"{NVIDIA_DRIVER}/model"}] if want.alike else []
        racks.put_claim(f"c{place}", one, **({"constraints": alike} if alike else {}))
        racks.member(claims=[f"c{place}", *(["shared"] if want.shared else [])], cpu=str(want.cpu))
    return racks


def ways(want: Want, models: Sequence[str], free: frozenset[int]) -> list[frozenset[int]]:
    """Return the sets of a node's devices that meet a want."""
    allowed = [each for each in sorted(free) if models[each] in want.models]
    sets = [*combinations(allowed, want.count), *(combinations(sorted(free), want.otherwise) if want.otherwise else ())]
    return [frozenset(of_set) for of_set in sets if not want.alike or len({models[one] for one in of_set}) == 1]


def fits_somehow(nodes: Sequence[Sequence[str]], wants: Sequence[Want], needed: int) -> bool:
    """Return whether enough members fit, by trying everything."""
    free = [frozenset(range(len(node))) for node in nodes]

    def go_on(place: int, left: list[frozenset[int]], cpu: list[int], shared: int | None, spare: int) -> bool:
        if place == len(wants):
            return True
        want = wants[place]
        for row, models in enumerate(nodes):
            if cpu[row] < want.cpu or (want.shared and shared not in (None, row)):
                continue
            others = [*cpu[:row], cpu[row] - want.cpu, *cpu[row + 1 :]]
            first = want.shared and shared is None
            for held in [each for each in left[row] if models[each] == HARD] if first else [None]:
                open_ = left[row] - {held}
                for taken in ways(want, models, open_):
                    rest = [*left[:row], open_ - taken, *left[row + 1 :]]
                    if go_on(place + 1, rest, others, row if want.shared else shared, spare):
                        return True
        return spare > 0 and go_on(place + 1, left, cpu, shared, spare - 1)

    return go_on(0, free, [3] * len(nodes), None, len(wants) - needed)


def check(nodes: Sequence[Sequence[str]], wants: Sequence[Want], placements: list[Placement]) -> None:
    """Check that what was decided is a placement."""
    given_ = devices(placements)
    held = [each for got in given_.values() for each in got]
    assert len(held) == len(set(held))
    of_node = {placement.pod.name: placement.node for placement in placements}
    cpu: Counter[str] = Counter()
    for name, where in of_node.items():
        want = wants[int(name[1:])]
        cpu[where] += want.cpu
        models = nodes[int(where[1:])]
        got = given_[f"c{name[1:]}"]
        assert all(each.startswith(f"{where}/d") for each in got)
        numbers = frozenset(int(each.rpartition("/d")[2]) for each in got)
        assert numbers in ways(want, models, frozenset(range(len(models))))
        if want.shared:
            [shared] = given_["shared"]
            assert shared.partition("/")[0] == where
            assert models[int(shared.rpartition("/d")[2])] == HARD
    assert max(cpu.values(), default=0) <= 3


@settings(max_examples=100)
@given(nodes=NODES, wants=st.lists(WANTS, min_size=2, max_size=4), spare=st.integers(0, 1))
def test_a_gang_is_placed_if_and_only_if_it_fits_somehow(nodes: Nodes, wants: list[Want], spare: int) -> None:
    racks, needed = of_scenario(nodes, wants), len(wants) - spare
    outcome = racks.decided(needed)
    assert isinstance(outcome, Failure) != fits_somehow(nodes, wants, needed), getattr(outcome, "message", "")
    if not isinstance(outcome, Failure):
        assert len(outcome) >= needed
        check(nodes, wants, outcome)
    else:
        assert NOT_FINISHED not in outcome.message
    assert not racks.cluster.fleet.charges


@settings(max_examples=100)
@given(cut())
def test_a_gang_that_fits_exactly_is_placed(scenario: tuple[Nodes, list[Want]]) -> None:
    nodes, wants = scenario
    assume(len(wants) > 1)
    outcome = of_scenario(nodes, wants).decided()
    assert not isinstance(outcome, Failure), outcome.message
    assert len(outcome) == len(wants)
    check(nodes, wants, outcome)
