"""The newest revision of the members of a gang, whose minimum counts if users have edited it."""

from collections.abc import Iterable

from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.revisions import Revision, revision_of


def age(pod: PendingPod) -> tuple[str, int]:
    """Return the key that orders waiting pods, the oldest first."""
    return pod.created, pod.arrived


def revision(member: PendingPod | Charge) -> Revision:
    """Return the revision of a member."""
    identity = member.identity if isinstance(member, Charge) else member.request.identity
    return revision_of(member.owner, identity.labels)


def newest_revisions(waiting: Iterable[PendingPod], held: Iterable[Charge]) -> set[Revision]:
    """Return the newest revision of each application that has members.

    It is the revision of the waiting member that was created last. If none waits, it is not known which is the newest,
    and all are returned.
    """
    newest = {(of := revision(pod)).application: of for pod in sorted(waiting, key=age)}
    return {*newest.values(), *(of for of in map(revision, held) if of.application not in newest)}
