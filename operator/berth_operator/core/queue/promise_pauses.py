"""How long no places are kept for pods that a controller creates later, after places were kept in vain.

A user who creates and deletes the pods that come first would renew a promise without end. So the next promise to the
same owner comes only after a pause, which doubles each time; after `MAX_OWNERS` owners, the pause is the namespace's. A
new leader knows no pauses.
"""

from dataclasses import dataclass, field
from typing import Final

from berth_api.values import keys
from berth_api.values.backoff import ExponentialBackoff
from berth_operator.core.values import controller_gangs
from berth_operator.core.values.request import Membership

BACKOFF: Final = ExponentialBackoff(first=30.0, longest=1800.0)
MAX_OWNERS: Final = 3
"""Owners of a namespace with pauses of their own."""
MAX_NAMESPACES: Final = 1024
"""Namespaces with pauses. The one whose places were kept in vain the longest ago is forgotten first."""


@dataclass(slots=True)
class _Vain:
    """How often places were kept in vain."""

    count: int = 0
    until: float = 0.0

    @property
    def seconds(self) -> float:
        """Return how long the pause is."""
        return BACKOFF.after(self.count)

    def add(self, now: float) -> None:
        """Count once more; begin again if the last time is long ago."""
        self.count = 1 if self.is_over(now) else self.count + 1
        self.until = now + self.seconds

    def is_over(self, now: float) -> bool:
        """Return whether the pause ended so long ago that it does not count any more."""
        return now >= self.until + BACKOFF.longest


@dataclass(slots=True)
class _Namespace:
    owners: dict[tuple[str, str], _Vain] = field(default_factory=dict)
    """(kind, name) of an owner -> its pause."""
    all: _Vain = field(default_factory=_Vain)
    """The pause of all owners."""


class PromisePauses:
    """The pauses; `now` is a monotonic clock in seconds."""

    def __init__(self) -> None:
        """Create it without pauses."""
        self._namespaces: dict[str, _Namespace] = {}

    def in_vain(self, gang: Membership, now: float) -> None:
        """Record that places were kept in vain for pods that come after the members of a gang."""
        namespace, owner = _owner(gang)
        known = self._namespaces.pop(namespace, None) or _Namespace()
        self._namespaces[namespace] = known
        if len(self._namespaces) > MAX_NAMESPACES:
            del self._namespaces[next(iter(self._namespaces))]
        known.owners = {name: vain for name, vain in known.owners.items() if not vain.is_over(now)}
        if owner in known.owners or len(known.owners) < MAX_OWNERS:
            known.owners.setdefault(owner, _Vain()).add(now)
        if len(known.owners) >= MAX_OWNERS:
            known.all.add(now)

    def taken(self, gang: Membership) -> None:
        """Record that the pods that come later have taken all their places: the owner begins again."""
        namespace, owner = _owner(gang)
        if (known := self._namespaces.get(namespace)) is not None:
            known.owners.pop(owner, None)

    def why(self, gang: Membership, now: float) -> str:
        """Return why no places are kept for pods that come after the members of a gang; empty if they are."""
        namespace, owner = _owner(gang)
        if (known := self._namespaces.get(namespace)) is None:
            return ""
        of_owner = known.owners.get(owner, _Vain())
        for vain, owners in ((of_owner, f"{owner[0]} {namespace}/{owner[1]}"), (known.all, f"namespace {namespace}")):
            if now < vain.until:
                kept = f"kept in vain {vain.count} time(s), and are again after {vain.seconds:g} s"
                return f"for {owners} they were {kept}"
        return ""


def _owner(gang: Membership) -> tuple[str, tuple[str, str]]:
    """Return the namespace, the kind and the name of the object that defines a gang, if only by the gang's name."""
    owner = controller_gangs.owner_of(gang.controller, gang.group)
    namespace, name = keys.split(owner)
    return namespace, (gang.controller, name)
