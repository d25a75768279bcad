"""Warnings about labels and annotations of Namespaces, by the shipped policy on the real API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from berth_api import metadata
from devcluster import Arena, waiting
from devcluster.control_plane.api import Manifest
from tests.integration.policies.conftest import ACTIVE_SECONDS
from tests.programs import policies

DRY = {"dryRun": "All"}
ROUTING = "allowed are own, words, devices, disabled"


@pytest.fixture(scope="module", autouse=True)
def in_force(arena: Arena) -> Iterator[None]:
    """Enforce the policy on the arena's Namespace."""
    with policies.enforced("namespaces.yaml", arena):
        waiting.until(lambda: warned(arena, berth_movable="x"), deadline=ACTIVE_SECONDS, what="the policy")
        yield


def update(arena: Arena, labels: dict[str, str], annotations: dict[str, str]) -> list[str]:
    """Return the warnings when the arena's Namespace gets these labels and annotations, in a dry run."""
    api, path = arena.cluster.api, f"/api/v1/namespaces/{arena.namespace}"
    body: Manifest = api.get(path)
    written: Any = body["metadata"]
    written["labels"] = {**written.get("labels", {}), **labels}
    written["annotations"] = {**written.get("annotations", {}), **annotations}
    answers = api.warnings("PUT", path, body=body, query=DRY)
    return [answer.partition(" with binding ")[2].partition(": ")[2] for answer in answers]


def warned(arena: Arena, **annotations: str) -> list[str]:
    """Return the warnings about annotations, whose names are written with underscores."""
    return update(arena, {}, {name.replace("berth_", "berth.dev/"): value for name, value in annotations.items()})


@pytest.mark.parametrize(
    ("labels", "annotations", "warning"),
    [
        *(
            pytest.param(
                {"berth.dev/routing": value},
                {},
                f"label berth.dev/routing={value} has no effect: {ROUTING}",
                id=f"routing={value}",
            )
            for value in ("device", "true", "Devices")
        ),
        pytest.param(
            {"berth.dev/unlimited-shares": "denied", "berth.dev/isolation": "requird"},
            {},
            "label berth.dev/isolation=requird has no effect: allowed are mps, hami-core, required, none; "
            "label berth.dev/unlimited-shares=denied has no effect: allowed are allow, warn, deny",
            id="two values",
        ),
        pytest.param(
            {},
            {"berth.dev/controller-gangs": "no"},
            "annotation berth.dev/controller-gangs=no has no effect: allowed are true, false",
            id="an annotation's value",
        ),
        pytest.param(
            {},
            {"berth.dev/routing": "devices"},
            "annotation berth.dev/routing has no effect: did you mean the label of this name?",
            id="a label as an annotation",
        ),
        pytest.param(
            {"berth.dev/movable": "true"},
            {},
            "label berth.dev/movable has no effect: did you mean the annotation of this name?",
            id="an annotation as a label",
        ),
        pytest.param(
            {"berth.dev/route": "devices"},
            {"berth.dev/epoch": "1", "last-applied": "'berth.dev/epoch'"},
            "label berth.dev/route has no effect: Namespaces have the label berth.dev/routing, the label "
            "berth.dev/isolation, the label berth.dev/unlimited-shares, the annotation berth.dev/controller-gangs, "
            "the annotation berth.dev/movable; annotation berth.dev/epoch has no effect: Namespaces have ",
            id="names that Namespaces do not have",
        ),
    ],
)
def test_what_has_no_effect_is_a_warning(
    arena: Arena, labels: dict[str, str], annotations: dict[str, str], warning: str
) -> None:
    [answer] = update(arena, labels, annotations)
    assert answer.startswith(warning)


@pytest.mark.parametrize("index", [0, -1])
def test_no_allowed_value_is_a_warning(arena: Arena, index: int) -> None:
    labels, annotations = (
        {name: key.values[index] for name, key in metadata.of(metadata.NAMESPACE, place).items()}
        for place in metadata.PLACES
    )
    applied = {"kubectl.kubernetes.io/last-applied-configuration": '{"berth.dev/route":"x"}'}
    others = {"team.berth.dev/color": "red", "example.com/berth.dev": "x"}
    assert update(arena, labels | others, annotations | applied | others) == []


def test_other_changes_are_not_warned_about(arena: Arena) -> None:
    api, path = arena.cluster.api, f"/api/v1/namespaces/{arena.namespace}"
    api.merge(path, {"metadata": {"labels": {"berth.dev/routing": "device"}}})
    assert api.warnings("PUT", path, body=api.get(path), query=DRY) == []
    api.merge(path, {"metadata": {"labels": {"berth.dev/routing": None}}})
