"""Code that the families of faults share."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from devcluster import waiting
from tests.chaos.machines import MONTH
from tests.chaos.site import DEVICES, Site

STRUCK_SECONDS: Final = 20.0
"""Longest wait for a request that a fault waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """What has to work again at the end of a fault."""

    path: str = DEVICES
    """What the API server has to serve, from when on the time to the next bind counts."""
    node: str = ""
    """Where a pod has to be bound; empty for any node."""
    returned: bool = False
    """Whether a definition has returned, or is read again by an API server that was started again.

    More time is allowed then: API servers look for the kind of the fence's parameter only every 30 s.
    """


class Family:
    """Faults of one part of a site; each is a method that injects it and undoes it.

    A method returns what has healed, or None if it has measured the fail-over, and nothing else was to heal.
    """

    weights: ClassVar[Mapping[str, int]] = {}
    """Method -> how often it is drawn; 0 if it takes as long as a LeaderLease, so that it occurs once."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self.site, self.chance = site, chance

    def strike(self, kind: str) -> Healed | None:
        """Inject a fault and undo it."""
        healed: Healed | None = getattr(self, kind)()
        return healed

    def until_struck(self, predicate: Callable[[], object]) -> bool:
        """Wait until a fault has struck; return whether it has: the leader may just have changed by itself."""
        return bool(waiting.within(predicate, seconds=STRUCK_SECONDS))

    def last(self, least: float, most: float) -> None:
        """Wait while a fault lasts, for a random number of seconds in this range."""
        time.sleep(self.chance.uniform(least, most))

    def any_node(self) -> str:
        """Return one of the nodes."""
        return self.chance.choice(self.site.machines.names)

    def again(self, node: str, *, name: str = "") -> Mapping[str, Any]:
        """Return the manifest of a node that exists, to create it again, or with another name."""
        manifest = dict(self.site.machines.manifest(name or node))
        labels = self.site.cluster.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
        manifest["metadata"]["labels"] |= {key: value for key, value in labels.items() if key.startswith(MONTH)}
        return manifest
