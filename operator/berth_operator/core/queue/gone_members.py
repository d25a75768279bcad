"""Members of gangs that have succeeded and are gone, so that the last members that run can be replaced.

A succeeded pod counts for its gang's minimum as long as it is listed. If its node goes, Kubernetes deletes the pod, and
its controller need not create it again. Only members of Jobs are remembered, because a Job never runs again what has
succeeded. Other controllers create the pod again, and the gang waits for it.

The members count in one *generation* of the gang. It ends when a member comes whose controller had no member of the
gang: somebody has started the gang again. Controllers are known by the ends of their UIDs (`bound_with.id_of`).
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from berth_api.objects.leader_lease import MAX_CONTROLLERS, MAX_SUCCEEDED_GANGS, SucceededMembers
from berth_operator.core.values.bound_with import id_of
from berth_operator.core.values.owner import Owner

MAX_GANGS: Final = 1024
"""Gangs without members that are remembered. The gang that was left first is forgotten first."""
MAX_KNOWN: Final = 1024
"""Controllers of one gang that are remembered."""


def is_final(owner: Owner) -> bool:
    """Return whether a controller never creates a pod again that has succeeded."""
    return owner.kind == "Job" and owner.api_version.startswith("batch/")


@dataclass(slots=True)
class GoneMembers:
    """The succeeded members of one gang that are gone."""

    count: int = 0
    controllers: dict[str, None] = field(default_factory=dict)
    """Ids of the controllers of all members so far; an empty text for none."""
    has_job: bool = False
    """Whether one of them is a Job."""

    def meet(self, owner: Owner) -> None:
        """Record the controller of a member; forget the gone members if it is a new one."""
        controller = id_of(owner.uid)
        if controller in self.controllers:
            return
        self.count, self.has_job = 0, self.has_job or is_final(owner)
        self.controllers[controller] = None
        if len(self.controllers) > MAX_KNOWN:
            del self.controllers[next(iter(self.controllers))]


class LeftGangs:
    """Gangs that have no members at the moment: a Job may wait for minutes before it creates a pod again."""

    def __init__(self) -> None:
        self._by_key: dict[str, GoneMembers] = {}

    def put(self, gang: str, gone: GoneMembers) -> None:
        """Remember a gang (its key) that has no members any more."""
        if gone.has_job:
            self._by_key[gang] = gone
            if len(self._by_key) > MAX_GANGS:
                del self._by_key[next(iter(self._by_key))]

    def take(self, gang: str) -> GoneMembers:
        """Return what is known of a gang that gets members again."""
        return self._by_key.pop(gang, None) or GoneMembers()

    def __iter__(self) -> Iterator[tuple[str, GoneMembers]]:
        return iter(self._by_key.items())


def record(gangs: Iterable[tuple[str, GoneMembers]]) -> list[SucceededMembers]:
    """Return what the next leader needs, of the last gangs; nothing of gangs with very many controllers."""
    recorded = [
        SucceededMembers(gang=key, count=gone.count, controllers=list(gone.controllers))
        for key, gone in gangs
        if gone.count and len(gone.controllers) <= MAX_CONTROLLERS
    ]
    return recorded[-MAX_SUCCEEDED_GANGS:]


def restored(recorded: SucceededMembers, present: Collection[str]) -> GoneMembers | None:
    """Return what the last leader recorded; None if the controllers (ids) of the present members are others."""
    if not set(recorded.controllers).issuperset(present):
        return None
    return GoneMembers(count=recorded.count, controllers=dict.fromkeys(recorded.controllers), has_job=True)
