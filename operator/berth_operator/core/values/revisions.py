"""Which revision of which application a pod is of, as its controllers write it on the pod."""

from typing import Final, NamedTuple

from berth_api.values.selectors import Labels
from berth_operator.core.values.owner import Owner

TEMPLATE_HASHES: Final = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}
"""Labels whose value ends the name of a ReplicaSet, after the name of its owner -> the owner's kind."""
REVISIONS: Final = frozenset({*TEMPLATE_HASHES, "controller-revision-hash"})
"""Labels that differ between the revisions of an application."""


class Revision(NamedTuple):
    """One revision of the pods of an application."""

    application: str
    """Kind and name of the controller, without what differs between revisions; of a ReplicaSet, its Deployment's name.
    Empty without a controller."""
    name: str
    """The value of the label that differs between revisions, or else the UID of the controller."""


def application_of(owner: Owner, labels: Labels) -> tuple[str, str]:
    """Return kind and name of the Deployment or Rollout of a ReplicaSet; empty if unknown."""
    if owner.kind == "ReplicaSet":
        for name, value in labels:
            if name in TEMPLATE_HASHES and value and owner.name.endswith(f"-{value}"):
                return TEMPLATE_HASHES[name], owner.name.removesuffix(f"-{value}")
    return "", ""


def revision_of(owner: Owner, labels: Labels) -> Revision:
    """Return the revision of a pod, by its controller and its labels.

    A controller that was deleted and created again, such as a Job, is another revision of the same application.
    """
    hashes = [value for name, value in labels if name in REVISIONS and value]
    return Revision(
        f"{owner.kind}/{application_of(owner, labels)[1] or owner.name}", hashes[0] if hashes else owner.uid
    )
