"""Which refusals of writes are for good, how they are grouped, and when they end."""

from typing import Any

import pytest

from berth_client.errors import AUTHORIZATION, ApiError
from berth_client.refusals import (
    CERTAIN,
    KEPT_SECONDS,
    MAX_GROUPS,
    MAX_NAMESPACES,
    MAX_OBJECTS,
    Pauses,
    RefusedWrites,
    Write,
    is_for_good,
)

POLICY = (
    "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'no-pods' with binding 'no-pods' denied request: "
    "failed expression"
)
WEBHOOK = 'admission webhook "check.example.com" denied the request: no'
NO_RIGHT = (
    'nodes "a" is forbidden: User "system:serviceaccount:berth-system:berth-operator" cannot patch resource "nodes" '
    'in API group "" at the cluster scope'
)
STATUS = "/api/v1/namespaces/team/pods/p/status"


def error(status: int, message: str = "no") -> ApiError:
    return ApiError(status, "Refused", message)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def table(clock: Clock | None = None) -> RefusedWrites:
    return RefusedWrites(clock or Clock())


@pytest.mark.parametrize(
    ("answer", "refuser"),
    [
        (error(422, POLICY), "validatingadmissionpolicy/no-pods"),
        (error(403, POLICY.replace("Validating", "Mutating")), "mutatingadmissionpolicy/no-pods"),
        (error(404, WEBHOOK), "webhook/check.example.com"),
        (error(403, NO_RIGHT), AUTHORIZATION),
        (error(403, "cannot set blockOwnerDeletion if an ownerReference refers to a resource"), ""),
        (error(400, 'admission webhook "Not a\nname" denied the request'), ""),
    ],
)
def test_the_refuser_is_what_the_server_names(answer: ApiError, refuser: str) -> None:
    assert answer.refuser == refuser
    assert is_for_good(answer)
    assert not answer.is_missing


@pytest.mark.parametrize(
    "answer",
    [
        error(409),
        error(409, WEBHOOK),
        error(429, "too many"),
        error(500, WEBHOOK.replace("denied", "failed")),
        error(503),
        error(401),
        error(404, 'pods "p" not found'),
        error(403, 'pods "p" is forbidden: exceeded quota: objects, requested: count/gpupods.berth.dev=1'),
        error(403, "unable to create new content in namespace team because it is being terminated"),
        error(422, POLICY.replace("no-pods", "berth-fence-epoch")),
    ],
)
def test_what_passes_without_a_person_is_left_out(answer: ApiError) -> None:
    writes = table()
    for _ in range(2 * CERTAIN):
        writes.answered("PATCH", STATUS, answer)
    assert not writes.shown


@pytest.mark.parametrize(
    ("method", "path", "verb", "resource", "name", "scope"),
    [
        ("POST", "/api/v1/namespaces/team/pods/p/binding", "create", "pods/binding", "team/p", "namespaced"),
        ("PATCH", "/api/v1/nodes/a/status", "patch", "nodes/status", "a", "cluster"),
        (
            "POST",
            "/apis/events.k8s.io/v1/namespaces/team/events",
            "create",
            "events.events.k8s.io",
            "team",
            "namespaced",
        ),
        ("PATCH", "/apis/berth.dev/v1alpha1/devices/a", "patch", "devices.berth.dev", "a", "own"),
        ("DELETE", "/apis/berth.dev/v1alpha1/namespaces/t/gpupods/p", "delete", "gpupods.berth.dev", "t/p", "own"),
        (
            "PATCH",
            "/apis/coordination.k8s.io/v1/namespaces/berth-agents/leases/a",
            "patch",
            "leases.coordination.k8s.io",
            "berth-agents/a",
            "own",
        ),
        ("PUT", "/api/v1/namespaces/team", "update", "namespaces", "team", "cluster"),
    ],
)
def test_a_refused_write_says_what_it_is_about(  # noqa: PLR0917 - one row each
    method: str, path: str, verb: str, resource: str, name: str, scope: str
) -> None:
    writes = table()
    writes.answered(method, path, error(403, NO_RIGHT))
    [refused] = writes.current()
    assert refused.write == Write(verb, resource, 403, AUTHORIZATION)
    assert (refused.object, refused.scope, refused.message) == (name, scope, NO_RIGHT)


