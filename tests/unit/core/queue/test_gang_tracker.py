"""The members of gangs, their progress, and their deadline."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from berth_operator.core.queue.gang_tracker import PATIENCE, SETTLE, Counts, GangTracker, Group, LaterMembers
from berth_operator.core.values.request import Membership
from tests.objects.builders import NVIDIA, charge, waiting

GANG = Membership(group="ns/g")
BY_TWO = Membership(group="ns/g", minimum=2)
BY_CONTROLLER = Membership(group="ns/g", minimum=3, controller="LeaderWorkerSet group")
GROUP = Group(name="ns/g", uid="u", minimum=2, created="2026-01-01T00:00:00Z")


def gang_tracker(*names: str, group: Group | None = GROUP) -> GangTracker:
    """Return a tracker with a PodGroup that needs two, and members that wait."""
    made = GangTracker(timeout=60.0)
    if group is not None:
        made.put_group(group)
    for name in names:
        waits(made, name, GANG)
    return made


def waits(made: GangTracker, name: str, gang: Membership = GANG, **fields: Any) -> None:
    made.wait(waiting(name, gang=gang, **fields), gang)


def holds(made: GangTracker, name: str, *, bound: bool = True, gang: Membership = GANG, **fields: Any) -> None:
    made.hold(charge(name, gang=gang, node=f"node-{name}", **fields), gang, bound=bound)


def lacks(made: GangTracker, now: float = 100.0) -> list[str]:
    list(made.unready(now))
    return [lack for lack, _ in made.unready(now + SETTLE)]


# --- ready ------------------------------------------------------------------------------------------------------


def test_a_gang_without_an_object_is_as_old_as_its_oldest_member() -> None:
    made = GangTracker(timeout=60.0)
    waits(made, "a", BY_TWO, created="2026-01-03T00:00:00Z")
    waits(made, "b", BY_TWO, created="2026-01-02T00:00:00Z")
    gang = made.ready(BY_TWO, 0.0)
    assert gang is not None
    assert gang.created == "2026-01-02T00:00:00Z"


def test_gangs_of_one_name_by_object_and_by_annotation_are_two() -> None:
    made = gang_tracker("a")
    waits(made, "b", BY_TWO)
    assert made.ready(GANG, 0.0) is None
    assert made.ready(BY_TWO, 0.0) is None


def test_only_what_matters_to_the_decision_makes_a_new_version() -> None:
    made = gang_tracker("a", "b", "c")
    holds(made, "a", bound=False)
    first = made.ready(GANG, 0.0)
    waits(made, "b", GANG, last_message="news")
    holds(made, "a")
    made.put_group(GROUP)
    same = made.ready(GANG, 0.0)
    assert first is not None
    assert same is not None
    assert same.class_key == first.class_key
    assert same.members[0].last_message == "news"
    waits(made, "b", GANG, priority=1)
    changed = made.ready(GANG, 0.0)
    assert changed is not None
    assert changed.class_key != first.class_key


def test_a_member_that_changes_its_gang_leaves_the_other() -> None:
    made = gang_tracker("a", "b")
    waits(made, "b", BY_TWO)
    assert made.ready(GANG, 0.0) is None
    assert made.gang_of("uid-b") == BY_TWO
    made.no_longer_waits("uid-b")
    assert made.gang_of("uid-b") is None


def test_a_gang_waits_for_members_with_scheduling_gates() -> None:
    made = gang_tracker("a", "b")
    made.gate("uid-c", GANG)
    assert made.ready(GANG, 0.0) is None
    assert lacks(made) == ["PodGroup ns/g: waiting for members with scheduling gates: 1"]
    assert made.waiting(GANG)[1] == lacks(made)[0]
    made.ungate("uid-c")
    assert made.ready(GANG, 0.0) is not None
    assert made.gang_of("uid-c") is None


def test_an_ended_pod_counts_once_whichever_watch_is_first() -> None:
    made = gang_tracker("b")
    made.put_group(replace(GROUP, minimum=3))
    holds(made, "a")
    made.end("uid-a", GANG, succeeded=True)
    assert lacks(made) == ["PodGroup ns/g: waiting for members: 2 of 3"]
    made.release("uid-a")
    assert lacks(made) == ["PodGroup ns/g: waiting for members: 2 of 3"]


# --- what is missing --------------------------------------------------------------------------------------------


def test_what_is_missing_is_reported_after_a_while_and_not_for_a_gang_that_is_ready() -> None:
    made = gang_tracker("a")
    assert list(made.unready(0.0)) == []
    assert list(made.unready(SETTLE - 0.1)) == []
    ((lack, pods),) = made.unready(SETTLE)
    assert lack == "PodGroup ns/g: waiting for members: 1 of 2"
    assert [each.name for each in pods] == ["a"]
    waits(made, "b", GANG)
    assert list(made.unready(SETTLE + 1)) == []
    made.no_longer_waits("uid-b")
    assert list(made.unready(SETTLE + 2)) == []
    assert len(list(made.unready(2 * SETTLE + 2))) == 1


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        pytest.param(None, "PodGroup ns/g does not exist: create it in the API group ", id="no PodGroup"),
        pytest.param(replace(GROUP, problem="why"), "why", id="a PodGroup that means nothing"),
    ],
)
def test_a_group_that_cannot_be_decided_is_reported(group: Group | None, expected: str) -> None:
    made = gang_tracker("a", "b", "c", group=group)
    assert made.ready(GANG, 0.0) is None
    (lack,) = lacks(made)
    assert lack.startswith(expected)


# --- its time ---------------------------------------------------------------------------------------------------


def test_a_gang_on_its_way_has_a_deadline_until_it_has_formed() -> None:
    made = gang_tracker("a", "b")
    for name in "ab":
        holds(made, name, bound=False)
    assert made.retry_until("uid-a") is None
    made.binding_started(GANG, 5.0)
    made.binding_started(GANG, 30.0)
    assert made.retry_until("uid-a") == 65.0
    holds(made, "a")
    assert made.overdue(64.9) == []
    assert made.overdue(65.0) == [GANG]
    holds(made, "b")
    assert made.overdue(1e9) == []
    assert made.retry_until("uid-a") is None
    made.release("uid-b")
    assert made.overdue(1e9) == []  # it has formed, so it is not aborted


# --- after another leader -----------------------------------------------------------------------------------------


def found(record: str, *waits_for: str, group: Group | None = GROUP, gang: Membership = GANG) -> GangTracker:
    """Return a tracker that has found member a bound with a record, and judged its gang."""
    made = gang_tracker(group=group)
    made.hold(charge("a", gang=gang), gang, bound=True, record=record)
    for name in waits_for:
        waits(made, name, gang)
    made.judge()
    return made


@pytest.mark.parametrize(
    ("record", "waiting_members", "unfinished"),
    [
        pytest.param("2/2/2 uid-a uid-b", "b", True, id="the other waits"),
        pytest.param("2/2/2 uid-a uid-b", "c", False, id="the other is gone"),
        pytest.param("2/3/2 uid-a uid-b uid-c", "c", False, id="enough can have been bound"),
        pytest.param("2/3/2 uid-a uid-b uid-c", "bc", True, id="too few can have been bound"),
        pytest.param("0/2/2 uid-a uid-b", "b", False, id="formed before"),
        pytest.param("3/3/3 uid-a uid-b uid-c", "bc", True, id="the minimum was lowered, and not enough"),
        pytest.param("3/3/3 uid-a uid-b uid-c", "c", False, id="the minimum was lowered"),
        pytest.param("", "b", False, id="no record"),
        pytest.param("v2:whatever", "b", False, id="a record of another version"),
    ],
)
def test_a_gang_that_was_found_bound_has_formed_unless_members_that_wait_prove_the_contrary(
    record: str, waiting_members: str, *, unfinished: bool
) -> None:
    made = found(record, *waiting_members)
    assert made.counts("ns/g").formed == (not unfinished)
    assert made.overdue(0.0) == []
    assert made.overdue(60.0) == ([GANG] if unfinished else [])


def test_what_was_found_is_judged_whatever_is_read_first() -> None:
    made = gang_tracker("b", group=None)
    made.hold(charge("a", gang=GANG), GANG, bound=True, record="2/2/2 uid-a uid-b")
    assert made.overdue(1e9) == []
    made.put_group(GROUP)
    assert made.overdue(1e9) == []
    made.judge()
    assert made.overdue(1e9) == []
    assert made.overdue(1e9 + 60) == [GANG]
    # It no longer depends on the member that proves it.
    made.no_longer_waits("uid-b")
    made.judge()
    assert made.overdue(1e9 + 60) == [GANG]


@pytest.mark.parametrize(
    ("record", "group", "reported"),
    [
        pytest.param("2/2/2 uid-a uid-b", GROUP, True, id="not known"),
        pytest.param("", GROUP, True, id="no record"),
        pytest.param("0/1/2 uid-a", GROUP, False, id="formed before"),
        pytest.param("2/2/2 uid-a uid-ended", replace(GROUP, minimum=3), False, id="the minimum was raised"),
        pytest.param("", replace(GROUP, formed=True), False, id="by its status"),
        pytest.param("", replace(GROUP, minimum=1), False, id="enough are bound"),
        pytest.param("", None, False, id="the minimum is not known"),
    ],
)
def test_what_is_not_known_is_reported(record: str, group: Group | None, *, reported: bool) -> None:
    made = gang_tracker(group=group)
    made.hold(charge("a", gang=GANG), GANG, bound=True, record=record)
    made.end("uid-ended", GANG, succeeded=False)
    whys = [(why, [each.uid for each in members]) for _, why, members in made.judge() if why]
    note = (
        "1 of 2 members of PodGroup ns/g are bound, and nothing records whether enough of them were before the "
        "operator restarted"
    )
    assert whys == ([(note, ["uid-a"])] if reported else [])
    assert made.judge() == []


def test_members_that_berth_has_not_bound_have_no_deadline_and_form_no_gang() -> None:
    made = gang_tracker("b", group=replace(GROUP, minimum=3))
    made.hold(charge("a", gang=GANG), GANG, bound=True, is_ours=False)
    assert [why for _, why, _ in made.judge()] == [""]
    assert not made.counts("ns/g").formed
    made.overdue(0.0)
    assert made.overdue(1e9) == []


class Leaders:
    """A gang under one leader after the other, and whether it has formed in fact."""

    def __init__(self, minimum: int) -> None:
        self.minimum, self.numbers = minimum, itertools.count()
        self.waiting: list[str] = []
        self.assumed: dict[str, str] = {}
        """Name -> record."""
        self.bound: dict[str, str] = {}
        self.formed = self.lost = False
        self.restart()

    def restart(self) -> None:
        self.assumed.clear()
        self.tracker = GangTracker(timeout=60.0)
        self.tracker.put_group(replace(GROUP, minimum=self.minimum))
        for name, record in self.bound.items():
            self.tracker.hold(charge(name, gang=GANG), GANG, bound=True, record=record)
        for name in self.waiting:
            waits(self.tracker, name)
        self.tracker.judge()
        self.look()
        assert self.tracker.counts("ns/g").formed or not self.formed, "what has formed is never taken for unfinished"
        if self.bound and not self.lost:
            assert self.tracker.counts("ns/g").formed == self.formed, "what is unfinished is known while all are there"
        self.formed = self.tracker.counts("ns/g").formed

    def look(self) -> None:
        self.formed = len(self.bound) >= self.minimum or (self.formed and bool(self.bound or self.assumed))

    def act(self, act: str, number: int) -> None:
        among = {"bind": list(self.assumed), "refuse": list(self.assumed), "delete": self.waiting}.get(
            act, list(self.bound)
        )
        if act in ("create", "decide", "restart"):
            getattr(self, act)(*([number] if act == "decide" else []))
        elif among:
            getattr(self, act)(among[number % len(among)])
        self.look()
        assert not self.formed or self.tracker.overdue(1e9) == []

    def create(self) -> None:
        self.waiting.append(f"m{next(self.numbers)}")
        waits(self.tracker, self.waiting[-1])

    def decide(self, number: int) -> None:
        """Place as many as needed, or more, whichever they are."""
        gang = self.tracker.ready(GANG, 1e9)
        if gang is None:
            return
        count = max(1, gang.needed, number % (len(gang.members) + 1))
        members = [gang.members[(number + i) % len(gang.members)].name for i in range(count)]
        for name, record in zip(members, gang.records([f"uid-{name}" for name in members]), strict=True):
            self.assumed[name] = record
            holds(self.tracker, name, bound=False)
        self.tracker.binding_started(GANG, 0.0)

    def bind(self, name: str) -> None:
        self.bound[name] = self.assumed.pop(name)
        self.waiting.remove(name)
        holds(self.tracker, name)
        self.tracker.no_longer_waits(f"uid-{name}")

    def refuse(self, name: str) -> None:
        del self.assumed[name]
        self.tracker.release(f"uid-{name}")

    def delete(self, name: str) -> None:
        self.lost = True
        self.assumed.pop(name, None)
        self.waiting.remove(name)
        leave(self.tracker, f"uid-{name}")

    def lose(self, name: str) -> None:
        self.lost = True
        del self.bound[name]
        self.tracker.release(f"uid-{name}")


@given(
    st.integers(2, 4),
    st.lists(
        st.tuples(
            st.sampled_from(("create", "create", "decide", "bind", "bind", "refuse", "delete", "lose", "restart")),
            st.integers(0, 5),
        ),
        max_size=16,
    ),
)
# A member that comes while the others are bound would complete the gang in place of one that is refused.
@example(2, [("create", 0), ("decide", 0), ("decide", 0), ("bind", 0), ("refuse", 0), ("bind", 0), ("lose", 1)])
# A member that is refused is decided again, while enough others are being bound.
@example(2, [("create", 0), ("decide", 3), ("refuse", 0), ("decide", 0), ("bind", 2)])
def test_no_leader_takes_what_had_formed_for_unfinished(minimum: int, steps: list[tuple[str, int]]) -> None:
    leaders = Leaders(minimum)
    for _ in range(minimum):
        leaders.create()
    for act, number in [*steps, ("restart", 0)]:
        leaders.act(act, number)


def test_undoing_dooms_the_bound_and_backs_off() -> None:
    made = gang_tracker("b", "c")
    holds(made, "a")
    holds(made, "b", bound=False)
    made.binding_started(GANG, 0.0)
    message, to_delete = made.abort(GANG, 60.0, keep=False)
    assert message == "PodGroup ns/g could not be completed within 60 s: 1 of 2 members were bound"
    assert [each.uid for each in to_delete] == ["uid-a"] == [each.uid for each in made.to_delete()]
    assert made.retry_until("uid-b") is None
    # Members to delete no longer count, even before the watch shows their deletion.
    holds(made, "a")
    assert [each.uid for each in made.to_delete()] == ["uid-a"]
    made.release("uid-b")
    gang = made.ready(GANG, 61.0)
    assert made.ready(GANG, 60.9) is None
    assert gang is not None
    assert (gang.placed, gang.nodes) == (0, ())
    holds(made, "a", terminating=True)
    assert made.to_delete() == []


def test_a_member_whose_deletion_was_refused_stays_once_the_gang_has_formed() -> None:
    made = gang_tracker("b", "c", "d")
    holds(made, "a")
    made.binding_started(GANG, 0.0)
    made.abort(GANG, 60.0, keep=False)
    holds(made, "b")
    assert [each.uid for each in made.to_delete()] == ["uid-a"]
    holds(made, "c")
    assert made.counts("ns/g").formed
    assert made.to_delete() == []
    waits(made, "e")
    assert made.to_delete() == []


def test_a_gang_waits_longer_each_time_until_it_has_formed() -> None:
    made, now, pauses = gang_tracker("a", "b"), 0.0, []
    for _ in range(6):
        made.back_off(GANG, now)
        made.back_off(GANG, now)  # back-offs of several members at once count as one
        assert made.ready(GANG, now) is None
        while made.resumed(now) == []:
            now += 0.5
        pauses.append(now)
        assert made.ready(GANG, now) is not None
        assert made.resumed(now) == []
    assert pauses == [1.0, 3.0, 7.0, 15.0, 25.0, 35.0]
    for name in "ab":
        holds(made, name)
    waits(made, "late", GANG)
    made.back_off(GANG, 100.0)
    assert made.resumed(101.0) == [GANG]


# --- what it shows ----------------------------------------------------------------------------------------------


def test_the_members_are_counted() -> None:
    made = gang_tracker("w")
    holds(made, "assumed", bound=False)
    holds(made, "bound")
    made.hold(charge("running"), GANG, bound=True, running=True)
    made.end("uid-s", GANG, succeeded=True)
    made.end("uid-f", GANG, succeeded=False)
    assert made.counts("ns/g") == Counts(waiting=1, bound=2, running=1, succeeded=1, failed=1, formed=True)
    assert made.counts("ns/x") == Counts(waiting=0, bound=0, running=0, succeeded=0, failed=0, formed=False)


ACTS = ("wait", "gate", "leave", "assume", "bind", "end", "unend", "group", "no group", "undo")
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTS), st.sampled_from("abcd"), st.sampled_from([GANG, BY_TWO])), max_size=30
)


def leave(made: GangTracker, uid: str) -> None:
    made.no_longer_waits(uid)
    made.ungate(uid)
    made.release(uid)


def undo(made: GangTracker) -> None:
    for each in made.overdue(0.0) or made.overdue(1e6):
        made.abort(each, 0.0, keep=False)


@given(STEPS)
def test_whatever_happens_a_unit_is_complete_and_an_empty_roster_is_empty(
    steps: list[tuple[str, str, Membership]],
) -> None:
    made = GangTracker(timeout=60.0)
    for act, name, gang in steps:
        acts: dict[str, Callable[[], object]] = {
            "wait": partial(waits, made, name, gang),
            "gate": partial(made.gate, f"uid-{name}", gang),
            "leave": partial(leave, made, f"uid-{name}"),
            "assume": partial(holds, made, name, bound=False, gang=gang),
            "bind": partial(holds, made, name, gang=gang),
            "end": partial(made.end, f"uid-{name}", gang, succeeded=True),
            "unend": partial(made.remove_ended, f"uid-{name}"),
            "group": partial(made.put_group, GROUP),
            "no group": partial(made.remove_group, "ns/g"),
            "undo": partial(undo, made),
        }
        acts[act]()
        for each in (GANG, BY_TWO):
            unit = made.ready(each, 1e9)
            assert unit is None or unit.placed + len(unit.members) >= unit.minimum
            # What has formed needs its PodGroup no more.
            assert unit is None or unit.formed or unit.minimum == 2
    for name in "abcd":
        leave(made, f"uid-{name}")
        made.remove_ended(f"uid-{name}")
    made.remove_group("ns/g")
    assert not made._entries
    assert not made._of
    assert not made._open


# --- gangs of controllers -----------------------------------------------------------------------------------------


def test_a_controllers_gang_waits_for_members_only_while_they_are_created() -> None:
    made = gang_tracker(group=None)
    waits(made, "a", BY_CONTROLLER)
    assert lacks(made, 0.0) == ["LeaderWorkerSet group ns/g: waiting for members: 1 of 3"]
    assert made.completed(PATIENCE - 1) == []
    waits(made, "b", BY_CONTROLLER)
    list(made.unready(PATIENCE))
    assert made.completed(2 * PATIENCE - 1) == []
    assert made.ready(BY_CONTROLLER, 2 * PATIENCE - 1) is None
    assert made.completed(2 * PATIENCE) == [BY_CONTROLLER]
    unit = made.ready(BY_CONTROLLER, 2 * PATIENCE)
    assert unit is not None
    assert unit.needed == 2
    # Another one shows that members are created again.
    waits(made, "c", BY_CONTROLLER)
    made.no_longer_waits("uid-a")
    assert made.ready(BY_CONTROLLER, 2 * PATIENCE) is None


def test_a_controllers_member_that_was_placed_alone_is_never_part_of_an_unfinished_gang() -> None:
    made = gang_tracker(group=None)
    waits(made, "b", BY_CONTROLLER)
    made.hold(charge("a", gang=BY_CONTROLLER), BY_CONTROLLER, bound=True)
    assert [why for _, why, _ in made.judge()] == [""]
    assert made.overdue(0.0) == made.overdue(1e9) == []
    unit = made.ready(BY_CONTROLLER, 0.0)
    assert unit is not None
    assert unit.needed == 1


def test_a_controller_may_change_the_size() -> None:
    made = gang_tracker(group=None)
    larger = replace(BY_CONTROLLER, minimum=4)
    for name in "abc":
        waits(made, name, BY_CONTROLLER)
    waits(made, "d", larger)
    unit = made.ready(larger, 0.0)
    assert unit is not None
    assert unit.minimum == 4


def test_the_pods_that_come_later_are_made_again_only_after_a_change() -> None:
    made = gang_tracker(group=None)
    first = replace(BY_CONTROLLER, minimum=1000, first=1)
    waits(made, "a", first, request={NVIDIA: 1})
    before, again = (made.ready(first, 0.0) for _ in range(2))
    assert before is not None
    assert again is not None
    assert again.expected is before.expected
    waits(made, "b", first, request={NVIDIA: 1})
    after = made.ready(first, 0.0)
    assert after is not None
    assert (len(before.expected), len(after.expected)) == (999, 998)


def test_members_of_an_old_revision_do_not_wait_for_the_size_of_the_new_one() -> None:
    kind = BY_CONTROLLER.controller
    later = LaterMembers(gang=BY_CONTROLLER, count=7, pod=waiting("worker"))
    made = gang_tracker(group=Group(name="ns/g", uid="u", controller=kind, minimum=8, later=(later,)))
    old = replace(BY_CONTROLLER, minimum=4)
    waits(made, "leader", old)
    unit = made.ready(old, 0.0)
    assert unit is not None
    assert (unit.minimum, len(unit.expected)) == (1, 3)
    for name in "abc":
        waits(made, name, old)
    unit = made.ready(old, 0.0)
    assert unit is not None
    assert (unit.minimum, unit.expected) == (4, ())


def replica_group(size: int) -> Group:
    """Return what a LeaderWorkerSet `vllm` defines, whose workers come later."""
    own = Membership(group="ns/vllm", controller="LeaderWorkerSet group")
    parts = (LaterMembers(gang=own, count=size - 1),)
    return Group(name="ns/vllm", uid="u", controller=own.controller, minimum=size, later=parts)


def replica(number: int) -> Membership:
    return Membership(group=f"ns/vllm-{number}", minimum=3, controller="LeaderWorkerSet group", first=1)


def expects(made: GangTracker, gang: Membership) -> list[str]:
    unit = made.ready(gang, 0.0)
    return [] if unit is None else [pod.name for pod in unit.expected]


def test_equal_gangs_of_an_object_are_made_when_a_member_is_there() -> None:
    made = GangTracker(timeout=60.0)
    assert made.put_replicas(replica_group(3), 10**9) == []
    waits(made, "a", replica(999_999), request={NVIDIA: 1})
    assert expects(made, replica(999_999)) == ["vllm-999999:0", "vllm-999999:1"]
    made.no_longer_waits("uid-a")
    assert made.size(replica(999_999)) == (0, 0), "it is forgotten with its last member"
    waits(made, "a", replica(999_999), request={NVIDIA: 1})
    assert expects(made, replica(999_999)) == ["vllm-999999:0", "vllm-999999:1"]


def test_equal_gangs_with_members_follow_their_object() -> None:
    made = GangTracker(timeout=60.0)
    waits(made, "a", replica(0), request={NVIDIA: 1})
    waits(made, "b", replica(1), request={NVIDIA: 1})
    waits(made, "c", replace(replica(1), group="ns/other-1"), request={NVIDIA: 1})
    assert made.put_replicas(replica_group(3), 1) == [replica(0), replica(1)]
    units = [made.ready(replica(number), 0.0) for number in range(2)]
    confirmed = [[pod.preempts for pod in unit.expected] for unit in units if unit is not None]
    assert confirmed == [[True, True], [False, False]], "an object confirms the first alone"
    before = made.ready(replica(0), 0.0)
    made.put_replicas(replica_group(3), 2)
    assert made.ready(replica(0), 0.0) == before
    made.put_replicas(replica_group(2), 2)
    assert expects(made, replica(0)) == ["vllm-0:0"]
    assert made.remove_replicas("LeaderWorkerSet group", "ns/vllm") == [replica(0), replica(1)]
    assert expects(made, replica(0)) == ["vllm-0:0", "vllm-0:1"], "as the pod says"
    assert made.remove_replicas("LeaderWorkerSet group", "ns/vllm") == []
