"""Which answers show an earlier state of the API server."""

from typing import Any

import pytest

from berth_client.versions import Versions

PODS = "/api/v1/pods"
EVENTS = "/apis/events.k8s.io/v1/namespaces/{}/events"


def listed(version: str) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version}, "items": []}


def obj(version: str) -> dict[str, Any]:
    return {"metadata": {"name": "x", "resourceVersion": version}}


Answer = tuple[str, str, dict[str, str], dict[str, Any]]


def earlier(*answers: Answer) -> list[str]:
    """Return why these answers, each requested after the one before, show an earlier state."""
    versions, reasons = Versions(), list[str]()
    versions.on_earlier = reasons.append
    for method, path, params, answer in answers:
        if requested := versions.request(method, path, params):
            versions.compare(requested, answer)
    return reasons


@pytest.mark.parametrize(
    "later",
    [("GET", PODS, {"limit": "250"}, listed("89")), ("POST", "/api/v1/namespaces/ns/pods", {}, obj("89"))],
    ids=["list", "create"],
)
def test_lower_versions_of_one_resource_are_of_an_earlier_state(later: Answer) -> None:
    assert earlier(("GET", PODS, {}, listed("90")), later) == [f"{PODS} has the version 89, it had 90"]


def test_objects_of_all_namespaces_are_one_resource() -> None:
    one, other = EVENTS.format("a"), EVENTS.format("b")
    assert earlier(("POST", one, {}, obj("90")), ("POST", other, {}, obj("9"))) != []


@pytest.mark.parametrize(
    "later",
    [
        ("GET", PODS, {"resourceVersion": "0"}, listed("5")),
        ("GET", PODS, {"continue": "t"}, listed("5")),
        ("GET", "/api/v1/namespaces/ns/pods/x", {}, obj("5")),
        ("PATCH", "/api/v1/namespaces/ns/pods/x", {}, obj("5")),
        ("POST", "/api/v1/namespaces/ns/pods", {"dryRun": "All"}, obj("5")),
        ("POST", "/api/v1/namespaces/ns/pods/x/binding", {}, {"kind": "Status", "metadata": {}}),
        ("GET", "/api/v1/nodes", {}, listed("5")),
        ("GET", PODS, {}, listed("5-a")),
        ("GET", PODS, {}, listed("")),
        ("GET", PODS, {}, listed("90")),
    ],
)
def test_other_answers_do_not_count(later: Answer) -> None:
    assert earlier(("GET", PODS, {}, listed("90")), later) == []


def test_answers_that_overtake_each_other_are_of_one_state() -> None:
    versions, reasons = Versions(), list[str]()
    versions.on_earlier = reasons.append
    first, second = (versions.request("POST", EVENTS.format("a"), {}) for _ in range(2))
    assert first is not None
    assert second is not None
    versions.compare(second, obj("8"))
    versions.compare(first, obj("7"))
    assert reasons == []


def test_forgotten_versions_do_not_count() -> None:
    versions, reasons = Versions(), list[str]()
    versions.on_earlier = reasons.append
    for version in ("90", "5"):
        requested = versions.request("GET", PODS, {})
        assert requested is not None
        versions.compare(requested, listed(version))
        versions.forget()
    assert reasons == []
