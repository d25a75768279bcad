"""Which requests of devices a ResourceQuota or LimitRange limits, as the documents say."""

import itertools
from collections.abc import Iterator
from typing import Any, Final

import pytest

from berth_api import names, words
from berth_api.request import RequestError
from berth_api.words import TABLE, Role, WordPlace, cards
from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.policies.conftest import ACTIVE_SECONDS
from tests.programs import policies

DEADLINE: Final = 30.0
COUNTED: Final = ("nvidia.com/gpu", "koordinator.sh/gpu")
NOT_COUNTED: Final = "kubernetes.io/gpu"
VALUES: Final = {
    Role.CARDS: ("1", "2"),
    Role.MEMORY: ("0", "40"),
    Role.PERCENT: ("0", "50"),
    Role.CORES: ("50",),
    Role.HUNDREDTHS: ("50", "200"),
}
SYSTEMS: Final = [
    each for each in TABLE.systems if any(word.role in VALUES and word.place == "resource" for word in each.words)
]
GPU, CORES = "nvidia.com/gpu", "nvidia.com/gpucores"


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena) -> Iterator[None]:
    applied = arena.apply(policies.policies("words.yaml", arena))
    quota(arena, GPU, "1")
    waiting.until(
        lambda: "ResourceQuota cards counts nvidia.com/gpu" in refusal(arena, {GPU: "1", CORES: "10"}),
        deadline=ACTIVE_SECONDS,
        what="the policies to be in force",
    )
    yield
    for document in applied:
        arena.cluster.api.delete(arena.cluster.api.path_of(document))


def quota(arena: Arena, *resources: str) -> None:
    """Apply a ResourceQuota for resources, each followed by its amount, and wait until it counts."""
    hard = {f"requests.{name}": amount for name, amount in zip(resources[::2], resources[1::2], strict=True)}
    arena.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cards"}, "spec": {"hard": hard}})

    def is_counted() -> bool:
        return bool(arena.get("resourcequotas", "cards").get("status", {}).get("hard") == hard)

    waiting.until(is_counted, deadline=DEADLINE, what="the quota")


def refusal(arena: Arena, limits: dict[str, str], **fields: Any) -> str:
    return arena.refusal(pod(arena, limits, **fields))


def pod(arena: Arena, limits: dict[str, str], **fields: Any) -> Manifest:
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    return arena.pod("pod", containers=[container], **{"scheduler_name": arena.scheduler_name, **fields})


def test_a_word_takes_no_card_from_the_count(arena: Arena) -> None:
    quota(arena, GPU, "1")
    message = refusal(arena, {GPU: "2", CORES: "100"})
    assert "ResourceQuota cards counts nvidia.com/gpu, but Berth reads it as kubernetes.io/gpu.shared" in message
    assert "write nvidia.com/gpu alone for whole cards, or let namespaceLimits" in message
    assert "exceeded quota: cards" in refusal(arena, {GPU: "2"})
    # A name that the user writes for admission changes nothing.
    forged = arena.pod(annotations={names.ORIGINAL_RESOURCES: "{}"})["metadata"]["annotations"]
    assert "counts nvidia.com/gpu" in refusal(arena, {GPU: "2", CORES: "100"}, annotations=forged)
    quota(arena, COUNTED[1], "1")
    waiting.until(lambda: refusal(arena, {GPU: "2", CORES: "100"}) == "", deadline=DEADLINE, what="another quota")


def test_a_limit_range_counts_as_a_quota_does(arena: Arena) -> None:
    quota(arena, COUNTED[1], "1")
    limits = {GPU: "2", "nvidia.com/gpumem": "40"}
    spec = {"limits": [{"type": "Pod", "max": {"nvidia.com/gpumem": "40"}}]}
    arena.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "most"}, "spec": spec})
    try:
        waiting.until(lambda: refusal(arena, limits), deadline=DEADLINE, what="the LimitRange")
        assert "LimitRange most counts nvidia.com/gpumem once, but the pod gets more" in refusal(arena, limits)
        assert refusal(arena, limits | {GPU: "1"}) == ""
    finally:
        arena.delete("limitranges", "most")


def read(limits: dict[str, str]) -> dict[Role, float]:
    """Return how much of each role Berth reads, in the unit of memory 1; nothing if the pod is invalid."""
    spec = {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]}
    try:
        [ask] = words.cards.asks(spec, {}, {}, cards.DEFAULT_UNITS)
    except (RequestError, ValueError):
        return {}
    each, whole = ask.each, float("inf") if ask.each.percent else 0
    return {
        Role.CARDS: ask.cards,
        Role.MEMORY: each.memory * ask.cards if each.memory else whole,
        Role.PERCENT: 0 if each.memory else each.percent * ask.cards,
        Role.CORES: each.cores * ask.cards,
        Role.HUNDREDTHS: each.cores * ask.cards,
    }


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda each: each.words[0].name)
def test_no_word_is_read_as_more_than_a_quota_counts(arena: Arena, system: words.System) -> None:
    """All combinations of the words of a system next to each other, under a quota for all names."""
    by_name = {each.name: each for each in system.words if each.role in VALUES and each.place == WordPlace.RESOURCE}
    quota(arena, *itertools.chain(*((name, "999") for name in by_name)))
    choices = [(None, *VALUES[each.role]) for each in by_name.values()]
    for amounts in itertools.product(*choices):
        limits = {name: amount for name, amount in zip(by_name, amounts, strict=True) if amount is not None}
        if not limits or (message := refusal(arena, limits)):
            assert not limits or "ResourceQuota cards counts" in message
            continue
        [container] = arena.admitted(pod(arena, limits))["spec"]["containers"]
        counted = container["resources"]["requests"]
        for name, amount in limits.items() if (taken := read(counted)) else ():
            word = by_name[name]
            assert taken[word.role] <= int(counted.get(name, 0)) * word.unit, (limits, counted, amount)


def test_a_resource_quota_limits_extended_resources_and_none_of_kubernetes(arena: Arena) -> None:
    hard = {f"requests.{name}": "1" for name in (*COUNTED, NOT_COUNTED)}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cards"}, "spec": {"hard": hard}}
    arena.delete("resourcequotas", "cards")
    arena.apply(quota)
    used = waiting.until(
        lambda: arena.get("resourcequotas", "cards").get("status", {}).get("used"), deadline=DEADLINE, what="the quota"
    )
    assert used == {f"requests.{name}": "0" for name in COUNTED}
    for name in COUNTED:
        arena.admitted(pod(arena, {name: "1"}))
        with pytest.raises(ApiError, match="exceeded quota: cards"):
            arena.admitted(pod(arena, {name: "2"}))
    arena.admitted(pod(arena, {NOT_COUNTED: "2"}))