def test_refusals_are_grouped_by_all_but_the_message() -> None:
    clock = Clock()
    writes = table(clock)
    for number in range(3):
        clock.now += 1
        path = f"/api/v1/namespaces/team-{number}/pods/p/status"
        writes.answered("PATCH", path, error(422, f"{POLICY} at {clock.now}"))
    writes.answered("PATCH", STATUS, error(403, WEBHOOK))
    by_policy, by_webhook = writes.current()
    assert by_policy.namespaces == ("team-0", "team-1", "team-2")
    assert (by_policy.since, by_policy.last, by_policy.message) == (1001.0, 1003.0, f"{POLICY} at 1001.0")
    assert by_webhook.namespaces == ("team",)


def test_a_refusal_without_a_refuser_is_certain_once_the_same_object_was_refused_again_and_again() -> None:
    writes = table()
    for number in range(2 * CERTAIN):
        # Such as pods that were bound by another scheduler meanwhile.
        writes.answered("PATCH", f"/api/v1/namespaces/team/pods/{number}/status", error(422))
    assert not writes.current()
    for _ in range(CERTAIN - 1):
        writes.answered("PATCH", "/api/v1/namespaces/team/pods/0/status", error(422))
    assert len(writes.current()) == 1


def test_a_refusal_ends_when_the_write_succeeds_or_after_a_time() -> None:
    clock = Clock()
    writes = table(clock)
    writes.answered("PATCH", STATUS, error(403, WEBHOOK))
    writes.answered("PATCH", "/api/v1/namespaces/other/pods/p/status", error(403, WEBHOOK))
    writes.answered("DELETE", STATUS, None)
    writes.answered("PATCH", STATUS, None)
    writes.answered("PATCH", "/api/v1/namespaces/other/pods/p/status", error(403, WEBHOOK))
    [refused] = writes.current()
    assert (refused.namespaces, refused.object) == (("other",), "other/p"), "no object that is well now"
    clock.now += KEPT_SECONDS - 1
    assert writes.current()
    clock.now += 2
    assert not writes.current()
    writes.answered("PATCH", STATUS, error(403, POLICY))
    assert [refused.write.refuser for refused in writes.shown] == ["validatingadmissionpolicy/no-pods"]


def test_the_table_is_bounded_and_keeps_the_latest() -> None:
    writes = table()
    for number in range(MAX_GROUPS + 5):
        webhook = error(403, WEBHOOK.replace("check", f"check-{number}"))
        writes.answered("PATCH", STATUS, webhook)
    refusers = [refused.write.refuser for refused in writes.current()]
    assert len(refusers) == MAX_GROUPS
    assert refusers[-1] == f"webhook/check-{MAX_GROUPS + 4}.example.com"
    for number in range(MAX_NAMESPACES + 5):
        # Many pods of one namespace do not displace other namespaces.
        for pod in range(MAX_OBJECTS + 5):
            writes.answered("PATCH", f"/api/v1/namespaces/{number:02}/pods/{pod}/status", error(403, POLICY))
    assert writes.shown[-1].namespaces == tuple(f"{number:02}" for number in range(5, MAX_NAMESPACES + 5))
    sizes: Any = [len(objects) for objects in list(writes._groups.values())[-1].namespaces.values()]
    assert set(sizes) == {MAX_OBJECTS}


def test_a_write_that_is_refused_for_good_is_tried_less_and_less_often() -> None:
    clock = Clock()
    pauses: Pauses[str] = Pauses(clock)
    tried = []
    while clock.now < 1200:
        if pauses.refusal("a") is None:
            tried.append(clock.now - 1000)
            pauses.failed("a", error(403, WEBHOOK))
        clock.now += 1
    assert tried == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert pauses.refusal("b") is None
    pauses.failed("a", error(503))
    assert pauses.refusal("a") is None, "a busy server is another matter"
    pauses.failed("a", error(403, WEBHOOK))
    pauses.end("a")
    assert pauses.refusal("a") is None
