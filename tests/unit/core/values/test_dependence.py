"""Pods whose end depends on a waiting pod, so that a reservation would wait for them in vain."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from berth_operator.core.values.affinity import Identity
from berth_operator.core.values.dependence import depends_on
from berth_operator.core.values.owner import Owner
from berth_operator.core.values.request import Membership
from tests.objects.builders import asks, charge, waiting

OLD, NEW = {"app": "llm", "pod-template-hash": "5f"}, {"app": "llm", "pod-template-hash": "6c"}


def of_set(name: str, **labels: str) -> dict[str, Any]:
    return {"labels": labels, "owner": Owner(kind="ReplicaSet", name=name, uid=f"uid-{name}")}


def of_rollout(revision: str) -> dict[str, Any]:
    return {"labels": {"rollouts-pod-template-hash": revision, "app": "llm"}}


def set_of(revision: str, number: int) -> dict[str, str]:
    return {"app": "llm", "controller-revision-hash": revision, "statefulset.kubernetes.io/pod-name": f"llm-{number}"}


OF_A, OF_B = {**OLD, "tier": "a"}, {**NEW, "tier": "b"}
PLAIN = {"labels": {"app": "llm"}}
JOB = Owner(kind="Job", name="train", uid="uid-train")
GANG = Membership(group="ns/g")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param({"labels": OLD}, {"labels": NEW}, True, id="a rolling update"),
        pytest.param({"labels": OLD}, {"labels": OLD}, True, id="replicas"),
        pytest.param({"labels": OLD, "namespace": "other"}, {"labels": NEW}, False, id="of another namespace"),
        pytest.param({"labels": {**OLD, "app": "x"}}, {"labels": NEW}, False, id="another application"),
        pytest.param(PLAIN, PLAIN, False, id="equal labels without a revision"),
        pytest.param({"labels": {}}, {"labels": {}}, False, id="no labels"),
        pytest.param(
            of_set("llm-5f", **{**OLD, "version": "1"}),
            of_set("llm-6c", **{**NEW, "version": "2"}),
            True,
            id="a rolling update that changes other labels",
        ),
        pytest.param(of_set("llm-a-5f", **OF_A), of_set("llm-b-6c", **OF_B), False, id="two Deployments"),
        pytest.param(of_rollout("5f"), of_rollout("6c"), True, id="a Rollout"),
        pytest.param({"labels": set_of("1", 0)}, {"labels": set_of("2", 1)}, True, id="a StatefulSet"),
        pytest.param({"owner": JOB}, {"owner": JOB}, True, id="one Job"),
        pytest.param({"owner": JOB, "namespace": "other"}, {"owner": JOB}, False, id="an owner of another namespace"),
        pytest.param({"gang": GANG}, {"gang": GANG}, True, id="one gang"),
        pytest.param({"workload": "w/main"}, {"workload": "w/main"}, True, id="one workload of Kueue"),
    ],
)
def test_a_pod_whose_end_depends_on_the_waiting_one(
    old: Mapping[str, Any], new: Mapping[str, Any], *, expected: bool
) -> None:
    fields, others = dict(old), dict(new)
    namespace = fields.pop("namespace", "ns")
    identity = Identity(namespace=namespace, labels=tuple(sorted(fields.pop("labels", {}).items())))
    placed = replace(charge("old", identity=identity, **fields), pod=f"{namespace}/old")
    new_identity = Identity(namespace="ns", labels=tuple(sorted(others.pop("labels", {}).items())))
    assert depends_on(placed, waiting("new", replace(asks({}), identity=new_identity), **others)) is expected
