"""Conditions on labels and nodes as the API server sends them."""

from typing import Any

import pytest

from berth_operator.core.values.request import NodeTerm
from berth_operator.state.objects import terms
from tests.objects.builders import label

Raw = dict[str, Any]


def affinity(*terms: Raw) -> Raw:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def condition(key: str, operator: str, *values: str) -> Raw:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({}, id="no affinity"),
        pytest.param({"nodeAffinity": None}, id="null"),
        pytest.param({"nodeAffinity": {}}, id="nothing required"),
        pytest.param({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [1]}}, id="of pods"),
    ],
)
def test_a_pod_that_requires_nothing_of_nodes(raw: Raw) -> None:
    assert terms.required_nodes(raw) is None


TERM_IS_READ = {
    "empty": ({}, NodeTerm()),
    "null": ({"matchExpressions": None, "matchFields": None}, NodeTerm()),
    "labels": (
        {"matchExpressions": [condition("zone", "In", "y", "x"), condition("disk", "Exists")]},
        NodeTerm(labels=(label("zone", "In", "x", "y"), label("disk", "Exists"))),
    ),
    "name": (
        {"matchFields": [condition("metadata.name", "In", "node")]},
        NodeTerm(names=(label("metadata.name", "In", "node"),)),
    ),
    "a bound": ({"matchExpressions": [condition("cores", "Gt", "8")]}, NodeTerm(labels=(label("cores", "Gt", "8"),))),
    "a bound that is no number makes the whole term match nothing": (
        {"matchExpressions": [condition("cores", "Lt", "many"), condition("zone", "Exists")]},
        NodeTerm(),
    ),
    "but such a term still names nodes": (
        {
            "matchExpressions": [condition("cores", "Lt", "many")],
            "matchFields": [condition("metadata.name", "In", "node")],
        },
        NodeTerm(labels=(terms.NEVER,), names=(label("metadata.name", "In", "node"),)),
    ),
}


@pytest.mark.parametrize(("raw", "expected"), TERM_IS_READ.values(), ids=TERM_IS_READ)
def test_a_term_is_read(raw: Raw, expected: NodeTerm) -> None:
    assert terms.required_nodes(affinity(raw)) == (expected,)


def test_a_node_selector_is_read_in_any_order() -> None:
    assert terms.node_selector({"b": "", "a": "x"}) == (label("a", "In", "x"), label("b", "In", ""))


def test_the_order_of_values_makes_no_class() -> None:
    one, other = (affinity({"matchExpressions": [condition("zone", "In", *each)]}) for each in ("xy", "yx"))
    assert terms.required_nodes(one) == terms.required_nodes(other)


def test_preferred_terms_come_with_their_weights() -> None:
    preferred = [{"weight": 5, "preference": {"matchExpressions": [condition("zone", "Exists")]}}]
    raw = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    assert terms.preferred_nodes(raw) == ((NodeTerm(labels=(label("zone", "Exists"),)), 5),)
    assert terms.preferred_nodes({}) == terms.preferred_nodes({"nodeAffinity": None}) == ()
