"""The revision of a pod, as Deployments, StatefulSets and Jobs write it."""

import pytest

from berth_operator.core.values.owner import NO_OWNER, Owner
from berth_operator.core.values.revisions import Revision, revision_of


@pytest.mark.parametrize(
    ("owner", "labels", "expected"),
    [
        pytest.param(
            Owner(kind="ReplicaSet", name="web-7d", uid="u"),
            (("app", "web"), ("pod-template-hash", "7d")),
            Revision("ReplicaSet/web", "7d"),
            id="Deployment",
        ),
        pytest.param(
            Owner(kind="ReplicaSet", name="web-7d", uid="u"),
            (("rollouts-pod-template-hash", "7d"),),
            Revision("ReplicaSet/web", "7d"),
            id="Rollout",
        ),
        pytest.param(
            Owner(kind="StatefulSet", name="db", uid="u"),
            (("controller-revision-hash", "db-5f"),),
            Revision("StatefulSet/db", "db-5f"),
            id="StatefulSet",
        ),
        pytest.param(Owner(kind="Job", name="train", uid="u"), (), Revision("Job/train", "u"), id="Job"),
        pytest.param(NO_OWNER, (), Revision("/", ""), id="no controller"),
    ],
)
def test_the_revision_of_a_pod(owner: Owner, labels: tuple[tuple[str, str], ...], expected: Revision) -> None:
    assert revision_of(owner, labels) == expected
