"""Which placed pods may be moved, and who allowed it."""

import pytest

from berth_api import names
from berth_client import times
from berth_operator.state.cache.tenants import REFUSES, Tenants
from tests.objects.builders import Raw, owner, pod

OWNED = {"ownerReferences": [owner("set")]}
MIRROR = {"ownerReferences": [{"kind": "Node", "name": "n", "uid": "1", "controller": True}]}


def placed(name: str = "p", movable: str | None = None, **metadata: object) -> Raw:
    annotations = {} if movable is None else {names.MOVABLE: movable}
    return pod(name, on="n", annotations=annotations, metadata={**OWNED, **metadata})


@pytest.mark.parametrize(
    ("own", "namespace", "why"),
    [
        pytest.param(None, None, REFUSES, id="neither"),
        pytest.param("true", None, "", id="the pod"),
        pytest.param(None, "true", "", id="the namespace"),
        pytest.param("true", "false", "", id="the pod before the namespace"),
        pytest.param("false", "true", 'its annotation berth.dev/movable is "false"', id="the pod refuses"),
        pytest.param(None, "yes", REFUSES, id="another word"),
        pytest.param("True", "true", 'its annotation berth.dev/movable is "True"', id="another word on the pod"),
    ],
)
def test_who_allows_it(own: str | None, namespace: str | None, why: str) -> None:
    tenants = Tenants()
    tenants.put(placed(movable=own))
    tenants.put_namespace("ns", {} if namespace is None else {names.MOVABLE: namespace})
    assert tenants["uid-p"].refuses == why


def test_what_a_namespace_no_longer_allows() -> None:
    tenants = Tenants()
    tenants.put(placed())
    tenants.put_namespace("ns", {names.MOVABLE: "true"})
    tenants.put_namespace("ns", {})
    assert tenants["uid-p"].refuses == REFUSES


def test_a_young_pod_stays() -> None:
    tenants = Tenants(min_age=600)
    tenants.put(placed(movable="true", creationTimestamp=times.time(times.now())))
    tenants.put(placed("old", movable="true"))
    assert tenants["uid-p"].refuses.endswith(" s old, and may be moved after 600 s")
    assert tenants["uid-old"].refuses == ""


@pytest.mark.parametrize("metadata", [{}, MIRROR], ids=["none", "kubelet"])
def test_only_pods_with_a_controller_are_kept(metadata: Raw) -> None:
    tenants = Tenants()
    tenants.put(pod("p", on="n", annotations={names.MOVABLE: "true"}, metadata=metadata))
    assert "uid-p" not in tenants


def test_replicas_are_counted_placed_or_waiting() -> None:
    tenants = Tenants()
    controller = str(owner("set")["uid"])
    for raw in (placed("a"), pod("b", metadata=OWNED), placed("a", movable="true")):
        tenants.put(raw)
    assert (tenants.replicas(controller), list(tenants), len(tenants)) == (2, ["uid-a"], 1)
    assert tenants.controller("uid-b") == controller
    tenants.remove("uid-b")
    tenants.remove("uid-b")
    tenants.remove("uid-a")
    assert (tenants.replicas(controller), list(tenants), tenants.controller("uid-b")) == (0, [], "")
